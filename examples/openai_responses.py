"""Governed tools in OpenAI's Responses: `python examples/openai_responses.py MODEL PROMPT`.

Needs `pip install openai` and a key in `OPENAI_API_KEY`.
"""

import base64
import sys
from typing import Any

from openai import OpenAI
from openai.types.responses import ResponseOutputItem

from kgent_tools import FileContent, RunContext, TextContent, ToolRegistry, ToolSnapshot

MOST_TURNS = 30


def tools_of(snapshot: ToolSnapshot) -> list[Any]:
    """The tools as a request offers them; strict schemas would have no optional arguments."""
    return [
        {"type": "function", "strict": False, **definition.to_openai()["function"]}
        for definition in snapshot.definitions
    ]


def answers(snapshot: ToolSnapshot, output: list[ResponseOutputItem]) -> list[Any]:
    """Makes the calls in a response's output; what the next request holds after it.

    A call that fails is answered like any other: its text says what was wrong and what to send instead.
    """
    # The arguments go on as the text that the model wrote: what is wrong with them is answered and on record.
    calls = [item for item in output if item.type == "function_call"]
    results = [(call, snapshot.call(call.name, call.arguments, call_id=call.call_id)) for call in calls]
    return [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": [_part(part) for part in result.content],
        }
        for call, result in results
    ]


def _part(part: TextContent | FileContent) -> Any:
    if isinstance(part, TextContent):
        return {"type": "input_text", "text": part.text}
    url = f"data:{part.media_type};base64,{base64.b64encode(part.data).decode()}"
    if part.media_type.startswith("image/"):
        return {"type": "input_image", "image_url": url}
    return {"type": "input_file", "filename": "file", "file_data": url}


def ask(client: OpenAI, snapshot: ToolSnapshot, model: str, prompt: str) -> str:
    """Lets the model call tools until it answers."""
    items: list[Any] = [{"role": "user", "content": prompt}]
    for _ in range(MOST_TURNS):
        response = client.responses.create(model=model, input=items, tools=tools_of(snapshot), store=False)
        made = answers(snapshot, response.output)
        if not made:
            return response.output_text
        items += [*(item.model_dump(exclude_none=True) for item in response.output), *made]
    raise RuntimeError(f"no answer after {MOST_TURNS} turns")


if __name__ == "__main__":
    with RunContext.create("runs", workspace=".") as context:
        print(ask(OpenAI(), ToolRegistry(context).materialize(), sys.argv[1], " ".join(sys.argv[2:])))
