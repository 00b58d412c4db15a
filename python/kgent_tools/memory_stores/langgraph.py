"""Any LangGraph store as a memory client (extra: `kgent_tools[langgraph]`).

The stores are many (in memory, SQLite, PostgreSQL, Redis, MongoDB) and have one interface, `BaseStore`.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kgent_tools import MemoryItem, MemoryWriteResult

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore, SearchItem

__all__ = ["LangGraphMemoryClient"]

MAX_SCANNED = 1000


class LangGraphMemoryClient:
    """Keeps each memory as one item: `memory` or another namespace, then the parts of its scope.

    Recall is by meaning where the store has an index. Without one the newest thousand items of the scope are compared by
    their words. The store is the host's to open, set up and close.
    """

    def __init__(self, store: BaseStore, namespace: tuple[str, ...] = ("memory",)) -> None:
        """Wraps a store.

        Args:
            store: It must take calls from other threads; those that come with LangGraph do.
            namespace: Goes before the scope's parts.
        """
        if not namespace:
            raise ValueError("the namespace is empty")
        self._store = store
        self._namespace = namespace

    def recall_memory(self, query: str, scope: str = "default", limit: int = 10) -> list[MemoryItem]:
        """The items of exactly this scope that fit best."""
        found = self._search(scope, limit, query) if query.strip() else []
        if any(item.score is not None for item in found):
            return [_item(item, item.score) for item in found]
        words = set(query.lower().split())
        ranked = [(_share(words, item), item) for item in self._search(scope, MAX_SCANNED)]
        ranked = [(score, item) for score, item in ranked if score > 0]
        ranked.sort(key=lambda pair: (pair[0], str(pair[1].value.get("time", ""))), reverse=True)
        return [_item(item, score if words else None) for score, item in ranked[:limit]]

    def write_memory(self, content: str, scope: str = "default", tags: list[str] | None = None) -> MemoryWriteResult:
        """Adds an item."""
        key = uuid.uuid4().hex
        time = datetime.now(UTC).isoformat()
        self._store.put(
            self._place(scope), key, {"content": content, "scope": scope, "tags": list(tags or ()), "time": time}
        )
        return MemoryWriteResult("written", key)

    def _place(self, scope: str) -> tuple[str, ...]:
        # A label of a namespace has no dot.
        labels = (part.replace("%", "%25").replace(".", "%2E") for part in scope.split("/"))
        return (*self._namespace, *labels)

    def _search(self, scope: str, limit: int, query: str | None = None) -> list[SearchItem]:
        # The search is by prefix: the filter keeps out the scopes beneath.
        return self._store.search(self._place(scope), query=query, filter={"scope": scope}, limit=limit)


def _item(item: SearchItem, score: float | None) -> MemoryItem:
    value = item.value
    metadata = {"tags": value.get("tags", []), "time": value.get("time")}
    return MemoryItem(item.key, str(value.get("content", "")), str(value.get("scope", "")), score, metadata)


def _share(words: set[str], item: SearchItem) -> float:
    """The part of the words that the item has; 1 where there are none to look for."""
    value: dict[str, Any] = item.value
    text = " ".join([str(value.get("content", "")), *map(str, value.get("tags", []))]).lower()
    return sum(word in text for word in words) / len(words) if words else 1.0
