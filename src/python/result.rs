//! Results, as Python sees them.

use std::sync::Arc;

use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use super::convert::{to_python, to_value};
use crate::error::{Code, ToolError};
use crate::result::{Content, Data, ToolResult, one_line};

/// The code of that text.
pub(super) fn code_of(text: &str) -> PyResult<Code> {
    Code::ALL.iter().copied().find(|code| code.as_str() == text).ok_or_else(|| {
        let known: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        PyValueError::new_err(format!("unknown error code {text:?}; known: {}", known.join(", ")))
    })
}

/// A failed call's error.
#[pyclass(frozen, eq, name = "ErrorInfo", module = "kgent_tools")]
#[derive(Clone, PartialEq)]
pub(super) struct PyErrorInfo(pub(super) ToolError);

#[pymethods]
impl PyErrorInfo {
    #[new]
    #[pyo3(signature = (code, message, hint=None, details=None))]
    fn new(code: &str, message: String, hint: Option<String>, details: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let mut error = ToolError::new(code_of(code)?, message);
        error.hint = hint;
        if let Some(details) = details.filter(|d| !d.is_none()) {
            error.details = Some(Box::new(to_value(details).map_err(|e| PyTypeError::new_err(e.message))?));
        }
        Ok(Self(error))
    }

    #[getter]
    fn code(&self) -> &'static str {
        self.0.code.as_str()
    }

    #[getter]
    fn message(&self) -> &str {
        &self.0.message
    }

    #[getter]
    fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    #[getter]
    fn details<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0.details)
    }

    #[getter]
    fn mendable(&self) -> bool {
        self.0.code.mendable()
    }

    #[getter]
    fn status(&self) -> &'static str {
        self.0.code.status().as_str()
    }

    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("code", self.code())?;
        dict.set_item("message", self.message())?;
        dict.set_item("hint", self.hint())?;
        dict.set_item("details", self.details(py)?)?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        format!("ErrorInfo(code={:?}, message={:?})", self.0.code.as_str(), self.0.message)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let args = (self.code(), self.message(), self.hint(), self.details(py)?);
        Ok((py.get_type::<Self>().into_any(), args.into_pyobject(py)?))
    }
}

/// A text part of what the model reads.
#[pyclass(frozen, eq, name = "TextContent", module = "kgent_tools")]
#[derive(Clone, PartialEq)]
pub(super) struct PyTextContent(Arc<String>);

#[pymethods]
impl PyTextContent {
    #[new]
    fn new(text: String) -> Self {
        Self(Arc::new(text))
    }

    #[getter]
    fn text<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, &self.0)
    }

    fn __repr__(&self) -> String {
        format!("TextContent({:?})", crate::output::bound::cut(&self.0, 200))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        Ok((py.get_type::<Self>().into_any(), (self.0.as_str(),).into_pyobject(py)?))
    }
}

/// A file part of what the model reads.
#[pyclass(frozen, eq, name = "FileContent", module = "kgent_tools")]
#[derive(Clone, PartialEq)]
pub(super) struct PyFileContent {
    #[pyo3(get)]
    media_type: String,
    data: Arc<[u8]>,
}

#[pymethods]
impl PyFileContent {
    #[new]
    fn new(media_type: String, data: &[u8]) -> Self {
        Self { media_type, data: data.into() }
    }

    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.data)
    }

    fn __repr__(&self) -> String {
        format!("FileContent({:?}, {} bytes)", self.media_type, self.data.len())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        Ok((py.get_type::<Self>().into_any(), (&self.media_type, self.data(py)).into_pyobject(py)?))
    }
}

/// The answer to one call.
#[pyclass(frozen, name = "ToolResult", module = "kgent_tools")]
pub(super) struct PyToolResult(pub(super) ToolResult);

impl PyToolResult {
    pub(super) fn clone_result(&self) -> Self {
        Self(self.0.clone())
    }
}

