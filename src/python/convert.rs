//! Values across the border. Into the core: strict JSON values, with the field named where one is not. Out: plain
//! Python objects.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde::Serialize;
use serde_json::{Map, Number, Value};

use crate::error::{Code, ToolError};

/// The deepest nesting taken.
const MAX_DEPTH: usize = 64;

/// Where a value stands, for messages; nothing is allocated while all is well.
enum Place<'a> {
    Root,
    Key(&'a Self, &'a str),
    Index(&'a Self, usize),
}

impl Place<'_> {
    fn text(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Key(above, key) => {
                let above = above.text();
                if above.is_empty() { (*key).to_owned() } else { format!("{above}.{key}") }
            }
            Self::Index(above, index) => format!("{}[{index}]", above.text()),
        }
    }

    fn refuse(&self, what: &str, hint: &str) -> ToolError {
        let place = self.text();
        let shown = if place.is_empty() { "the arguments".to_owned() } else { format!("`{place}`") };
        ToolError::new(Code::InvalidArgs, format!("{shown}: {what}")).hint(hint)
    }
}

/// A Python value as JSON.
pub(super) fn to_value(value: &Bound<'_, PyAny>) -> Result<Value, ToolError> {
    convert(value, &Place::Root, 0)
}

fn convert(value: &Bound<'_, PyAny>, place: &Place<'_>, depth: usize) -> Result<Value, ToolError> {
    if depth > MAX_DEPTH {
        return Err(place.refuse(&format!("nested more than {MAX_DEPTH} deep"), "Send a flatter value."));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return text.to_str().map(|text| Value::String(text.to_owned())).map_err(|_| surrogate(place));
    }
    if value.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(Value::Bool(flag.is_true()));
    }
    if value.is_instance_of::<PyInt>() {
        let number = value.extract::<i64>().map(Number::from).or_else(|_| value.extract::<u64>().map(Number::from));
        return number
            .map(Value::Number)
            .map_err(|_| place.refuse("the integer does not fit 64 bits", "Send a smaller number."));
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        let number = Number::from_f64(number.value());
        return number.map(Value::Number).ok_or_else(|| place.refuse("not a finite number", "Send a finite number."));
    }
    if let Ok(dict) = value.cast::<PyDict>() {
        let mut map = Map::with_capacity(dict.len());
        for (key, item) in dict.iter() {
            let Ok(key) = key.cast_into::<PyString>() else {
                return Err(place.refuse("a name is not text", "Send an object with text names."));
            };
            let key = key.to_str().map_err(|_| surrogate(place))?;
            map.insert(key.to_owned(), convert(&item, &Place::Key(place, key), depth + 1)?);
        }
        return Ok(Value::Object(map));
    }
    if let Ok(list) = value.cast::<PyList>() {
        let items = list.iter().enumerate().map(|(i, item)| convert(&item, &Place::Index(place, i), depth + 1));
        return items.collect::<Result<Vec<_>, _>>().map(Value::Array);
    }
    if let Ok(tuple) = value.cast::<PyTuple>() {
        let items = tuple.iter().enumerate().map(|(i, item)| convert(&item, &Place::Index(place, i), depth + 1));
        return items.collect::<Result<Vec<_>, _>>().map(Value::Array);
    }
    let kind = value.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    Err(place
        .refuse(&format!("a {kind} is not a JSON value"), "Send text, numbers, booleans, null, lists and objects."))
}

fn surrogate(place: &Place<'_>) -> ToolError {
    place.refuse("the text holds half of a surrogate pair", "Send whole characters.")
}

/// A serialisable value as Python objects.
pub(super) fn to_python<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    Ok(pythonize::pythonize(py, value)?)
}
