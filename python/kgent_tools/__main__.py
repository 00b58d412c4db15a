"""`python -m kgent_tools`, and the `kgent-tools` command."""

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command."""
    try:
        from kgent_tools.cli import cli
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"the kgent-tools command needs {error.name}: pip install 'kgent_tools[cli]'")
    cli(prog_name="kgent-tools")


if __name__ == "__main__":
    main()
