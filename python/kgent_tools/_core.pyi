"""The compiled core. Every blocking call releases the GIL; every object is frozen and may be shared by threads."""

import builtins
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, final

from kgent_tools.memory import MemoryClient, MemoryItem, MemoryWriteResult
from kgent_tools.plugins import Plugin

__all__ = [
    "CallContext",
    "CallMemory",
    "CallSandbox",
    "CandidateMemoryClient",
    "ConfigError",
    "EffectivePermissionPolicy",
    "ErrorInfo",
    "FileContent",
    "Grant",
    "KgentError",
    "LogReader",
    "MemoryReview",
    "PendingCall",
    "PermissionResult",
    "PermissionRule",
    "PolicyError",
    "Registration",
    "RegistrationError",
    "RunContext",
    "RunError",
    "SandboxPath",
    "SkillRegistry",
    "TextContent",
    "ToolDefinition",
    "ToolHandler",
    "ToolRegistrar",
    "ToolRegistry",
    "ToolResult",
    "ToolSnapshot",
    "ToolsConfig",
    "__version__",
    "build_toolsets",
    "build_workspace",
    "built_in_names",
    "resolve_sandbox_path",
    "verify_run",
]

__version__: str

_Json: TypeAlias = dict[str, Any]
_Path: TypeAlias = str | PathLike[str]
_Mode: TypeAlias = Literal["ro", "rw"]
_Effect: TypeAlias = Literal["allow", "deny", "ask"]
_Handler: TypeAlias = Callable[[Any, CallContext], Any] | Callable[[Any, CallContext], Awaitable[Any]]
_Schema: TypeAlias = _Json | type[_Model]
_Content: TypeAlias = str | TextContent | FileContent
_Tools: TypeAlias = Mapping[str, ToolDefinition] | Iterable[ToolDefinition]
_Arguments: TypeAlias = _Json | str

class _Model(Protocol):
    """A Pydantic model."""

    @classmethod
    def model_json_schema(cls) -> _Json: ...

class KgentError(Exception):
    """A failure that the host must mend; the failure of a call is a `ToolResult` instead."""

class ConfigError(KgentError):
    """A configuration that cannot be used; the message names the key."""

class RunError(KgentError):
    """A run that cannot be made, opened or used."""

class PolicyError(KgentError):
    """A policy that cannot be built, or that was built for other mounts."""

class RegistrationError(KgentError):
    """A tool that cannot be registered, or used that way."""

@final
class TextContent:
    """Text that the model reads."""

    def __new__(cls, text: str) -> Self: ...
    @property
    def text(self) -> str: ...

@final
class FileContent:
    """A file that the model reads, such as an image."""

    def __new__(cls, media_type: str, data: bytes) -> Self: ...
    @property
    def media_type(self) -> str: ...
    @property
    def data(self) -> bytes: ...

@final
class ErrorInfo:
    """Why a call failed, in words for a model: with sandbox paths only."""

    def __new__(cls, code: str, message: str, hint: str | None = None, details: _Json | None = None) -> Self: ...
    @property
    def code(self) -> str:
        """One of the stable codes, such as `not_found`."""
    @property
    def message(self) -> str:
        """What was wrong."""
    @property
    def hint(self) -> str | None:
        """What to send instead."""
    @property
    def details(self) -> _Json | None:
        """Facts for programs."""
    @property
    def mendable(self) -> bool:
        """Whether other arguments could succeed."""
    @property
    def status(self) -> str:
        """How a call that fails with this code is recorded."""
    def to_dict(self) -> _Json: ...

@final
class ToolResult:
    """The answer to one call, the same for every tool and every caller."""

    def __new__(
        cls,
        ok: bool,
        summary: str,
        data: _Json | None = None,
        artifacts: Sequence[str] = ...,
        error: ErrorInfo | None = None,
        content: Sequence[_Content] | None = None,
    ) -> Self:
        """Without `content` the model reads the summary, then the data as JSON."""
    @property
    def ok(self) -> bool: ...
    @property
    def summary(self) -> str:
        """One line of at most 200 characters, fit for a log."""
    @property
    def data(self) -> _Json | None:
        """Facts for programs."""
    @property
    def artifacts(self) -> list[str]:
        """The sandbox paths of stored large outputs."""
    @property
    def error(self) -> ErrorInfo | None:
        """`None` exactly when `ok`."""
    @property
    def content(self) -> list[TextContent | FileContent]:
        """What the model reads."""
    def to_dict(self) -> _Json:
        """Everything but `content`, ready for JSON."""

