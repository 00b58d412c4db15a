//! `SkillRegistry`.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde_json::json;

use super::context::PyRunContext;
use super::convert::to_python;
use super::exceptions::{RunError, stays};
use crate::skills::SkillRegistry;

/// The skills of some folders.
#[pyclass(frozen, name = "SkillRegistry", module = "kgent_tools")]
pub(super) struct PySkillRegistry(pub(super) Arc<SkillRegistry>);

#[pymethods]
impl PySkillRegistry {
    #[staticmethod]
    fn discover(py: Python<'_>, roots: Vec<PathBuf>) -> PyResult<Self> {
        Ok(Self(Arc::new(py.detach(|| SkillRegistry::discover(&roots))?)))
    }

    #[getter]
    fn roots(&self) -> Vec<PathBuf> {
        self.0.roots().map(PathBuf::from).collect()
    }

    #[getter]
    fn skills<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for skill in self.0.skills() {
            let front = skill.front();
            let fault = skill.state.as_ref().err().map(|broken| &broken.fault);
            let dict = to_python(
                py,
                &json!({
                    "id": skill.id,
                    "name": front.map(|f| &f.name),
                    "description": front.map(|f| &f.description),
                    "license": front.and_then(|f| f.license.as_ref()),
                    "compatibility": front.and_then(|f| f.compatibility.as_ref()),
                    "metadata": front.map(|f| &f.metadata),
                    "allowed_tools": front.map(|f| &f.allowed_tools),
                    "valid": skill.error().is_none(),
                    "lenient": front.is_some_and(|f| f.lenient),
                    "shadowed": skill.shadowed,
                    "line": fault.and_then(|f| f.line),
                    "reason": fault.map(|f| &f.reason),
                }),
            )?;
            dict.set_item("file", self.0.host_file(skill))?;
            list.append(dict)?;
        }
        Ok(list)
    }

    /// What the skills that the run has loaded declare, for `EffectivePermissionPolicy.merge`.
    fn loaded<'py>(&self, py: Python<'py>, context: PyRef<'_, PyRunContext>) -> PyResult<Bound<'py, PyList>> {
        let run = context.inner.run();
        let ids = py.detach(|| SkillRegistry::loaded(run)).map_err(|error| RunError::new_err(error.message))?;
        let list = PyList::empty(py);
        for id in ids {
            let rules = self.0.rules(&id).unwrap_or_default();
            let dict = PyDict::new(py);
            dict.set_item("id", id)?;
            dict.set_item("permissions", to_python(py, &json!({"rules": rules}))?)?;
            list.append(dict)?;
        }
        Ok(list)
    }

    #[pyo3(signature = (max_characters=8000))]
    fn instructions(&self, max_characters: usize) -> String {
        self.0.instructions(max_characters)
    }

    fn __len__(&self) -> usize {
        self.0.skills().len()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(stays("SkillRegistry"))
    }

    fn __repr__(&self) -> String {
        format!("SkillRegistry({} skills)", self.0.skills().len())
    }
}
