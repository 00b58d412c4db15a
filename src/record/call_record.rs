//! The one line that each call leaves in `logs/tools.jsonl`.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Serialize;

use super::event::json;
use super::jsonl::MAX_LINE_BYTES;
use super::redact::{Redactor, json_string};
use crate::context::CallInfo;
use crate::error::{Status, ToolError};
use crate::output::bound::cut;
use crate::permission::Decision;

/// The longest message that a record carries, in bytes.
const MAX_MESSAGE_BYTES: usize = 2048;
/// The longest resource, rule or repair that it carries, in bytes.
const MAX_TEXT_BYTES: usize = 1024;
/// Repairs, and artifacts, that it names.
const MAX_ITEMS: usize = 64;
/// What a body may take of a line.
const MAX_BODY_BYTES: usize = MAX_LINE_BYTES - 256;

/// What was decided about a call, as its record shows it.
#[derive(Clone, Debug)]
pub(crate) struct PermissionNote {
    pub(crate) action: String,
    pub(crate) resource: String,
    pub(crate) effect: &'static str,
    pub(crate) layer: &'static str,
    pub(crate) rule: Option<String>,
}

impl PermissionNote {
    pub(crate) fn new(action: &str, resource: String, decision: &Decision<'_>) -> Self {
        Self {
            action: action.to_owned(),
            resource,
            effect: decision.effect.as_str(),
            layer: decision.layer.as_str(),
            rule: decision.rule_text(),
        }
    }

    /// The same as logs show it.
    pub(crate) fn shown<'a>(&'a self, redactor: &Redactor) -> ShownPermission<'a> {
        ShownPermission {
            action: &self.action,
            resource: shorten(redactor.text(&self.resource)),
            effect: self.effect,
            layer: self.layer,
            rule: self.rule.as_deref().map(|rule| shorten(redactor.text(rule))),
        }
    }
}

fn shorten(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.len() <= MAX_TEXT_BYTES { text } else { Cow::Owned(cut(&text, MAX_TEXT_BYTES).to_owned()) }
}

/// A decision, free of secrets.
#[derive(Debug, Serialize)]
pub(crate) struct ShownPermission<'a> {
    action: &'a str,
    resource: Cow<'a, str>,
    effect: &'static str,
    layer: &'static str,
    rule: Option<Cow<'a, str>>,
}

/// The facts of one call. The tool's name, the summary and the error are free of secrets already.
#[derive(Debug)]
pub(crate) struct CallRecord<'a> {
    pub(crate) id: &'a str,
    pub(crate) run_id: &'a str,
    pub(crate) info: &'a CallInfo,
    pub(crate) tool: &'a str,
    pub(crate) scope: &'static str,
    /// Who stands behind the tool, where it is not the host.
    pub(crate) provider: Option<&'a str>,
    pub(crate) status: Status,
    pub(crate) started_at: &'a str,
    pub(crate) duration_us: u64,
    pub(crate) summary: &'a str,
    /// Redacted JSON.
    pub(crate) args: &'a str,
    pub(crate) repairs: &'a [String],
    pub(crate) permission: Option<&'a PermissionNote>,
    pub(crate) artifacts: &'a [String],
    pub(crate) error: Option<&'a ToolError>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) truncated: bool,
    /// What a skill asked for in the call.
    pub(crate) requested: &'a [String],
}

impl CallRecord<'_> {
    /// The body of the line, from `id` on.
    pub(crate) fn body(&self, redactor: &Redactor) -> String {
        let whole = self.write(redactor);
        if whole.len() <= MAX_BODY_BYTES {
            return whole;
        }
        // Made of nothing but characters that take six bytes each: who called what, and how it ended, is kept.
        CallRecord { args: "\"…\"", repairs: &[], artifacts: &[], ..*self }.write(redactor)
    }

    fn write(&self, redactor: &Redactor) -> String {
        let mut out = String::with_capacity(640 + self.args.len());
        let text = |out: &mut String, key: &str, value: &str| {
            out.push_str(key);
            json_string(out, &redactor.text(value));
        };
        let plain = |out: &mut String, key: &str, value: &str| {
            out.push_str(key);
            json_string(out, value);
        };
        let number = |out: &mut String, key: &str, value: u64| {
            out.push_str(key);
            out.push_str(itoa::Buffer::new().format(value));
        };
        let list = |out: &mut String, key: &str, values: &[String]| {
            out.push_str(key);
            for (index, value) in values.iter().take(MAX_ITEMS).enumerate() {
                out.push(if index == 0 { '[' } else { ',' });
                json_string(out, cut(&redactor.text(value), MAX_TEXT_BYTES));
            }
            if let Some(more) = values.len().checked_sub(MAX_ITEMS).filter(|more| *more > 0) {
                let _ = write!(out, ",\"… {more} more\"");
            }
            out.push_str(if values.is_empty() { "[]" } else { "]" });
        };
        plain(&mut out, "\"id\":", self.id);
        plain(&mut out, ",\"run_id\":", self.run_id);
        out.push_str(",\"call_id\":");
        match &self.info.call_id {
            Some(id) => json_string(&mut out, &redactor.text(id)),
            None => out.push_str("null"),
        }
        if let Some(id) = &self.info.conversation_id {
            text(&mut out, ",\"conversation_id\":", id);
        }
        if let Some(step) = self.info.step {
            number(&mut out, ",\"step\":", step);
        }
        if let Some(agent) = &self.info.agent {
            text(&mut out, ",\"agent\":", agent);
        }
        plain(&mut out, ",\"tool\":", self.tool);
        plain(&mut out, ",\"scope\":", self.scope);
        if let Some(provider) = self.provider {
            text(&mut out, ",\"provider\":", provider);
        }
        plain(&mut out, ",\"status\":", self.status.as_str());
        plain(&mut out, ",\"started_at\":", self.started_at);
        number(&mut out, ",\"duration_us\":", self.duration_us);
        plain(&mut out, ",\"summary\":", self.summary);
        out.push_str(",\"args\":");
        out.push_str(self.args);
        list(&mut out, ",\"repairs\":", self.repairs);
        out.push_str(",\"permission\":");
        match self.permission {
            Some(note) => out.push_str(&json(&note.shown(redactor))),
            None => out.push_str("null"),
        }
        list(&mut out, ",\"artifacts\":", self.artifacts);
        out.push_str(",\"error\":");
        match self.error {
            Some(error) => {
                plain(&mut out, "{\"code\":", error.code.as_str());
                plain(&mut out, ",\"message\":", cut(&error.message, MAX_MESSAGE_BYTES));
                out.push('}');
            }
            None => out.push_str("null"),
        }
        number(&mut out, ",\"bytes_in\":", self.bytes_in);
        number(&mut out, ",\"bytes_out\":", self.bytes_out);
        out.push_str(if self.truncated { ",\"truncated\":true" } else { ",\"truncated\":false" });
        if !self.requested.is_empty() {
            list(&mut out, ",\"requested\":", self.requested);
        }
        if let (Some(trace), Some(span)) = (&self.info.trace_id, &self.info.span_id) {
            text(&mut out, ",\"trace_id\":", trace);
            text(&mut out, ",\"span_id\":", span);
        }
        out.push('}');
        out
    }
}

/// The time now: RFC 3339, microseconds, UTC.
pub(crate) fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}
