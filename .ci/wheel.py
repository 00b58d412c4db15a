"""Tests one wheel on the oldest and the newest Python from 3.11 that this machine has, each in an environment of its own.

`--all`: and on those between.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERSIONS = [f"3.{minor}" for minor in range(11, 16)]
# What may differ between Pythons: imports, typing, pickling, fork, the loop. The rest runs on the development build.
TESTS = [
    f"tests/python/test_{name}.py"
    for name in ("import", "pydantic_adapter", "kgent_capability", "langchain_adapter", "registry", "pickle", "fork")
]
PROBE = (
    "import ensurepip, sys, sysconfig, venv; assert not sysconfig.get_config_var('Py_GIL_DISABLED');"
    "print(sys.executable, *sys.version_info[:2], sep='\\n')"
)


def candidates(version: str) -> Iterator[str]:
    """What may be that Python: a name on PATH (perhaps a stub), and what is installed beside the running one."""
    if (found := shutil.which(f"python{version}")) is not None:
        yield found
    yield from sorted(str(path) for path in Path(sys.base_prefix).parent.glob(f"*/bin/python{version}"))


def find(version: str) -> str | None:
    """The first that runs, is of that version, has the GIL (the wheel is abi3) and can make an environment."""
    for candidate in candidates(version):
        probe = subprocess.run([candidate, "-c", PROBE], capture_output=True, text=True)
        if probe.returncode == 0:
            executable, *numbers = probe.stdout.split("\n")[:3]
            if ".".join(numbers) == version:
                return executable
    return None


def run(*command: str | Path) -> str:
    """The command's output; where it fails, all of it is printed and this process ends."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nfailed: {' '.join(map(str, command))}")
    return done.stdout


def fresh(base: str, wheel: str) -> None:
    """As a user has it who did `pip install` with extras and no more: the README's examples, one of them a test suite."""
    home = Path("build/wheel-tests/fresh")
    run(base, "-m", "venv", "--clear", home)
    python = home / "bin" / "python"
    needed = [f"{wheel}[cli,langchain,pydantic-ai]", "pydantic-ai-slim[spec]", "pytest"]
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", *needed)
    run(python, "examples/plain.py", home / "include")
    run(python, "-m", "kgent_tools", "tools", "--workspace", home / "include")
    run(python, "-c", "import kgent_tools.langchain_adapter")
    bare = ["-c", "/dev/null", "--rootdir", "tests", "-p", "no:cacheprovider"]
    output = run(python, "-m", "pytest", "--quiet", "--no-header", *bare, "tests/python/test_readme.py")
    print(f"README, wheel, newest that the extras admit: {output.splitlines()[-1]}", flush=True)


def main(wheel: str, *options: str) -> None:
    """Prints one line for each version."""
    bases = {version: base for version in VERSIONS if (base := find(version)) is not None}
    fresh(list(bases.values())[-1], wheel)
    chosen = list(bases) if "--all" in options else sorted({*list(bases)[:1], *list(bases)[-1:]})
    for version in chosen:
        home = Path("build/wheel-tests", version)
        python = home / "bin" / "python"
        if not python.exists():
            run(bases[version], "-m", "venv", "--clear", home)
            run(python, "-m", "pip", "install", "--quiet", "pip>=25.1")
        run(python, "-m", "pip", "install", "--quiet", "--no-compile", "--group", "oldest")
        run(python, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", wheel)
        output = run(python, "-m", "pytest", "--quiet", "--no-header", "-p", "no:cacheprovider", *TESTS)
        print(f"Python {version}, wheel, oldest frameworks: {output.splitlines()[-1]}", flush=True)


main(*sys.argv[1:])
