"""The README's examples run and print what it says, and its claims about the tools are the tools'."""

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from conftest import MakeContext

from kgent_tools import build_toolsets

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SUITES = re.findall(r"```python\n# (test_\w+\.py)\n(.*?)```", README, re.DOTALL)
EXAMPLES = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", README, re.DOTALL)
FILES = re.findall(r"```yaml\n# (\S+)\n(.*?)```", README, re.DOTALL)


def test_readme_has_examples() -> None:
    assert SUITES
    assert len(EXAMPLES) + len(SUITES) == len(re.findall("```python", README)) >= 3


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_example_prints_what_the_readme_says(code: str, output: str, tmp_path: Path) -> None:
    for name, text in FILES:
        (tmp_path / name).write_text(text, encoding="utf-8")
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == (output, "")


@pytest.mark.slow
@pytest.mark.skipif(not entry_points(group="pytest11", name="kgent"), reason="kgent_tools is not installed, only found")
@pytest.mark.parametrize(("name", "code"), SUITES)
def test_suite_passes(name: str, code: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(code, encoding="utf-8")
    plain = ["-p", "no:cacheprovider", "-p", "no:langsmith_plugin", f"--basetemp={tmp_path / 'tmp'}"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plain, name], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ran.returncode, "1 passed" in ran.stdout) == (0, True), ran.stdout


def test_tool_table_is_complete(make_context: MakeContext, tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    context = make_context({"skills": {"roots": [str(tmp_path / "skills")]}})
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", README, re.MULTILINE)
    documented = {name: re.findall(r"`(\w+)`", arguments) for name, arguments in rows}
    assert documented == {tool.name: list(tool.input_schema["properties"]) for tool in build_toolsets(context)}
