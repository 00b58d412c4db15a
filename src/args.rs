//! Arguments: JSON text to a [`Value`], a value to a tool's own struct, and the struct's schema for the model.
//!
//! Strings are moved, never copied, and a path such as `edits[0].old_text` is only written out when an error or a
//! repair names it.

use std::cell::RefCell;
use std::fmt::{self, Display, Write as _};

use memchr::memchr2;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};

use crate::error::{Code, ToolError};
use crate::output::bound::cut_word;

/// Objects and lists inside one another.
pub const MAX_DEPTH: usize = 64;
/// Characters of a value or a name that a message quotes.
const MAX_QUOTED_CHARS: usize = 80;
/// Repairs noted of one call.
const MAX_REPAIRS: usize = 32;

/// JSON text as a value. Refused: a name given twice, more than [`MAX_DEPTH`] levels, half a surrogate pair, `NaN` and
/// `Infinity`, integers that 64 bits do not hold, and anything after the value.
pub fn parse_json(text: &str) -> Result<Value, ToolError> {
    Parser::parse(text).map_err(|message| ToolError::new(Code::InvalidArgs, message))
}

/// The tool's struct from its arguments, which may also be the JSON text of an object; and what was repaired on the way.
/// `null` for an optional field means absent.
pub fn decode<A: DeserializeOwned>(value: Value) -> Result<(A, Vec<String>), ToolError> {
    let repairs = RefCell::default();
    let path = Path { parent: None, step: Step::Root, depth: 0 };
    match A::deserialize(Node { value, path: &path, place: Place::Root, repairs: &repairs }) {
        Ok(args) => Ok((args, repairs.into_inner())),
        Err(fault) => Err(ToolError::new(Code::InvalidArgs, fault.into_message(&path))),
    }
}

/// Where a value lies; only written out when something is said about it.
struct Path<'p> {
    parent: Option<&'p Self>,
    step: Step<'p>,
    /// Objects and lists around the value.
    depth: usize,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Root,
    Name(&'p str),
    Index(usize),
}

impl<'p> Path<'p> {
    fn child(&'p self, step: Step<'p>) -> Self {
        Self { parent: Some(self), step, depth: self.depth + 1 }
    }

    fn write(&self, out: &mut String) {
        if let Some(parent) = self.parent {
            parent.write(out);
        }
        match self.step {
            Step::Root => {}
            Step::Index(index) => {
                let _ = write!(out, "[{index}]");
            }
            Step::Name(name) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(&excerpt(name));
            }
        }
    }

    /// The path in the words of a message; of the whole arguments, nothing.
    fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        shorten(text)
    }

    /// The path of the member `name`.
    fn member(&self, name: &str) -> String {
        self.child(Step::Name(name)).text()
    }
}

/// `text` on one line, cut at [`MAX_QUOTED_CHARS`].
fn excerpt(text: &str) -> String {
    let end = text.char_indices().nth(MAX_QUOTED_CHARS).map_or(text.len(), |(end, _)| end);
    let kept = cut_word(text, end);
    let mut out = String::with_capacity(kept.len());
    for c in kept.chars() {
        if matches!(c, '\'' | '"') {
            out.push(c);
        } else {
            out.extend(c.escape_debug());
        }
    }
    if end < text.len() {
        out.push('…');
    }
    out
}

/// A text that is already on one line, cut at [`MAX_QUOTED_CHARS`] too.
fn shorten(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_QUOTED_CHARS) {
        text.truncate(cut_word(&text, end).len());
        text.push('…');
    }
    text
}

/// A value in the words of a message.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) => format!("number {number}"),
        Value::String(text) => format!("text \"{}\"", excerpt(text)),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// Why arguments were refused. What serde's own code finds does not know its place yet.
#[derive(Debug)]
enum Fault {
    Missing(&'static str),
    Unknown {
        name: String,
        accepted: &'static [&'static str],
    },
    Other(String),
    /// The whole message.
    Placed(String),
}

impl Fault {
    fn into_message(self, path: &Path<'_>) -> String {
        match self {
            Self::Placed(message) => message,
            Self::Missing(name) => format!("missing argument `{}`", path.member(name)),
            Self::Unknown { name, accepted: [] } => {
                format!("unknown argument `{}`; none is accepted here", path.member(&name))
            }
            Self::Unknown { name, accepted } => {
                format!("unknown argument `{}`; accepted: {}", path.member(&name), accepted.join(", "))
            }
            Self::Other(what) if path.parent.is_none() => format!("the arguments: {what}"),
            Self::Other(what) => format!("`{}`: {what}", path.text()),
        }
    }

