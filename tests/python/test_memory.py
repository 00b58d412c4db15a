"""Memory: candidates, external clients of every kind, what the policy says, and what a call leaves on record."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import Box, Ran, all_log_bytes, in_child, memory_kib, reset_peak, text_of

from kgent_tools import (
    CallContext,
    CandidateMemoryClient,
    ConfigError,
    ErrorInfo,
    MemoryClient,
    MemoryItem,
    MemoryWriteResult,
    NoopMemoryClient,
    PermissionRule,
    RegistrationError,
    RunContext,
    ToolDefinition,
    ToolFailure,
    ToolRegistry,
    ToolResult,
    ToolsConfig,
    build_toolsets,
)

EXTERNAL = {"memory": {"write_mode": "external", "timeout_s": 0.5}}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        yield made


def candidates(box: Box) -> list[dict[str, Any]]:
    lines = (box.run_dir / "archive/candidate-memory.jsonl").read_bytes().split(b"\n")
    assert lines.pop() == b""
    return [json.loads(line) for line in lines]


def items(box: Box, query: str = "", **named: Any) -> list[dict[str, Any]]:
    data = box.ok("recall_memory", query=query, **named).data
    assert data is not None
    return data["items"]


class Store:
    """A client that works, and remembers what it was asked."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str, list[str]]] = []
        self.asked: list[tuple[str, str, int]] = []

    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:
        self.asked.append((query, scope, limit))
        return [
            MemoryItem(str(n), w[0], w[1], 0.5, {"tags": w[2]}) for n, w in enumerate(self.written) if w[1] == scope
        ]

    def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:
        self.written.append((content, scope, tags))
        return MemoryWriteResult("written", str(len(self.written) - 1))


class AsyncStore(Store):
    """The same, on one event loop."""

    loops: set[int]

    async def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:  # type: ignore[override]
        await asyncio.sleep(0)
        self.loops = getattr(self, "loops", set()) | {id(asyncio.get_running_loop())}
        return super().recall_memory(query, scope, limit)

    async def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().write_memory(content, scope, tags)


