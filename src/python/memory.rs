//! Memory clients in Python, a call's memory, the run's candidates, and their review.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PySlice, PyString, PyTuple};
use serde_json::{Map, Value};

use super::call_context::door;
use super::context::PyRunContext;
use super::convert::{to_python, to_value};
use super::exceptions::{ConfigError, RegistrationError, tool_failure};
use super::result::PyErrorInfo;
use crate::context::{CallContext, RunContext};
use crate::fork::PerProcess;
use crate::memory::candidates::{self, Candidate};
use crate::memory::review::{Review, State};
use crate::memory::{ClientFault, MemoryClient, MemoryItem, MemoryWriteResult};
use crate::sandbox::Gate;

/// The most calls of one client that may hang; then no other is begun.
const MAX_HANGING: usize = 8;
/// How often a waiting call looks whether it should stop.
const LOOK: Duration = Duration::from_millis(20);
/// The longest text of a client's failure that is kept, in characters.
const MAX_CAUSE_CHARS: usize = 500;
/// The longest id and status of a client's answer, in characters.
const MAX_ID_CHARS: usize = 256;
/// The most metadata of one item, in characters.
const MAX_METADATA_CHARS: usize = 8192;

/// The data types of the contract.
fn types(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || Ok::<_, PyErr>(py.import("kgent_tools.memory")?.unbind()))?;
    Ok(module.bind(py))
}

/// What begins calls; not needed where no client is.
fn calls(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("kgent_tools._client_calls")
}

/// A client of the host's, as the core uses it.
pub(super) fn client_of(client: &Bound<'_, PyAny>) -> PyResult<Arc<dyn MemoryClient>> {
    for method in ["recall_memory", "write_memory"] {
        if !client.getattr(method).is_ok_and(|found| found.is_callable()) {
            return Err(RegistrationError::new_err(format!(
                "memory: a {} has no method `{method}`",
                client.get_type().name()?
            )));
        }
    }
    let calls = calls(client.py())?.getattr("ClientCalls")?.call1((client,))?.unbind();
    let name = client.get_type().qualname()?.to_string();
    Ok(Arc::new(PyMemoryClient { name, calls, hanging: PerProcess::new() }))
}

/// Makes the client that the run's configuration names, where the run has none in this process yet.
pub(super) fn client_by_config(py: Python<'_>, context: &RunContext) -> PyResult<()> {
    let run = context.run();
    let Some(named) = run.options().config.memory.client.as_ref().filter(|_| run.memory_client().is_none()) else {
        return Ok(());
    };
    let client = calls(py)?.getattr("client_from")?.call1((named,))?;
    run.give_memory_client(
        client_of(&client).map_err(|error| ConfigError::new_err(format!("memory.client: {error}")))?,
    );
    Ok(())
}

struct PyMemoryClient {
    name: String,
    /// Begins calls: on a thread of its own for each, or on the client's event loop.
    calls: Py<PyAny>,
    /// Abandoned calls that have not ended.
    hanging: PerProcess<Arc<AtomicUsize>>,
}

impl std::fmt::Debug for PyMemoryClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PyMemoryClient").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a method's answer is held to.
#[derive(Clone, Copy)]
enum Method {
    Recall { limit: usize, max_chars: usize },
    Write,
}

enum Answer {
    Items(Vec<MemoryItem>),
    Written(MemoryWriteResult),
}

type Answered = Result<Answer, ClientFault>;

const WAITING: u8 = 0;
const ANSWERED: u8 = 1;
const ABANDONED: u8 = 2;

/// Where a client's answer goes: to the waiting call, or nowhere if that has given up.
#[pyclass(frozen)]
struct Reply {
    method: Method,
    state: Arc<AtomicU8>,
    hanging: Arc<AtomicUsize>,
    sender: SyncSender<Answered>,
}

