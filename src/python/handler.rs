//! Python handlers as executors: arguments checked by their schema, results checked by their type, exceptions told
//! apart.

use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;
use serde_json::Value;

use super::call_context::PyCallContext;
use super::convert::{to_python, to_value};
use super::exceptions::{RegistrationError, tool_failure_class};
use super::result::{PyToolResult, code_of, parts};
use crate::context::{CallContext, Host, Interrupt};
use crate::error::{Code, ToolError};
use crate::registry::{Executor, Output, Prepared, Schema, Step};
use crate::result::{Content, Data, ToolResult, one_line};
use crate::sandbox::{Access, Gate};
use crate::settle::internal;

/// The thread that waits for a call: asked, it lets Python look for signals.
pub(super) struct PyHost {
    /// How many calls this one is made inside of.
    pub(super) depth: u32,
    /// Called, on any thread, when the call is cancelled.
    pub(super) wake: Option<Py<PyAny>>,
}

impl PyHost {
    /// The host of a call that is made here.
    pub(super) fn here(py: Python<'_>, wake: Option<Py<PyAny>>) -> PyResult<Self> {
        Ok(Self { depth: depth_variable(py)?.call_method0(intern!(py, "get"))?.extract()?, wake })
    }
}

impl Host for PyHost {
    fn interrupted(&self) -> Option<Interrupt> {
        Python::attach(|py| py.check_signals().err()).map(|error| Box::new(error) as Interrupt)
    }

    fn cancelled(&self) {
        if let Some(wake) = &self.wake {
            // A loop that is closed has nothing left to stop.
            let _ = Python::attach(|py| wake.call0(py).map(drop));
        }
    }

    fn depth(&self) -> u32 {
        self.depth
    }
}

/// The context variable that carries the depth of calls over tasks and threads.
pub(super) fn depth_variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static DEPTH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let depth =
        DEPTH.get_or_try_init(py, || Ok::<_, PyErr>(py.import("kgent_tools.tool")?.getattr("DEPTH")?.unbind()))?;
    Ok(depth.bind(py))
}

/// What a Python tool is made from.
pub(super) struct Plan {
    pub(super) handler: Py<PyAny>,
    pub(super) input: Schema,
    pub(super) output: Option<Schema>,
    pub(super) to_data: Option<Py<PyAny>>,
    pub(super) to_content: Option<Py<PyAny>>,
    pub(super) resources: Resources,
}

/// Where a call's sandbox paths stand in its arguments.
pub(super) enum Resources {
    /// In the arguments of these names.
    Arguments(Vec<String>),
    /// A function of the arguments gives them.
    Function(Py<PyAny>),
}

/// A Python handler.
pub(super) struct PyExecutor {
    plan: Arc<Plan>,
    is_async: bool,
}

impl PyExecutor {
    pub(super) fn new(py: Python<'_>, plan: Plan, input: &Value) -> PyResult<Self> {
        let functions = [
            ("handler", Some(&plan.handler)),
            ("to_data", plan.to_data.as_ref()),
            ("to_content", plan.to_content.as_ref()),
        ];
        for (name, function) in functions {
            if function.is_some_and(|function| !function.bind(py).is_callable()) {
                return Err(RegistrationError::new_err(format!("{name} is not callable")));
            }
        }
        if let Resources::Arguments(names) = &plan.resources {
            let declared = input.get("properties");
            if let Some(name) = names.iter().find(|name| declared.is_none_or(|all| all.get(name).is_none())) {
                return Err(RegistrationError::new_err(format!(
                    "resources names {name:?}, which is no property of input_schema"
                )));
            }
        }
        let is_async = is_async(plan.handler.bind(py))?;
        Ok(Self { plan: Arc::new(plan), is_async })
    }
}

/// Whether calling it gives a coroutine: an async function, or an object whose `__call__` is one.
fn is_async(handler: &Bound<'_, PyAny>) -> PyResult<bool> {
    let inspect = handler.py().import("inspect")?;
    let check = |function: &Bound<'_, PyAny>| inspect.call_method1("iscoroutinefunction", (function,))?.is_truthy();
    Ok(check(handler)? || check(&handler.getattr("__call__")?)?)
}

impl Executor for PyExecutor {
    fn prepare(&self, args: Value, call: &CallContext) -> Result<Prepared, ToolError> {
        let (args, repairs) = self.plan.input.accept(args)?;
        let targets = self.plan.targets(&args, call)?.into_iter().map(|path| (path, Access::List)).collect();
        let job = Job { plan: Arc::clone(&self.plan), args };
        let is_async = self.is_async;
        let execute = move |_, call: &CallContext| {
            if is_async { Ok(Step::Await(Box::new(job))) } else { job.run(call).map(Step::Done) }
        };
        Ok(Prepared { targets, resource: None, repairs, execute: Box::new(execute) })
    }

