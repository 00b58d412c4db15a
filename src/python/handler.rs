//! Python handlers as executors: arguments checked by their schema, results checked by their type, exceptions told
//! apart.

use std::time::Instant;

use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use serde_json::Value;

use super::call_context::PyCallContext;
use super::convert::{to_python, to_value};
use super::exceptions::{RegistrationError, tool_failure_class};
use super::result::{PyToolResult, code_of};
use crate::context::{CallContext, Host, Interrupt};
use crate::error::{Code, ToolError};
use crate::registry::{Executor, Output, Prepared, Schema};
use crate::result::Data;
use crate::sandbox::{Access, Gate, SandboxPath};
use crate::settle::internal;

/// The thread that waits for a call: asked, it lets Python look for signals.
pub(super) struct PyHost;

impl Host for PyHost {
    fn interrupted(&self) -> Option<Interrupt> {
        Python::attach(|py| py.check_signals().err()).map(|error| Box::new(error) as Interrupt)
    }
}

/// A Python handler.
pub(super) struct PyExecutor {
    handler: Py<PyAny>,
    input: Schema,
    output: Option<Schema>,
    /// The names of the arguments that are paths.
    resources: Vec<String>,
}

impl PyExecutor {
    pub(super) fn new(
        handler: &Bound<'_, PyAny>,
        input: &Value,
        output: Option<&Value>,
        resources: Vec<String>,
    ) -> PyResult<Self> {
        if !handler.is_callable() {
            return Err(RegistrationError::new_err("handler is not callable"));
        }
        let inspect = handler.py().import("inspect")?;
        if inspect.call_method1("iscoroutinefunction", (handler,))?.is_truthy()? {
            return Err(RegistrationError::new_err("handler is async: give a synchronous function"));
        }
        let compile = |name: &str, schema: &Value| {
            Schema::compile(schema).map_err(|why| RegistrationError::new_err(format!("{name}: {why}")))
        };
        let unknown = resources.iter().find(|name| input.pointer(&format!("/properties/{name}")).is_none());
        if let Some(name) = unknown {
            return Err(RegistrationError::new_err(format!(
                "resources names {name:?}, which is no property of input_schema"
            )));
        }
        Ok(Self {
            handler: handler.clone().unbind(),
            input: compile("input_schema", input)?,
            output: output.map(|schema| compile("output_schema", schema)).transpose()?,
            resources,
        })
    }
}

/// What the second half of a call needs of its tool.
struct Job {
    handler: Py<PyAny>,
    output: Option<Schema>,
    args: Value,
}

impl Executor for PyExecutor {
    fn prepare(&self, args: Value) -> Result<Prepared, ToolError> {
        let (args, repairs) = self.input.accept(args)?;
        let path = |name: &String| args.get(name).and_then(Value::as_str).map(|text| (text.to_owned(), Access::List));
        let targets = self.resources.iter().filter_map(path).collect();
        let handler = Python::attach(|py| self.handler.clone_ref(py));
        let job = Job { handler, output: self.output.clone(), args };
        Ok(Prepared { targets, resource: None, repairs, execute: Box::new(move |paths, call| job.run(&paths, call)) })
    }
}

impl Job {
    fn run(self, _: &[SandboxPath], call: &CallContext) -> Result<Output, ToolError> {
        Python::attach(|py| {
            let context = Bound::new(py, PyCallContext(call.clone()));
            let answer = context.and_then(|context| self.handler.bind(py).call1((to_python(py, &self.args)?, context)));
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
                    Err(call.checkpoint().err().unwrap_or_else(internal).cause(describe(py, &error)))
                }
                Err(error) => Err(failure(py, error, call)),
            }
        })
    }

    fn output(&self, answer: &Bound<'_, PyAny>, call: &CallContext) -> Result<Output, ToolError> {
        let Ok(result) = answer.cast::<PyToolResult>() else {
            let kind = answer.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
            return Err(internal().cause(format!("the handler returned a {kind}, not a ToolResult")));
        };
        let result = &result.get().0;
        if let Some(error) = &result.error {
            return Err(error.clone());
        }
        let value = result.data.as_ref().map(Data::to_value);
        if let (Some(schema), Some(value)) = (&self.output, &value) {
            schema.check(value).map_err(|why| internal().cause(format!("the data breaks the output schema: {why}")))?;
        }
        let (mut data, mut artifacts) = (result.data.clone(), result.artifacts.clone());
        let text = value.map(|value| value.to_string()).unwrap_or_default();
        if text.len() > call.limits().max_output_bytes {
            let path = call.store(&format!("{}.json", call.id()), text.as_bytes())?;
            data = Some(Data::new(serde_json::json!({"truncated": true, "artifact": path})));
        }
        artifacts.dedup();
        Ok(Output {
            summary: result.summary.clone(),
            data,
            content: result.content.clone(),
            artifacts,
            ..Output::default()
        })
    }
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

/// A JSON schema given as a Python dict.
pub(super) fn schema_value(name: &str, schema: &Bound<'_, PyAny>) -> PyResult<Value> {
    let value = to_value(schema).map_err(|e| RegistrationError::new_err(format!("{name}: {}", e.message)))?;
    if !value.is_object() {
        return Err(RegistrationError::new_err(format!("{name} must be a dict")));
    }
    Ok(value)
}
