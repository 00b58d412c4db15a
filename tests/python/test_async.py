"""Async handlers: awaited on the caller's loop, stopped at their deadline, and on record whatever happens."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Box, text_of

from kgent_tools import CallContext, RegistrationError, ToolDefinition, ToolFailure, ToolRegistry, ToolResult
from kgent_tools._core import PendingCall

Handler = Callable[[dict[str, Any], CallContext], Awaitable[Any]]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        made.put("a", "one\n")
        yield made


def tool(handler: Any, **options: Any) -> ToolDefinition:
    return ToolDefinition(description="d", input_schema=SCHEMA, handler=handler, **options)


def bound(box: Box, handler: Any, **options: Any) -> ToolDefinition:
    registry = ToolRegistry(box.context)
    registry.register({"mine": tool(handler, **options)})
    return next(t for t in registry.materialize(box.policy).definitions if t.name == "mine")


def run(box: Box, handler: Any, timeout_s: float | None = None, **options: Any) -> ToolResult:
    definition = bound(box, handler, **options)
    result = asyncio.run(definition.acall({"n": 1}, box.context.for_call(timeout_s=timeout_s)))
    box.check_record("mine", result)
    return result


async def quick(args: dict[str, Any], context: CallContext) -> ToolResult:
    await asyncio.sleep(0)
    return ToolResult(ok=True, summary=f"n is {args.get('n')}")


def test_a_call_is_awaited_in_the_caller_s_own_task(box: Box) -> None:
    seen: list[object] = []
    variable = contextvars.ContextVar("variable", default="unset")

    async def handler(args: Any, context: CallContext) -> ToolResult:
        seen.append((asyncio.current_task(), threading.get_ident(), variable.get()))
        data = await asyncio.to_thread(context.sandbox.read_bytes, "a")
        return ToolResult(ok=True, summary=data.decode().strip())

    async def main() -> ToolResult:
        variable.set("mine")
        seen.append((asyncio.current_task(), threading.get_ident(), "mine"))
        return await bound(box, handler).acall({}, box.context)

    result = asyncio.run(main())
    assert result.summary == "one"
    assert seen[0] == seen[1]
    assert box.check_record("mine", result)["bytes_in"] == 4


def test_a_thousand_calls_at_once(box: Box) -> None:
    registry = ToolRegistry(box.context)
    registry.register({"mine": tool(quick)})
    snapshot = registry.materialize(box.policy)

    async def main() -> list[ToolResult]:
        return await asyncio.gather(*(snapshot.acall("mine", {"n": n}, f"c{n}") for n in range(1000)))

    assert [r.summary for r in asyncio.run(main())] == [f"n is {n}" for n in range(1000)]
    assert sorted(r["call_id"] for r in box.records) == sorted(f"c{n}" for n in range(1000))
    assert {r["status"] for r in box.records} == {"completed"}


def test_every_other_tool_is_awaited_in_a_worker_thread(box: Box) -> None:
    threads: list[int] = []

    def handler(args: Any, context: CallContext) -> ToolResult:
        threads.append(threading.get_ident())
        return ToolResult(ok=True, summary="s")

    async def main() -> list[ToolResult]:
        snapshot = ToolRegistry(box.context).materialize(box.policy)
        read = next(t for t in snapshot.definitions if t.name == "read_file")
        return [
            await bound(box, handler).acall({}, box.context),
            await read.acall({"path": "a"}, box.context),
            await snapshot.acall("read_file", '{"path": "../x"}'),
            await snapshot.acall("nope", {}),
        ]

    results = asyncio.run(main())
    assert [r.error and r.error.code for r in results] == [None, None, "outside_sandbox", "unknown_tool"]
    assert [r["tool"] for r in box.records] == ["mine", "read_file", "read_file", "nope"]
    assert threads != [threading.get_ident()]


def test_a_synchronous_call_of_an_async_handler(box: Box) -> None:
    definition = bound(box, quick)
    assert (definition.is_async, box.tools["read_file"].is_async) == (True, False)
    assert definition.handler({"n": 1}, box.context).summary == "n is 1"

    async def main() -> None:
        with pytest.raises(RegistrationError, match="acall"):
            definition.handler({"n": 2}, box.context)
        assert (await asyncio.to_thread(definition.handler, {"n": 3}, box.context)).summary == "n is 3"

    asyncio.run(main())
    assert [r["args"]["n"] for r in box.records] == [1, 3]


def test_failures_of_an_async_handler(box: Box) -> None:
    async def raises(args: Any, context: CallContext) -> ToolResult:
        await asyncio.sleep(0)
        raise args["error"] if "error" in args else ValueError("CAUSE")

    async def fails(args: Any, context: CallContext) -> ToolResult:
        raise ToolFailure("no luck", "Try again.", "no_match")

    async def refused(args: Any, context: CallContext) -> ToolResult:
        context.sandbox.read_bytes("../outside/secret")
        raise AssertionError

    async def own_timeout(args: Any, context: CallContext) -> ToolResult:
        raise TimeoutError("my own")

    async def wrong(args: Any, context: CallContext) -> Any:
        return 5

    def forgets(args: Any, context: CallContext) -> Any:
        return quick(args, context)

    codes = [run(box, h).error.code for h in (raises, fails, refused, own_timeout, wrong, forgets)]  # type: ignore[union-attr]
    assert codes == ["internal", "no_match", "outside_sandbox", "internal", "internal", "internal"]


def test_handlers_of_every_async_kind(box: Box) -> None:
    class Callable_:
        async def __call__(self, args: Any, context: CallContext) -> ToolResult:
            return await quick(args, context)

        async def method(self, args: Any, context: CallContext) -> ToolResult:
            return await quick(args, context)

    import functools

    for handler in (Callable_(), Callable_().method, functools.partial(quick)):
        assert run(box, handler).summary == "n is 1"


def test_a_handler_is_stopped_at_its_deadline(box: Box) -> None:
    steps: list[str] = []

    async def handler(args: Any, context: CallContext) -> ToolResult:
        try:
            await asyncio.sleep(30)
        finally:
            steps.append("cleaned up")
        raise AssertionError

    start = time.monotonic()
    result = run(box, handler, timeout_s=0.1)
    assert time.monotonic() - start < 2
    assert result.error is not None
    assert (result.error.code, steps) == ("timeout", ["cleaned up"])


def test_a_handler_that_will_not_stop_is_recorded_when_it_returns(box: Box) -> None:
    async def handler(args: Any, context: CallContext) -> ToolResult:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
        return ToolResult(ok=True, summary="late")

    error = run(box, handler, timeout_s=0.05).error
    assert error is not None
    assert (error.code, error.details) == ("timeout", {"done": True})


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_the_host_cancels_one_call_and_not_the_task(box: Box, where: str) -> None:
    async def handler(args: Any, context: CallContext) -> ToolResult:
        await asyncio.sleep(30 if args["n"] else 0.2)
        return ToolResult(ok=True, summary="done")

    async def main() -> list[ToolResult]:
        definition = bound(box, handler)
        stop = lambda: box.context.cancel("c1")  # noqa: E731
        if where == "loop":
            asyncio.get_running_loop().call_later(0.1, stop)
        else:
            threading.Timer(0.1, stop).start()
        calls = [definition.acall({"n": n}, box.context.for_call(call_id=f"c{n}")) for n in (0, 1)]
        return list(await asyncio.gather(*calls))

    start = time.monotonic()
    results = asyncio.run(main())
    assert time.monotonic() - start < 2
    assert [r.error and r.error.code for r in results] == [None, "cancelled"]
    assert [r["status"] for r in box.records] == ["cancelled", "completed"]


def test_cancelling_the_task_at_every_await_leaves_one_record(box: Box) -> None:
    async def handler(args: Any, context: CallContext) -> ToolResult:
        for _ in range(4):
            await asyncio.sleep(0)
        try:
            await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
        return ToolResult(ok=True, summary="s")

    definition = bound(box, handler)

    async def cancel_after(turns: int) -> str:
        task = asyncio.create_task(definition.acall({}, box.context))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "completed"

    outcome = ""
    for turns in range(1, 12):
        outcome = asyncio.run(cancel_after(turns))
        new = box.new()
        assert [r["status"] for r in new["logs/tools.jsonl"]] == [outcome], turns
        assert [e["type"] for e in new["events.jsonl"]][-1] == f"tool.{outcome}"
    assert outcome == "completed"


def test_cancelling_the_task_of_a_tool_in_a_thread_waits_for_its_record(box: Box) -> None:
    started = threading.Event()

    def handler(args: Any, context: CallContext) -> ToolResult:
        started.set()
        while not context.cancelled:
            time.sleep(0.005)
        raise ToolFailure("stopped")

    async def main() -> None:
        task = asyncio.create_task(bound(box, handler).acall({}, box.context))
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [r["status"] for r in box.records] == ["cancelled"]


def test_what_is_no_failure_passes_through_after_its_record(box: Box) -> None:
    class Stop(BaseException):
        pass

    for error in (Stop("x"), KeyboardInterrupt(), asyncio.CancelledError("own")):

        async def handler(args: Any, context: CallContext, error: BaseException = error) -> ToolResult:
            await asyncio.sleep(0)
            raise error

        call = bound(box, handler).acall({}, box.context)

        async def main(call: Coroutine[Any, Any, ToolResult] = call) -> BaseException | None:
            try:
                await call
            except BaseException as caught:
                return caught
            return None

        assert asyncio.run(main()) is error
        assert [r["status"] for r in box.new()["logs/tools.jsonl"]] == ["cancelled"]


def test_a_coroutine_that_is_thrown_away_leaves_its_record(box: Box) -> None:
    async def handler(args: Any, context: CallContext) -> ToolResult:
        await asyncio.sleep(30)
        raise AssertionError

    async def main() -> None:
        call = bound(box, handler).acall({}, box.context)
        call.send(None)
        call.close()

    asyncio.run(main())
    assert [r["status"] for r in box.records] == ["cancelled"]


def test_a_call_of_which_only_the_first_half_was_made_leaves_its_record(box: Box) -> None:
    pending = bound(box, quick).handler.begin({}, box.context, lambda: None)
    assert isinstance(pending, PendingCall)
    assert box.records == []
    del pending
    assert [(r["status"], r["error"]["code"]) for r in box.records] == [("cancelled", "cancelled")]
    pending = bound(box, quick).handler.begin({}, box.context, lambda: None)
    assert isinstance(pending, PendingCall)
    assert pending.finish(ToolResult(ok=True, summary="s")).ok
    with pytest.raises(RegistrationError, match="finished"):
        pending.stop()
    assert [r["status"] for r in box.records] == ["cancelled", "completed"]


def test_calls_inside_calls_are_bounded_over_tasks_and_threads(box: Box) -> None:
    registry = ToolRegistry(box.context)
    depths: list[int] = []

    async def deep(args: dict[str, Any], context: CallContext) -> ToolResult:
        n = args.get("n", 0)
        depths.append(n)
        snapshot = registry.materialize(box.policy)
        if n % 3 == 0:
            inner = await asyncio.create_task(snapshot.acall("deep", {"n": n + 1}))
        elif n % 3 == 1:
            inner = await asyncio.to_thread(snapshot.call, "deep", {"n": n + 1})
        else:
            inner = await snapshot.acall("deep", {"n": n + 1})
        return ToolResult(ok=True, summary=inner.summary)

    registry.register({"deep": tool(deep)})
    result = asyncio.run(registry.materialize(box.policy).acall("deep", {}))
    assert result.ok
    assert depths == list(range(16))
    assert "16" in text_of(result)
    assert len(box.records) == 17


def test_many_calls_at_once_are_not_deep(box: Box) -> None:
    async def main() -> list[ToolResult]:
        definition = bound(box, quick)
        return await asyncio.gather(*(definition.acall({}, box.context) for _ in range(40)))

    assert all(result.ok for result in asyncio.run(main()))
