"use strict";
// Every text of the run comes into the page through `text`, as a text node: nothing of it is ever markup.

const $ = (id) => document.getElementById(id);
const ODD = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;
const ROW = () => (innerWidth <= 720 ? 56 : 28);

async function unpack(script) {
  const packed = script.textContent;
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(packed) : Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function drawn(tag, properties, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Characters that a reader does not see, or that turn the text around, are spelt out.
function plain(value, keep = "") {
  return String(value).replace(ODD, (c) => (keep.includes(c) ? c : `\\u{${c.codePointAt(0).toString(16)}}`));
}

function text(value, keep = "") {
  const parts = document.createDocumentFragment();
  const whole = String(value);
  let from = 0;
  for (const match of whole.matchAll(ODD)) {
    if (keep.includes(match[0])) continue;
    parts.append(whole.slice(from, match.index), make("span", { class: "odd" }, plain(match[0])));
    from = match.index + match[0].length;
  }
  parts.append(whole.slice(from));
  return parts;
}

const count = (n) => n.toLocaleString("en");
function took(us) {
  if (us < 1e3) return `${Math.round(us)} μs`;
  if (us < 1e6) return `${(us / 1e3).toFixed(1)} ms`;
  return us < 6e8 ? `${(us / 1e6).toFixed(1)} s` : `${(us / 6e7).toFixed(1)} min`;
}
function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < 4; unit++) bytes /= 1024;
  return `${unit ? bytes.toFixed(1) : bytes} ${units[unit]}`;
}
const KINDS = new Set(["completed", "failed", "timeout", "interrupted", "blocked", "cancelled"]);
const kind = (status) => (KINDS.has(status) ? status : "other");
const COLOUR = { completed: "completed", failed: "failed", timeout: "failed", interrupted: "failed", blocked: "blocked", cancelled: "cancelled", other: "other" };

let index, total, lane, lanes, end, order;
let parts, loaded = Promise.resolve(), unpacked = [];
let shown, chosen = -1;
let view = { from: 0, to: 1 };

const statusOf = (call) => index.statuses[index.status[call]];
function clock(call, digits = 12) {
  return new Date(index.first_ms + index.start[call] / 1000).toISOString().slice(11, 11 + digits);
}

function record(call) {
  const part = Math.floor(call / index.part_calls);
  if (!unpacked[part]) unpacked[part] = arrived(part).then(unpack).then((records) => (unpacked[part] = records));
  const found = unpacked[part];
  return Array.isArray(found) ? found[call % index.part_calls] : found.then((records) => records[call % index.part_calls]);
}

// The page is drawn while the records still come; a part is whole when something follows it.
async function arrived(part) {
  if (!parts[part]?.nextElementSibling) await loaded;
  return parts[part];
}

// The first lane whose last call has ended: a heap of when lanes end would save nothing at this number of lanes.
const MOST_LANES = 24;
function layOut() {
  total = index.start.length;
  const start = Float64Array.from(index.start);
  index.start = start;
  order = Uint32Array.from({ length: total }, (_, call) => call);
  let sorted = true;
  for (let i = 1; i < total && sorted; i++) sorted = start[i - 1] <= start[i];
  if (!sorted) order.sort((a, b) => start[a] - start[b]);
  lane = new Uint8Array(total);
  const free = [];
  end = 1;
  for (const call of order) {
    const stop = start[call] + index.took[call];
    let at = 0;
    while (at < free.length && free[at] > start[call]) at++;
    if (at >= MOST_LANES) at = MOST_LANES - 1;
    free[at] = stop;
    lane[call] = at;
    if (stop > end) end = stop;
  }
  lanes = Math.max(1, free.length);
}

// Timeline

