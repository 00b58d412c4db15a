"""What a run's logs are worth: chained logs, their verification, and readers that tell damage from a crash."""

import hashlib
import hmac
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import SINKS, Box, in_child, parse_lines

from kgent_tools import ConfigError, RunContext, RunError, ToolDefinition, ToolRegistry, ToolResult, verify_run

KEY = b"k" * 32


def config(key: Path | None) -> dict[str, Any]:
    return {"records": {"audit": "chained", **({"audit_key_file": str(key)} if key else {})}}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "audit.key"
    path.write_bytes(KEY)
    return path


@pytest.fixture
def box(tmp_path: Path, key: Path) -> Iterator[Box]:
    with Box(tmp_path, config(key)) as made:
        made.put("a", "A\n")
        yield made


def work(box: Box) -> None:
    """A few calls of each kind."""
    box.read("a")
    box.ok("write_file", path="w", content="x")
    box.code("read_file", path="nope")
    box.code("read_file", path="../outside/secret")
    box.ok("list_files")


def faults(run: Path, key: Path | None) -> dict[str, Any]:
    verified = verify_run(run, audit_key_file=key)
    found = {log["log"]: log["fault"] for log in verified["logs"] if log["fault"]}
    assert verified["ok"] == (not found)
    return found


def test_a_run_that_nobody_touched_is_sound(box: Box, key: Path) -> None:
    work(box)
    assert verify_run(box.run_dir, audit_key_file=key) == {
        "ok": True,
        "audit": "keyed",
        "closed": False,
        "logs": [
            {"log": name, "records": len(box.log(name)), "torn": 0, "fault": None, "bytes": size}
            for name in SINKS
            for size in [(box.run_dir / name).stat().st_size]
        ],
    }
    box.context.close()
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in box.run_dir.rglob("*") if path.is_file()}
    after_close = verify_run(box.run_dir, audit_key_file=key)
    assert (after_close["ok"], after_close["closed"]) == (True, True)
    assert all((path.read_bytes(), path.stat().st_mtime_ns) == was for path, was in before.items())


def test_the_chain_is_what_the_documentation_says(box: Box) -> None:
    """Each MAC is HMAC-SHA-256 over the one before, the line's place as eight bytes, and the line without it."""
    work(box)
    for sink in SINKS:
        start = b"\0".join([b"kgent_tools log 1", box.context.run_id.encode(), sink.encode(), b""])
        before = hmac.new(KEY, start, hashlib.sha256).digest()
        at = 0
        for line in (box.run_dir / sink).read_bytes().splitlines(keepends=True):
            text, _, end = line.rpartition(b',"mac":"')
            mac = hmac.new(KEY, before + at.to_bytes(8, "little") + text + b"}", hashlib.sha256).digest()
            assert end == mac.hex().encode() + b'"}\n'
            before, at = mac, at + len(line)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_byte_changed_anywhere_is_found(box: Box, key: Path) -> None:
    """Some bytes of the records; all of them with `KGENT_LONG=1`."""
    work(box)
    box.context.close()
    places = [(sink, at) for sink in SINKS for at in range((box.run_dir / sink).stat().st_size)]
    count = len(places) if os.environ.get("KGENT_LONG") == "1" else 250
    for sink, at in random.Random(7).sample(places, count):
        path = box.run_dir / sink
        before = path.read_bytes()
        for other in (before[at] ^ 1, before[at] ^ 0x20):
            path.write_bytes(before[:at] + bytes([other]) + before[at + 1 :])
            found = faults(box.run_dir, key)
            assert sink in found, f"{sink}: byte {at}, {before[at]:#x} made {other:#x}"
            assert found[sink]["at"] <= at
        path.write_bytes(before)
    assert faults(box.run_dir, key) == {}


def rechained(lines: list[bytes], key: bytes, run_id: str, sink: str, first: int = 0) -> bytes:
    """What somebody makes of lines who knows how it is done: new numbers, new MACs under a key."""
    start = b"\0".join([b"kgent_tools log 1", run_id.encode(), sink.encode(), b""])
    before = hmac.new(key, start, hashlib.sha256).digest()
    out = b""
    for n, line in enumerate(lines):
        if n < first:
            out += line
            before = bytes.fromhex(json.loads(line)["mac"])
            continue
        value = {**json.loads(line), "seq": n + 1}
        del value["mac"]
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        before = hmac.new(key, before + len(out).to_bytes(8, "little") + text, hashlib.sha256).digest()
        out += text[:-1] + b',"mac":"' + before.hex().encode() + b'"}\n'
    return out


