//! `PendingCall`: a call between settle's two halves, while its handler's coroutine is awaited.

use std::sync::Mutex;

use pyo3::prelude::*;

use super::exceptions::{RegistrationError, stays};
use super::handler::{Job, stopped};
use super::result::PyToolResult;
use super::span::CallSpan;
use super::tools::settled_result;
use crate::context::CallContext;
use crate::error::ToolError;
use crate::registry::Output;
use crate::settle::Pending;

/// A call whose handler is to be awaited.
#[pyclass(frozen, name = "PendingCall", module = "kgent_tools")]
pub(super) struct PyPendingCall {
    call: CallContext,
    job: Job,
    pending: Mutex<Option<Box<Pending>>>,
    span: CallSpan,
}

impl PyPendingCall {
    pub(super) fn new(mut pending: Box<Pending>, span: CallSpan) -> PyResult<Self> {
        let job = pending.take_awaited().and_then(|awaited| awaited.downcast::<Job>().ok());
        let job = job.ok_or_else(|| RegistrationError::new_err("the tool cannot be awaited from Python"))?;
        Ok(Self { call: pending.call().clone(), job: *job, pending: Mutex::new(Some(pending)), span })
    }

    /// Takes the call, once; no lock is held while it is settled.
    fn finish_with(&self, py: Python<'_>, outcome: Result<Output, ToolError>) -> PyResult<PyToolResult> {
        let pending = self.pending.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let pending = pending.ok_or_else(|| RegistrationError::new_err("the call is finished"))?;
        self.span.end(py, settled_result(py.detach(|| pending.finish(outcome))))
    }
}

#[pymethods]
impl PyPendingCall {
    fn __reduce__(&self) -> PyResult<()> {
        Err(stays("PendingCall"))
    }

    /// How many calls this one is made inside of, itself included.
    #[getter]
    fn depth(&self) -> u32 {
        self.call.depth()
    }

    /// Seconds that are left of the call's time.
    #[getter]
    fn remaining(&self) -> f64 {
        self.call.deadline().saturating_duration_since(std::time::Instant::now()).as_secs_f64()
    }

    #[getter]
    fn cancelled(&self) -> bool {
        self.call.cancelled()
    }

    /// The handler's coroutine.
    fn start<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.job.start(py, &self.call)
    }

    /// Settle's second half, with what the handler answered.
    fn finish(&self, py: Python<'_>, answer: Bound<'_, PyAny>) -> PyResult<PyToolResult> {
        self.finish_with(py, self.job.end(py, Ok(answer), &self.call))
    }

    /// The same, with what the handler raised; what is no failure of the call is raised again, after its record.
    fn fail(&self, py: Python<'_>, error: Bound<'_, PyAny>) -> PyResult<PyToolResult> {
        self.finish_with(py, self.job.end(py, Err(PyErr::from_value(error)), &self.call))
    }

    /// The same, for a handler that was stopped: the call was cancelled, or its time was up.
    fn stop(&self, py: Python<'_>) -> PyResult<PyToolResult> {
        self.finish_with(py, Err(stopped(&self.call)))
    }
}
