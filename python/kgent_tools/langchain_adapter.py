"""Governed tools as LangChain tools (extra: `kgent_tools[langchain]`).

What the core answers is the content of the tool message that the model gets, and as its artifact the whole result without
secrets. A call that failed is a message of status `error` that says what was wrong and what to send instead, so that no
call of a tool can end an agent's run. A cancelled call stops the core, waits until its record is written, and goes on as
`CancelledError`.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

try:
    from langchain_core.callbacks import AsyncCallbackManagerForToolRun, CallbackManagerForToolRun
    from langchain_core.messages import ToolMessage
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import BaseTool, StructuredTool
    from pydantic import Field
except ImportError as error:
    raise ImportError(
        "kgent_tools.langchain_adapter needs LangChain 1.0 or later: pip install 'kgent_tools[langchain]'"
    ) from error

from kgent_tools import (
    ErrorInfo,
    FileContent,
    Grant,
    RegistrationError,
    RunContext,
    TextContent,
    ToolDefinition,
    ToolResult,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["KgentTool", "langchain_tools"]

logger = logging.getLogger(__name__)

Approve = Callable[[dict[str, Any]], "bool | Awaitable[bool]"]


def langchain_tools(
    tools: Iterable[ToolDefinition], context: RunContext, *, approve: Approve | None = None
) -> list[KgentTool]:
    """LangChain's form of `tools`, as `build_toolsets` or a snapshot gives them, for calls in `context`.

    Args:
        tools: Named definitions.
        context: The run that the calls belong to.
        approve: Asked, with the details of the error `approval_required`, whether a call that the policy asks about may
            be made; without it, or where the answer is not `True`, the model gets the error. It may be async where the
            tools are awaited, and may call LangGraph's `interrupt`.
    """
    return [
        KgentTool(
            name=cast("str", definition.name),
            description=definition.description,
            args_schema=definition.input_schema,
            response_format="content_and_artifact",
            definition=definition,
            context=context,
            approve=approve,
        )
        for definition in tools
        if definition.handler  # raises for a definition that is not bound
    ]


class KgentTool(StructuredTool):
    """One governed tool; `langchain_tools` makes it."""

    definition: ToolDefinition = Field(exclude=True, repr=False)
    context: RunContext = Field(exclude=True, repr=False)
    approve: Approve | None = Field(default=None, exclude=True, repr=False)

    def _to_args_and_kwargs(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # Whole and unchecked: the core answers and records what is wrong, and no argument's name can clash with a
        # parameter below.
        return (tool_input, tool_call_id), {}

    def _run(
        self, *args: Any, config: RunnableConfig, run_manager: CallbackManagerForToolRun | None = None, **_: Any
    ) -> tuple[Any, Any]:
        given, call_id = args

        def call(grant: Grant | None = None) -> ToolResult:
            try:
                return self.definition.handler(given, self._call(call_id, config, run_manager, grant))
            except Exception:
                return self._uncallable()

        result = call()
        if self.approve is not None and (request := _request(result)) is not None:
            approved = self.approve(request)
            if inspect.isawaitable(approved):
                raise RegistrationError("`approve` is async: await the tool, with ainvoke(...)")
            if approved is True:
                result = call(self.context.grant(request))
        return self._answer(result, call_id)

    async def _arun(
        self, *args: Any, config: RunnableConfig, run_manager: AsyncCallbackManagerForToolRun | None = None, **_: Any
    ) -> tuple[Any, Any]:
        given, call_id = args

        async def call(grant: Grant | None = None) -> ToolResult:
            try:
                return await self.definition.acall(given, self._call(call_id, config, run_manager, grant))
            except Exception:
                return self._uncallable()

        result = await call()
        if self.approve is not None and (request := _request(result)) is not None:
            approved = self.approve(request)
            if (await approved if inspect.isawaitable(approved) else approved) is True:
                # It is put on record, which may wait for the log's lock.
                result = await call(await asyncio.to_thread(self.context.grant, request))
        return self._answer(result, call_id)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """As LangChain has it for tools that have an async form of their own."""
        return await BaseTool.ainvoke(self, input, config, **kwargs)

    def _call(
        self,
        call_id: str | None,
        config: RunnableConfig,
        run: CallbackManagerForToolRun | AsyncCallbackManagerForToolRun | None,
        grant: Grant | None,
    ) -> RunContext:
        """The call with what LangChain and LangGraph know of it."""
        metadata, thread = config.get("metadata") or {}, (config.get("configurable") or {}).get("thread_id")
        agent, step = metadata.get("lc_agent_name"), metadata.get("langgraph_step")
        run_id = (run.parent_run_id or run.run_id) if run else None
        return self.context.for_call(
            call_id=call_id,
            conversation_id=str(thread or run_id) if thread or run_id else None,
            step=step if isinstance(step, int) and step >= 0 else None,
            agent=agent if isinstance(agent, str) else None,
            grant=grant,
        )

    def _uncallable(self) -> ToolResult:
        # The host's fault, such as a closed context: for its log, not for the model.
        logger.exception("kgent tool %s could not be called", self.name)
        text = "internal: the tool could not be called; do not retry, report it"
        return ToolResult(False, text, error=ErrorInfo("internal", text))

    def _answer(self, result: ToolResult, call_id: str | None) -> tuple[Any, Any]:
        """The content and the artifact; where the call failed, a message, which alone can say so."""
        content, artifact = _content(result), self.context.redact(result.to_dict())
        if result.error is None or call_id is None:
            return content, artifact
        return ToolMessage(content, tool_call_id=call_id, name=self.name, status="error", artifact=artifact), artifact


def _request(result: ToolResult) -> dict[str, Any] | None:
    """What the policy asks the host."""
    return result.error.details if result.error and result.error.code == "approval_required" else None


def _content(result: ToolResult) -> str | list[str | dict[str, Any]]:
    text = "\n".join(part.text for part in result.content if isinstance(part, TextContent))
    files: list[str | dict[str, Any]] = [
        {
            "type": "image" if part.media_type.startswith("image/") else "file",
            "base64": base64.b64encode(part.data).decode(),
            "mime_type": part.media_type,
        }
        for part in result.content
        if isinstance(part, FileContent)
    ]
    return [{"type": "text", "text": text}, *files] if files else text