@pytest.mark.parametrize("keyed", [True, False])
def test_a_record_that_was_dropped_and_the_rest_chained_anew(tmp_path: Path, key: Path, keyed: bool) -> None:
    with Box(tmp_path, config(key if keyed else None)) as box:
        box.put("a", "A\n")
        work(box)
        path = box.run_dir / SINKS[2]
        lines = path.read_bytes().splitlines(keepends=True)
        assert len(lines) == 2
        path.write_bytes(rechained(lines[1:], b"" if not keyed else b"another key", box.context.run_id, SINKS[2]))
        found = faults(box.run_dir, key if keyed else None)
        # Without a key everybody can do it: the documentation promises no more than accidents found.
        assert found == ({SINKS[2]: {"kind": "altered", "seq": 1, "at": 0}} if keyed else {})


def dropped(lines: list[bytes]) -> list[bytes]:
    return lines[:1] + lines[2:]


def exchanged(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[2], lines[1], *lines[3:]]


def repeated(lines: list[bytes]) -> list[bytes]:
    return lines[:2] + lines[1:]


def altered(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b"completed", b"COMPLETED"), *lines[2:]]


def garbled(lines: list[bytes]) -> list[bytes]:
    return [lines[0], b"x" * (len(lines[1]) - 1) + b"\n", *lines[2:]]


def inserted(lines: list[bytes]) -> list[bytes]:
    return [lines[0], b"a line from elsewhere\n", *lines[1:]]


@pytest.mark.parametrize(
    ("harm", "chained", "plain"),
    [
        (dropped, "missing", "missing"),
        (exchanged, "missing", "missing"),
        (repeated, "reordered", "reordered"),
        (altered, "altered", None),
        (garbled, "broken", "broken"),
        (inserted, "altered", None),
    ],
)
@pytest.mark.parametrize("audit", ["chained", "plain"])
def test_the_first_fault_is_named(
    tmp_path: Path,
    key: Path,
    harm: Callable[[list[bytes]], list[bytes]],
    chained: str,
    plain: str | None,
    audit: str,
) -> None:
    with Box(tmp_path, config(key) if audit == "chained" else {}) as box:
        box.put("a", "A\n")
        work(box)
        path = box.run_dir / SINKS[0]
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(harm(lines)))
        found = faults(box.run_dir, key if audit == "chained" else None)
        kind = chained if audit == "chained" else plain
        assert {log: fault["kind"] for log, fault in found.items()} == ({SINKS[0]: kind} if kind else {})
        if kind:
            assert found[SINKS[0]]["seq"] in (2, 3)
        reader = box.context.records()
        ids = [record["id"] for record in reader]
        assert len(ids) == len(lines) + {"dropped": -1, "repeated": 1, "garbled": -1}.get(harm.__name__, 0)
        assert [fault["kind"] for fault in reader.faults][:1] == [plain] * (plain is not None)
        assert reader.torn == (harm is inserted)


@pytest.mark.parametrize("audit", ["chained", "plain"])
@pytest.mark.parametrize("sink", [SINKS[0], SINKS[2]])
def test_a_log_that_ends_early_is_found_where_the_run_was_closed(
    tmp_path: Path, key: Path, audit: str, sink: str
) -> None:
    with Box(tmp_path, config(key) if audit == "chained" else {}) as box:
        box.put("a", "A\n")
        work(box)
    used = key if audit == "chained" else None
    assert faults(box.run_dir, used) == {}
    path = box.run_dir / sink
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    expected = {"kind": "truncated", "seq": len(lines), "at": len(b"".join(lines[:-1]))}
    assert faults(box.run_dir, used) == {sink: expected}


def test_a_record_that_only_its_event_tells_of_is_missing(box: Box, key: Path) -> None:
    """Also of a run that was not closed."""
    work(box)
    path = box.run_dir / SINKS[0]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    assert faults(box.run_dir, key) == {
        SINKS[0]: {"kind": "missing", "seq": len(lines), "at": len(b"".join(lines[:-1]))}
    }


