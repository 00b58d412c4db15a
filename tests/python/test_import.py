"""The package as a whole: what it offers, and that it needs no framework."""

import subprocess
import sys
from importlib.metadata import requires, version
from importlib.resources import files

import pytest

import kgent_tools

WITHOUT_PYDANTIC_AI = "import sys; sys.modules['pydantic_ai'] = None; "


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


SUBMODULES = {
    "cli",
    "langchain_adapter",
    "memory",
    "memory_stores",
    "plugins",
    "pydantic_adapter",
    "report",
}  # and `tool`, which its function stands before


def test_every_name_of_all_is_there_and_nothing_else() -> None:
    # pytest, which looks for assertions in packages that bring a plugin, leaves names with `@`.
    offered = {name for name in vars(kgent_tools) if not name.startswith(("_", "@"))} - SUBMODULES
    assert offered == set(kgent_tools.__all__) - {"__version__"}


def test_version_is_the_distribution_s() -> None:
    assert kgent_tools.__version__ == version("kgent_tools")


def test_package_is_typed() -> None:
    assert files("kgent_tools").joinpath("py.typed").is_file()
    assert files("kgent_tools").joinpath("_core.pyi").is_file()


def test_nothing_but_extras_is_required() -> None:
    assert all("extra ==" in requirement for requirement in requires("kgent_tools") or [])


def test_imports_without_pydantic_ai() -> None:
    assert python(WITHOUT_PYDANTIC_AI + "import kgent_tools").stderr == ""


def test_adapter_says_which_extra_it_needs() -> None:
    last = python(WITHOUT_PYDANTIC_AI + "import kgent_tools.pydantic_adapter").stderr.splitlines()[-1]
    assert last.startswith("ImportError: kgent_tools.pydantic_adapter needs Pydantic AI 2.16 or later: pip install ")


@pytest.mark.parametrize(
    "error",
    [kgent_tools.ConfigError, kgent_tools.PolicyError, kgent_tools.RegistrationError, kgent_tools.RunError],
)
def test_host_errors_are_one_family(error: type[Exception]) -> None:
    assert issubclass(error, kgent_tools.KgentError)
    assert not issubclass(kgent_tools.ToolFailure, kgent_tools.KgentError)
