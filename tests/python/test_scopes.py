"""Who registers what where: application, location and session; batches, providers, plugins; and nothing stays behind."""

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Box, in_child

from kgent_tools import (
    CallContext,
    EffectivePermissionPolicy,
    PermissionRule,
    RegistrationError,
    RunContext,
    RunError,
    ToolDefinition,
    ToolRegistry,
    ToolResult,
    ToolSnapshot,
)

SECONDS = float(os.environ.get("KGENT_REGISTRY_SECONDS", "3"))


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        made.put("a", "one\n")
        yield made


def says(text: str) -> ToolDefinition:
    def handler(args: Any, context: CallContext) -> ToolResult:
        return ToolResult(ok=True, summary=text)

    return ToolDefinition(description="d", input_schema={"type": "object"}, handler=handler)


def said(registry: ToolRegistry, name: str) -> str | None:
    """What the effective tool of that name says; `None` where there is none."""
    result = registry.materialize().call(name, {})
    return result.summary if result.ok else None if result.error and result.error.code == "unknown_tool" else "?"


def names(registry: ToolRegistry) -> set[str]:
    return {str(tool.name) for tool in registry.materialize().definitions}


def test_the_innermost_scope_wins_and_closing_uncovers(box: Box) -> None:
    application, location = ToolRegistry.application(), ToolRegistry(box.context)
    session = location.session("chat")
    with application.register({"who": says("application")}):
        assert said(session, "who") == "application"
        assert box.records[-1]["scope"] == "application"
        with session.register({"who": says("session")}), location.register({"who": says("location")}):
            assert [said(r, "who") for r in (session, location, location.session("other"))] == [
                "session",
                "location",
                "location",
            ]
            assert [r["scope"] for r in box.records[-3:]] == ["session", "location", "location"]
        assert [said(r, "who") for r in (session, location)] == ["application", "application"]
    assert said(session, "who") is None


def test_application_tools_are_registered_once_and_seen_by_every_run(box: Box, tmp_path: Path) -> None:
    with ToolRegistry.application().register({"app_tool": says("app")}):
        with RunContext.create(tmp_path / "runs") as later:
            assert said(ToolRegistry(later), "app_tool") == "app"
        assert said(ToolRegistry(box.context), "app_tool") == "app"

        def child() -> None:
            assert said(ToolRegistry(box.context), "app_tool") == "app"
            ToolRegistry.application().register({"only_in_the_child": says("child")})

        in_child(child)
        assert "only_in_the_child" not in names(ToolRegistry(box.context))
    assert "app_tool" not in names(ToolRegistry(box.context))


def test_nothing_of_one_location_or_session_leaks_into_another(box: Box, tmp_path: Path) -> None:
    here = ToolRegistry(box.context)
    with RunContext.create(tmp_path / "runs") as other:
        there = ToolRegistry(other)
        here.register({"mine": says("mine")})
        here.session("one").register({"ours": says("ours")})
        assert names(there) == set(box.tools)
        assert names(there.session("one")) == set(box.tools)
        assert names(here.session("two")) == {*box.tools, "mine"}
        assert names(here.session("one")) == {*box.tools, "mine", "ours"}
        snapshot = here.materialize()
        bound = next(tool for tool in snapshot.definitions if tool.name == "mine")
        with pytest.raises(RegistrationError, match="another run"):
            bound.handler({}, other)
        assert list(other.records()) == []


def test_the_application_s_registry_belongs_to_no_run() -> None:
    application = ToolRegistry.application()
    for work in (application.materialize, lambda: application.session("x"), lambda: application.load_plugins([])):
        with pytest.raises(RegistrationError, match="belongs to no run"):
            work()


@pytest.mark.parametrize("id", ["", "x" * 257, "a\nb", "a\0"])
def test_session_ids_are_plain_text(box: Box, id: str) -> None:
    with pytest.raises(RegistrationError):
        ToolRegistry(box.context).session(id)


