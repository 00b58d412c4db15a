"""Where the kernel's `openat2` is missing or forbidden, the component-wise resolver keeps the same promises.

A real seccomp filter answers every `openat2` of a child process, which runs the suites of names, special files, writes and
search again (rule 8 of the threat model). Sandboxes of containers answer EPERM, old kernels ENOSYS.
"""

import ctypes
import errno
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ERRORS = {"ENOSYS": errno.ENOSYS, "EPERM": errno.EPERM}
SUITES = {"ENOSYS": ("path_escape", "special_files", "write", "search"), "EPERM": ("path_escape",)}
OPENAT2 = 437  # the same on every architecture of Linux


def forbid_openat2(answer: int) -> None:
    """Installs a filter on this process, and on all that it will start, that answers `openat2` with an error number."""
    load, equal, ret = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    allow, fail = 0x7FFF_0000, 0x0005_0000 | answer  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
    steps = [(load, 0, 0, 0), (equal, 0, 1, OPENAT2), (ret, 0, 0, fail), (ret, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    long = [ctypes.c_ulong(n) for n in (1, 0, 0, 0)]
    if libc.prctl(38, *long) != 0:  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "prctl")
    if libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(program)) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(ctypes.get_errno(), "seccomp")


def under_filter(answer: int, *command: str) -> subprocess.CompletedProcess[str]:
    run = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_seccomp, os; "
    run += f"test_seccomp.forbid_openat2({answer}); os.execv(sys.executable, [sys.executable, *{command!r}])"
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
