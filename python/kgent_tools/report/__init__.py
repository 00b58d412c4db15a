"""A run as one HTML file: self-contained, and inert whatever names and texts are on record.

The records travel as JSON that is compressed and written in base64, so that nothing in them can end an element; the page
runs under a policy that allows its own script and style by their hashes and no address at all; and the script puts every
text in place as text. What is drawn first comes first, as columns of numbers; the records in parts that are unpacked when shown.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import shutil
import zlib
from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Any

from kgent_tools import LogReader, __version__
from kgent_tools._runs import Call, Watch, look_at, read, unfinished

__all__ = ["write_report"]

PART_CALLS = 500
UNFINISHED = 1000


def write_report(run: str | os.PathLike[str], output: str | os.PathLike[str], *, watch: Watch | None = None) -> int:
    """Writes the report of the run in the folder `run` to the file `output`, and returns how many calls it shows.

    Args:
        run: The run's folder; the run may be in use.
        output: What is there is replaced in one step.
        watch: Called now and then with the bytes that were read of the three logs.

    Raises:
        RunError: The logs cannot be read.
        OSError: The file cannot be written.
    """
    run, output = Path(run), Path(output)
    progress = _Progress(watch)
    causes = {
        str(error.get("id")): error.get("cause") for error in read(LogReader.open(run, "errors"), progress.part())
    }
    begun = unfinished(run, progress.part())
    reader = LogReader.open(run)
    columns = _Columns()
    with (
        TemporaryFile("w+", encoding="ascii") as parts,
        NamedTemporaryFile("w", encoding="utf-8", dir=output.parent, prefix=".report-", delete=False) as file,
    ):
        try:
            part: list[dict[str, Any]] = []
            for call in map(Call.of, read(reader, progress.part())):
                columns.add(call)
                record = call.record
                if cause := causes.get(call.id):
                    record = {**record, "cause": cause}
                part.append(record)
                if len(part) == PART_CALLS:
                    parts.write(_data("calls", part))
                    part = []
            parts.write(_data("calls", part))
            parts.seek(0)
            start, middle, last = _page(run.absolute().name)
            file.write(start)
            file.write(_data("index", {**_about(run, reader, begun), **columns.to_dict()}))
            file.write(middle)
            shutil.copyfileobj(parts, file)
            file.write(last)
            file.close()
            os.chmod(file.name, 0o666 & ~_umask())
            os.replace(file.name, output)
        except BaseException:
            os.unlink(file.name)
            raise
    return len(columns.starts)


class _Progress:
    """The bytes of logs that are read one after the other."""

    def __init__(self, watch: Watch | None) -> None:
        self._watch, self._before, self._now = watch, 0, 0

    def part(self) -> Watch:
        self._before += self._now
        self._now = 0

        def tell(read: int) -> None:
            self._now = read
            if self._watch is not None:
                self._watch(self._before + read)

        return tell


class _Columns:
    """What is drawn before any record is unpacked: a number for each call, and the names that numbers stand for."""

    def __init__(self) -> None:
        self.names: dict[str, dict[str, int]] = {"tools": {}, "statuses": {}, "decisions": {}, "agents": {}}
        self.starts: list[int] = []
        self.numbers: dict[str, list[int]] = {
            name: [] for name in ("took", "tool", "status", "decision", "agent", "bytes_in", "bytes_out")
        }

    def add(self, call: Call) -> None:
        self.starts.append(round(call.started * 1e6))
        row = {
            "took": call.duration_us,
            "tool": self._number("tools", call.tool),
            "status": self._number("statuses", call.status),
            "decision": self._number("decisions", call.decision),
            "agent": self._number("agents", call.agent),
            "bytes_in": call.bytes_in,
            "bytes_out": call.bytes_out,
        }
        for name, number in row.items():
            self.numbers[name].append(number)

    def _number(self, kind: str, name: str) -> int:
        return self.names[kind].setdefault(name, len(self.names[kind]))

    def to_dict(self) -> dict[str, Any]:
        first = min((start for start in self.starts if start), default=0)
        names = {kind: list(found) for kind, found in self.names.items()}
        starts = [max(0, start - first) for start in self.starts]
        return {**names, **self.numbers, "first_ms": first / 1000, "start": starts, "part_calls": PART_CALLS}


def _about(run: Path, reader: LogReader, begun: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "run": run.absolute().name,
        "state": look_at(run).state,
        "torn": reader.torn,
        "faults": reader.faults,
        "unfinished": list(begun.values())[:UNFINISHED],
        "unfinished_total": len(begun),
        "version": __version__,
    }


def _page(title: str) -> tuple[str, str, str]:
    """What stands before the index, before the parts, and after them."""
    own = files("kgent_tools.report")
    page, style, script = (own.joinpath(name).read_text("utf-8") for name in ("page.html", "page.css", "page.js"))
    start, rest = page.split("@@INDEX@@\n")
    middle, last = rest.split("@@CALLS@@\n")
    start = start.replace("@@STYLE_HASH@@", _hash(style)).replace("@@SCRIPT_HASH@@", _hash(script))
    start = start.replace("@@STYLE@@", style)
    # Last, since it alone is not ours.
    start = start.replace("@@TITLE@@", html.escape(title.encode("ascii", "backslashreplace").decode()))
    return start, middle.replace("@@SCRIPT@@", script), last


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data(kind: str, value: object) -> str:
    packed = zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 6)
    return f'<script type="text/plain" class="{kind}">{base64.b64encode(packed).decode()}</script>\n'


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
