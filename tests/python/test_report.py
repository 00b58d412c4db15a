"""The report of a run, opened in a browser: what it draws, that it can be used, and that nothing on record acts in it."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from support import Box

from kgent_tools import RunError
from kgent_tools.report import write_report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: the Debian package `chromium`"),
]

# Each would set `document.title` or leave the page, were it ever markup or script.
HOSTILE = [
    "<script>document.title='x'<\\/script>",
    "</script><script>document.title='x'</script>",
    "<img src=x onerror=\"document.title='x'\">",
    "<!--<script>",
    "]]>&lt;b&gt;&#60;b&#62;",
    "javascript:document.title='x'",
    "'\"><svg onload=document.title='x'>",
    "a\u202egnp.exe",
    "z\u200bero\u2066iso",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium") / "profile") as browser:
        yield browser


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    rules = [{"action": "edit", "resource": "private/**", "effect": "deny"}]
    with Box(tmp_path, {"permissions": {"rules": rules}}) as box:
        yield box


def made_run(folder: Path, calls: int) -> Path:
    """A run with that many calls, four at a time, as a host would have written it."""
    run = folder / f"run-{calls}"
    (run / "logs").mkdir(parents=True)
    (run / "logs/errors.jsonl").write_bytes(b"")
    (run / "events.jsonl").write_text(
        '{"v":1,"seq":1,"time":"2026-11-30T12:00:00.000000Z","run_id":"r","id":null,"call_id":null,'
        '"type":"run.created","data":{"audit":"plain"}}\n',
        encoding="utf-8",
    )
    tools = ["read_file", "grep_files", "edit_file", "list_files", "write_file"]
    statuses = ["completed"] * 17 + ["failed", "blocked", "timeout"]
    with (run / "logs/tools.jsonl").open("w", encoding="utf-8") as log:
        for n in range(calls):
            status, tool, path = statuses[n * 7 % 20], tools[n * n % 5], f"src/part{n % 97}/file{n}.py"
            at = n * 2500
            second = f"{at // 3_600_000_000 + 12:02}:{at // 60_000_000 % 60:02}:{at // 1_000_000 % 60:02}.{at % 1_000_000:06}"
            record = {
                "v": 1,
                "seq": n + 1,
                "id": f"c{n:x}",
                "run_id": "r",
                "call_id": f"call_{n}",
                "step": n // 4,
                "agent": "builder",
                "tool": tool,
                "scope": "location",
                "status": status,
                "started_at": f"2026-11-30T{second}Z",
                "duration_us": 300 + n * 7919 % 9000,
                "summary": f"{tool} {path}: {n % 400} lines from line 1",
                "args": {"path": path, "limit": n % 400},
                "repairs": [],
                "permission": {"action": tool, "resource": path, "effect": "allow", "layer": "default", "rule": None},
                "artifacts": [],
                "error": None if status == "completed" else {"code": status, "message": f"it {status}"},
                "bytes_in": n % 5000,
                "bytes_out": n % 700,
                "truncated": False,
            }
            log.write(json.dumps(record, separators=(",", ":")) + "\n")
    return run


def report(run: Path) -> Path:
    page = run.parent / f"{run.name}.html"
    write_report(run, page)
    return page


def shown(browser: Browser) -> list[str]:
    """The summaries of the rows, once they are there."""
    browser.wait("[...document.querySelectorAll('.call .summary')].every((e) => e.textContent)")
    rows = "[...document.querySelectorAll('.call')].sort((a, b) => a.offsetTop - b.offsetTop)"
    return browser.run(f"{rows}.map((row) => row.querySelector('.summary').textContent)")


def fill(browser: Browser, field: str, value: str) -> None:
    """Sets a filter as a reader does, and waits for the answer."""
    browser.run(
        f"shown = null, $({field!r}).value = {json.dumps(value)},"
        f"$({field!r}).dispatchEvent(new Event('input', {{bubbles: true}}))"
    )
    browser.wait("shown !== null")


def assert_inert(browser: Browser, page: Path) -> None:
    """Nothing was asked of any address but the page, and nothing was refused by the page's own policy or failed."""
    asked = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    assert asked == [page.as_uri()]
    assert [e for e in browser.events if e["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")] == []


def lit(browser: Browser) -> set[str]:
    """The colours in the timeline's lanes."""
    return set(
        browser.run(
            "(() => { const c = $('timeline'), d = c.getContext('2d').getImageData(0, 24, c.width, c.height - 24).data;"
            "const found = new Set(); for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255)"
            " found.add([d[i], d[i + 1], d[i + 2]].join()); return [...found]; })()"
        )
    )


