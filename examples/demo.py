"""A real agent with governed tools on a real project: `make demo`, or `make demo DIR=/some/project`.

The model is a script, so it needs no key and no network; everything else is what it would be with a model: the agent,
the toolset, the sandbox, the policy, the records. The project is only read. Runs go to `build/runs`.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from kgent_tools import EffectivePermissionPolicy, RunContext, ToolsConfig, build_toolsets
from kgent_tools.pydantic_adapter import KgentToolset
from kgent_tools.report import write_report

RUNS = Path(__file__).parent.parent / "build" / "runs"
CONFIG = ToolsConfig.from_dict(
    {
        "permissions": {"rules": [{"action": "edit", "resource": "private/**", "effect": "deny"}]},
        "limits": {"max_output_bytes": 8192},  # low, so that a small project has a large output too
    }
)

DEFINITIONS = r"^\s*(pub |async |export )*(class|def|enum|fn|func|function|interface|struct|trait)\b"

Call = tuple[str, dict[str, object]]
Turn = Iterator[list[Call]]


def script(answers: list[str]) -> Turn:
    """What the model asks for, turn by turn; `answers` holds what it got for the last turn."""
    yield [("list_files", {}), ("grep_files", {"pattern": DEFINITIONS, "output": "count"})]
    entries, counts = (rows(answer) for answer in answers)
    files = [row.split("\t")[0] for row in entries if not row.endswith("/")]
    readme = next((name for name in files if name.startswith("README")), files[0] if files else "README.md")

    yield [("read_file", {"path": readme, "limit": 20})]
    beginning = answers[0].split("\n")[0].strip()

    yield [("read_file", {"path": "../../../../../../etc/passwd"})]
    outside = answers[0].split("\n")[0]

    yield [("write_file", {"path": "private/notes.md", "content": "mine"})]
    denied = answers[0].split("\n")[0]

    yield [("grep_files", {"pattern": r"\w+"})]
    large, more = answers[0], ""
    if notice := re.search(r'read_file\(path="(artifacts/.+?)", offset=(\d+)\)', large):
        yield [("read_file", {"path": notice.group(1), "offset": int(notice.group(2))})]
        more = answers[0]

    report = f"""# Report

- The project's folder has {len(entries)} entries.
- {sum(int(row.rpartition(":")[2]) for row in counts)} lines in {len(counts)} files look like definitions.
- {readme}, line {beginning}
- Refused, a read outside the project: {outside}
- Refused, a write that the policy denies: {denied}
- A large search showed {len(large):,} characters, and {len(more):,} more were read on from its artifact.
"""
    yield [("write_file", {"path": "deliverables/report.md", "content": report})]


def rows(answer: str) -> list[str]:
    """The lines of an answer without its notices, which stand in brackets."""
    return [line for line in answer.splitlines() if line and not line.startswith("[")]


def scripted_model() -> FunctionModel:
    """A model that follows `script`, then says so."""
    answers: list[str] = []
    turns = script(answers)

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        answers[:] = [str(part.content) for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        calls = next(turns, None)
        if calls is None:
            return ModelResponse(parts=[TextPart("The report is in deliverables/report.md.")])
        return ModelResponse(parts=[ToolCallPart(name, args) for name, args in calls])

    return FunctionModel(respond)


def main(project: str) -> None:
    """Runs the agent, then prints what is on record."""
    RUNS.mkdir(parents=True, exist_ok=True)
    with RunContext.create(RUNS, workspace=project, config=CONFIG) as context:
        policy = EffectivePermissionPolicy.merge(config=CONFIG, context=context)
        toolset = KgentToolset(build_toolsets(context, policy=policy), context)
        answer = Agent(scripted_model(), name="demo", toolsets=[toolset]).run_sync("Report on this project.").output

        print(f"{'tool':<12} {'status':<10} {'duration':>10}  summary")
        for record in context.records():
            print(
                f"{record['tool']:<12} {record['status']:<10} {record['duration_us'] / 1000:>7.2f} ms  {record['summary']}"
            )
        print(f"\n{answer}\nRun: {context.run_dir}\n")
        print(Path(context.run_dir, "deliverables", "report.md").read_text(encoding="utf-8"))
    page = context.run_dir / "report.html"
    write_report(context.run_dir, page)
    print(f"What the agent did, for a browser: {page}")


main(sys.argv[1] if len(sys.argv) > 1 else ".")
