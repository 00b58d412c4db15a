"""Tools of the application go through the same door as the built-in ones, and nothing goes round it."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import SINKS, Box, all_log_bytes, parse_lines, text_of

import kgent_tools
from kgent_tools import (
    CallContext,
    EffectivePermissionPolicy,
    ErrorInfo,
    KgentError,
    PermissionRule,
    PolicyError,
    RegistrationError,
    RunContext,
    TextContent,
    ToolDefinition,
    ToolFailure,
    ToolRegistry,
    ToolResult,
)

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "count": {"type": "integer"}},
    "additionalProperties": False,
}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        made.put("a", "one two three\n")
        yield made


def define(handler: Callable[[Any, CallContext], Any], **options: Any) -> ToolDefinition:
    given: dict[str, Any] = {"description": "d", "input_schema": SCHEMA, "handler": handler, **options}
    return ToolDefinition(**given)


def done(args: Any, context: CallContext) -> ToolResult:
    return ToolResult(ok=True, summary="done")


def run(box: Box, handler: Callable[[Any, CallContext], Any], args: Any = None, **options: Any) -> ToolResult:
    """Calls a tool with this handler, and holds it to its one record."""
    registry = ToolRegistry(box.context)
    with registry.register({"mine": define(handler, **options)}):
        result = registry.materialize(box.policy).call("mine", args or {})
    box.check_record("mine", result)
    return result


def test_a_python_tool_goes_through_the_same_door(box: Box) -> None:
    def count(args: dict[str, Any], context: CallContext) -> ToolResult:
        words = len(context.sandbox.read_bytes(args["path"]).split())
        return ToolResult(ok=True, summary=f"{words} words", data={"words": words})

    registry = ToolRegistry(box.context)
    registry.register({"word_count": define(count, permission="word_count", resources=["path"])})
    snapshot = registry.materialize(box.policy)
    result = snapshot.call("word_count", '{"path": "a"}', call_id="c1")
    assert result.to_dict() == {
        "ok": True,
        "summary": "3 words",
        "data": {"words": 3},
        "artifacts": [],
        "error": None,
    }
    parts = [part.text for part in result.content if isinstance(part, TextContent)]
    assert parts == ["3 words", '{"words":3}']
    record = box.check_record("word_count", result)
    assert record["permission"]["action"] == "word_count"
    assert record["permission"]["resource"] == "a"
    assert (record["call_id"], record["bytes_in"]) == ("c1", 14)
    for args, code in (
        ({"path": "../outside/secret"}, "outside_sandbox"),
        ({"path": ".env"}, "denied"),
        ({"path": "nope"}, "not_found"),
        ({"path": 5}, "invalid_args"),
        ({"path": "a", "more": 1}, "invalid_args"),
        ({"path": "a", "count": "x"}, "invalid_args"),
    ):
        box.put(".env", "SECRET\n")
        refused = snapshot.call("word_count", args)
        assert refused.error is not None
        assert refused.error.code == code
        box.check_record("word_count", refused)


def test_a_rule_on_its_own_action(tmp_path: Path) -> None:
    runtime = [PermissionRule("deploy", "prod/**", "deny"), PermissionRule("deploy", "stage/**", "ask")]
    with Box(tmp_path, runtime=runtime) as box:
        calls: list[str] = []

        def handler(args: dict[str, Any], context: CallContext) -> ToolResult:
            calls.append(args["path"])
            return ToolResult(ok=True, summary="deployed")

        options = {"permission": "deploy", "resources": ["path"]}
        codes = [
            (result := run(box, handler, {"path": path}, **options)).error and result.error.code
            for path in ("prod/x", "stage/x", "test/x")
        ]
        assert codes == ["denied", "approval_required", None]
        assert calls == ["test/x"]


def test_the_definition_is_opaque() -> None:
    definition = define(done)
    with pytest.raises(TypeError):
        type("Mine", (ToolDefinition,), {})
    for name in ("name", "description", "input_schema", "handler", "permission", "anything"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(definition, name, "x")
        with pytest.raises((AttributeError, TypeError)):
            delattr(definition, name)
    definition.input_schema["properties"]["evil"] = {}
    assert definition.input_schema == SCHEMA
    assert definition.name is None
    with pytest.raises(RegistrationError, match="not bound"):
        _ = definition.handler


@pytest.mark.parametrize(
    "name", ["RunContext", "CallContext", "ToolResult", "EffectivePermissionPolicy", "ToolsConfig"]
)
def test_core_types_are_final(name: str) -> None:
    with pytest.raises(TypeError):
        type("Mine", (getattr(kgent_tools, name),), {})


def test_core_objects_are_frozen(box: Box) -> None:
    result = box.ok("read_file", path="a")
    for value in (
        box.context,
        result,
        result.content[0],
        box.policy,
        box.context.config,
        box.tools["read_file"].handler,
    ):
        for name in [n for n in dir(value) if not n.startswith("__")] + ["anything"]:
            with pytest.raises((AttributeError, TypeError)):
                setattr(value, name, None)
    data = result.data
    assert data is not None
    data["content"] = "changed"
    result.artifacts.append("changed")
    assert (result.data or {})["content"] == "one two three\n"
    assert result.artifacts == []


def test_only_real_definitions_are_registered(box: Box) -> None:
    registry = ToolRegistry(box.context)

    class Looks:
        name, description, input_schema, handler = "x", "d", SCHEMA, staticmethod(done)

    for wrong in (Looks(), done, None, {"handler": done}, box.context):
        with pytest.raises(RegistrationError):
            registry.register({"x": wrong})  # type: ignore[dict-item]
    for name in ("", "1a", "a b", "a/b", "a.b", "x" * 65, "caf\u00e9", "_a", "a\n"):
        with pytest.raises(RegistrationError):
            registry.register({name: define(done)})
    with pytest.raises(RegistrationError):
        registry.register({"fine": define(done), "not fine": define(done)})
    assert [d.name for d in registry.materialize().definitions] == sorted(box.tools), "all or none"


def test_definitions_that_cannot_work_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"handler": 5},
        {"to_data": 5},
        {"to_content": "text"},
        {"permission": "*"},
        {"permission": ""},
        {"name": "a b"},
        {"input_schema": []},
        {"input_schema": {"type": 7}},
        {"input_schema": {"type": "object", "$ref": "https://example.com/schema.json"}},
        {"output_schema": {"type": "nonsense"}},
        {"resources": ["absent"]},
        {"annotations": {"readOnlyHint": True}},
        {"annotations": {"read_only_hint": 1}},
    ]
    for options in wrong:
        with pytest.raises((RegistrationError, TypeError)):
            define(**{"handler": done, **options})


def test_a_snapshot_is_not_changed_by_later_registrations(box: Box) -> None:
    registry = ToolRegistry(box.context)
    registry.register({"first": define(done)})
    before = registry.materialize()
    names = [d.name for d in before.definitions]
    second = registry.register({"second": define(done)})
    assert [d.name for d in before.definitions] == names
    result = before.call("second", {})
    assert result.error is not None
    assert result.error.code == "unknown_tool"
    assert [d.name for d in registry.materialize().definitions] == sorted([*map(str, names), "second"])
    second.close()
    assert [d.name for d in registry.materialize().definitions] == names
    assert before.call("first", {}).ok


def test_a_tool_that_was_closed_or_covered_is_stale(box: Box) -> None:
    registry = ToolRegistry(box.context)
    opened = registry.register({"mine": define(done)})
    snapshot = registry.materialize()
    bound = next(d for d in snapshot.definitions if d.name == "mine")
    cover = registry.register({"mine": define(lambda args, context: ToolResult(ok=True, summary="cover"))})
    box.new()
    for call in (lambda: snapshot.call("mine", {}), lambda: bound.handler({}, box.context)):
        result = call()
        assert result.error is not None
        assert (result.error.code, result.error.mendable) == ("stale_tool", True)
        box.check_record("mine", result)
    assert registry.materialize().call("mine", {}).summary == "cover"
    cover.close()
    cover.close()
    assert snapshot.call("mine", {}).summary == "done", "uncovered again"
    opened.close()
    stale = snapshot.call("mine", {})
    assert stale.error is not None
    assert stale.error.code == "stale_tool"


def test_a_host_may_cover_a_built_in(box: Box) -> None:
    registry = ToolRegistry(box.context)
    snapshot = registry.materialize()
    with registry.register({"read_file": define(done, permission="read_file")}):
        assert registry.materialize().call("read_file", {}).summary == "done"
        stale = snapshot.call("read_file", {"path": "a"})
        assert stale.error is not None
        assert stale.error.code == "stale_tool"
        assert box.tools["read_file"].handler({"path": "a"}, box.context).ok, "toolsets are fixed"
    assert snapshot.call("read_file", {"path": "a"}).ok


def test_a_filtered_tool_that_is_called_anyway_is_denied(box: Box) -> None:
    config = {"permissions": {"filesystem_write": False}}
    policy = EffectivePermissionPolicy.merge(config=config, context=box.context)
    registry = ToolRegistry(box.context)
    snapshot = registry.materialize(policy)
    assert "write_file" not in [d.name for d in snapshot.definitions]
    result = snapshot.call("write_file", {"path": "w", "content": "x"})
    assert result.error is not None
    assert result.error.code == "denied"
    assert box.check_record("write_file", result)["permission"]["layer"] == "config"
    assert not (box.ws / "w").exists()


def test_a_snapshot_does_not_need_its_registry_object(box: Box) -> None:
    """A registry is the context's own scope: letting go of the object closes nothing."""
    snapshot = ToolRegistry(box.context).materialize()
    gc.collect()
    assert snapshot.call("read_file", {"path": "a"}).ok


