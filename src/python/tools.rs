//! Definitions, the registry and snapshots, as Python sees them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use serde_json::json;

use super::context::PyRunContext;
use super::convert::{to_python, to_value};
use super::exceptions::{RegistrationError, stays};
use super::handler::{Plan, PyExecutor, PyHost, Resources, compiled, raise, schema_value};
use super::memory::{client_by_config, client_of};
use super::pending::PyPendingCall;
use super::policy::{PyPolicy, default_policy};
use super::result::PyToolResult;
use super::skills::PySkillRegistry;
use super::span::CallSpan;
use crate::context::{CallInfo, RunContext};
use crate::error::ToolError;
use crate::registry::{
    self, Annotations, Definition, Registration, Services, ToolDefinition, ToolRegistrar, ToolRegistry, ToolSnapshot,
};
use crate::settle::{self, Arguments, Begun, Settled};

/// An executable tool: opaque and immutable.
#[pyclass(frozen, name = "ToolDefinition", module = "kgent_tools")]
pub(super) struct PyToolDefinition(pub(super) ToolDefinition);

#[pymethods]
impl PyToolDefinition {
    #[new]
    #[pyo3(signature = (
        *, description, input_schema, handler, name=None, output_schema=None, to_data=None, to_content=None,
        permission=None, resources=None, annotations=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the parameters of the Python constructor")]
    fn new(
        py: Python<'_>,
        description: String,
        input_schema: &Bound<'_, PyAny>,
        handler: Py<PyAny>,
        name: Option<&str>,
        output_schema: Option<&Bound<'_, PyAny>>,
        to_data: Option<Py<PyAny>>,
        to_content: Option<Py<PyAny>>,
        permission: Option<String>,
        resources: Option<&Bound<'_, PyAny>>,
        annotations: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let input_schema = schema_value("input_schema", input_schema)?;
        let output_schema = output_schema.map(|schema| schema_value("output_schema", schema)).transpose()?;
        let resources = match resources {
            None => Resources::Arguments(Vec::new()),
            Some(function) if function.is_callable() => Resources::Function(function.clone().unbind()),
            Some(names) if names.is_instance_of::<PyString>() => Resources::Arguments(vec![names.extract()?]),
            Some(names) => Resources::Arguments(names.extract()?),
        };
        let plan = Plan {
            handler,
            input: compiled("input_schema", &input_schema)?,
            output: output_schema.as_ref().map(|schema| compiled("output_schema", schema)).transpose()?,
            to_data,
            to_content,
            resources,
        };
        let executor = PyExecutor::new(py, plan, &input_schema)?;
        let tool = ToolDefinition::new(Definition {
            description,
            input_schema,
            output_schema,
            action: permission.map(|action| checked_action(&action).map(|()| action)).transpose()?,
            capability: None,
            needs_skills: false,
            annotations: annotations_of(annotations)?,
            announces: false,
            content_args: &[],
            executor: Box::new(executor),
        });
        Ok(Self(match name {
            Some(name) => tool.named(registry::checked_name(name)?),
            None => tool,
        }))
    }

    /// The same tool, asking for another action.
    fn with_permission(&self, action: &str) -> PyResult<Self> {
        checked_action(action)?;
        Ok(Self(self.0.with_permission(action)))
    }

