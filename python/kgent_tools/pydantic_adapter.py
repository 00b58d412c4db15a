"""Governed tools as a Pydantic AI toolset (extra: `kgent_tools[pydantic-ai]`).

What the core answers, and what leaves this module; nothing else does, so no call of a tool can end an agent's run:

| core | Pydantic AI |
|---|---|
| ok | `ToolReturn`: the content, files as `BinaryContent`, `result.to_dict()` without secrets as metadata |
| an error that other arguments can mend, and a retry is left | `ModelRetry` |
| any other error, or no retry left | `ToolFailed` |
| `approval_required` | `ApprovalRequired`, with what is asked as metadata |

A cancelled call stops the core, waits until its record is written, and lets `CancelledError` go on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, cast

try:
    import anyio
    import anyio.to_thread
    from opentelemetry.trace import get_current_span
    from pydantic_ai import (
        ApprovalRequired,
        BinaryContent,
        CallDeferred,
        FunctionToolset,
        ModelRetry,
        Tool,
        ToolFailed,
        ToolReturn,
    )
    from pydantic_ai import RunContext as AgentContext
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.usage import RunUsage
    from pydantic_core import ValidationError, to_jsonable_python
except ImportError as error:
    raise ImportError(
        "kgent_tools.pydantic_adapter needs Pydantic AI 2.16 or later: pip install 'kgent_tools[pydantic-ai]'"
    ) from error

from kgent_tools import FileContent, RegistrationError, TextContent, ToolDefinition, ToolFailure
from kgent_tools._core import built_in_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
    from pydantic_core import SchemaValidator

    from kgent_tools import (
        CallContext,
        ErrorInfo,
        Grant,
        Registration,
        RunContext,
        SkillRegistry,
        ToolRegistry,
        ToolResult,
    )

__all__ = ["KgentToolset", "RegisteredToolset", "register_toolset"]

logger = logging.getLogger(__name__)

STOP_INTERVAL_S = 0.05


class KgentToolset(FunctionToolset[Any]):
    """A toolset of governed tools; it holds no state of the run, and its calls never block the event loop.

    Calls may run in parallel: the core orders writers of one file. A policy that says `ask` needs an agent that
    takes `DeferredToolRequests`. Two toolsets that offer the same name are told apart by `.prefixed("kgent")`.
    """

    def __init__(
        self,
        tools: Iterable[ToolDefinition],
        context: RunContext,
        id: str = "kgent",
        *,
        max_retries: int | None = None,
        skills: SkillRegistry | None = None,
        max_skill_characters: int = 8000,
    ) -> None:
        """Wraps `tools`, as `build_toolsets` or a snapshot gives them, for calls in `context`.

        Args:
            tools: Named definitions.
            context: The run that the calls belong to.
            id: The toolset's name, which durable engines need to be unique in an agent.
            max_retries: How often in a row the model may mend a call of one tool; the agent's number if `None`.
            skills: The skills that the agent's instructions list, where `tools` can load them; those that the run's
                configuration names if `None`.
            max_skill_characters: How long that list may be.
        """
        tools = list(tools)
        skills = context.skills if skills is None else skills
        catalogue = skills.instructions(max_skill_characters) if skills is not None else ""
        loadable = any(definition.name == "load_skill" for definition in tools)
        super().__init__(
            [_tool(definition, context) for definition in tools],
            id=id,
            max_retries=max_retries,
            instructions=catalogue if catalogue and loadable else None,
        )


def _tool(definition: ToolDefinition, context: RunContext) -> Tool[Any]:
    _ = definition.handler  # raises for a definition that is not bound

    async def call(ctx: AgentContext[Any], /, **args: Any) -> ToolReturn[Any]:
        try:
            result = await _settle(definition, _payload(args), context, ctx)
            if result.error is None:
                return ToolReturn(_content(result), metadata=context.redact(result.to_dict()))
            failure = _failure(result.error, ctx)
        except Exception as error:
            # The host's fault, such as a closed context: for its log, not for the model.
            logger.exception("kgent tool %s could not be called", definition.name)
            raise ToolFailed("internal: the tool could not be called; do not retry, report it") from error
        raise failure

    tool = Tool[Any].from_schema(
        call, cast("str", definition.name), definition.description, definition.input_schema, takes_ctx=True
    )
    tool.function_schema.validator = cast("SchemaValidator", _Arguments())
    tool.metadata = {
        "kgent": {
            "action": definition.permission,
            "capabilities": list(definition.capabilities),
            **definition.annotations,
        }
    }
    return tool


async def _settle(
    definition: ToolDefinition,
    args: dict[str, Any] | str,
    context: RunContext,
    ctx: AgentContext[Any],
) -> ToolResult:
    """One call: an async handler in place, any other in a worker thread. When cancelled: stop it, wait, go on."""
    calls: list[RunContext] = []

    def begin() -> RunContext:
        call = context.for_call(
            call_id=ctx.tool_call_id,
            conversation_id=ctx.conversation_id or ctx.run_id,
            step=ctx.run_step,
            agent=_agent_name(ctx),
            trace=_trace(),
            grant=_grant(context, ctx),
        )
        calls.append(call)
        return call

    def settle() -> ToolResult:
        return definition.handler(args, begin())

    if definition.is_async:
        # An approval is put on record first, which may wait for the log's lock.
        call = await anyio.to_thread.run_sync(begin) if ctx.tool_call_approved else begin()
        return await definition.acall(args, call)

    work = asyncio.ensure_future(anyio.to_thread.run_sync(settle))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            while True:  # a call that had yet to start is stopped by the next round
                for call in calls:
                    call.cancel(ctx.tool_call_id)
                if work.done():
                    break
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([work], timeout=STOP_INTERVAL_S)
        if not work.cancelled():
            work.exception()
        raise


def _grant(context: RunContext, ctx: AgentContext[Any]) -> Grant | None:
    """The approval of the call.

    In the process that was asked it is enough to approve the call's id; in another one the host passes the metadata of
    the request back: `DeferredToolResults(approvals=..., metadata=requests.metadata)`.
    """
    if not ctx.tool_call_approved or ctx.tool_call_id is None:
        return None
    request = ctx.tool_call_metadata or context.requested(ctx.tool_call_id)
    return context.grant(request) if request else None


def _failure(error: ErrorInfo, ctx: AgentContext[Any]) -> Exception:
    text = f"{error.message}\n{error.hint}" if error.hint else error.message
    if error.mendable and ctx.retry < ctx.max_retries:
        return ModelRetry(text)
    if error.code == "approval_required":
        return ApprovalRequired(metadata=error.details)
    return ToolFailed(f"{error.code}: {text}")


def _content(result: ToolResult) -> str | list[str | BinaryContent]:
    text = "\n".join(part.text for part in result.content if isinstance(part, TextContent))
    files = [
        BinaryContent(data=part.data, media_type=part.media_type)
        for part in result.content
        if isinstance(part, FileContent)
    ]
    return [text, *files] if files else text


def _agent_name(ctx: AgentContext[Any]) -> str | None:
    try:
        return ctx.agent.name if ctx.agent else None
    except UserError:  # a durable engine's context has no agent
        return None


def _trace() -> tuple[str, str] | None:
    span = get_current_span().get_span_context()
    return (f"{span.trace_id:032x}", f"{span.span_id:016x}") if span.is_valid else None


class _Arguments:
    """Stands where Pydantic AI validates arguments, and refuses none.

    A refusal here would spend the model's retries without a record and end the run with the last one. Text that is not
    one JSON object with unique keys goes on under the empty name, and `_payload` hands it to the core, which answers
    and records it.
    """

    def validate_json(self, text: str, **_: object) -> dict[str, Any]:
        args = _json_object(text)
        return {"": text} if args is None else args

    def validate_python(self, args: dict[str, Any], **_: object) -> dict[str, Any]:
        return args


def _payload(args: dict[str, Any]) -> dict[str, Any] | str:
    text = args.get("")
    return text if len(args) == 1 and isinstance(text, str) and _json_object(text) is None else args


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key comes twice")
    return members


async def register_toolset(
    session: ToolRegistry, toolset: AbstractToolset[Any], *, id: str | None = None
) -> RegisteredToolset:
    """Registers the tools of an MCP server, or of any other Pydantic AI toolset, for governed calls.

    They ask unless a rule allows them, and are bounded and recorded like every other tool. The host keeps the toolset
    open for as long as it is used: `async with toolset: ...`. Calls are awaited: `snapshot.acall`, or `KgentToolset`.

    Args:
        session: The scope that gets the tools, such as `ToolRegistry(context).session("chat-1")`.
        toolset: The toolset, such as `MCPToolset`.
        id: Its name in records, and the prefix of a tool's name that is taken; the toolset's own if `None`.
    """
    registered = RegisteredToolset(session, toolset, id or toolset.id or type(toolset).__name__)
    await registered.refresh()
    return registered


class RegisteredToolset:
    """The registration of a toolset's tools. `close()`, or the end of `with`, takes it back."""

    def __init__(self, session: ToolRegistry, toolset: AbstractToolset[Any], id: str) -> None:
        """Begins with no tools; `refresh` brings them."""
        self._toolset = toolset
        self._id = id
        self._context = AgentContext[Any](deps=None, model=TestModel(), usage=RunUsage())
        self._tools: dict[str, ToolsetTool[Any]] = {}
        self._made: dict[str, tuple[Any, ToolDefinition]] = {}
        self._refreshing = asyncio.Lock()
        self._registration: Registration = session.register({}, provider=f"toolset {id}")
        self.names: dict[str, str] = {}
        """The name that each of the toolset's tools is registered under."""
        self.refused: dict[str, str] = {}
        """The tools that could not be registered, and why."""

    async def refresh(self) -> None:
        """Asks the toolset for its tools again. The new list replaces the old one at once and keeps its place."""
        async with self._refreshing:
            tools = await self._toolset.get_tools(self._context)
            names, made = _legal_names(tools, self.names, self._id), dict[str, tuple[Any, ToolDefinition]]()
            self.refused = {}
            for own, tool in tools.items():
                before = self._made.get(own)
                try:
                    unchanged = before is not None and before[0] == tool.tool_def
                    made[own] = before if before and unchanged else (tool.tool_def, self._define(own, tool))
                except RegistrationError as error:
                    self.refused[own] = str(error)
            self._registration.replace({names[own]: definition for own, (_, definition) in made.items()})
            self._tools, self._made, self.names = tools, made, {own: names[own] for own in made}

    def close(self) -> None:
        """Takes the tools back. The toolset itself is the host's to close."""
        self._registration.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _define(self, own: str, tool: ToolsetTool[Any]) -> ToolDefinition:
        async def handler(args: dict[str, Any], context: CallContext) -> Any:
            return await self._call(own, args, context)

        # What a server says of its tools is not to be relied on: without annotations, each call counts as a change.
        return ToolDefinition(
            description=tool.tool_def.description or own,
            input_schema=tool.tool_def.parameters_json_schema,
            handler=handler,
            to_data=_data_of,
            to_content=_parts_of,
        )

    async def _call(self, own: str, args: dict[str, Any], context: CallContext) -> Any:
        tool = self._tools.get(own)
        if tool is None:
            raise ToolFailure(f"the server has no tool `{own}` any more", code="stale_tool")
        ctx = replace(self._context, tool_call_id=context.call_id or context.id, tool_name=own)
        try:
            given = tool.args_validator.validate_python(args)
            if tool.args_validator_func is not None:
                checked = tool.args_validator_func(ctx, **given)
                if asyncio.iscoroutine(checked):
                    await checked
            return await self._toolset.call_tool(own, given, ctx, tool)
        except ValidationError as error:
            raise ToolFailure(str(error), "Send arguments that fit the tool's schema.", "invalid_args") from error
        except (ModelRetry, ToolFailed) as error:
            raise ToolFailure(error.message) from error
        except (ApprovalRequired, CallDeferred) as error:
            raise ToolFailure("the tool waits for an answer from outside, which it cannot get here") from error


