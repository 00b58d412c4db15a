"""What the author of a tool in Python needs."""

from __future__ import annotations

import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Union, cast, get_args, get_origin, overload

if TYPE_CHECKING:
    from kgent_tools._core import CallContext, ToolDefinition

__all__ = ["ToolFailure", "tool"]

DEPTH: ContextVar[int] = ContextVar("kgent_tools.depth", default=0)
"""How many calls the running code is inside of, over tasks and threads."""

PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


class ToolFailure(Exception):
    """What a handler raises when it cannot do what it was asked: the call ends as a failed result, not as a defect."""

    def __init__(self, message: str, hint: str | None = None, code: str = "failed") -> None:
        """Says what was wrong and, in `hint`, what to send instead; `code` is one of the stable error codes."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code

    def __reduce__(self) -> tuple[type[ToolFailure], tuple[str, str | None, str]]:
        return type(self), (self.message, self.hint, self.code)


@overload
def tool(function: Callable[..., Any], /) -> ToolDefinition: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    permission: str | None = None,
    resources: str | Sequence[str] | Callable[[Any], str | Sequence[str]] | None = None,
    annotations: Mapping[str, bool | str] | None = None,
) -> Callable[[Callable[..., Any]], ToolDefinition]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    permission: str | None = None,
    resources: str | Sequence[str] | Callable[[Any], str | Sequence[str]] | None = None,
    annotations: Mapping[str, bool | str] | None = None,
) -> ToolDefinition | Callable[[Callable[..., Any]], ToolDefinition]:
    """Makes a tool of a function, sync or async: `@tool`, or `@tool(permission="deploy")`.

    The schema comes from the signature, the description and those of the arguments from the docstring. A parameter
    named `context` gets the `CallContext`. Types may be `str`, `int`, `float`, `bool`, `None`, `Any`, `Literal`,
    `list`, `dict`, unions of them, `Annotated[type, "description"]` and Pydantic models; a Pydantic model that is the
    only parameter is the whole input. The function returns a `ToolResult`, or a plain value that becomes the data.

    Args:
        function: The function.
        name: Its name as a tool; the function's name if `None`.
        description: What the model reads about it; the docstring's first part if `None`.
        permission: The action that a call asks for; the tool's name if `None`.
        resources: The arguments that hold sandbox paths, or a function of the arguments that gives the paths.
        annotations: What it does to the world, as for `ToolDefinition`.

    Raises:
        RegistrationError: A parameter has a type that no schema can be made of.
    """
    options = {"permission": permission, "resources": resources, "annotations": annotations}
    if function is None:
        return lambda function: _define(function, name, description, options)
    return _define(function, name, description, options)


def _define(
    function: Callable[..., Any], name: str | None, description: str | None, options: dict[str, Any]
) -> ToolDefinition:
    from kgent_tools._core import ToolDefinition

    text, about = _docstring(function)
    signature = _Signature(function, about)
    name = name or function.__name__

    async def later(args: dict[str, Any], context: CallContext) -> Any:
        return _plain(await function(**signature.arguments(args, context)))

    def now(args: dict[str, Any], context: CallContext) -> Any:
        return _plain(function(**signature.arguments(args, context)))

    return ToolDefinition(
        name=name,
        description=description or text or name,
        input_schema=signature.schema,
        handler=later if inspect.iscoroutinefunction(function) else now,
        to_data=_same,
        **options,
    )


def _same(value: Any) -> Any:
    return value


def _plain(value: Any) -> Any:
    """The value of a Pydantic model as JSON has it."""
    return value.model_dump(mode="json") if _is_model(type(value)) else value


def _is_model(kind: Any) -> bool:
    """Whether it is a Pydantic model, without importing Pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate")


