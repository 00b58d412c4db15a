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
import errno
import json
import logging
import os
import posixpath
import re
import tempfile
import threading
import uuid
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, cast

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
        messages,
    )
    from pydantic_ai import RunContext as AgentContext
    from pydantic_ai._run_context import get_current_run_context
    from pydantic_ai.capabilities import AbstractCapability, WrapRunHandler
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.usage import RunUsage
    from pydantic_core import ValidationError, to_jsonable_python
except ImportError as error:
    raise ImportError(
        "kgent_tools.pydantic_adapter needs Pydantic AI 2.16 or later: pip install 'kgent_tools[pydantic-ai]'"
    ) from error

from kgent_tools import (
    EffectivePermissionPolicy,
    FileContent,
    RegistrationError,
    RunContext,
    RunError,
    TextContent,
    ToolDefinition,
    ToolFailure,
    ToolRegistry,
    ToolsConfig,
)
from kgent_tools._acall import stopped
from kgent_tools._core import build_workspace, built_in_names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from pydantic_ai import AgentRunResult, ModelMessage
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
    from pydantic_ai.workspaces import FileEntry, WorkspaceRef
    from pydantic_core import SchemaValidator

    from kgent_tools import (
        CallContext,
        ErrorInfo,
        Grant,
        Registration,
        SkillRegistry,
        ToolResult,
    )

    Find: TypeAlias = Callable[[AgentContext[Any]], tuple[ToolDefinition, RunContext, dict[str, Any] | None]]
    Settled: TypeAlias = Callable[[AgentContext[Any], ToolResult, RunContext], Awaitable[None]]
    ScriptedCall: TypeAlias = tuple[str, dict[str, Any] | str]
    Turn: TypeAlias = ScriptedCall | Sequence[ScriptedCall] | str