#[pymethods]
impl Reply {
    /// Called once, on the client's thread, with its answer or its exception.
    fn __call__(&self, answer: &Bound<'_, PyAny>, error: Option<&Bound<'_, PyAny>>) {
        if self.state.load(Ordering::Acquire) == WAITING {
            let answered = match error {
                Some(error) => Err(ClientFault::Raised(describe(error))),
                None => self.method.answer(answer),
            };
            // There is room for one.
            let _ = self.sender.try_send(answered);
        }
        if self.state.swap(ANSWERED, Ordering::AcqRel) == ABANDONED {
            self.hanging.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl PyMemoryClient {
    fn ask(
        &self,
        name: &str,
        method: Method,
        args: impl FnOnce(Python<'_>) -> PyResult<Py<PyTuple>>,
        until: Instant,
        call: &CallContext,
    ) -> Answered {
        let process = self.hanging.get(|| Ok::<_, ClientFault>(Arc::default()))?;
        let hanging = &process.1;
        let count = hanging.load(Ordering::Acquire);
        if count >= MAX_HANGING {
            return Err(ClientFault::Hanging(count));
        }
        let (sender, receiver) = sync_channel(1);
        let state = Arc::new(AtomicU8::new(WAITING));
        let reply = Reply { method, state: Arc::clone(&state), hanging: Arc::clone(hanging), sender };
        let cancel = Python::attach(|py| {
            let begin =
                || Ok::<_, PyErr>(self.calls.bind(py).call_method1("begin", (name, args(py)?, reply))?.unbind());
            begin().map_err(|error| ClientFault::Raised(describe(error.value(py))))
        })?;
        let stopped = match wait(&receiver, until, call) {
            Ok(answered) => return answered,
            Err(stopped) => stopped,
        };
        if state.swap(ABANDONED, Ordering::AcqRel) == ANSWERED {
            state.store(ANSWERED, Ordering::Release);
        } else {
            hanging.fetch_add(1, Ordering::AcqRel);
            Python::attach(|py| cancel.call0(py).map(drop).unwrap_or_default());
        }
        Err(stopped)
    }
}

/// Waits for the answer until the time is up or the call is stopped.
fn wait(receiver: &Receiver<Answered>, until: Instant, call: &CallContext) -> Result<Answered, ClientFault> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(left.min(LOOK)) {
            Ok(answered) => return Ok(answered),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(ClientFault::Raised("the client's thread ended without an answer".to_owned()));
            }
            Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(ClientFault::Late),
            Err(RecvTimeoutError::Timeout) => call.poll().map_err(ClientFault::Stopped)?,
        }
    }
}

impl MemoryClient for PyMemoryClient {
    fn name(&self) -> &str {
        &self.name
    }

    fn recall(
        &self,
        query: &str,
        scope: &str,
        limit: usize,
        until: Instant,
        call: &CallContext,
    ) -> Result<Vec<MemoryItem>, ClientFault> {
        let method = Method::Recall { limit, max_chars: call.limits().max_output_bytes };
        let args = |py: Python<'_>| Ok((query, scope, limit).into_pyobject(py)?.unbind());
        match self.ask("recall_memory", method, args, until, call)? {
            Answer::Items(items) => Ok(items),
            Answer::Written(_) => Err(ClientFault::Junk("something else".to_owned())),
        }
    }