    fn at(self, path: &Path<'_>) -> Self {
        Self::Placed(self.into_message(path))
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => write!(f, "missing argument `{name}`"),
            Self::Unknown { name, .. } => write!(f, "unknown argument `{}`", excerpt(name)),
            Self::Other(text) | Self::Placed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Fault {}

impl serde::de::Error for Fault {
    fn custom<T: Display>(message: T) -> Self {
        Self::Other(message.to_string())
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing(field)
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::Unknown { name: field.chars().take(MAX_QUOTED_CHARS + 1).collect(), accepted: expected }
    }
}

/// What stands around a value decides which repairs it may get.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The whole arguments: may be the JSON text of an object.
    Root,
    /// A field of a struct.
    Field,
    /// An item of a list: may be the JSON text of an object where an object is meant.
    Item,
    /// One object that came where a list of objects is meant.
    LoneItem,
}

/// A value on its way into a struct.
struct Node<'p> {
    value: Value,
    path: &'p Path<'p>,
    place: Place,
    repairs: &'p RefCell<Vec<String>>,
}

impl Node<'_> {
    fn repaired(&self, what: &str) {
        let mut repairs = self.repairs.borrow_mut();
        if repairs.len() < MAX_REPAIRS {
            let path = self.path.text();
            repairs.push(format!("{}: {what}", if path.is_empty() { "arguments" } else { &path }));
        }
    }

    fn expected(&self, what: &str) -> Fault {
        let (what, path) = match (self.place, self.path.parent) {
            // It was only taken for an item; what is wrong is the list.
            (Place::LoneItem, Some(list)) => ("a list", list),
            _ => (what, self.path),
        };
        Fault::Other(format!("expected {what}, got {}", describe(&self.value))).at(path)
    }

    /// The value that a text stands for, where a list or an object is meant.
    fn parsed(&self, what: &str) -> Result<Value, Fault> {
        let Value::String(text) = &self.value else { return Err(self.expected(what)) };
        Parser::parse(text)
            .map_err(|why| Fault::Other(format!("expected {what}, got text that is {why}")).at(self.path))
    }

    fn integer(&self) -> Result<i128, Fault> {
        let found = match &self.value {
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(n), _) => Some(n.into()),
                (None, Some(n)) => Some(n.into()),
                // `10.0` is written `10`, `10.5` is not.
                (None, None) => {
                    let whole = number.as_f64().and_then(|n| n.to_string().parse().ok());
                    whole.inspect(|_| self.repaired("float to integer"))
                }
            },
            Value::String(text) => {
                let digits = text.strip_prefix('-').unwrap_or(text);
                let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
                plain.then(|| text.parse().ok()).flatten().inspect(|_| self.repaired("text to integer"))
            }
            _ => None,
        };
        found.ok_or_else(|| self.expected("an integer"))
    }

    fn check_depth(&self) -> Result<(), Fault> {
        if self.path.depth < MAX_DEPTH {
            return Ok(());
        }
        Err(Fault::Other(format!("nested deeper than {MAX_DEPTH} levels")).at(self.path))
    }

    fn visit_list<'de, V: Visitor<'de>>(mut self, visitor: V, item: Place) -> Result<V::Value, Fault> {
        self.check_depth()?;
        let items = match self.value.take() {
            Value::Array(items) => items,
            lone => vec![lone],
        };
        let count = items.len();
        let mut list = List { items: items.into_iter(), next: 0, place: item, path: self.path, repairs: self.repairs };
        let value = visitor.visit_seq(&mut list).map_err(|fault| fault.at(self.path))?;
        if list.items.len() > 0 {
            let used = count - list.items.len();
            return Err(Fault::Other(format!("expected a list of {used}, got {count} items")).at(self.path));
        }
        Ok(value)
    }

    fn visit_object<'de, V: Visitor<'de>>(
        mut self,
        visitor: V,
        fields: &'static [&'static str],
    ) -> Result<V::Value, Fault> {
        self.check_depth()?;
        if self.value.is_string() && matches!(self.place, Place::Root | Place::Item) {
            let value = self.parsed("an object")?;
            if !value.is_object() {
                let holds = describe(&value);
                return Err(Fault::Other(format!("expected an object, got text that holds {holds}")).at(self.path));
            }
            self.repaired("text to object");
            self.value = value;
        }
        let Value::Object(members) = self.value else { return Err(self.expected("an object")) };
        let mut object = Members {
            rest: members.into_iter(),
            pending: None,
            fields,
            nulls: Vec::new(),
            path: self.path,
            repairs: self.repairs,
        };
        visitor.visit_map(&mut object).map_err(|fault| match fault {
            Fault::Missing(name) if object.nulls.iter().any(|null| null == name) => {
                Fault::Placed(format!("`{}`: expected a value, got null", self.path.member(name)))
            }
            fault => fault.at(self.path),
        })
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $int:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            let n = $int::try_from(self.integer()?).map_err(|_| {
                self.expected(&format!("an integer from {} to {}", $int::MIN, $int::MAX))
            })?;
            visitor.$visit(n).map_err(|fault: Fault| fault.at(self.path))
        })*
    };
}