    /// The tool in the shape of chat completions.
    fn to_openai<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (name, description) = (self.wire_name()?, self.0.description());
        let function = json!({"name": name, "description": description, "parameters": self.0.input_schema()});
        to_python(py, &json!({"type": "function", "function": function}))
    }

    /// The tool in the shape of Anthropic's messages.
    fn to_anthropic<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (name, description) = (self.wire_name()?, self.0.description());
        to_python(py, &json!({"name": name, "description": description, "input_schema": self.0.input_schema()}))
    }

    #[getter]
    fn is_async(&self) -> bool {
        self.0.is_async()
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
        let given = self.0.annotations();
        let dict = PyDict::new(py);
        if let Some(title) = &given.title {
            dict.set_item("title", title)?;
        }
        dict.set_item("read_only_hint", given.read_only)?;
        dict.set_item("destructive_hint", given.destructive)?;
        dict.set_item("idempotent_hint", given.idempotent)?;
        dict.set_item("open_world_hint", given.open_world)?;
        Ok(dict.unbind())
    }

    /// Calls the tool: `handler(args, context)`, with `args` a dict or JSON text.
    #[getter]
    fn handler(&self) -> PyResult<PyHandler> {
        let name = self.0.name().filter(|_| self.0.is_bound()).ok_or_else(|| {
            RegistrationError::new_err(
                "the tool is not bound: register and materialize it, or take it from build_toolsets",
            )
        })?;
        Ok(PyHandler { name: name.to_owned(), tool: Ok(self.0.clone()) })
    }

    /// Calls the tool on the caller's own event loop.
    fn acall<'py>(
        &self,
        py: Python<'py>,
        args: Py<PyAny>,
        context: PyRef<'py, PyRunContext>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.handler()?.acall(py, args, &context.inner)
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

impl PyToolDefinition {
    fn wire_name(&self) -> PyResult<&str> {
        self.0.name().ok_or_else(|| RegistrationError::new_err("the tool has no name: give it one, or register it"))
    }
}

fn checked_action(action: &str) -> PyResult<()> {
    if action.is_empty() || action == "*" || action.contains(char::is_whitespace) {
        return Err(RegistrationError::new_err(format!("permission {action:?}: give the name of an action")));
    }
    Ok(())
}

/// What nobody calls read-only may change something, and destroy.
fn annotations_of(given: Option<&Bound<'_, PyDict>>) -> PyResult<Annotations> {
    let mut made = Annotations { destructive: true, open_world: true, ..Annotations::default() };
    let (mut destructive, mut idempotent) = (None, None);
    for (key, value) in given.into_iter().flatten() {
        let key: String = key.extract()?;
        let wrong = |what: &str| RegistrationError::new_err(format!("annotations: {key} is not {what}"));
        let flag = || value.extract::<bool>().map_err(|_| wrong("a bool"));
        match key.as_str() {
            "title" => made.title = Some(value.extract().map_err(|_| wrong("text"))?),
            "read_only_hint" => made.read_only = flag()?,
            "destructive_hint" => destructive = Some(flag()?),
            "idempotent_hint" => idempotent = Some(flag()?),
            "open_world_hint" => made.open_world = flag()?,
            _ => {
                return Err(RegistrationError::new_err(format!(
                    "annotations: unknown key {key:?}; known: title, read_only_hint, destructive_hint, \
                     idempotent_hint, open_world_hint"
                )));
            }
        }
    }
    made.destructive = destructive.unwrap_or(!made.read_only);
    made.idempotent = idempotent.unwrap_or(made.read_only);
    Ok(made)
}

/// A bound tool's way in: settle. One of an unknown name answers so, on record.
#[pyclass(frozen, name = "ToolHandler", module = "kgent_tools")]
pub(super) struct PyHandler {
    name: String,
    tool: Result<ToolDefinition, ToolError>,
}

#[pymethods]
impl PyHandler {
    fn __call__(&self, py: Python<'_>, args: Py<PyAny>, context: PyRef<'_, PyRunContext>) -> PyResult<PyToolResult> {
        self.call(py, args, &context.inner)
    }

    #[getter]
    fn is_async(&self) -> bool {
        self.tool.as_ref().is_ok_and(ToolDefinition::is_async)
    }

    /// Settle's first half.
    fn begin<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyAny>,
        context: PyRef<'py, PyRunContext>,
        wake: Py<PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (args, host) = (arguments(args), Arc::new(PyHost::here(py, Some(wake))?));
        let (span, context) = CallSpan::begin(py, &self.name, &context.inner)?;
        match py.detach(|| settle::start(&self.name, self.tool.as_ref().map_err(Clone::clone), args, &context, host)) {
            Ok(Begun::Pending(pending)) => Ok(PyPendingCall::new(pending, span)?.into_pyobject(py)?.into_any()),
            Ok(Begun::Settled(settled)) => Ok(span.end(py, settled_result(settled))?.into_pyobject(py)?.into_any()),
            Err(error) => Ok(span.end(py, Err(error.into()))?.into_pyobject(py)?.into_any()),
        }
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(stays("ToolHandler"))
    }

    fn __repr__(&self) -> String {
        format!("ToolHandler({:?})", self.name)
    }
}