class Answers(Store):
    """A client whose recall and write do whatever they are told."""

    def __init__(self, recall: Callable[[], Any], write: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.recall, self.write = recall, write or recall

    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:
        self.asked.append((query, scope, limit))
        return self.recall()

    def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:
        self.written.append((content, scope, tags))
        return self.write()


def write_result(*values: Any) -> Any:
    """One whose types the contract forbids."""
    return MemoryWriteResult(*values)


# The promises that the design names


def test_memory_write_disabled_returns_blocked(tmp_path: Path) -> None:
    with Box(tmp_path, {"memory": {"write_mode": "disabled"}}) as box:
        assert "write_memory" not in box.tools
        assert "recall_memory" in box.tools
        assert box.policy.memory_write is False
        snapshot = ToolRegistry(box.context).materialize(box.policy)
        result = snapshot.call("write_memory", {"content": "x"})
        assert result.error is not None
        assert (result.error.code, result.error.status) == ("denied", "blocked")
        assert box.check_record("write_memory", result)["permission"]["rule"] == "config: deny memory_write *"
        lenient = ToolsConfig.from_dict({"permissions": {"memory_write": "allow"}})
        policy = type(box.policy).merge(config=lenient, context=box.context)
        tool = next(t for t in build_toolsets(box.context, policy=policy) if t.name == "write_memory")
        assert tool.handler({"content": "x"}, box.context).error.code == "denied"  # type: ignore[union-attr]
        assert list((box.run_dir / "archive").iterdir()) == []


def test_memory_candidate_mode_writes_archive_file(box: Box) -> None:
    result = box.ok("write_memory", content="The user likes tea.", scope="user/taste", tags=["drink"])
    (line,) = candidates(box)
    assert result.data == {"status": "candidate", "id": line["id"]}
    assert line == {
        "id": line["id"],
        "status": "candidate",
        "content": "The user likes tea.",
        "scope": "user/taste",
        "tags": ["drink"],
        "time": line["time"],
        "run": box.context.run_id,
        "call": box.records[-1]["id"],
        "hash": line["hash"],
    }
    assert (box.run_dir / "archive/candidate-memory.jsonl").stat().st_mode & 0o777 == 0o600
    event = next(e for e in box.events if e["type"] == "memory.candidate_written")
    assert event["data"] == {"memory_id": line["id"], "scope": "user/taste", "hash": line["hash"]}
    assert b"likes tea" not in all_log_bytes(box.run_dir)
    assert "It is a candidate" in text_of(result)


def test_candidate_memory_file_is_generated_when_memory_tool_writes(tmp_path: Path) -> None:
    with Box(tmp_path) as box:
        assert not (box.run_dir / "archive/candidate-memory.jsonl").exists()
        box.ok("write_memory", content="x")
    assert [(c["content"], c["scope"], c["tags"]) for c in candidates(box)] == [("x", "default", [])]


# Candidates


def test_recall_finds_words_best_and_newest_first_in_one_scope(box: Box) -> None:
    for content, scope in (("green tea", "a"), ("black tea", "a"), ("green grass", "a"), ("green tea", "b")):
        box.ok("write_memory", content=content, scope=scope)
    assert [i["content"] for i in items(box, "GREEN tea", scope="a")] == ["green tea", "green grass", "black tea"]
    assert [i["content"] for i in items(box, "", scope="a", limit=2)] == ["green grass", "black tea"]
    assert [i["score"] for i in items(box, "green tea", scope="a")] == [1.0, 0.5, 0.5]
    assert items(box, "tea") == []
    box.ok("write_memory", content="用户喜欢绿茶", tags=["偏好"])
    assert [i["content"] for i in items(box, "绿茶")] == ["用户喜欢绿茶"]
    assert [i["content"] for i in items(box, "偏好")] == ["用户喜欢绿茶"]


def test_recalled_candidates_are_marked_unreviewed(box: Box) -> None:
    box.ok("write_memory", content="line one\nline two")
    result = box.ok("recall_memory", query="line")
    (item,) = items(box, "line")
    assert (item["metadata"]["reviewed"], item["metadata"]["status"]) == (False, "candidate")
    assert text_of(result) == f"1. {item['id']} (unreviewed):\n   line one\n   line two\n"


def test_one_bad_line_disables_nothing(box: Box) -> None:
    file = box.run_dir / "archive/candidate-memory.jsonl"
    for number in range(3):
        box.ok("write_memory", content=f"good {number}")
    first, second, third = file.read_bytes().splitlines()
    lie = third.replace(b"good 2", b"evil 2")
    bad = [
        b'{"text":',
        b"null",
        b"[]",
        b'{"text":5}',
        b'{"type":"unknown"}',
        b"",
        b"x" * 5_000_000,
        b"\xff",
        second,
        lie,
        third.replace(b'"candidate"', b'"accepted"'),
        b"[" * 100_000,
    ]
    data = b"\n".join([b"\xef\xbb\xbf" + first + b"\r", second + b"\r", *bad, third]) + b"\n"
    file.write_bytes(data)
    assert sorted(i["content"] for i in items(box, "good")) == ["good 0", "good 1", "good 2"]
    text = text_of(box.ok("recall_memory", query="good"))
    numbers = [int(part.split(" ")[0]) for part in text.split("[Line ")[1:]]
    assert numbers == list(range(3, 13))
    assert "[2 more lines of candidate-memory.jsonl were passed over.]" in text
    assert "evil" not in text
    box.ok("write_memory", content="good 3")
    assert file.read_bytes().startswith(data)
    assert len(items(box, "good")) == 4


def test_a_torn_line_is_closed_off_by_the_next_write(box: Box) -> None:
    box.ok("write_memory", content="whole")
    file = box.run_dir / "archive/candidate-memory.jsonl"
    with file.open("ab") as out:
        out.write(b'{"id":"m00","content":"ha')
    assert [i["content"] for i in items(box)] == ["whole"]
    box.ok("write_memory", content="after")
    assert [i["content"] for i in items(box)] == ["after", "whole"]
    assert "[Line 2 of candidate-memory.jsonl was passed over: it is not JSON.]" in box.text("recall_memory", query="")


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "hard"])
def test_a_candidate_file_that_is_no_file_of_its_own_is_refused(box: Box, kind: str) -> None:
    file = box.run_dir / "archive/candidate-memory.jsonl"
    other = box.outside / "other"
    other.write_bytes(b"")
    make: dict[str, Callable[[], object]] = {
        "link": lambda: file.symlink_to(other),
        "fifo": lambda: os.mkfifo(file),
        "folder": file.mkdir,
        "hard": lambda: os.link(other, file),
    }
    make[kind]()
    assert box.code("write_memory", content="x") == "memory_unavailable"
    if kind != "hard":
        assert box.code("recall_memory", query="x") == "memory_unavailable"
    assert other.read_bytes() == b""


