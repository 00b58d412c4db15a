"""Every call is on record once, whatever was sent and whatever happened to the log: cases C52, C56 and C58."""

import json
import multiprocessing
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import SINKS, Box, all_log_bytes, in_child, parse_lines

from kgent_tools import (
    PermissionRule,
    RunContext,
    RunError,
    ToolDefinition,
    ToolFailure,
    ToolRegistry,
    ToolResult,
    build_toolsets,
)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        made.put("a", "CONTENT-OF-A\n")
        yield made


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def odd_arguments() -> dict[str, Any]:
    """The arguments of C58, each with the code that it must get."""
    cycle: dict[str, Any] = {}
    cycle["path"] = cycle
    return {
        "outside": ({"path": "../x"}, "outside_sandbox"),
        "a list": ([1, 2], "invalid_args"),
        "none": (None, "invalid_args"),
        "a number": (7, "invalid_args"),
        "text that is no JSON": ("nonsense", "invalid_args"),
        "text of a list": ("[]", "invalid_args"),
        "empty text": ("", "invalid_args"),
        "line break": ({"path": "a\nb"}, "not_found"),
        "carriage return": ({"path": "a\rb"}, "not_found"),
        "separator": ({"path": "a\u2028b\u2029c\x85d"}, "not_found"),
        "terminal control": ({"path": "\x1b[2J"}, "not_found"),
        "NUL": ({"path": "a\0b"}, "invalid_args"),
        "deep": ({"path": nested(10_000)}, "invalid_args"),
        "deep text": ('{"path":' + "[" * 10_000 + "]" * 10_000 + "}", "invalid_args"),
        "cut off": ('{"path":' + "[" * 100_000, "invalid_args"),
        "NaN": ({"path": "a", "offset": float("nan")}, "invalid_args"),
        "infinity": ({"path": "a", "offset": float("inf")}, "invalid_args"),
        "NaN text": ('{"path":"a","offset":NaN}', "invalid_args"),
        "infinity text": ('{"path":"a","limit":-Infinity}', "invalid_args"),
        "2**64": ({"path": "a", "offset": 2**64}, "invalid_args"),
        "2**70 text": (f'{{"path":"a","offset":{2**70}}}', "invalid_args"),
        "-1": ({"path": "a", "offset": -1}, "invalid_args"),
        "duplicate keys": ('{"path":"a","path":"b"}', "invalid_args"),
        "surrogate": ({"path": "x\ud83c"}, "invalid_args"),
        "surrogate name": ({"path": "a", "x\ud83c": 1}, "invalid_args"),
        "surrogate text": ('{"path":"x\\ud83c"}', "invalid_args"),
        "bytes": ({"path": b"a"}, "invalid_args"),
        "set": ({"path": {1}}, "invalid_args"),
        "object": ({"path": object()}, "invalid_args"),
        "key that is no text": ({1: "a"}, "invalid_args"),
        "a cycle": (cycle, "invalid_args"),
        "many names": ({f"k{n}": n for n in range(50_000)}, "invalid_args"),
        "long name": ({"n" * 1_000_000: 1}, "invalid_args"),
        "long path": ({"path": "p" * 1_000_000}, "invalid_args"),
        "quotes": ({"path": '"\\"'}, "invalid_args"),
        "wide": ({"path": "\U0010ffff" * 70}, "invalid_args"),
        "forged": ({"path": 'x"},{"v":1,"seq":1}\n{"v":1,"seq":2}'}, "not_found"),
    }


@pytest.mark.parametrize("name", list(odd_arguments()))
def test_c58_odd_arguments_leave_one_parsable_line(box: Box, name: str) -> None:
    args, code = odd_arguments()[name]
    assert box.code("read_file", args) == code
    record = box.records[-1]
    assert 0 < len(record["summary"]) <= 200
    assert "\n" not in record["summary"]
    raw = (box.run_dir / SINKS[0]).read_bytes()
    assert b"\x1b" not in raw
    assert box.read("a") == "CONTENT-OF-A\n"


