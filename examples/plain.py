"""Governed tools without any framework: `python examples/plain.py [PROJECT]`.

A policy, a run, calls, and what is on record of them. The project is only read.
"""

import sys
from tempfile import TemporaryDirectory

from kgent_tools import EffectivePermissionPolicy, PermissionRule, RunContext, ToolRegistry


def main(project: str) -> None:
    """Makes some calls and prints what became of them."""
    with TemporaryDirectory() as runs, RunContext.create(runs, workspace=project) as context:
        rules = [PermissionRule("edit", "workspace/**", "deny")]  # the host's own: no other layer can lift it
        policy = EffectivePermissionPolicy.merge(context=context, runtime=rules)
        snapshot = ToolRegistry(context).materialize(policy)
        print("offered:", ", ".join(str(definition.name) for definition in snapshot.definitions))

        found = snapshot.call("grep_files", {"pattern": r"\bTODO\b", "output": "files"})
        print("found:", found.summary)

        refused = snapshot.call("write_file", {"path": "notes.md", "content": "mine"}, call_id="call-2")
        if refused.error is not None:
            print("refused:", refused.error.code, "|", refused.error.message)

        report = f"{found.summary}\n"
        print("written:", snapshot.call("write_file", {"path": "deliverables/report.md", "content": report}).ok)

        for record in context.records():
            print(record["seq"], record["tool"], record["status"])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