#[pymethods]
impl PyToolResult {
    #[new]
    #[pyo3(signature = (ok, summary, data=None, artifacts=Vec::new(), error=None, content=None))]
    fn new(
        ok: bool,
        summary: &str,
        data: Option<&Bound<'_, PyAny>>,
        artifacts: Vec<String>,
        error: Option<PyRef<'_, PyErrorInfo>>,
        content: Option<Vec<Bound<'_, PyAny>>>,
    ) -> PyResult<Self> {
        if ok == error.is_some() {
            return Err(PyValueError::new_err("a result has an error exactly when it is not ok"));
        }
        let data = match data.filter(|d| !d.is_none()) {
            Some(data) => {
                let value = to_value(data).map_err(|e| PyTypeError::new_err(format!("data: {}", e.message)))?;
                if !value.is_object() {
                    return Err(PyTypeError::new_err("data must be a dict or None"));
                }
                Some(value)
            }
            None => None,
        };
        let content = match content {
            Some(parts) => parts.iter().map(part).collect::<PyResult<_>>()?,
            None => default_content(summary, data.as_ref()),
        };
        Ok(Self(ToolResult {
            ok,
            summary: one_line(summary),
            data: data.map(Data::new),
            artifacts,
            error: error.map(|e| e.0.clone()),
            content,
        }))
    }

    #[getter]
    fn ok(&self) -> bool {
        self.0.ok
    }

    #[getter]
    fn summary(&self) -> &str {
        &self.0.summary
    }

    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0.data)
    }

    #[getter]
    fn artifacts(&self) -> Vec<String> {
        self.0.artifacts.clone()
    }

    #[getter]
    fn error(&self) -> Option<PyErrorInfo> {
        self.0.error.clone().map(PyErrorInfo)
    }

    #[getter]
    fn content<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for part in &self.0.content {
            match part {
                Content::Text(text) => list.append(Bound::new(py, PyTextContent(Arc::clone(text)))?)?,
                Content::File { media_type, data } => list.append(Bound::new(
                    py,
                    PyFileContent { media_type: media_type.clone(), data: Arc::clone(data) },
                )?)?,
            }
        }
        Ok(list)
    }

    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("ok", self.0.ok)?;
        dict.set_item("summary", &self.0.summary)?;
        dict.set_item("data", self.data(py)?)?;
        dict.set_item("artifacts", &self.0.artifacts)?;
        dict.set_item("error", self.error().map(|e| e.to_dict(py)).transpose()?)?;
        Ok(dict)
    }

    fn __richcmp__(&self, other: &Self, op: CompareOp, py: Python<'_>) -> PyResult<bool> {
        let equal = self.0.content == other.0.content && self.to_dict(py)?.eq(other.to_dict(py)?)?;
        match op {
            CompareOp::Eq => Ok(equal),
            CompareOp::Ne => Ok(!equal),
            _ => Err(PyTypeError::new_err("results have no order")),
        }
    }

    fn __repr__(&self) -> String {
        match &self.0.error {
            None => format!("ToolResult(ok=True, summary={:?})", self.0.summary),
            Some(error) => {
                format!("ToolResult(ok=False, error={:?}, summary={:?})", error.code.as_str(), self.0.summary)
            }
        }
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let args = (self.0.ok, &self.0.summary, self.data(py)?, &self.0.artifacts, self.error(), self.content(py)?);
        Ok((py.get_type::<Self>().into_any(), args.into_pyobject(py)?))
    }
}

/// The default content of a Python result: the summary, then the data as JSON.
fn default_content(summary: &str, data: Option<&serde_json::Value>) -> Vec<Content> {
    let mut content = vec![Content::text(summary)];
    content.extend(data.map(|data| Content::text(data.to_string())));
    content
}

/// One part of content, or a list of them.
pub(super) fn parts(given: &Bound<'_, PyAny>) -> PyResult<Vec<Content>> {
    match part(given) {
        Ok(one) => Ok(vec![one]),
        Err(error) => match given.cast::<PyList>() {
            Ok(list) => list.iter().map(|item| part(&item)).collect(),
            Err(_) => Err(error),
        },
    }
}

fn part(part: &Bound<'_, PyAny>) -> PyResult<Content> {
    if let Ok(text) = part.cast::<PyString>() {
        return Ok(Content::text(text.to_str()?));
    }
    if let Ok(text) = part.cast::<PyTextContent>() {
        return Ok(Content::Text(Arc::clone(&text.get().0)));
    }
    if let Ok(file) = part.cast::<PyFileContent>() {
        let file = file.get();
        return Ok(Content::File { media_type: file.media_type.clone(), data: Arc::clone(&file.data) });
    }
    Err(PyTypeError::new_err("content takes text, TextContent and FileContent"))
}