def test_it_draws_the_timeline_filters_searches_and_shows_a_call(box: Box, browser: Browser) -> None:
    box.put("notes.md", "one\ntwo\n")
    for _ in range(3):
        box.ok("read_file", path="notes.md")
    box.ok("grep_files", pattern="two")
    box.code("read_file", path="missing.md")
    box.code("write_file", path="private/x", content="secret text")
    page = report(box.run_dir)
    browser.show(1280, 900)
    browser.open(page)
    assert browser.run("document.title") == f"Run {box.run_dir.name}"
    assert {"47,143,91", "207,63,58", "184,117,3"} <= lit(browser)  # completed, failed, blocked
    assert len(shown(browser)) == 6
    totals = browser.run(
        "Object.fromEntries([...document.querySelectorAll('#totals div')].map((d) => [d.firstChild.textContent, d.lastChild.textContent]))"
    )
    assert {k: totals[k] for k in ("calls", "completed", "blocked", "failed")} == {
        "calls": "6",
        "completed": "4",
        "blocked": "1",
        "failed": "1",
    }
    assert browser.run("document.querySelectorAll('#plots svg').length") == 4
    assert "config: deny edit private/**" in browser.run("$('plots').textContent")

    fill(browser, "search", "two")
    assert shown(browser) == ["searched for `two`: 1 matches in 1 files"]
    assert browser.run("$('shown').textContent") == "1 of 6 calls"
    fill(browser, "search", "tool:READ path:*.md")
    assert len(shown(browser)) == 4
    fill(browser, "path", "miss")
    assert [text.split(":")[0] for text in shown(browser)] == ["not_found"]
    browser.run("$('filters').reset()")
    browser.wait("shown.length === 6")
    blocked = browser.run("[...$('status').options].find((o) => o.text === 'blocked').value")
    fill(browser, "status", blocked)
    assert [text.split(":")[0] for text in shown(browser)] == ["denied"]

    browser.run("document.querySelector('.call').click()")
    browser.wait("!$('details').hidden")
    details = browser.run("$('details').innerText")
    for fact in (
        "write_file",
        "deny by the config layer",
        "config: deny edit private/**",
        '"path": "private/x"',
        "Error: denied",
    ):
        assert fact in details
    assert "secret text" not in page.read_text(encoding="utf-8") + details
    assert_inert(browser, page)


def test_it_is_used_by_the_keyboard_alone(box: Box, browser: Browser) -> None:
    for n in range(100):
        box.put(f"f{n}", "x")
        box.ok("read_file", path=f"f{n}")
    browser.show(1000, 800)
    browser.open(report(box.run_dir))
    browser.press("/")
    assert browser.run("document.activeElement.id") == "search"
    browser.run("$('calls').focus()")
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    assert browser.run("chosen") == 1
    browser.press("End")
    assert browser.run("chosen") == 99
    browser.wait(
        "document.querySelector('.call[aria-selected=true]')?.id === $('calls').getAttribute('aria-activedescendant')"
    )
    browser.press("Enter")
    browser.wait("document.activeElement.id === 'details' && $('details').textContent.includes('f99')")
    browser.press("Escape")
    assert browser.run("[$('details').hidden, document.activeElement.id]") == [True, "calls"]
    browser.run("$('timeline').focus()")
    browser.press("+")
    assert browser.run("view.to - view.from < end")
    browser.press("0")
    assert browser.run("view.to - view.from === end")


def test_nothing_on_record_acts(tmp_path: Path, browser: Browser) -> None:
    run = tmp_path / "</title><script>document.title='x'</script>".replace("/", "\u2215")
    made_run(tmp_path, len(HOSTILE)).rename(run)
    log = run / "logs/tools.jsonl"
    records = [json.loads(line) for line in log.read_bytes().splitlines()]
    for record, text in zip(records, HOSTILE, strict=True):
        keys = ("id", "tool", "status", "agent", "summary", "call_id", "trace_id", "started_at", "scope")
        record.update(dict.fromkeys(keys, text), args={text: text, "path": text}, artifacts=[text], repairs=[text])
        record.update(permission=dict.fromkeys(("action", "resource", "layer", "effect", "rule"), text))
        record.update(error={"code": text, "message": text})
    log.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    errors = [{"v": 1, "seq": n + 1, "id": text, "cause": text} for n, text in enumerate(HOSTILE)]
    (run / "logs/errors.jsonl").write_text("".join(map(lambda e: json.dumps(e) + "\n", errors)), encoding="utf-8")
    page = tmp_path / "report.html"
    write_report(run, page)

    browser.show(1280, 900)
    browser.open(page)
    title = browser.run("document.title")
    for n, text in enumerate(HOSTILE):
        browser.run(f"choose({n})")
        browser.wait(f"$('details').dataset.call === '{n}'")
        visible = re.sub("[\u202e\u200b\u2066]", lambda odd: f"\\u{{{ord(odd[0]):x}}}", text)
        assert browser.run("$('details').querySelector('h2').textContent") == visible
        assert browser.run("$('details').querySelector('h2').children.length") == len(
            re.findall("[\u202e\u200b\u2066]", text)
        )
    fill(browser, "search", "<script>")
    assert len(shown(browser)) == 3
    fill(browser, "search", "")
    for field in ("tool", "status"):
        fill(browser, field, "1")
        fill(browser, field, "")
    everything = browser.run("document.documentElement.textContent.replace(/@/g, '')")
    assert not set(everything) & set("\u202e\u200b\u2066")
    assert browser.run("document.title") == title
    assert browser.run("document.querySelectorAll('body img, body svg[onload], iframe, a, link, object').length") == 0
    assert browser.run("[...document.scripts].filter((s) => !s.type).length") == 1
    assert_inert(browser, page)
    # The policy itself: a script that the page did not come with does not run, and no address is asked.
    browser.run(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    )
    assert browser.run("window.ran") is None
    assert browser.run("fetch('http://127.0.0.1:9/').then(() => 'went', (e) => e.name)") == "TypeError"
    assert "Refused to connect" in str(browser.events) or "Content Security Policy" in str(browser.events)


