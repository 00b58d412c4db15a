//! `CallContext`, what a Python handler gets.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::convert::to_python;
use super::exceptions::tool_failure;
use super::memory::PyCallMemory;
use crate::context::CallContext;
use crate::error::ToolError;

/// The controlled doors of one call. They close when the call has ended.
#[pyclass(frozen, name = "CallContext", module = "kgent_tools")]
pub(super) struct PyCallContext(pub(super) CallContext);

#[pymethods]
impl PyCallContext {
    #[getter]
    fn id(&self) -> &str {
        self.0.id()
    }

    #[getter]
    fn run_id(&self) -> &str {
        self.0.run_id()
    }

    #[getter]
    fn call_id(&self) -> Option<&str> {
        self.0.info().call_id.as_deref()
    }

    #[getter]
    fn conversation_id(&self) -> Option<&str> {
        self.0.info().conversation_id.as_deref()
    }

    #[getter]
    fn step(&self) -> Option<u64> {
        self.0.info().step
    }

    #[getter]
    fn agent(&self) -> Option<&str> {
        self.0.info().agent.as_deref()
    }

    #[getter]
    fn sandbox(&self) -> PyCallSandbox {
        PyCallSandbox(self.0.clone())
    }

    #[getter]
    fn memory(&self) -> PyCallMemory {
        PyCallMemory(self.0.clone())
    }

    /// Seconds that are left of the call's time.
    #[getter]
    fn deadline(&self) -> f64 {
        self.0.deadline().saturating_duration_since(std::time::Instant::now()).as_secs_f64()
    }

    #[getter]
    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }

    /// Whether the policy allows `action` on `resource`: `allow`, `deny` or `ask`.
    fn check(&self, py: Python<'_>, action: &str, resource: &str) -> PyResult<&'static str> {
        self.0.check(action, resource).map(crate::permission::Effect::as_str).map_err(|e| tool_failure(py, e))
    }

    fn save_artifact(&self, py: Python<'_>, name: &str, data: &[u8]) -> PyResult<String> {
        door(py, || self.0.save_artifact(name, data))
    }

    fn __repr__(&self) -> String {
        format!("CallContext(id={:?})", self.0.id())
    }
}

/// The files that a handler may use, under the call's own permissions.
#[pyclass(frozen, name = "CallSandbox", module = "kgent_tools")]
pub(super) struct PyCallSandbox(CallContext);

#[pymethods]
impl PyCallSandbox {
    fn read_bytes<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &door(py, || self.0.read_bytes(path))?))
    }

    fn write_bytes(&self, py: Python<'_>, path: &str, data: &[u8]) -> PyResult<()> {
        door(py, || self.0.write_bytes(path, data))
    }

    /// The entries of a folder: dicts of path, type and size.
    #[pyo3(signature = (path="."))]
    fn list<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &door(py, || self.0.list(path))?)
    }

    /// What a path leads to: a dict of type and size.
    fn stat<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyAny>> {
        let (kind, size) = door(py, || self.0.stat(path))?;
        to_python(py, &serde_json::json!({"type": kind, "size": size}))
    }
}

/// Goes through a door with the GIL released.
pub(super) fn door<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, ToolError> + Send) -> PyResult<T> {
    py.detach(work).map_err(|error| tool_failure(py, error))
}
