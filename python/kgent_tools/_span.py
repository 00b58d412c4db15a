"""One OpenTelemetry span for each call, with the GenAI attributes; the core asks for it where OpenTelemetry is loaded.

Inside a framework that has opened a span for this very call, our attributes go on that one. What a model wrote and what
a tool answered is on record, redacted, and in no span.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import Token
from typing import Any, cast

from opentelemetry import context, trace
from opentelemetry.trace import Span, Status, StatusCode

from kgent_tools._core import ToolResult, __version__

__all__ = ["CallSpan", "begin"]

logger = logging.getLogger(__name__)


class CallSpan:
    """The span of a call that is under way; `ids` are its trace id and its span id, hexadecimal."""

    def __init__(self, span: Span, token: Token[Any] | None) -> None:
        ids = span.get_span_context()
        self.ids = (f"{ids.trace_id:032x}", f"{ids.span_id:016x}")
        self._span, self._token = span, token

    def end(self, outcome: ToolResult | BaseException) -> None:
        """Says how the call ended; a span of ours is over."""
        error = outcome.error if isinstance(outcome, ToolResult) else None
        if isinstance(outcome, BaseException):
            self._span.set_attributes({"kgent.status": "cancelled", "error.type": type(outcome).__qualname__})
        elif error is not None:
            self._span.set_attributes({"kgent.status": error.status, "error.type": error.code})
        else:
            self._span.set_attribute("kgent.status", "completed")
        if self._token is None:
            return
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error.code))
        context.detach(self._token)
        self._span.end()


def begin(
    tool: str, run_id: str, call_id: str | None, conversation_id: str | None, agent: str | None
) -> CallSpan | None:
    """The span of a call that begins here, which spans of its handler are below; none where nobody traces."""
    try:
        span = trace.get_current_span()
        own = not _is_of_call(span, tool, call_id)
        if own:
            span = trace.get_tracer("kgent_tools", __version__).start_span(f"execute_tool {tool}")
        if not span.get_span_context().is_valid:
            return None
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call_id,
            "gen_ai.conversation.id": conversation_id,
            "gen_ai.agent.name": agent,
        }
        span.set_attributes({key: value for key, value in attributes.items() if own and value is not None})
        span.set_attribute("kgent.run_id", run_id)
        return CallSpan(span, context.attach(trace.set_span_in_context(span)) if own else None)
    except Exception:
        # An exporter or a sampler that fails is no reason to refuse a call.
        logger.exception("the call of %s has no span", tool)
        return None


def _is_of_call(span: Span, tool: str, call_id: str | None) -> bool:
    attributes = cast("Mapping[str, object]", getattr(span, "attributes", None) or {})
    return (
        call_id is not None
        and attributes.get("gen_ai.operation.name") == "execute_tool"
        and attributes.get("gen_ai.tool.call.id") == call_id
        and str(attributes.get("gen_ai.tool.name")).endswith(tool)
    )