def test_a_policy_for_other_mounts_is_refused(box: Box, tmp_path: Path) -> None:
    with RunContext.create(tmp_path / "runs", mounts={"docs": tmp_path / "outside"}) as other:
        foreign = EffectivePermissionPolicy.merge(context=other)
        with pytest.raises(PolicyError, match="docs"):
            ToolRegistry(box.context).materialize(foreign)
        with pytest.raises(PolicyError):
            box.bind(foreign)
        with pytest.raises(PolicyError):
            box.tools["read_file"].handler({"path": "a"}, other)
    assert box.records == []


def test_exceptions_become_internal_with_the_cause_in_the_error_log_only(box: Box) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def raising(error: BaseException) -> Callable[[Any, CallContext], ToolResult]:
        def handler(args: Any, context: CallContext) -> ToolResult:
            raise error

        return handler

    for error, cause in (
        (ValueError("the CAUSE\nin two lines"), "ValueError"),
        (Odd(), "Odd"),
        (MemoryError(), "MemoryError"),
        (RecursionError("deep CAUSE"), "RecursionError"),
        (StopIteration("CAUSE"), "StopIteration"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "CAUSE"), "UnicodeDecodeError"),
        (KgentError("CAUSE"), "KgentError"),
        (ValueError("x\ud83c CAUSE"), "ValueError"),
    ):
        result = run(box, raising(error))
        assert result.error is not None
        assert (result.error.code, result.error.mendable) == ("internal", False)
        assert "CAUSE" not in repr(result.to_dict()) + text_of(result)
        assert cause in box.errors[-1]["cause"].split(":")[0]
    tools_and_events = b"".join((box.run_dir / sink).read_bytes() for sink in SINKS[:2])
    assert b"CAUSE" not in tools_and_events
    assert b"CAUSE" in all_log_bytes(box.run_dir)


