//! Definitions, the registry and snapshots, as Python sees them.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use super::context::PyRunContext;
use super::convert::{to_python, to_value};
use super::exceptions::{RegistrationError, stays};
use super::handler::{PyExecutor, PyHost, raise, schema_value};
use super::memory::{client_by_config, client_of};
use super::policy::{PyPolicy, default_policy};
use super::result::PyToolResult;
use super::skills::PySkillRegistry;
use crate::context::{CallInfo, RunContext};
use crate::error::KgentError;
use crate::registry::{self, Definition, Registration, Services, ToolDefinition, ToolRegistry, ToolSnapshot};
use crate::settle::{Arguments, Settled};

/// An executable tool: opaque and immutable.
#[pyclass(frozen, name = "ToolDefinition", module = "kgent_tools")]
pub(super) struct PyToolDefinition(pub(super) ToolDefinition);

#[pymethods]
impl PyToolDefinition {
    #[new]
    #[pyo3(signature = (*, description, input_schema, handler, output_schema=None, permission=None, resources=None, annotations=None))]
    fn new(
        description: String,
        input_schema: &Bound<'_, PyAny>,
        handler: &Bound<'_, PyAny>,
        output_schema: Option<&Bound<'_, PyAny>>,
        permission: Option<String>,
        resources: Option<Vec<String>>,
        annotations: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let input_schema = schema_value("input_schema", input_schema)?;
        let output_schema = output_schema.map(|schema| schema_value("output_schema", schema)).transpose()?;
        let executor = PyExecutor::new(handler, &input_schema, output_schema.as_ref(), resources.unwrap_or_default())?;
        Ok(Self(ToolDefinition::new(Definition {
            description,
            input_schema,
            output_schema,
            action: permission,
            capability: None,
            needs_skills: false,
            // What nobody calls read-only may change something.
            mutating: !read_only(annotations)?,
            announces: false,
            content_args: &[],
            executor: Box::new(executor),
        })))
    }

    #[getter]
    fn name(&self) -> Option<&str> {
        self.0.name()
    }

    #[getter]
    fn description(&self) -> &str {
        self.0.description()
    }

    #[getter]
    fn input_schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, self.0.input_schema())
    }

    #[getter]
    fn output_schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0.output_schema())
    }

    #[getter]
    fn permission(&self) -> Option<&str> {
        self.0.action()
    }

    #[getter]
    fn capabilities(&self) -> Vec<&'static str> {
        self.0.capability().into_iter().map(crate::permission::Capability::as_str).collect()
    }

    #[getter]
    fn mutating(&self) -> bool {
        self.0.mutating()
    }

    #[getter]
    fn annotations(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("read_only_hint", !self.0.mutating())?;
        dict.set_item("destructive_hint", self.0.mutating())?;
        dict.set_item("idempotent_hint", !self.0.mutating())?;
        Ok(dict.unbind())
    }

    /// Calls the tool: `handler(args, context)`, with `args` a dict or JSON text.
    #[getter]
    fn handler(&self) -> PyResult<PyHandler> {
        if self.0.is_bound() {
            return Ok(PyHandler(self.0.clone()));
        }
        Err(RegistrationError::new_err(
            "the tool is not bound: register and materialize it, or take it from build_toolsets",
        ))
    }

    /// Built-in tools travel by name, with the policy that they are bound to.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        match (self.0.name(), self.0.fixed_policy()) {
            (Some(name), Some(policy)) if !self.0.has_own_services() || !uses_services(name) => {
                let args = (name, PyPolicy(Arc::clone(policy)));
                Ok((py.get_type::<Self>().getattr("_built_in")?, args.into_pyobject(py)?))
            }
            _ => Err(stays("ToolDefinition")),
        }
    }

    #[staticmethod]
    fn _built_in(name: &str, policy: PyRef<'_, PyPolicy>) -> PyResult<Self> {
        let tool = registry::built_in(name, &policy.0);
        tool.map(Self).ok_or_else(|| RegistrationError::new_err(format!("this version has no built-in tool {name:?}")))
    }

    fn __repr__(&self) -> String {
        match self.0.name() {
            Some(name) => format!("ToolDefinition(name={name:?})"),
            None => "ToolDefinition(unnamed)".to_owned(),
        }
    }
}

fn read_only(annotations: Option<&Bound<'_, PyDict>>) -> PyResult<bool> {
    let known = ["read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint", "title"];
    let mut read_only = false;
    for (key, value) in annotations.into_iter().flatten() {
        let key: String = key.extract()?;
        if !known.contains(&key.as_str()) {
            return Err(RegistrationError::new_err(format!(
                "annotations: unknown key {key:?}; known: {}",
                known.join(", ")
            )));
        }
        if key == "read_only_hint" {
            read_only =
                value.extract().map_err(|_| RegistrationError::new_err("annotations: read_only_hint is not a bool"))?;
        }
    }
    Ok(read_only)
}

/// A bound tool's way in: settle.
#[pyclass(frozen, name = "ToolHandler", module = "kgent_tools")]
pub(super) struct PyHandler(ToolDefinition);

#[pymethods]
impl PyHandler {
    fn __call__(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyAny>,
        context: PyRef<'_, PyRunContext>,
    ) -> PyResult<PyToolResult> {
        let args = arguments(args);
        let context = &context.inner;
        client_by_config(py, context)?;
        settled(py.detach(|| self.0.call(args, context, Arc::new(PyHost))))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(stays("ToolHandler"))
    }

    fn __repr__(&self) -> String {
        format!("ToolHandler({:?})", self.0.name().unwrap_or_default())
    }
}

