"""How the core makes and calls memory clients."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

from kgent_tools import ConfigError, MemoryClient

__all__ = ["ClientCalls", "client_from"]


def client_from(named: str) -> MemoryClient:
    """The client that `package.module:factory` makes, as the configuration's `memory.client` names it.

    Raises:
        ConfigError: The module or factory cannot be had, the factory fails, or what it makes is no client.
    """
    module, _, factory = named.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in factory.split("."):
            found = getattr(found, name)
        client = found()
    except Exception as error:
        raise ConfigError(f"memory.client: {named!r} gives no client: {type(error).__name__}: {error}") from error
    if not isinstance(client, MemoryClient):
        raise ConfigError(f"memory.client: {named!r} made a {type(client).__name__}, which is no MemoryClient")
    return client


_Reply = Callable[[object, BaseException | None], None]


class ClientCalls:
    """Begins calls of a client, each answered by `reply(answer, error)` from the client's side.

    The threads are daemons: one that hangs does not keep the process alive.
    """

    def __init__(self, client: MemoryClient) -> None:
        self._client = client
        self._loop: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._lock = (os.getpid(), threading.Lock())

    def begin(self, method: str, args: tuple[Any, ...], reply: _Reply) -> Callable[[], object]:
        """Begins a call; answers what cancels it."""
        function = getattr(self._client, method)
        if inspect.iscoroutinefunction(function):
            return asyncio.run_coroutine_threadsafe(_answer(function(*args), reply), self._own_loop()).cancel
        work = copy_context()
        threading.Thread(target=work.run, args=(self._run, function, args, reply), name=method, daemon=True).start()
        return _nothing

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], reply: _Reply) -> None:
        try:
            answer = function(*args)
            if inspect.isawaitable(answer):
                # A coroutine behind a plain function, such as a decorator's.
                asyncio.run_coroutine_threadsafe(_answer(answer, reply), self._own_loop())
                return
        except BaseException as error:
            reply(None, error)
        else:
            reply(answer, None)

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the client, on a thread of its own: what a client keeps open stays on one loop."""
        pid = os.getpid()
        if self._lock[0] != pid:
            # The fork may have happened while another thread held it.
            self._lock = (pid, threading.Lock())
        with self._lock[1]:
            if self._loop is None or self._loop[0] != pid:
                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="memory client", daemon=True).start()
                self._loop = (pid, loop)
            return self._loop[1]


async def _answer(work: Awaitable[object], reply: _Reply) -> None:
    try:
        answer = await work
    except BaseException as error:
        reply(None, error)
    else:
        reply(answer, None)


def _nothing() -> None:
    pass
