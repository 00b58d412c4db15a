"""What leaves the LangChain adapter for each thing the core can answer; agents are real, models are scripts."""

import asyncio
import base64
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support import Ran

pytest.importorskip("langchain_core", reason="the extra `langchain` is not installed")

from conftest import MakeContext
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from kgent_tools import CallContext, RegistrationError, RunContext, ToolDefinition, ToolRegistry, ToolResult
from kgent_tools.langchain_adapter import langchain_tools

PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489")


def bound(context: RunContext, approve: Any = None, **handlers: Any) -> dict[str, StructuredTool]:
    registry = ToolRegistry(context)
    schema = {"type": "object"}
    made = {name: ToolDefinition(description=name, input_schema=schema, handler=h) for name, h in handlers.items()}
    registry.register(made)
    tools = langchain_tools(registry.materialize().definitions, context, approve=approve)
    return {tool.name: tool for tool in tools}


def request(name: str, args: Any, id: str = "c1") -> dict[str, Any]:
    return {"type": "tool_call", "name": name, "id": id, "args": args}


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Any:
    """Invokes a tool in either way."""
    if request.param == "sync":
        return lambda tool, call, config=None: tool.invoke(call, config)
    return lambda tool, call, config=None: asyncio.run(tool.ainvoke(call, config))


def test_it_offers_what_the_definitions_say(context: RunContext) -> None:
    definitions = ToolRegistry(context).materialize().definitions
    tools = langchain_tools(definitions, context)
    assert all(isinstance(tool, StructuredTool) for tool in tools)
    assert [convert_to_openai_tool(tool) for tool in tools] == [definition.to_openai() for definition in definitions]


def test_ok_is_content_with_the_result_as_artifact(context: RunContext, ask: Any) -> None:
    answer = ask(bound(context)["read_file"], request("read_file", {"path": "notes.md"}))
    assert isinstance(answer, ToolMessage)
    assert (answer.status, answer.tool_call_id, answer.name) == ("success", "c1", "read_file")
    assert answer.content == "     1\tone\n     2\ttwo\n"
    assert answer.artifact["data"]["path"] == "notes.md"
    json.dumps(answer.artifact)


def test_without_a_call_s_id_the_content_is_the_answer(context: RunContext, ask: Any) -> None:
    read = bound(context)["read_file"]
    assert ask(read, {"path": "notes.md"}) == ask(read, '{"path": "notes.md"}') == "     1\tone\n     2\ttwo\n"
    assert ask(read, {"path": "../x"}).startswith("outside_sandbox: ")


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"path": "missing.md"}, "not_found"),
        ({"path": "../secret"}, "outside_sandbox"),
        ({"path": "notes.md", "config": 1, "run_manager": 2, "self": 3, "args": 4}, "invalid_args"),
        ({}, "invalid_args"),
    ],
)
def test_a_failure_is_a_message_of_status_error(context: RunContext, ask: Any, args: dict[str, Any], code: str) -> None:
    answer = ask(bound(context)["read_file"], request("read_file", args))
    assert isinstance(answer, ToolMessage)
    (record,) = context.records()
    assert (answer.status, record["error"]["code"], answer.artifact["error"]["code"]) == ("error", code, code)
    error = answer.artifact["error"]
    assert answer.content == "\n".join([f"{code}: {error['message']}", *([error["hint"]] if error["hint"] else [])])


def test_files_become_content_blocks(context: RunContext, workspace: Path, ask: Any) -> None:
    (workspace / "dot.png").write_bytes(PNG)
    (workspace / "a.pdf").write_bytes(b"%PDF-1.7\n")
    read = bound(context)["read_file"]
    for name, kind, media, data in (
        ("dot.png", "image", "image/png", PNG),
        ("a.pdf", "file", "application/pdf", b"%PDF-1.7\n"),
    ):
        content = ask(read, request("read_file", {"path": name})).content
        assert [block["type"] for block in content] == ["text", kind]
        assert content[1] == {"type": kind, "base64": base64.b64encode(data).decode(), "mime_type": media}


def test_ids_go_into_the_record(context: RunContext, ask: Any) -> None:
    config = {"configurable": {"thread_id": "t1"}, "metadata": {"lc_agent_name": "scout", "langgraph_step": 3}}
    ask(bound(context)["list_files"], request("list_files", {}, "call_7"), config)
    (record,) = context.records()
    found = {key: record[key] for key in ("call_id", "conversation_id", "step", "agent")}
    assert found == {"call_id": "call_7", "conversation_id": "t1", "step": 3, "agent": "scout"}


def test_secrets_stay_out_of_the_artifact(context: RunContext, workspace: Path, ask: Any) -> None:
    (workspace / "s").write_text("gh" + "p_CANARYcanary0123456789CANARYcanary0123\n", encoding="utf-8")
    answer = ask(bound(context)["read_file"], request("read_file", {"path": "s"}))
    assert "CANARY" in answer.content
    assert "CANARY" not in json.dumps(answer.artifact)


def test_fault_of_the_host_ends_nothing_and_is_logged(
    context: RunContext, caplog: pytest.LogCaptureFixture, ask: Any
) -> None:
    tools = bound(context)
    context.close()
    answer = ask(tools["read_file"], request("read_file", {"path": "notes.md"}))
    assert (answer.status, answer.content.split(":")[0]) == ("error", "internal")
    assert "RunError" in caplog.text
    assert caplog.records[0].levelno == logging.ERROR