    fn write(
        &self,
        content: &str,
        scope: &str,
        tags: &[String],
        until: Instant,
        call: &CallContext,
    ) -> Result<MemoryWriteResult, ClientFault> {
        let args = |py: Python<'_>| Ok((content, scope, PyList::new(py, tags)?).into_pyobject(py)?.unbind());
        match self.ask("write_memory", Method::Write, args, until, call)? {
            Answer::Written(result) => Ok(result),
            Answer::Items(_) => Err(ClientFault::Junk("something else".to_owned())),
        }
    }
}

impl Method {
    /// A client's answer, taken in without copying more than a result may hold.
    fn answer(self, answer: &Bound<'_, PyAny>) -> Answered {
        let py = answer.py();
        let class = if matches!(self, Self::Write) { "MemoryWriteResult" } else { "MemoryItem" };
        let class = types(py).and_then(|types| types.getattr(class));
        let class = class.map_err(|error| ClientFault::Raised(describe(error.value(py))))?;
        match self {
            Self::Write => {
                require(answer, &class)?;
                written(answer).map(Answer::Written)
            }
            Self::Recall { limit, max_chars } => {
                let list = answer.cast::<PyList>().map_err(|_| junk(answer, "list[MemoryItem]"))?;
                let mut items = Vec::new();
                // One more than was asked for shows that there are more.
                for value in list.iter().take(limit + 1) {
                    require(&value, &class)?;
                    items.push(item(&value, max_chars)?);
                }
                Ok(Answer::Items(items))
            }
        }
    }
}

fn require(value: &Bound<'_, PyAny>, class: &Bound<'_, PyAny>) -> Result<(), ClientFault> {
    if value.is_instance(class).unwrap_or(false) {
        return Ok(());
    }
    let wanted = class.getattr("__name__").map_or_else(|_| "another type".to_owned(), |name| name.to_string());
    Err(junk(value, &wanted))
}

fn junk(value: &Bound<'_, PyAny>, wanted: &str) -> ClientFault {
    let kind = value.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    ClientFault::Junk(format!("a {kind}, where {wanted} is due"))
}

fn item(value: &Bound<'_, PyAny>, max_chars: usize) -> Result<MemoryItem, ClientFault> {
    let metadata = attribute(value, "metadata")?;
    let metadata = metadata.cast::<PyDict>().map_err(|_| junk(&metadata, "a dict as `metadata`"))?;
    let mut left = MAX_METADATA_CHARS;
    let metadata = match small(metadata.as_any(), &mut left, 0).then(|| to_value(metadata)) {
        Some(Ok(Value::Object(map))) => map,
        Some(_) => return Err(ClientFault::Junk("`metadata` that is no JSON object".to_owned())),
        None => Map::from_iter([("truncated".to_owned(), Value::Bool(true))]),
    };
    let score = attribute(value, "score")?;
    let score = if score.is_none() {
        None
    } else {
        let score: f64 = score.extract().map_err(|_| junk(&score, "a number as `score`"))?;
        Some(score).filter(|score| score.is_finite())
    };
    Ok(MemoryItem {
        id: text(value, "id", MAX_ID_CHARS)?,
        content: text(value, "content", max_chars)?,
        scope: text(value, "scope", MAX_ID_CHARS)?,
        score,
        metadata,
    })
}

fn written(value: &Bound<'_, PyAny>) -> Result<MemoryWriteResult, ClientFault> {
    let id = attribute(value, "id")?;
    let error = attribute(value, "error")?;
    let error = if error.is_none() {
        None
    } else {
        Some(error.cast::<PyErrorInfo>().map_err(|_| junk(&error, "ErrorInfo as `error`"))?.get().0.clone())
    };
    Ok(MemoryWriteResult {
        status: text(value, "status", MAX_ID_CHARS)?,
        id: if id.is_none() { None } else { Some(text(value, "id", MAX_ID_CHARS)?) },
        error,
    })
}

fn attribute<'py>(value: &Bound<'py, PyAny>, name: &str) -> Result<Bound<'py, PyAny>, ClientFault> {
    value.getattr(name).map_err(|error| ClientFault::Raised(describe(error.value(value.py()))))
}

fn text(value: &Bound<'_, PyAny>, name: &str, max_chars: usize) -> Result<String, ClientFault> {
    let found = attribute(value, name)?;
    let text = found.cast::<PyString>().map_err(|_| junk(&found, &format!("text as `{name}`")))?;
    Ok(beginning(text, max_chars))
}

/// The first characters of a text; only they are copied.
fn beginning(text: &Bound<'_, PyString>, max_chars: usize) -> String {
    let end = isize::try_from(max_chars).unwrap_or(isize::MAX);
    let cut = text.get_item(PySlice::new(text.py(), 0, end, 1));
    let cut = cut.ok().and_then(|cut| cut.cast_into::<PyString>().ok());
    cut.map_or_else(String::new, |cut| cut.to_string_lossy().into_owned())
}

/// Whether a value has at most `left` characters and values in all.
fn small(value: &Bound<'_, PyAny>, left: &mut usize, depth: usize) -> bool {
    let size = if value.is_instance_of::<PyString>() { value.len().unwrap_or(usize::MAX) } else { 1 };
    let Some(rest) = left.checked_sub(size).filter(|_| depth < 16) else { return false };
    *left = rest;
    if let Ok(dict) = value.cast::<PyDict>() {
        return dict.iter().all(|(key, value)| small(&key, left, depth + 1) && small(&value, left, depth + 1));
    }
    match value.cast::<PyList>() {
        Ok(list) => list.iter().all(|item| small(&item, left, depth + 1)),
        Err(_) => true,
    }
}

fn describe(error: &Bound<'_, PyAny>) -> String {
    let kind = error.get_type().qualname().map_or_else(|_| "exception".to_owned(), |name| name.to_string());
    let text = error.str().map_or_else(|_| String::new(), |text| beginning(&text, MAX_CAUSE_CHARS));
    format!("{kind}: {text}")
}

/// The memory of one call, under the call's own permissions.
#[pyclass(frozen, name = "CallMemory", module = "kgent_tools")]
pub(super) struct PyCallMemory(pub(super) CallContext);

