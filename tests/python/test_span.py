"""One OpenTelemetry span for each call, and records that name it; nothing where OpenTelemetry is not loaded."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the OpenTelemetry SDK is not installed")

from conftest import MakeContext
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from support import Ran

from kgent_tools import CallContext, RunContext, ToolDefinition, ToolRegistry, ToolResult, build_toolsets


class Traced:
    """A provider of its own, as the process's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.provider, self._exporter = TracerProvider(), InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        monkeypatch.setattr(trace, "get_tracer", self.provider.get_tracer)

    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traced]:
    traced = Traced(monkeypatch)
    yield traced
    traced.provider.shutdown()


def ids(span: ReadableSpan) -> tuple[str, str]:
    found = span.get_span_context()
    assert found is not None
    return f"{found.trace_id:032x}", f"{found.span_id:016x}"


def recorded(context: RunContext) -> list[tuple[str, str] | None]:
    return [(r["trace_id"], r["span_id"]) if "trace_id" in r else None for r in context.records()]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_each_call_has_a_span_that_its_record_names(context: RunContext, traced: Traced) -> None:
    read = next(t for t in build_toolsets(context) if t.name == "read_file").handler
    call = context.for_call(call_id="c1", conversation_id="talk", agent="scout")
    with traced.provider.get_tracer("host").start_as_current_span("parent") as parent:
        read({"path": "notes.md"}, call)
        read({"path": "../secret-name"}, call)
    first, second, last = traced.spans()
    assert last.name == "parent"
    common = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "read_file",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.conversation.id": "talk",
        "gen_ai.agent.name": "scout",
        "kgent.run_id": context.run_id,
    }
    assert attributes(first) == {**common, "kgent.status": "completed"}
    assert attributes(second) == {**common, "kgent.status": "blocked", "error.type": "outside_sandbox"}
    assert [span.name for span in (first, second)] == ["execute_tool read_file"] * 2
    assert [span.status.status_code for span in (first, second)] == [StatusCode.UNSET, StatusCode.ERROR]
    assert [span.parent and span.parent.span_id for span in (first, second)] == [parent.get_span_context().span_id] * 2
    assert recorded(context) == [ids(first), ids(second)]
    assert "secret-name" not in first.to_json() + second.to_json()


def test_an_async_handler_runs_in_its_span_and_so_does_one_that_fails(context: RunContext, traced: Traced) -> None:
    async def work(args: dict[str, Any], call: CallContext) -> ToolResult:
        with trace.get_tracer("handler").start_as_current_span("inside"):
            await asyncio.sleep(0)
        if args.get("how") == "fail":
            raise OSError("broken")
        if args.get("how") == "cancel":
            raise asyncio.CancelledError
        return ToolResult(True, "done")

    schema = {"type": "object", "properties": {"how": {"type": "string"}}}
    registry = ToolRegistry(context)
    registry.register({"work": ToolDefinition(description="Works.", input_schema=schema, handler=work)})
    snapshot = registry.materialize()

    async def both() -> None:
        results = await asyncio.gather(snapshot.acall("work", {}), snapshot.acall("work", {"how": "fail"}))
        assert [result.ok for result in results] == [True, False]
        with pytest.raises(asyncio.CancelledError):
            await snapshot.acall("work", {"how": "cancel"})

    asyncio.run(both())
    calls = [span for span in traced.spans() if span.name == "execute_tool work"]
    inside = [span for span in traced.spans() if span.name == "inside"]
    assert {attributes(span).get("error.type") for span in calls} == {None, "internal", "CancelledError"}
    assert {span.parent and span.parent.span_id for span in inside} == {int(ids(span)[1], 16) for span in calls}
    assert sorted(recorded(context), key=str) == sorted((ids(span) for span in calls), key=str)
    assert not trace.get_current_span().get_span_context().is_valid


def test_inside_pydantic_ai_the_framework_s_span_is_the_call_s(make_context: MakeContext, traced: Traced) -> None:
    pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed")
    from pydantic_ai import Agent, InstrumentationSettings
    from pydantic_ai.capabilities import Instrumentation
    from pydantic_ai.models.test import TestModel

    from kgent_tools.pydantic_adapter import KgentToolset

    context = make_context()
    toolset = KgentToolset(build_toolsets(context), context)
    settings = InstrumentationSettings(tracer_provider=traced.provider)
    model = TestModel(call_tools=["list_files"])
    agent = Agent(model, toolsets=[toolset], capabilities=[Instrumentation(settings=settings)])
    asyncio.run(agent.run("Look."))
    tools = [span for span in traced.spans() if attributes(span).get("gen_ai.operation.name") == "execute_tool"]
    assert len(tools) == 1
    found = attributes(tools[0])
    assert {k: found.get(k) for k in ("gen_ai.tool.name", "kgent.run_id", "kgent.status")} == {
        "gen_ai.tool.name": "list_files",
        "kgent.run_id": context.run_id,
        "kgent.status": "completed",
    }
    assert recorded(context) == [ids(tools[0])]


def test_a_tracer_that_fails_refuses_no_call(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def get_tracer(*_: object) -> object:
        raise RuntimeError("no tracer")

    monkeypatch.setattr(trace, "get_tracer", get_tracer)
    assert next(t for t in build_toolsets(context) if t.name == "list_files").handler({}, context).ok
    assert recorded(context) == [None]


def test_where_it_is_not_loaded_nothing_is_imported(tmp_path: Path) -> None:
    code = (
        "import json, sys; from kgent_tools import RunContext, build_toolsets\n"
        "with RunContext.create(sys.argv[1]) as context:\n"
        "    ok = build_toolsets(context)[0].handler({'pattern': 'x'}, context) is not None\n"
        "print(json.dumps([ok, [name for name in sys.modules if name.split('.')[0] == 'opentelemetry']]))"
    )
    assert json.loads(Ran(code, str(tmp_path / "runs")).out) == [True, []]