def test_a_tail_that_was_cut_off_under_a_writer_stays_visible_for_ever(box: Box, key: Path) -> None:
    """The writer chains from what it wrote, not from what it finds."""
    work(box)
    path = box.run_dir / SINKS[0]
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    assert box.tools["read_file"].handler({"path": "a"}, box.context).ok
    result = box.tools["write_file"].handler({"path": "w", "content": "new"}, box.context)
    assert result.error is not None
    assert (result.error.code, "log.tampered" in result.error.message) == ("log_unavailable", True)
    box.context.close()
    with RunContext.open(box.runs, box.context.run_id, workspace=box.ws, config=config(key)):
        pass
    assert faults(box.run_dir, key)[SINKS[0]]["kind"] == "missing"


def test_an_altered_last_record_stops_a_chained_writer_at_once(box: Box) -> None:
    work(box)
    path = box.run_dir / SINKS[0]
    data = path.read_bytes()
    path.write_bytes(data[:-30] + (b"0" if data[-30:-29] != b"0" else b"1") + data[-29:])
    result = box.tools["write_file"].handler({"path": "w2", "content": "new"}, box.context)
    assert result.error is not None
    assert result.error.code == "log_unavailable"
    assert not (box.ws / "w2").exists()


def test_processes_and_handles_go_on_with_one_chain(box: Box, key: Path) -> None:
    def child() -> None:
        for n in range(20):
            assert box.tools["write_file"].handler({"path": f"c{n}", "content": "x"}, box.context).ok

    with RunContext.open(box.runs, box.context.run_id, workspace=box.ws, config=config(key)) as other:
        tools = {tool.name: tool for tool in box.bind(box.policy).values()}
        for n in range(3):
            in_child(child)
            assert tools["read_file"].handler({"path": "a"}, other if n % 2 else box.context).ok
    for sink in SINKS:
        assert [line["seq"] for line in box.log(sink)] == list(range(1, len(box.log(sink)) + 1))
    assert faults(box.run_dir, key) == {}


def test_a_torn_tail_is_no_fault(box: Box, key: Path) -> None:
    work(box)
    for sink in SINKS:
        with (box.run_dir / sink).open("ab") as file:
            file.write(b'{"v":1,"seq":99,"id')
    verified = verify_run(box.run_dir, audit_key_file=key)
    assert [(log["torn"], log["fault"]) for log in verified["logs"]] == [(1, None)] * 3
    box.tools["read_file"].handler({"path": "nope"}, box.context)
    verified = verify_run(box.run_dir, audit_key_file=key)
    assert [(log["torn"], log["fault"]) for log in verified["logs"]] == [(1, None)] * 3


def test_lines_cannot_be_moved_to_another_run(tmp_path: Path, key: Path) -> None:
    boxes = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with Box(tmp_path / name, config(key)) as box:
            box.put("a", "A\n")
            work(box)
        boxes.append(box)
    for sink in SINKS:
        shutil.copy(boxes[0].run_dir / sink, boxes[1].run_dir / sink)
    assert faults(boxes[0].run_dir, key) == {}
    moved = tmp_path / "two" / "moved"
    boxes[0].run_dir.rename(moved)
    assert faults(moved, key) == {}, "the logs of a run that was copied elsewhere are the same"


def test_the_key_is_needed_and_must_be_the_one(box: Box, key: Path, tmp_path: Path) -> None:
    work(box)
    with pytest.raises(RunError, match="kept under a key"):
        verify_run(box.run_dir)
    other = tmp_path / "other.key"
    other.write_bytes(b"o" * 32)
    assert {fault["kind"] for fault in faults(box.run_dir, other).values()} == {"altered"}
    short = tmp_path / "short.key"
    short.write_bytes(b"short")
    with pytest.raises(ConfigError, match="fewer than 32 bytes"):
        verify_run(box.run_dir, audit_key_file=short)
    with pytest.raises(ConfigError, match="cannot be read"):
        verify_run(box.run_dir, audit_key_file=tmp_path / "nope")
    with pytest.raises(RunError, match="nothing-here"):
        verify_run(tmp_path / "nothing-here")
    for settings, why in (
        (config(other), "another audit key"),
        (config(None), "another audit key"),
        ({}, "was made with `audit"),
    ):
        with pytest.raises(RunError, match=why):
            RunContext.open(box.runs, box.context.run_id, workspace=box.ws, config=settings)
    (tmp_path / "plain").mkdir()
    with Box(tmp_path / "plain") as plain, pytest.raises(RunError, match="was not made with"):
        RunContext.open(plain.runs, plain.context.run_id, workspace=plain.ws, config=config(key))