def _legal_names(tools: Iterable[str], before: dict[str, str], id: str) -> dict[str, str]:
    """A legal name for each tool, unique, and the same as before where it had one."""
    taken = {*built_in_names(), *before.values()}
    names: dict[str, str] = {}
    for own in tools:
        name = before.get(own) or _legal(own)
        if own not in before and name in taken:
            name = _legal(f"{id}_{own}")
        stem, number = name, 1
        while own not in before and name in taken:
            number += 1
            name = f"{stem[:59]}_{number}"
        names[own] = name
        taken.add(name)
    return names


def _legal(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return (plain if plain[:1].isalpha() else f"t_{plain}")[:64]


def _data_of(answer: Any) -> Any:
    value = answer.return_value if isinstance(answer, ToolReturn) else answer
    if isinstance(value, (str, BinaryContent)) or value is None:
        return None
    if isinstance(value, list):
        value = [_named(part) for part in cast("list[object]", value)]
    return to_jsonable_python(value, fallback=str)


def _named(part: object) -> object:
    return f"[{part.media_type}, {len(part.data)} bytes]" if isinstance(part, BinaryContent) else part


def _parts_of(answer: Any) -> list[str | TextContent | FileContent]:
    if isinstance(answer, ToolReturn):
        shown: Any = answer.content
        return [*_parts_of(answer.return_value), *(_parts_of(shown) if shown else [])]
    parts = cast("list[object]", answer) if isinstance(answer, list) else [answer]
    return [_part_of(part) for part in parts]


def _part_of(part: object) -> str | FileContent:
    if isinstance(part, str):
        return part
    if isinstance(part, BinaryContent):
        return FileContent(part.media_type, part.data)
    return "done" if part is None else json.dumps(to_jsonable_python(part, fallback=str), ensure_ascii=False)