__all__ = ["Kgent", "KgentToolset", "KgentWorkspace", "RegisteredToolset", "register_toolset", "scripted_model"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
MAX_OPEN_QUESTIONS = 1000


HAS_EVENTS = hasattr(messages, "CapabilityEvent")
if HAS_EVENTS:
    __all__ += ["ToolSettledEvent"]

if TYPE_CHECKING or HAS_EVENTS:

    @dataclass(kw_only=True)
    class ToolSettledEvent(messages.CapabilityEvent, namespace="kgent", name="tool_settled"):
        """A call of one of `Kgent`'s tools ended and is on record, under the same `tool_call_id`.

        It comes in the agent's event stream where Pydantic AI has typed events (2.45 does, 2.30 does not). Like the record
        it holds no secrets.
        """

        run_id: str
        """The run whose records tell the rest."""
        status: str
        """`completed`, `failed`, `blocked`, `timeout` or `cancelled`."""
        code: str | None
        """The error's, such as `denied`, or `approval_required` of a call that waits for its approval."""
        summary: str
        """One line."""
        artifacts: list[str]
        """Sandbox paths of stored large outputs."""
        layer: str | None
        """The layer of the policy that blocked the call."""
        rule: str | None
        """Its rule."""


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
        super().__init__(
            _bound(tools, context),
            id=id,
            max_retries=max_retries,
            instructions=_catalogue(tools, skills, max_skill_characters),
        )
        self._snapshot: Callable[[], list[Tool[Any]]] | None = None

    @classmethod
    def from_registry(
        cls,
        registry: ToolRegistry,
        policy: EffectivePermissionPolicy | None,
        context: RunContext,
        id: str = "kgent",
        *,
        max_retries: int | None = None,
    ) -> Self:
        """A toolset that offers in each model request what `registry` holds then.

        A call of a tool that was closed or covered since the request is `stale_tool`. Durable engines need tools that
        stay the same: give them the definitions of one snapshot.

        Args:
            registry: The tools of the run, or of one session of it.
            policy: Under which they are offered and called; the configuration's if `None`.
            context: The run.
            id: As above.
            max_retries: As above.
        """
        toolset = cls(registry.materialize(policy).definitions, context, id, max_retries=max_retries)
        toolset._snapshot = lambda: _bound(registry.materialize(policy).definitions, context)
        return toolset

    async def get_tools(self, ctx: AgentContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools of this model request."""
        if self._snapshot is None:
            return await super().get_tools(ctx)
        offered = FunctionToolset(self._snapshot(), id=self.id, max_retries=self.max_retries)
        return {name: replace(tool, toolset=self) for name, tool in (await offered.get_tools(ctx)).items()}


def _catalogue(tools: list[ToolDefinition], skills: SkillRegistry | None, max_characters: int) -> str | None:
    """The skills as text for instructions, where the tools can load them."""
    if skills is None or all(definition.name != "load_skill" for definition in tools):
        return None
    return skills.instructions(max_characters) or None


def _bound(tools: Iterable[ToolDefinition], context: RunContext) -> list[Tool[Any]]:
    """Tools whose run is known."""

    def bind(definition: ToolDefinition) -> Tool[Any]:
        _ = definition.handler  # raises for a definition that is not bound

        def find(ctx: AgentContext[Any]) -> tuple[ToolDefinition, RunContext, dict[str, Any] | None]:
            approved = ctx.tool_call_id if ctx.tool_call_approved else None
            return definition, context, context.requested(approved) if approved else None

        return _tool(definition, find)

    return [bind(definition) for definition in tools]


def _tool(definition: ToolDefinition, find: Find, settled: Settled | None = None) -> Tool[Any]:
    """A tool as agents see `definition`.

    `find` says, in a worker thread, what is called, in which run, and what this process was asked before if the call is
    approved; `settled` gets what came of it.
    """

    async def call(ctx: AgentContext[Any], /, **args: Any) -> ToolReturn[Any]:
        try:
            result, context = await _settle(definition, find, _payload(args), ctx)
            if settled is not None:
                await settled(ctx, result, context)
            if result.error is None:
                return ToolReturn(_content(result), metadata=context.redact(result.to_dict()))
            failure = _failure(result.error, ctx)
        except ToolFailed:
            raise
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
    definition: ToolDefinition, find: Find, args: dict[str, Any] | str, ctx: AgentContext[Any]
) -> tuple[ToolResult, RunContext]:
    """One call: an async handler in place, any other in a worker thread. When cancelled: stop it, wait, go on."""
    calls: list[RunContext] = []

    def begin() -> tuple[ToolDefinition, RunContext]:
        found, context, asked = find(ctx)
        call = context.for_call(
            call_id=ctx.tool_call_id,
            conversation_id=ctx.conversation_id or ctx.run_id,
            step=ctx.run_step,
            agent=_agent_name(ctx),
            trace=_trace(),
            grant=_grant(context, ctx, asked),
        )
        calls.append(call)
        return found, call

    def settle() -> tuple[ToolResult, RunContext]:
        found, call = begin()
        return found.handler(args, call), call

    if definition.is_async:
        # The run may have yet to be made, and an approval is put on record, which may wait for the log's lock.
        found, call = await anyio.to_thread.run_sync(begin)
        return await found.acall(args, call), call

    return await _in_thread(settle, calls, ctx.tool_call_id)


async def _in_thread(settle: Callable[[], T], calls: list[RunContext], call_id: str | None) -> T:
    """`settle` in a worker thread; `calls` gets the call once it is begun. When cancelled: stop it, wait, go on."""
    work = asyncio.ensure_future(anyio.to_thread.run_sync(settle))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:

        def stop() -> None:
            for call in calls:
                call.cancel(call_id)

        with anyio.CancelScope(shield=True):
            await stopped(work, stop)
        raise


def _grant(context: RunContext, ctx: AgentContext[Any], asked: dict[str, Any] | None) -> Grant | None:
    """The approval of the call.

    In the process that was asked it is enough to approve the call's id; in another one the host passes the metadata of
    the request back: `DeferredToolResults(approvals=..., metadata=requests.metadata)`.
    """
    request = ctx.tool_call_metadata or asked
    return context.grant(request) if ctx.tool_call_approved and request else None


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


@dataclass
class Kgent(AbstractCapability[Any]):
    """Governed tools as a capability: `Agent(..., capabilities=[Kgent(workspace=".")])`, and by name in agent specs.

    It offers the built-in tools, and those of `ToolRegistry.application()`, as they were when it was made, and tells the
    model where it may read and write and which skills there are. The folder of a run is made by the run's first call. An
    approval is granted in the run that asked, also when another agent run brings it.

    Raises:
        ConfigError, RunError: The configuration or the workspace cannot be used.
    """

    workspace: str | os.PathLike[str] = "."
    """The project that the tools work on; a relative path starts in today's directory."""

    _: KW_ONLY

    runs: str | os.PathLike[str] | None = None
    """The folder that keeps the runs; `kgent_tools/runs` in the XDG state directory if `None`."""

    config: ToolsConfig | dict[str, Any] | str | os.PathLike[str] | None = None
    """The configuration, or the path of its TOML file."""

    run_id: str | None = None
    """A run that all agent runs share, which is made where it is missing; each has its own, of its id, if `None`."""

    max_retries: int | None = None
    """How often in a row the model may mend a call of one tool; the agent's number if `None`."""

    id: str | None = "kgent"

    def __post_init__(self) -> None:
        """Learns from a run that is thrown away what every run will offer."""
        self._place = Path(self.workspace).expanduser().absolute()
        self._settings = _settings(self.config)
        self._home = _state_directory() if self.runs is None else Path(self.runs).expanduser().absolute()
        self._lock = threading.Lock()
        self._open: dict[str, _OpenRun] = {}
        self._asked: dict[str, dict[str, Any]] = {}
        with (
            tempfile.TemporaryDirectory() as folder,
            RunContext.create(folder, workspace=self._place, config=self._settings) as context,
        ):
            tools = ToolRegistry(context).materialize().definitions
            self._instructions = _instructions(tools, context)
            made = [self._tool(definition) for definition in tools]
        self._toolset = FunctionToolset[Any](made, id=self.id, max_retries=self.max_retries)

    def get_toolset(self) -> FunctionToolset[Any]:
        """The same tools for every run."""
        return self._toolset

    def get_instructions(self) -> str:
        """The mounts, what is writable, and the skills."""
        return self._instructions

    async def wrap_run(self, ctx: AgentContext[Any], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Closes the runs that this agent run was the last to use."""
        try:
            return await handler()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._release, ctx.run_id)

    def close(self) -> None:
        """Closes runs that calls outside an agent's run have left open, such as those of a durable engine's worker."""
        with self._lock:
            runs, self._open = list(self._open.values()), {}
        for run in runs:
            run.context.close()

    def _tool(self, definition: ToolDefinition) -> Tool[Any]:
        name = cast("str", definition.name)

        def find(ctx: AgentContext[Any]) -> tuple[ToolDefinition, RunContext, dict[str, Any] | None]:
            asked = self._question(ctx)
            run = self._run(ctx.run_id or "", self.run_id or _run_of(asked) or ctx.run_id)
            if name not in run.tools:
                raise ToolFailed(f"stale_tool: there is no tool `{name}` any more")
            return run.tools[name], run.context, asked

        return _tool(definition, find, self._settled)

    async def _settled(self, ctx: AgentContext[Any], result: ToolResult, context: RunContext) -> None:
        """Tells whoever streams the agent run what came of a call."""
        error = result.error
        if error is not None and error.code == "approval_required" and ctx.tool_call_id is not None:
            self._remember(ctx.tool_call_id, error.details or {})
        if HAS_EVENTS:
            said = context.redact({"summary": result.summary, "details": (error and error.details) or {}})
            event = ToolSettledEvent(
                run_id=context.run_id,
                status=error.status if error else "completed",
                code=error.code if error else None,
                summary=said["summary"],
                artifacts=list(result.artifacts),
                layer=said["details"].get("layer"),
                rule=said["details"].get("rule"),
            )
            with suppress(UserError):  # a durable engine's activity has no stream
                await ctx.emit(event)

    def _remember(self, call_id: str, request: dict[str, Any]) -> None:
        """Keeps what was asked until its answer comes in another agent run; the oldest questions are forgotten."""
        with self._lock:
            self._asked[call_id] = request
            if len(self._asked) > MAX_OPEN_QUESTIONS:
                del self._asked[next(iter(self._asked))]

    def _question(self, ctx: AgentContext[Any]) -> dict[str, Any] | None:
        """What was asked where this call is its answer."""
        if not ctx.tool_call_approved or ctx.tool_call_id is None:
            return None
        with self._lock:
            return ctx.tool_call_metadata or self._asked.pop(ctx.tool_call_id, None)

    def _run(self, user: str, run_id: str | None) -> _OpenRun:
        with self._lock:
            run = self._open.get(run_id or "")
            if run is None:
                self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
                enter = RunContext.open if run_id and (self._home / run_id).exists() else RunContext.create
                context = enter(self._home, cast("str", run_id), workspace=self._place, config=self._settings)
                run = self._open[run_id or ""] = _OpenRun(context)
            run.users.add(user)
            return run

    def _release(self, user: str | None) -> None:
        with self._lock:
            for run_id, run in list(self._open.items()):
                run.users.discard(user or "")
                if not run.users:
                    del self._open[run_id]
                    try:
                        run.context.close()
                    except RunError:
                        # The host's fault, such as a log that was harmed: the agent's answer is not lost for it.
                        logger.exception("kgent run %s could not be closed", run_id)


class _OpenRun:
    """A run, its tools by name, and the agent runs that use it."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.tools = {cast("str", tool.name): tool for tool in ToolRegistry(context).materialize().definitions}
        self.users: set[str] = set()


def _run_of(asked: dict[str, Any] | None) -> str | None:
    approval = asked.get("approval") if asked else None
    return cast("dict[str, str]", approval).get("run_id") if isinstance(approval, dict) else None


def _settings(config: ToolsConfig | dict[str, Any] | str | os.PathLike[str] | None) -> ToolsConfig:
    if isinstance(config, ToolsConfig):
        return config
    if config is None or isinstance(config, dict):
        return ToolsConfig.from_dict(config or {})
    return ToolsConfig.from_file(Path(config).expanduser())


def _state_directory() -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path.home() / ".local/state") / "kgent_tools" / "runs"


def _instructions(tools: list[ToolDefinition], context: RunContext) -> str:
    policy = EffectivePermissionPolicy.merge(context=context)
    may = {"allow": "read and write", "ask": "read; write after approval", "deny": "read only"}
    lines = [
        f"- `{mount}`: {may[policy.effect('filesystem_write')] if mode == 'rw' else 'read only'}"
        for mount, mode in context.mounts.items()
    ]
    text = "\n".join(
        [
            "The file tools see these folders. Relative paths start in `workspace`; `<folder>/...` selects another. "
            "Nothing outside them can be reached, and the policy may refuse parts of them.",
            *lines,
        ]
    )
    catalogue = _catalogue(tools, context.skills, 8000)
    return f"{text}\n\n{catalogue}" if catalogue else text


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


class KgentWorkspace:
    """A workspace backend of Pydantic AI (2.52 or later) over the sandbox of a run: files, no commands.

    What other capabilities do with their workspace's files is confined, checked by the policy and recorded like tool
    calls: reading asks for `read_file`, writing for `edit`, looking for `list_files`, removing for `edit` and
    `filesystem_delete`, which is denied unless a rule allows it. Paths are the host's; those outside the mounts are
    refused. What the policy asks the host about is refused too, as a workspace has no approvals.

    Failures are Python's own where it has one (`FileNotFoundError`, `PermissionError` and the like), else
    `WorkspaceError`: a file that kept changing, one that is too large, a full disk.
    """

    def __init__(self, context: RunContext, policy: EffectivePermissionPolicy | None = None) -> None:
        """A workspace on the mounts of `context`.

        Args:
            context: The run; the working directory is its workspace.
            policy: What is allowed; by the run's configuration if `None`.

        Raises:
            ImportError: Pydantic AI is older than workspaces.
            PolicyError: `policy` was merged for other mounts.
        """
        try:
            from pydantic_ai import workspaces
        except ImportError as error:
            raise ImportError("KgentWorkspace needs Pydantic AI 2.52 or later") from error
        self._api = workspaces
        self._context = context
        self._tools, self._roots = build_workspace(context, policy)

    @property
    def ref(self) -> WorkspaceRef:
        """The run."""
        return self._api.WorkspaceRef(provider="kgent", id=self._context.run_id)

    async def working_dir(self) -> str:
        """The workspace's folder, free of links."""
        return str(self._roots["workspace"])

    async def read_bytes(self, path: str) -> bytes:
        """A file's content; at most `max_file_bytes`."""
        result = await self._call("read", path)
        return b"".join(part.data for part in result.content if isinstance(part, FileContent))

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Creates a file and its missing parents, or replaces its content, atomically."""
        try:
            content, encoding = data.decode(), "utf8"
        except UnicodeDecodeError:
            content, encoding = data.decode("latin-1"), "latin1"
        await self._call("write", path, content=content, encoding=encoding)

    async def stat(self, path: str) -> FileEntry:
        """What a path leads to."""
        found = await self._stat(path)
        if found["type"] is None:
            raise FileNotFoundError(errno.ENOENT, "it does not exist", path)
        return self._entry(posixpath.basename(path), path, found)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """A folder's entries by name; a link that leads nowhere, or where it must not, is a file of unknown size."""
        data = (await self._call("list", path)).data or {}
        return [self._entry(entry["name"], posixpath.join(path, entry["name"]), entry) for entry in data["entries"]]

    async def make_dir(self, path: str) -> None:
        """Makes a folder and its missing parents."""
        await self._call("make_dir", path)

    async def remove(self, path: str) -> None:
        """Removes a file, a link itself, or a folder with all beneath it; nothing if one name in it must stay.

        At most 64 folders deep. Mounts and what holds one are refused.
        """
        plain = posixpath.normpath(path)
        if any(str(root) == plain or root.is_relative_to(plain) for root in self._roots.values()):
            raise ValueError("a mount, or a folder that holds one, is not removed")
        await self._call("remove", path)

    async def exists(self, path: str) -> bool:
        """Whether something is there that may be known of."""
        return (await self._stat(path))["type"] is not None

    async def realpath(self, path: str) -> str:
        """The name free of links; missing components are kept as written."""
        data = (await self._call("realpath", path)).data or {}
        return posixpath.join(self._roots[data["mount"]], data["rel"]).rstrip("/") or "/"

    async def _stat(self, path: str) -> dict[str, Any]:
        return (await self._call("stat", path)).data or {}

    def _entry(self, name: str, path: str, found: dict[str, Any]) -> FileEntry:
        return self._api.FileEntry(name=name, path=path, is_dir=found["type"] == "directory", size=found["size"])

    async def _call(self, tool: str, path: str, **args: Any) -> ToolResult:
        if not posixpath.isabs(path):
            raise ValueError(f"the path must be absolute, not {path!r}")
        ctx = get_current_run_context()
        # Another id than any other call's, so that cancelling this one stops no other.
        call_id = ctx.tool_call_id if ctx and ctx.tool_call_id else f"workspace-{uuid.uuid4().hex}"

        calls: list[RunContext] = []

        def settle() -> ToolResult:
            call = self._context.for_call(
                call_id=call_id,
                conversation_id=(ctx.conversation_id or ctx.run_id) if ctx else None,
                step=ctx.run_step if ctx else None,
                agent=_agent_name(ctx) if ctx else None,
                trace=_trace(),
            )
            calls.append(call)
            return self._tools[f"workspace_{tool}"].handler({"path": path, **args}, call)

        result = await _in_thread(settle, calls, call_id)
        if result.error is not None:
            raise self._error(result.error, path)
        return result

    def _error(self, error: ErrorInfo, path: str) -> Exception:
        number = _ERRNO.get(error.code)
        if number is not None:
            return OSError(number, error.message, path)  # Python makes it FileNotFoundError and so on
        if error.code == "not_regular_file":
            return OSError(f"not a regular file: {path}")  # as Pydantic AI's own workspaces say it
        if error.code in ("invalid_args", "encoding"):
            return ValueError(error.message)
        if error.code == "timeout":
            return self._api.WorkspaceTimeoutError(error.message)
        if error.code == "sandbox_unavailable":
            return self._api.WorkspaceUnavailableError(error.message)
        return self._api.WorkspaceError(f"{error.code}: {error.message}")


_ERRNO = {
    "not_found": errno.ENOENT,
    "already_exists": errno.EEXIST,
    "is_directory": errno.EISDIR,
    "not_a_directory": errno.ENOTDIR,
    "denied": errno.EACCES,
    "approval_required": errno.EACCES,
    "outside_sandbox": errno.EACCES,
    "read_only": errno.EACCES,
}


def scripted_model(*turns: Turn | Callable[[list[str]], Turn]) -> FunctionModel:
    """A model for tests, which needs no network: it plays `turns`, one for each request, and then answers `done`.

    Each conversation begins with the first turn, and one that is gone on with where it was.

    Args:
        turns: A call, as a tool's name and its arguments, a dict or JSON text; a sequence of calls for one turn; the text
            of an answer; or a function that makes one of these of the texts that the last calls were answered with.
    """

    def respond(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        at = sum(isinstance(message, ModelResponse) for message in messages)
        turn = turns[at] if at < len(turns) else "done"
        if callable(turn):
            # Older releases answer a retry with a part of its own.
            answers = [part for part in messages[-1].parts if getattr(part, "tool_call_id", None)]
            turn = turn([str(getattr(part, "content", "")) for part in answers])
        if isinstance(turn, str):
            return ModelResponse(parts=[TextPart(turn)])
        calls = [turn] if isinstance(turn[0], str) else turn
        return ModelResponse(parts=[ToolCallPart(*call) for call in cast("Sequence[ScriptedCall]", calls)])

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        for at, part in enumerate(respond(messages, info).parts):
            if isinstance(part, ToolCallPart):
                yield {at: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}
            elif isinstance(part, TextPart):
                yield part.content

    return FunctionModel(respond, stream_function=stream)