def test_an_exception_that_a_door_raised_is_the_call_s_own_failure(box: Box) -> None:
    def handler(args: Any, context: CallContext) -> ToolResult:
        context.sandbox.write_bytes("../outside/x", b"x")
        raise AssertionError

    result = run(box, handler)
    assert result.error is not None
    assert (result.error.code, result.error.status) == ("outside_sandbox", "blocked")
    assert sorted(os.listdir(box.outside)) == ["secret"]


def test_tool_failure(box: Box) -> None:
    def handler(args: Any, context: CallContext) -> ToolResult:
        raise ToolFailure("the build is broken", hint="Mend line 3.", **args)

    schema = {"type": "object"}
    error = run(box, handler, input_schema=schema).error
    assert error == ErrorInfo("failed", "the build is broken", "Mend line 3.")
    for code in ("no_match", "not_found", "timeout", "io"):
        error = run(box, handler, {"code": code}, input_schema=schema).error
        assert error == ErrorInfo(code, "the build is broken", "Mend line 3.")
    assert run(box, handler, {"code": "made_up"}, input_schema=schema).error.code == "internal"  # type: ignore[union-attr]


def test_a_failed_result_is_a_failure(box: Box) -> None:
    def handler(args: Any, context: CallContext) -> ToolResult:
        return ToolResult(ok=False, summary="no", error=ErrorInfo("no_match", "nothing", "Look again."))

    error = run(box, handler).error
    assert error == ErrorInfo("no_match", "nothing", "Look again.")


