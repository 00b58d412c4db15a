"""The Pydantic AI adapter under load: cancelled in the middle, in parallel, in long runs, and raced by another process."""

import asyncio
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from anyio._backends._asyncio import AsyncIOBackend
from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits
from support import Box, Swapper, memory_kib, snapshot

from kgent_tools import (
    CallContext,
    MemoryItem,
    MemoryWriteResult,
    RunContext,
    ToolDefinition,
    ToolRegistry,
    build_toolsets,
)
from kgent_tools.pydantic_adapter import KgentToolset

Calls = list[tuple[str, dict[str, Any]]]
MakeContext = Callable[..., RunContext]


def turns(more: Callable[[int], Calls | None]) -> FunctionModel:
    """A model whose turn `n` makes the calls `more(n)`, until there are none. It runs on the loop, not in a thread."""
    count = 0

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal count
        calls = more(count)
        count += 1
        return ModelResponse(parts=[ToolCallPart(*call) for call in calls] if calls else [TextPart("done")])

    return FunctionModel(respond)


def once(*calls: tuple[str, dict[str, Any]]) -> FunctionModel:
    return turns(lambda turn: list(calls) if turn == 0 else None)


def returns(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    return [p for m in messages if m.kind == "request" for p in m.parts if isinstance(p, ToolReturnPart)]


def statuses(context: RunContext) -> dict[str, str]:
    return {record["tool"]: record["status"] for record in context.records()}


# Snapshots


def test_each_model_request_offers_what_the_registry_holds_then(context: RunContext) -> None:
    registry = ToolRegistry(context)
    session = registry.session("chat")

    def define(name: str) -> ToolDefinition:
        return ToolDefinition(
            description=name, input_schema={"type": "object"}, handler=lambda args, context: name, to_data=lambda _: {}
        )

    offered: list[set[str]] = []
    held = session.register({"first": define("first")})

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        offered.append({tool.name for tool in info.function_tools} & {"first", "second"})
        match len(offered):
            case 1:
                return ModelResponse(parts=[ToolCallPart("first", {})])
            case 2:
                # Taken back after the request was made: the call is of what was offered, and stale.
                held.close()
                session.register({"second": define("second")})
                return ModelResponse(parts=[ToolCallPart("first", {})])
            case 3:
                return ModelResponse(parts=[ToolCallPart("second", {})])
            case _:
                return ModelResponse(parts=[TextPart("done")])

    toolset = KgentToolset.from_registry(session, None, context)
    result = asyncio.run(Agent(FunctionModel(respond), toolsets=[toolset]).run("go"))
    assert offered == [{"first"}, {"first"}, {"second"}, {"second"}]
    # Older releases answer a retry with a part of another kind.
    outcomes = [part.outcome for part in returns(result.all_messages()) if part.outcome != "retried"]
    assert outcomes == ["success", "success"]
    assert [r["status"] if not r["error"] else r["error"]["code"] for r in context.records()] == [
        "completed",
        "stale_tool",
        "completed",
    ]


def test_a_fixed_toolset_goes_stale_and_offers_nothing_new(context: RunContext) -> None:
    registry = ToolRegistry(context)
    toolset = KgentToolset(registry.materialize().definitions, context)
    registry.register(
        {"late": ToolDefinition(description="late", input_schema={"type": "object"}, handler=lambda args, context: 1)}
    )
    seen: list[set[str]] = []

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append({tool.name for tool in info.function_tools})
        return ModelResponse(parts=[TextPart("done")])

    asyncio.run(Agent(FunctionModel(respond), toolsets=[toolset]).run("go"))
    assert "late" not in seen[0]


# Cancellation


async def cancelled(agent: Agent[None, Any], began: Callable[[], bool]) -> float:
    """Seconds that a run needs to end once it is cancelled."""
    task = asyncio.create_task(agent.run("go"))
    while not began():
        assert not task.done()
        await asyncio.sleep(0.002)
    since = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return time.monotonic() - since


class Hangs:
    """A memory client that never answers."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.end = threading.Event()

    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:
        self.begun.set()
        self.end.wait(30)
        return []

    def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:
        raise AssertionError


@pytest.mark.parametrize("kind", ["async tool", "memory client"])
def test_a_cancelled_run_stops_what_waits_within_a_second(make_context: MakeContext, kind: str) -> None:
    context = make_context({"memory": {"timeout_s": 60}})
    client, begun = Hangs(), threading.Event()

    async def sleep(args: Any, context: CallContext) -> str:
        begun.set()
        await asyncio.sleep(60)
        raise AssertionError

    if kind == "async tool":
        registry = ToolRegistry(context)
        registry.register(
            {"sleep": ToolDefinition(description="Sleeps.", input_schema={"type": "object"}, handler=sleep)}
        )
        tools, call, began = registry.materialize().definitions, ("sleep", {}), begun.is_set
    else:
        tools = build_toolsets(context, memory=client)
        call, began = ("recall_memory", {"query": "x"}), client.begun.is_set
    try:
        took = asyncio.run(cancelled(Agent(once(call), toolsets=[KgentToolset(tools, context)]), began))
    finally:
        client.end.set()
    assert took < 1
    assert statuses(context) == {call[0]: "cancelled"}


@pytest.mark.slow
def test_a_cancelled_search_of_fifty_thousand_files_stops_within_a_second(context: RunContext, workspace: Path) -> None:
    for folder in range(500):
        (workspace / f"d{folder}").mkdir()
        for file in range(100):
            (workspace / f"d{folder}" / f"{file}.txt").write_text("a line of text\n" * 20, encoding="utf-8")
    before = snapshot(workspace)
    toolset = KgentToolset(build_toolsets(context), context)
    call = ("grep_files", {"pattern": "x[0-9]+y"})
    opened = Path("/proc/self/fd")
    inside = str(workspace / "d")

    def began() -> bool:
        def target(name: str) -> str:
            try:
                return os.readlink(opened / name)
            except OSError:
                return ""

        return any(target(name).startswith(inside) for name in os.listdir(opened))

    took = asyncio.run(cancelled(Agent(once(call), toolsets=[toolset]), began))
    print(f"the search stopped {took:.3f} s after the run was cancelled")
    assert took < 1
    assert statuses(context) == {"grep_files": "cancelled"}
    assert snapshot(workspace) == before


# Threads


def test_a_call_hops_to_one_thread(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    hops: list[str] = []
    plain = AsyncIOBackend.run_sync_in_worker_thread.__func__  # type: ignore[attr-defined]

    def counted(cls: Any, function: Any, *args: Any, **options: Any) -> Any:
        hops.append("anyio")
        return plain(cls, function, *args, **options)

    monkeypatch.setattr(AsyncIOBackend, "run_sync_in_worker_thread", classmethod(counted))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        executor = loop.run_in_executor

        def also(*args: Any) -> Any:
            hops.append("executor")
            return executor(*args)

        monkeypatch.setattr(loop, "run_in_executor", also)
        calls = [("read_file", {"path": "notes.md"})] * 7
        await Agent(once(*calls), toolsets=[KgentToolset(build_toolsets(context), context)]).run("go")

    asyncio.run(main())
    assert len(list(context.records())) == 7
    assert hops == ["anyio"] * 7


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_thousand_calls_leak_nothing(context: RunContext) -> None:
    """200 turns of ten calls with `KGENT_LONG=1`, else 60."""
    last = 200 if os.environ.get("KGENT_LONG") == "1" else 60
    toolset = KgentToolset(build_toolsets(context), context)
    reads: Calls = [("read_file", {"path": "notes.md"})] * 8
    writes: Calls = [("write_file", {"path": f"out{n}.md", "content": "x" * 100}) for n in range(2)]

    def fds() -> int:
        return len(os.listdir("/proc/self/fd"))

    seen: list[tuple[int, int, int]] = []
    memory: list[int] = []

    def more(turn: int) -> Calls | None:
        if turn % 10 == 0 and turn >= 20:
            gc.collect()
            seen.append((fds(), threading.active_count(), len(asyncio.all_tasks())))
            memory.append(memory_kib("VmRSS"))
        return reads + writes if turn < last else None

    gc.collect()  # what other tests left
    before = fds(), threading.active_count()
    result = asyncio.run(Agent(turns(more), toolsets=[toolset]).run("go", usage_limits=UsageLimits(request_limit=None)))
    assert result.output == "done"
    assert len(list(context.records())) == 10 * last
    assert {record["status"] for record in context.records()} == {"completed"}
    files, threads, tasks = zip(*seen, strict=True)
    print(f"descriptors {files[0]}..{files[-1]}, threads {threads[0]}..{threads[-1]}, tasks {tasks[0]}..{tasks[-1]}")
    print(f"memory {memory[0]}..{memory[-1]} KiB")
    assert max(files) == files[0]
    assert max(threads) <= threads[0] + 10  # workers are reused: at most as many as a turn has calls
    assert max(tasks) == tasks[0]
    deadline = time.monotonic() + 5
    while (fds(), threading.active_count()) != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (fds(), threading.active_count()) == before
    assert memory[-1] - memory[0] < 16 * 1024  # the history of 1,800 calls, which the agent keeps, is in it


# The race


@pytest.mark.slow
def test_a_folder_exchanged_with_a_link_to_outside_leaks_nothing(tmp_path: Path) -> None:
    with Box(tmp_path) as box:
        box.put("d/secret", "inside\n")
        (box.ws / "link").symlink_to(box.outside)
        before = snapshot(box.outside)
        toolset = KgentToolset(box.tools.values(), box.context)
        calls: Calls = [("read_file", {"path": "d/secret"})] * 6
        calls += [("write_file", {"path": f"d/out{n}", "content": "written\n"}) for n in range(4)]
        outcomes: Counter[tuple[str, str]] = Counter()
        end = time.monotonic() + 6

        async def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            return ModelResponse(
                parts=[ToolCallPart(*call) for call in calls] if len(messages) == 1 else [TextPart("x")]
            )

        async def main() -> None:
            agent = Agent(FunctionModel(look), toolsets=[toolset], retries=0)
            while time.monotonic() < end:
                for part in returns((await agent.run("go")).all_messages()):
                    assert "TOPSECRET" not in str(part.content)
                    assert "TOPSECRET" not in str(part.metadata)
                    code = "ok" if part.outcome == "success" else str(part.content).split(":")[0]
                    outcomes[part.tool_name, code] += 1

        with Swapper(box.ws / "d", box.ws / "link"):
            asyncio.run(main())
        print(dict(outcomes))
        assert snapshot(box.outside) == before
        # The harness bites: each kind of call met both the folder and the link.
        for tool in ("read_file", "write_file"):
            assert outcomes[tool, "ok"] > 0
            assert outcomes[tool, "outside_sandbox"] > 0