macro_rules! texts {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            match self.value {
                Value::String(text) if self.place != Place::LoneItem => {
                    visitor.visit_string(text).map_err(|fault: Fault| fault.at(self.path))
                }
                _ => Err(self.expected("text")),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for Node<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Fault> {
        let path = self.path;
        match self.value.take() {
            Value::Null => visitor.visit_unit(),
            Value::Bool(truth) => visitor.visit_bool(truth),
            Value::String(text) => visitor.visit_string(text),
            Value::Number(number) => number.deserialize_any(visitor).map_err(Fault::custom),
            value @ Value::Array(_) => Node { value, ..self }.visit_list(visitor, Place::Field),
            value @ Value::Object(_) => Node { value, ..self }.visit_object(visitor, &[]),
        }
        .map_err(|fault| fault.at(path))
    }

    integers! {
        deserialize_i8 visit_i8 i8
        deserialize_i16 visit_i16 i16
        deserialize_i32 visit_i32 i32
        deserialize_i64 visit_i64 i64
        deserialize_u8 visit_u8 u8
        deserialize_u16 visit_u16 u16
        deserialize_u32 visit_u32 u32
        deserialize_u64 visit_u64 u64
    }

    texts! { deserialize_char deserialize_str deserialize_string deserialize_identifier }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let truth = match &self.value {
            Value::Bool(truth) => *truth,
            Value::String(text) if text == "true" || text == "false" => {
                self.repaired("text to boolean");
                text == "true"
            }
            _ => return Err(self.expected("true or false")),
        };
        visitor.visit_bool(truth).map_err(|fault: Fault| fault.at(self.path))
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value.as_f64() {
            Some(number) => visitor.visit_f64(number).map_err(|fault: Fault| fault.at(self.path)),
            None => Err(self.expected("a number")),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.value.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Fault> {
        if self.place != Place::LoneItem && self.value.is_string() {
            self.value = self.parsed("a list")?;
            self.repaired("text to list");
        }
        match self.value {
            Value::Array(_) => self.visit_list(visitor, Place::Item),
            Value::Object(_) if self.place != Place::LoneItem => {
                self.repaired("object to list");
                self.visit_list(visitor, Place::LoneItem)
            }
            _ => Err(self.expected("a list")),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.visit_object(visitor, &[])
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.visit_object(visitor, fields)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match &self.value {
            Value::String(text) if variants.contains(&text.as_str()) && self.place != Place::LoneItem => {
                visitor.visit_enum(text.as_str().into_deserializer()).map_err(|fault: Fault| fault.at(self.path))
            }
            _ => Err(self.expected(&format!("one of {}", variants.join(", ")))),
        }
    }

    forward_to_deserialize_any! { i128 u128 bytes byte_buf unit unit_struct ignored_any }
}

struct List<'p> {
    items: std::vec::IntoIter<Value>,
    next: usize,
    place: Place,
    path: &'p Path<'p>,
    repairs: &'p RefCell<Vec<String>>,
}

impl<'de> SeqAccess<'de> for List<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Some(value) = self.items.next() else { return Ok(None) };
        let path = self.path.child(Step::Index(self.next));
        self.next += 1;
        seed.deserialize(Node { value, path: &path, place: self.place, repairs: self.repairs }).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Members<'p> {
    rest: serde_json::map::IntoIter,
    pending: Option<(String, Value)>,
    /// The struct's names; empty for a map.
    fields: &'static [&'static str],
    /// Names of the struct that came as `null`, which means absent.
    nulls: Vec<String>,
    path: &'p Path<'p>,
    repairs: &'p RefCell<Vec<String>>,
}

impl<'de> MapAccess<'de> for Members<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        for (name, value) in self.rest.by_ref() {
            if value.is_null() && self.fields.contains(&name.as_str()) {
                self.nulls.push(name);
                continue;
            }
            let (name, _) = self.pending.insert((name, value));
            return seed.deserialize(name.as_str().into_deserializer()).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let (name, value) = self.pending.take().unwrap_or_default();
        let path = self.path.child(Step::Name(&name));
        seed.deserialize(Node { value, path: &path, place: Place::Field, repairs: self.repairs })
    }
}

