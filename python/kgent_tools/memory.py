"""Memory: the contract that a client keeps, its data types, and the clients that need no store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kgent_tools._core import CandidateMemoryClient, ErrorInfo

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = [
    "CandidateMemoryClient",
    "MemoryClient",
    "MemoryItem",
    "MemoryWriteResult",
    "NoopMemoryClient",
]


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One thing remembered; `score` is by the store's own measure, and `metadata` a JSON object of its own."""

    id: str
    content: str
    scope: str
    score: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class MemoryWriteResult:
    """What became of a write: a word of the client's, such as `written`, and the id that it got; or why it failed."""

    status: str
    id: str | None = None
    error: ErrorInfo | None = None


@runtime_checkable
class MemoryClient(Protocol):
    """Another program's memory. The methods may be `async`.

    A call is given up after `memory.timeout_s`: an `async` one is cancelled, a synchronous one is left to its thread and
    its answer thrown away. A recall that raises is asked again, at most twice; a write never. What a method raises, and
    an answer of another type, becomes `memory_unavailable`.
    """

    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem] | Awaitable[list[MemoryItem]]:
        """At most `limit` items that fit `query` in `scope`, the best first."""
        ...

    def write_memory(
        self, content: str, scope: str, tags: list[str]
    ) -> MemoryWriteResult | Awaitable[MemoryWriteResult]:
        """Remembers `content`."""
        ...


class NoopMemoryClient:
    """Remembers nothing."""

    def recall_memory(self, query: str, scope: str = "default", limit: int = 10) -> list[MemoryItem]:
        """Nothing."""
        return []

    def write_memory(self, content: str, scope: str = "default", tags: list[str] | None = None) -> MemoryWriteResult:
        """Answers `discarded`."""
        return MemoryWriteResult("discarded")