const AXIS = 22;
let place = null;
function drawTimeline() {
  const canvas = $("timeline");
  const width = canvas.clientWidth, thick = Math.max(5, Math.min(22, Math.floor(200 / lanes)));
  const height = AXIS + lanes * thick + 10;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const style = getComputedStyle(document.body);
  const probe = make("i");
  document.body.append(probe);
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const pad = 14, wide = width - 2 * pad;
  const scale = wide / (view.to - view.from);
  place = { pad, scale, thick };

  pen.font = `11px ${style.fontFamily}`;
  pen.fillStyle = colour("soft");
  pen.strokeStyle = colour("line");
  const step = tick((view.to - view.from) / Math.max(2, Math.floor(wide / 80)));
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    const x = Math.round(pad + (at - view.from) * scale) + 0.5;
    pen.beginPath();
    pen.moveTo(x, 16);
    pen.lineTo(x, height);
    pen.stroke();
    const label = at === 0 ? "0" : took(at).replace(".0 ", " ");
    const room = pen.measureText(label).width;
    pen.fillText(label, Math.max(2, Math.min(x - room / 2, width - room - 2)), 11);
  }

  const visible = shown && shown.length < total ? new Uint8Array(total) : null;
  if (visible) for (const call of shown) visible[call] = 1;
  const colours = index.statuses.map((status) => colour(COLOUR[kind(status)]));
  const good = index.statuses.map((status) => status === "completed");
  // What failed is drawn over what did not; of the calls that share a pixel one is drawn.
  for (const pass of [true, false]) {
    const drawnTo = new Float64Array(MOST_LANES).fill(-1);
    for (const call of order) {
      const status = index.status[call];
      if (good[status] !== pass) continue;
      const from = index.start[call], to = from + index.took[call];
      if (to < view.from || from > view.to) continue;
      const x = Math.max(0, pad + (from - view.from) * scale);
      const right = Math.min(width, Math.max(x + 2, pad + (to - view.from) * scale - 0.5));
      const on = lane[call], faint = visible && !visible[call];
      if (!faint && right < drawnTo[on] + 0.5) continue;
      pen.globalAlpha = faint ? 0.15 : 1;
      pen.fillStyle = colours[status];
      pen.fillRect(x, AXIS + on * thick, right - x, thick - 2);
      if (!faint) drawnTo[on] = right;
    }
  }
  pen.globalAlpha = 1;
  if (chosen >= 0) {
    const x = pad + (index.start[chosen] - view.from) * scale;
    pen.strokeStyle = colour("text");
    pen.lineWidth = 2;
    pen.strokeRect(x - 1.5, AXIS + lane[chosen] * thick - 1.5, Math.max(3, index.took[chosen] * scale) + 3, thick + 1);
  }
  probe.remove();
  $("span").textContent = view.from === 0 && view.to === end ? took(end) : `${view.from ? took(view.from) : "0"} to ${took(view.to)}`;
  canvas.dataset.drawn = "1";
}

function tick(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= least);
}

let frame = 0;
function redraw() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(drawTimeline);
}

function look(from, to) {
  const span = Math.min(end, Math.max(50, to - from));
  from = Math.max(0, Math.min(from, end - span));
  view = { from, to: from + span };
  redraw();
}

function zoom(factor, middle = (view.from + view.to) / 2) {
  look(middle - (middle - view.from) * factor, middle + (view.to - middle) * factor);
}

function timeAt(event) {
  return view.from + (event.clientX - $("timeline").getBoundingClientRect().left - place.pad) / place.scale;
}

function callAt(event) {
  const y = event.clientY - $("timeline").getBoundingClientRect().top;
  const on = Math.floor((y - AXIS) / place.thick), at = timeAt(event);
  let best = -1, nearest = 6 / place.scale;
  for (const call of shown) {
    if (lane[call] !== on) continue;
    const away = Math.max(index.start[call] - at, at - index.start[call] - index.took[call], 0);
    if (away <= nearest && (away < nearest || best < 0)) [best, nearest] = [call, away];
  }
  return best;
}