impl PyHandler {
    fn call(&self, py: Python<'_>, args: Py<PyAny>, context: &RunContext) -> PyResult<PyToolResult> {
        if self.is_async() {
            let answer = async_module(py)?.call_method1("run", self.async_arguments(args, context))?;
            return Ok(answer.extract::<PyRef<'_, PyToolResult>>()?.clone_result());
        }
        client_by_config(py, context)?;
        let (args, host) = (arguments(args.bind(py)), Arc::new(PyHost::here(py, None)?));
        let (span, context) = CallSpan::begin(py, &self.name, context)?;
        let settled =
            py.detach(|| settle::settle(&self.name, self.tool.as_ref().map_err(Clone::clone), args, &context, host));
        span.end(py, settled.map_err(PyErr::from).and_then(settled_result))
    }

    fn acall<'py>(&self, py: Python<'py>, args: Py<PyAny>, context: &RunContext) -> PyResult<Bound<'py, PyAny>> {
        client_by_config(py, context)?;
        async_module(py)?.call_method1("acall", self.async_arguments(args, context))
    }

    /// The context stands for this one call, so that cancelling it cancels no other.
    fn async_arguments(&self, args: Py<PyAny>, context: &RunContext) -> (Self, Py<PyAny>, PyRunContext) {
        let handler = Self { name: self.name.clone(), tool: self.tool.clone() };
        (handler, args, PyRunContext { inner: context.for_call(context.info().clone()) })
    }
}

