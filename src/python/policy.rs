//! The policy, as Python sees it.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use super::config::config_of;
use super::context::PyRunContext;
use super::convert::to_value;
use super::exceptions::PolicyError;
use super::result::PyErrorInfo;
use crate::config::ToolsConfig;
use crate::context::RunContext;
use crate::permission::{Capability, Effect, Layers, PermissionResult, Policy, Rule};

/// The mounts of a run without mounts of the user's own.
const PLAIN_MOUNTS: &[&str] = &["workspace", "deliverables", "artifacts", "skills"];

/// One rule of a layer.
#[pyclass(frozen, eq, name = "PermissionRule", module = "kgent_tools")]
#[derive(Clone, PartialEq)]
pub(super) struct PyPermissionRule(Rule);

#[pymethods]
impl PyPermissionRule {
    #[new]
    fn new(action: String, resource: String, effect: &str) -> PyResult<Self> {
        let effect = Effect::parse(effect)
            .ok_or_else(|| PyValueError::new_err(format!("effect {effect:?}: use allow, deny or ask")))?;
        Ok(Self(Rule::new(effect, action, resource)))
    }

    #[getter]
    fn action(&self) -> &str {
        &self.0.action
    }

    #[getter]
    fn resource(&self) -> &str {
        &self.0.resource
    }

    #[getter]
    fn effect(&self) -> &'static str {
        self.0.effect.as_str()
    }

    fn __repr__(&self) -> String {
        format!("PermissionRule({:?}, {:?}, {:?})", self.0.action, self.0.resource, self.0.effect.as_str())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let args = (&self.0.action, &self.0.resource, self.0.effect.as_str());
        Ok((py.get_type::<Self>().into_any(), args.into_pyobject(py)?))
    }
}

/// What the policy says to one question.
#[pyclass(frozen, name = "PermissionResult", module = "kgent_tools")]
pub(super) struct PyPermissionResult(PermissionResult);

#[pymethods]
impl PyPermissionResult {
    #[getter]
    fn allowed(&self) -> bool {
        self.0.allowed
    }

    #[getter]
    fn reason(&self) -> Option<&str> {
        self.0.reason.as_deref()
    }

    #[getter]
    fn error(&self) -> Option<PyErrorInfo> {
        self.0.error.clone().map(PyErrorInfo)
    }

    #[getter]
    fn effect(&self) -> &'static str {
        self.0.effect.as_str()
    }

    #[getter]
    fn layer(&self) -> &'static str {
        self.0.layer.as_str()
    }

    #[getter]
    fn rule(&self) -> Option<&str> {
        self.0.rule.as_deref()
    }

    fn __bool__(&self) -> bool {
        self.0.allowed
    }

    fn __repr__(&self) -> String {
        let rule = self.0.rule.as_ref().map(|rule| format!(", rule={rule:?}")).unwrap_or_default();
        format!("PermissionResult(effect={:?}, layer={:?}{rule})", self.0.effect.as_str(), self.0.layer.as_str())
    }
}

/// What is left after the layers are merged.
#[pyclass(frozen, eq, name = "EffectivePermissionPolicy", module = "kgent_tools")]
#[derive(Clone, PartialEq)]
pub(super) struct PyPolicy(pub(super) Arc<Policy>);

#[pymethods]
impl PyPolicy {
    #[staticmethod]
    #[pyo3(signature = (*, config=None, skills=Vec::new(), runtime=Vec::new(), context=None))]
    fn merge(
        config: Option<&Bound<'_, PyAny>>,
        skills: Vec<Bound<'_, PyDict>>,
        runtime: Vec<PyRef<'_, PyPermissionRule>>,
        context: Option<PyRef<'_, PyRunContext>>,
    ) -> PyResult<Self> {
        let context = context.as_ref().map(|c| &c.inner);
        let config = match (config.filter(|c| !c.is_none()), context) {
            // A run's own configuration holds unless another is given.
            (None, Some(context)) => context.run().options().config.clone(),
            (config, _) => config_of(config)?.config,
        };
        let skills = skills.iter().map(skill).collect::<PyResult<_>>()?;
        let runtime = runtime.iter().map(|rule| rule.0.clone()).collect();
        Ok(Self(Arc::new(merged(context, &config, skills, runtime)?)))
    }