def test_the_archive_is_out_of_every_tool_s_reach(tmp_path: Path) -> None:
    with Box(tmp_path, workspace=".") as box:
        box.ok("write_memory", content="x")
        for path in (f"runs/{box.context.run_id}/archive/candidate-memory.jsonl", "archive/candidate-memory.jsonl"):
            assert box.code("read_file", path=path) == "not_found"


@pytest.mark.slow
def test_two_processes_of_ten_threads_write_two_hundred_candidates_each(tmp_path: Path) -> None:
    with Box(tmp_path) as box:
        (tmp_path / "spelling").symlink_to(box.runs)

        def write(context: RunContext, who: str) -> None:
            tool = next(t for t in build_toolsets(context) if t.name == "write_memory").handler

            def many(thread: int) -> None:
                for number in range(200):
                    result = tool({"content": f"{who} {thread} {number} " + "é" * 50}, context)
                    assert result.ok, result

            with ThreadPoolExecutor(10) as pool:
                list(pool.map(many, range(10)))

        def elsewhere() -> None:
            with RunContext.open(tmp_path / "spelling", box.context.run_id, workspace=box.ws) as context:
                write(context, "child")

        done = threading.Event()
        recalls: list[int] = []

        def recall() -> None:
            tool = box.tools["recall_memory"].handler
            while not done.is_set():
                result = tool({"query": "child 3", "limit": 100}, box.context)
                assert result.ok, result
                assert "passed over" not in text_of(result)
                recalls.append(len(result.data["items"]))  # type: ignore[index]

        start = time.perf_counter()
        with ThreadPoolExecutor(3) as pool:
            reader = pool.submit(recall)
            child = pool.submit(in_child, elsewhere, seconds=50)
            write(box.context, "parent")
            child.result()
            done.set()
            reader.result()
        print(f"{time.perf_counter() - start:.2f} s, {len(recalls)} recalls meanwhile")
        lines = candidates(box)
        assert len({line["id"] for line in lines}) == len(lines) == 4000
        assert len({line["content"] for line in lines}) == 4000
        assert len(recalls) > 3


# Arguments and the policy


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"content": ""},
        {"content": "  \n"},
        {"content": "x" * 65537},
        {"content": "a\0b"},
        {"content": "x", "scope": ""},
        {"content": "x", "scope": "a/../b"},
        {"content": "x", "scope": "/a"},
        {"content": "x", "scope": "x" * 257},
        {"content": "x", "tags": ["t"] * 33},
        {"content": "x", "tags": ["t" * 129]},
        {"content": "x", "tags": [1]},
        {"content": "x", "dry_run": True},
        {"content": 5},
    ],
)
def test_bad_writes_are_refused_and_leave_nothing(box: Box, args: dict[str, Any]) -> None:
    assert box.code("write_memory", args) == "invalid_args"
    assert not (box.run_dir / "archive/candidate-memory.jsonl").exists()