class _Signature:
    """A function's parameters: their schema, and how arguments become them."""

    def __init__(self, function: Callable[..., Any], about: dict[str, str]) -> None:
        self.function = function
        self.about = about
        self.models: dict[str, Any] = {}
        self.nullable: dict[str, None] = {}
        self.required: list[str] = []
        self.definitions: dict[str, Any] = {}
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except NameError as error:
            raise self.wrong(f"an annotation cannot be read: {error}") from error
        parameters = dict(inspect.signature(function).parameters)
        self.takes_context = parameters.pop("context", None) is not None
        properties = {name: self.property(one, hints.get(name, Any)) for name, one in parameters.items()}
        self.schema: dict[str, Any]
        self.whole = next(iter(properties)) if len(properties) == 1 and self.models else None
        if self.whole:
            self.schema = self.models[self.whole].model_json_schema()
            return
        self.schema = {"type": "object", "properties": properties, "required": self.required}
        self.schema["additionalProperties"] = False
        if self.definitions:
            self.schema["$defs"] = self.definitions

    def wrong(self, why: str) -> Exception:
        from kgent_tools._core import RegistrationError

        return RegistrationError(f"the function {self.function.__name__} cannot be a tool: {why}")

    def property(self, parameter: inspect.Parameter, hint: Any) -> dict[str, Any]:
        """The schema of one parameter."""
        name, default = parameter.name, parameter.default
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise self.wrong(f"`{parameter}` cannot be given by name")
        try:
            schema = _schema(hint, self.definitions)
        except TypeError as error:
            raise self.wrong(f"`{name}`: {error}") from error
        if _is_model(hint):
            self.models[name] = hint
        if name in self.about:
            schema = {**schema, "description": self.about[name]}
        if default is parameter.empty and type(None) in get_args(hint):
            self.nullable[name] = None  # null counts as absent
        elif default is parameter.empty:
            self.required.append(name)
        elif default is not None and _is_json(default):
            schema = {**schema, "default": default}
        return schema

    def arguments(self, args: dict[str, Any], context: CallContext) -> dict[str, Any]:
        """Decoded arguments as the function takes them."""
        given: dict[str, Any] = {self.whole: args} if self.whole else {**self.nullable, **args}
        for name, model in self.models.items():
            if name in given:
                given[name] = _validated(model, given[name])
        if self.takes_context:
            given["context"] = context
        return given


def _validated(model: Any, value: Any) -> Any:
    try:
        return model.model_validate(value)
    except ValueError as error:
        raise ToolFailure(str(error), "Send arguments that fit the tool's schema.", "invalid_args") from error


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of an annotation."""
    if hint is Any:
        return {}
    if hint is None or (isinstance(hint, type) and hint in PLAIN):
        return {"type": PLAIN[type(None) if hint is None else hint]}
    if _is_model(hint):
        schema: dict[str, Any] = cast("Any", hint).model_json_schema()
        definitions.update(schema.pop("$defs", {}))
        return schema
    of = functools.partial(_schema, definitions=definitions)
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin is typing.Annotated:
        text = next((part for part in parts[1:] if isinstance(part, str)), None)
        return {**of(parts[0]), **({"description": text} if text else {})}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (Union, types.UnionType):
        return _union(parts, of)
    if origin in (list, Sequence):
        return {"type": "array", **({"items": of(parts[0])} if parts else {})}
    if origin in (dict, Mapping) and (not parts or parts[0] is str):
        return {"type": "object", **({"additionalProperties": of(parts[1])} if parts else {})}
    raise TypeError(f"no schema can be made of {hint!r}; give ToolDefinition an input_schema instead")


def _union(parts: Sequence[Any], of: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """A union; `X | None` keeps the plain type of `X`, since an optional argument that is null counts as absent."""
    some = [part for part in parts if part is not type(None)]
    if len(some) == 1 and some[0] in PLAIN:
        return of(some[0])
    return {"anyOf": [of(part) for part in parts]}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description, and what an `Args:` section says of each argument."""
    text, _, rest = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    text = re.split(r"\n(?:Returns|Raises|Yields|Note|Example)s?:\n", text)[0]
    about: dict[str, str] = {}
    name = ""
    for line in rest.splitlines():
        if line and not line.startswith(" "):
            break
        found = re.match(r" {1,4}(\w+)(?: \([^)]*\))?: (.*)", line)
        if found:
            name, about[found[1]] = found[1], found[2].strip()
        elif name and line.strip():
            about[name] += " " + line.strip()
    return text.strip(), about
