"""How calls are awaited: settle's two halves round an async handler, or a worker thread round everything else."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from kgent_tools._core import RegistrationError, ToolResult
from kgent_tools.tool import DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from kgent_tools._core import PendingCall, RunContext, ToolHandler

    Arguments: TypeAlias = dict[str, Any] | str

STOP_INTERVAL_S = 0.05


def run(handler: ToolHandler, args: Arguments, context: RunContext) -> ToolResult:
    """Calls an async handler from a thread in which no loop runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(acall(handler, args, context))
    raise RegistrationError("the tool is async, and an event loop runs in this thread: await acall(...) instead")


async def acall(handler: ToolHandler, args: Arguments, context: RunContext) -> ToolResult:
    """Calls a tool; `context` stands for this call alone."""
    if not handler.is_async:
        return await _in_thread(handler, args, context)
    stopper = _Stopper()
    begun = handler.begin(args, context, stopper.wake)
    return begun if isinstance(begun, ToolResult) else await _finish(begun, stopper)


class _Stopper:
    """Ends the handler early, from any thread, where the host cancels the call."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.timer: asyncio.Timeout | None = None

    def wake(self) -> None:
        self.loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        if self.timer is not None:
            with suppress(RuntimeError):  # the handler has ended
                self.timer.reschedule(self.loop.time())


async def _finish(call: PendingCall, stopper: _Stopper) -> ToolResult:
    before = DEPTH.set(call.depth)
    timer = asyncio.timeout(call.remaining)
    try:
        async with timer:
            stopper.timer = timer
            if call.cancelled:
                stopper.stop()
            answer = await call.start()
    except BaseException as error:
        # Told apart there, and raised again after its record where it is no failure of the call.
        stopped = isinstance(error, TimeoutError) and timer.expired()
        return call.stop() if stopped else call.fail(error)
    finally:
        with suppress(ValueError):  # a coroutine that is thrown away ends in another context
            DEPTH.reset(before)
    return call.finish(answer)


async def _in_thread(handler: ToolHandler, args: Arguments, context: RunContext) -> ToolResult:
    """One call, in a worker thread. When cancelled: stop it, wait for its record, go on."""
    work = asyncio.ensure_future(asyncio.to_thread(handler, args, context))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await stopped(work, context.cancel)
        raise


async def stopped(work: asyncio.Future[Any], stop: Callable[[], object]) -> None:
    """Stops what goes on in a thread and waits for its end, which no cancellation hurries."""
    while True:  # a call that had yet to start is stopped by the next round
        stop()
        if work.done():
            break
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work], timeout=STOP_INTERVAL_S)
    if not work.cancelled():
        work.exception()  # looked at, so that the loop does not complain
