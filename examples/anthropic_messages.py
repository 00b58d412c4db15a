"""Governed tools in Anthropic's messages: `python examples/anthropic_messages.py MODEL PROMPT`.

Needs `pip install anthropic` and a key in `ANTHROPIC_API_KEY`.
"""

import base64
import sys
from typing import Any

from anthropic import Anthropic
from anthropic.types import ContentBlock

from kgent_tools import FileContent, RunContext, TextContent, ToolRegistry, ToolSnapshot

MOST_TURNS = 30


def tools_of(snapshot: ToolSnapshot) -> list[Any]:
    """The tools as a request offers them."""
    return [definition.to_anthropic() for definition in snapshot.definitions]


def answers(snapshot: ToolSnapshot, content: list[ContentBlock]) -> list[Any]:
    """Makes the calls in a message's content; the blocks that the next message begins with.

    A call that fails is an error for the model, whose text says what was wrong and what to send instead.
    """
    calls = [block for block in content if block.type == "tool_use"]
    results = [(call, snapshot.call(call.name, call.input, call_id=call.id)) for call in calls]
    return [
        {
            "type": "tool_result",
            "tool_use_id": call.id,
            "is_error": not result.ok,
            "content": [_block(part) for part in result.content],
        }
        for call, result in results
    ]


def _block(part: TextContent | FileContent) -> Any:
    if isinstance(part, TextContent):
        return {"type": "text", "text": part.text}
    source = {"type": "base64", "media_type": part.media_type, "data": base64.b64encode(part.data).decode()}
    return {"type": "image" if part.media_type.startswith("image/") else "document", "source": source}


def ask(client: Anthropic, snapshot: ToolSnapshot, model: str, prompt: str) -> str:
    """Lets the model call tools until it answers."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    for _ in range(MOST_TURNS):
        message = client.messages.create(model=model, max_tokens=4096, messages=messages, tools=tools_of(snapshot))
        made = answers(snapshot, message.content)
        if not made:
            return "".join(block.text for block in message.content if block.type == "text")
        said = [block.model_dump(exclude_none=True) for block in message.content]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": made}]
    raise RuntimeError(f"no answer after {MOST_TURNS} turns")


if __name__ == "__main__":
    with RunContext.create("runs", workspace=".") as context:
        print(ask(Anthropic(), ToolRegistry(context).materialize(), sys.argv[1], " ".join(sys.argv[2:])))
