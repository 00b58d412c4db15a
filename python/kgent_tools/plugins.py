"""Tools from installed plugins: entry points of the group `kgent_tools.tools`, loaded only when the host asks."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Generator
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from kgent_tools._core import Registration, ToolDefinition, ToolRegistry

__all__ = ["GROUP", "Plugin"]

GROUP = "kgent_tools.tools"


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """What became of one plugin: its tools and their registration, or why it was not loaded."""

    id: str
    tools: tuple[str, ...] = ()
    registration: Registration | None = None
    error: str | None = None


class _Refused(ImportError):
    pass


def load(registry: ToolRegistry, allow: Iterable[str], roots: Sequence[tuple[int, int]]) -> list[Plugin]:
    """Loads each plugin of `allow`; `roots` are the device and inode of each folder that is mounted."""
    mounts = frozenset(roots)
    return [_load(registry, id, mounts) for id in allow]


def _load(registry: ToolRegistry, id: str, mounts: frozenset[tuple[int, int]]) -> Plugin:
    try:
        entry = _entry_point(id, mounts)
        with _Guard.on(mounts):
            value = entry.load()
            _refuse_module(sys.modules.get(entry.module), mounts)
            given = value() if callable(value) else value
        if not isinstance(given, Mapping):
            raise _Refused(f"gave a {type(given).__name__}, not a dict of names and tools")
        tools = cast("Mapping[str, ToolDefinition]", given)
        registration = registry.register(tools, provider=f"plugin {id}")
    except (Exception, SystemExit) as error:
        return Plugin(id=id, error=f"{type(error).__name__}: {error}")
    return Plugin(id=id, tools=tuple(tools), registration=registration)


def _entry_point(id: str, mounts: frozenset[tuple[int, int]]) -> metadata.EntryPoint:
    wanted, _, name = id.partition(":")
    found: list[metadata.EntryPoint] = []
    claims = 0
    for distribution in metadata.distributions():
        if _canonical(distribution.name or "") != _canonical(wanted):
            continue
        claims += 1
        if _inside(str(distribution.locate_file("")), mounts):
            raise _Refused(f"the distribution {wanted} lies in a mount, where a tool could have written it")
        found += [entry for entry in distribution.entry_points if (entry.group, entry.name) == (GROUP, name)]
    if claims > 1 or len(found) > 1:
        raise _Refused("it is claimed twice: remove one")
    if not found:
        raise _Refused(f"no installed distribution has the entry point {id!r} in the group {GROUP}")
    return found[0]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _inside(path: str, mounts: frozenset[tuple[int, int]]) -> bool:
    """Whether `path`, or what it leads to, lies in a mounted folder."""
    place = os.path.realpath(path)
    while True:
        try:
            stat = os.stat(place)
        except OSError:
            pass
        else:
            if (stat.st_dev, stat.st_ino) in mounts:
                return True
        above = os.path.dirname(place)
        if above == place:
            return False
        place = above


def _refuse_module(module: ModuleType | None, mounts: frozenset[tuple[int, int]]) -> None:
    file = getattr(module, "__file__", None)
    if file and _inside(file, mounts):
        raise _Refused(f"the module {getattr(module, '__name__', '')} lies in a mount")


class _Guard(MetaPathFinder):
    """Refuses, in one thread, to import modules that lie in a mount, whoever asks for them."""

    def __init__(self, mounts: frozenset[tuple[int, int]]) -> None:
        self.mounts = mounts
        self.thread = threading.get_ident()

    @classmethod
    @contextmanager
    def on(cls, mounts: frozenset[tuple[int, int]]) -> Generator[None]:
        guard = cls(mounts)
        sys.meta_path.insert(0, guard)
        try:
            yield
        finally:
            sys.meta_path.remove(guard)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if threading.get_ident() != self.thread:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _Guard):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                places = [spec.origin] if spec.has_location and spec.origin else spec.submodule_search_locations or []
                if any(_inside(place, self.mounts) for place in places):
                    raise _Refused(f"the module {fullname} lies in a mount, where a tool could have written it")
                return spec
        return None
