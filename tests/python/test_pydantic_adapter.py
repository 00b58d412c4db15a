"""What leaves the Pydantic AI adapter for each thing the core can answer; agents are real, models are scripts."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from pydantic_ai import (
    Agent,
    AgentRunResult,
    BinaryContent,
    DeferredToolRequests,
    DeferredToolResults,
    FunctionToolset,
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolApproved,
    ToolCallPart,
    ToolDenied,
)
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from kgent_tools import (
    CallContext,
    EffectivePermissionPolicy,
    RunContext,
    ToolDefinition,
    ToolFailure,
    ToolRegistry,
    ToolResult,
    build_toolsets,
)
from kgent_tools.pydantic_adapter import KgentToolset, scripted_model

Args = dict[str, Any] | str
MakeContext = Callable[..., RunContext]

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)


class Answer:
    """What the model got for one call."""

    def __init__(self, part: Any) -> None:
        # Older releases answer a retry with a part of its own.
        self.outcome: str = part.outcome if isinstance(part, ToolReturnPart) else "retried"
        self.content: Any = part.content
        self.metadata: Any = part.metadata if isinstance(part, ToolReturnPart) else None


def answers(messages: list[ModelMessage]) -> list[Answer]:
    return [Answer(p) for m in messages if m.kind == "request" for p in m.parts if p.part_kind != "user-prompt"]


def run(agent: Agent[None, Any], prompt: str | None = "go", **options: Any) -> AgentRunResult[Any]:
    """Like `run_sync`, which leaves its event loop open."""
    return asyncio.run(agent.run(prompt, **options))


def ask(toolset: KgentToolset, *calls: tuple[str, Args], **options: Any) -> list[Answer]:
    """Runs an agent that makes these calls; the run always ends well."""
    result = run(Agent(scripted_model(*calls), name="tester", toolsets=[toolset], **options))
    assert result.output == "done"
    return answers(result.all_messages())


def toolset_of(context: RunContext, **handlers: Callable[[Any, CallContext], ToolResult]) -> KgentToolset:
    """A toolset of Python tools that take any object."""
    registry = ToolRegistry(context)
    registry.register(
        {
            name: ToolDefinition(description=name, input_schema={"type": "object"}, handler=handler)
            for name, handler in handlers.items()
        }
    )
    snapshot = registry.materialize(EffectivePermissionPolicy.merge(context=context))
    return KgentToolset([tool for tool in snapshot.definitions if tool.name in handlers], context)


@pytest.fixture
def toolset(context: RunContext) -> KgentToolset:
    return KgentToolset(build_toolsets(context), context)


# What is offered


def test_the_instructions_list_the_skills_that_can_be_loaded(make_context: MakeContext, tmp_path: Path) -> None:
    for number in range(30):
        folder = tmp_path / "skills" / f"skill-{number}"
        folder.mkdir(parents=True)
        text = f"---\nname: skill-{number}\ndescription: Does {number}.\n---\n"
        (folder / "SKILL.md").write_text(text, encoding="utf-8")
    context = make_context({"skills": {"roots": [str(tmp_path / "skills")]}})

    def seen(toolset: KgentToolset) -> str:
        asked: list[str | None] = []

        def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            asked.append(info.instructions)
            return ModelResponse(parts=[TextPart("done")])

        run(Agent(FunctionModel(respond), toolsets=[toolset]))
        return asked[0] or ""

    tools = build_toolsets(context)
    whole = seen(KgentToolset(tools, context))
    assert whole.count("\n- ") == 30
    assert "- skill-7: Does 7." in whole
    short = seen(KgentToolset(tools, context, max_skill_characters=200))
    assert len(short) <= 200
    assert "more: see list_skills" in short
    assert seen(KgentToolset([tool for tool in tools if tool.name != "load_skill"], context)) == ""
    (loaded,) = ask(KgentToolset(tools, context), ("load_skill", {"skill_id": "skill-3"}))
    assert loaded.metadata["data"]["id"] == "skill-3"


def test_is_a_function_toolset_as_durable_engines_need(toolset: KgentToolset) -> None:
    assert isinstance(toolset, FunctionToolset)
    assert toolset.id == "kgent"


def test_offers_the_definitions_and_says_what_they_touch(toolset: KgentToolset, context: RunContext) -> None:
    model = TestModel(call_tools=[])
    run(Agent(model, toolsets=[toolset]))
    assert model.last_model_request_parameters is not None
    offered = {tool.name: tool for tool in model.last_model_request_parameters.function_tools}
    for definition in build_toolsets(context):
        tool = offered[str(definition.name)]
        assert (tool.description, tool.parameters_json_schema) == (definition.description, definition.input_schema)
        assert tool.sequential is False
    write = next(tool for tool in build_toolsets(context) if tool.name == "write_file")
    assert offered["write_file"].metadata == {
        "kgent": {"action": "edit", "capabilities": ["filesystem_write"], **write.annotations}
    }


def test_name_clashes_are_told_apart_by_a_prefix(toolset: KgentToolset) -> None:
    agent = Agent(scripted_model(("kgent_read_file", {"path": "notes.md"})), toolsets=[toolset.prefixed("kgent")])
    assert answers(run(agent).all_messages())[0].outcome == "success"


# The outcome table


def test_ok_gives_content_and_the_result_as_metadata(toolset: KgentToolset) -> None:
    (answer,) = ask(toolset, ("read_file", {"path": "notes.md"}))
    assert (answer.outcome, answer.content) == ("success", "     1\tone\n     2\ttwo\n")
    assert answer.metadata["ok"] is True
    assert answer.metadata["data"]["path"] == "notes.md"
    json.dumps(answer.metadata)


@pytest.mark.parametrize(
    ("media_type", "data"),
    [
        ("image/png", PNG),
        ("image/jpeg", b"\xff\xd8\xff\xe0\0\x10JFIF\0"),
        ("image/gif", b"GIF89a\1\0\1\0"),
        ("image/webp", b"RIFF\x1a\0\0\0WEBPVP8L"),
        ("application/pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"),
    ],
)
def test_files_become_binary_content(toolset: KgentToolset, workspace: Path, media_type: str, data: bytes) -> None:
    (workspace / "file").write_bytes(data)
    (answer,) = ask(toolset, ("read_file", {"path": "file"}))
    assert answer.content == [
        f"file: {media_type}, {len(data)} bytes",
        BinaryContent(data=data, media_type=media_type),
    ]


def test_a_file_that_is_too_large_for_a_model_is_told_of(toolset: KgentToolset, workspace: Path) -> None:
    (workspace / "large.pdf").write_bytes(b"%PDF-1.7\n" + bytes(5 << 20))
    (answer,) = ask(toolset, ("read_file", {"path": "large.pdf"}))
    assert answer.outcome == "retried"  # another file, or a part of it as text, may do
    assert isinstance(answer.content, str)
    assert "`large.pdf` is a binary file of 5242889 bytes" in answer.content


def test_mendable_error_is_retried_then_failed(toolset: KgentToolset) -> None:
    missing = ("read_file", {"path": "missing.md"})
    first, second, third = ask(toolset, missing, missing, missing)
    assert first.outcome == "retried"
    assert "missing.md" in str(first.content)
    assert [second.outcome, third.outcome] == ["failed", "failed"]
    assert second.content.startswith("not_found: ")


def test_retry_budget_of_the_toolset_is_used(context: RunContext) -> None:
    toolset = KgentToolset(build_toolsets(context), context, max_retries=2)
    outcomes = [answer.outcome for answer in ask(toolset, *[("read_file", {"path": "missing.md"})] * 3)]
    assert outcomes == ["retried", "retried", "failed"]


def test_no_retries_at_all_is_no_retry(toolset: KgentToolset) -> None:
    (answer,) = ask(toolset, ("read_file", {"path": "missing.md"}), retries=0)
    assert answer.outcome == "failed"


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "~/x"])
def test_refusal_is_not_retried(toolset: KgentToolset, path: str) -> None:
    first, second = ask(toolset, ("read_file", {"path": path}), ("read_file", {"path": path}))
    assert first.outcome == second.outcome == "failed"
    assert first.content.startswith("outside_sandbox: ")


def test_failure_of_a_python_handler_keeps_its_hint(context: RunContext) -> None:
    def fail(args: Any, context: CallContext) -> ToolResult:
        raise ToolFailure("no such city", hint="Send an English name.")

    first, second = ask(toolset_of(context, weather=fail), ("weather", {}), ("weather", {}))
    assert (first.outcome, "no such city\nSend an English name." in str(first.content)) == ("retried", True)
    assert (second.outcome, second.content) == ("failed", "failed: no such city\nSend an English name.")


def test_exception_of_a_python_handler_ends_nothing(context: RunContext) -> None:
    def fail(args: Any, context: CallContext) -> ToolResult:
        raise ZeroDivisionError("/secret/place")

    (answer,) = ask(toolset_of(context, broken=fail), ("broken", {}))
    assert answer.outcome == "failed"
    assert answer.content.startswith("internal: ")
    assert "/secret/place" not in answer.content


def test_fault_of_the_host_ends_nothing_and_is_logged(
    toolset: KgentToolset, context: RunContext, caplog: pytest.LogCaptureFixture
) -> None:
    context.close()
    with caplog.at_level(logging.ERROR, "kgent_tools"):
        (answer,) = ask(toolset, ("read_file", {"path": "notes.md"}))
    assert answer.outcome == "failed"
    assert answer.content.startswith("internal: ")
    assert "RunError" in caplog.text


def approval_agent(make_context: MakeContext) -> tuple[RunContext, Agent[None, str | DeferredToolRequests]]:
    context = make_context({"permissions": {"filesystem_write": "ask"}})
    model = scripted_model(("write_file", {"path": "new.md", "content": "x"}))
    toolset = KgentToolset(build_toolsets(context), context)
    return context, Agent(model, toolsets=[toolset], output_type=[str, DeferredToolRequests])


def test_approval_goes_to_the_host_with_what_is_asked(make_context: MakeContext, workspace: Path) -> None:
    _, agent = approval_agent(make_context)
    output = run(agent).output
    assert isinstance(output, DeferredToolRequests)
    (call,) = output.approvals
    metadata = output.metadata[call.tool_call_id]
    assert metadata["resource"] == "new.md"
    assert not (workspace / "new.md").exists()


def test_approved_call_is_made_with_the_grant_on_record(make_context: MakeContext, workspace: Path) -> None:
    context, agent = approval_agent(make_context)
    asked = run(agent)
    assert isinstance(asked.output, DeferredToolRequests)
    results = DeferredToolResults(approvals={asked.output.approvals[0].tool_call_id: True})
    resumed = run(agent, None, message_history=asked.all_messages(), deferred_tool_results=results)
    assert answers(resumed.all_messages())[0].outcome == "success"
    assert (workspace / "new.md").read_text(encoding="utf-8") == "x"
    blocked, done = context.records()
    assert (blocked["status"], done["status"]) == ("blocked", "completed")
    assert (done["permission"]["layer"], done["permission"]["effect"]) == ("grant", "allow")
    kinds = [event["type"] for event in context.events()]
    assert kinds[1:] == [
        "permission.requested",
        "tool.blocked",
        "permission.granted",
        "tool.started",
        "tool.completed",
    ]


def test_approved_call_that_finds_another_file_asks_again(make_context: MakeContext, workspace: Path) -> None:
    _, agent = approval_agent(make_context)
    asked = run(agent)
    assert isinstance(asked.output, DeferredToolRequests)
    (workspace / "new.md").write_text("by somebody else", encoding="utf-8")
    results = DeferredToolResults(
        approvals={asked.output.approvals[0].tool_call_id: True}, metadata=asked.output.metadata
    )
    again = run(agent, None, message_history=asked.all_messages(), deferred_tool_results=results).output
    assert isinstance(again, DeferredToolRequests)
    (metadata,) = again.metadata.values()
    assert "-by somebody else" in metadata["approval"]["preview"]
    assert (workspace / "new.md").read_text(encoding="utf-8") == "by somebody else"


def test_approval_with_other_arguments_asks_again(make_context: MakeContext, workspace: Path) -> None:
    _, agent = approval_agent(make_context)
    asked = run(agent)
    assert isinstance(asked.output, DeferredToolRequests)
    other = ToolApproved(override_args={"path": "new.md", "content": "y"})
    results = DeferredToolResults(approvals={asked.output.approvals[0].tool_call_id: other})
    again = run(agent, None, message_history=asked.all_messages(), deferred_tool_results=results).output
    assert isinstance(again, DeferredToolRequests)
    assert not (workspace / "new.md").exists()


def test_denied_approval_reaches_the_model_with_the_host_s_message(make_context: MakeContext, workspace: Path) -> None:
    _, agent = approval_agent(make_context)
    asked = run(agent)
    assert isinstance(asked.output, DeferredToolRequests)
    results = DeferredToolResults(approvals={asked.output.approvals[0].tool_call_id: ToolDenied("not today")})
    resumed = run(agent, None, message_history=asked.all_messages(), deferred_tool_results=results)
    assert answers(resumed.all_messages())[0].content == "not today"
    assert not (workspace / "new.md").exists()


# Arguments as models send them


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '"{}"',
        "1",
        "null",
        '{"path":',
        '{"path": "notes.md", "path": "notes.md"}',
        '{"path": "notes.md", "zzz": 1}',
        '{"path": NaN}',
        '{"path": "\\ud800"}',
        '{"": "x"}',
        '{"": "{\\"path\\": \\"notes.md\\"}"}',
        "[" * 100_000,
    ],
)
def test_bad_arguments_are_answered_recorded_and_end_nothing(
    toolset: KgentToolset, context: RunContext, text: str
) -> None:
    calls = ask(toolset, *[("read_file", text)] * 3)
    assert [answer.outcome for answer in calls] == ["retried", "failed", "failed"]
    assert calls[1].content.startswith("invalid_args: ")
    assert [record["error"]["code"] for record in context.records()] == ["invalid_args"] * 3


def test_argument_names_cannot_clash_with_the_adapter_s_own(toolset: KgentToolset) -> None:
    first, second = ask(toolset, *[("read_file", {"ctx": 1, "self": 2, "path": "notes.md"})] * 2)
    assert (first.outcome, second.content.split(":")[0]) == ("retried", "invalid_args")


def test_every_tool_passes_the_test_model(toolset: KgentToolset) -> None:
    assert run(Agent(TestModel(), toolsets=[toolset])).output


# Ids


def test_ids_and_trace_go_into_the_record(toolset: KgentToolset, context: RunContext) -> None:
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    agent = Agent(scripted_model(("list_files", {})), name="tester", toolsets=[toolset])
    with trace.use_span(span):
        result = run(agent, conversation_id="c-1")
    (record,) = context.records()
    (call,) = [p for m in result.all_messages() for p in m.parts if isinstance(p, ToolCallPart)]
    found = {key: record[key] for key in ("call_id", "conversation_id", "step", "agent", "trace_id", "span_id")}
    assert found == {
        "call_id": call.tool_call_id,
        "conversation_id": "c-1",
        "step": 1,
        "agent": "tester",
        "trace_id": f"{0xABC:032x}",
        "span_id": f"{0xDEF:016x}",
    }


# The event loop, and cancellation


def test_the_loop_runs_while_a_tool_works(context: RunContext) -> None:
    def slow(args: Any, context: CallContext) -> ToolResult:
        time.sleep(0.3)
        return ToolResult(ok=True, summary="slept")

    async def main() -> float:
        run = asyncio.create_task(
            Agent(scripted_model(("slow", {})), toolsets=[toolset_of(context, slow=slow)]).run("go")
        )
        longest = 0.0
        while not run.done():
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            longest = max(longest, time.perf_counter() - before)
        await run
        return longest

    assert asyncio.run(main()) < 0.2


def test_calls_of_one_turn_run_in_parallel(context: RunContext) -> None:
    both = threading.Barrier(2, timeout=10)

    def meet(args: Any, context: CallContext) -> ToolResult:
        both.wait()
        return ToolResult(ok=True, summary="met")

    model = scripted_model([("meet", {}), ("meet", {})])
    result = run(Agent(model, toolsets=[toolset_of(context, meet=meet)]))
    assert [answer.outcome for answer in answers(result.all_messages())] == ["success", "success"]


def until_cancelled(context: CallContext) -> ToolResult:
    """What a well-behaved slow handler does: it looks at its context between pieces of work."""
    while not context.cancelled:
        time.sleep(0.005)
    context.sandbox.stat(".")  # no door opens to a cancelled call
    raise AssertionError


@pytest.mark.parametrize("way", ["cancel", "timeout"])
def test_cancelled_run_stops_the_call_and_leaves_its_record(context: RunContext, way: str) -> None:
    began = threading.Event()

    def wait(args: Any, context: CallContext) -> ToolResult:
        began.set()
        return until_cancelled(context)

    async def main() -> None:
        agent = Agent(scripted_model(("wait", {})), toolsets=[toolset_of(context, wait=wait)])
        if way == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await agent.run("go")
            return
        run = asyncio.create_task(agent.run("go"))
        assert await asyncio.to_thread(began.wait, 10)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    started = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - started < 5
    assert [record["status"] for record in context.records()] == ["cancelled"]


def test_cancelling_one_call_leaves_the_other(context: RunContext, workspace: Path) -> None:
    began = threading.Event()

    def wait(args: Any, context: CallContext) -> ToolResult:
        began.set()
        return until_cancelled(context)

    def work(args: Any, context: CallContext) -> ToolResult:
        time.sleep(0.3)
        return ToolResult(ok=not context.cancelled, summary="worked")

    async def main() -> None:
        toolset = toolset_of(context, wait=wait, work=work)
        waits = asyncio.create_task(Agent(scripted_model(("wait", {})), toolsets=[toolset]).run("go"))
        works = asyncio.create_task(Agent(scripted_model(("work", {})), toolsets=[toolset]).run("go"))
        assert await asyncio.to_thread(began.wait, 10)
        waits.cancel()
        assert (await works).output == "done"
        with pytest.raises(asyncio.CancelledError):
            await waits

    asyncio.run(main())
    assert {record["tool"]: record["status"] for record in context.records()} == {
        "wait": "cancelled",
        "work": "completed",
    }