@final
class ToolsConfig:
    """The host's configuration; an unknown key or a wrong type is a `ConfigError` that names the key."""

    def __new__(cls) -> Self: ...
    @staticmethod
    def from_dict(value: _Json) -> ToolsConfig: ...
    @staticmethod
    def from_file(path: _Path) -> ToolsConfig:
        """Reads TOML; the file is read-only for every tool."""
    def to_dict(self) -> _Json: ...

@final
class SandboxPath:
    """A path inside a mount, in the form that models read and write."""

    @property
    def mount(self) -> str: ...
    @property
    def name(self) -> str:
        """The last component."""

@final
class PermissionRule:
    """One rule: calls of `action` on `resource` have `effect`."""

    def __new__(cls, action: str, resource: str, effect: _Effect) -> Self: ...
    @property
    def action(self) -> str:
        """An action, a capability, or `*`."""
    @property
    def resource(self) -> str:
        """A pattern over sandbox paths; `*` is every resource."""
    @property
    def effect(self) -> _Effect: ...

@final
class PermissionResult:
    """What the policy says about one action on one resource, and which layer says it."""

    @property
    def allowed(self) -> bool: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def error(self) -> ErrorInfo | None: ...
    @property
    def effect(self) -> _Effect: ...
    @property
    def layer(self) -> str: ...
    @property
    def rule(self) -> str | None:
        """The rule that spoke, with its layer."""
    def __bool__(self) -> bool:
        """Whether it is allowed."""

@final
class EffectivePermissionPolicy:
    """What is left after four layers are merged over safe defaults: runtime, sandbox, config, skills."""

    @staticmethod
    def merge(
        *,
        config: ToolsConfig | _Json | None = None,
        skills: Sequence[_Json] = ...,
        runtime: Sequence[PermissionRule] = ...,
        context: RunContext | None = None,
    ) -> EffectivePermissionPolicy:
        """A policy for the mounts of `context`, under its configuration where no other is given.

        Args:
            config: The configuration's layer.
            skills: What loaded skills declare: dicts of `id` and `permissions`.
            runtime: The host's own rules; a deny here always wins.
            context: The run.
        """
    @property
    def filesystem_read(self) -> bool: ...
    @property
    def filesystem_write(self) -> bool: ...
    @property
    def filesystem_delete(self) -> bool: ...
    @property
    def shell(self) -> bool: ...
    @property
    def network(self) -> bool: ...
    @property
    def memory_write(self) -> bool: ...
    def effect(self, name: str) -> _Effect: ...
    def check(self, action: str, resource: str) -> PermissionResult: ...
    def explain(self) -> str:
        """The policy as a table for people."""
    @property
    def warnings(self) -> list[str]:
        """Rules that can never match, or never speak."""
    def to_json(self) -> str: ...
    @staticmethod
    def from_json(text: str) -> EffectivePermissionPolicy: ...

