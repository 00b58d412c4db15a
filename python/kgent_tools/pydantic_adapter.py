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
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

try:
    import anyio
    import anyio.to_thread
    from opentelemetry.trace import get_current_span
    from pydantic_ai import ApprovalRequired, BinaryContent, FunctionToolset, ModelRetry, Tool, ToolFailed, ToolReturn
    from pydantic_ai import RunContext as AgentContext
    from pydantic_ai.exceptions import UserError
except ImportError as error:
    raise ImportError(
        "kgent_tools.pydantic_adapter needs Pydantic AI 2.16 or later: pip install 'kgent_tools[pydantic-ai]'"
    ) from error

from kgent_tools import FileContent, TextContent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_core import SchemaValidator

    from kgent_tools import ErrorInfo, Grant, RunContext, SkillRegistry, ToolDefinition, ToolResult
    from kgent_tools._core import ToolHandler

__all__ = ["KgentToolset"]

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
    handler = definition.handler  # raises for a definition without a name

    async def call(ctx: AgentContext[Any], /, **args: Any) -> ToolReturn[Any]:
        try:
            result = await _settle(handler, _payload(args), context, ctx)
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
    handler: ToolHandler,
    args: dict[str, Any] | str,
    context: RunContext,
    ctx: AgentContext[Any],
) -> ToolResult:
    """One call, in a worker thread. When cancelled: stop it, wait for it, go on."""
    calls: list[RunContext] = []

    def settle() -> ToolResult:
        call = context.for_call(
            call_id=ctx.tool_call_id,
            conversation_id=ctx.conversation_id or ctx.run_id,
            step=ctx.run_step,
            agent=_agent_name(ctx),
            trace=_trace(),
            grant=_grant(context, ctx),
        )
        calls.append(call)
        return handler(args, call)

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
