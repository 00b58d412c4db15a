//! [`Schema`]: a JSON schema that application tools' arguments and data are held to.

use std::sync::Arc;

use jsonschema::Validator;
use serde_json::{Map, Number, Value};

use crate::error::{Code, ToolError};

/// A compiled JSON schema (draft 2020-12 unless it names another). It never fetches: a remote `$ref` does not compile.
#[derive(Clone)]
pub struct Schema(Arc<Compiled>);

struct Compiled {
    validator: Validator,
    /// The plain type that each top-level property is declared with.
    types: Vec<(String, String)>,
}

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// What is wrong with it, for the one who wrote it.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        let validator = jsonschema::options().build(schema).map_err(|error| error.to_string())?;
        let declared = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        let types = declared
            .filter_map(|(name, property)| Some((name.clone(), property.get("type")?.as_str()?.to_owned())))
            .collect();
        Ok(Self(Arc::new(Compiled { validator, types })))
    }

    /// Arguments that fit, mended where a top-level value has the right text in the wrong type.
    ///
    /// # Errors
    /// `invalid_args` naming the field.
    pub fn accept(&self, args: Value) -> Result<(Value, Vec<String>), ToolError> {
        let Value::Object(mut args) = args else {
            return Err(
                ToolError::new(Code::InvalidArgs, "the arguments are not an object").hint("Send a JSON object.")
            );
        };
        let mut repairs = Vec::new();
        for (name, kind) in &self.0.types {
            mend(&mut args, name, kind, &mut repairs);
        }
        let args = Value::Object(args);
        self.check(&args)
            .map_err(|why| ToolError::new(Code::InvalidArgs, why).hint("Send arguments that fit the tool's schema."))?;
        Ok((args, repairs))
    }

    /// Whether a value fits.
    ///
    /// # Errors
    /// Where it does not, and why.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let Some(error) = self.0.validator.iter_errors(value).next() else { return Ok(()) };
        let place = error.instance_path().to_string();
        let place = place.trim_start_matches('/').replace('/', ".");
        let text = crate::result::one_line(&error.to_string());
        Err(if place.is_empty() { text } else { format!("`{place}`: {text}") })
    }
}

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Schema").field("types", &self.0.types).finish_non_exhaustive()
    }
}

/// The coercions of built-in tools, for the plain types: integers and booleans from text, whole floats as integers,
/// lists from their JSON text; null is as good as absent.
fn mend(args: &mut Map<String, Value>, name: &str, kind: &str, repairs: &mut Vec<String>) {
    let Some(value) = args.get_mut(name) else { return };
    let mended = match (kind, &*value) {
        (kind, Value::Null) if kind != "null" => {
            args.remove(name);
            return;
        }
        ("integer", Value::String(text)) if is_integer(text) => {
            text.parse::<i64>().ok().map(|n| Value::Number(n.into()))
        }
        ("integer", Value::Number(number)) => whole(number).map(|n| Value::Number(n.into())),
        ("boolean", Value::String(text)) => match text.as_str() {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            _ => None,
        },
        ("array", Value::String(text)) => crate::args::parse_json(text).ok().filter(Value::is_array),
        _ => None,
    };
    if let Some(mended) = mended {
        *value = mended;
        repairs.push(format!("{name}: to {kind}"));
    }
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// A float that is a whole number.
fn whole(number: &Number) -> Option<i64> {
    if number.is_i64() || number.is_u64() {
        return None;
    }
    let float = number.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e15)?;
    format!("{float:.0}").parse().ok()
}