@final
class RunContext:
    """A run, in the host's hands: its mounts, recorders and limits. Used as a context manager it closes itself."""

    @staticmethod
    def create(
        runs: _Path,
        run_id: str | None = None,
        *,
        workspace: _Path | None = None,
        mounts: dict[str, _Path | tuple[_Path, _Mode]] | None = None,
        config: ToolsConfig | _Json | None = None,
    ) -> RunContext:
        """Makes `runs/<run_id>`; an id that exists is a `RunError`."""
    @staticmethod
    def open(
        runs: _Path,
        run_id: str,
        *,
        workspace: _Path | None = None,
        mounts: dict[str, _Path | tuple[_Path, _Mode]] | None = None,
        config: ToolsConfig | _Json | None = None,
    ) -> RunContext:
        """Joins a run; a call that a crash cut off is closed as `interrupted`."""
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    @property
    def run_id(self) -> str: ...
    @property
    def run_dir(self) -> Path:
        """The run's directory on the host, for the host."""
    @property
    def closed(self) -> bool: ...
    @property
    def skills(self) -> SkillRegistry | None:
        """The skills in the configuration's `skills.roots`; `None` where it names none."""
    @property
    def config(self) -> ToolsConfig: ...
    @property
    def mounts(self) -> dict[str, _Mode]: ...
    @property
    def limits(self) -> dict[str, int | float]: ...
    def guarantees(self) -> _Json:
        """What the kernel and the file systems here guarantee.

        For each of `mounts`: `resolver`, the kernel's `openat2` or our `descent`; `may_hang`, whether no deadline fires
        there; `atomic_exchange`, whether a write with `expected_hash` can give back what another program put in between.
        """
    def for_call(
        self,
        *,
        call_id: str | None = None,
        conversation_id: str | None = None,
        step: int | None = None,
        agent: str | None = None,
        trace: tuple[str, str] | None = None,
        timeout_s: float | None = None,
        grant: Grant | None = None,
    ) -> RunContext:
        """The same run, with what belongs to one call and goes into its record; `trace` is a trace id and a span id.

        `grant` is the host's approval of what the call was refused for.
        """
    def grant(self, request: ErrorInfo | _Json, *, once: bool = True, expires_s: float = 600.0) -> Grant:
        """Approves what a refused call asked for, as the error `approval_required` or its `details` say it.

        The grant lifts `ask` and never `deny`. It is bound to the run, the tool, the arguments, the resources and what each
        target held: where one differs by the time of the call, the call is refused and asks again. It goes on record.

        Args:
            request: The error of the refused call, its `details`, or what `requested` returns.
            once: Whether it is used up by one call, in whichever process.
            expires_s: Seconds until it is void.

        Raises:
            PolicyError: The request is none, or belongs to another run.
        """
    def requested(self, call_id: str) -> _Json | None:
        """What the call with this id was last refused for in this process, for `grant`."""
    def cancel(self, call_id: str | None = None) -> None:
        """Stops what is in flight, or just that call; later calls run."""
    def redact(self, value: _Json) -> _Json:
        """A copy of a JSON object without secrets, for places that others read: metadata, a span, a log of the host's.

        Each text is looked at by itself: of a key of many lines in as many texts only the first is known.
        """
    def records(self) -> LogReader:
        """Reads the records in `logs/tools.jsonl`, oldest first."""
    def events(self) -> LogReader:
        """Reads the events in `events.jsonl`, oldest first."""

