"""Tools of MCP servers and of other toolsets: offered under our names, and governed by our policy."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, BinaryContent, FunctionToolset, ModelRetry, RunContext, ToolFailed, ToolReturn
from pydantic_ai.models.test import TestModel
from support import Box, text_of

from kgent_tools import (
    FileContent,
    PermissionRule,
    RegistrationError,
    ToolRegistry,
    ToolResult,
    ToolSnapshot,
)
from kgent_tools._core import built_in_names
from kgent_tools.pydantic_adapter import KgentToolset, register_toolset

ALLOWED = [PermissionRule("*", "*", "allow")]
SERVER = "@modelcontextprotocol/server-filesystem@2026.8.31"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, runtime=ALLOWED) as made:
        yield made


def toolset() -> FunctionToolset[Any]:
    made = FunctionToolset[Any](id="shop")

    @made.tool_plain
    def price(item: str, count: int = 1) -> dict[str, int]:
        """What an item costs."""
        return {"total": len(item) * count}

    @made.tool
    async def who(ctx: RunContext[Any]) -> str:
        return f"call {ctx.tool_call_id}"

    @made.tool_plain
    def picture() -> Any:
        return ["look", BinaryContent(b"\x89PNG", media_type="image/png")]

    @made.tool_plain
    def both() -> Any:
        return ToolReturn("short", content=["long", BinaryContent(b"GIF8", media_type="image/gif")])

    @made.tool_plain
    def fails(how: str) -> str:
        raise {"retry": ModelRetry("mend it"), "fail": ToolFailed("no"), "break": ValueError("CAUSE")}[how]

    made.add_function(lambda path="": "not the built-in one", name="read_file")
    return made


def names(snapshot: ToolSnapshot) -> set[str]:
    return {str(tool.name) for tool in snapshot.definitions} - set(built_in_names())


def test_a_toolset_s_tools_are_governed(box: Box) -> None:
    session = ToolRegistry(box.context).session("chat")

    async def main() -> list[ToolResult]:
        registered = await register_toolset(session, toolset())
        assert registered.names["read_file"] == "shop_read_file"
        snapshot = session.materialize(box.policy)
        assert names(snapshot) == {"price", "who", "picture", "both", "fails", "shop_read_file"}
        assert names(ToolRegistry(box.context).materialize(box.policy)) == set()
        calls: list[tuple[str, Any]] = [
            ("price", {"item": "tea", "count": "2"}),
            ("who", {}),
            ("picture", {}),
            ("both", {}),
            ("shop_read_file", {}),
            ("price", {}),
            ("fails", {"how": "retry"}),
            ("fails", {"how": "fail"}),
            ("fails", {"how": "break"}),
        ]
        results = [await snapshot.acall(name, args, f"c{n}") for n, (name, args) in enumerate(calls)]
        registered.close()
        assert names(session.materialize(box.policy)) == set()
        return results

    results = asyncio.run(main())
    assert [r.error and r.error.code for r in results] == [None] * 5 + ["invalid_args", "failed", "failed", "internal"]
    assert (results[0].data, results[0].summary) == ({"total": 6}, '{"total": 6}')
    assert [text_of(r) for r in results[1:5]] == ["call c1", "look", "shortlong", "not the built-in one"]
    assert results[2].data == {"result": ["look", "[image/png, 4 bytes]"]}
    assert [p.data for r in results[2:4] for p in r.content if isinstance(p, FileContent)] == [b"\x89PNG", b"GIF8"]
    assert {(r["scope"], r["provider"]) for r in box.records} == {("session", "toolset shop")}
    assert "CAUSE" not in "".join(text_of(r) for r in results)


def test_they_ask_unless_a_rule_allows_them(tmp_path: Path) -> None:
    with Box(tmp_path, runtime=[PermissionRule("price", "*", "allow"), PermissionRule("who", "*", "deny")]) as box:
        session = ToolRegistry(box.context).session("chat")

        async def main() -> list[str | None]:
            await register_toolset(session, toolset())
            snapshot = session.materialize(box.policy)
            calls: list[tuple[str, Any]] = [("price", {"item": "x"}), ("who", {}), ("picture", {})]
            results = [await snapshot.acall(name, args) for name, args in calls]
            return [r.error and r.error.code for r in results]

        assert asyncio.run(main()) == [None, "denied", "approval_required"]


def test_a_refreshed_list_replaces_its_own_at_its_place(box: Box) -> None:
    session = ToolRegistry(box.context).session("chat")

    async def main() -> None:
        shop = toolset()
        registered = await register_toolset(session, shop)
        host = session.register({"who": next(iter(session.materialize().definitions))})
        before = session.materialize(box.policy)
        shop.tools.pop("picture")
        shop.tools.pop("both")
        shop.add_function(lambda n=0: "new", name="both")
        shop.add_function(lambda: "x", name="odd name!")
        shop.add_function(lambda: "y", name="odd_name_")
        shop.add_function(lambda: "z", name="9lives")
        await asyncio.gather(registered.refresh(), registered.refresh())
        after = session.materialize(box.policy)
        expected = {"price", "who", "both", "fails", "shop_read_file", "odd_name_", "shop_odd_name_", "t_9lives"}
        assert names(after) == expected
        assert next(t for t in after.definitions if t.name == "who").description != "who", "the host still covers"
        stale = [(await before.acall(name, {"item": "a"})).error for name in ("price", "picture", "both")]
        assert [error and error.code for error in stale] == [None, "stale_tool", "stale_tool"]
        host.close()
        assert (await session.materialize(box.policy).acall("who", {}, "c")).summary == "call c"

    asyncio.run(main())


def test_a_tool_that_cannot_be_registered_leaves_the_others(box: Box) -> None:
    session = ToolRegistry(box.context).session("chat")

    async def main() -> None:
        shop = toolset()
        tool = shop.tools["price"]
        tool.function_schema.json_schema = {"type": "object", "$ref": "https://example.com/schema"}
        registered = await register_toolset(session, shop)
        assert list(registered.refused) == ["price"]
        assert "price" not in names(session.materialize(box.policy))
        assert "who" in names(session.materialize(box.policy))

    asyncio.run(main())


def test_an_agent_uses_them(box: Box) -> None:
    session = ToolRegistry(box.context).session("chat")

    async def main() -> None:
        await register_toolset(session, toolset())
        tools = [t for t in session.materialize(box.policy).definitions if t.name == "price"]
        agent = Agent(TestModel(), name="buyer", toolsets=[KgentToolset(tools, box.context)])
        await agent.run("Buy.")

    asyncio.run(main())
    assert [(r["tool"], r["agent"], r["status"]) for r in box.records] == [("price", "buyer", "completed")]


def test_the_session_s_registry_must_be_open(box: Box) -> None:
    session = ToolRegistry(box.context).session("chat")

    async def main() -> None:
        registered = await register_toolset(session, toolset())
        registered.close()
        with pytest.raises(RegistrationError, match="closed"):
            await registered.refresh()

    asyncio.run(main())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference filesystem server of the MCP project, from the npm registry."""
    pytest.importorskip("pydantic_ai.mcp", reason="Pydantic AI's extra `mcp` is not installed", exc_type=ImportError)
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("server")
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), SERVER]
    try:
        done = subprocess.run(command, capture_output=True, timeout=50, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{SERVER} did not arrive within 50 s")
    if done.returncode != 0:
        pytest.skip(f"{SERVER} cannot be installed: {done.stderr.decode(errors='replace')[-300:]}")
    return folder / "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("default")
def test_the_reference_filesystem_server(server: Path, tmp_path: Path) -> None:
    """Its tools appear, are permission-checked, bounded and recorded; two calls share one session."""
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai.mcp import MCPToolset

    files = tmp_path / "served"
    files.mkdir()
    (files / "a.txt").write_text("from the server\n", encoding="utf-8")
    (files / "long.txt").write_text("line\n" * 20_000, encoding="utf-8")
    rules = [PermissionRule(name, "*", "allow") for name in ("read_text_file", "list_directory")]
    with Box(tmp_path, runtime=rules) as box:
        session = ToolRegistry(box.context).session("chat")

        async def main() -> dict[str, ToolResult]:
            client = StdioTransport("node", [str(server), str(files)])
            async with MCPToolset(client, id="files") as toolset:
                registered = await register_toolset(session, toolset)
                assert registered.refused == {}
                assert registered.names["write_file"] == "files_write_file", "a built-in tool is not covered"
                snapshot = session.materialize(box.policy)
                assert set(registered.names.values()) <= names(snapshot)
                results = {
                    "read": await snapshot.acall("read_text_file", {"path": str(files / "a.txt")}),
                    "list": await snapshot.acall("list_directory", {"path": str(files)}),
                    "long": await snapshot.acall("read_text_file", {"path": str(files / "long.txt")}),
                    "outside": await snapshot.acall("read_text_file", {"path": "/etc/passwd"}),
                    "wrong": await snapshot.acall("read_text_file", {}),
                    "write": await snapshot.acall("files_write_file", {"path": str(files / "w"), "content": "x"}),
                }
                both = await asyncio.gather(
                    *(snapshot.acall("read_text_file", {"path": str(files / "a.txt")}) for _ in range(10))
                )
                assert all("from the server" in text_of(result) for result in both)
                return results

        results = asyncio.run(main())
        assert {name: r.error and r.error.code for name, r in results.items()} == {
            "read": None,
            "list": None,
            "long": None,
            "outside": "failed",
            "wrong": "invalid_args",
            "write": "approval_required",
        }
        assert "from the server" in text_of(results["read"])
        assert "a.txt" in text_of(results["list"])
        assert len(text_of(results["long"]).encode()) <= 51_200
        assert results["long"].artifacts != []
        assert not (files / "w").exists()
        assert {(r["scope"], r["provider"]) for r in box.records} == {("session", "toolset files")}
        assert len(box.records) == 16