function listenTimeline() {
  const canvas = $("timeline");
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!held) {
      const call = callAt(event);
      canvas.title = call < 0 ? "" : `${plain(index.tools[index.tool[call]])}, ${plain(statusOf(call))}, ${took(index.took[call])}`;
      return;
    }
    const by = event.clientX - held.x;
    held.moved ||= Math.abs(by) > 4;
    if (held.moved) look(held.from - by / place.scale, held.to - by / place.scale);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (held && !held.moved) {
      const call = callAt(event);
      if (call >= 0) choose(call, true).then(reveal);
    }
    held = null;
  });
  canvas.addEventListener("pointercancel", () => (held = null));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, timeAt(event));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const by = (view.to - view.from) / 5;
    const does = {
      ArrowLeft: () => look(view.from - by, view.to - by),
      ArrowRight: () => look(view.from + by, view.to + by),
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => look(0, end),
    }[event.key];
    if (does && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      does();
    }
  });
  $("zoom-in").onclick = () => zoom(0.5);
  $("zoom-out").onclick = () => zoom(2);
  $("zoom-all").onclick = () => look(0, end);
  new ResizeObserver(() => { redraw(); drawList(); }).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

// Calls: rows exist only where the list is looked at.

let rows = new Map();
function drawList(anew = false) {
  const list = $("calls"), high = ROW();
  if (anew || list.dataset.row !== String(high)) {
    for (const row of rows.values()) row.remove();
    rows = new Map();
    list.dataset.row = high;
    $("split").style.setProperty("--rows", `${shown.length * high}px`);
    $("tall").style.height = `${Math.max(1, shown.length) * high}px`;
    if (!shown.length) rows.set(-1, $("tall").appendChild(make("p", { class: "empty" }, total ? "No call matches." : "No calls on record.")));
  }
  const first = Math.max(0, Math.floor(list.scrollTop / high) - 8);
  const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / high) + 8);
  for (const [at, row] of rows) {
    if (at >= 0 && (at < first || at >= last)) {
      row.remove();
      rows.delete(at);
    }
  }
  for (let at = first; at < last; at++) {
    if (!rows.has(at)) rows.set(at, $("tall").appendChild(rowOf(at, high)));
    const row = rows.get(at), selected = shown[at] === chosen;
    row.setAttribute("aria-selected", selected);
    if (selected) list.setAttribute("aria-activedescendant", row.id);
  }
}

function rowOf(at, high) {
  const call = shown[at], status = statusOf(call), tool = index.tools[index.tool[call]];
  const summary = make("span", { class: "summary" });
  const row = make("div", { class: "call", role: "option", id: `call-${call}`, "aria-posinset": at + 1, "aria-setsize": shown.length },
    make("span", { class: "time" }, clock(call)),
    make("span", { class: "tool" }, text(tool)),
    make("span", { class: `status key ${kind(status)}` }, text(status)),
    make("span", { class: "took" }, took(index.took[call])),
    summary);
  row.style.top = `${at * high}px`;
  row.onclick = () => choose(call).then(reveal);
  const show = (found) => summary.append(text(found.summary ?? ""));
  const found = record(call);
  if (found instanceof Promise) found.then(show); else show(found);
  return row;
}

function choose(call, scroll = false) {
  chosen = call;
  const at = shown.indexOf(call), list = $("calls"), high = ROW();
  if (at >= 0) {
    const top = at * high;
    if (scroll) list.scrollTop = top - list.clientHeight / 2;
    else if (top < list.scrollTop) list.scrollTop = top;
    else if (top + high > list.scrollTop + list.clientHeight) list.scrollTop = top + high - list.clientHeight;
  }
  drawList();
  redraw();
  return showDetails(call);
}

function listenList() {
  const list = $("calls");
  list.addEventListener("scroll", () => drawList(), { passive: true });
  list.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(list.clientHeight / ROW()) - 1), now = shown.indexOf(chosen);
    const to = {
      ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + page, PageUp: now - page, Home: 0, End: shown.length - 1,
    }[event.key];
    if (to !== undefined && shown.length) {
      event.preventDefault();
      choose(shown[Math.max(0, Math.min(shown.length - 1, to))]);
    } else if (event.key === "Enter" && chosen >= 0) {
      showDetails(chosen).then(() => $("details").focus());
    }
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !typing) {
      event.preventDefault();
      $("search").focus();
    } else if (event.key === "Escape" && !$("details").hidden && !typing) {
      closeDetails();
    }
  });
}

// Where they stand below the list, they are brought into sight.
function reveal() {
  $("details").scrollIntoView({ block: "nearest" });
}

function closeDetails() {
  $("details").hidden = true;
  chosen = -1;
  drawList();
  redraw();
  $("calls").focus();
}

