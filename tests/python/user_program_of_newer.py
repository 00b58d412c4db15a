# pyright: strict
"""What only newer versions of Pydantic AI have, in a user's program under strict types."""

import asyncio
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from pydantic_ai.workspaces import WorkspaceBackend

from kgent_tools import EffectivePermissionPolicy, RunContext
from kgent_tools.pydantic_adapter import Kgent, KgentWorkspace, ToolSettledEvent


async def events() -> list[str]:
    """What an application sees of its agent's calls while they are made."""
    config = {"permissions": {"rules": [{"action": "*", "resource": "a", "effect": "deny"}]}}
    agent = Agent(TestModel(call_tools=["list_files", "read_file"]), capabilities=[Kgent(runs="runs", config=config)])
    seen: list[str] = []
    async with agent.run_stream_events("go") as stream:
        async for event in stream:
            if isinstance(event, ToolSettledEvent):
                code: str | None = event.code
                seen.append(f"{event.tool_name} {event.status} {code} {event.layer} {event.rule}")
                assert (Path("runs") / event.run_id).is_dir()
                assert event.tool_call_id
    return seen


async def workspace() -> bytes:
    """Files through a workspace."""
    with RunContext.create("runs", workspace=".") as context:
        backend: WorkspaceBackend = KgentWorkspace(context, EffectivePermissionPolicy.merge(context=context))
        assert isinstance(backend, KgentWorkspace)
        path = f"{await backend.working_dir()}/new"
        await backend.write_bytes(path, b"text")
        assert (await backend.stat(path)).size == 4
        return await backend.read_bytes(path)


def main() -> None:
    """Runs both."""
    print(sorted(asyncio.run(events())))
    print(asyncio.run(workspace()))


if __name__ == "__main__":
    main()
