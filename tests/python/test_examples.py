"""The examples run: with the real client of each API, whose server answers here what that of the API would."""

import base64
import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kgent_tools import RunContext, ToolRegistry, ToolSnapshot

EXAMPLES = Path(__file__).parents[2] / "examples"
PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489")
PDF = b"%PDF-1.7\n"
# What a model asks for in its first turn: all that a call can be.
CALLS = [
    ("c1", "read_file", {"path": "notes.md"}),
    ("c2", "read_file", {"path": "../secret"}),
    ("c3", "read_file", {"path": "dot.png"}),
    ("c4", "read_file", {"path": "a.pdf"}),
    ("c5", "no_such_tool", {}),
]
STATUSES = ["completed", "blocked", "completed", "completed", "failed"]


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


@pytest.fixture
def snapshot(context: RunContext, workspace: Path) -> ToolSnapshot:
    (workspace / "dot.png").write_bytes(PNG)
    (workspace / "a.pdf").write_bytes(PDF)
    return ToolRegistry(context).materialize()


class Api:
    """Plays an API on this machine: answers each request with the next reply, and keeps what was asked."""

    def __init__(self) -> None:
        api, self.replies, self.asked = self, list[dict[str, Any]](), list[dict[str, Any]]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                api.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                body = json.dumps(api.replies.pop(0)).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    api = Api()
    thread = threading.Thread(target=api.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield api
    api.server.shutdown()
    api.server.server_close()
    thread.join()


def fits(kind: Any, value: Any) -> None:
    """Fails where a value is not what the client's own types say that the API takes."""
    from pydantic import TypeAdapter

    for item in value:
        TypeAdapter(kind).validate_python(item)


def url(media: str, data: bytes) -> str:
    return f"data:{media};base64,{base64.b64encode(data).decode()}"


def test_plain_python(workspace: Path) -> None:
    (workspace / "a.py").write_text("# TODO: more\n", encoding="utf-8")
    ran = subprocess.run([sys.executable, EXAMPLES / "plain.py", workspace], capture_output=True, text=True)
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[1:] == [
        "found: searched for `\\bTODO\\b`: 1 matches in 1 files",
        "refused: denied | `edit` on `notes.md` is denied by the runtime layer of the policy",
        "written: True",
        "1 grep_files completed",
        "2 write_file blocked",
        "3 write_file completed",
    ]
    assert sorted(path.name for path in workspace.iterdir()) == ["a.py", "notes.md"]


@pytest.mark.slow
def test_openai_chat_completions(
    context: RunContext, snapshot: ToolSnapshot, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

    def reply(message: dict[str, Any], reason: str) -> dict[str, Any]:
        choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", **message}}
        return {"id": "r", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
        for id, name, args in CALLS
    ]
    calls.append({"id": "c6", "type": "function", "function": {"name": "list_files", "arguments": '{"path'}})
    api.replies = [reply({"content": None, "tool_calls": calls}, "tool_calls"), reply({"content": "done"}, "stop")]
    client = openai.OpenAI(api_key="none", base_url=api.url)
    with client:
        assert example("openai_chat", monkeypatch).ask(client, snapshot, "m", "go") == "done"
    first, second = api.asked
    fits(ChatCompletionToolParam, first["tools"])
    fits(ChatCompletionMessageParam, second["messages"])
    assert {tool["function"]["name"] for tool in first["tools"]} == {d.name for d in snapshot.definitions}
    prompt, said, *answers, files = second["messages"]
    assert (prompt, said["tool_calls"]) == ({"role": "user", "content": "go"}, calls)
    assert [(a["role"], a["tool_call_id"]) for a in answers] == [("tool", f"c{n}") for n in range(1, 7)]
    assert answers[0]["content"] == "     1\tone\n     2\ttwo\n"
    failed = [a["content"].split(":")[0] for a in (answers[1], *answers[4:])]
    assert failed == ["outside_sandbox", "unknown_tool", "invalid_args"]
    assert files["content"] == [
        {"type": "image_url", "image_url": {"url": url("image/png", PNG)}},
        {"type": "file", "file": {"filename": "file", "file_data": url("application/pdf", PDF)}},
    ]
    records = list(context.records())
    assert [(r["call_id"], r["status"]) for r in records] == [
        (f"c{n}", status) for n, status in enumerate([*STATUSES, "failed"], 1)
    ]


@pytest.mark.slow
def test_openai_responses(
    context: RunContext, snapshot: ToolSnapshot, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    from openai.types.responses import FunctionToolParam, ResponseInputItemParam

    def reply(*output: dict[str, Any]) -> dict[str, Any]:
        fixed = {"tool_choice": "auto", "tools": [], "parallel_tool_calls": True}
        return {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": list(output), **fixed}

    calls = [
        {"type": "function_call", "id": f"i{id}", "call_id": id, "name": name, "arguments": json.dumps(args)}
        for id, name, args in CALLS
    ]
    text = {"type": "output_text", "text": "done", "annotations": []}
    last = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    api.replies = [reply(*calls), reply(last)]
    client = openai.OpenAI(api_key="none", base_url=api.url)
    with client:
        assert example("openai_responses", monkeypatch).ask(client, snapshot, "m", "go") == "done"
    first, second = api.asked
    fits(FunctionToolParam, first["tools"])
    fits(ResponseInputItemParam, second["input"])
    assert {tool["name"] for tool in first["tools"]} == {d.name for d in snapshot.definitions}
    assert second["input"][1:6] == calls
    answers = second["input"][6:]
    assert [(a["type"], a["call_id"]) for a in answers] == [("function_call_output", id) for id, _, _ in CALLS]
    assert answers[0]["output"] == [{"type": "input_text", "text": "     1\tone\n     2\ttwo\n"}]
    assert answers[1]["output"][0]["text"].startswith("outside_sandbox: ")
    assert answers[2]["output"][1] == {"type": "input_image", "image_url": url("image/png", PNG)}
    assert answers[3]["output"][1]["file_data"] == url("application/pdf", PDF)
    assert answers[4]["output"][0]["text"].startswith("unknown_tool: ")
    assert [r["status"] for r in context.records()] == STATUSES


@pytest.mark.slow
def test_anthropic_messages(
    context: RunContext, snapshot: ToolSnapshot, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    anthropic = pytest.importorskip("anthropic", reason="Anthropic's client is not installed")
    from anthropic.types import MessageParam, ToolParam

    def reply(reason: str, *content: dict[str, Any]) -> dict[str, Any]:
        fixed = {"usage": {"input_tokens": 1, "output_tokens": 1}, "stop_sequence": None, "stop_reason": reason}
        return {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": list(content),
            **fixed,
        }

    calls = [{"type": "tool_use", "id": id, "name": name, "input": args} for id, name, args in CALLS]
    api.replies = [reply("tool_use", *calls), reply("end_turn", {"type": "text", "text": "done"})]
    client = anthropic.Anthropic(api_key="none", base_url=api.url)
    with client:
        assert example("anthropic_messages", monkeypatch).ask(client, snapshot, "m", "go") == "done"
    first, second = api.asked
    fits(ToolParam, first["tools"])
    fits(MessageParam, second["messages"])
    assert {tool["name"] for tool in first["tools"]} == {d.name for d in snapshot.definitions}
    said, answers = second["messages"][1]["content"], second["messages"][2]["content"]
    assert [{k: block[k] for k in calls[0]} for block in said] == calls
    assert [(a["type"], a["tool_use_id"]) for a in answers] == [("tool_result", id) for id, _, _ in CALLS]
    assert [a["is_error"] for a in answers] == [False, True, False, False, True]
    assert answers[0]["content"] == [{"type": "text", "text": "     1\tone\n     2\ttwo\n"}]
    assert answers[1]["content"][0]["text"].startswith("outside_sandbox: ")
    for answer, kind, media, data in (
        (answers[2], "image", "image/png", PNG),
        (answers[3], "document", "application/pdf", PDF),
    ):
        source = {"type": "base64", "media_type": media, "data": base64.b64encode(data).decode()}
        assert answer["content"][1] == {"type": kind, "source": source}
    assert [r["status"] for r in context.records()] == STATUSES