@pytest.mark.parametrize("args", [{}, {"query": "x", "limit": 0}, {"query": "x", "limit": 101}, {"query": "x" * 4097}])
def test_bad_recalls_are_refused(box: Box, args: dict[str, Any]) -> None:
    assert box.code("recall_memory", args) == "invalid_args"


def test_scopes_are_governed_by_the_policy(tmp_path: Path) -> None:
    rules = [
        {"action": "write_memory", "resource": "team/**", "effect": "deny"},
        {"action": "recall_memory", "resource": "private", "effect": "deny"},
        {"action": "write_memory", "resource": "ask", "effect": "ask"},
    ]
    with Box(tmp_path, {"permissions": {"rules": rules}}) as box:
        box.ok("write_memory", content="x")
        assert box.code("write_memory", content="x", scope="team/style") == "denied"
        assert box.code("write_memory", content="x", scope="team") == "denied"
        permission = box.records[-1]["permission"]
        assert (permission["action"], permission["resource"], permission["layer"]) == ("write_memory", "team", "config")
        assert box.code("write_memory", content="x", scope="ask") == "approval_required"
        assert box.code("recall_memory", query="x", scope="private") == "denied"
        box.ok("recall_memory", query="x", scope="team/style")
        assert len(candidates(box)) == 1
    runtime = [PermissionRule("memory_write", "*", "deny")]
    (tmp_path / "b").mkdir()
    with Box(tmp_path / "b", runtime=runtime) as box:
        assert "write_memory" not in box.tools


def test_a_handler_uses_memory_under_the_call_s_permissions(tmp_path: Path) -> None:
    rules = [{"action": "write_memory", "resource": "team", "effect": "deny"}]
    with Box(tmp_path, {"permissions": {"rules": rules}}) as box:
        kept: list[CallContext] = []

        def handler(args: Any, context: CallContext) -> ToolResult:
            kept.append(context)
            written = context.memory.write_memory("note", args["scope"], ["t"])
            found = context.memory.recall_memory("note", args["scope"])
            assert [(i.id, i.content, i.scope) for i in found] == [(written.id, "note", args["scope"])]
            assert isinstance(context.memory, MemoryClient)
            return ToolResult(True, f"{written.status} {len(found)}")

        tool = ToolDefinition(description="d", input_schema={"type": "object"}, handler=handler)
        with ToolRegistry(box.context).register({"note": tool}):
            snapshot = ToolRegistry(box.context).materialize(box.policy)
            assert snapshot.call("note", {"scope": "s"}).summary == "candidate 1"
            assert "memory.candidate_written" in [e["type"] for e in box.events]
            denied = snapshot.call("note", {"scope": "team"})
            assert denied.error is not None
            assert denied.error.code == "denied"
        with pytest.raises(ToolFailure, match="has ended"):
            kept[0].memory.write_memory("late", "s")
        assert len(candidates(box)) == 1


# Clients


@pytest.mark.parametrize("make", [Store, AsyncStore])
def test_an_external_client_is_asked(tmp_path: Path, make: Callable[[], Store]) -> None:
    store = make()
    with Box(tmp_path, EXTERNAL, memory=store) as box:
        result = box.ok("write_memory", content="fact", scope="s", tags=["t"])
        assert result.data == {"status": "written", "id": "0"}
        assert store.written == [("fact", "s", ["t"])]
        event = next(e for e in box.events if e["type"] == "memory.written")
        assert event["data"] == {"memory_id": "0", "scope": "s", "status": "written"}
        assert items(box, "q", scope="s", limit=7) == [
            {"id": "0", "content": "fact", "scope": "s", "score": 0.5, "metadata": {"tags": ["t"]}}
        ]
        items(box, "q")
        assert store.asked == [("q", "s", 7), ("q", "default", 10)]
        if isinstance(store, AsyncStore):
            assert len(store.loops) == 1
        assert not (box.run_dir / "archive/candidate-memory.jsonl").exists()


