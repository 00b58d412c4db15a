"""Governed tools in OpenAI's chat completions, and in the many APIs of that shape.

`python examples/openai_chat.py MODEL PROMPT` needs `pip install openai` and a key in `OPENAI_API_KEY`; `OPENAI_BASE_URL`
names another server of the same API.
"""

import base64
import sys
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionMessage

from kgent_tools import FileContent, RunContext, TextContent, ToolRegistry, ToolSnapshot

MOST_TURNS = 30


def tools_of(snapshot: ToolSnapshot) -> list[Any]:
    """The tools as a request offers them."""
    return [definition.to_openai() for definition in snapshot.definitions]


def answers(snapshot: ToolSnapshot, message: ChatCompletionMessage) -> list[Any]:
    """Makes the calls of a model's message; what the next request holds after it.

    A call that fails is answered like any other: its text says what was wrong and what to send instead.
    """
    tools: list[Any] = []
    files: list[Any] = []
    for call in message.tool_calls or []:
        if call.type != "function":
            continue  # not of ours
        # The arguments go on as the text that the model wrote: what is wrong with them is answered and on record.
        result = snapshot.call(call.function.name, call.function.arguments, call_id=call.id)
        text = "\n".join(part.text for part in result.content if isinstance(part, TextContent))
        tools.append({"role": "tool", "tool_call_id": call.id, "content": text})
        files += [_part(part) for part in result.content if isinstance(part, FileContent)]
    # A tool's message holds text only; files follow as the user's.
    return [*tools, {"role": "user", "content": files}] if files else tools


def _part(file: FileContent) -> Any:
    url = f"data:{file.media_type};base64,{base64.b64encode(file.data).decode()}"
    if file.media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": "file", "file_data": url}}


def ask(client: OpenAI, snapshot: ToolSnapshot, model: str, prompt: str) -> str:
    """Lets the model call tools until it answers."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    for _ in range(MOST_TURNS):
        completion = client.chat.completions.create(model=model, messages=messages, tools=tools_of(snapshot))
        message = completion.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages += [message.model_dump(exclude_none=True), *answers(snapshot, message)]
    raise RuntimeError(f"no answer after {MOST_TURNS} turns")


if __name__ == "__main__":
    with RunContext.create("runs", workspace=".") as context:
        print(ask(OpenAI(), ToolRegistry(context).materialize(), sys.argv[1], " ".join(sys.argv[2:])))
