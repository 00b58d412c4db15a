"""Where the kernel's `openat2` is missing or forbidden, the component-wise resolver keeps the same promises.

A real seccomp filter answers every `openat2` of a child process, which runs the suites of names, special files, writes and
search again (rule 8 of the threat model). Sandboxes of containers answer EPERM, old kernels ENOSYS.
"""

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ERRORS = {"ENOSYS": errno.ENOSYS, "EPERM": errno.EPERM}
SUITES = {"ENOSYS": ("path_escape", "special_files", "write", "search"), "EPERM": ("path_escape",)}


def under_filter(answer: int, *command: str) -> subprocess.CompletedProcess[str]:
    run = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import support, os; "
    run += f"support.forbid({answer}, 'openat2'); os.execv(sys.executable, [sys.executable, *{command!r}])"
    return subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="the filter is written for these")
@pytest.mark.parametrize("answer", ERRORS)
def test_the_suites_pass_without_openat2(answer: str) -> None:
    tests = [str(Path(__file__).with_name(f"test_{name}.py")) for name in SUITES[answer]]
    done = under_filter(ERRORS[answer], "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert " passed" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("answer", ERRORS)
def test_a_run_says_that_it_resolves_names_itself(answer: str, tmp_path: Path) -> None:
    code = "import sys; from kgent_tools import RunContext; "
    code += "print(RunContext.create(sys.argv[1]).guarantees()['mounts']['workspace']['resolver'])"
    done = under_filter(ERRORS[answer], "-c", code, str(tmp_path / "runs"))
    assert (done.stdout, done.stderr) == ("descent\n", "")
    assert os.listdir(tmp_path / "runs")