def test_in_candidate_mode_a_client_is_read_and_not_written(tmp_path: Path) -> None:
    store = Store()
    with Box(tmp_path, memory=store) as box:
        box.ok("write_memory", content="fact")
        assert items(box, "fact") == []
        assert (len(store.asked), store.written, len(candidates(box))) == (1, [], 1)


def test_clients_that_need_no_store(tmp_path: Path, box: Box) -> None:
    noop, own = NoopMemoryClient(), CandidateMemoryClient(box.context)
    assert isinstance(noop, MemoryClient)
    assert isinstance(own, MemoryClient)
    assert (noop.recall_memory("q"), noop.write_memory("c")) == ([], MemoryWriteResult("discarded"))
    written = own.write_memory("tea", "s", ["t"])
    assert [(i.id, i.content) for i in own.recall_memory("tea", "s", 3)] == [(written.id, "tea")]
    assert candidates(box)[0]["call"] is None
    with pytest.raises(ToolFailure, match="scope"):
        own.write_memory("tea", "../s")


def test_external_without_a_client_is_the_host_s_to_mend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"memory\.client"):
        Box(tmp_path, EXTERNAL)
    with pytest.raises(RegistrationError, match="`recall_memory`"):
        build_toolsets(RunContext.create(tmp_path / "r2"), memory=object())  # type: ignore[arg-type]


def test_a_client_named_by_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    config = {"memory": {**EXTERNAL["memory"], "client": "test_memory:Store"}}
    with Box(tmp_path, config) as box:
        box.ok("write_memory", content="fact", scope="s")
        assert [i["content"] for i in items(box, "q", scope="s")] == ["fact"]
    for number, named in enumerate(
        ("no_such_module:f", "test_memory:missing", "test_memory:candidates", "builtins:dict")
    ):
        with pytest.raises(ConfigError, match=f"memory.client: '{named}'"):
            build_toolsets(RunContext.create(tmp_path / f"r{number}", config={"memory": {"client": named}}))


def test_a_client_that_raises_is_unavailable_and_only_recalls_are_repeated(tmp_path: Path) -> None:
    def fail() -> Any:
        raise OSError(f"{tmp_path}/ws is gone; password=hunter2")

    store = Answers(fail)
    with Box(tmp_path, EXTERNAL, memory=store) as box:
        for tool, args in (("recall_memory", {"query": "q"}), ("write_memory", {"content": "c"})):
            result = box.call(tool, args)
            assert result.error is not None
            assert result.error.code == "memory_unavailable"
            assert result.error.message.startswith("the memory client `Answers` failed")
            assert "gone" not in text_of(result)
            assert box.errors[-1]["cause"].startswith("OSError: <workspace> is gone")
        assert (len(store.asked), len(store.written)) == (3, 1)
        assert b"hunter2" not in all_log_bytes(box.run_dir)
    flaky = iter([OSError(), OSError(), None])

    def sometimes() -> list[MemoryItem]:
        error = next(flaky)
        if error:
            raise error
        return [MemoryItem("1", "back", "default")]

    (tmp_path / "b").mkdir()
    with Box(tmp_path / "b", EXTERNAL, memory=Answers(sometimes)) as box:
        assert [i["content"] for i in items(box, "q")] == ["back"]


@pytest.mark.parametrize(
    "junk",
    [
        None,
        "text",
        {},
        (),
        [1],
        [None],
        [{"id": "1", "content": "c"}],
        [MemoryItem(1, "c", "s")],  # type: ignore[arg-type]
        [MemoryItem("1", b"c", "s")],  # type: ignore[arg-type]
        [MemoryItem("1", "c", "s", "high")],  # type: ignore[arg-type]
        [MemoryItem("1", "c", "s", None, {"a": object()})],
        [MemoryItem("1", "c", "s", None, [])],  # type: ignore[arg-type]
    ],
)
def test_junk_is_unavailable(tmp_path: Path, junk: Any) -> None:
    with Box(tmp_path, EXTERNAL, memory=Answers(lambda: junk)) as box:
        result = box.call("recall_memory", query="q")
        assert result.error is not None
        assert result.error.code == "memory_unavailable"
        assert "the memory client `Answers` answered with" in result.error.message


