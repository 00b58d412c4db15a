//! `RunContext` and `SandboxPath`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::config::{PyToolsConfig, config_of};
use super::convert::{to_python, to_value};
use super::exceptions::{PolicyError, RunError, tool_failure};
use super::skills::PySkillRegistry;
use crate::context::{CallInfo, RunContext, RunOptions, read_audit_key};
use crate::permission::grant::Grant;
use crate::record::reader::{LogReader, RunLog};
use crate::record::verify::verify;
use crate::sandbox::SandboxPath;

/// The host's handle on a run.
#[pyclass(frozen, name = "RunContext", module = "kgent_tools")]
pub(super) struct PyRunContext {
    pub(super) inner: RunContext,
}

#[pymethods]
impl PyRunContext {
    #[staticmethod]
    #[pyo3(signature = (runs, run_id=None, *, workspace=None, mounts=None, config=None))]
    fn create(
        py: Python<'_>,
        runs: PathBuf,
        run_id: Option<&str>,
        workspace: Option<PathBuf>,
        mounts: Option<&Bound<'_, PyDict>>,
        config: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let options = options(workspace, mounts, config)?;
        Ok(Self { inner: py.detach(|| RunContext::create(&runs, run_id, options))? })
    }

    #[staticmethod]
    #[pyo3(signature = (runs, run_id, *, workspace=None, mounts=None, config=None))]
    fn open(
        py: Python<'_>,
        runs: PathBuf,
        run_id: &str,
        workspace: Option<PathBuf>,
        mounts: Option<&Bound<'_, PyDict>>,
        config: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let options = options(workspace, mounts, config)?;
        Ok(Self { inner: py.detach(|| RunContext::open(&runs, run_id, options))? })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.inner.close())?)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) -> PyResult<()> {
        self.close(py)
    }

    #[getter]
    fn run_id(&self) -> &str {
        self.inner.run().id()
    }

    #[getter]
    fn run_dir(&self) -> PathBuf {
        self.inner.run().runs().join(self.inner.run().id())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.inner.run().is_closed()
    }

    #[getter]
    fn mounts(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let dict = PyDict::new(py);
        for mount in self.inner.run().sandbox().mounts() {
            dict.set_item(&mount.name, if mount.writable { "rw" } else { "ro" })?;
        }
        Ok(dict.unbind())
    }

    #[getter]
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, self.inner.run().limits())
    }

    /// The skills that the configuration names.
    #[getter]
    fn skills(&self, py: Python<'_>) -> PyResult<Option<PySkillRegistry>> {
        let run = self.inner.run();
        if run.options().config.skills.roots.is_empty() {
            return Ok(None);
        }
        Ok(Some(PySkillRegistry(py.detach(|| run.skills())?)))
    }

    #[getter]
    fn config(&self) -> PyToolsConfig {
        let options = self.inner.run().options();
        PyToolsConfig { config: options.config.clone(), file: options.config_files.first().cloned() }
    }

    /// What belongs to one call: `trace` is a pair of hexadecimal trace and span ids.
    #[pyo3(signature = (*, call_id=None, conversation_id=None, step=None, agent=None, trace=None, timeout_s=None, grant=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn for_call(
        &self,
        call_id: Option<String>,
        conversation_id: Option<String>,
        step: Option<u64>,
        agent: Option<String>,
        trace: Option<(String, String)>,
        timeout_s: Option<f64>,
        grant: Option<PyRef<'_, PyGrant>>,
    ) -> PyResult<Self> {
        if timeout_s.is_some_and(|s| !s.is_finite() || s <= 0.0) {
            return Err(RunError::new_err("timeout_s must be a positive number of seconds"));
        }
        let (trace_id, span_id) = trace.unzip();
        let grant = grant.map(|grant| Arc::clone(&grant.0));
        let info = CallInfo { call_id, conversation_id, step, agent, trace_id, span_id, timeout_s, grant };
        Ok(Self { inner: self.inner.for_call(info) })
    }

    /// Approves the request of a refused call: its `ErrorInfo`, its `details`, or the request itself.
    #[pyo3(signature = (request, *, once=true, expires_s=600.0))]
    fn grant(&self, py: Python<'_>, request: &Bound<'_, PyAny>, once: bool, expires_s: f64) -> PyResult<PyGrant> {
        let lifetime = Duration::try_from_secs_f64(expires_s)
            .map_err(|_| PolicyError::new_err("expires_s must be a positive number of seconds"))?;
        let request = match request.getattr("details") {
            Ok(details) => details,
            Err(_) => request.clone(),
        };
        let unusable =
            |why: &dyn std::fmt::Display| PolicyError::new_err(format!("this is no request for approval: {why}"));
        let mut value = to_value(&request).map_err(|error| unusable(&error.message))?;
        if let Some(inner) = value.get_mut("approval") {
            value = inner.take();
        }
        let request = serde_json::from_value(value).map_err(|error| unusable(&error))?;
        Ok(PyGrant(py.detach(|| self.inner.grant(request, once, lifetime))?))
    }

    /// What the call with this id was last refused for in this process, for `grant`.
    fn requested<'py>(&self, py: Python<'py>, call_id: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = py.detach(|| self.inner.requested(call_id));
        found.map(|request| to_python(py, &request)).transpose()
    }

    #[pyo3(signature = (call_id=None))]
    fn cancel(&self, py: Python<'_>, call_id: Option<&str>) {
        py.detach(|| self.inner.cancel(call_id));
    }

    fn guarantees<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.inner.run().guarantees())
    }

    fn records(&self) -> PyResult<PyLogReader> {
        self.read(RunLog::Records)
    }

    fn events(&self) -> PyResult<PyLogReader> {
        self.read(RunLog::Events)
    }

    fn redact<'py>(&self, py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let mut value: serde_json::Value = pythonize::depythonize(value)?;
        py.detach(|| self.inner.run().redact(&mut value));
        to_python(py, &value)
    }

    fn __repr__(&self) -> String {
        let state = if self.inner.run().is_closed() { ", closed" } else { "" };
        format!("RunContext(run_id={:?}{state})", self.inner.run().id())
    }

    /// A context travels as its configuration; the other side joins the same run.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let run = self.inner.run();
        let options = run.options();
        let mounts = PyDict::new(py);
        for (name, host, writable) in &options.mounts {
            mounts.set_item(name, (host, if *writable { "rw" } else { "ro" }))?;
        }
        let info = self.inner.info();
        let call = (
            info.call_id.clone(),
            info.conversation_id.clone(),
            info.step,
            info.agent.clone(),
            info.trace_id.clone().zip(info.span_id.clone()),
            info.timeout_s,
        );
        let identities = run.sandbox().roots_identity();
        let args = (run.runs(), run.id(), &options.workspace, mounts, self.config(), call, identities);
        Ok((py.get_type::<Self>().getattr("_rejoin")?, args.into_pyobject(py)?))
    }

    #[staticmethod]
    #[expect(clippy::type_complexity, clippy::too_many_arguments, reason = "the pickled form, in one place")]
    fn _rejoin(
        py: Python<'_>,
        runs: PathBuf,
        run_id: &str,
        workspace: Option<PathBuf>,
        mounts: &Bound<'_, PyDict>,
        config: &Bound<'_, PyAny>,
        call: (Option<String>, Option<String>, Option<u64>, Option<String>, Option<(String, String)>, Option<f64>),
        identities: Vec<(String, u64, u64)>,
    ) -> PyResult<Self> {
        let joined = Self::open(py, runs, run_id, workspace, Some(mounts), Some(config))?;
        if joined.inner.run().sandbox().roots_identity() != identities {
            return Err(RunError::new_err(format!(
                "run {run_id:?}: its mounts are other directories than when it was pickled"
            )));
        }
        // Grants do not travel: an approval is given where it is used.
        joined.for_call(call.0, call.1, call.2, call.3, call.4, call.5, None)
    }
}

