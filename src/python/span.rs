//! The OpenTelemetry span of a call, where the process has loaded OpenTelemetry; elsewhere one look into a dict.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use super::result::PyToolResult;
use crate::context::RunContext;

/// A span under way, or none.
#[derive(Debug, Default)]
pub(super) struct CallSpan(Option<Py<PyAny>>);

impl CallSpan {
    /// Begins the span of a call, and gives the context whose records name it.
    pub(super) fn begin(py: Python<'_>, tool: &str, context: &RunContext) -> PyResult<(Self, RunContext)> {
        static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
        let modules = MODULES.get_or_try_init(py, || {
            py.import("sys")?.getattr("modules")?.extract::<Py<PyDict>>().map_err(PyErr::from)
        })?;
        if !modules.bind(py).contains(intern!(py, "opentelemetry.trace"))? {
            return Ok((Self(None), context.clone()));
        }
        let (run, info) = (context.run(), context.info());
        let shown = |name: &Option<String>| name.as_deref().map(|name| run.shown(name));
        let said = (run.shown(tool), run.id(), shown(&info.call_id), shown(&info.conversation_id), shown(&info.agent));
        let span = py.import("kgent_tools._span")?.call_method1("begin", said)?;
        if span.is_none() {
            return Ok((Self(None), context.clone()));
        }
        let (trace_id, span_id) = span.getattr("ids")?.extract()?;
        Ok((Self(Some(span.unbind())), context.in_span(trace_id, span_id)))
    }

    /// Ends it with what the call came to.
    pub(super) fn end(&self, py: Python<'_>, result: PyResult<PyToolResult>) -> PyResult<PyToolResult> {
        if let Some(span) = &self.0 {
            match &result {
                Ok(result) => span.call_method1(py, "end", (result.clone_result(),))?,
                Err(error) => span.call_method1(py, "end", (error.value(py),))?,
            };
        }
        result
    }
}
