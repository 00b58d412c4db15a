"""The LangGraph client against the real stores: in memory with and without an index, SQLite, and PostgreSQL where it is."""

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("langgraph.store.base", reason="the extra `langgraph` is not installed")

from langgraph.store.base import BaseStore, IndexConfig
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from support import Box

from kgent_tools import MemoryClient
from kgent_tools.memory_stores.langgraph import LangGraphMemoryClient

Open = Callable[[Path], AbstractContextManager[BaseStore]]


@contextmanager
def in_memory(folder: Path) -> Iterator[BaseStore]:
    yield InMemoryStore()


@contextmanager
def sqlite(folder: Path) -> Iterator[BaseStore]:
    with SqliteStore.from_conn_string(str(folder / "store.sqlite")) as store:
        store.setup()
        yield store


@contextmanager
def postgres(folder: Path) -> Iterator[BaseStore]:
    """A server of its own, on a socket in a folder; it refuses to run as root."""
    if shutil.which("initdb") is None or shutil.which("postgres") is None:
        pytest.skip("this machine has no PostgreSQL")
    user = "postgres" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="kgent-pg-", dir="/tmp") as place:
        if user:
            os.chown(place, pwd.getpwnam(user).pw_uid, -1)
        data = Path(place, "data")
        initdb = [
            "initdb",
            "--pgdata",
            str(data),
            "--username=kgent",
            "--auth=trust",
            "--no-sync",
            "--locale=C",
            "--encoding=UTF8",
        ]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, user=user, cwd=place)
        command = ["postgres", "-D", str(data), "-k", place, "-c", "listen_addresses=", "-c", "fsync=off"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, user=user, cwd=place)
        try:
            assert server.stderr is not None
            said = []
            for line in server.stderr:
                said.append(line)
                if "ready to accept connections" in line:
                    break
            else:
                raise AssertionError("".join(said))
            threading.Thread(target=server.stderr.read, daemon=True).start()
            with PostgresStore.from_conn_string(f"host={place} user=kgent dbname=postgres") as store:
                store.setup()
                yield store
        finally:
            server.terminate()
            server.wait(20)
            if server.stderr is not None:
                server.stderr.close()


@pytest.mark.parametrize(
    "opened",
    [in_memory, pytest.param(sqlite), pytest.param(postgres, marks=pytest.mark.slow)],
    ids=lambda f: f.__name__,
)
def test_a_real_store_remembers(opened: Open, tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        client = LangGraphMemoryClient(store, ("agents", "notes"))
        assert isinstance(client, MemoryClient)
        config = {"memory": {"write_mode": "external", "timeout_s": 20}}
        with Box(tmp_path, config, memory=client) as box:
            for content, scope in (
                ("green tea", "team/v1.2"),
                ("black tea", "team/v1.2"),
                ("green tea", "team"),
                ("green tea", "team/v1.2/deep"),
                ("green tea", "team/v1%2E2"),
                ("green tea", "teams"),
                ("绿茶; DROP TABLE store; %_'\"", "default"),
            ):
                assert box.ok("write_memory", content=content, scope=scope, tags=["t"]).data["status"] == "written"  # type: ignore[index]
            found = box.ok("recall_memory", query="GREEN tea", scope="team/v1.2").data["items"]  # type: ignore[index]
            assert [(i["content"], i["scope"], i["score"]) for i in found] == [
                ("green tea", "team/v1.2", 1.0),
                ("black tea", "team/v1.2", 0.5),
            ]
            assert found[0]["metadata"]["tags"] == ["t"]
            newest = box.ok("recall_memory", query="", scope="team/v1.2", limit=1).data["items"]  # type: ignore[index]
            assert [i["content"] for i in newest] == ["black tea"]
            assert box.ok("recall_memory", query="coffee", scope="team").data["items"] == []  # type: ignore[index]
            odd = box.ok("recall_memory", query="绿茶").data["items"]  # type: ignore[index]
            assert [i["content"] for i in odd] == ["绿茶; DROP TABLE store; %_'\""]
            for scope in ("team", "teams", "team/v1%2E2"):
                assert len(box.ok("recall_memory", query="tea", scope=scope).data["items"]) == 1  # type: ignore[index]
        again = LangGraphMemoryClient(store, ("agents", "notes"))
        assert len(again.recall_memory("tea", "team/v1.2", 10)) == 2
        assert LangGraphMemoryClient(store, ("agents", "other")).recall_memory("tea", "team", 10) == []


def test_a_store_with_an_index_recalls_by_meaning(tmp_path: Path) -> None:
    def embed(texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, 0.0] if "cat" in text or "feline" in text else [0.0, 1.0] for text in texts]

    index: IndexConfig = {"dims": 2, "embed": embed, "fields": ["content"]}
    store = InMemoryStore(index=index)
    client = LangGraphMemoryClient(store)
    client.write_memory("my cat sleeps", "s")
    client.write_memory("the car drives", "s")
    client.write_memory("a cat elsewhere", "s/deep")
    best, other = client.recall_memory("feline", "s", 2)
    assert (best.content, other.content) == ("my cat sleeps", "the car drives")
    assert best.score is not None
    assert other.score is not None
    assert best.score > other.score


def test_a_closed_store_is_unavailable_and_the_run_goes_on(tmp_path: Path) -> None:
    with sqlite(tmp_path) as store:
        pass
    with Box(tmp_path, {"memory": {"write_mode": "external"}}, memory=LangGraphMemoryClient(store)) as box:
        assert box.code("write_memory", content="x") == "memory_unavailable"
        assert box.code("recall_memory", query="x") == "memory_unavailable"
        assert "closed" in box.errors[-1]["cause"]
