//! `ToolsConfig`.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::convert::{to_python, to_value};
use super::exceptions::ConfigError;
use crate::config::ToolsConfig;
use crate::sandbox::host::read_config;

/// The configuration of a run: the shape of `kgent.toml`.
#[pyclass(frozen, name = "ToolsConfig", module = "kgent_tools")]
#[derive(Clone, Default)]
pub(super) struct PyToolsConfig {
    pub(super) config: ToolsConfig,
    /// The file that it was read from; no tool writes it.
    pub(super) file: Option<PathBuf>,
}

#[pymethods]
impl PyToolsConfig {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[staticmethod]
    fn from_file(path: PathBuf) -> PyResult<Self> {
        let text = read_config(&path)?;
        let config = ToolsConfig::from_toml(&text, &path.display().to_string())?;
        let file = std::path::absolute(&path).map_err(|e| ConfigError::new_err(e.to_string()))?;
        Ok(Self { config, file: Some(file) })
    }

    #[staticmethod]
    fn from_dict(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let value = to_value(value).map_err(|e| ConfigError::new_err(e.message))?;
        Ok(Self { config: ToolsConfig::from_value(&value)?, file: None })
    }

    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.config.to_value())
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.config.to_value() == other.config.to_value()
    }

    fn __repr__(&self) -> String {
        match &self.file {
            Some(file) => format!("ToolsConfig.from_file({:?})", file.display().to_string()),
            None => format!("ToolsConfig.from_dict({})", self.config.to_value()),
        }
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let class = py.get_type::<Self>();
        match &self.file {
            Some(file) => Ok((class.getattr("from_file")?, (file,).into_pyobject(py)?)),
            None => Ok((class.getattr("from_dict")?, (self.to_dict(py)?,).into_pyobject(py)?)),
        }
    }
}

/// A configuration given as an object, a dict, or not at all.
pub(super) fn config_of(value: Option<&Bound<'_, PyAny>>) -> PyResult<PyToolsConfig> {
    let Some(value) = value.filter(|v| !v.is_none()) else { return Ok(PyToolsConfig::default()) };
    match value.cast::<PyToolsConfig>() {
        Ok(config) => Ok(config.get().clone()),
        Err(_) => PyToolsConfig::from_dict(value),
    }
}