    #[getter]
    fn filesystem_read(&self) -> bool {
        self.0.allows(Capability::FilesystemRead)
    }

    #[getter]
    fn filesystem_write(&self) -> bool {
        self.0.allows(Capability::FilesystemWrite)
    }

    #[getter]
    fn filesystem_delete(&self) -> bool {
        self.0.allows(Capability::FilesystemDelete)
    }

    #[getter]
    fn shell(&self) -> bool {
        self.0.allows(Capability::Shell)
    }

    #[getter]
    fn network(&self) -> bool {
        self.0.allows(Capability::Network)
    }

    #[getter]
    fn memory_write(&self) -> bool {
        self.0.allows(Capability::MemoryWrite)
    }

    fn effect(&self, name: &str) -> &'static str {
        self.0.effect(name).as_str()
    }

    fn check(&self, action: &str, resource: &str) -> PyPermissionResult {
        PyPermissionResult(self.0.check(action, resource))
    }

    fn explain(&self) -> String {
        self.0.explain()
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.0.warnings()
    }

    fn to_json(&self) -> PyResult<String> {
        serde_json::to_string(&*self.0).map_err(|e| PolicyError::new_err(e.to_string()))
    }

    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        serde_json::from_str(text).map(|policy| Self(Arc::new(policy))).map_err(|e| PolicyError::new_err(e.to_string()))
    }

    fn __repr__(&self) -> String {
        let allowed: Vec<&str> =
            Capability::ALL.into_iter().filter(|c| self.0.allows(*c)).map(Capability::as_str).collect();
        format!("EffectivePermissionPolicy(allows: {})", allowed.join(", "))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        Ok((py.get_type::<Self>().getattr("from_json")?, (self.to_json()?,).into_pyobject(py)?))
    }
}

/// The policy of a run under its own configuration.
pub(super) fn default_policy(context: &RunContext) -> PyResult<Policy> {
    merged(Some(context), &context.run().options().config, Vec::new(), Vec::new())
}

fn merged(
    context: Option<&RunContext>,
    config: &ToolsConfig,
    skills: Vec<(String, Vec<Rule>)>,
    runtime: Vec<Rule>,
) -> PyResult<Policy> {
    let mounts: Vec<String> = match context {
        Some(context) => context.run().sandbox().mount_names().to_vec(),
        None => PLAIN_MOUNTS.iter().map(|name| (*name).to_owned()).collect(),
    };
    let sandbox = context.map(|context| context.run().sandbox().rules()).unwrap_or_default();
    let layers = Layers { runtime, sandbox, config: config.permission_rules(), skills };
    Ok(Policy::merge(layers, &mounts)?)
}

/// A skill's declaration: its id and what it declares, in the shape of the config's `permissions`.
fn skill(declared: &Bound<'_, PyDict>) -> PyResult<(String, Vec<Rule>)> {
    let refuse = |what: &str| PolicyError::new_err(format!("skills: {what}"));
    let id = declared.get_item("id")?.ok_or_else(|| refuse("a declaration has no `id`"))?;
    let id = id.cast::<PyString>().map_err(|_| refuse("an `id` is not text"))?.to_str()?.to_owned();
    let Some(permissions) = declared.get_item("permissions")? else { return Ok((id, Vec::new())) };
    let value = to_value(&permissions).map_err(|e| refuse(&format!("`{id}`: {}", e.message)))?;
    let config = ToolsConfig::from_value(&serde_json::json!({"permissions": value}))
        .map_err(|e| refuse(&format!("`{id}`: {e}")))?;
    Ok((id, config.permission_rules()))
}
