//! The Python package's compiled module. The only room that names PyO3: it converts, releases the GIL, and decides
//! nothing.
#![expect(clippy::needless_pass_by_value, clippy::unused_self, reason = "the shapes that PyO3 asks for")]

mod call_context;
mod config;
mod context;
mod convert;
mod exceptions;
mod handler;
mod memory;
mod pending;
mod policy;
mod result;
mod skills;
mod span;
mod tools;

use pyo3::prelude::*;

/// The compiled part of `kgent_tools`.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::call_context::{PyCallContext, PyCallSandbox};
    #[pymodule_export]
    use super::config::PyToolsConfig;
    #[pymodule_export]
    use super::context::{PyGrant, PyLogReader, PyRunContext, PySandboxPath, resolve_sandbox_path, verify_run};
    #[pymodule_export]
    use super::exceptions::{ConfigError, KgentError, PolicyError, RegistrationError, RunError};
    #[pymodule_export]
    use super::memory::{PyCallMemory, PyCandidateMemoryClient, PyMemoryReview};
    #[pymodule_export]
    use super::pending::PyPendingCall;
    #[pymodule_export]
    use super::policy::{PyPermissionResult, PyPermissionRule, PyPolicy};
    #[pymodule_export]
    use super::result::{PyErrorInfo, PyFileContent, PyTextContent, PyToolResult};
    #[pymodule_export]
    use super::skills::PySkillRegistry;
    #[pymodule_export]
    use super::tools::{
        PyHandler, PyRegistration, PyToolDefinition, PyToolRegistrar, PyToolRegistry, PyToolSnapshot, build_toolsets,
        build_workspace, built_in_names,
    };

    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