async function showDetails(call) {
  const found = await record(call);
  if (chosen !== call) return;
  const permission = found.permission ?? {}, error = found.error;
  const facts = make("dl");
  const fact = (name, value) => {
    if (value === undefined || value === null || value === "") return;
    facts.append(make("dt", {}, name), make("dd", {}, value instanceof Node ? value : text(value)));
  };
  const close = make("button", { type: "button", "aria-label": "Close details" }, "×");
  close.onclick = closeDetails;
  const panel = $("details");
  panel.replaceChildren(
    make("div", { class: "bar" }, make("h2", {}, text(found.tool ?? "?")), close),
    make("p", {}, text(found.summary ?? "")),
    facts);
  fact("status", make("span", { class: `key ${kind(found.status)}` }, text(found.status ?? "?")));
  fact("began", String(found.started_at ?? "").replace(/^([-\d]{10})T/, "$1 "));
  fact("took", took(index.took[call]));
  fact("agent", found.agent);
  fact("step", found.step);
  fact("action", permission.action);
  fact("resource", permission.resource);
  fact("decision", [permission.effect, permission.layer && `by the ${permission.layer} layer`].filter(Boolean).join(" "));
  fact("rule", permission.rule);
  fact("read", size(index.bytes_in[call]));
  fact("to the model", size(index.bytes_out[call]) + (found.truncated ? ", cut" : ""));
  const block = (title, value) => {
    panel.append(make("h3", {}, title), make("pre", {}, text(typeof value === "string" ? value : JSON.stringify(value, null, 2), "\n\t")));
  };
  if (error) block(`Error: ${plain(error.code)}`, error.message ?? "");
  if (found.cause) block("Cause, for the host", found.cause);
  block("Arguments", found.args ?? {});
  if (Array.isArray(found.repairs) && found.repairs.length) block("Repaired arguments", found.repairs.join("\n"));
  if (Array.isArray(found.artifacts) && found.artifacts.length) block("Artifacts", found.artifacts.join("\n"));
  const ids = ["id", "call_id", "conversation_id", "trace_id", "span_id", "scope", "seq"].filter((name) => found[name] != null);
  block("Identity", ids.map((name) => `${name}: ${found[name]}`).join("\n"));
  panel.hidden = false;
  panel.scrollTop = 0;
  panel.dataset.call = call;
}

// Filters: tool and status by the columns; texts need the records, which are unpacked once.

function glob(pattern) {
  if (!/[*?]/.test(pattern)) return (path) => path.toLowerCase().includes(pattern.toLowerCase());
  const match = new RegExp(`^${pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*+/g, ".*").replace(/\?/g, ".")}$`, "isu");
  return (path) => match.test(path);
}

const pathOf = (found) => String(found.permission?.resource ?? found.args?.path ?? "");

let searching = 0;
async function filter() {
  const mine = ++searching;
  const tool = $("tool").value, status = $("status").value;
  const words = [], paths = [$("path").value.trim()], named = [];
  for (const word of $("search").value.trim().split(/\s+/)) {
    if (word.startsWith("path:")) paths.push(word.slice(5));
    else if (word.startsWith("tool:")) named.push(word.slice(5).toLowerCase());
    else if (word) words.push(word.toLowerCase());
  }
  const tests = paths.filter(Boolean).map(glob);
  const found = [];
  for (const call of order) {
    if (tool !== "" && index.tool[call] !== +tool) continue;
    if (status !== "" && index.status[call] !== +status) continue;
    if (named.some((name) => !index.tools[index.tool[call]].toLowerCase().includes(name))) continue;
    if (words.length || tests.length) {
      let of = record(call);
      if (of instanceof Promise) {
        $("shown").textContent = `searching… ${Math.round((100 * call) / total)} %`;
        of = await of;
        if (mine !== searching) return;
      }
      if (tests.length && !tests.every((test) => test(pathOf(of)))) continue;
      if (words.length) {
        const all = `${of.tool} ${of.status} ${of.agent ?? ""} ${of.summary} ${pathOf(of)} ${JSON.stringify(of.args)} ${of.error?.code ?? ""}`.toLowerCase();
        if (!words.every((word) => all.includes(word))) continue;
      }
    }
    found.push(call);
  }
  show(Uint32Array.from(found));
}

