"""No secret reaches a log, an event, an error, an artifact's name, metadata or a span: thirty kinds, everywhere a caller,
a tool or a file can put one."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent
from pydantic_ai.messages import ToolReturnPart
from support import SINKS, Box

from kgent_tools import ToolDefinition, ToolFailure, ToolRegistry, ToolResult
from kgent_tools.pydantic_adapter import KgentToolset, scripted_model

MARK = "CANARY"
LONG = "CANARYcanary0123456789CANARYcanary0123456789"
# Each in two halves, so that this file holds none.
SECRETS = {
    "anthropic": "sk" + f"-ant-api03-{LONG}",
    "openai": "sk" + f"-proj-{LONG}",
    "aws": "AK" + "IACANARY0123456789",
    "github": "gh" + f"p_{LONG}",
    "github, fine": "github" + f"_pat_{LONG}",
    "gitlab": "glp" + f"at-{LONG}",
    "slack": "xo" + f"xb-1234567890-{LONG}",
    "google": "AI" + f"za{LONG}",
    "google, oauth": "ya" + f"29.{LONG}",
    "stripe": "sk" + f"_live_{LONG}",
    "jwt": "ey" + f"JCANARY0123.eyJzdWIiOiIxIn0.{LONG}",
    "npm": "npm" + f"_{LONG}",
    "pypi": "pyp" + f"i-{LONG}",
    "hugging face": "hf" + f"_{LONG}",
    "vault": "hv" + f"s.{LONG}",
    "sendgrid": "SG" + f".{LONG}.{LONG}",
    "telegram": "1234567890" + f":AA{LONG}",
    "age": "AGE-SECRET" + "-KEY-1CANARY0123456789CANARY",
    "private key": "-----BEGIN RSA PRIV" + f"ATE KEY-----\n{LONG}\n-----END RSA PRIVATE KEY-----",
    "private key, cut off": "-----BEGIN PRIV" + f"ATE KEY-----\n{LONG}",
    "bearer": "Authorization: Bea" + f"rer {LONG}",
    "basic": "Basic " + "Q0FOQVJZQ0FOQVJZQ0FOQVJZ",
    "cookie": f"Set-Cookie: session={LONG}",
    "url": f"https://user:{LONG}@host.example",
    "assignment": f"PASSWORD={MARK}4",
    "json": json.dumps({"api_key": MARK}),
    "option": f"--password={MARK}7",
    "query": f"https://host.example/?access_token={LONG}",
    "connection string": f"Server=x;Pwd={MARK};AccountKey={LONG};",
    "linear": "lin" + f"_api_{LONG}",
    "grafana": "glsa" + f"_{LONG}",
    "docker": "dckr" + f"_pat_{LONG}",
    "atlassian": "AT" + f"ATT{LONG}",
    "new relic": "NR" + f"AK-{LONG}",
    "the host's own": "internal-canary",
}
TRACES = [MARK.lower(), "q0foqvjz"]
VALUES = [2, True, None, ["x"], {"path": "x"}]


def leaks(text: str) -> list[str]:
    """Where a piece of a secret stands in a text."""
    low = text.lower()
    return [text[max(0, low.find(trace) - 60) :][:160] for trace in TRACES if trace in low]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of the process, as an exporter gets them."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


@pytest.fixture
def box(tmp_path: Path, spans: InMemorySpanExporter) -> Iterator[Box]:
    config = {"records": {"redact": ["(?i)internal-[a-z]+"]}, "limits": {"max_output_bytes": 4000}}
    with Box(tmp_path, config) as made:
        made.put("a", "A\n")
        yield made
    everything = {sink: (made.run_dir / sink).read_text(encoding="utf-8") for sink in SINKS}
    for sink, text in everything.items():
        assert not leaks(text), f"{sink}: {leaks(text)}"
    exported = [span.to_json() for span in spans.get_finished_spans()]
    assert exported
    for text in exported:
        assert not leaks(text), leaks(text)
    for artifact in (made.run_dir / "artifacts").iterdir():
        assert not leaks(artifact.name), artifact.name


def test_there_are_thirty_kinds() -> None:
    assert len(SECRETS) >= 30
    assert all(leaks(secret) for secret in SECRETS.values())


def arguments(schema: dict[str, Any], secret: str) -> Iterator[Any]:
    """Arguments with a secret at every place: good ones, ones of the wrong type, unknown ones, and no object at all."""
    names: list[str] = list(schema["properties"])
    base = {name: {"path": "a", "pattern": "A", "content": "x"}.get(name) for name in names}
    base = {name: value for name, value in base.items() if value is not None}
    for name in names:
        for value in (secret, [secret], {secret: secret}, [{"old_text": secret, "new_text": f"token={secret}"}]):
            yield {**base, name: value}
            yield {**base, name: f"d/{value}"}
    for value in VALUES:
        yield {**base, secret: value}
    yield {**base, "password": f"{MARK}-plain", "nested": [{"api_key": f"{MARK}-plain", "x": [secret]}]}
    yield {**base, "argv": ["--token", f"{MARK}-plain", secret]}
    yield secret
    yield [secret]
    yield json.dumps({**base, "extra": secret})
    yield json.dumps({**base, "extra": secret})[:-2]
    yield f'{{"path": "a", "content": "{MARK}", broken'


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SECRETS))
def test_every_argument_of_every_tool(box: Box, kind: str) -> None:
    secret = SECRETS[kind]
    for name, tool in box.tools.items():
        for args in arguments(tool.input_schema, secret):
            result = tool.handler(args, box.context)
            if result.error is not None:
                said = json.dumps(result.to_dict()) + result.error.message + (result.error.hint or "")
                assert not leaks(said), f"{name} {args}: {leaks(said)}"
            assert not leaks(result.summary), f"{name} {args}: {result.summary}"
    assert box.ws.joinpath("a").exists()


@pytest.mark.parametrize("kind", list(SECRETS))
def test_everything_else_that_a_caller_or_a_tool_says(box: Box, kind: str) -> None:
    secret = SECRETS[kind]

    def raising(args: Any, context: Any) -> ToolResult:
        try:
            raise KeyError(secret)
        except KeyError as error:
            raise RuntimeError(f"connecting with {secret} failed") from error

    def failing(args: Any, context: Any) -> ToolResult:
        raise ToolFailure(f"refused: {secret}", hint=f"not {secret}")

    def answering(args: Any, context: Any) -> ToolResult:
        return ToolResult(ok=True, summary=f"{'x' * 180} {secret}", data={"found": secret}, artifacts=[])

    def storing(args: Any, context: Any) -> ToolResult:
        name = "".join(c if c.isalnum() or c in "._-" else "." for c in secret)[:90].strip(".-_")
        path = context.save_artifact(name, secret.encode())
        return ToolResult(ok=True, summary="stored", data={"path": path}, artifacts=[path])

    def touching(args: Any, context: Any) -> ToolResult:
        return ToolResult(ok=True, summary=repr(context.sandbox.read_bytes(f"none/{secret}")))

    registry = ToolRegistry(box.context)
    handlers = {f.__name__: f for f in (raising, failing, answering, touching, storing)}
    if secret.startswith(
        ("https", "--", "Authorization", "Set-", "PASSWORD", "Server", "{", "Basic", "-----", "1234567890")
    ):
        del handlers["storing"]  # its form is lost with the signs that no artifact's name may have
    registry.register(
        {
            name: ToolDefinition(description="d", input_schema={"type": "object"}, handler=handler)
            for name, handler in handlers.items()
        }
    )
    snapshot = registry.materialize(box.policy)
    for name in handlers:
        result = snapshot.call(name, {"x": secret}, call_id=secret)
        assert not leaks(result.summary), result.summary
        assert result.error is None or not leaks(repr(result.error) + json.dumps(result.to_dict()["error"]))
    snapshot.call(secret, {})
    snapshot.call(f"{'x' * 50} {secret}", {})
    call = box.context.for_call(call_id=secret, conversation_id=secret, agent=secret, trace=(secret, secret))
    box.tools["read_file"].handler({"path": "nope"}, call)
    box.tools["grep_files"].handler({"pattern": "A", "path": "a"}, call)
    box.put("holds-it", f"{secret}\n" * 400)
    box.new()
    box.call("grep_files", pattern="[A-Za-z]")
    box.call("read_file", path="holds-it")
    box.call("write_file", path="holds-it", content=f"other {secret}")


@pytest.mark.parametrize("kind", list(SECRETS))
def test_the_metadata_that_a_framework_keeps(box: Box, kind: str) -> None:
    secret = SECRETS[kind]
    box.put("holds-it", f"before\n{secret}\nafter\n")
    calls = [
        ("read_file", {"path": "holds-it"}),
        ("write_file", {"path": "holds-it", "content": f"before\n{secret} and\n"}),
        # A key of many lines is known by its first: of a search, each row stands for itself.
        ("grep_files", {"pattern": "." if "\n" not in secret else "before"}),
        ("read_file", {"path": f"x/{secret}"}),
    ]

    toolset = KgentToolset(list(box.tools.values()), box.context)
    agent = Agent(scripted_model(*calls), toolsets=[toolset], retries=3)
    result = asyncio.run(agent.run("go"))
    returns = [p for m in result.all_messages() for p in m.parts if isinstance(p, ToolReturnPart)]
    assert len([part for part in returns if part.metadata]) == 3
    for part in returns:
        assert not leaks(json.dumps(part.metadata)), leaks(json.dumps(part.metadata))