def test_the_key_lies_where_no_tool_reads(tmp_path: Path) -> None:
    for place in ("ws/key", "runs/key", "other/key"):
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(KEY)
    link = tmp_path / "link"
    link.symlink_to("ws/key")
    for path, why in (
        (tmp_path / "ws/key", "mount `workspace`"),
        (link, "mount `workspace`"),
        (tmp_path / "runs/key", "runs directory"),
        (tmp_path / "other/key", "mount `docs`"),
    ):
        with pytest.raises(ConfigError, match=why):
            RunContext.create(
                tmp_path / "runs",
                "r",
                workspace=tmp_path / "ws",
                mounts={"docs": tmp_path / "other"},
                config=config(path),
            )
        assert not (tmp_path / "runs/r").exists()
    with pytest.raises(ConfigError, match="only used with"):
        RunContext.create(tmp_path / "runs", "r", config={"records": {"audit_key_file": str(link)}})


def test_the_key_is_in_no_log(box: Box) -> None:
    work(box)
    for path in box.run_dir.rglob("*"):
        if path.is_file():
            assert KEY not in path.read_bytes()
            assert b"audit.key" not in path.read_bytes()


def test_a_reader_holds_one_line_and_writes_nothing(box: Box) -> None:
    work(box)
    sizes = {sink: (box.run_dir / sink).stat().st_mtime_ns for sink in SINKS}
    with (box.run_dir / SINKS[0]).open("ab") as file:
        file.write(b"\0" * (32 << 20))
    reader = box.context.records()
    assert iter(reader) is reader
    assert next(reader)["tool"] == "read_file"
    assert len(list(reader)) == 4
    assert (reader.torn, reader.faults, list(reader)) == (1, [], [])
    assert repr(reader) == "LogReader(torn=1, faults=0)"
    assert {sink: (box.run_dir / sink).stat().st_mtime_ns for sink in SINKS[1:]} == {s: sizes[s] for s in SINKS[1:]}
    box.log_was_harmed = True


def test_a_call_whose_process_died_is_closed_with_what_was_done(tmp_path: Path) -> None:
    with Box(tmp_path) as box:
        box.put("old", "as it was")

        def dying(args: Any, context: Any) -> ToolResult:
            context.sandbox.write_bytes("new", b"done")
            os._exit(0)

        definition = ToolDefinition(
            description="d",
            input_schema={
                "type": "object",
                "properties": {name: {"type": "string"} for name in ("one", "two", "three")},
            },
            handler=dying,
            resources=["one", "two", "three"],
        )
        registry = ToolRegistry(box.context)
        registry.register({"dying": definition})
        snapshot = registry.materialize(box.policy)
        time.sleep(0.1)
        in_child(lambda: print(snapshot.call("dying", {"one": "new", "two": "old", "three": "absent"})))
        box.context.close()
        with RunContext.open(box.runs, box.context.run_id, workspace=box.ws) as again:
            (record,) = again.records()
        assert record["error"] == {
            "code": "interrupted",
            "message": "the process ended during the call; `new` has been changed since it began, "
            "`old` has not been changed, `absent` is not there",
        }


def test_a_call_that_died_between_its_record_and_its_event_is_not_recorded_twice(box: Box, key: Path) -> None:
    box.ok("write_file", path="w", content="x")
    events = box.run_dir / SINKS[1]
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join(lines[:-1]))
    run_id = box.context.run_id
    copy = box.root / "copied"
    shutil.copytree(box.runs, copy)
    with RunContext.open(copy, run_id, workspace=box.ws, config=config(key)) as again:
        assert [record["status"] for record in again.records()] == ["completed"]
        assert [event["type"] for event in again.events()] == ["run.created", "tool.started", "tool.completed"]
        assert faults(again.run_dir, key) == {}
    box.log_was_harmed = True
    parse_lines((copy / run_id / SINKS[0]).read_bytes())
