"""A context works in forked children and in other processes, while its parent uses it too."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Box, Ran, in_child

from kgent_tools import RunContext, ToolDefinition, ToolRegistry, ToolResult, build_toolsets

pytestmark = [
    # A fork beside threads is the very thing under test.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.timeout(50),
]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        made.put("a", "A\n")
        yield made


def calls(context: RunContext, tools: dict[str, ToolDefinition], who: str, count: int) -> None:
    """Reads, writes, searches and refusals in turn."""
    for n in range(count):
        call = context.for_call(call_id=f"{who}-{n}")
        for tool, args in (
            ("read_file", {"path": "a"}),
            ("write_file", {"path": f"out/{who}", "content": f"{n}"}),
            ("grep_files", {"pattern": "A", "path": "a"}),
            ("read_file", {"path": "../outside/secret"}),
        ):
            result = tools[tool].handler(args, call)
            assert (result.error is None) == (args.get("path") != "../outside/secret"), result


def spawned(context: RunContext, who: str, count: int) -> None:
    """What a process does that got the context as a pickle."""
    tools = {str(tool.name): tool for tool in build_toolsets(context)}
    calls(context, tools, who, count)


def check_logs(box: Box, whos: list[str], count: int) -> None:
    """All is there, once; numbers are unique and rise."""
    records = box.records
    assert sorted((r["call_id"], r["tool"]) for r in records) == sorted(
        (f"{who}-{n}", tool)
        for who in whos
        for n in range(count)
        for tool in ("read_file", "write_file", "grep_files", "read_file")
    )
    assert len({r["id"] for r in records}) == len(records)
    for lines in (records, box.events, box.errors):
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert len(box.errors) == len(whos) * count
    ended = [e for e in box.events if e["type"] in ("tool.completed", "tool.blocked")]
    assert len(ended) == len(records)
    for who in whos:
        own = [int(r["call_id"].rsplit("-", 1)[1]) for r in records if r["call_id"].startswith(f"{who}-")]
        assert own == sorted(own), "the order of one writer is kept"
        assert (box.ws / "out" / who).read_text(encoding="utf-8") == str(count - 1)


def test_children_parent_and_threads_together(box: Box) -> None:
    count = 40
    started = threading.Event()

    def in_thread() -> None:
        started.set()
        calls(box.context, box.tools, "thread", count)

    thread = threading.Thread(target=in_thread)
    thread.start()
    started.wait()
    children: list[int] = []
    for n in range(3):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                signal.alarm(40)
                calls(box.context, box.tools, f"child{n}", count)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    calls(box.context, box.tools, "parent", count)
    thread.join()
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    check_logs(box, ["thread", "child0", "child1", "child2", "parent"], count)


def test_a_fork_at_every_moment_of_a_call_never_hangs(box: Box) -> None:
    """A thread is always inside a call when the process forks: what it holds is not held in the child."""
    stop = threading.Event()

    def busy() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            box.tools["write_file"].handler({"path": "busy", "content": str(n)}, box.context)
            box.tools["grep_files"].handler({"pattern": "A"}, box.context)

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()

    def child() -> None:
        for _ in range(3):
            assert box.tools["read_file"].handler({"path": "a"}, box.context).ok
            assert box.tools["write_file"].handler({"path": "busy", "content": "child"}, box.context).ok
            assert box.tools["grep_files"].handler({"pattern": "A"}, box.context).ok

    try:
        for _ in range(25):
            in_child(child, seconds=20)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for lines in (box.records, box.events):
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
        assert len({(line["id"], line.get("type")) for line in lines}) == len(lines)


def test_a_grandchild(box: Box) -> None:
    def child() -> None:
        calls(box.context, box.tools, "child", 3)
        in_child(lambda: calls(box.context, box.tools, "grandchild", 3))

    in_child(child)
    calls(box.context, box.tools, "parent", 3)
    check_logs(box, ["child", "grandchild", "parent"], 3)


def test_a_fork_before_the_first_call(box: Box) -> None:
    in_child(lambda: calls(box.context, box.tools, "child", 5))
    calls(box.context, box.tools, "parent", 5)
    check_logs(box, ["child", "parent"], 5)


def test_a_python_tool_in_a_child(box: Box) -> None:
    def handler(args: dict[str, str], context: object) -> ToolResult:
        return ToolResult(ok=True, summary=f"pid {os.getpid()}")

    registry = ToolRegistry(box.context)
    registry.register({"who": ToolDefinition(description="d", input_schema={"type": "object"}, handler=handler)})
    snapshot = registry.materialize()

    def child() -> None:
        assert snapshot.call("who", {}).summary == f"pid {os.getpid()}"

    in_child(child)
    assert snapshot.call("who", {}).summary == f"pid {os.getpid()}"
    assert len({r["summary"] for r in box.records}) == 2


def test_cancelling_in_the_parent_leaves_the_child_alone(box: Box) -> None:
    def child() -> None:
        assert box.tools["read_file"].handler({"path": "a"}, box.context).ok

    box.context.cancel()
    in_child(child)
    assert box.tools["read_file"].handler({"path": "a"}, box.context).ok


def test_a_child_that_closes_does_not_close_for_the_parent(box: Box) -> None:
    in_child(box.context.close)
    box.new()
    assert box.read("a") == "A\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_processes_join_by_pickle(box: Box, method: str) -> None:
    spawn, server = multiprocessing.get_context("spawn"), multiprocessing.get_context("forkserver")
    process = spawn.Process if method == "spawn" else server.Process
    workers = [process(target=spawned, args=(box.context, f"worker{n}", 10)) for n in range(2)]
    for worker in workers:
        worker.start()
    calls(box.context, box.tools, "parent", 10)
    for worker in workers:
        worker.join(40)
        assert worker.exitcode == 0
    check_logs(box, ["worker0", "worker1", "parent"], 10)


def test_a_killed_writer_leaves_the_lock_free(box: Box) -> None:
    """kill -9 while it appends: the others go on, and no complete line is lost."""
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            while True:
                box.tools["write_file"].handler({"path": "w", "content": "x" * 2000}, box.context)
        for _ in range(10):
            assert box.tools["read_file"].handler({"path": "a"}, box.context).ok
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert box.tools["write_file"].handler({"path": "w", "content": "y"}, box.context).ok
    read = [r for r in box.context.records() if r["tool"] == "read_file"]
    assert len(read) == 80


def test_forking_servers_do_not_inherit_descriptors(box: Box) -> None:
    """Programs that are started get none of ours."""
    box.read("a")
    listing = Ran("import os; print([os.path.realpath(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')])")
    assert str(box.root) not in listing.out
