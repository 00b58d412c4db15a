"""Where the kernel's `openat2` is missing or forbidden, the component-wise resolver keeps the same promises.

A real seccomp filter answers every `openat2` of a child process, which runs the suites of names, special files and writes
again (rule 8 of the threat model). Sandboxes of containers answer EPERM, old kernels ENOSYS. Another answers
`renameat2` as file systems do that can neither exchange names nor keep one that is there (rule 19).
"""

import ctypes
import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kgent_tools import RunContext

ERRORS = {"ENOSYS": errno.ENOSYS, "EPERM": errno.EPERM}
EXCHANGING = "test_a_writer_without_our_lock_is_not_overwritten"
SUITES = {"ENOSYS": ("path_escape", "special_files", "write"), "EPERM": ("special_files",)}


def under_filter(call: str, answer: int, *command: str) -> subprocess.CompletedProcess[str]:
    run = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import support, os; "
    run += f"support.forbid({answer}, {call!r}); os.execv(sys.executable, [sys.executable, *{command!r}])"
    return subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="the filter is written for these")
@pytest.mark.parametrize("answer", ERRORS)
def test_the_suites_pass_without_openat2(answer: str) -> None:
    tests = [str(Path(__file__).with_name(f"test_{name}.py")) for name in SUITES[answer]]
    done = under_filter(
        "openat2", ERRORS[answer], "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert " passed" in done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of the call is that of this machine")
def test_writes_are_whole_without_renameat2() -> None:
    tests = str(Path(__file__).with_name("test_write.py"))
    # What is lost there is what `atomic_exchange` says.
    rest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", f"not {EXCHANGING}", tests)
    done = under_filter("renameat2", errno.EINVAL, *rest)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert " passed, 1 deselected" in done.stdout.splitlines()[-1]


def test_guarantees_say_no_more_of_exchanges_than_is_so(tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("one", "other")]
    for name in names:
        name.touch()
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    can = ctypes.CDLL(None).renameat2(here, bytes(names[0]), here, bytes(names[1]), exchange) == 0
    with RunContext.create(tmp_path / "runs") as context:
        assert can or not context.guarantees()["mounts"]["workspace"]["atomic_exchange"]


@pytest.mark.parametrize("answer", ERRORS)
def test_a_run_says_that_it_resolves_names_itself(answer: str, tmp_path: Path) -> None:
    code = "import sys; from kgent_tools import RunContext; "
    code += "print(RunContext.create(sys.argv[1]).guarantees()['mounts']['workspace']['resolver'])"
    done = under_filter("openat2", ERRORS[answer], "-c", code, str(tmp_path / "runs"))
    assert (done.stdout, done.stderr) == ("descent\n", "")
    assert os.listdir(tmp_path / "runs")
