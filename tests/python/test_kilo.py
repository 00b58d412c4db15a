"""The architecture of `seeds/kilo-tool-architecture.txt`, sentence by sentence: each mechanism works here, or the row
says how ours differs and why that is better."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Box, text_of

import kgent_tools
from kgent_tools import (
    CallContext,
    EffectivePermissionPolicy,
    FileContent,
    PermissionRule,
    RegistrationError,
    RunContext,
    TextContent,
    ToolDefinition,
    ToolFailure,
    ToolRegistry,
    ToolResult,
)

Row = Callable[[Box], None]
ROWS: list[tuple[str, str, str, Row]] = []
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}}


def row(section: str, sentence: str, deviation: str = "") -> Callable[[Row], Row]:
    """One sentence of the seed, and how ours differs where it does."""

    def add(check: Row) -> Row:
        ROWS.append((section, sentence, deviation, check))
        return check

    return add


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    runtime = [PermissionRule("edit", "private/**", "deny"), PermissionRule("asked", "*", "ask")]
    with Box(tmp_path, runtime=runtime, mounts={"docs": (tmp_path / "ws-evil", "rw")}) as made:
        made.put("a", "one\n")
        yield made


def define(handler: Any = None, **options: Any) -> ToolDefinition:
    answer = handler or (lambda args, context: ToolResult(ok=True, summary="done"))
    return ToolDefinition(**{"description": "d", "input_schema": SCHEMA, "handler": answer, **options})


def call(box: Box, definition: ToolDefinition, args: Any = None, name: str = "mine") -> ToolResult:
    registry = ToolRegistry(box.context)
    with registry.register({name: definition}):
        return registry.materialize(box.policy).call(name, args or {})


def says(text: str) -> ToolDefinition:
    return define(lambda args, context: ToolResult(ok=True, summary=text))


def said(registry: ToolRegistry, name: str = "who") -> str:
    return registry.materialize().call(name, {}).summary


def code(result: ToolResult) -> str | None:
    return result.error.code if result.error else None


def names(registry: ToolRegistry, policy: Any = None) -> list[str]:
    return [str(tool.name) for tool in registry.materialize(policy).definitions]


# 2.1


@row("2.1", "A tool is made from a description, input and output, a structured form, an executor and a projection.")
def _(box: Box) -> None:
    made = define(
        lambda args, context: {"n": args["n"], "extra": 1},
        output_schema={"type": "object", "required": ["n"]},
        to_data=lambda output: {"n": output["n"]},
        to_content=lambda output: f"n is {output['n']}",
    )
    result = call(box, made, {"n": 1})
    assert (result.data, text_of(result)) == ({"n": 1}, "n is 1")


@row("2.1", "`description` is what the model sees.")
def _(box: Box) -> None:
    assert define(description="Counts.", name="x").to_openai()["function"]["description"] == "Counts."


@row("2.1", "The input's and the output's codecs are the only source of truth.")
def _(box: Box) -> None:
    assert code(call(box, define(), {"n": "x"})) == "invalid_args"
    lies = define(lambda args, context: {"n": "x"}, output_schema=SCHEMA)
    assert code(call(box, lies)) == "internal"


@row("2.1", "`structured` and `toStructuredOutput` derive a structured output.")
def _(box: Box) -> None:
    assert call(box, define(lambda args, context: [1, 2], to_data=lambda output: {"sum": sum(output)})).data == {
        "sum": 3
    }


@row("2.1", "`execute` has the signature (input, context) and gives an output or a ToolFailure.")
def _(box: Box) -> None:
    seen: list[Any] = []

    def handler(args: Any, context: Any) -> ToolResult:
        seen.append((args, type(context)))
        raise ToolFailure("no", "Look again.", "no_match")

    assert call(box, define(handler), {"n": 1}).error == kgent_tools.ErrorInfo("no_match", "no", "Look again.")
    assert seen == [({"n": 1}, CallContext)]


@row("2.1", "`toModelOutput` projects the validated output to content: text or inline files.")
def _(box: Box) -> None:
    parts = ["text", FileContent("image/png", b"x")]
    content = call(box, define(lambda args, context: {}, to_content=lambda output: parts)).content
    assert [type(part) for part in content] == [TextContent, FileContent]
    broken = define(lambda args, context: 5, output_schema={"type": "object", "required": ["x"]})
    assert code(call(box, broken)) == "internal"


@row("2.1", "The value is opaque: codecs, executor, definition and permission are hidden from outside.")
def _(box: Box) -> None:
    tool = define()
    for name in ("handler", "permission", "input_schema", "executor", "__dict__"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(tool, name, None)
    with pytest.raises(TypeError):
        type("Mine", (ToolDefinition,), {})
    with pytest.raises(RegistrationError):
        ToolRegistry(box.context).register({"x": object()})  # type: ignore[dict-item]


@row(
    "2.1",
    "Definition, settle, permission and withPermission are the only operations.",
    "the wire shapes and the properties that describe it are public too; all of them only read",
)
def _(box: Box) -> None:
    assert {name for name in dir(ToolDefinition) if not name.startswith("_")} == {
        "acall",
        "annotations",
        "capabilities",
        "description",
        "handler",
        "input_schema",
        "is_async",
        "mutating",
        "name",
        "output_schema",
        "permission",
        "to_anthropic",
        "to_openai",
        "with_permission",
    }


# 2.2


@row("2.2", "A name is ^[A-Za-z][A-Za-z0-9_-]{0,63}$; any other is a RegistrationError.")
def _(box: Box) -> None:
    registry = ToolRegistry(box.context)
    for name in ("a", "A-b_9", "x" * 64):
        registry.register({name: define()}).close()
    for name in ("", "9a", "_a", "a b", "a.b", "x" * 65, "\u00e9"):
        with pytest.raises(RegistrationError):
            registry.register({name: define()})


@row("2.2", "withPermission copies the runtime and overrides the permission; the value keeps its opaque type.")
def _(box: Box) -> None:
    tool = define(permission="one")
    other = tool.with_permission("two")
    assert (type(other), tool.permission, other.permission) == (ToolDefinition, "one", "two")
    assert call(box, other).ok


# 2.3


@row(
    "2.3",
    "Built-in layers acquire the permission service when they are made, and executors capture it.",
    "the policy is bound when a snapshot is taken, and handlers get doors that ask it: none can forget to",
)
def _(box: Box) -> None:
    box.put(".env", "x")
    handler = lambda args, context: ToolResult(ok=True, summary=str(context.sandbox.read_bytes(".env")))  # noqa: E731
    assert code(call(box, define(handler))) == "denied"


@row("2.3", "The permission source is made from the canonical call context: the tool, the message, the call.")
def _(box: Box) -> None:
    context = box.context.for_call(call_id="c1", conversation_id="k", step=3, agent="me")
    box.tools["read_file"].handler({"path": "a"}, context)
    record = box.records[-1]
    assert [record[key] for key in ("tool", "call_id", "conversation_id", "step", "agent")] == [
        "read_file",
        "c1",
        "k",
        3,
        "me",
    ]


@row("2.3", "The context's structure (session, agent, message, call) is defined once.")
def _(box: Box) -> None:
    seen: list[CallContext] = []

    def handler(args: Any, context: CallContext) -> ToolResult:
        seen.append(context)
        return ToolResult(ok=True, summary="s")

    registry = ToolRegistry(box.context)
    registry.register({"mine": define(handler)})
    bound = next(t for t in registry.materialize().definitions if t.name == "mine")
    bound.handler({}, box.context.for_call(call_id="c", conversation_id="k", step=1, agent="me"))
    (context,) = seen
    assert (context.conversation_id, context.agent, context.step, context.call_id) == ("k", "me", 1, "c")
    assert context.id == box.records[-1]["id"]


# 2.4


@row("2.4", "Leaves translate only expected, typed errors to ToolFailure.")
def _(box: Box) -> None:
    assert code(box.tools["read_file"].handler({"path": "absent"}, box.context)) == "not_found"


@row(
    "2.4",
    "No catch-all: interruption and defects survive.",
    "interruption passes as itself, after its record; a defect is `internal` with its cause in the error log, so that "
    "no tool ends the run of an agent",
)
def _(box: Box) -> None:
    def interrupts(args: Any, context: Any) -> ToolResult:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(box, define(interrupts))
    assert box.records[-1]["status"] == "cancelled"
    assert code(call(box, define(lambda args, context: 1 / 0))) == "internal"
    assert "ZeroDivisionError" in box.errors[-1]["cause"]


# 3.1


@row("3.1", "Built-in tools are registered through the same registration as others.")
def _(box: Box) -> None:
    registry = ToolRegistry(box.context)
    assert set(names(registry)) == set(box.tools)
    with registry.register({"read_file": says("covered")}):
        assert said(registry, "read_file") == "covered"
    assert type(box.tools["read_file"]) is type(define())


@row("3.1", "Application tools are registered through a service of their own.")
def _(box: Box) -> None:
    with ToolRegistry.application().register({"who": says("application")}):
        assert said(ToolRegistry(box.context)) == "application"


@row("3.1", "The application's scope is the process's, shared by all locations; a registry is one location's.")
def _(box: Box) -> None:
    with (
        RunContext.create(box.runs) as other,
        ToolRegistry.application().register({"who": says("application")}),
        ToolRegistry(other).register({"only": says("there")}),
    ):
        assert said(ToolRegistry(other)) == said(ToolRegistry(box.context)) == "application"
        assert "only" not in names(ToolRegistry(box.context))


@row("3.1", "No application service per location: registered once, visible everywhere.")
def _(box: Box) -> None:
    batch = ToolRegistry.application().register({"who": says("application")})
    with RunContext.create(box.runs) as later:
        assert "who" in names(ToolRegistry(later))
        batch.close()
        assert "who" not in names(ToolRegistry(later))


# 3.2


@row("3.2", "The newest active registration of a layer wins.")
def _(box: Box) -> None:
    registry = ToolRegistry(box.context)
    registry.register({"who": says("first")})
    registry.register({"who": says("second")})
    assert said(registry) == "second"


@row("3.2", "Closing a registration removes only that one and uncovers the next.")
def _(box: Box) -> None:
    registry = ToolRegistry(box.context)
    batches = [registry.register({"who": says(text)}) for text in ("first", "second", "third")]
    batches[1].close()
    assert said(registry) == "third"
    batches[2].close()
    assert said(registry) == "first"


@row("3.2", "A scope that closes cleans up its own registrations.")
def _(box: Box) -> None:
    registry = ToolRegistry(box.context)
    with pytest.raises(ValueError, match="x"), registry.register({"who": says("x")}):
        raise ValueError("x")
    assert "who" not in names(registry)


@row("3.2", "A location's registration goes before the application's.")
def _(box: Box) -> None:
    with ToolRegistry(box.context).register({"who": says("location")}):
        with ToolRegistry.application().register({"who": says("application")}):
            assert said(ToolRegistry(box.context)) == "location"


@row("3.2", "Materialize merges both into an immutable snapshot that later settlements stand on.")
def _(box: Box) -> None:
    registry = ToolRegistry(box.context)
    registry.register({"who": says("first")})
    snapshot = registry.materialize()
    registry.register({"later": says("later")})
    assert "later" not in [tool.name for tool in snapshot.definitions]
    assert code(snapshot.call("later", {})) == "unknown_tool"
    assert snapshot.call("who", {}).summary == "first"


@row("3.2", "A call whose advertised registration is no longer the effective one is a stale tool call.")
def _(box: Box) -> None:
    registry = ToolRegistry(box.context)
    batch = registry.register({"who": says("first")})
    snapshot = registry.materialize()
    with registry.register({"who": says("second")}):
        assert code(snapshot.call("who", {})) == "stale_tool"
    assert snapshot.call("who", {}).summary == "first"
    batch.close()
    assert code(snapshot.call("who", {})) == "stale_tool"


# 3.3


@row("3.3", "Registering and cleaning up a batch is atomic.")
def _(box: Box) -> None:
    registry = ToolRegistry(box.context)
    batch = registry.register({f"t{n}": define() for n in range(100)})
    assert len(names(registry)) == 100 + len(box.tools)
    batch.close()
    assert set(names(registry)) == set(box.tools)


@row("3.3", "One illegal name fails the whole batch.")
def _(box: Box) -> None:
    registry = ToolRegistry(box.context)
    with pytest.raises(RegistrationError):
        registry.register({"fine": define(), "not fine": define()})
    assert set(names(registry)) == set(box.tools)


# 4


@row(
    "4",
    "The registry does no authorisation; the leaf does.",
    "settle authorises, in one place before the tool runs, and again on what was opened: no leaf can leave it out",
)
def _(box: Box) -> None:
    ran: list[Any] = []
    handler = lambda args, context: ran.append(args) or ToolResult(ok=True, summary="s")  # noqa: E731
    assert code(call(box, define(handler, permission="asked"))) == "approval_required"
    assert ran == []


@row(
    "4",
    "An internal operation attaches a permission action; it is no part of the public make.",
    "`permission=` is public: an application names its own action",
)
def _(box: Box) -> None:
    call(box, define(permission="deploy"))
    assert box.records[-1]["permission"]["action"] == "deploy"


@row("4", "The action is the registered name by default; edit, write and apply_patch share `edit`.")
def _(box: Box) -> None:
    call(box, define(), name="own_name")
    assert box.records[-1]["permission"]["action"] == "own_name"
    writers = [box.tools[name] for name in ("write_file", "edit_file", "apply_patch") if name in box.tools]
    assert {tool.permission for tool in writers} == {"edit"}


@row("4", "Filtering definitions is visibility, not authorisation: a call that comes anyway is still judged.")
def _(box: Box) -> None:
    policy = EffectivePermissionPolicy.merge(runtime=[PermissionRule("edit", "*", "deny")], context=box.context)
    registry = ToolRegistry(box.context)
    assert "write_file" not in names(registry, policy)
    assert code(registry.materialize(policy).call("write_file", {"path": "w", "content": ""})) == "denied"


@row("4", "Only a last matching rule that denies exactly `*` takes a tool from the definitions.")
def _(box: Box) -> None:
    registry = ToolRegistry(box.context)
    for rules, offered in (
        ([("*", "deny")], False),
        ([("a/**", "deny")], True),
        ([("*", "deny"), ("a/**", "allow")], True),
        ([("a/**", "allow"), ("*", "deny")], False),
        ([("*", "ask")], True),
    ):
        runtime = [PermissionRule("edit", resource, effect) for resource, effect in rules]  # type: ignore[arg-type]
        policy = EffectivePermissionPolicy.merge(runtime=runtime, context=box.context)
        assert ("write_file" in names(registry, policy)) is offered, rules


@row("4", "Leaves resolve the path, then ask for external_directory, then for their own action.")
def _(box: Box) -> None:
    runtime = [PermissionRule("external_directory", "docs", "deny"), PermissionRule("edit", "*", "deny")]
    policy = EffectivePermissionPolicy.merge(runtime=runtime, context=box.context)
    write = next(t for t in ToolRegistry(box.context).materialize().definitions if t.name == "write_file")
    assert code(write.handler({"path": "../x", "content": ""}, box.context)) == "outside_sandbox"
    ToolRegistry(box.context).materialize(policy).call("write_file", {"path": "docs/x", "content": ""})
    assert box.records[-1]["permission"]["action"] == "external_directory"


# 5.1


@row("5.1", "Settle is the only way to execute and the only place where output is bounded.")
def _(box: Box) -> None:
    result = call(box, define(lambda args, context: ToolResult(ok=True, summary="s", content=["line\n" * 9000])))
    assert text_of(result).count("\n") <= 2000
    with pytest.raises(RegistrationError, match="not bound"):
        _ = define(name="x").handler


@row("5.1", "It looks the name up: the location's stack first, then the application's.")
def _(box: Box) -> None:
    assert code(ToolRegistry(box.context).materialize().call("nobody", {})) == "unknown_tool"
    session = ToolRegistry(box.context).session("s")
    with session.register({"who": says("session")}), ToolRegistry(box.context).register({"who": says("location")}):
        assert (said(session), said(ToolRegistry(box.context))) == ("session", "location")


@row("5.1", "It decodes the input; what does not fit is an invalid tool input, a failure.")
def _(box: Box) -> None:
    result = call(box, define(), {"n": "x"})
    assert result.error is not None
    assert (result.error.code, "n" in result.error.message) == ("invalid_args", True)


@row("5.1", "It executes with the decoded input and the context.")
def _(box: Box) -> None:
    handler = lambda args, context: ToolResult(ok=True, summary=repr((args, context.call_id)))  # noqa: E731
    assert call(box, define(handler), {"n": "7"}).summary == "({'n': 7}, None)"


@row("5.1", "It encodes the output; one that does not fit its schema is told apart.")
def _(box: Box) -> None:
    call(box, define(lambda args, context: {}, output_schema={"type": "object", "required": ["n"]}))
    assert "output schema" in box.errors[-1]["cause"]


@row(
    "5.1",
    "Text passes through; a file becomes a data URI.",
    "a file stays bytes with its media type: each framework gets it in its own form, without base64 in between",
)
def _(box: Box) -> None:
    parts = [TextContent("t"), FileContent("image/png", b"\x00\xff")]
    result = call(box, define(lambda args, context: ToolResult(ok=True, summary="s", content=parts)))
    assert result.content == parts


@row("5.1", "A ToolFailure becomes an error result.")
def _(box: Box) -> None:
    def fails(args: Any, context: Any) -> ToolResult:
        raise ToolFailure("no")

    result = call(box, define(fails))
    assert (result.ok, code(result), text_of(result)) == (False, "failed", "failed: no")


# 5.2


@row("5.2", "2,000 lines, 50 KiB, 7 days.")
def _(box: Box) -> None:
    limits = box.context.limits
    assert [limits[key] for key in ("max_output_lines", "max_output_bytes", "artifact_retention_days")] == [
        2000,
        51_200,
        7,
    ]


@row(
    "5.2",
    "Over the limit head and tail are shown, and the output goes to a managed directory.",
    "limits are counted on the text itself, not on its JSON; the notice names the call that reads on, and it is allowed",
)
def _(box: Box) -> None:
    text = "".join(f"line {n}\n" for n in range(5000))
    result = call(box, define(lambda args, context: ToolResult(ok=True, summary="s", content=[text])))
    head, notice, tail = [part.text for part in result.content if isinstance(part, TextContent)]
    assert (text.startswith(head), text.endswith(tail)) == (True, True)
    (artifact,) = result.artifacts
    assert f'read_file(path="{artifact}", offset={head.count(chr(10)) + 1})' in notice
    assert (box.run_dir / artifact).read_text(encoding="utf-8") == text
    assert box.tools["read_file"].handler({"path": artifact, "offset": 2500}, box.context).ok


@row("5.2", "A settlement has a result, and where they exist an output and output paths.")
def _(box: Box) -> None:
    result = call(box, define())
    assert set(result.to_dict()) == {"ok", "summary", "data", "artifacts", "error"}
    assert result.artifacts == []


@row("5.2", "Edits keep their own output small: diffs that are too large are dropped.")
def _(box: Box) -> None:
    old, new = "".join(f"{n}\n" for n in range(60_000)), "".join(f"x{n}\n" for n in range(60_000))
    box.put("big", old)
    result = box.tools["write_file"].handler({"path": "big", "content": new}, box.context)
    assert result.ok
    assert len(json.dumps(result.to_dict())) < 200_000
    assert all(len(json.dumps(line)) < 65_536 for line in box.records)


# 5.3


@row("5.3", "A producer's own limit is another thing than bounding, and says what it left out.")
def _(box: Box) -> None:
    box.put("many", "hit\n" * 3000)
    result = box.tools["grep_files"].handler({"pattern": "hit", "path": "many"}, box.context)
    assert result.data is not None
    assert (result.data["truncated"], result.artifacts) == (True, [])


# 7


@row("7", "One opaque value for built-in and application tools.")
def _(box: Box) -> None:
    with ToolRegistry(box.context).register({"mine": define()}):
        assert {type(t) for t in ToolRegistry(box.context).materialize().definitions} == {ToolDefinition}


@row("7", "Registration: application and location; location first, newest wins, closing falls back.")
def _(box: Box) -> None:
    application, location = ToolRegistry.application(), ToolRegistry(box.context)
    with application.register({"who": says("application")}):
        with location.register({"who": says("old")}), location.register({"who": says("new")}) as newest:
            assert said(location) == "new"
            newest.close()
            assert said(location) == "old"
        assert said(location) == "application"


@row("7", "Producers get a view that can only register.")
def _(box: Box) -> None:
    registrar = ToolRegistry(box.context).registrar
    assert [name for name in dir(registrar) if not name.startswith("_")] == ["register"]
    registrar.register({"who": says("registered")})
    assert said(ToolRegistry(box.context)) == "registered"


@row("7", "The output's boundary owns the managed paths.")
def _(box: Box) -> None:
    answer = ToolResult(ok=True, summary="s", data={"x": "y" * 60_000}, content=["s"])
    result = call(box, define(lambda args, context: answer))
    (artifact,) = result.artifacts
    assert artifact == f"artifacts/{box.records[-1]['id']}.json"
    assert (box.run_dir / artifact).stat().st_mode & 0o777 == 0o600


@row("7", "Gap: plugins.", "closed: `load_plugins`, of the entry points that the host allows (test_scopes.py)")
def _(box: Box) -> None:
    (report,) = ToolRegistry(box.context).load_plugins(["absent:tools"])
    assert (report.tools, "absent:tools" in str(report.error)) == ((), True)


@row("7", "Gap: MCP and session scope.", "closed: `session`, `replace`, `register_toolset` (test_toolsets.py)")
def _(box: Box) -> None:
    async def handler(args: Any, context: CallContext) -> ToolResult:
        return ToolResult(ok=True, summary="from a server")

    session = ToolRegistry(box.context).session("chat")
    batch = session.register({}, provider="toolset x")
    batch.replace({"who": define(handler, permission="who")})
    refused = asyncio.run(session.materialize().acall("who", {}))
    assert code(refused) == "approval_required"


@row("7", "Gap: opaque output references.", "closed: outputs are named by sandbox path; no host path of ours is told")
def _(box: Box) -> None:
    result = call(box, define(lambda args, context: ToolResult(ok=True, summary="s", content=["x\n" * 9000])))
    told = json.dumps(result.to_dict()) + text_of(result)
    logs = b"".join((box.run_dir / log).read_bytes() for log in ("logs/tools.jsonl", "events.jsonl"))
    assert str(box.root) not in told + logs.decode()


@pytest.mark.parametrize(
    ("section", "sentence", "deviation", "check"), ROWS, ids=[f"{r[0]}-{n}" for n, r in enumerate(ROWS)]
)
def test_the_architecture_of_the_seed(box: Box, section: str, sentence: str, deviation: str, check: Row) -> None:
    assert section in {"2.1", "2.2", "2.3", "2.4", "3.1", "3.2", "3.3", "4", "5.1", "5.2", "5.3", "7"}
    assert sentence
    check(box)
