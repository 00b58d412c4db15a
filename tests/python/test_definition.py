"""What an author gives: definitions, their projections and shapes, and `@tool`; and handlers that mean harm."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from support import Box, in_child, text_of

from kgent_tools import (
    CallContext,
    FileContent,
    RegistrationError,
    RunContext,
    TextContent,
    ToolDefinition,
    ToolFailure,
    ToolRegistry,
    ToolResult,
    build_toolsets,
    tool,
)

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        made.put("a", "one\n")
        yield made


def define(handler: Any, **options: Any) -> ToolDefinition:
    return ToolDefinition(**{"description": "d", "input_schema": SCHEMA, "handler": handler, **options})


def run(box: Box, definition: ToolDefinition, args: Any = None) -> ToolResult:
    """Calls a tool, and holds it to its one record."""
    registry = ToolRegistry(box.context)
    with registry.register({"mine": definition}):
        result = registry.materialize(box.policy).call("mine", args or {})
    box.check_record("mine", result)
    return result


def code(result: ToolResult) -> str | None:
    return result.error.code if result.error else None


# Definitions.


def test_a_plain_value_is_data_and_content(box: Box) -> None:
    answers: list[tuple[Any, Any, str]] = [
        ({"n": 1}, {"n": 1}, '{"n":1}'),
        ("two\nlines", {"result": "two\nlines"}, "two\nlines"),
        ([1, 2], {"result": [1, 2]}, "[1,2]"),
        (None, None, "done"),
    ]
    for answer, data, text in answers:
        result = run(box, define(lambda args, context, answer=answer: answer, to_data=lambda value: value))
        assert (result.data, text_of(result)) == (data, text)
    assert code(run(box, define(lambda args, context: {"n": 1}))) == "internal", (
        "without projections a ToolResult is due"
    )


def test_projections_see_the_answer(box: Box) -> None:
    result = run(
        box,
        define(
            lambda args, context: (1, b"\x89PNG"),
            to_data=lambda answer: {"count": answer[0]},
            to_content=lambda answer: ["a picture", FileContent("image/png", answer[1])],
            output_schema={"type": "object", "required": ["count"]},
        ),
    )
    assert (result.summary, result.data) == ("a picture", {"count": 1})
    assert [type(part) for part in result.content] == [TextContent, FileContent]
    for broken in (
        {"to_data": lambda answer: object()},
        {"to_data": lambda answer: 1 / 0},
        {"to_content": lambda answer: 5},
        {"to_content": lambda answer: 1 / 0},
        {"output_schema": {"type": "object", "required": ["missing"]}},
    ):
        assert code(run(box, define(lambda args, context: {"n": 1}, **broken))) == "internal"


def test_missing_data_breaks_an_output_schema(box: Box) -> None:
    answer = ToolResult(ok=True, summary="s")
    result = run(box, define(lambda args, context: answer, output_schema={"type": "object"}))
    assert code(result) == "internal"
    assert "output schema" in box.errors[-1]["cause"]


def test_with_permission_gives_another_tool(box: Box) -> None:
    first = define(lambda args, context: ToolResult(ok=True, summary="s"), permission="one")
    second = first.with_permission("two")
    assert (first.permission, second.permission, type(second)) == ("one", "two", ToolDefinition)
    run(box, second)
    assert box.records[-1]["permission"]["action"] == "two"
    for wrong in ("", "*", "a b"):
        with pytest.raises(RegistrationError):
            first.with_permission(wrong)


def test_resources_are_authorised_before_the_handler_runs(box: Box) -> None:
    calls: list[Any] = []

    def handler(args: Any, context: CallContext) -> ToolResult:
        calls.append(args)
        return ToolResult(ok=True, summary="s")

    def paths(args: Any) -> list[str]:
        return ["a", args["path"]]

    box.put(".env", "SECRET")
    for resources in (["path"], "path", paths):
        definition = define(handler, resources=resources)
        assert [code(run(box, definition, {"path": path})) for path in ("a", "../x")] == [None, "outside_sandbox"]
    assert len(calls) == 3

    def raises(args: Any) -> str:
        raise ToolFailure("which file?", code="invalid_args")

    for broken, expected in ((lambda args: 5, "internal"), (lambda args: 1 / 0, "internal"), (raises, "invalid_args")):
        assert code(run(box, define(handler, resources=broken))) == expected
    assert len(calls) == 3


def test_annotations(box: Box) -> None:
    assert define(print).annotations == {
        "read_only_hint": False,
        "destructive_hint": True,
        "idempotent_hint": False,
        "open_world_hint": True,
    }
    reads = define(print, annotations={"read_only_hint": True, "open_world_hint": False, "title": "Reads"})
    assert reads.annotations == {
        "title": "Reads",
        "read_only_hint": True,
        "destructive_hint": False,
        "idempotent_hint": True,
        "open_world_hint": False,
    }
    answer = ToolResult(ok=True, summary="s")
    for read_only, started in ((True, 0), (False, 1)):
        run(box, define(lambda args, context: answer, annotations={"read_only_hint": read_only}))
        assert [e["type"] for e in box.events].count("tool.started") == started


def test_wire_shapes(box: Box) -> None:
    named = define(print, name="mine")
    assert named.to_openai() == {
        "type": "function",
        "function": {"name": "mine", "description": "d", "parameters": SCHEMA},
    }
    assert named.to_anthropic() == {"name": "mine", "description": "d", "input_schema": SCHEMA}
    for built_in in build_toolsets(box.context):
        assert json.loads(json.dumps(built_in.to_anthropic()))["input_schema"] == built_in.input_schema
    for shape in (define(print).to_openai, define(print).to_anthropic):
        with pytest.raises(RegistrationError, match="no name"):
            shape()


def test_arguments_are_mended_as_for_built_in_tools(box: Box) -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "on": {"type": "boolean"},
            "all": {"type": "array", "items": {"type": "integer"}},
            "text": {"type": "string"},
        },
        "additionalProperties": False,
    }
    definition = define(lambda args, context: ToolResult(ok=True, summary="s", data={"got": args}), input_schema=schema)

    def got(**args: Any) -> Any:
        result = run(box, definition, args)
        return result.data["got"] if result.data else code(result)

    assert got(n="10", on="true", all="[1, 2]", text="10") == {"n": 10, "on": True, "all": [1, 2], "text": "10"}
    assert len(box.records[-1]["repairs"]) == 3
    assert got(n=10.0, text=None) == {"n": 10}
    refused: list[dict[str, Any]] = [
        {"n": "1.5"},
        {"n": "\u0661"},
        {"on": "yes"},
        {"text": 10},
        {"all": ["1"]},
        {"more": 1},
    ]
    for args in refused:
        assert got(**args) == "invalid_args", args
    loose = define(lambda args, context: ToolResult(ok=True, summary="s", data=args))
    assert run(box, loose, {"more": 1}).data == {"more": 1}, "unknown names follow additionalProperties"


# `@tool`.


def test_a_function_becomes_a_tool(box: Box) -> None:
    @tool
    def add(a: int, b: int = 2, mode: Literal["x", "y"] = "x", note: str | None = None, *, c: Any = None) -> int:
        """Adds numbers.

        More of it.

        Args:
            a: The first.
            b (int): The second,
                two at least.

        Returns:
            Their sum.
        """
        return a + b

    assert (add.name, add.description) == ("add", "Adds numbers.\n\nMore of it.")
    assert add.input_schema == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "The first."},
            "b": {"type": "integer", "description": "The second, two at least.", "default": 2},
            "mode": {"enum": ["x", "y"], "default": "x"},
            "note": {"type": "string"},
            "c": {},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    result = run(box, add, {"a": "3", "note": None})
    assert (result.summary, result.data) == ("5", {"result": 5})
    assert [code(run(box, add, args)) for args in ({}, {"a": 1, "z": 2}, {"a": 1, "mode": "z"})] == ["invalid_args"] * 3


def test_options_and_kinds_of_functions(box: Box) -> None:
    @tool(name="count", permission="counting", resources=["path"], annotations={"read_only_hint": True})
    def words(
        path: Annotated[str, "A file."],
        context: CallContext,
        only: str | None,
        many: list[int] | None = None,
        table: dict[str, float] | None = None,
        either: int | str = 1,
    ) -> ToolResult:
        assert only is None
        return ToolResult(ok=True, summary=context.sandbox.read_bytes(path).decode().strip())

    @tool
    async def later(n: int) -> dict[str, int]:
        return {"n": n}

    assert (words.name, words.permission, words.mutating) == ("count", "counting", False)
    assert words.input_schema["required"] == ["path"]
    assert words.input_schema["properties"] == {
        "path": {"type": "string", "description": "A file."},
        "only": {"type": "string"},
        "many": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "table": {"anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}], "default": 1},
    }
    assert run(box, words, {"path": "a"}).summary == "one"
    assert code(run(box, words, {"path": "../outside/secret"})) == "outside_sandbox"
    assert run(box, later, {"n": 1}).data == {"n": 1}


def test_functions_that_cannot_be_tools() -> None:
    def positional(a: int, /) -> int:
        return a

    def variable(*args: int) -> int:
        return 1

    def odd(a: complex) -> int:
        return 1

    def unknown(a: "Nowhere") -> int:  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
        return 1

    for function in (positional, variable, odd, unknown):
        with pytest.raises(RegistrationError, match=function.__name__):
            tool(function)


def test_pydantic_models(box: Box) -> None:
    pydantic = pytest.importorskip("pydantic")
    Order = pydantic.create_model("Order", item=(str, ...), count=(int, pydantic.Field(gt=0)))

    def take(order: Any) -> Any:
        assert type(order) is Order
        return order

    take.__annotations__ = {"order": Order}
    whole = tool(take)
    assert whole.input_schema == Order.model_json_schema()
    assert run(box, whole, {"item": "tea", "count": "2"}).data == {"item": "tea", "count": 2}
    assert code(run(box, whole, {"item": "tea", "count": 0})) == "invalid_args"

    def both(order: Any, note: str = "") -> Any:
        assert type(order) is Order
        return note

    both.__annotations__ = {"order": Order, "note": str}
    assert run(box, tool(both), {"order": {"item": "tea", "count": 2}, "note": "hot"}).summary == "hot"
    plain = define(lambda args, context: ToolResult(ok=True, summary=args["item"]), input_schema=Order)
    assert run(box, plain, {"item": "tea", "count": 1}).summary == "tea"


# Handlers that mean harm.


def hostile() -> dict[str, Callable[[Any, CallContext], Any]]:  # noqa: C901
    def recurses(args: Any, context: CallContext) -> Any:
        return recurses(args, context)

    def mutates(args: Any, context: CallContext) -> Any:
        args.clear()
        args["self"] = args
        return args

    def huge(args: Any, context: CallContext) -> ToolResult:
        return ToolResult(ok=True, summary="x" * 1_000_000, content=["x" * 100_000_000])

    def huge_data(args: Any, context: CallContext) -> ToolResult:
        return ToolResult(ok=True, summary="s", data={"x": "y" * 20_000_000})

    def overruns(args: Any, context: CallContext) -> ToolResult:
        time.sleep(0.3)
        return ToolResult(ok=True, summary="s")

    def forks(args: Any, context: CallContext) -> ToolResult:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return ToolResult(ok=True, summary="s")

    def raises_oddly(args: Any, context: CallContext) -> Any:
        class Odd(Exception):
            def __str__(self) -> str:
                raise SystemError

        raise Odd

    def looks_alike(args: Any, context: CallContext) -> Any:
        return type("ToolResult", (), {"ok": True, "summary": "s"})()

    return {
        "recurses": recurses,
        "mutates": mutates,
        "huge": huge,
        "huge_data": huge_data,
        "overruns": overruns,
        "forks": forks,
        "raises_oddly": raises_oddly,
        "looks_alike": looks_alike,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("recurses", "internal"),
        ("mutates", "internal"),
        ("huge", None),
        ("huge_data", None),
        ("overruns", "timeout"),
        ("forks", None),
        ("raises_oddly", "internal"),
        ("looks_alike", "internal"),
    ],
)
def test_a_hostile_handler_breaks_neither_the_record_nor_the_next_call(
    tmp_path: Path, name: str, expected: str | None
) -> None:
    with Box(tmp_path, {"limits": {"timeout_s": 0.2}} if name == "overruns" else None) as box:
        box.put("a", "one\n")
        result = run(box, define(hostile()[name]), {"path": "a"})
        assert code(result) == expected
        assert len(text_of(result).encode()) <= 51_200
        assert box.records[-1]["args"] == {"path": "a"}
        assert all(len(json.dumps(line)) < 65_536 for line in box.records)
        assert box.read("a") == "one\n"


def test_a_handler_that_leaves_the_process_in_a_child_harms_no_other(box: Box) -> None:
    def child() -> None:
        run(box, define(lambda args, context: os._exit(0)))

    in_child(child)
    box.new()
    assert box.read("a") == "one\n"


# Media and artifacts.


def test_a_file_of_more_than_5_mib_is_refused_with_its_size(box: Box) -> None:
    def gives(size: int) -> ToolDefinition:
        part = FileContent("image/png", b"x" * size)
        return define(lambda args, context: ToolResult(ok=True, summary="s", content=[part]))

    assert run(box, gives(5 << 20)).ok
    error = run(box, gives((5 << 20) + 1)).error
    assert error is not None
    assert (error.code, error.details) == ("too_large", {"done": True, "bytes": 5_242_881})
    assert "5242881" in error.message


def keep(box: Box) -> Path:
    """A stored artifact of the run."""
    result = run(box, define(lambda args, context: ToolResult(ok=True, summary=context.save_artifact("x", b"x"))))
    return box.run_dir / result.summary


def age(path: Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(path, (then, then), follow_symlinks=False)


def test_old_artifacts_are_swept_by_the_first_run_of_a_day(tmp_path: Path) -> None:
    with Box(tmp_path) as box:
        old, new, held = keep(box), keep(box), box.run_dir / "artifacts"
        secret = box.outside / "secret"
        link = held / old.name.replace("-x", "-link")
        link.symlink_to(secret)
        foreign = held / "notes.txt"
        foreign.write_text("mine", encoding="utf-8")
        deep = held / old.name.replace("-x", "-dir")
        deep.mkdir()
        for path in (old, link, foreign, deep, secret):
            age(path, 8)
        age(new, 6)
        runs = box.runs
        before = sorted(held.iterdir())
        age(runs, 1)
        RunContext.create(runs).close()
        assert sorted(held.iterdir()) == before, "a context uses the run"
    RunContext.create(runs).close()
    assert sorted(held.iterdir()) == before, "a run was made today already"
    age(runs, 1)
    with RunContext.create(runs, config={"limits": {"artifact_retention_days": 9}}):
        assert sorted(held.iterdir()) == before
    age(runs, 1)
    with RunContext.create(runs):
        assert sorted(held.iterdir()) == [path for path in before if path != old]
    assert secret.read_text(encoding="utf-8") == "TOPSECRET\n"
    assert (box.run_dir / "logs/tools.jsonl").exists()


def test_a_run_s_artifacts_take_at_most_a_gibibyte(box: Box) -> None:
    with (box.run_dir / "artifacts" / "filler").open("wb") as file:
        file.truncate((1 << 30) - 10)

    def stores(args: Any, context: CallContext) -> ToolResult:
        context.save_artifact("small", b"x" * 10)
        context.save_artifact("one-more", b"x")
        raise AssertionError

    error = run(box, define(stores)).error
    assert error is not None
    assert (error.code, "no room" in error.message) == ("too_large", True)
    assert len(list((box.run_dir / "artifacts").iterdir())) == 2
    long = run(box, define(lambda args, context: ToolResult(ok=True, summary="s", content=["line\n" * 5000])))
    assert "could not be stored" in text_of(long)