@pytest.mark.slow
def test_c58_huge_content(box: Box) -> None:
    content = "\u2500" * (21 << 20)
    box.ok("write_file", path="big", content=content)
    over = content + "xxxx" * (1 << 20)
    assert box.code("write_file", path="big", content=over) == "too_large"
    args = [record["args"] for record in box.records]
    assert [a["path"] for a in args] == ["big", "big"]
    assert "\u2500\u2500" not in all_log_bytes(box.run_dir).decode()
    assert len(all_log_bytes(box.run_dir)) < 20_000
    assert (box.ws / "big").stat().st_size == 63 << 20


def test_c58_an_unknown_tool_is_recorded(box: Box) -> None:
    snapshot = ToolRegistry(box.context).materialize()
    for name in ("no_such_tool", "", "x" * 100_000, "a\nb", "caf\u00e9", "../read_file", "READ_FILE"):
        result = snapshot.call(name, {"path": "a"})
        assert result.error is not None
        assert (result.error.code, result.error.status) == ("unknown_tool", "failed")
        new = box.new()
        (record,), (event,), (error,) = (new[sink] for sink in SINKS)
        assert (record["status"], record["error"]["code"]) == ("failed", "unknown_tool")
        assert (event["type"], error["code"]) == ("tool.failed", "unknown_tool")
        assert len(json.dumps(record)) < 2000
    assert result.error.hint is not None
    assert "read_file" in result.error.hint


def test_long_ids_are_bounded(box: Box) -> None:
    call = box.context.for_call(call_id="i" * 100_000, conversation_id="\u2500" * 100_000, agent="a\nb\0")
    assert box.tools["read_file"].handler({"path": "a"}, call).ok
    record = box.records[-1]
    assert record["call_id"] == "i" * 256
    assert record["conversation_id"] == "\u2500" * 85
    assert record["agent"] == "a\nb\0"


def provoke(box: Box) -> set[str]:
    """A call for each error code that the four tools, and a tool of the host, can be brought to answer."""
    box.put("bin", b"\x00\x01")
    box.put("private/f", "PRIVATE-CONTENT\n")
    box.put("asked/f", "ASKED-CONTENT\n")
    os.mkfifo(box.ws / "fifo")
    (box.ws / "out").symlink_to("../outside")
    (box.ws / "ro").write_text("READ-ONLY-CONTENT", encoding="utf-8")
    (box.ws / "ro").chmod(0o444)
    calls: list[tuple[str, Any]] = [
        ("read_file", {"path": "nope"}),
        ("read_file", {"path": "bin"}),
        ("read_file", {"path": "."}),
        ("read_file", {"path": "private"}),
        ("read_file", {"path": "private/f"}),
        ("read_file", {"path": "asked/f"}),
        ("read_file", {"path": "fifo"}),
        ("read_file", {"path": "out/secret"}),
        ("read_file", {"path": "a/b"}),
        ("read_file", {"path": "a", "offset": 99}),
        ("read_file", {"wrong": 1}),
        ("write_file", {"path": "a", "content": "CONTENT-OF-ARG", "expected_hash": "b3:" + "0" * 32}),
        ("write_file", {"path": "ro", "content": "CONTENT-OF-ARG"}),
        ("write_file", {"path": ".git/x", "content": "CONTENT-OF-ARG"}),
        ("write_file", {"path": "big", "content": "CONTENT-OF-ARG" * 100_000}),
        ("write_file", {"path": "a/b", "content": "CONTENT-OF-ARG"}),
        ("write_file", {"path": "private", "content": "CONTENT-OF-ARG"}),
        ("write_file", {"path": "bad\ud83c", "content": "CONTENT-OF-ARG"}),
        ("list_files", {"path": "a"}),
        ("grep_files", {"pattern": "("}),
        ("grep_files", {"pattern": "CONTENT", "include": "a["}),
    ]
    codes = {box.code(tool, args) for tool, args in calls}
    box.ok("read_file", path="a")
    box.ok("grep_files", pattern="CONTENT")
    box.ok("write_file", path="a", content="CONTENT-OF-ARG\n")
    box.ok("list_files")
    return codes | provoke_by_tools(box)


