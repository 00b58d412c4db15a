//! What a call answers: [`ToolResult`], the same for every tool and every caller.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::error::ToolError;
use crate::output::bound::cut_word;

/// The longest summary, in characters.
pub const MAX_SUMMARY_CHARS: usize = 200;

/// A part of what the model reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Text.
    Text(Arc<String>),
    /// A file, such as an image.
    File {
        /// Its MIME type.
        media_type: String,
        /// Its bytes.
        data: Arc<[u8]>,
    },
}

impl Content {
    /// A text part.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(Arc::new(text.into()))
    }
}

/// A result's `data`: any value that serialises to a JSON object. It stays typed until somebody reads it.
#[derive(Clone)]
pub struct Data(Arc<dyn erased_serde::Serialize + Send + Sync>);

impl Data {
    /// Wraps a value that serialises to a JSON object.
    pub fn new(value: impl Serialize + Send + Sync + 'static) -> Self {
        Self(Arc::new(value))
    }

    /// The value as JSON.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or(Value::Null)
    }
}

impl Serialize for Data {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        erased_serde::serialize(&*self.0, serializer)
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_value().fmt(f)
    }
}

/// The answer to one call.
#[derive(Clone, Debug)]
pub struct ToolResult {
    /// Whether the tool did what it was asked.
    pub ok: bool,
    /// One line, at most [`MAX_SUMMARY_CHARS`] characters, fit for a log.
    pub summary: String,
    /// Facts for programs, a JSON object.
    pub data: Option<Data>,
    /// Sandbox paths of stored large outputs.
    pub artifacts: Vec<String>,
    /// Why it failed; `None` exactly when `ok`.
    pub error: Option<ToolError>,
    /// What the model reads.
    pub content: Vec<Content>,
}

impl ToolResult {
    /// The result of a failed call: the model reads the message and the hint.
    pub fn failure(error: ToolError) -> Self {
        let mut text = format!("{}: {}", error.code.as_str(), error.message);
        if let Some(hint) = &error.hint {
            text.push('\n');
            text.push_str(hint);
        }
        Self {
            ok: false,
            summary: one_line(&format!("{}: {}", error.code.as_str(), error.message)),
            data: None,
            artifacts: Vec::new(),
            content: vec![Content::text(text)],
            error: Some(error),
        }
    }
}

/// `text` as one line of at most [`MAX_SUMMARY_CHARS`] characters; control and line-breaking characters become spaces.
pub fn one_line(text: &str) -> String {
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    let text = text.trim_end();
    if text.len() <= MAX_SUMMARY_CHARS && text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.to_owned();
    }
    let mut starts = text.char_indices().map(|(start, _)| start).skip(MAX_SUMMARY_CHARS - 1);
    let last = starts.next();
    let kept = last.filter(|_| starts.next().is_some()).map_or(text, |last| cut_word(text, last));
    let mut out: String = kept.chars().map(|c| if breaks(c) { ' ' } else { c }).collect();
    if kept.len() < text.len() {
        out.push('…');
    }
    out
}
