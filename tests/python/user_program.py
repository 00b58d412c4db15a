# pyright: strict
"""A user's program over all of `kgent_tools.pydantic_adapter`, under strict types; `test_kgent_capability.py` runs it."""

import asyncio
from pathlib import Path

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, FunctionToolset
from pydantic_ai.models.test import TestModel

from kgent_tools import (
    EffectivePermissionPolicy,
    PermissionRule,
    RunContext,
    SkillRegistry,
    ToolRegistry,
    ToolsConfig,
    build_toolsets,
    tool,
)
from kgent_tools.pydantic_adapter import Kgent, KgentToolset, RegisteredToolset, register_toolset, scripted_model


@tool
def shout(text: str) -> str:
    """Shouts."""
    return text.upper()


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def toolsets(config: ToolsConfig, skills: SkillRegistry) -> list[str]:
    """Agents over runs that the program made."""
    with RunContext.create("runs", config=config) as context:
        policy = EffectivePermissionPolicy.merge(context=context, runtime=[PermissionRule("add", "*", "allow")])
        registry = ToolRegistry(context)
        session = registry.session("chat")
        fixed = KgentToolset(
            build_toolsets(context, skills), context, "fixed", max_retries=2, skills=skills, max_skill_characters=500
        )
        moving = KgentToolset.from_registry(session, policy, context, "moving", max_retries=2)
        registered: RegisteredToolset = await register_toolset(session, FunctionToolset[None]([add]), id="math")
        with registered, session.register([shout]):
            await registered.refresh()
            names: dict[str, str] = {**registered.names, **registered.refused}
            calls = [("f_list_files", "{}"), ("shout", {"text": "a"}), (names["add"], {"a": 1, "b": 2})]
            model = scripted_model(calls, lambda answers: f"{len(answers)} answers")
            agent = Agent(model, toolsets=[fixed.prefixed("f"), moving])
            output: str = (await agent.run("go")).output
        assert output == "3 answers"
        return [f"{record['tool']} {record['status']}" for record in context.records()]


async def capabilities(config: ToolsConfig) -> str | DeferredToolRequests:
    """An agent that makes its own run, and is asked first."""
    kgent = Kgent(Path(), runs=Path("runs"), config=config, run_id="shared", max_retries=1, id="files")
    model = TestModel(call_tools=["write_file"])
    agent = Agent(model, capabilities=[kgent], output_type=[str, DeferredToolRequests])
    asked = await agent.run("go")
    assert isinstance(asked.output, DeferredToolRequests)
    approvals = {call.tool_call_id: True for call in asked.output.approvals}
    results = DeferredToolResults(approvals={**approvals}, metadata=asked.output.metadata)
    done = await agent.run(message_history=asked.all_messages(), deferred_tool_results=results)
    kgent.close()
    return done.output


def main() -> None:
    """Runs both."""
    Path("skills").mkdir()
    config = ToolsConfig.from_dict({"permissions": {"filesystem_write": "ask"}})
    print(sorted(asyncio.run(toolsets(config, SkillRegistry.discover(["skills"])))))
    print(type(asyncio.run(capabilities(config))).__name__, Path("a").exists())


if __name__ == "__main__":
    main()