@pytest.mark.parametrize("junk", [None, "written", {"status": "written"}, write_result(5), write_result("w", 5)])  # type: ignore[arg-type]
def test_junk_for_a_write_is_unavailable_and_may_have_been_stored(tmp_path: Path, junk: Any) -> None:
    with Box(tmp_path, EXTERNAL, memory=Answers(lambda: junk)) as box:
        result = box.call("write_memory", content="c")
        assert result.error is not None
        assert result.error.code == "memory_unavailable"
        assert result.error.message.endswith("; what was to be written may have been stored or not")
        assert "memory.written" not in [e["type"] for e in box.events]


def test_a_client_s_own_refusal_is_the_call_s(tmp_path: Path) -> None:
    refusal = MemoryWriteResult("refused", None, ErrorInfo("too_large", "the store is full", "Write less."))
    with Box(tmp_path, EXTERNAL, memory=Answers(lambda: refusal)) as box:
        result = box.call("write_memory", content="c")
        assert result.error is not None
        assert (result.error.code, result.error.message) == ("too_large", "the store is full")


def test_odd_but_whole_answers_are_taken(tmp_path: Path) -> None:
    odd = [
        MemoryItem("\ud800", "a\ud800b", "s", float("nan")),
        MemoryItem("i" * 1000, "", "s", 1, {"k": "v" * 100_000}),
    ]
    with Box(tmp_path, EXTERNAL, memory=Answers(lambda: odd)) as box:
        first, second = items(box, "q")
        assert (first["score"], second["score"], second["metadata"]) == (None, 1.0, {"truncated": True})
        assert first["content"].startswith("a")
        assert len(second["id"]) == 256


@pytest.mark.slow
def test_a_gigabyte_is_cut_without_being_copied(tmp_path: Path) -> None:
    huge = "x" * (1 << 30)

    def raise_it() -> Any:
        raise ValueError(huge)

    kinds: dict[str, Callable[[], Any]] = {
        "content": lambda: [MemoryItem("1", huge, "s")],
        "metadata": lambda: [MemoryItem("1", "c", "s", None, {"k": [huge]})],
        "many": lambda: [MemoryItem("1", "c" * 1000, "s")] * 10_000_000,
        "id": lambda: [MemoryItem(huge, "c", "s")],
        "raised": raise_it,
    }
    for name, answer in kinds.items():
        (tmp_path / name).mkdir()
        with Box(
            tmp_path / name, {"memory": {"write_mode": "external", "timeout_s": 20}}, memory=Answers(answer)
        ) as box:
            reset_peak()
            before = memory_kib("VmRSS")
            result = box.call("recall_memory", query="q")
            grown = memory_kib("VmHWM") - before
            assert grown < 150_000, (name, grown)
            assert len(text_of(result)) <= 51200
            assert (result.error is None) == (name != "raised")


def test_a_client_that_hangs_is_abandoned_counted_and_capped(tmp_path: Path) -> None:
    release = threading.Event()

    def hang() -> Any:
        release.wait(30)
        return [MemoryItem("late", "late", "default")]

    store = Answers(hang)
    with Box(tmp_path, {"memory": {"write_mode": "external", "timeout_s": 0.05}}, memory=store) as box:
        start = time.perf_counter()
        for number in range(8):
            result = box.call("recall_memory", query=str(number))
            assert result.error is not None
            assert result.error.message == "the memory client `Answers` did not answer within 50ms"
        assert time.perf_counter() - start < 5
        capped = box.call("write_memory", content="c")
        assert capped.error is not None
        assert "8 calls of it still hang" in capped.error.message
        assert (len(store.asked), store.written) == (8, [])
        box.put("f", "other tools work\n")
        assert box.read("f") == "other tools work\n"
        release.set()
        for _ in range(100):
            if box.call("recall_memory", query="q").ok:
                break
            time.sleep(0.02)
        box.ok("recall_memory", query="q")
        assert len(box.records) == len({r["id"] for r in box.records})