def test_a_closed_run_lets_go_of_its_registrations(tmp_path: Path) -> None:
    class Handler:
        def __call__(self, args: Any, context: CallContext) -> ToolResult:
            raise AssertionError

        def __del__(self) -> None:
            gone.append(True)

    gone: list[bool] = []
    context = RunContext.create(tmp_path / "runs")
    registry = ToolRegistry(context)
    tool = ToolDefinition(description="d", input_schema={"type": "object"}, handler=Handler())
    registry.register({"mine": tool})
    registration = registry.session("s").register({"mine": tool})
    del tool
    assert gone == []
    context.close()
    assert gone == [True]
    registration.close()
    with pytest.raises(RunError, match="closed"):
        registry.register({"late": says("late")})
    with pytest.raises(RegistrationError, match="closed"):
        registration.replace({})


def test_a_registrar_can_only_register(box: Box) -> None:
    registry = ToolRegistry(box.context)
    registrar = registry.registrar
    assert [name for name in dir(registrar) if not name.startswith("_")] == ["register"]
    with registrar.register({"x": says("x")}):
        assert said(registry, "x") == "x"
    assert said(registry, "x") is None


def test_one_tool_under_two_names(box: Box) -> None:
    registry, tool = ToolRegistry(box.context), says("same")
    registry.register({"one": tool, "two": tool})
    assert [said(registry, name) for name in ("one", "two")] == ["same", "same"]
    assert [r["permission"]["action"] for r in box.records[-2:]] == ["one", "two"]
    assert tool.name is None


def test_a_provider_asks_by_default_and_a_rule_allows_it(tmp_path: Path) -> None:
    with Box(tmp_path, runtime=[PermissionRule("good", "*", "allow")]) as box:
        registry = ToolRegistry(box.context)
        registry.register({"good": says("good"), "other": says("other")}, provider="plugin acme:tools")
        snapshot = registry.materialize(box.policy)
        assert snapshot.call("good", {}).ok
        refused = snapshot.call("other", {})
        assert refused.error is not None
        assert refused.error.code == "approval_required"
        assert [(r["tool"], r["scope"], r["provider"], r["permission"]["effect"]) for r in box.records] == [
            ("good", "location", "plugin acme:tools", "allow"),
            ("other", "location", "plugin acme:tools", "ask"),
        ]
        registry.register({"hosts": says("host")})
        assert registry.materialize(box.policy).call("hosts", {}).ok
        assert "provider" not in box.records[-1]


def test_a_provider_never_covers_a_built_in(box: Box) -> None:
    registry = ToolRegistry(box.context)
    for scope in (registry, registry.session("s"), ToolRegistry.application()):
        for name in box.tools:
            with pytest.raises(RegistrationError, match="only the host may cover"):
                scope.register({"fine": says("x"), name: says("x")}, provider="mcp")
        batch = scope.register({"fine": says("x")}, provider="mcp")
        with pytest.raises(RegistrationError, match="only the host may cover"):
            batch.replace({"read_file": says("x")})
        batch.close()
    assert names(registry) == set(box.tools)


def test_a_batch_is_replaced_at_its_own_place(box: Box) -> None:
    registry, kept = ToolRegistry(box.context), says("kept")
    below = registry.register({"a": says("a1"), "kept": kept})
    above = registry.register({"a": says("over")})
    snapshot = registry.materialize()
    below.replace({"a": says("a2"), "kept": kept, "new": says("new")})
    assert [said(registry, name) for name in ("a", "kept", "new")] == ["over", "kept", "new"]
    assert snapshot.call("kept", {}).ok, "what did not change is not stale"
    above.close()
    assert said(registry, "a") == "a2"
    stale = snapshot.call("a", {})
    assert stale.error is not None
    assert stale.error.code == "stale_tool"


def test_tools_with_names_are_registered_as_a_list(box: Box) -> None:
    def named(name: str | None) -> ToolDefinition:
        return ToolDefinition(description="d", input_schema={"type": "object"}, handler=print, name=name)

    registry = ToolRegistry(box.context)
    registry.register([named("one"), named("two")])
    assert names(registry) == {*box.tools, "one", "two"}
    for wrong in ([named(None)], [named("x"), named("x")], ["x"], 5):
        with pytest.raises(RegistrationError):
            registry.register(wrong)  # type: ignore[arg-type]
    assert names(registry) == {*box.tools, "one", "two"}