function show(calls) {
  shown = calls;
  $("shown").textContent = shown.length === total ? `${count(total)} calls` : `${count(shown.length)} of ${count(total)} calls`;
  $("calls").scrollTop = 0;
  drawList(true);
  redraw();
  drawPlots();
}

function listenFilters() {
  const fill = (select, names) => {
    names.map((name, number) => [name, number]).sort((a, b) => (a[0] < b[0] ? -1 : 1))
      .forEach(([name, number]) => select.append(make("option", { value: number }, plain(name))));
  };
  fill($("tool"), index.tools);
  fill($("status"), index.statuses);
  let waiting = 0;
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 120);
  };
  $("filters").addEventListener("input", soon);
  $("filters").addEventListener("reset", () => setTimeout(filter));
  $("filters").addEventListener("submit", (event) => event.preventDefault());
}

// Totals and plots

function drawTotals() {
  const by = new Array(index.statuses.length).fill(0);
  let busy = 0, bytes = 0;
  for (let call = 0; call < total; call++) {
    by[index.status[call]]++;
    busy += index.took[call];
    bytes += index.bytes_in[call];
  }
  const of = (name) => by[index.statuses.indexOf(name)] ?? 0;
  const facts = [
    ["calls", count(total)], ["completed", count(of("completed"))], ["blocked", count(of("blocked"))],
    ["failed", count(total - of("completed") - of("blocked"))], ["wall time", total ? took(end) : "0"], ["in tools", took(busy)], ["read", size(bytes)],
  ];
  $("totals").append(...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  const legend = index.statuses.map((status, at) => make("span", { class: `key ${kind(status)}` }, text(`${plain(status)} ${count(by[at])}`)));
  $("legend").append(...legend);
}

function bars(title, note, entries) {
  const card = make("div", { class: "card" }, make("h2", {}, title), make("p", {}, note));
  const long = entries.some((entry) => entry.long);
  const high = long ? 40 : 24, wide = 290, top = Math.max(1e-9, ...entries.map((entry) => entry.value));
  if (!entries.length) {
    card.append(make("p", {}, "None."));
    return card;
  }
  const picture = drawn("svg", { viewBox: `0 0 ${wide} ${entries.length * high}`, role: "img", "aria-label": `${title}: ${entries.map((e) => `${plain(e.name)} ${e.label}`).join(", ")}` });
  entries.forEach((entry, at) => {
    const y = at * high, name = plain(entry.name), most = long ? 44 : 17;
    const room = long ? 0 : 112;
    const cut = name.length > most ? `${name.slice(0, most - 1)}…` : name;
    const length = Math.max(1.5, ((wide - room - 62) * entry.value) / top);
    const group = drawn("g", { class: entry.kind ?? "" }, drawn("title", {}, `${name}: ${entry.label}`));
    const below = y + (long ? 16 : 0);
    group.append(
      drawn("text", { x: 0, y: y + 15 }, cut),
      drawn("rect", { x: room, y: below + 4, width: length, height: 15, rx: 3 }),
      drawn("text", { x: room + length + 6, y: below + 15, class: "soft" }, entry.label));
    picture.append(group);
  });
  card.append(picture);
  return card;
}

function drawPlots() {
  const calls = new Float64Array(index.tools.length), time = new Float64Array(index.tools.length);
  const denied = new Map(), decades = new Array(8 * 3).fill(0);
  const blocked = index.statuses.indexOf("blocked");
  for (const call of shown) {
    const tool = index.tool[call], us = index.took[call];
    calls[tool]++;
    time[tool] += us;
    decades[Math.min(decades.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(1, us)) * 3)))]++;
    if (index.status[call] === blocked) denied.set(index.decision[call], (denied.get(index.decision[call]) ?? 0) + 1);
  }
  const byTool = (of, label) => index.tools.map((name, tool) => ({ name, value: of[tool], label: label(of[tool]) }))
    .filter((entry) => entry.value > 0).sort((a, b) => b.value - a.value).slice(0, 12);
  const denials = [...denied].sort((a, b) => b[1] - a[1]).slice(0, 12)
    .map(([decision, value]) => ({ name: index.decisions[decision], value, label: count(value), kind: "blocked", long: true }));
  $("plots").replaceChildren(
    bars("Calls per tool", "the calls shown above", byTool(calls, count)),
    bars("Time per tool", "the sum of their durations", byTool(time, took)),
    histogram(decades),
    bars("Blocked", "by the rule or the layer that refused", denials));
}

