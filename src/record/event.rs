//! Event and error lines.

use serde::Serialize;

use super::redact::json_string;
use crate::error::{Status, ToolError};
use crate::output::bound::cut;

/// The longest message, and the longest cause, of an error line, in bytes: as JSON they may be six times as long.
const MAX_TEXT_BYTES: usize = 4096;

/// What an event line is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventType {
    RunCreated,
    RunClosed,
    ToolStarted,
    ToolCompleted,
    ToolFailed,
    ToolBlocked,
    ToolCancelled,
    ArtifactCreated,
    PermissionRequested,
    PermissionGranted,
    LogTorn,
    LogTampered,
    SkillLoaded,
    MemoryCandidateWritten,
    MemoryWritten,
}

impl EventType {
    /// That of a call that ended so.
    pub(crate) fn ended(status: Status) -> Self {
        match status {
            Status::Completed => Self::ToolCompleted,
            Status::Blocked => Self::ToolBlocked,
            Status::Cancelled => Self::ToolCancelled,
            Status::Failed | Status::Timeout | Status::Interrupted => Self::ToolFailed,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::RunCreated => "run.created",
            Self::RunClosed => "run.closed",
            Self::ToolStarted => "tool.started",
            Self::ToolCompleted => "tool.completed",
            Self::ToolFailed => "tool.failed",
            Self::ToolBlocked => "tool.blocked",
            Self::ToolCancelled => "tool.cancelled",
            Self::ArtifactCreated => "artifact.created",
            Self::PermissionRequested => "permission.requested",
            Self::PermissionGranted => "permission.granted",
            Self::LogTorn => "log.torn",
            Self::LogTampered => "log.tampered",
            Self::SkillLoaded => "skill.loaded",
            Self::MemoryCandidateWritten => "memory.candidate_written",
            Self::MemoryWritten => "memory.written",
        }
    }
}

/// Whom a line belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    pub(crate) run_id: &'a str,
    /// Our id of the call; `None` for the run's own events.
    pub(crate) id: Option<&'a str>,
    pub(crate) call_id: Option<&'a str>,
}

impl Owner<'_> {
    fn write(&self, time: &str, out: &mut String) {
        out.push_str("\"time\":\"");
        out.push_str(time);
        out.push_str("\",\"run_id\":");
        json_string(out, self.run_id);
        out.push_str(",\"id\":");
        optional(out, self.id);
        out.push_str(",\"call_id\":");
        optional(out, self.call_id);
    }
}

fn optional(out: &mut String, text: Option<&str>) {
    match text {
        Some(text) => json_string(out, text),
        None => out.push_str("null"),
    }
}

/// The body of an event line, from `time` on; `data` must be free of secrets already.
pub(crate) fn event(owner: &Owner<'_>, time: &str, kind: EventType, data: &impl Serialize) -> String {
    let mut out = String::with_capacity(384);
    owner.write(time, &mut out);
    out.push_str(",\"type\":\"");
    out.push_str(kind.as_str());
    out.push_str("\",\"data\":");
    out.push_str(&json(data));
    out.push('}');
    out
}

/// The body of an error line.
pub(crate) fn error(owner: &Owner<'_>, time: &str, tool: &str, error: &ToolError) -> String {
    let mut out = String::with_capacity(384);
    owner.write(time, &mut out);
    out.push_str(",\"tool\":");
    json_string(&mut out, tool);
    out.push_str(",\"code\":\"");
    out.push_str(error.code.as_str());
    out.push_str("\",\"message\":");
    json_string(&mut out, cut(&error.message, MAX_TEXT_BYTES));
    out.push_str(",\"cause\":");
    optional(&mut out, error.cause.as_deref().map(|cause| cut(cause, MAX_TEXT_BYTES)));
    out.push('}');
    out
}

/// One-line JSON, with the line separators that JSON allows escaped.
pub(crate) fn json(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    if text.is_ascii() {
        return text;
    }
    text.replace('\u{85}', "\\u0085").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}