def provoke_by_tools(box: Box) -> set[str]:
    registry = ToolRegistry(box.context)

    def tool(work: Callable[[Any], ToolResult]) -> ToolDefinition:
        return ToolDefinition(
            description="d", input_schema={"type": "object"}, handler=lambda args, context: work(context)
        )

    def missing(context: Any) -> ToolResult:
        (box.ws / "never").read_bytes()
        raise AssertionError

    def outside(context: Any) -> ToolResult:
        return ToolResult(ok=True, summary=repr(context.sandbox.read_bytes("../outside/secret")))

    def absolute(context: Any) -> ToolResult:
        raise ValueError(f"CAUSE {box.ws}/a and {box.run_dir}/x and {Path.home()} and {Path.cwd()}")

    def failing(context: Any) -> ToolResult:
        raise ToolFailure("it did not work")

    def slow(context: Any) -> ToolResult:
        while not context.cancelled:
            time.sleep(0.01)
        return ToolResult(ok=True, summary=context.sandbox.read_bytes("a").decode())

    works = {"missing": missing, "outside": outside, "absolute": absolute, "failing": failing, "slow": slow}
    opened = registry.register({name: tool(work) for name, work in works.items()})
    snapshot = registry.materialize(box.policy)
    results = {name: snapshot.call(name, {}) for name in works if name != "slow"}
    bound = {str(d.name): d for d in snapshot.definitions}
    results["slow"] = bound["slow"].handler({}, box.context.for_call(timeout_s=0.05))
    results["nobody"] = snapshot.call("nobody", {})
    timer = threading.Timer(0.1, box.context.cancel)
    timer.start()
    results["cancelled"] = snapshot.call("slow", {})
    timer.join()
    opened.close()
    results["stale"] = snapshot.call("missing", {})
    found = {name: result.error.code if result.error else None for name, result in results.items()}
    assert found == {
        "missing": "internal",
        "outside": "outside_sandbox",
        "absolute": "internal",
        "failing": "failed",
        "slow": "timeout",
        "nobody": "unknown_tool",
        "cancelled": "cancelled",
        "stale": "stale_tool",
    }
    return {str(code) for code in found.values()}


def test_no_content_and_no_host_path_in_any_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "the-home"
    cwd = tmp_path / "the-cwd"
    home.mkdir()
    cwd.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(cwd)
    runtime = [PermissionRule("*", "private/**", "deny"), PermissionRule("*", "asked/**", "ask")]
    with Box(tmp_path, {"limits": {"max_file_bytes": 1_000_000}}, runtime=runtime) as box:
        box.put("a", "CONTENT-OF-A\n")
        codes = provoke(box)
        log = all_log_bytes(box.run_dir).decode()
    assert codes >= {
        "invalid_args",
        "not_found",
        "not_regular_file",
        "is_directory",
        "not_a_directory",
        "too_large",
        "binary",
        "stale",
        "invalid_pattern",
        "stale_tool",
        "failed",
        "denied",
        "approval_required",
        "outside_sandbox",
        "read_only",
        "timeout",
        "cancelled",
        "unknown_tool",
        "internal",
    }
    for word in (
        "CONTENT-OF-A",
        "PRIVATE-CONTENT",
        "ASKED-CONTENT",
        "READ-ONLY-CONTENT",
        "TOPSECRET",
        "CONTENT-OF-ARG",
    ):
        assert word not in log
    for path in (box.ws, box.runs, home, cwd, tmp_path):
        assert str(path) not in log, next(line for line in log.splitlines() if str(path) in line)