@pytest.mark.slow
def test_many_threads_run_what_their_snapshot_offered_or_are_told_that_it_is_stale(tmp_path: Path) -> None:
    """8 threads register, replace, close, materialize and call in all scopes; in the end nothing is left."""
    with Box(tmp_path) as box:
        registry, failures = ToolRegistry(box.context), list[object]()
        scopes = [ToolRegistry.application(), registry, registry.session("s")]
        end = time.monotonic() + SECONDS
        counts = {"ok": 0, "stale": 0}

        def call(snapshot: ToolSnapshot, offered: dict[str, str]) -> None:
            for name, text in offered.items():
                result = snapshot.call(name, {})
                if result.ok and result.summary == text:
                    counts["ok"] += 1
                elif result.error is not None and result.error.code == "stale_tool":
                    counts["stale"] += 1
                else:
                    failures.append((name, text, result))

        def work(which: int) -> None:
            n = 0
            while time.monotonic() < end:
                n += 1
                text = f"{which}-{n}"
                own = f"own{which}"
                with scopes[n % 3].register({own: described(text), "shared": described(text)}) as batch:
                    snapshot = registry.session("s").materialize()
                    offered = {str(t.name): t.description for t in snapshot.definitions if t.name in (own, "shared")}
                    call(snapshot, offered)
                    batch.replace({own: described(text + "'")})
                    call(snapshot, offered)

        threads = [threading.Thread(target=work, args=(which,)) for which in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert counts["ok"] > 100
        assert counts["stale"] > 100
        assert names(registry.session("s")) == set(box.tools)
        assert len(box.records) == counts["ok"] + counts["stale"]


def described(text: str) -> ToolDefinition:
    """A tool that says what its description says."""

    def handler(args: Any, context: CallContext) -> ToolResult:
        return ToolResult(ok=True, summary=text)

    return ToolDefinition(description=text, input_schema={"type": "object"}, handler=handler)


def best(work: Callable[[], object], rounds: int = 30) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return min(once() for _ in range(rounds))


@pytest.mark.slow
def test_ten_thousand_tools_cost_what_ten_do(box: Box) -> None:
    """Lookup within twice, materialize within fifty times; one by one they are registered in seconds."""
    registry, tool, policy = ToolRegistry(box.context), says("x"), box.policy
    registry.register({f"tool_{n}": tool for n in range(10)})
    few = registry.materialize(policy)
    materialize_few = best(lambda: registry.materialize(policy))
    start = time.monotonic()
    for n in range(10, 10_000):
        registry.register({f"tool_{n}": tool})
    assert time.monotonic() - start < 15
    many = registry.materialize(policy)
    assert len(many.definitions) == 10_000 + len(box.tools)
    assert best(lambda: registry.materialize(policy)) < 50 * materialize_few
    lookup = [best(lambda s=s: [s.call("tool_5", {}) for _ in range(20)]) for s in (few, many)]
    assert lookup[1] < 2 * lookup[0]


# Plugins.


class Plugins:
    """A folder of installed distributions on `sys.path`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        monkeypatch.syspath_prepend(folder)

    def add(self, name: str, code: str, entry: str = "tools = {module}:TOOLS") -> str:
        module = name.replace("-", "_")
        (self.folder / f"{module}.py").write_text(code, encoding="utf-8")
        info = self.folder / f"{module}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(
            f"[kgent_tools.tools]\n{entry.format(module=module)}\n", encoding="utf-8"
        )
        importlib.invalidate_caches()
        return f"{name}:tools"


GOOD = """
from kgent_tools import ToolDefinition, ToolResult
def handler(args, context):
    return ToolResult(ok=True, summary="from a plugin")
TOOLS = {"NAME": ToolDefinition(description="d", input_schema={"type": "object"}, handler=handler)}
def make():
    return TOOLS
"""


def test_plugins_are_loaded_when_asked_and_fail_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = Plugins(tmp_path / "site", monkeypatch)
    good = plugins.add("kt-good", GOOD.replace("NAME", "plugged"))
    made = plugins.add("kt-made", GOOD.replace("NAME", "made"), "tools = {module}:make")
    wrong = [
        plugins.add("kt-raises", "raise ValueError('at import')"),
        plugins.add("kt-exits", "raise SystemExit(3)"),
        plugins.add("kt-value", "TOOLS = 5"),
        plugins.add("kt-cover", GOOD.replace("NAME", "read_file")),
        plugins.add("kt-gone", "", "tools = kt_no_such_module:TOOLS"),
        "kt-absent:tools",
        "kt-good:other",
    ]
    with Box(tmp_path, runtime=[PermissionRule("plugged", "*", "allow")]) as box:
        registry = ToolRegistry(box.context)
        assert "kt_good" not in sys.modules, "nothing is loaded unasked"
        report = registry.load_plugins([wrong[0], good, *wrong[1:], made])
        assert [(p.id, p.tools, p.error is None) for p in report] == [
            (wrong[0], (), False),
            (good, ("plugged",), True),
            *((id, (), False) for id in wrong[1:]),
            (made, ("made",), True),
        ]
        snapshot = registry.materialize(box.policy)
        assert snapshot.call("plugged", {}).summary == "from a plugin"
        assert box.records[-1]["provider"] == f"plugin {good}"
        assert snapshot.call("made", {}).error.code == "approval_required"  # type: ignore[union-attr]
        assert report[1].registration is not None
        report[1].registration.close()
        assert said(registry, "plugged") is None
    for name in ("kt_good", "kt_made", "kt_value", "kt_cover"):
        sys.modules.pop(name)


def test_a_plugin_that_a_tool_could_have_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The distribution, its module, or a module that it imports lies in a mount; or two claim the name."""
    outside = Plugins(tmp_path / "site", monkeypatch)
    with Box(tmp_path) as box:
        registry = ToolRegistry(box.context)
        planted = Plugins(box.ws / "site", monkeypatch)
        in_mount = planted.add("kt-planted", GOOD.replace("NAME", "planted"))
        (box.ws / "site" / "kt_helper.py").write_text("EVIL = True", encoding="utf-8")
        importer = outside.add("kt-importer", "import kt_helper\n" + GOOD.replace("NAME", "importer"))
        shadowed = outside.add("kt-shadowed", GOOD.replace("NAME", "shadowed"))
        (box.ws / "site" / "kt_shadowed.py").write_text("EVIL = True", encoding="utf-8")
        (tmp_path / "link").symlink_to(box.ws / "site")
        twice = outside.add("kt-twice", GOOD.replace("NAME", "twice"))
        again = Plugins(tmp_path / "again", monkeypatch)
        again.add("kt-twice", GOOD.replace("NAME", "twice"))
        report = registry.load_plugins([in_mount, importer, shadowed, twice])
        assert [p.tools for p in report] == [(), (), (), ()]
        assert [("mount" in str(p.error), "twice" in str(p.error)) for p in report] == [
            (True, False),
            (True, False),
            (True, False),
            (False, True),
        ]
        assert not {"kt_planted", "kt_helper", "kt_shadowed", "kt_twice"} & set(sys.modules)
        assert names(registry) == set(box.tools)
        assert [f for f in sys.meta_path if type(f).__name__ == "_Guard"] == []


def test_a_policy_decides_over_a_provider_s_paths(tmp_path: Path) -> None:
    config = {"permissions": {"rules": [{"action": "mine", "resource": "open/**", "effect": "allow"}]}}
    with Box(tmp_path, config) as box:
        box.put("open/a", "x")
        tool = ToolDefinition(
            description="d",
            input_schema={"type": "object", "properties": {"path": {"type": "string"}}},
            handler=lambda args, context: ToolResult(ok=True, summary="s"),
            resources=["path"],
        )
        registry = ToolRegistry(box.context)
        registry.register({"mine": tool}, provider="mcp")
        snapshot = registry.materialize(EffectivePermissionPolicy.merge(config=config, context=box.context))
        codes = [
            (result := snapshot.call("mine", {"path": path})).error and result.error.code
            for path in ("open/a", "a", "../x")
        ]
        assert codes == [None, "approval_required", "outside_sandbox"]