impl PyRunContext {
    fn read(&self, log: RunLog) -> PyResult<PyLogReader> {
        Ok(PyLogReader(Mutex::new(self.inner.run().read(log)?)))
    }
}

/// Reads a log line by line.
#[pyclass(frozen, name = "LogReader", module = "kgent_tools")]
pub(super) struct PyLogReader(Mutex<LogReader>);

impl PyLogReader {
    /// Works on the reader without the GIL, which its lock must not wait for.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut LogReader) -> T + Send) -> T {
        py.detach(|| work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

#[pymethods]
impl PyLogReader {
    #[staticmethod]
    #[pyo3(signature = (run, log="tools"))]
    fn open(py: Python<'_>, run: PathBuf, log: &str) -> PyResult<Self> {
        let log = match log {
            "tools" => RunLog::Records,
            "events" => RunLog::Events,
            "errors" => RunLog::Errors,
            other => return Err(PyValueError::new_err(format!("log: `{other}` is none of tools, events, errors"))),
        };
        Ok(Self(Mutex::new(py.detach(|| LogReader::open(&run, log))?)))
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let line = self.with(py, Iterator::next);
        let line = line.transpose().map_err(|e| RunError::new_err(format!("the log cannot be read: {e}")))?;
        line.map(|line| to_python(py, &line)).transpose()
    }

    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, LogReader::resume).map_err(|e| RunError::new_err(format!("the log cannot be read: {e}")))
    }