/// How calls are awaited.
fn async_module(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("kgent_tools._acall")
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

pub(super) fn settled_result(settled: Settled) -> PyResult<PyToolResult> {
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

    fn replace(&self, tools: &Bound<'_, PyAny>) -> PyResult<()> {
        Ok(self.0.replace(&batch(tools)?)?)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __exit__(&self, _kind: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) {
        self.0.close();
    }
}

/// What can register in one scope, and do nothing else.
#[pyclass(frozen, name = "ToolRegistrar", module = "kgent_tools")]
pub(super) struct PyToolRegistrar(ToolRegistrar);

#[pymethods]
impl PyToolRegistrar {
    fn __reduce__(&self) -> PyResult<()> {
        Err(stays("ToolRegistrar"))
    }

    #[pyo3(signature = (tools, *, provider=None))]
    fn register(&self, tools: &Bound<'_, PyAny>, provider: Option<&str>) -> PyResult<PyRegistration> {
        Ok(PyRegistration(self.0.register(&batch(tools)?, provider)?))
    }
}

/// A dict of names and tools, or tools that have names.
fn batch(tools: &Bound<'_, PyAny>) -> PyResult<Vec<(String, ToolDefinition)>> {
    let mut batch = Vec::new();
    let definition = |name: Option<&str>, tool: &Bound<'_, PyAny>| match tool.cast_exact::<PyToolDefinition>() {
        Ok(tool) => Ok(tool.get().0.clone()),
        Err(_) => Err(RegistrationError::new_err(match name {
            Some(name) => format!("{name:?} is not a ToolDefinition"),
            None => "register takes a dict of names and ToolDefinitions, or ToolDefinitions with a name".to_owned(),
        })),
    };
    if let Ok(tools) = tools.cast::<PyDict>() {
        for (name, tool) in tools {
            let name: String = name
                .cast::<PyString>()
                .map_err(|_| RegistrationError::new_err("a tool's name is not text"))?
                .extract()?;
            let tool = definition(Some(&name), &tool)?;
            batch.push((name, tool));
        }
        return Ok(batch);
    }
    for tool in tools.try_iter().map_err(|_| RegistrationError::new_err("register takes a dict or a list of tools"))? {
        let tool = definition(None, &tool?)?;
        let Some(name) = tool.name().map(str::to_owned) else {
            return Err(RegistrationError::new_err("a tool has no name: give it one, or register a dict"));
        };
        if batch.iter().any(|(taken, _)| *taken == name) {
            return Err(RegistrationError::new_err(format!("two tools are named {name:?}")));
        }
        batch.push((name, tool));
    }
    Ok(batch)
}

/// The tools of one scope, and of those around it.
#[pyclass(frozen, name = "ToolRegistry", module = "kgent_tools")]
pub(super) struct PyToolRegistry(ToolRegistry);

#[pymethods]
impl PyToolRegistry {
    fn __reduce__(&self) -> PyResult<()> {
        Err(stays("ToolRegistry"))
    }

    #[new]
    fn new(context: PyRef<'_, PyRunContext>) -> Self {
        Self(ToolRegistry::new(&context.inner))
    }

    #[staticmethod]
    fn application() -> Self {
        Self(ToolRegistry::application())
    }

    fn session(&self, id: &str) -> PyResult<Self> {
        Ok(Self(self.0.session(id)?))
    }

    #[getter]
    fn registrar(&self) -> PyToolRegistrar {
        PyToolRegistrar(self.0.registrar().clone())
    }

    #[pyo3(signature = (tools, *, provider=None))]
    fn register(&self, tools: &Bound<'_, PyAny>, provider: Option<&str>) -> PyResult<PyRegistration> {
        self.registrar().register(tools, provider)
    }

    #[pyo3(signature = (policy=None, *, skills=None, memory=None))]
    fn materialize(
        &self,
        py: Python<'_>,
        policy: Option<PyRef<'_, PyPolicy>>,
        skills: Option<PyRef<'_, PySkillRegistry>>,
        memory: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyToolSnapshot> {
        let context = self.0.context()?;
        let policy = policy_of(context, policy)?;
        let services = services_of(context, skills, memory, py)?;
        Ok(PyToolSnapshot(py.detach(|| self.0.materialize(&policy, &services))?))
    }

    /// Registers the tools of installed plugins.
    fn load_plugins<'py>(slf: &Bound<'py, Self>, allow: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let run = slf.get().0.context()?.run();
        let roots: Vec<(u64, u64)> =
            run.sandbox().roots_identity().into_iter().map(|(_, device, inode)| (device, inode)).collect();
        slf.py().import("kgent_tools.plugins")?.call_method1("load", (slf, allow, roots))
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
        self.0.definitions().into_iter().map(PyToolDefinition).collect()
    }

    #[pyo3(signature = (name, args, call_id=None))]
    fn call(&self, py: Python<'_>, name: &str, args: Py<PyAny>, call_id: Option<String>) -> PyResult<PyToolResult> {
        self.handler(name).call(py, args, &self.context(call_id))
    }

    #[pyo3(signature = (name, args, call_id=None))]
    fn acall<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        args: Py<PyAny>,
        call_id: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.handler(name).acall(py, args, &self.context(call_id))
    }
}

impl PyToolSnapshot {
    fn handler(&self, name: &str) -> PyHandler {
        PyHandler { name: name.to_owned(), tool: self.0.look_up(name) }
    }

    fn context(&self, call_id: Option<String>) -> RunContext {
        let info = call_id.map(|id| CallInfo { call_id: Some(id), ..self.0.context().info().clone() });
        info.map_or_else(|| self.0.context().clone(), |info| self.0.context().for_call(info))
    }
}

/// The names of the built-in tools.
#[pyfunction]
pub(super) fn built_in_names() -> Vec<String> {
    registry::built_in_names()
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

/// What a framework's workspace is made of: its tools by name, and the host's path of each mount.
#[pyfunction]
#[pyo3(signature = (context, policy=None))]
pub(super) fn build_workspace(
    context: PyRef<'_, PyRunContext>,
    policy: Option<PyRef<'_, PyPolicy>>,
) -> PyResult<(HashMap<String, PyToolDefinition>, HashMap<String, PathBuf>)> {
    let context = &context.inner;
    let tools = registry::build_workspace(context, &policy_of(context, policy)?)?;
    let named = tools.into_iter().map(|tool| (tool.name().unwrap_or_default().to_owned(), PyToolDefinition(tool)));
    Ok((named.collect(), context.run().sandbox().real_roots().collect()))
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