def test_every_error_says_nothing_of_the_host(tmp_path: Path) -> None:
    """What a model gets names sandbox paths only."""
    runtime = [PermissionRule("*", "private/**", "deny"), PermissionRule("*", "asked/**", "ask")]
    with Box(tmp_path, {"limits": {"max_file_bytes": 1_000_000}}, runtime=runtime) as box:
        box.put("a", "A\n")
        seen: list[str] = []
        call = box.call

        def listening(tool: str, args: Any = None, /, **named: Any) -> ToolResult:
            result = call(tool, args, **named)
            seen.append(repr(result.to_dict()) + repr([getattr(part, "text", "") for part in result.content]))
            return result

        box.call = listening  # type: ignore[method-assign]
        provoke(box)
    assert len(seen) > 20
    for said in seen:
        assert str(tmp_path) not in said


# `KGENT_LONG=1`: the 9,600 calls of C52.
PROCESSES, CALLS = (8, 300) if os.environ.get("KGENT_LONG") == "1" else (4, 50)


def work(context: RunContext, who: int) -> None:
    """Four threads, each with half as many rounds of two calls as `CALLS`."""
    (write,) = (tool for tool in build_toolsets(context) if tool.name == "write_file")

    def thread(which: int) -> None:
        for n in range(CALLS // 2):
            size = (10, 300, 5000, 300_000)[n % 4 if n % 10 == 0 else n % 3]
            call = context.for_call(call_id=f"{who}.{which}.{n}")
            result = write.handler({"path": f"t/{who}.{which}", "content": "c" * size, "x" * 8: 1}, call)
            assert result.error is not None
            result = write.handler({"path": f"t/{who}.{which}", "content": "c" * size}, call)
            assert result.ok, result

    threads = [threading.Thread(target=thread, args=(which,)) for which in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_c52_processes_and_threads(box: Box) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=work, args=(box.context, who)) for who in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(500)
        assert worker.exitcode == 0
    expected = {f"{who}.{which}.{n}" for who in range(PROCESSES) for which in range(4) for n in range(CALLS // 2)}
    ids = [record["call_id"] for record in box.records]
    assert len(ids) == 2 * len(expected) == PROCESSES * 4 * CALLS
    assert set(ids) == expected
    assert len({record["id"] for record in box.records}) == len(ids)
    for who in range(PROCESSES):
        for which in range(4):
            own = [int(i.split(".")[2]) for i in ids if i.startswith(f"{who}.{which}.")]
            assert own == sorted(own)
    for sink in SINKS:
        lines = box.log(sink)
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert len(box.errors) == len(expected)


TAILS = {
    "half a line": b'{"v":1,"seq":99,"id":"c',
    "half a character": '{"v":1,"seq":99,"summary":"\u2500'.encode()[:-1],
    "NULs": b"\0" * 4096,
    "NULs after half a line": b'{"v":1,' + b"\0" * 100,
    "one brace": b"{",
    "a blank": b" ",
    "text of another kind": b"Killed",
}


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("tail", list(TAILS))
def test_a_torn_tail_is_closed_off(box: Box, tail: str, sink: str) -> None:
    box.code("read_file", path="nope")
    before = {name: (box.run_dir / name).read_bytes() for name in SINKS}
    with (box.run_dir / sink).open("ab") as file:
        file.write(TAILS[tail])
    for name in ("nope", "nope2"):
        result = box.tools["read_file"].handler({"path": name}, box.context)
        assert result.error is not None
        assert result.error.code == "not_found"
    for name in SINKS:
        after = (box.run_dir / name).read_bytes()
        assert after.startswith(before[name]), "what was there is untouched"
        rest = after[len(before[name]) :]
        if name == sink:
            assert rest.startswith(TAILS[tail] + b"\n")
            rest = rest[len(TAILS[tail]) + 1 :]
        lines = parse_lines(rest)
        assert len([line for line in lines if line.get("type") != "log.torn"]) == 2
        last = parse_lines(before[name])[-1]["seq"]
        assert [line["seq"] for line in lines] == list(range(last + 1, last + 1 + len(lines)))
    torn = [line["data"] for line in parse_lines_lossy(box.run_dir / SINKS[1]) if line.get("type") == "log.torn"]
    assert torn == [{"log": sink, "at": len(before[sink])}]


def parse_lines_lossy(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        found.append(value)
    return found


@pytest.mark.parametrize("sink", SINKS)
def test_a_record_that_lacks_only_its_newline_is_kept(box: Box, sink: str) -> None:
    box.code("read_file", path="nope")
    path = box.run_dir / sink
    lines = path.read_bytes()
    seq = parse_lines(lines)[-1]["seq"]
    os.truncate(path, len(lines) - 1)
    with RunContext.open(box.runs, box.context.run_id, workspace=box.ws) as other:
        (read,) = (tool for tool in build_toolsets(other) if tool.name == "read_file")
        read.handler({"path": "nope"}, other)
        after = path.read_bytes()
    assert after.startswith(lines)
    new = [line["seq"] for line in parse_lines(after)][seq:]
    assert new == list(range(seq + 1, seq + 1 + len(new)))
    assert new


def test_a_torn_tail_is_closed_off_when_a_run_is_opened(box: Box) -> None:
    box.read("a")
    box.context.close()
    with (box.run_dir / SINKS[0]).open("ab") as file:
        file.write(b'{"v":1,"seq":2')
    with RunContext.open(box.runs, box.context.run_id, workspace=box.ws) as context:
        (read,) = (tool for tool in build_toolsets(context) if tool.name == "read_file")
        assert read.handler({"path": "a"}, context).ok
        assert [record["seq"] for record in context.records()] == [1, 2]


def test_a_call_that_was_cut_off_is_closed_when_the_run_is_opened(box: Box) -> None:
    """The process dies inside a tool that changes things: its start is on record, and its end is written later."""

    def handler(args: Any, context: Any) -> ToolResult:
        context.sandbox.write_bytes("half", b"done")
        os._exit(0)

    registry = ToolRegistry(box.context)
    registry.register({"mine": ToolDefinition(description="d", input_schema={"type": "object"}, handler=handler)})
    snapshot = registry.materialize()
    in_child(lambda: print(snapshot.call("mine", {}, call_id="lost")))
    assert (box.ws / "half").read_bytes() == b"done"
    assert [event["type"] for event in box.events] == ["run.created", "tool.started"]
    box.context.close()
    for _ in range(2):
        with RunContext.open(box.runs, box.context.run_id, workspace=box.ws) as again:
            records = [(r["tool"], r["status"], r["call_id"], r["error"]["code"]) for r in again.records()]
            assert records == [("mine", "interrupted", "lost", "interrupted")]


def test_a_seq_that_is_damage_is_no_base(box: Box) -> None:
    box.read("a")
    with (box.run_dir / SINKS[0]).open("ab") as file:
        file.write(b'{"v":1,"seq":18446744073709551615}\n')
    box.tools["read_file"].handler({"path": "a"}, box.context)
    assert [record["seq"] for record in parse_lines_lossy(box.run_dir / SINKS[0]) if record][-1] == 2


def replaced(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.rename(path)


def linked(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def hard_linked(path: Path) -> None:
    path.with_name("second").hardlink_to(path)


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def made_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("harm", [replaced, linked, hard_linked, Path.unlink, made_a_folder, made_a_pipe])
def test_a_log_that_is_not_ours_any_more(box: Box, harm: Callable[[Path], None], sink: str) -> None:
    """What cannot be recorded is not told, and does not change anything."""
    box.code("read_file", path="nope")
    box.put("w", "old")
    harm(box.run_dir / sink)
    box.log_was_harmed = True
    sizes = [path.stat().st_size for path in sorted((box.run_dir / "logs").iterdir()) if path.is_file()]
    calls: list[tuple[str, dict[str, Any]]] = [("read_file", {"path": "nope"})]
    if sink != "logs/errors.jsonl":
        calls.append(("read_file", {"path": "a"}))
    for tool, args in calls:
        result = box.tools[tool].handler(args, box.context)
        assert result.error is not None
        assert result.error.code == "log_unavailable"
        assert "CONTENT-OF-A" not in repr(result.to_dict()) + repr(result.content)
        assert result.data is None
        assert result.error.details == {"done": False}
    written = box.tools["write_file"].handler({"path": "w", "content": "new"}, box.context)
    assert written.error is not None
    assert (written.error.code, written.error.details) == ("log_unavailable", {"done": False})
    assert (box.ws / "w").read_text(encoding="utf-8") == "old"
    now = [path.stat().st_size for path in sorted((box.run_dir / "logs").iterdir()) if path.is_file()]
    if sink != "logs/errors.jsonl":
        assert now == sizes


def test_what_was_done_but_could_not_be_recorded_says_so(box: Box) -> None:
    def harmful(args: Any, context: Any) -> ToolResult:
        context.sandbox.write_bytes("w", b"new")
        (box.run_dir / SINKS[0]).unlink()
        return ToolResult(ok=True, summary="CONTENT-OF-A")

    registry = ToolRegistry(box.context)
    registry.register({"mine": ToolDefinition(description="d", input_schema={"type": "object"}, handler=harmful)})
    result = registry.materialize(box.policy).call("mine", {})
    box.log_was_harmed = True
    assert result.error is not None
    assert (result.error.code, result.error.details) == ("log_unavailable", {"done": True})
    assert "CONTENT-OF-A" not in repr(result.to_dict())
    assert (box.ws / "w").read_bytes() == b"new"


def cut_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


def cut_by_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    os.truncate(path, len(b"".join(lines[:-1])))


def rewritten_longer(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    with path.open("r+b") as file:
        file.write(b"".join([*lines[:-1], lines[-1].replace(b"path", b"PATH").replace(b"log.", b"LOG.")]))
        file.write(b'{"v":1,"seq":99,"type":"x","more":1}\n')


@pytest.mark.parametrize("sink", SINKS[:2])
@pytest.mark.parametrize("harm", [cut_to_nothing, cut_by_a_line])
def test_a_log_that_was_cut_is_noticed_and_nothing_is_changed_any_more(
    box: Box, harm: Callable[[Path], None], sink: str
) -> None:
    box.read("a")
    harm(box.run_dir / sink)
    for _ in range(2):
        result = box.tools["write_file"].handler({"path": "w", "content": "new"}, box.context)
        assert result.error is not None
        assert (result.error.code, "log.tampered" in result.error.message) == ("log_unavailable", True)
        assert not (box.ws / "w").exists()
        assert box.tools["read_file"].handler({"path": "a"}, box.context).ok
    noticed = [
        event["data"]["log"] for event in parse_lines_lossy(box.run_dir / SINKS[1]) if event["type"] == "log.tampered"
    ]
    assert noticed == [sink]


def test_a_log_whose_last_record_was_altered_is_noticed_once_it_grows(box: Box) -> None:
    box.read("a")
    rewritten_longer(box.run_dir / SINKS[0])
    assert box.tools["read_file"].handler({"path": "a"}, box.context).ok
    assert [event["type"] for event in box.events][-2:] == ["log.tampered", "tool.completed"]
    result = box.tools["write_file"].handler({"path": "w", "content": "new"}, box.context)
    assert result.error is not None
    assert result.error.code == "log_unavailable"


@pytest.mark.slow
def test_a_held_lock_is_not_waited_for_without_end(box: Box) -> None:
    fcntl = pytest.importorskip("fcntl")
    holder = os.open(box.run_dir / "logs", os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    start = time.monotonic()
    result = box.tools["read_file"].handler({"path": "a"}, box.context)
    assert 4 < time.monotonic() - start < 8
    assert result.error is not None
    assert result.error.code == "log_unavailable"
    os.close(holder)
    assert box.tools["read_file"].handler({"path": "a"}, box.context).ok


@pytest.mark.slow
def test_a_run_folder_that_a_stranger_holds_is_not_waited_for_without_end(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with RunContext.create(tmp_path / "runs", "r") as context:
        folder = context.run_dir
    holder = os.open(folder, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    start = time.monotonic()
    with pytest.raises(RunError, match="log files cannot be opened"):
        RunContext.open(tmp_path / "runs", "r")
    assert 4 < time.monotonic() - start < 8
    os.close(holder)
    RunContext.open(tmp_path / "runs", "r").close()


def test_a_full_disk(tmp_path: Path) -> None:
    """The record does not fit: the call says so, no line is half written, and nothing is signalled to the process."""

    def child() -> None:
        import resource

        with Box(tmp_path) as box:
            box.put("a", "A\n")
            box.read("a")
            size = max((box.run_dir / sink).stat().st_size for sink in SINKS)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
            codes: set[str | None] = set()
            for _ in range(4):
                result = box.tools["read_file"].handler({"path": "a"}, box.context)
                codes.add(result.error and result.error.code)
            assert "log_unavailable" in codes
            assert codes <= {None, "log_unavailable"}
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            for sink in SINKS:
                parse_lines((box.run_dir / sink).read_bytes())
            box.new()
            assert box.read("a") == "A\n"

    in_child(child)


CANARIES = {
    "api key": "sk-CANARY1AAAAAAAAAAAAAAAAAAAA",
    "bearer": "Authorization: Bearer CANARY2abcdef",
    "assignment": "token=CANARY6abcdef",
    "option": "--password=CANARY7abcdef",
    "url": "https://user:CANARY8abcdef@host/x",
    "github": "ghp_CANARY9AAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "aws": "AKIACANARY1234567890",
}


@pytest.mark.parametrize("name", list(CANARIES))
def test_c56_secrets_in_arguments(box: Box, name: str) -> None:
    text = CANARIES[name]
    named = text.split("/")[-1] if "://" not in text else "x"
    box.ok("write_file", path="c", content=text)
    assert (box.ws / "c").read_text(encoding="utf-8") == text, "the tool gets the true value"
    box.call("read_file", path=named)
    box.call("write_file", path=f"d/{named}", content="x")
    box.call("read_file", path=f"d/{named}")
    box.call("list_files", path=f"d/{named}")
    box.call("grep_files", pattern=text, literal=True)
    box.call("grep_files", pattern=f"({text}")
    box.call("read_file", {"path": "c", "extra": text})
    box.call("read_file", {"path": "c", "token": "CANARY3abcdef"})
    box.call("read_file", {"path": "c", "deep": [{"password": "CANARY5abcdef", "x": [text]}]})
    box.call("read_file", {"path": "c", text: 1})
    box.call("read_file", json.dumps({"path": "c", "extra": text}))
    box.call("read_file", f'{{"path": "{named}", broken')
    box.call("read_file", text)
    box.call("grep_files", pattern="x", output=text)
    box.call("read_file", path="c", offset=text)
    call = box.context.for_call(call_id=text, conversation_id=text, agent=text)
    box.tools["read_file"].handler({"path": "nope"}, call)
    for sink in SINKS:
        for line in (box.run_dir / sink).read_text(encoding="utf-8").splitlines():
            assert "CANARY" not in line, line


def test_c56_secrets_in_failures_of_a_tool(box: Box) -> None:
    def raising(args: Any, context: Any) -> ToolResult:
        raise RuntimeError("connecting with token=CANARY5abcdef failed")

    def failing(args: Any, context: Any) -> ToolResult:
        raise ToolFailure("password: CANARY5abcdef is wrong")

    def answering(args: Any, context: Any) -> ToolResult:
        return ToolResult(ok=True, summary="logged in with api_key=CANARY5abcdef")

    registry = ToolRegistry(box.context)
    for name, handler in (("raising", raising), ("failing", failing), ("answering", answering)):
        definition = ToolDefinition(description="d", input_schema={"type": "object"}, handler=handler)
        registry.register({name: definition})
    snapshot = registry.materialize()
    assert [snapshot.call(name, {}).ok for name in ("raising", "failing", "answering")] == [False, False, True]
    assert b"CANARY" not in all_log_bytes(box.run_dir)


def test_c56_a_pattern_of_the_host(tmp_path: Path) -> None:
    with Box(tmp_path, {"records": {"redact": ["(?i)internal-[a-z]{6}"]}}) as box:
        box.call("read_file", path="INTERNAL-zyxwvu")
        box.call("write_file", path="internal-zyxwvu/x", content="y")
        box.call("grep_files", pattern="internal-zyxwvu (")
        assert b"zyxwvu" not in all_log_bytes(box.run_dir)


def test_short_contents_cannot_be_guessed_from_their_hash(tmp_path: Path) -> None:
    notes: list[Any] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with Box(tmp_path / name) as box:
            box.ok("write_file", path="pin", content="123456")
            box.ok("write_file", path="long", content="x" * 1000)
            notes.append([record["args"]["content"] for record in box.records])
    assert notes[0][0] != notes[1][0]
    assert notes[0][1] == notes[1][1]


def test_modes(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with Box(tmp_path, {"limits": {"max_output_bytes": 2000}}) as box:
            box.put("a", "needle\n" * 5000)
            assert box.ok("grep_files", pattern="needle").artifacts
            box.ok("write_file", path="deliverables/sub/d", content="x")
            box.ok("write_file", path="theirs/f", content="x")
            box.code("read_file", path="nope")
            for path in (box.run_dir, *box.run_dir.rglob("*")):
                mode = stat.S_IMODE(path.stat().st_mode)
                assert mode == (0o700 if path.is_dir() else 0o600), f"{path}: {mode:o}"
            assert stat.S_IMODE((box.ws / "theirs/f").stat().st_mode) == 0o666
    finally:
        os.umask(old)


def test_a_new_file_follows_the_umask_and_an_old_one_keeps_its_mode(box: Box) -> None:
    old = os.umask(0o027)
    try:
        box.ok("write_file", path="new", content="x")
        assert stat.S_IMODE((box.ws / "new").stat().st_mode) == 0o640
        for mode in (0o755, 0o600, 0o664):
            box.put("kept", "old").chmod(mode)
            box.ok("write_file", path="kept", content="new")
            assert stat.S_IMODE((box.ws / "kept").stat().st_mode) == mode
        box.put("suid", "old").chmod(0o4755)
        box.ok("write_file", path="suid", content="new")
        assert stat.S_IMODE((box.ws / "suid").stat().st_mode) == 0o755
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(old)


def test_records_and_events_can_be_read_back(box: Box) -> None:
    box.read("a")
    box.code("read_file", path="nope")
    assert list(box.context.records()) == box.records
    assert list(box.context.events()) == box.events


def test_a_closed_run_takes_no_calls(box: Box) -> None:
    box.context.close()
    box.context.close()
    assert box.context.closed
    with pytest.raises(RunError, match="closed"):
        box.tools["read_file"].handler({"path": "a"}, box.context)
    assert [event["type"] for event in box.events] == ["run.created", "run.closed"]
    assert box.records == []


def test_an_ordinary_user_s_run_is_private() -> None:
    shared = Path(tempfile.mkdtemp())
    shared.chmod(0o777)

    def child() -> None:
        with Box(shared) as box:
            box.put("a", "A\n")
            box.read("a")
            assert stat.S_IMODE(box.run_dir.stat().st_mode) == 0o700

    try:
        in_child(child, uid=65534)
        (run,) = (shared / "runs").iterdir()
        run.chmod(0o755)
        with pytest.raises(RunError, match="0700"):
            RunContext.open(shared / "runs", run.name, workspace=shared / "ws")
    finally:
        shutil.rmtree(shared)