/// Tools that use skills or memory.
fn uses_services(name: &str) -> bool {
    matches!(name, "list_skills" | "load_skill" | "recall_memory" | "write_memory")
}

/// A dict, or JSON text; anything else is refused inside settle, on record.
fn arguments(args: &Bound<'_, PyAny>) -> Arguments {
    match to_value(args) {
        Ok(value) => Arguments::Value(value),
        Err(error) => Arguments::Invalid(error),
    }
}

fn settled(outcome: Result<Settled, KgentError>) -> PyResult<PyToolResult> {
    let settled = outcome?;
    match settled.interrupt {
        Some(interrupt) => Err(raise(interrupt)),
        None => Ok(PyToolResult(settled.result)),
    }
}

/// A batch of registered tools.
#[pyclass(frozen, name = "Registration", module = "kgent_tools")]
pub(super) struct PyRegistration(Registration);

#[pymethods]
impl PyRegistration {
    fn __reduce__(&self) -> PyResult<()> {
        Err(stays("Registration"))
    }

    fn close(&self) {
        self.0.close();
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __exit__(&self, _kind: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) {
        self.0.close();
    }
}

/// The tools of a run.
#[pyclass(frozen, name = "ToolRegistry", module = "kgent_tools")]
pub(super) struct PyToolRegistry {
    context: RunContext,
    registry: ToolRegistry,
}

#[pymethods]
impl PyToolRegistry {
    fn __reduce__(&self) -> PyResult<()> {
        Err(stays("ToolRegistry"))
    }

    #[new]
    fn new(context: PyRef<'_, PyRunContext>) -> Self {
        let context = context.inner.clone();
        Self { registry: ToolRegistry::new(&context), context }
    }

    fn register(&self, tools: &Bound<'_, PyDict>) -> PyResult<PyRegistration> {
        let mut batch = Vec::with_capacity(tools.len());
        for (name, tool) in tools {
            let name: String = name
                .cast::<PyString>()
                .map_err(|_| RegistrationError::new_err("a tool's name is not text"))?
                .extract()?;
            let Ok(tool) = tool.cast_exact::<PyToolDefinition>() else {
                return Err(RegistrationError::new_err(format!("{name:?} is not a ToolDefinition")));
            };
            batch.push((name, tool.get().0.clone()));
        }
        Ok(PyRegistration(self.registry.register(&batch)?))
    }

    #[pyo3(signature = (policy=None, *, skills=None, memory=None))]
    fn materialize(
        &self,
        py: Python<'_>,
        policy: Option<PyRef<'_, PyPolicy>>,
        skills: Option<PyRef<'_, PySkillRegistry>>,
        memory: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyToolSnapshot> {
        let policy = policy_of(&self.context, policy)?;
        let services = services_of(&self.context, skills, memory, py)?;
        Ok(PyToolSnapshot(py.detach(|| self.registry.materialize(&self.context, &policy, &services))?))
    }
}

/// The tools that a model is offered, fixed.
#[pyclass(frozen, name = "ToolSnapshot", module = "kgent_tools")]
pub(super) struct PyToolSnapshot(ToolSnapshot);

#[pymethods]
impl PyToolSnapshot {
    fn __reduce__(&self) -> PyResult<()> {
        Err(stays("ToolSnapshot"))
    }

    #[getter]
    fn definitions(&self) -> Vec<PyToolDefinition> {
        self.0.definitions().iter().cloned().map(PyToolDefinition).collect()
    }

    #[pyo3(signature = (name, args, call_id=None))]
    fn call(
        &self,
        py: Python<'_>,
        name: &str,
        args: &Bound<'_, PyAny>,
        call_id: Option<String>,
    ) -> PyResult<PyToolResult> {
        let args = arguments(args);
        let context =
            call_id.map(|id| self.0.context().for_call(CallInfo { call_id: Some(id), ..CallInfo::default() }));
        settled(py.detach(|| self.0.call(name, args, context.as_ref(), Arc::new(PyHost))))
    }
}

/// The built-in tools that the policy offers, bound to it.
#[pyfunction]
#[pyo3(signature = (context, skills=None, memory=None, policy=None))]
pub(super) fn build_toolsets(
    py: Python<'_>,
    context: PyRef<'_, PyRunContext>,
    skills: Option<PyRef<'_, PySkillRegistry>>,
    memory: Option<&Bound<'_, PyAny>>,
    policy: Option<PyRef<'_, PyPolicy>>,
) -> PyResult<Vec<PyToolDefinition>> {
    let context = &context.inner;
    let policy = policy_of(context, policy)?;
    let services = services_of(context, skills, memory, py)?;
    let tools = py.detach(|| registry::build_toolsets(context, &policy, &services))?;
    Ok(tools.into_iter().map(PyToolDefinition).collect())
}

/// What was given, and in the run what its configuration names.
fn services_of(
    context: &RunContext,
    skills: Option<PyRef<'_, PySkillRegistry>>,
    memory: Option<&Bound<'_, PyAny>>,
    py: Python<'_>,
) -> PyResult<Services> {
    let memory = memory.filter(|value| !value.is_none()).map(client_of).transpose()?;
    if memory.is_none() {
        client_by_config(py, context)?;
    }
    Ok(Services { skills: skills.map(|skills| Arc::clone(&skills.0)), memory })
}

fn policy_of(context: &RunContext, policy: Option<PyRef<'_, PyPolicy>>) -> PyResult<Arc<crate::permission::Policy>> {
    match policy {
        Some(policy) => Ok(Arc::clone(&policy.0)),
        None => Ok(Arc::new(default_policy(context)?)),
    }
}