/// The reader behind [`parse_json`]. Unlike `serde_json`'s it names the field, and tells an integer from a float before
/// its digits are lost.
struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn parse(text: &'a str) -> Result<Value, String> {
        let path = Path { parent: None, step: Step::Root, depth: 0 };
        let mut parser = Self { text, at: 0 };
        let value = parser.value(&path)?;
        parser.skip_space();
        if parser.peek().is_some() { Err(parser.unexpected(&path, "nothing more")) } else { Ok(value) }
    }

    fn value(&mut self, path: &Path<'_>) -> Result<Value, String> {
        self.skip_space();
        match self.peek() {
            Some(b'{') => self.object(path).map(Value::Object),
            Some(b'[') => self.list(path).map(Value::Array),
            Some(b'"') => self.string(path).map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number(path).map(Value::Number),
            Some(b't') if self.eat("true") => Ok(Value::Bool(true)),
            Some(b'f') if self.eat("false") => Ok(Value::Bool(false)),
            Some(b'n') if self.eat("null") => Ok(Value::Null),
            _ => Err(self.unexpected(path, "a value")),
        }
    }

    fn object(&mut self, path: &Path<'_>) -> Result<Map<String, Value>, String> {
        self.enter(path)?;
        let mut members = Map::new();
        if self.eat_after_space("}") {
            return Ok(members);
        }
        loop {
            self.skip_space();
            let start = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.unexpected(path, "a name in double quotes"));
            }
            let name = self.string(path)?;
            if !self.eat_after_space(":") {
                return Err(self.unexpected(&path.child(Step::Name(&name)), "`:`"));
            }
            match members.entry(name) {
                Entry::Occupied(twice) => {
                    self.at = start;
                    return Err(self.refuse(&path.child(Step::Name(twice.key())), "the name is given twice"));
                }
                Entry::Vacant(slot) => {
                    let value = self.value(&path.child(Step::Name(slot.key())))?;
                    slot.insert(value);
                }
            }
            if self.eat_after_space("}") {
                return Ok(members);
            }
            if !self.eat(",") {
                return Err(self.unexpected(path, "`,` or `}`"));
            }
        }
    }

    fn list(&mut self, path: &Path<'_>) -> Result<Vec<Value>, String> {
        self.enter(path)?;
        let mut items = Vec::new();
        if self.eat_after_space("]") {
            return Ok(items);
        }
        loop {
            items.push(self.value(&path.child(Step::Index(items.len())))?);
            if self.eat_after_space("]") {
                return Ok(items);
            }
            if !self.eat(",") {
                return Err(self.unexpected(path, "`,` or `]`"));
            }
        }
    }

    fn enter(&mut self, path: &Path<'_>) -> Result<(), String> {
        if path.depth >= MAX_DEPTH {
            return Err(self.refuse(path, &format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self, path: &Path<'_>) -> Result<String, String> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = self.rest();
            let Some(run) = memchr2(b'"', b'\\', rest.as_bytes()) else {
                return Err(self.refuse(path, "the closing quote is missing"));
            };
            let run = rest.get(..run).unwrap_or_default();
            if let Some(control) = run.bytes().position(|byte| byte < b' ') {
                self.at += control;
                return Err(self.refuse(path, "a control character must be escaped"));
            }
            self.at += run.len();
            if self.eat("\"") {
                if out.is_empty() {
                    return Ok(run.to_owned());
                }
                out.push_str(run);
                return Ok(out);
            }
            out.push_str(run);
            out.push(self.escape(path)?);
        }
    }

    fn escape(&mut self, path: &Path<'_>) -> Result<char, String> {
        let start = self.at;
        self.at += 1;
        let c = match self.peek() {
            Some(c @ (b'"' | b'\\' | b'/')) => c.into(),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                let unit = self.hex4();
                let c = match unit {
                    Some(high @ 0xD800..=0xDBFF) if self.eat("\\u") => self
                        .hex4()
                        .filter(|low| (0xDC00..=0xDFFF).contains(low))
                        .and_then(|low| char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))),
                    unit => unit.and_then(char::from_u32),
                };
                let why = if unit.is_some() { "half a surrogate pair" } else { "`\\u` needs four hex digits" };
                return c.ok_or_else(|| {
                    self.at = start;
                    self.refuse(path, why)
                });
            }
            _ => {
                self.at = start;
                return Err(self.refuse(path, "no such escape"));
            }
        };
        self.at += 1;
        Ok(c)
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.rest().get(..4).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }

    fn number(&mut self, path: &Path<'_>) -> Result<Number, String> {
        let start = self.at;
        let negative = self.eat("-");
        let mut whole = true;
        if !self.eat("0") && !self.eat_digits() {
            return Err(self.unexpected(path, "a digit"));
        }
        if self.eat(".") {
            whole = false;
            if !self.eat_digits() {
                return Err(self.unexpected(path, "a digit"));
            }
        }
        if self.eat("e") || self.eat("E") {
            whole = false;
            let _ = self.eat("+") || self.eat("-");
            if !self.eat_digits() {
                return Err(self.unexpected(path, "a digit"));
            }
        }
        let token = self.text.get(start..self.at).unwrap_or_default();
        let number = match (whole, negative) {
            (true, false) => token.parse::<u64>().ok().map(Number::from),
            (true, true) if token != "-0" => token.parse::<i64>().ok().map(Number::from),
            _ => token.parse().ok().and_then(Number::from_f64),
        };
        number.ok_or_else(|| {
            self.at = start;
            self.refuse(path, if whole { "an integer that 64 bits do not hold" } else { "a number out of range" })
        })
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.text.as_bytes().get(self.at..).is_some_and(|rest| rest.starts_with(token.as_bytes()));
        if found {
            self.at += token.len();
        }
        found
    }

    fn eat_after_space(&mut self, token: &str) -> bool {
        self.skip_space();
        self.eat(token)
    }

    fn eat_digits(&mut self) -> bool {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at > start
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn unexpected(&self, path: &Path<'_>, wanted: &str) -> String {
        let rest = self.rest();
        // Known words only: what else stands here may be a secret.
        let word =
            ["NaN", "Infinity", "None", "True", "False", "undefined"].into_iter().find(|word| rest.starts_with(word));
        let got = match (word, rest.chars().next()) {
            (Some(word), _) => format!("`{word}`"),
            (None, Some(c)) => format!("`{}`", excerpt(c.encode_utf8(&mut [0; 4]))),
            (None, None) => "the end of the text".into(),
        };
        self.refuse(path, &format!("expected {wanted}, got {got}"))
    }

    fn refuse(&self, path: &Path<'_>, why: &str) -> String {
        let place = path.text();
        let place = if place.is_empty() { place } else { format!("`{place}`: ") };
        format!("not valid JSON at byte {}: {place}{why}", self.at)
    }
}