@pytest.mark.parametrize("answer", [None, "text", {"ok": True}, 5, object(), ToolResult, ErrorInfo("io", "x")])
def test_a_wrong_return_type(box: Box, answer: Any) -> None:
    result = run(box, lambda args, context: answer)
    assert result.error is not None
    assert result.error.code == "internal"
    assert type(answer).__name__ in box.errors[-1]["cause"]


def test_a_handler_that_takes_other_arguments(box: Box) -> None:
    def handler() -> ToolResult:
        raise AssertionError

    assert run(box, handler).error.code == "internal"  # type: ignore[union-attr,arg-type]


def test_data_is_held_to_the_output_schema(box: Box) -> None:
    schema = {"type": "object", "properties": {"words": {"type": "integer"}}, "required": ["words"]}
    for data, code in (({"words": 1}, None), ({"words": "1"}, "internal"), ({}, "internal")):
        result = run(
            box, lambda args, context, data=data: ToolResult(ok=True, summary="s", data=data), output_schema=schema
        )
        assert (result.error and result.error.code) == code


def test_a_handler_cannot_change_what_is_recorded(box: Box) -> None:
    given = {"path": "a", "count": 1}

    def handler(args: dict[str, Any], context: CallContext) -> ToolResult:
        args["path"] = "/etc/passwd"
        args.clear()
        given["path"] = "changed"
        return ToolResult(ok=True, summary="s")

    run(box, handler, given, resources=["path"])
    assert box.records[-1]["args"] == {"path": "a", "count": 1}
    assert box.events[-2]["data"]["targets"] == [{"path": "a"}]