    #[getter]
    fn offset(&self, py: Python<'_>) -> u64 {
        self.with(py, |reader| reader.offset())
    }

    #[getter]
    fn torn(&self, py: Python<'_>) -> u64 {
        self.with(py, |reader| reader.torn())
    }

    #[getter]
    fn faults<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.with(py, |reader| reader.faults().to_vec()))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (torn, faults) = self.with(py, |reader| (reader.torn(), reader.faults().len()));
        format!("LogReader(torn={torn}, faults={faults})")
    }
}

/// Checks the logs of the run whose folder is `run`. Raises `RunError` where they cannot be read.
#[pyfunction]
#[pyo3(signature = (run, *, audit_key_file=None))]
pub(super) fn verify_run(py: Python<'_>, run: PathBuf, audit_key_file: Option<PathBuf>) -> PyResult<Bound<'_, PyAny>> {
    let verified = py.detach(|| {
        let key = audit_key_file.as_deref().map(read_audit_key).transpose()?;
        verify(&run, key.as_deref())
    })?;
    to_python(py, &verified)
}

fn options(
    workspace: Option<PathBuf>,
    mounts: Option<&Bound<'_, PyDict>>,
    config: Option<&Bound<'_, PyAny>>,
) -> PyResult<RunOptions> {
    let PyToolsConfig { config, file } = config_of(config)?;
    let mut own = Vec::new();
    for (name, target) in mounts.into_iter().flatten() {
        let name: String = name.extract()?;
        let (host, mode) = match target.extract::<(PathBuf, String)>() {
            Ok(pair) => pair,
            Err(_) => (
                target.extract::<PathBuf>().map_err(|_| {
                    PyTypeError::new_err(format!(
                        "mounts[{name:?}]: give a path, or a pair of a path and \"ro\" or \"rw\""
                    ))
                })?,
                "ro".to_owned(),
            ),
        };
        let writable = match mode.as_str() {
            "rw" => true,
            "ro" => false,
            other => {
                return Err(RunError::new_err(format!(
                    "mounts[{name:?}]: mode {other:?} is neither \"ro\" nor \"rw\""
                )));
            }
        };
        own.push((name, host, writable));
    }
    Ok(RunOptions { workspace, mounts: own, config, config_files: file.into_iter().collect() })
}

/// The host's approval of one request.
#[pyclass(frozen, name = "Grant", module = "kgent_tools")]
pub(super) struct PyGrant(Arc<Grant>);

#[pymethods]
impl PyGrant {
    #[getter]
    fn id(&self) -> &str {
        self.0.id()
    }

    fn __repr__(&self) -> String {
        format!("Grant({:?})", self.0.id())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a Grant cannot be pickled: it is given where it is used"))
    }
}

/// A model-facing path, parsed and resolved.
#[pyclass(frozen, eq, hash, name = "SandboxPath", module = "kgent_tools")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct PySandboxPath(SandboxPath);

#[pymethods]
impl PySandboxPath {
    #[getter]
    fn mount(&self) -> &str {
        self.0.mount()
    }

    #[getter]
    fn name(&self) -> String {
        String::from_utf8_lossy(self.0.name()).into_owned()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("SandboxPath({:?})", self.0.to_string())
    }
}

/// The link-free sandbox path that `path` leads to. Raises `ToolFailure` with the code that a tool would answer.
#[pyfunction]
pub(super) fn resolve_sandbox_path(
    py: Python<'_>,
    path: &str,
    context: PyRef<'_, PyRunContext>,
) -> PyResult<PySandboxPath> {
    let run = context.inner.run();
    py.detach(|| run.sandbox().resolve(path)).map(PySandboxPath).map_err(|error| tool_failure(py, error))
}