#[pymethods]
impl PyCallMemory {
    #[pyo3(signature = (query, scope="default", limit=10))]
    fn recall_memory<'py>(
        &self,
        py: Python<'py>,
        query: &str,
        scope: &str,
        limit: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        to_items(py, door(py, || self.0.memory_recall(query, scope, limit))?)
    }

    #[pyo3(signature = (content, scope="default", tags=Vec::new()))]
    fn write_memory<'py>(
        &self,
        py: Python<'py>,
        content: &str,
        scope: &str,
        tags: Vec<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        to_written(py, &door(py, || self.0.memory_write(content, scope, &tags))?)
    }
}

fn to_items(py: Python<'_>, items: Vec<MemoryItem>) -> PyResult<Bound<'_, PyList>> {
    let class = types(py)?.getattr("MemoryItem")?;
    let list = PyList::empty(py);
    for item in items {
        list.append(class.call1((item.id, item.content, item.scope, item.score, to_python(py, &item.metadata)?))?)?;
    }
    Ok(list)
}

fn to_written<'py>(py: Python<'py>, written: &MemoryWriteResult) -> PyResult<Bound<'py, PyAny>> {
    types(py)?.getattr("MemoryWriteResult")?.call1((&written.status, &written.id))
}

/// The candidates of a run, as a client.
#[pyclass(frozen, name = "CandidateMemoryClient", module = "kgent_tools")]
pub(super) struct PyCandidateMemoryClient(RunContext);

#[pymethods]
impl PyCandidateMemoryClient {
    #[new]
    fn new(context: PyRef<'_, PyRunContext>) -> Self {
        Self(context.inner.clone())
    }

    #[pyo3(signature = (query, scope="default", limit=10))]
    fn recall_memory<'py>(
        &self,
        py: Python<'py>,
        query: &str,
        scope: &str,
        limit: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let recalled = py.detach(|| candidates::recall(self.0.run(), query, scope, limit, None));
        to_items(py, recalled.map_err(|error| tool_failure(py, error))?.items)
    }

    #[pyo3(signature = (content, scope="default", tags=Vec::new()))]
    fn write_memory<'py>(
        &self,
        py: Python<'py>,
        content: &str,
        scope: &str,
        tags: Vec<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let candidate = py.detach(|| candidates::write(self.0.run(), None, content, scope, &tags));
        let candidate = candidate.map_err(|error| tool_failure(py, error))?;
        to_written(py, &MemoryWriteResult { status: candidate.status, id: Some(candidate.id), error: None })
    }

    fn __repr__(&self) -> String {
        format!("CandidateMemoryClient(run_id={:?})", self.0.run().id())
    }
}

/// The candidates of a run under review; the run need not be open.
#[pyclass(frozen, name = "MemoryReview", module = "kgent_tools")]
pub(super) struct PyMemoryReview(Review);

#[pymethods]
impl PyMemoryReview {
    #[new]
    fn new(runs: PathBuf, run_id: &str) -> PyResult<Self> {
        Ok(Self(Review::open(&runs, run_id)?))
    }

    /// Each candidate with its state, and the lines that are none: their numbers and what is wrong.
    fn list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (found, bad) = py.detach(|| self.0.list())?;
        let stated =
            |(candidate, state): (Candidate, State)| Candidate { status: state.as_str().to_owned(), ..candidate };
        let candidates: Vec<Candidate> = found.into_iter().map(stated).collect();
        to_python(py, &(candidates, bad))
    }

    #[pyo3(signature = (id, hash, client, retry=false))]
    fn begin<'py>(
        &self,
        py: Python<'py>,
        id: &str,
        hash: &str,
        client: &str,
        retry: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let candidate = py.detach(|| self.0.begin(id, hash, client, retry))?;
        to_python(py, &candidate)
    }

    #[pyo3(signature = (id, hash, state, client, stored_id=None))]
    fn finish(
        &self,
        py: Python<'_>,
        id: &str,
        hash: &str,
        state: &str,
        client: &str,
        stored_id: Option<&str>,
    ) -> PyResult<()> {
        let state = match state {
            "accepted" => State::Accepted,
            "failed" => State::Failed,
            other => return Err(PyValueError::new_err(format!("state {other:?}: use accepted or failed"))),
        };
        Ok(py.detach(|| self.0.finish(id, hash, state, client, stored_id))?)
    }

    #[pyo3(signature = (id, hash, retry=false))]
    fn reject(&self, py: Python<'_>, id: &str, hash: &str, retry: bool) -> PyResult<()> {
        Ok(py.detach(|| self.0.reject(id, hash, retry))?)
    }
}
