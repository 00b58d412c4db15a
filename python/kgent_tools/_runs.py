"""What runs left on record, read for people: by the command and by the report. Nothing here writes."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, cast

from kgent_tools import LogReader, RunError

__all__ = ["LOGS", "Call", "RunLook", "ToolStats", "escaped", "look_at", "read", "run_folders", "unfinished"]

LOGS = {"tools": "logs/tools.jsonl", "events": "events.jsonl", "errors": "logs/errors.jsonl"}

Log = Literal["tools", "events", "errors"]
Watch = Callable[[int], object]

MAX_NUMBER = 2**53
READ_PER_WATCH = 1000


def escaped(text: str) -> str:
    """Text for a terminal: what a reader does not see, or what moves the cursor, is spelt out."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in text)


@dataclass(frozen=True, slots=True)
class Call:
    """A record with the types that it should have, whatever somebody did to the log."""

    record: dict[str, Any]
    id: str
    tool: str
    status: str
    started_at: str
    started: float
    duration_us: int
    summary: str
    agent: str
    resource: str
    bytes_in: int
    bytes_out: int
    rule: str
    """Layer and rule that decided."""
    decision: str
    """The same, or the layer alone, where the call was blocked."""
    code: str

    @staticmethod
    def of(record: dict[str, Any]) -> Call:
        """The call of a record."""
        permission, args, error = (_dict(record.get(key)) for key in ("permission", "args", "error"))
        status = _text(record.get("status")) or "?"
        at = _text(record.get("started_at"))
        rule = _text(permission.get("rule"))
        decision = rule or f"{_text(permission.get('layer')) or 'no'} layer"
        return Call(
            record=record,
            id=_text(record.get("id")),
            tool=_text(record.get("tool")) or "?",
            status=status,
            started_at=at,
            started=_seconds(at),
            duration_us=_number(record.get("duration_us")),
            summary=_text(record.get("summary")),
            agent=_text(record.get("agent")),
            resource=_text(permission.get("resource")) or _text(args.get("path")),
            bytes_in=_number(record.get("bytes_in")),
            bytes_out=_number(record.get("bytes_out")),
            rule=rule,
            decision=decision if status == "blocked" else "",
            code=_text(error.get("code")),
        )


def read(reader: LogReader, watch: Watch | None = None) -> Iterator[dict[str, Any]]:
    """The records of a log; `watch` hears now and then how many bytes were read."""
    for number, record in enumerate(reader):
        if watch is not None and number % READ_PER_WATCH == 0:
            watch(reader.offset)
        yield record
    if watch is not None:
        watch(reader.offset)


def unfinished(run: Path, watch: Watch | None = None) -> dict[str, dict[str, Any]]:
    """The `tool.started` events of changing calls that have no end on record, by their ids."""
    begun: dict[str, dict[str, Any]] = {}
    for event in read(LogReader.open(run, "events"), watch):
        kind, id = _text(event.get("type")), _text(event.get("id"))
        if kind == "tool.started":
            begun[id] = event
        elif kind.startswith("tool."):
            begun.pop(id, None)
    return begun


class ToolStats:
    """The figures of one tool's calls."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.durations = array("Q")
        self.bytes_in = self.bytes_out = 0

    def add(self, call: Call) -> None:
        """Counts a call."""
        self.statuses[call.status] += 1
        self.durations.append(call.duration_us)
        self.bytes_in += call.bytes_in
        self.bytes_out += call.bytes_out

    def to_dict(self) -> dict[str, Any]:
        """Calls, failures and blocked ones, the percentiles (nearest rank) of durations, bytes."""
        ordered = sorted(self.durations)

        def percentile(share: float) -> int:
            return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0

        calls = len(ordered)
        completed, blocked = self.statuses["completed"], self.statuses["blocked"]
        return {
            "calls": calls,
            "failed": calls - completed - blocked,
            "blocked": blocked,
            "p50_us": percentile(0.5),
            "p95_us": percentile(0.95),
            "max_us": percentile(1.0),
            "total_us": sum(ordered),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
        }


@dataclass(slots=True)
class RunLook:
    """A run at a glance."""

    run: str
    started_at: str = ""
    state: str = "open"
    """`closed`; `open`, in use or left behind; `damaged`; `unreadable`."""
    calls: int = 0
    failed: int = 0
    blocked: int = 0
    seconds: float = 0.0


def run_folders(runs: Path) -> list[Path]:
    """The folders below `runs` that hold a run's events, oldest first.

    Raises:
        RunError: `runs` cannot be read.
    """
    try:
        found = [(folder.stat().st_mtime_ns, folder) for folder in runs.iterdir() if (folder / LOGS["events"]).exists()]
    except OSError as error:
        raise RunError(f"the runs in {str(runs)!r} cannot be read: {error.strerror}") from error
    return [folder for _, folder in sorted(found, key=lambda pair: (pair[1].name, pair[0]))]


def look_at(run: Path) -> RunLook:
    """Reads a run's events; what cannot be read is a state."""
    look = RunLook(run.name)
    first = last = 0.0
    try:
        reader = LogReader.open(run, "events")
        for event in reader:
            kind, at = _text(event.get("type")), _text(event.get("time"))
            if kind == "run.created":
                look.started_at, first = at, _seconds(at)
            last = _seconds(at) or last
            look.state = "closed" if kind == "run.closed" else "open"
            if kind in ("tool.completed", "tool.failed", "tool.blocked", "tool.cancelled"):
                look.calls += 1
                look.failed += kind in ("tool.failed", "tool.cancelled")
                look.blocked += kind == "tool.blocked"
    except RunError:
        look.state = "unreadable"
        return look
    if reader.faults:
        look.state = "damaged"
    look.seconds = max(0.0, last - first) if first else 0.0
    return look


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return 0
    return int(min(max(value, 0), MAX_NUMBER))


def _seconds(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