/// The struct's JSON schema as a model reads it: one object with `properties`, what is `required`, and nothing else
/// accepted. Optional fields are those not required; there are no titles, formats, references or nulls.
pub fn schema_of<A: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<A>().to_value();
    plain(&mut schema);
    let mut root = Map::new();
    root.insert("type".into(), "object".into());
    root.insert("properties".into(), Value::Object(Map::new()));
    if let Value::Object(found) = schema {
        for (key, value) in found {
            // The tool's own description speaks for the whole.
            if key != "description" {
                root.insert(key, value);
            }
        }
    }
    root.insert("additionalProperties".into(), false.into());
    Value::Object(root)
}

/// Takes out of a schema what no model needs.
fn plain(schema: &mut Value) {
    let Value::Object(schema) = schema else { return };
    for key in ["$schema", "title", "format"] {
        schema.shift_remove(key);
    }
    if schema.get("default").is_some_and(Value::is_null) {
        schema.shift_remove("default");
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = unwrap_lines(text);
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_mut_slice() {
            let only = only.take();
            schema.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    for key in ["properties", "$defs"] {
        if let Some(Value::Object(named)) = schema.get_mut(key) {
            named.values_mut().for_each(plain);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(key) {
            plain(inner);
        }
    }
    if let Some(Value::Array(items)) = schema.get_mut("prefixItems") {
        items.iter_mut().for_each(plain);
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(Value::Array(mut choices)) = schema.shift_remove(key) {
            choices.retain(|choice| choice.get("type").is_none_or(|kind| kind != "null"));
            choices.iter_mut().for_each(plain);
            match fold(choices) {
                Ok(Value::Object(only)) => {
                    for (key, value) in only {
                        // What a field says of itself goes before what its type says.
                        schema.entry(key).or_insert(value);
                    }
                }
                Ok(_) => {}
                Err(choices) => {
                    schema.insert(key.into(), choices.into());
                }
            }
        }
    }
}

/// One schema for all `choices`: the only one, or the `enum` of their texts.
fn fold(mut choices: Vec<Value>) -> Result<Value, Vec<Value>> {
    if choices.len() == 1 {
        return choices.pop().ok_or(choices);
    }
    let mut texts = Vec::new();
    for choice in &choices {
        match (choice.get("const"), choice.get("enum")) {
            (Some(text @ Value::String(_)), None) => texts.push(text.clone()),
            (None, Some(Value::Array(some))) if some.iter().all(Value::is_string) => texts.extend_from_slice(some),
            _ => return Err(choices),
        }
    }
    Ok(serde_json::json!({"type": "string", "enum": texts}))
}

/// A doc comment's lines as one paragraph each.
fn unwrap_lines(text: &str) -> String {
    text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Read {
        path: String,
        offset: Option<u64>,
        limit: Option<u32>,
    }

    /// The tool's words for itself.
    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Edits {
        /// The file,
        /// in the workspace.
        path: String,
        /// What to change.
        edits: Vec<Edit>,
    }

    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Edit {
        old_text: String,
        new_text: String,
        #[serde(default)]
        replace_all: bool,
    }

    #[derive(Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Output {
        /// Lines.
        #[default]
        Content,
        /// Names.
        Files,
    }

    #[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    struct Any {
        text: Option<String>,
        flag: bool,
        small: i8,
        #[schemars(range(min = 1, max = 10))]
        big: Option<u64>,
        ratio: Option<f64>,
        tags: Vec<String>,
        lists: Vec<Vec<u8>>,
        pair: Option<(u8, String)>,
        output: Output,
        mode: Option<Output>,
        named: BTreeMap<String, Option<i32>>,
        free: Option<Value>,
        inner: Option<Box<Edit>>,
    }

    fn good<A: DeserializeOwned>(value: Value) -> (A, Vec<String>) {
        decode(value).unwrap()
    }

    fn bad<A: DeserializeOwned + fmt::Debug>(value: Value) -> String {
        let error = decode::<A>(value).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgs);
        error.message
    }

    #[test]
    fn a_plain_call_needs_no_repair() {
        let (read, repairs) = good::<Read>(json!({"path": "a", "limit": 10, "offset": null}));
        assert_eq!(read, Read { path: "a".into(), offset: None, limit: Some(10) });
        assert!(repairs.is_empty());
    }

    #[test]
    fn strings_are_moved() {
        let content = "x".repeat(1000);
        let here = content.as_ptr();
        let mut args = Map::new();
        args.insert("path".into(), Value::String(content));
        assert_eq!(good::<Read>(Value::Object(args)).0.path.as_ptr(), here);
    }

    #[test]
    fn integers_and_booleans_come_as_text_too() {
        for (sent, repair) in [(json!(10), None), (json!(10.0), Some("float")), (json!("10"), Some("text"))] {
            let (read, repairs) = good::<Read>(json!({"path": "a", "limit": sent}));
            assert_eq!(read.limit, Some(10));
            assert_eq!(repairs, Vec::from_iter(repair.map(|from| format!("limit: {from} to integer"))));
        }
        let (any, repairs) = good::<Any>(json!({"flag": "true", "small": "-128"}));
        assert_eq!((any.flag, any.small), (true, -128));
        assert_eq!(repairs, ["flag: text to boolean", "small: text to integer"]);
        for sent in
            [json!("ten"), json!("+1"), json!(" 1"), json!("1.0"), json!(""), json!("-"), json!("١"), json!("0x1")]
        {
            assert!(
                bad::<Read>(json!({"path": "a", "limit": sent})).starts_with("`limit`: expected an integer, got text")
            );
        }
    }

    #[test]
    fn a_wrong_type_is_named_with_what_came() {
        let limit = |sent: Value| bad::<Read>(json!({"path": "a", "limit": sent}));
        assert_eq!(limit(json!("ten")), "`limit`: expected an integer, got text \"ten\"");
        assert_eq!(limit(json!(1.5)), "`limit`: expected an integer, got number 1.5");
        assert_eq!(limit(json!(true)), "`limit`: expected an integer, got true");
        assert_eq!(limit(json!(-1)), "`limit`: expected an integer from 0 to 4294967295, got number -1");
        assert_eq!(limit(json!([1])), "`limit`: expected an integer, got a list");
        assert_eq!(bad::<Read>(json!({"path": 5})), "`path`: expected text, got number 5");
        assert_eq!(bad::<Read>(json!({"path": null})), "`path`: expected a value, got null");
        assert_eq!(bad::<Any>(json!({"flag": 1})), "`flag`: expected true or false, got number 1");
        assert_eq!(
            bad::<Any>(json!({"output": "lines"})),
            "`output`: expected one of content, files, got text \"lines\""
        );
        assert_eq!(bad::<Any>(json!({"mode": 3})), "`mode`: expected one of content, files, got number 3");
        assert_eq!(bad::<Any>(json!({"pair": [1, "a", 2]})), "`pair`: expected a list of 2, got 3 items");
        assert_eq!(bad::<Any>(json!({"named": {"a\nb": "x"}})), "`named.a\\nb`: expected an integer, got text \"x\"");
        assert_eq!(bad::<Read>(json!([])), "the arguments: expected an object, got a list");
    }

    #[test]
    fn a_missing_or_unknown_name_is_named() {
        assert_eq!(
            bad::<Read>(json!({"path": "f", "line_limit": 1})),
            "unknown argument `line_limit`; accepted: path, offset, limit"
        );
        assert_eq!(bad::<Read>(json!({"Path": "f"})), "unknown argument `Path`; accepted: path, offset, limit");
        assert_eq!(bad::<Read>(json!({"nothing": null, "path": "f"}))[..26], *"unknown argument `nothing`");
        assert_eq!(bad::<Read>(json!({})), "missing argument `path`");
        assert_eq!(
            bad::<Edits>(json!({"path": "f", "edits": [{"old_text": "a"}]})),
            "missing argument `edits[0].new_text`"
        );
        assert_eq!(
            bad::<Edits>(json!({"path": "f", "edits": [{"old_text": "a", "replaceAll": true}]})),
            "unknown argument `edits[0].replaceAll`; accepted: old_text, new_text, replace_all"
        );
    }

    #[test]
    fn a_list_comes_in_four_shapes() {
        let edit = json!({"old_text": "a", "new_text": "{\"b\": 1}"});
        let text = |value: &Value| Value::String(value.to_string());
        let shapes = [
            (json!([edit]), &[][..]),
            (text(&json!([edit])), &["edits: text to list"]),
            (json!([text(&edit)]), &["edits[0]: text to object"]),
            (edit.clone(), &["edits: object to list"]),
        ];
        for (edits, repairs) in shapes {
            let (args, noted) = good::<Edits>(json!({"path": "f", "edits": edits}));
            let expected = Edit { old_text: "a".into(), new_text: "{\"b\": 1}".into(), replace_all: false };
            assert_eq!(args.edits, [expected]);
            assert_eq!(noted, repairs);
        }
        assert_eq!(
            bad::<Edits>(json!({"path": "f", "edits": "[{},]"})),
            "`edits`: expected a list, got text that is not valid JSON at byte 4: `[1]`: expected a value, got `]`"
        );
        assert_eq!(
            bad::<Edits>(json!({"path": "f", "edits": ["[]"]})),
            "`edits[0]`: expected an object, got text that holds a list"
        );
        assert_eq!(bad::<Any>(json!({"tags": {"a": 1}})), "`tags`: expected a list, got an object");
        assert_eq!(bad::<Any>(json!({"tags": "[1]"})), "`tags[0]`: expected text, got number 1");
        assert_eq!(bad::<Any>(json!({"tags": "ls -l"}))[..48], *"`tags`: expected a list, got text that is not va");
        assert_eq!(good::<Any>(json!({"tags": "[\"a\"]"})).0.tags, ["a"]);
        // A struct that is a plain field is sent as one.
        assert_eq!(bad::<Any>(json!({"inner": "{}"})), "`inner`: expected an object, got text \"{}\"");
    }

    #[test]
    fn text_fields_are_never_parsed() {
        for text in ["[1,2]", "{\"a\":1}", "10", "true", "null", "\"x\""] {
            assert_eq!(good::<Read>(json!({"path": text})).0.path, text);
        }
        for other in [json!(10), json!(true), json!([1]), json!({"a": 1})] {
            assert!(bad::<Read>(json!({"path": other})).starts_with("`path`: expected text, got "));
        }
    }

    #[test]
    fn the_whole_arguments_may_be_text() {
        let (read, repairs) = good::<Read>(json!("{\"path\": \"a\"}"));
        assert_eq!((read.path.as_str(), repairs), ("a", vec!["arguments: text to object".to_owned()]));
        assert_eq!(bad::<Read>(json!("[]")), "the arguments: expected an object, got text that holds a list");
        assert_eq!(
            bad::<Read>(json!("{\"path\": \"a\", \"path\": 1}")),
            "the arguments: expected an object, got text that is not valid JSON at byte 14: `path`: the name is given twice"
        );
    }

    #[test]
    fn null_means_absent() {
        let (any, repairs) = good::<Any>(json!({
            "flag": null, "small": null, "big": null, "tags": null, "output": null, "free": null, "inner": null,
            "named": {"a": null},
        }));
        let named = BTreeMap::from([("a".to_owned(), None)]);
        assert_eq!((any, repairs), (Any { named, ..Any::default() }, Vec::new()));
    }

    #[test]
    fn messages_are_short_and_on_one_line() {
        let long = "─\n\u{202e}".repeat(1000);
        for message in [
            bad::<Read>(json!({"path": "a", "limit": long})),
            bad::<Read>(json!({"path": "a", (long.as_str()): 1})),
            bad::<Any>(json!({"named": {(long.as_str()): "x"}})),
            parse_json(&json!({(long.as_str()): "x"}).to_string().replace('x', "\\x")).unwrap_err().message,
        ] {
            assert!(message.chars().count() < 500, "{message}");
            assert!(!message.chars().any(|c| c.is_control() || c == '\u{202e}'), "{message}");
        }
        let many = "{\"old_text\": \"\", \"new_text\": \"\"}";
        let (_, repairs) = good::<Edits>(json!({"path": "a", "edits": vec![many; 1000]}));
        assert_eq!(repairs.len(), MAX_REPAIRS);
    }

    #[test]
    fn json_is_refused_with_field_and_place() {
        let refused = |text: &str| {
            let error = parse_json(text).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgs);
            error.message
        };
        for (text, message) in [
            (r#"{"a": {"b": 1, "b": 2}}"#, "15: `a.b`: the name is given twice"),
            (r#"{"a": 1, "\u0061": 2}"#, "9: `a`: the name is given twice"),
            (r#"{"path": "e", "content": "x\ud83c"}"#, "27: `content`: half a surrogate pair"),
            (r#"["\ud83c\ud83c"]"#, "2: `[0]`: half a surrogate pair"),
            (r#"["\udf78\ud83c"]"#, "2: `[0]`: half a surrogate pair"),
            (r#"{"\udf78": 1}"#, "2: half a surrogate pair"),
            (r#"{"n": NaN}"#, "6: `n`: expected a value, got `NaN`"),
            (r#"{"n": -Infinity}"#, "7: `n`: expected a digit, got `Infinity`"),
            (r#"{"n": [1, Infinity]}"#, "10: `n[1]`: expected a value, got `Infinity`"),
            (r#"{"n": 18446744073709551616}"#, "6: `n`: an integer that 64 bits do not hold"),
            (r#"{"n": -9223372036854775809}"#, "6: `n`: an integer that 64 bits do not hold"),
            (r#"{"n": 1e999}"#, "6: `n`: a number out of range"),
            (r#"{"n": 01}"#, "7: expected `,` or `}`, got `1`"),
            (r#"{"n": 1.}"#, "8: `n`: expected a digit, got `}`"),
            (r#"{"n": 1} x"#, "9: expected nothing more, got `x`"),
            (r#"{"n": 1,}"#, "8: expected a name in double quotes, got `}`"),
            (r#"{"n" 1}"#, "5: `n`: expected `:`, got `1`"),
            (r#"{"n": 'a'}"#, "6: `n`: expected a value, got `\'`"),
            (r#"{"n": "a"#, "7: `n`: the closing quote is missing"),
            (r#"{"n": "\x"}"#, "7: `n`: no such escape"),
            (r#"{"n": "\u12g4"}"#, "7: `n`: `\\u` needs four hex digits".replace("\\\\", "\\").as_str()),
            ("{\"n\": \"a\tb\"}", "8: `n`: a control character must be escaped"),
            ("", "0: expected a value, got the end of the text"),
        ] {
            assert_eq!(refused(text), format!("not valid JSON at byte {message}"), "{text}");
        }
        assert_eq!(parse_json(r#"["\ud83c\udf78"]"#).unwrap(), json!(["🍸"]));
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse_json(&nested(64)).is_ok());
        for depth in [65, 10_000, 1_000_000] {
            assert!(parse_json(&nested(depth)).unwrap_err().message.ends_with("…`: nested deeper than 64 levels"));
        }
        let mut deep = Value::Null;
        for _ in 0..1000 {
            deep = Value::Array(vec![deep]);
        }
        assert!(bad::<Any>(json!({"free": deep})).ends_with("nested deeper than 64 levels"));
    }

    #[test]
    fn schemas_are_plain() {
        assert_eq!(
            schema_of::<Edits>(),
            json!({
                "type": "object",
                "properties": {
                    "path": {"description": "The file, in the workspace.", "type": "string"},
                    "edits": {
                        "description": "What to change.",
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "old_text": {"type": "string"},
                                "new_text": {"type": "string"},
                                "replace_all": {"type": "boolean", "default": false},
                            },
                            "required": ["old_text", "new_text"],
                            "additionalProperties": false,
                        },
                    },
                },
                "required": ["path", "edits"],
                "additionalProperties": false,
            })
        );
        let any = schema_of::<Any>();
        let properties = &any["properties"];
        assert_eq!(any.get("required"), None);
        assert_eq!(properties["text"], json!({"type": "string"}));
        assert_eq!(properties["big"], json!({"type": "integer", "minimum": 1, "maximum": 10}));
        assert_eq!(properties["output"], json!({"type": "string", "enum": ["content", "files"], "default": "content"}));
        assert_eq!(properties["mode"], json!({"type": "string", "enum": ["content", "files"]}));
        let text = any.to_string();
        for word in ["null", "$ref", "$defs", "$schema", "title", "format"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            prop::sample::select(vec![
                "10",
                "-1",
                "true",
                "content",
                "[]",
                "{}",
                "[{}]",
                "[\"a\"]",
                "{\"path\":\"a\"}"
            ])
            .prop_map(Value::from),
        ];
        let names = prop::sample::select(vec![
            "text", "flag", "small", "big", "ratio", "tags", "lists", "pair", "output", "mode", "named", "free",
            "inner", "path", "edits", "old_text", "new_text", "other", "",
        ]);
        leaf.prop_recursive(6, 60, 8, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((names.clone(), inner.clone()), 0..8)
                    .prop_map(|members| members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
                inner.prop_map(|value| Value::String(value.to_string())),
            ]
        })
    }

    /// `parse_json` accepts what `serde_json` does, reads it alike, and refuses more only for the reasons it promises.
    fn agrees(text: &str) -> Result<(), TestCaseError> {
        let theirs = serde_json::from_str::<Value>(text);
        match parse_json(text) {
            // The last bit of a float is not `serde_json`'s to say.
            Ok(_) if text.contains(['.', 'e', 'E']) => prop_assert!(theirs.is_ok(), "{}", text),
            Ok(ours) => prop_assert_eq!(theirs.ok(), Some(ours)),
            Err(error) => {
                let ours_only = ["given twice", "64 bits"].iter().any(|why| error.message.contains(why));
                prop_assert!(ours_only || theirs.is_err(), "{} {:?}", text, error);
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn decode_never_panics(value in values()) {
            let _ = decode::<Any>(value.clone());
            let _ = decode::<Edits>(value.clone());
            let _ = decode::<Read>(value);
        }

        /// What serde_json's own strict reading accepts means the same here.
        #[test]
        fn decode_agrees_with_serde_json(value in values()) {
            if let Ok(expected) = serde_json::from_value::<Any>(value.clone())
                && value.is_object()
            {
                prop_assert_eq!(good::<Any>(value).0, expected);
            }
        }

        #[test]
        fn any_value_survives_its_text(value in values()) {
            prop_assert_eq!(&parse_json(&value.to_string()).unwrap(), &value);
            prop_assert_eq!(&parse_json(&serde_json::to_string_pretty(&value).unwrap()).unwrap(), &value);
            prop_assert_eq!(good::<Option<Value>>(value.clone()).0.unwrap_or_default(), value);
        }

        #[test]
        fn parsing_agrees_with_serde_json(text in r#"[\[\]{}:,"\\ntrue \-0-9.eEu\u{1}é🍸]{0,24}"#) {
            agrees(&text)?;
        }

        #[test]
        fn parsing_agrees_on_damaged_documents(value in values(), at in any::<prop::sample::Index>(), piece in "[\\[\\]{}:,\"\\\\a0.-]{0,2}") {
            let mut text = value.to_string();
            let mut at = at.index(text.len() + 1);
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            text.insert_str(at, &piece);
            agrees(&text)?;
        }
    }
}
