//! Exceptions: one family for the host's failures, and the bridge from the core's errors.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::error::{self, ToolError};

create_exception!(
    kgent_tools,
    KgentError,
    PyException,
    "A failure that the host must mend; the message names the file, key or value."
);
create_exception!(kgent_tools, ConfigError, KgentError, "A configuration that cannot be used.");
create_exception!(kgent_tools, RunError, KgentError, "A run that cannot be made, opened or used.");
create_exception!(
    kgent_tools,
    PolicyError,
    KgentError,
    "A policy that cannot be built, or that was built for other mounts."
);
create_exception!(kgent_tools, RegistrationError, KgentError, "A tool that cannot be registered or used that way.");

impl From<error::KgentError> for PyErr {
    fn from(error: error::KgentError) -> Self {
        match error {
            error::KgentError::Config(text) => ConfigError::new_err(text),
            error::KgentError::Run(text) => RunError::new_err(text),
            error::KgentError::Policy(text) => PolicyError::new_err(text),
            error::KgentError::Registration(text) => RegistrationError::new_err(text),
        }
    }
}

/// What belongs to one process does not travel.
pub(super) fn stays(class: &str) -> PyErr {
    PyTypeError::new_err(format!("a {class} cannot be pickled: it belongs to its process"))
}

/// The class `kgent_tools.tool.ToolFailure`.
pub(super) fn tool_failure_class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CLASS
        .get_or_try_init(py, || Ok::<_, PyErr>(py.import("kgent_tools.tool")?.getattr("ToolFailure")?.unbind()))?;
    Ok(class.bind(py))
}

/// A failed door, as the handler that used it sees it: unhandled, it becomes the call's own failure.
pub(super) fn tool_failure(py: Python<'_>, error: ToolError) -> PyErr {
    let made = tool_failure_class(py).and_then(|class| class.call1((error.message, error.hint, error.code.as_str())));
    match made {
        Ok(value) => PyErr::from_value(value),
        Err(error) => error,
    }
}
