"""`kgent-tools log`, `stats`, `runs`, `verify` and `report`: what is on record, for people and scripts."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from heapq import nlargest
from pathlib import Path
from typing import Any

import click
from rich.cells import cell_len

from kgent_tools import LogReader, verify_run
from kgent_tools._runs import LOGS, Call, ToolStats, escaped, look_at, read, run_folders, unfinished
from kgent_tools.cli.terminal import RUN, Table, no_answer, note, progress, size, took
from kgent_tools.report import write_report

__all__ = ["COMMANDS"]

JSON = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")
POLL_S = 0.2
SLOWEST, DENIED = 5, 10

AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Moment(click.ParamType[float]):
    """A time such as `2026-11-30T12:00:00Z`, or how long ago, such as `10m`; of the local zone where it names none."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds since 1970."""
        text = str(value)
        if age := re.fullmatch(r"([0-9]{1,9})([smhd])", text):
            return time.time() - timedelta(seconds=int(age[1]) * AGES[age[2]]).total_seconds()
        with suppress(ValueError, OverflowError):
            return datetime.fromisoformat(text).timestamp()
        self.fail(f"{text!r} is no time such as 2026-11-30T12:00:00Z, and no age such as 90s, 10m, 2h, 7d", param, ctx)


@click.command()
@RUN
@click.option("--tool", "tools", metavar="NAME", multiple=True, help="Only this tool, or pattern; may be repeated.")
@click.option("--status", "statuses", metavar="STATUS", multiple=True, help="Only this status; may be repeated.")
@click.option("--path", metavar="TEXT", help="Only calls on paths that match this pattern, or hold this text.")
@click.option("--since", type=Moment(), help="Only calls that began at this time or later.")
@click.option("--until", type=Moment(), help="Only calls that began before this time.")
@click.option("-f", "--follow", is_flag=True, help="Goes on until the run is closed.")
@JSON
def log(
    run: Path,
    tools: tuple[str, ...],
    statuses: tuple[str, ...],
    path: str | None,
    since: float | None,
    until: float | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Lists the calls of a run. RUN is the run's folder, such as runs/20261130-120000-0a1b2c3d.

    With --json each line is a whole record. A time is 2026-11-30T12:00:00Z, or an age: 90s, 10m, 2h, 7d.
    """

    def wanted(call: Call) -> bool:
        return (
            (not tools or any(fnmatchcase(call.tool, tool) for tool in tools))
            and (not statuses or call.status in statuses)
            and (path is None or path in call.resource or fnmatchcase(call.resource, path))
            and (since is None or call.started >= since)
            and (until is None or call.started < until)
        )

    with no_answer():
        reader = LogReader.open(run)
        show = _as_json if as_json else _log_table()
        for record in _followed(run, reader) if follow else read(reader):
            if wanted(call := Call.of(record)):
                show(call)
        _say_damage(reader, "tools")


def _followed(run: Path, reader: LogReader) -> Iterator[dict[str, Any]]:
    """Records as they come, until the run is closed."""
    events = LogReader.open(run, "events")
    closed = False
    with suppress(KeyboardInterrupt):
        while True:
            for event in events:
                closed = event.get("type") == "run.closed"
            yield from reader
            if closed:
                return
            time.sleep(POLL_S)
            events.resume()
            reader.resume()


def _as_json(call: Call) -> None:
    click.echo(json.dumps(call.record))


def _log_table() -> Callable[[Call], None]:
    columns = [("time", 12), ("tool", 13), ("status", 11), ("took", 9), ("summary", 0)]
    table = Table(columns, right=["took"])

    def show(call: Call) -> None:
        at = call.started_at[11:23] if call.started else call.started_at
        table.row(at, call.tool, call.status, took(call.duration_us), call.summary)

    return show


def _say_damage(reader: LogReader, log: str) -> None:
    if reader.torn:
        note(f"{LOGS[log]}: lines cut off: {reader.torn}, by a crash or because one is being written")
    for fault in reader.faults:
        note(f"{LOGS[log]}: {fault['kind']} at byte {fault['at']}, where record {fault['seq']} was expected")


def _log_bytes(run: Path, *logs: str) -> int:
    total = 0
    for name in logs:
        with suppress(OSError):
            total += (run / LOGS[name]).stat().st_size
    return total


@click.command()
@RUN
@JSON
def stats(run: Path, as_json: bool) -> None:
    """Sums a run up: durations and failures by tool, the slowest calls, what was denied."""
    tools: dict[str, ToolStats] = {}
    denied: Counter[tuple[str, str, str]] = Counter()

    def calls() -> Iterator[Call]:
        for record in read(reader, tell):
            call = Call.of(record)
            tools.setdefault(call.tool, ToolStats()).add(call)
            if call.status == "blocked":
                denied[call.decision, call.tool, call.resource] += 1
            yield call

    with no_answer(), progress("reading", _log_bytes(run, "tools")) as tell:
        reader = LogReader.open(run)
        slowest = nlargest(SLOWEST, calls(), key=lambda call: call.duration_us)
        begun = unfinished(run)
    rows = {name: tools[name].to_dict() for name in sorted(tools)}
    if as_json:
        denials = [{"decision": d, "tool": t, "resource": r, "calls": n} for (d, t, r), n in denied.most_common()]
        answer = {"tools": rows, "slowest": [c.record for c in slowest], "denied": denials, "unfinished": sorted(begun)}
        click.echo(json.dumps(answer, indent=2))
    else:
        _show_stats(rows, slowest, denied)
    _say_damage(reader, "tools")
    if begun:
        note(f"changes begun that have no end on record: {len(begun)}, under way or cut off by a crash")


def _show_stats(rows: dict[str, dict[str, Any]], slowest: list[Call], denied: Counter[tuple[str, str, str]]) -> None:
    figures = [("calls", 6), ("failed", 6), ("blocked", 7), ("p50", 8), ("p95", 8), ("max", 8), ("bytes", 9)]
    table = Table([("tool", 18), *figures], right=[name for name, _ in figures])
    for name, row in rows.items():
        counts = [str(row[key]) for key in ("calls", "failed", "blocked")]
        times = [took(row[key]) for key in ("p50_us", "p95_us", "max_us")]
        table.row(name, *counts, *times, size(row["bytes_in"] + row["bytes_out"]))
    if slowest:
        click.echo("\nThe slowest:")
        show = _log_table()
        for call in slowest:
            show(call)
    if denied:
        click.echo("\nBlocked:")
        table = Table([("calls", 6), ("tool", 13), ("by", 0), ("resource", 0)], right=["calls"])
        for (decision, tool, resource), count in denied.most_common(DENIED):
            table.row(str(count), tool, decision, resource)
        if len(denied) > DENIED:
            click.echo(f"… {len(denied) - DENIED} more; all with --json")


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default="runs")
@JSON
def runs(directory: Path, as_json: bool) -> None:
    """Lists the runs in DIRECTORY (default: runs), the oldest first.

    A run is `closed`; `open`, in use or left behind; `damaged`; or `unreadable`.
    """
    with no_answer():
        folders = run_folders(directory)
    table = None if as_json else _runs_table(folders)
    total = sum(_log_bytes(folder, "events") for folder in folders)
    done = 0
    with progress("reading", total) as tell:
        for folder in folders:
            look = look_at(folder)
            done += _log_bytes(folder, "events")
            tell(done)
            if table is None:
                click.echo(json.dumps(asdict(look)))
                continue
            started = look.started_at[5:16].replace("T", " ")
            counts = map(str, (look.calls, look.failed, look.blocked))
            table.row(look.run, look.state, started, took(look.seconds * 1e6), *counts)
    if not folders:
        note(f"no runs in {str(directory)!r}")


def _runs_table(folders: list[Path]) -> Table:
    numbers = [("took", 9), ("calls", 6), ("failed", 6), ("blocked", 7)]
    columns = [("run", 0), ("state", 10), ("started", 11), *numbers]
    widest = max((cell_len(escaped(folder.name)) for folder in folders), default=8)
    return Table(columns, right=[name for name, _ in numbers], colour="state", widest=widest)


@click.command()
@RUN
@click.option(
    "--audit-key-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The key of keyed logs."
)
@JSON
def verify(run: Path, audit_key_file: Path | None, as_json: bool) -> None:
    """Checks that a run's logs are what was written; status 1 where they are not."""
    with no_answer():
        found = verify_run(run, audit_key_file=audit_key_file)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        for log in found["logs"]:
            fault = log["fault"]
            state = f"{fault['kind']} at byte {fault['at']}, record {fault['seq']}" if fault else "ok"
            torn = f", {log['torn']} lines cut off" if log["torn"] else ""
            click.echo(f"{log['log']}: {state}: {log['records']} records{torn}")
        guard = {
            "plain": "plain: by numbers only, which anybody can write",
            "unkeyed": "chained without a key, which finds accidents only",
            "keyed": "chained under the key",
        }[found["audit"]]
        end = "closed" if found["closed"] else "not closed, so that lines missing at the end of all logs cannot be told"
        click.echo(f"{'ok' if found['ok'] else 'DAMAGED'} ({guard}; {end})")
    raise SystemExit(0 if found["ok"] else 1)


@click.command()
@RUN
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default="report.html",
    show_default=True,
    help="The file to write; one that is there is replaced.",
)
def report(run: Path, output: Path) -> None:
    """Writes a run as one HTML file that needs no network."""
    with no_answer(), progress("reading", _log_bytes(run, "tools", "events", "errors")) as tell:
        calls = write_report(run, output, watch=tell)
    click.echo(f"{output}: {calls} calls, {size(output.stat().st_size)}")


COMMANDS = (log, stats, runs, verify, report)