@final
class LogReader:
    """Reads a log line by line, to the end that it has when it is reached; holds one line and writes nothing.

    Lines that are no records are passed over. What they are is told apart by the sequence numbers: a line that a crash
    cut off had none, a record that is gone left its number open.
    """

    @staticmethod
    def open(run: _Path, log: Literal["tools", "events", "errors"] = "tools") -> LogReader:
        """Reads a log of the run in the folder `run`, which need not be joined; a `RunError` where there is none."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> _Json: ...
    def resume(self) -> None:
        """Lets an iteration that came to the end go on with what was appended since."""
    @property
    def offset(self) -> int:
        """The byte up to which the log was read."""
    @property
    def torn(self) -> int:
        """Lines that a crash cut off, so far."""
    @property
    def faults(self) -> list[_Json]:
        """What was found damaged so far, at most a hundred places.

        Each has its `kind` (`broken`, `missing`, `reordered`), the `seq` that was expected, and the byte `at` which the
        line begins.
        """

def verify_run(run: _Path, *, audit_key_file: _Path | None = None) -> _Json:
    """Checks the logs in the folder of a run, line by line, and writes nothing.

    Returns `ok`; `audit` (`plain`, `unkeyed`: a chain that anybody can make, which finds accidents only, `keyed`);
    `closed` (the run's end is on record: a log that ends early is found); and in `logs` for each log its path `log`, its
    whole `records` and `bytes`, the lines `torn` by a crash, and the first `fault` or None: `kind` (`broken`, `missing`,
    `reordered`, `altered`, `truncated`), the `seq` that was expected and the byte `at` which the line begins.

    Raises `RunError` where the logs cannot be read or their key is missing, `ConfigError` for a key file that cannot be used.
    """

@final
class Grant:
    """The host's approval of one request; `RunContext.grant` makes it, and it cannot be pickled."""

    @property
    def id(self) -> str:
        """As the event `permission.granted` has it."""

@final
class CallContext:
    """What a handler gets: controlled doors, which close when the call has ended.

    What a door refuses raises `ToolFailure`; a handler that lets it pass fails with that error.
    """

    @property
    def id(self) -> str:
        """Our id of the call, unique."""
    @property
    def run_id(self) -> str: ...
    @property
    def call_id(self) -> str | None: ...
    @property
    def conversation_id(self) -> str | None: ...
    @property
    def step(self) -> int | None: ...
    @property
    def agent(self) -> str | None: ...
    @property
    def sandbox(self) -> CallSandbox: ...
    @property
    def memory(self) -> CallMemory: ...
    @property
    def deadline(self) -> float:
        """Seconds that are left of the call's time."""
    @property
    def cancelled(self) -> bool:
        """Whether to stop: the call was cancelled, or its time is up."""
    def check(self, action: str, resource: str) -> _Effect:
        """What the policy says of `action` on `resource`."""
    def save_artifact(self, name: str, data: bytes) -> str:
        """Stores `data` and returns its sandbox path."""

@final
class CallSandbox:
    """Files by sandbox path, as far as the call's permissions go."""

    def read_bytes(self, path: str) -> bytes: ...
    def write_bytes(self, path: str, data: bytes) -> None:
        """Replaces the file in one step."""
    def list(self, path: str = ".") -> builtins.list[_Json]:
        """The entries of a folder: dicts of `path`, `type` and `size`."""
    def stat(self, path: str) -> _Json:
        """A dict of `type` and `size`."""

@final
class CallMemory:
    """The run's memory, as far as the call's permissions go."""

    def recall_memory(self, query: str, scope: str = "default", limit: int = 10) -> list[MemoryItem]: ...
    def write_memory(self, content: str, scope: str = "default", tags: Sequence[str] = ...) -> MemoryWriteResult: ...

@final
class CandidateMemoryClient:
    """The candidates of a run as a memory client: what is written waits for review, what is recalled is unreviewed.

    What cannot be done raises `ToolFailure`.
    """

    def __new__(cls, context: RunContext) -> Self: ...
    def recall_memory(self, query: str, scope: str = "default", limit: int = 10) -> list[MemoryItem]:
        """Candidates of `scope` that share words with `query`, the best first; its newest where `query` is empty."""
    def write_memory(self, content: str, scope: str = "default", tags: Sequence[str] = ...) -> MemoryWriteResult:
        """Appends a candidate; its status is `candidate`."""

@final
class MemoryReview:
    """The candidates of a run under review. The run need not be open, and its logs do not change.

    What cannot be done raises `RunError`.
    """

    def __new__(cls, runs: _Path, run_id: str) -> Self: ...
    def list(self) -> tuple[builtins.list[_Json], builtins.list[tuple[int, str]]]:
        """Each candidate as a dict, its `status` what became of it; and the numbers of bad lines with what is wrong."""
    def begin(self, id: str, hash: str, client: str, retry: bool = False) -> _Json:
        """Notes that a candidate is about to be handed to `client`; without `finish` its status is then `unknown`."""
    def finish(
        self,
        id: str,
        hash: str,
        state: Literal["accepted", "failed"],
        client: str,
        stored_id: str | None = None,
    ) -> None:
        """Notes how it ended."""
    def reject(self, id: str, hash: str, retry: bool = False) -> None:
        """Notes that a candidate will not be remembered."""

@final
class SkillRegistry:
    """The skills in some folders, as they were when `discover` looked. It cannot be pickled."""

    @staticmethod
    def discover(roots: Sequence[_Path]) -> SkillRegistry:
        """Finds each folder that holds a `SKILL.md`; of one id that of the earlier root counts.

        Broken skills are listed with what is wrong. A root that is no folder raises `RunError`.
        """
    @property
    def roots(self) -> list[Path]: ...
    @property
    def skills(self) -> list[_Json]:
        """A dict for each skill, by id.

        Its keys: `id name description license compatibility metadata allowed_tools file`; whether it is `valid`, `lenient`
        (unquoted values were taken as text) or `shadowed`; the `line` and `reason` of a fault.
        """
    def loaded(self, context: RunContext) -> list[_Json]:
        """What the skills that the run has loaded declare, for `EffectivePermissionPolicy.merge(skills=...)`."""
    def instructions(self, max_characters: int = 8000) -> str:
        """The valid skills as text for a model's instructions, a line for each; what does not fit is counted."""
    def __len__(self) -> int: ...

@final
class ToolHandler:
    """A tool's way in: every step of the pipeline."""

    def __call__(self, args: _Arguments, context: RunContext) -> ToolResult:
        """Takes arguments as a dict or as JSON text.

        An async handler is run to its end where no event loop runs in this thread; else it is a `RegistrationError`.
        """
    @property
    def is_async(self) -> bool:
        """Whether the handler is an async function."""
    def begin(self, args: _Arguments, context: RunContext, wake: Callable[[], None]) -> ToolResult | PendingCall:
        """The first half of a call: all that comes before an async handler. `acall` does both.

        Args:
            args: A dict or JSON text.
            context: The run.
            wake: Called, on any thread, when the call is cancelled.
        """

@final
class PendingCall:
    """A call between the two halves, while its handler's coroutine is awaited. One that is dropped is `cancelled`."""

    @property
    def depth(self) -> int:
        """How many calls this one is made inside of, itself included."""
    @property
    def remaining(self) -> float:
        """Seconds that are left of the call's time."""
    @property
    def cancelled(self) -> bool:
        """Whether to stop."""
    def start(self) -> Coroutine[Any, Any, Any]:
        """The handler's coroutine."""
    def finish(self, answer: object) -> ToolResult:
        """The second half, with what the handler answered."""
    def fail(self, error: BaseException) -> ToolResult:
        """The second half, with what the handler raised; what is no failure of the call is raised again."""
    def stop(self) -> ToolResult:
        """The second half of a call that was cancelled, or whose time was up."""

@final
class ToolDefinition:
    """The one representation of an executable tool, built-in or the application's. Opaque and immutable."""

    def __new__(
        cls,
        *,
        description: str,
        input_schema: _Schema,
        handler: _Handler,
        name: str | None = None,
        output_schema: _Schema | None = None,
        to_data: Callable[[Any], Any] | None = None,
        to_content: Callable[[Any], _Content | Sequence[_Content]] | None = None,
        permission: str | None = None,
        resources: str | Sequence[str] | Callable[[Any], str | Sequence[str]] | None = None,
        annotations: Mapping[str, bool | str] | None = None,
    ) -> Self:
        """A tool of the application.

        Args:
            description: What the model reads about it.
            input_schema: A JSON schema of type `object` (draft 2020-12), or a Pydantic model.
            handler: `handler(args, context)`, sync or async. It returns a `ToolResult`; with `output_schema`, `to_data`
                or `to_content` it may return a plain value. What it cannot do it says with `ToolFailure`.
            name: Its name, where it is not given at registration.
            output_schema: What the result's `data` must fit; data that does not is `internal`.
            to_data: Makes `data` of a plain value; without it a dict is the data, and anything else its `result`.
            to_content: Makes of a plain value what the model reads; without it text as it is, else JSON.
            permission: The action that a call asks for; its name if `None`.
            resources: The arguments that hold sandbox paths, or a function of the arguments that gives the paths. Each
                is authorised before the handler runs.
            annotations: `read_only_hint`, `destructive_hint`, `idempotent_hint`, `open_world_hint`, `title`; without
                the first a call counts as a change.
        """
    @property
    def name(self) -> str | None:
        """`None` until it is given one, at the latest by its registration."""
    @property
    def description(self) -> str: ...
    @property
    def input_schema(self) -> _Json: ...
    @property
    def output_schema(self) -> _Json | None: ...
    @property
    def permission(self) -> str | None: ...
    @property
    def capabilities(self) -> list[str]: ...
    @property
    def annotations(self) -> dict[str, bool | str]: ...
    @property
    def mutating(self) -> bool: ...
    @property
    def is_async(self) -> bool:
        """Whether the handler is an async function."""
    def with_permission(self, action: str) -> ToolDefinition:
        """The same tool, asking for another action."""
    def to_openai(self) -> _Json:
        """The tool in the shape of OpenAI's chat completions."""
    def to_anthropic(self) -> _Json:
        """The tool in the shape of Anthropic's messages."""
    @property
    def handler(self) -> ToolHandler:
        """The only way in; a definition that no registry has bound raises `RegistrationError`."""
    def acall(self, args: _Arguments, context: RunContext) -> Coroutine[Any, Any, ToolResult]:
        """Calls the tool on the running asyncio loop: an async handler in place, any other in a worker thread."""

@final
class ToolRegistrar:
    """A door to one scope that can register there and do nothing else."""

    def register(self, tools: _Tools, *, provider: str | None = None) -> Registration:
        """As `ToolRegistry.register`."""

@final
class ToolRegistry:
    """The tools of a run; the newest registration of a name wins."""

    def __new__(cls, context: RunContext) -> Self: ...
    @staticmethod
    def application() -> ToolRegistry:
        """The scope of the whole process: what is registered here every run sees. It has no sessions and no snapshots."""
    def session(self, id: str) -> ToolRegistry:
        """The scope of one conversation of the run; its tools cover the run's, and those the application's."""
    @property
    def registrar(self) -> ToolRegistrar:
        """For code that shall register tools here and do nothing else."""
    def register(self, tools: _Tools, *, provider: str | None = None) -> Registration:
        """Registers all of them, or none; they stay until the registration is closed, or the run is.

        Args:
            tools: A dict of names and tools, or tools that have names.
            provider: Who stands behind the tools, such as a plugin or a server, where it is not the host. Then a call
                asks unless a rule allows it, its record names the provider, and no built-in tool can be covered.
        """
    def materialize(
        self,
        policy: EffectivePermissionPolicy | None = None,
        *,
        skills: SkillRegistry | None = None,
        memory: MemoryClient | None = None,
    ) -> ToolSnapshot:
        """The effective tools at this moment, fixed; what is not given is by the configuration, as in `build_toolsets`."""
    def load_plugins(self, allow: Iterable[str]) -> list[Plugin]:
        """Registers the tools of installed plugins, entry points of the group `kgent_tools.tools`.

        Args:
            allow: Which to load, as `distribution:entry`. The entry point is a dict of names and tools, or a function
                without arguments that returns one.

        Returns:
            What became of each; the failure of one stops no other. A plugin whose files lie in a mount is refused.
        """

@final
class Registration:
    """A batch of tools. `close()`, or the end of `with`, takes it back."""

    def close(self) -> None: ...
    def replace(self, tools: _Tools) -> None:
        """Replaces the batch in one step and in its own place; a tool that is the same object does not go stale."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

@final
class ToolSnapshot:
    """An immutable set of tools under one policy."""

    @property
    def definitions(self) -> list[ToolDefinition]:
        """The tools that the policy offers, by name."""
    def call(self, name: str, args: _Arguments, call_id: str | None = None) -> ToolResult:
        """Calls a tool; one that was closed or covered since is `stale_tool`."""
    def acall(self, name: str, args: _Arguments, call_id: str | None = None) -> Coroutine[Any, Any, ToolResult]:
        """The same, on the running asyncio loop."""

def build_toolsets(
    context: RunContext,
    skills: SkillRegistry | None = None,
    memory: MemoryClient | None = None,
    policy: EffectivePermissionPolicy | None = None,
) -> list[ToolDefinition]:
    """The built-in tools that the policy offers.

    Args:
        context: The run.
        skills: What `list_skills` and `load_skill` know; by the configuration's `skills.roots` if `None`.
        memory: The memory client; the configuration's `memory.client` if `None`, and without one the run's candidates.
        policy: The policy; the configuration's if `None`.
    """

def build_workspace(
    context: RunContext, policy: EffectivePermissionPolicy | None = None
) -> tuple[dict[str, ToolDefinition], dict[str, Path]]:
    """What a framework's workspace is made of: its tools by name, and the host's path of each mount.

    The tools deal in bytes and entries; no model is offered them.

    Raises:
        PolicyError: `policy` was merged for other mounts.
    """

def built_in_names() -> list[str]:
    """The names of the built-in tools, which only the host may cover."""

def resolve_sandbox_path(path: str, context: RunContext) -> SandboxPath:
    """Where a model-facing path leads; one that leaves the sandbox raises `ToolFailure`."""