    fn is_async(&self) -> bool {
        self.is_async
    }
}

impl Plan {
    fn targets(&self, args: &Value, call: &CallContext) -> Result<Vec<String>, ToolError> {
        match &self.resources {
            Resources::Arguments(names) => {
                let of = |name: &String| match args.get(name) {
                    Some(Value::String(path)) => vec![path.clone()],
                    Some(Value::Array(paths)) => {
                        paths.iter().filter_map(|path| path.as_str().map(str::to_owned)).collect()
                    }
                    _ => Vec::new(),
                };
                Ok(names.iter().flat_map(of).collect())
            }
            Resources::Function(function) => Python::attach(|py| {
                let answer = to_python(py, args).and_then(|args| function.bind(py).call1((args,)));
                let answer = answer.map_err(|error| failure(py, error, call))?;
                match answer.cast::<PyString>() {
                    Ok(path) => path.extract().map(|path| vec![path]),
                    Err(_) => answer.extract::<Vec<String>>(),
                }
                .map_err(|error| internal().cause(format!("`resources` gave no paths: {}", describe(py, &error))))
            }),
        }
    }

    /// Whether a handler may answer with a plain value.
    fn projects(&self) -> bool {
        self.output.is_some() || self.to_data.is_some() || self.to_content.is_some()
    }
}

/// A decoded call of a Python handler.
pub(super) struct Job {
    plan: Arc<Plan>,
    args: Value,
}

impl Job {
    /// Calls the handler; an async one gives a coroutine.
    pub(super) fn start<'py>(&self, py: Python<'py>, call: &CallContext) -> PyResult<Bound<'py, PyAny>> {
        let context = Bound::new(py, PyCallContext(call.clone()))?;
        self.plan.handler.bind(py).call1((to_python(py, &self.args)?, context))
    }

    fn run(&self, call: &CallContext) -> Result<Output, ToolError> {
        Python::attach(|py| {
            let answer = depth_variable(py).and_then(|depth| {
                let before = depth.call_method1("set", (call.depth(),))?;
                let answer = self.start(py, call);
                depth.call_method1("reset", (before,))?;
                answer
            });
            self.end(py, answer, call)
        })
    }

    /// What the handler's answer comes to.
    pub(super) fn end(
        &self,
        py: Python<'_>,
        answer: PyResult<Bound<'_, PyAny>>,
        call: &CallContext,
    ) -> Result<Output, ToolError> {
        match answer {
            // A handler's deadline is cooperative: what it did past it stands, and the record says so.
            Ok(_) if Instant::now() > call.deadline() => Err(ToolError::new(
                Code::Timeout,
                format!("the tool returned after {:.1} s, when its time was up", call.elapsed().as_secs_f64()),
            )
            .hint("What it did stands. Ask for less.")
            .details(serde_json::json!({"done": true}))),
            Ok(answer) => self.output(&answer, call),
            // A handler that was stopped may fail in any way.
            Err(error) if error.is_instance_of::<PyException>(py) && call.cancelled() => {
                Err(stopped(call).cause(describe(py, &error)))
            }
            Err(error) => Err(failure(py, error, call)),
        }
    }

    fn output(&self, answer: &Bound<'_, PyAny>, call: &CallContext) -> Result<Output, ToolError> {
        let mut result = match answer.cast::<PyToolResult>() {
            Ok(result) => result.get().0.clone(),
            Err(_) if self.plan.projects() => self.project(answer, call)?,
            Err(_) => {
                let kind = answer.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
                // A coroutine that nobody awaits complains when it goes.
                let _ = answer.call_method0("close");
                return Err(internal().cause(format!("the handler returned a {kind}, not a ToolResult")));
            }
        };
        if let Some(error) = result.error {
            return Err(error);
        }
        let value = result.data.as_ref().map(Data::to_value);
        if let Some(schema) = &self.plan.output {
            let checked = schema.check(value.as_ref().unwrap_or(&Value::Null));
            checked.map_err(|why| internal().cause(format!("the data breaks the output schema: {why}")))?;
        }
        let text = value.map(|value| value.to_string()).unwrap_or_default();
        if text.len() > call.limits().max_output_bytes {
            let path = call.store(&format!("{}.json", call.id()), text.as_bytes())?;
            result.data = Some(Data::new(serde_json::json!({"truncated": true, "artifact": path})));
        }
        result.artifacts.dedup();
        Ok(Output {
            summary: result.summary,
            data: result.data,
            content: result.content,
            artifacts: result.artifacts,
            ..Output::default()
        })
    }

    /// A plain answer as data and content.
    fn project(&self, answer: &Bound<'_, PyAny>, call: &CallContext) -> Result<ToolResult, ToolError> {
        let py = answer.py();
        let through = |function: &Option<Py<PyAny>>| {
            let value = function.as_ref().map(|function| function.bind(py).call1((answer,)));
            value.transpose().map_err(|error| failure(py, error, call))
        };
        let value = to_value(through(&self.plan.to_data)?.as_ref().unwrap_or(answer))
            .map_err(|error| internal().cause(format!("the handler's answer: {}", error.message)))?;
        let content = match through(&self.plan.to_content)? {
            Some(given) => parts(&given).map_err(|error| internal().cause(format!("`to_content`: {error}")))?,
            None => vec![match &value {
                Value::String(text) => Content::text(text),
                Value::Null => Content::text("done"),
                value => Content::text(value.to_string()),
            }],
        };
        let first = content.iter().find_map(|part| match part {
            Content::Text(text) => text.lines().find(|line| !line.trim().is_empty()).map(one_line),
            Content::File { .. } => None,
        });
        let data = match value {
            Value::Null => None,
            value @ Value::Object(_) => Some(Data::new(value)),
            value => Some(Data::new(serde_json::json!({"result": value}))),
        };
        let summary = first.unwrap_or_else(|| "done".to_owned());
        Ok(ToolResult { ok: true, summary, data, artifacts: Vec::new(), error: None, content })
    }
}