@pytest.mark.parametrize(("says", "status"), [(True, "success"), (False, "error"), ({"no": 1}, "error")])
def test_approve_is_asked_and_its_true_is_the_grant(
    make_context: MakeContext, workspace: Path, ask: Any, says: Any, status: str
) -> None:
    context = make_context({"permissions": {"filesystem_write": "ask"}})
    asked: list[dict[str, Any]] = []

    def approve(details: dict[str, Any]) -> bool:
        asked.append(details)
        return says

    answer = ask(bound(context, approve)["write_file"], request("write_file", {"path": "new.md", "content": "x\n"}))
    assert answer.status == status
    assert "+x" in asked[0]["approval"]["preview"]
    assert (workspace / "new.md").exists() == (says is True)
    statuses = [record["status"] for record in context.records()]
    assert statuses == (["blocked", "completed"] if says is True else ["blocked"])


def test_approve_may_be_async_where_tools_are_awaited(make_context: MakeContext, workspace: Path) -> None:
    context = make_context({"permissions": {"filesystem_write": "ask"}})

    async def main() -> None:
        yes = asyncio.get_running_loop().create_future()
        yes.set_result(True)
        write = bound(context, lambda _: yes)["write_file"]
        with pytest.raises(RegistrationError, match="await the tool"):
            write.invoke(request("write_file", {"path": "new.md", "content": "x"}))
        assert not (workspace / "new.md").exists()
        assert (await write.ainvoke(request("write_file", {"path": "new.md", "content": "x"}))).status == "success"

    asyncio.run(main())
    assert (workspace / "new.md").exists()


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_cancelled_call_stops_and_leaves_its_record(context: RunContext, kind: str) -> None:
    began = threading.Event()

    def work(args: Any, call: CallContext) -> ToolResult:
        began.set()
        while not call.cancelled:
            time.sleep(0.005)
        call.sandbox.stat(".")  # no door opens to a cancelled call
        raise AssertionError

    async def wait(args: Any, call: CallContext) -> ToolResult:
        began.set()
        await asyncio.sleep(60)
        raise AssertionError

    async def main() -> None:
        tool = bound(context, work=work if kind == "thread" else wait)["work"]
        task = asyncio.create_task(tool.ainvoke(request("work", {})))
        assert await asyncio.to_thread(began.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [record["status"] for record in context.records()] == ["cancelled"]

    asyncio.run(main())


def test_the_loop_runs_while_tools_work_in_parallel(context: RunContext) -> None:
    both = threading.Barrier(2, timeout=10)

    def meet(args: Any, call: CallContext) -> ToolResult:
        both.wait()
        return ToolResult(True, "met")

    async def main() -> list[Any]:
        tool = bound(context, meet=meet)["meet"]
        return await asyncio.gather(*(tool.ainvoke(request("meet", {}, id)) for id in ("a", "b")))

    assert [(a.tool_call_id, a.status) for a in asyncio.run(main())] == [("a", "success"), ("b", "success")]


def test_an_agent_runs_on_and_a_human_approves_by_an_interrupt(make_context: MakeContext, workspace: Path) -> None:
    pytest.importorskip("langchain", reason="LangChain's agents are not installed")
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command, interrupt

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self

    context = make_context({"permissions": {"filesystem_write": "ask"}})
    tools = list(bound(context, lambda details: interrupt(details["approval"]["preview"])).values())
    turns = [
        AIMessage("", tool_calls=[{"name": "read_file", "id": "c1", "args": {"path": "../x"}}]),
        AIMessage("", tool_calls=[{"name": "write_file", "id": "c2", "args": {"path": "new.md", "content": "x\n"}}]),
        AIMessage("done"),
    ]
    agent = create_agent(Scripted(messages=iter(turns)), tools, name="scout", checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t1"}}
    asked = agent.invoke({"messages": [{"role": "user", "content": "go"}]}, config)
    assert "+x" in asked["__interrupt__"][0].value
    assert not (workspace / "new.md").exists()
    messages = agent.invoke(Command(resume=True), config)["messages"]
    answers = [(m.tool_call_id, m.status) for m in messages if isinstance(m, ToolMessage)]
    assert answers == [("c1", "error"), ("c2", "success")]
    assert (messages[-1].content, (workspace / "new.md").read_text(encoding="utf-8")) == ("done", "x\n")
    records = list(context.records())
    assert [(r["call_id"], r["status"]) for r in records] == [
        ("c1", "blocked"),
        ("c2", "blocked"),
        ("c2", "blocked"),
        ("c2", "completed"),
    ]
    assert {(r["conversation_id"], r["agent"]) for r in records} == {("t1", "scout")}


def test_the_package_needs_no_langchain_and_the_adapter_says_which_extra_it_needs() -> None:
    Ran("import sys, kgent_tools; assert not [m for m in sys.modules if m.startswith('langchain')]")
    code = (
        "import sys; sys.modules['langchain_core'] = None\n"
        "try: import kgent_tools.langchain_adapter\n"
        "except ImportError as error: print(error)"
    )
    assert Ran(code).out.startswith("kgent_tools.langchain_adapter needs LangChain 1.0 or later: pip install ")