@pytest.mark.slow
def test_hostile_arguments_are_read_once(box: Box) -> None:
    """Objects that run code or change while they are read."""

    class Text(str):
        def __str__(self) -> str:
            return "../outside/secret"

        def encode(self, encoding: str = "", errors: str = "") -> bytes:
            return b"../outside/secret"

    class Dict(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return "../outside/secret"

        def items(self) -> Any:
            return [("path", "../outside/secret")]

    class Raising(dict[str, Any]):
        def __iter__(self) -> Any:
            raise KeyboardInterrupt

    for args in ({"path": Text("a")}, Dict(path="a"), Dict(path=Text("a"))):
        result = box.call("read_file", args)
        assert result.data is None or result.data["content"] == "one two three\n"
        assert "TOPSECRET" not in repr(result.to_dict())
    box.call("read_file", Raising(path="a"))
    changing: dict[str, Any] = {"path": "a"}
    stop = threading.Event()

    def change() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            changing[f"k{n % 50}"] = n
            changing.pop(f"k{(n + 7) % 50}", None)
            changing["path"] = "../outside/secret" if n % 2 else "a"

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            result = box.call("read_file", changing)
            assert "TOPSECRET" not in repr(result.to_dict())
    finally:
        stop.set()
        thread.join()


def test_the_context_is_dead_after_the_call(box: Box) -> None:
    kept: list[CallContext] = []

    def handler(args: Any, context: CallContext) -> ToolResult:
        kept.append(context)
        context.sandbox.write_bytes("w", b"in time")
        return ToolResult(ok=True, summary="s")

    assert run(box, handler).ok
    (context,) = kept
    before = all_log_bytes(box.run_dir)
    for work in (
        lambda: context.sandbox.read_bytes("a"),
        lambda: context.sandbox.write_bytes("w", b"late"),
        lambda: context.sandbox.list(),
        lambda: context.sandbox.stat("a"),
        lambda: context.save_artifact("x", b"late"),
        lambda: context.check("read_file", "a"),
    ):
        with pytest.raises(ToolFailure) as caught:
            work()
        assert caught.value.code == "cancelled"
    assert (box.ws / "w").read_bytes() == b"in time"
    assert list((box.run_dir / "artifacts").iterdir()) == []
    assert all_log_bytes(box.run_dir) == before


def test_a_call_context_grants_cancels_and_registers_nothing() -> None:
    names = {name for name in dir(CallContext) if not name.startswith("_")}
    assert names == {
        "agent",
        "call_id",
        "cancelled",
        "check",
        "conversation_id",
        "deadline",
        "id",
        "memory",
        "run_id",
        "sandbox",
        "save_artifact",
        "step",
    }
    with pytest.raises(TypeError):
        CallContext()


def test_the_doors_of_a_call_context(box: Box) -> None:
    def handler(args: Any, context: CallContext) -> ToolResult:
        context.sandbox.write_bytes("sub/w", b"\x00\xff")
        path = context.save_artifact("plot.svg", b"<svg/>")
        data = {
            "read": list(context.sandbox.read_bytes("sub/w")),
            "list": context.sandbox.list("sub"),
            "stat": context.sandbox.stat("a"),
            "check": [
                context.check("read_file", "a"),
                context.check("read_file", ".env"),
                context.check("shell", "ls"),
            ],
            "deadline": 0 < context.deadline <= 120,
            "cancelled": context.cancelled,
            "artifact": path == f"artifacts/{context.id}-plot.svg",
        }
        return ToolResult(ok=True, summary="s", data=data)

    result = run(box, handler)
    assert result.data == {
        "read": [0, 255],
        "list": [{"path": "sub/w", "type": "file", "size": 2}],
        "stat": {"type": "file", "size": 14},
        "check": ["allow", "deny", "deny"],
        "deadline": True,
        "cancelled": False,
        "artifact": True,
    }
    (artifact,) = result.artifacts
    assert (box.run_dir / artifact).read_bytes() == b"<svg/>"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a\0b", "x" * 101, "caf\u00e9"])
def test_artifact_names_are_plain(box: Box, name: str) -> None:
    def handler(args: Any, context: CallContext) -> ToolResult:
        return ToolResult(ok=True, summary=context.save_artifact(name, b""))

    assert run(box, handler).error.code == "invalid_args"  # type: ignore[union-attr]
    assert list((box.run_dir / "artifacts").iterdir()) == []


def test_data_over_the_limit_goes_to_an_artifact(box: Box) -> None:
    result = run(box, lambda args, context: ToolResult(ok=True, summary="s", data={"x": "y" * 60_000}))
    assert result.data is not None
    assert result.data["truncated"] is True
    assert result.data["artifact"] in result.artifacts
    assert len(text_of(result).encode()) <= 51_200


def test_calls_inside_calls(box: Box) -> None:
    registry = ToolRegistry(box.context)
    depths: list[int] = []

    def handler(args: dict[str, Any], context: CallContext) -> ToolResult:
        depth = args.get("count", 0)
        depths.append(depth)
        inner = registry.materialize().call("deep", {"count": depth + 1})
        return ToolResult(ok=True, summary=inner.summary)

    registry.register({"deep": define(handler)})
    result = registry.materialize().call("deep", {})
    assert result.ok
    assert depths == list(range(16))
    assert "16" in result.summary
    assert len(box.records) == 17


def test_keyboard_interrupt_passes_through_and_is_on_record(box: Box) -> None:
    for error in (KeyboardInterrupt, SystemExit, GeneratorExit):

        def handler(args: Any, context: CallContext, error: type[BaseException] = error) -> ToolResult:
            raise error

        registry = ToolRegistry(box.context)
        registry.register({"mine": define(handler)})
        with pytest.raises(error):
            registry.materialize().call("mine", {})
        new = box.new()
        assert [r["status"] for r in new[SINKS[0]]] == ["cancelled"]
        assert [e["type"] for e in new[SINKS[1]]][-1] == "tool.cancelled"
        assert [e["cause"].startswith(error.__name__) for e in new[SINKS[2]]] == [True]
    assert box.read("a") == "one two three\n"


# Cancelling and time: a search that would take minutes.


@pytest.fixture(scope="module")
def haystack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree whose search takes long: many links to one large file."""
    folder = tmp_path_factory.mktemp("haystack")
    first = folder / "0000"
    first.write_bytes(b"ab" * 100 + b"\n")
    with first.open("ab") as file:
        for _ in range(40):
            file.write((b"ab" * 500 + b"\n") * 1000)
    for n in range(1, 200):
        (folder / f"{n:04}").hardlink_to(first)
    return folder


SLOW_PATTERN = {"pattern": "[ab]*c[ab]{200}c", "output": "count"}


def slow_search(context: RunContext) -> ToolResult:
    (grep,) = (tool for tool in kgent_tools.build_toolsets(context) if tool.name == "grep_files")
    return grep.handler(SLOW_PATTERN, context)


def test_timeout_stops_a_long_search(haystack: Path, tmp_path: Path) -> None:
    with RunContext.create(tmp_path / "runs", workspace=haystack) as context:
        start = time.monotonic()
        result = slow_search(context.for_call(timeout_s=0.4))
        assert 0.3 < time.monotonic() - start < 1.5
        assert result.error is not None
        assert (result.error.code, result.error.status) == ("timeout", "timeout")
        (record,) = context.records()
        assert (record["status"], record["error"]["code"]) == ("timeout", "timeout")
        assert 300_000 < record["duration_us"] < 1_500_000


def test_cancel_stops_what_is_in_flight(haystack: Path, tmp_path: Path) -> None:
    with RunContext.create(tmp_path / "runs", workspace=haystack) as context:
        results: dict[str, ToolResult] = {}

        def search(name: str) -> None:
            results[name] = slow_search(context.for_call(call_id=name, timeout_s=20))

        threads = [threading.Thread(target=search, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        context.cancel("nobody")
        time.sleep(0.1)
        assert results == {}
        context.cancel("one")
        threads[0].join(2)
        assert list(results) == ["one"]
        context.cancel()
        threads[1].join(2)
        assert {name: result.error and result.error.code for name, result in results.items()} == {
            "one": "cancelled",
            "two": "cancelled",
        }
        assert sorted(r["call_id"] for r in context.records() if r["status"] == "cancelled") == ["one", "two"]
        (read,) = (tool for tool in kgent_tools.build_toolsets(context) if tool.name == "list_files")
        assert read.handler({}, context).ok, "later calls run"


def test_a_python_handler_sees_that_it_is_cancelled(box: Box) -> None:
    started = threading.Event()

    def handler(args: Any, context: CallContext) -> ToolResult:
        started.set()
        end = time.monotonic() + 10
        while not context.cancelled and time.monotonic() < end:
            time.sleep(0.005)
        context.sandbox.write_bytes("late", b"")
        raise AssertionError

    def cancel() -> None:
        started.wait()
        box.context.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    assert run(box, handler).error.code == "cancelled"  # type: ignore[union-attr]
    thread.join()
    assert not (box.ws / "late").exists()


def test_an_overrun_is_recorded_when_the_handler_returns(box: Box) -> None:
    """The deadline of a synchronous Python handler is cooperative; that it was missed is on record."""

    def handler(args: Any, context: CallContext) -> ToolResult:
        time.sleep(0.2)
        return ToolResult(ok=True, summary="late")

    registry = ToolRegistry(box.context)
    registry.register({"mine": define(handler)})
    bound = next(d for d in registry.materialize().definitions if d.name == "mine")
    result = bound.handler({}, box.context.for_call(timeout_s=0.05))
    assert result.error is not None
    assert result.error.code == "timeout"
    assert box.check_record("mine", result)["status"] == "timeout"


def test_control_c_ends_a_long_search_within_a_second(haystack: Path, tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from kgent_tools import RunContext, build_toolsets
context = RunContext.create(sys.argv[1], "r", workspace=sys.argv[2])
grep = next(tool for tool in build_toolsets(context) if tool.name == "grep_files")
print("ready", flush=True)
try:
    grep.handler({SLOW_PATTERN!r}, context)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "runs"), str(haystack)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.4)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"interrupted\n"
        assert time.monotonic() - start < 1
        assert process.wait(5) == 0
    (record,) = parse_lines((tmp_path / "runs/r/logs/tools.jsonl").read_bytes())
    assert (record["status"], record["error"]["code"], record["tool"]) == ("cancelled", "cancelled", "grep_files")
    events = parse_lines((tmp_path / "runs/r/events.jsonl").read_bytes())
    assert [e["type"] for e in events] == ["run.created", "tool.cancelled"]


def test_other_threads_run_while_a_search_does(haystack: Path, tmp_path: Path) -> None:
    """The GIL is released."""
    with RunContext.create(tmp_path / "runs", workspace=haystack) as context:
        thread = threading.Thread(target=slow_search, args=(context.for_call(timeout_s=0.5),))
        thread.start()
        longest, last = 0.0, time.monotonic()
        while thread.is_alive():
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        thread.join()
        assert longest < 0.25


def test_registering_and_calling_from_many_threads(box: Box) -> None:
    registry = ToolRegistry(box.context)
    failures: list[object] = []

    def work(which: int) -> None:
        for n in range(40):
            name = f"t{which}_{n}"
            with registry.register({name: define(done), "shared": define(done)}):
                snapshot = registry.materialize()
                result = snapshot.call(name, {})
                if not result.ok:
                    failures.append(result)
                shared = snapshot.call("shared", {})
                if shared.error is not None and shared.error.code != "stale_tool":
                    failures.append(shared)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [d.name for d in registry.materialize().definitions] == sorted(box.tools)
    assert len(box.records) == 320


def test_ten_thousand_tools(box: Box) -> None:
    registry = ToolRegistry(box.context)
    definition = define(done)
    start = time.monotonic()
    registry.register({f"tool_{n}": definition for n in range(10_000)})
    snapshot = registry.materialize()
    assert len(snapshot.definitions) == 10_000 + len(box.tools)
    assert snapshot.call("tool_9999", {}).ok
    assert time.monotonic() - start < 5


def test_content_of_a_python_tool_is_given_as_it_is(box: Box) -> None:
    parts = [TextContent("a"), kgent_tools.FileContent("image/png", b"\x89PNG")]
    result = run(box, lambda args, context: ToolResult(ok=True, summary="s", content=parts))
    first, second = result.content
    assert isinstance(first, TextContent)
    assert isinstance(second, kgent_tools.FileContent)
    assert (first.text, second.media_type, second.data) == ("a", "image/png", b"\x89PNG")