function histogram(decades) {
  const card = make("div", { class: "card" }, make("h2", {}, "Durations"), make("p", {}, "how many calls took how long"));
  let first = decades.findIndex(Boolean), last = decades.findLastIndex(Boolean);
  if (first < 0) {
    card.append(make("p", {}, "None."));
    return card;
  }
  first = Math.floor(first / 3) * 3;
  last = Math.max(first + 5, Math.ceil((last + 1) / 3) * 3 - 1);
  const wide = 290, high = 150, base = high - 22, step = wide / (last - first + 1), top = Math.max(...decades);
  const picture = drawn("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "Number of calls by duration" });
  for (let at = first; at <= last; at++) {
    const value = decades[at] ?? 0, x = (at - first) * step;
    if (value) {
      const tall = Math.max(2, ((base - 18) * value) / top);
      picture.append(drawn("rect", { x: x + 1, y: base - tall, width: step - 2, height: tall, rx: 2 },
        drawn("title", {}, `${took(10 ** (at / 3))} to ${took(10 ** ((at + 1) / 3))}: ${count(value)}`)));
      if (step > 22) picture.append(drawn("text", { x: x + step / 2, y: base - tall - 4, "text-anchor": "middle", class: "soft" }, count(value)));
    }
    if (at % 3 === 0) picture.append(drawn("text", { x, y: high - 5, class: "soft" }, took(10 ** (at / 3)).replace(".0 ", " ")));
  }
  picture.append(drawn("line", { x1: 0, x2: wide, y1: base, y2: base, class: "axis" }));
  card.append(picture);
  return card;
}

function warn() {
  const say = (words) => $("warnings").append(make("p", { class: "warning" }, words));
  if (index.faults.length) {
    const places = index.faults.slice(0, 5).map((f) => `${f.kind} at byte ${f.at}`).join(", ");
    say(`The log is damaged: ${places}. What is shown may not be all that happened.`);
  }
  if (index.torn) say(`${index.torn} lines of the log are cut off: by a crash, or one was being written.`);
  if (index.unfinished_total) {
    const names = [...new Set(index.unfinished.map((event) => plain(event.data?.tool ?? "?")))].join(", ");
    say(`${index.unfinished_total} calls began a change and have no end on record (${names}): under way, or cut off by a crash.`);
  }
}

async function main() {
  parts = document.getElementsByClassName("calls");
  if (document.readyState === "loading") loaded = new Promise((done) => document.addEventListener("DOMContentLoaded", done));
  index = await unpack(document.querySelector("script.index"));
  layOut();
  view = { from: 0, to: end };
  $("run").append(text(index.run));
  const agents = index.agents.filter(Boolean).map((agent) => plain(agent));
  $("about").textContent = [
    total ? new Date(index.first_ms).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "",
    index.state === "open" ? "open: in use, or left behind" : index.state,
    agents.length ? `agent ${agents.slice(0, 5).join(", ")}` : "",
  ].filter(Boolean).join(" · ");
  $("footer").textContent = `kgent_tools ${index.version}. Keys: / searches; arrows, Page Up and Down, Home and End choose a call; Enter goes to its details, Escape back; on the timeline arrows, +, − and 0, or Shift and the wheel.`;
  warn();
  drawTotals();
  listenTimeline();
  listenList();
  listenFilters();
  show(order);
  if (total) await record(0);
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  document.documentElement.dataset.ready = Math.round(performance.now());
}

main().catch((error) => {
  $("warnings").append(make("p", { class: "warning" }, `The report cannot be drawn: ${plain(error.message)}. It needs a browser of 2024 or later.`));
  throw error;
});
