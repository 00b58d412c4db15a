"""A governed tool layer for LLM agents: confined by the kernel, on record, nearly free."""

import os as _os
import sys as _sys

# For `python -m kgent_tools` Python puts the current directory first, where an agent's workspace may be: nothing in it
# may be imported, and this is the first code of ours that runs.
if _sys.argv[:1] == ["-m"] and "kgent_tools" in _sys.orig_argv and _sys.path[:1] in ([""], [_os.getcwd()]):
    del _sys.path[0]

from kgent_tools._core import (
    CallContext,
    CandidateMemoryClient,
    ConfigError,
    EffectivePermissionPolicy,
    ErrorInfo,
    FileContent,
    Grant,
    KgentError,
    LogReader,
    PermissionResult,
    PermissionRule,
    PolicyError,
    Registration,
    RegistrationError,
    RunContext,
    RunError,
    SandboxPath,
    SkillRegistry,
    TextContent,
    ToolDefinition,
    ToolRegistrar,
    ToolRegistry,
    ToolResult,
    ToolsConfig,
    ToolSnapshot,
    __version__,
    build_toolsets,
    resolve_sandbox_path,
    verify_run,
)
from kgent_tools.memory import MemoryClient, MemoryItem, MemoryWriteResult, NoopMemoryClient
from kgent_tools.tool import ToolFailure, tool

__all__ = [
    "CallContext",
    "CandidateMemoryClient",
    "ConfigError",
    "EffectivePermissionPolicy",
    "ErrorInfo",
    "FileContent",
    "Grant",
    "KgentError",
    "LogReader",
    "MemoryClient",
    "MemoryItem",
    "MemoryWriteResult",
    "NoopMemoryClient",
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
    "ToolFailure",
    "ToolRegistrar",
    "ToolRegistry",
    "ToolResult",
    "ToolSnapshot",
    "ToolsConfig",
    "__version__",
    "build_toolsets",
    "resolve_sandbox_path",
    "tool",
    "verify_run",
]