def test_an_async_client_that_hangs_is_cancelled(tmp_path: Path) -> None:
    ended: list[str] = []

    class Hangs(AsyncStore):
        async def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:  # type: ignore[override]
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                ended.append(query)
                raise
            return []

    with Box(tmp_path, {"memory": {"write_mode": "external", "timeout_s": 0.05}}, memory=Hangs()) as box:
        for number in range(10):
            assert box.code("recall_memory", query=str(number)) == "memory_unavailable"
            box.ok("write_memory", content="the same client goes on")
    assert len(ended) >= 9


def test_one_slow_client_blocks_no_other_call(tmp_path: Path) -> None:
    release = threading.Event()

    def slow() -> Any:
        release.wait(20)
        return []

    with Box(tmp_path, {"memory": {"write_mode": "external", "timeout_s": 20}}, memory=Answers(slow)) as box:
        box.put("f", "x\n")
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(box.tools["recall_memory"].handler, {"query": "q"}, box.context) for _ in range(4)]
            start = time.perf_counter()
            for _ in range(50):
                assert box.tools["read_file"].handler({"path": "f"}, box.context).ok
            assert time.perf_counter() - start < 2
            release.set()
            assert all(future.result().ok for future in waiting)


def test_a_cancelled_call_leaves_the_client_behind(tmp_path: Path) -> None:
    release, begun = threading.Event(), threading.Event()

    def hang() -> Any:
        begun.set()
        release.wait(20)
        return []

    with Box(tmp_path, {"memory": {"write_mode": "external", "timeout_s": 20}}, memory=Answers(hang)) as box:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(box.tools["recall_memory"].handler, {"query": "q"}, box.context)
            assert begun.wait(10)
            start = time.perf_counter()
            box.context.cancel()
            result = future.result(5)
            assert time.perf_counter() - start < 1
        assert result.error is not None
        assert result.error.code == "cancelled"
        box.check_record("recall_memory", result)
        release.set()


def test_the_call_s_own_time_ends_it(tmp_path: Path) -> None:
    def slow() -> Any:
        time.sleep(0.5)
        return []

    config = {"memory": {"write_mode": "external", "timeout_s": 20}, "limits": {"timeout_s": 0.1}}
    with Box(tmp_path, config, memory=Answers(slow)) as box:
        assert box.code("recall_memory", query="q") == "timeout"


def test_a_client_works_after_a_fork(tmp_path: Path) -> None:
    for number, make in enumerate((Store, AsyncStore)):
        (tmp_path / str(number)).mkdir()
        with Box(tmp_path / str(number), EXTERNAL, memory=make()) as box:
            box.ok("write_memory", content="before")

            def work(box: Box = box) -> None:
                assert box.tools["recall_memory"].handler({"query": "q"}, box.context).ok

            in_child(work)


def test_a_hanging_client_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    code = f"""
import time
from kgent_tools import *
class Hangs:
    def recall_memory(self, query, scope, limit): time.sleep(60)
    def write_memory(self, content, scope, tags): time.sleep(60)
config = {{"memory": {{"write_mode": "external", "timeout_s": 0.1}}}}
with RunContext.create({str(tmp_path / "runs")!r}, config=config) as context:
    tools = {{t.name: t.handler for t in build_toolsets(context, memory=Hangs())}}
    print(tools["recall_memory"]({{"query": "q"}}, context).error.code)
"""
    start = time.perf_counter()
    assert Ran(code).out == "memory_unavailable\n"
    assert time.perf_counter() - start < 20