/// Why a call that was stopped was stopped.
pub(super) fn stopped(call: &CallContext) -> ToolError {
    let timeout = || ToolError::new(Code::Timeout, "the call's time was up").hint("Ask for less.");
    call.checkpoint().err().unwrap_or_else(timeout)
}

/// What an exception out of a handler means: its own failure, a stop from outside, or a defect.
fn failure(py: Python<'_>, error: PyErr, call: &CallContext) -> ToolError {
    if let Ok(true) = tool_failure_class(py).and_then(|class| error.value(py).is_instance(class)) {
        let failure = own_failure(py, &error).map(|mut failure| {
            failure.message = call.call().run.scrub(&failure.message);
            failure.hint = failure.hint.map(|hint| call.call().run.scrub(&hint));
            failure
        });
        return failure.unwrap_or_else(|broken| internal().cause(describe(py, &broken)));
    }
    if !error.is_instance_of::<PyException>(py) {
        let stopped = ToolError::new(Code::Cancelled, "the call was interrupted").cause(describe(py, &error));
        call.interrupt(Box::new(error));
        return stopped;
    }
    internal().cause(describe(py, &error))
}

fn own_failure(py: Python<'_>, error: &PyErr) -> PyResult<ToolError> {
    let value = error.value(py);
    let message = value.getattr("message")?.str()?;
    let mut failure = ToolError::new(
        code_of(value.getattr("code")?.cast::<PyString>().map_err(PyErr::from)?.to_str()?)?,
        message.to_string_lossy(),
    );
    let hint = value.getattr("hint")?;
    if !hint.is_none() {
        failure.hint = Some(hint.str()?.to_string_lossy().into_owned());
    }
    Ok(failure)
}

fn describe(py: Python<'_>, error: &PyErr) -> String {
    let kind = error.get_type(py).qualname().map_or_else(|_| "exception".to_owned(), |name| name.to_string());
    let text = error.value(py).str().map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned());
    format!("{kind}: {text}")
}

/// The interrupt of a settled call, as the exception that it was.
pub(super) fn raise(interrupt: Interrupt) -> PyErr {
    match interrupt.downcast::<PyErr>() {
        Ok(error) => *error,
        Err(_) => PyTypeError::new_err("a call was interrupted by something that is no exception"),
    }
}

/// A JSON schema given as a Python dict, or as a Pydantic model.
pub(super) fn schema_value(name: &str, schema: &Bound<'_, PyAny>) -> PyResult<Value> {
    let made = schema.getattr_opt("model_json_schema")?.map(|make| make.call0()).transpose()?;
    let value = to_value(made.as_ref().unwrap_or(schema))
        .map_err(|e| RegistrationError::new_err(format!("{name}: {}", e.message)))?;
    if !value.is_object() {
        return Err(RegistrationError::new_err(format!("{name} must be a dict or a Pydantic model")));
    }
    Ok(value)
}

pub(super) fn compiled(name: &str, schema: &Value) -> PyResult<Schema> {
    Schema::compile(schema).map_err(|why| RegistrationError::new_err(format!("{name}: {why}")))
}