def test_what_is_written_torn_or_damaged_is_said(tmp_path: Path, browser: Browser) -> None:
    run = made_run(tmp_path, 3)
    log = run / "logs/tools.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"v":1,"seq":4,"id":"c3","tool":"re')
    with (run / "events.jsonl").open("a", encoding="utf-8") as events:
        started = {"v": 1, "seq": 2, "id": "c9", "type": "tool.started", "data": {"tool": "<b>"}}
        events.write(json.dumps(started) + "\n")
    browser.open(report(run))
    said = browser.run("$('warnings').innerText")
    assert "1 lines of the log are cut off" in said
    assert "1 calls began a change and have no end on record (<b>)" in said
    first, _, third = whole.splitlines(keepends=True)
    log.write_bytes(first + third)
    browser.open(report(run))
    assert "The log is damaged: missing at byte" in browser.run("$('warnings').innerText")
    # Values of other types than ours: shown as they can be, and no failure.
    log.write_text(
        '{"seq":1,"tool":7,"status":[],"duration_us":"x","started_at":{},"args":3,"permission":"p","error":1}\n{"seq":2}\n'
    )
    page = report(run)
    browser.open(page)
    browser.run("choose(0)")
    browser.wait("$('details').dataset.call === '0'")
    fill(browser, "search", "zzz")
    assert browser.run("$('tall').textContent") == "No call matches."
    log.write_bytes(b"")
    browser.open(report(run))
    assert browser.run("$('tall').textContent") == "No calls on record."
    with pytest.raises(RunError, match="cannot be read"):
        write_report(tmp_path, tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()
    assert list(tmp_path.glob(".report-*")) == []


def test_on_a_phone_nothing_leaves_the_screen(box: Box, browser: Browser) -> None:
    box.put("a" * 200, "x")
    box.ok("read_file", path="a" * 200)
    browser.show(360, 740)
    browser.open(report(box.run_dir))
    shown(browser)
    browser.run("document.querySelector('.call').click()")
    browser.wait("!$('details').hidden")
    assert browser.run("document.documentElement.scrollWidth") <= 360
    # Below the list, in sight, and nothing cut off.
    browser.wait("$('details').getBoundingClientRect().bottom <= innerHeight + 1")
    assert browser.run("$('details').getBoundingClientRect().top >= $('calls').getBoundingClientRect().bottom - 1")
    assert browser.run("$('details').getBoundingClientRect().bottom <= $('split').getBoundingClientRect().bottom + 1")
    assert browser.run("scrollY") > 0


# `KGENT_LONG=1`: what the report promises. `make attack`.
MANY = 100_000 if os.environ.get("KGENT_LONG") == "1" else 30_000


@pytest.mark.timeout(180)
def test_ten_times_the_calls_load_in_less_than_three_times_the_time(tmp_path: Path, browser: Browser) -> None:
    small, large = (report(made_run(tmp_path, calls)) for calls in (MANY // 10, MANY))
    browser.show(1280, 900)
    browser.open(small)
    times = [(browser.open(small), browser.open(large)) for _ in range(5)]
    few, many = (min(of) for of in zip(*times, strict=True))
    print(
        f"{MANY // 10:,} calls: {few:.0f} ms; {MANY:,}: {many:.0f} ms; {many / few:.2f} times; {os.stat(large).st_size} bytes"
    )
    assert many < 3 * few
    assert browser.run("document.querySelectorAll('.call').length") < 100
    browser.run("$('calls').scrollTop = 1e9")
    browser.wait(
        f"[...document.querySelectorAll('.call .summary')].some((e) => e.textContent.includes('file{MANY - 1}.py'))"
    )
    fill(browser, "search", f"file{MANY // 9 * 7}.py")
    assert len(shown(browser)) == 1
