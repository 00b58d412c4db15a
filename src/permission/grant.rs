//! [`ApprovalRequest`], what the host is asked when a policy says `ask`, and [`Grant`], its answer.
//!
//! A grant lifts what was asked and nothing else: it is bound to the run, the tool, the arguments, the resources and what
//! each target held. Where any of them differs by the time of the call, the host is asked again.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::output::bound::cut;

/// The longest preview, in bytes.
const MAX_PREVIEW_BYTES: usize = 4096;

/// One thing that a call may not do unless the host approves.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// The action.
    pub action: String,
    /// The resource, as it is printed.
    pub resource: String,
}

/// What a name that the call would use leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetState {
    /// Its link-free name.
    pub path: String,
    /// `absent`, the hash of the file, or what else is there.
    pub state: String,
}

/// What the host is asked. It travels with the refused call's result, so that the answer may come in another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRequest {
    /// The run.
    pub run_id: String,
    /// The tool's name.
    pub tool: String,
    /// SHA-256 of what the tool is: another one under the same name is not meant.
    pub tool_digest: String,
    /// SHA-256 of the arguments, their names in order.
    pub arguments_digest: String,
    /// What is asked for.
    pub asks: Vec<Ask>,
    /// What the call would use, as it is now.
    pub targets: Vec<TargetState>,
    /// What the call would do, for the person who decides; without control and direction characters.
    pub preview: String,
    /// Bytes that the preview does not show.
    pub preview_omitted_bytes: usize,
}

impl ApprovalRequest {
    /// Puts in a text of any length and content as the preview.
    pub(crate) fn show(&mut self, text: &str) {
        let kept = cut(text, MAX_PREVIEW_BYTES);
        self.preview = visible(kept);
        self.preview_omitted_bytes = text.len() - kept.len();
    }
}

/// The host's approval of one request. Made by [`crate::context::RunContext::grant`] alone; it cannot be stored.
#[derive(Debug)]
pub struct Grant {
    pub(crate) id: String,
    pub(crate) request: ApprovalRequest,
    /// Whether it is for one call.
    pub(crate) once: bool,
    expires: Instant,
}

impl Grant {
    pub(crate) fn new(id: String, request: ApprovalRequest, once: bool, lifetime: Duration) -> Option<Self> {
        Some(Self { id, request, once, expires: Instant::now().checked_add(lifetime)? })
    }

    /// Its id, as the event of its making has it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether it answers `request`: nothing that it is bound to differs, and nothing more is asked for.
    pub(crate) fn answers(&self, request: &ApprovalRequest) -> bool {
        let mine = &self.request;
        Instant::now() < self.expires
            && mine.run_id == request.run_id
            && mine.tool == request.tool
            && mine.tool_digest == request.tool_digest
            && mine.arguments_digest == request.arguments_digest
            && mine.targets == request.targets
            && request.asks.iter().all(|ask| mine.asks.contains(ask))
    }

    pub(crate) fn lifts(&self, action: &str, resource: &str) -> bool {
        self.request.asks.iter().any(|ask| ask.action == action && ask.resource == resource)
    }

    /// What the target of that link-free name must still hold.
    pub(crate) fn state_of(&self, path: &str) -> Option<&str> {
        self.request.targets.iter().find(|target| target.path == path).map(|target| target.state.as_str())
    }
}

/// SHA-256 of a JSON value with the members of its objects in order.
pub(crate) fn digest(mut value: Value) -> String {
    value.sort_all_objects();
    Sha256::digest(value.to_string()).iter().fold(String::with_capacity(64), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// The text with every character that a reader does not see, or that changes what they see around it, escaped.
fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' || c == '\t' || !crate::sandbox::is_deceptive(c) {
            out.push(c);
        } else {
            out.extend(c.escape_unicode());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request() -> ApprovalRequest {
        ApprovalRequest {
            run_id: "r".into(),
            tool: "write_file".into(),
            tool_digest: "d".into(),
            arguments_digest: digest(json!({"path": "a", "content": "b"})),
            asks: vec![Ask { action: "edit".into(), resource: "a".into() }],
            targets: vec![TargetState { path: "a".into(), state: "absent".into() }],
            preview: String::new(),
            preview_omitted_bytes: 0,
        }
    }

    fn grant(lifetime: Duration) -> Grant {
        Grant::new("g".into(), request(), true, lifetime).unwrap()
    }

    #[test]
    fn any_difference_asks_again() {
        let minute = Duration::from_secs(60);
        let ask = || Ask { action: "edit".into(), resource: "b".into() };
        assert!(grant(minute).answers(&request()));
        assert!(grant(minute).answers(&ApprovalRequest { asks: Vec::new(), preview: "other".into(), ..request() }));
        assert!(!grant(Duration::ZERO).answers(&request()));
        for other in [
            ApprovalRequest { run_id: "x".into(), ..request() },
            ApprovalRequest { tool: "x".into(), ..request() },
            ApprovalRequest { tool_digest: "x".into(), ..request() },
            ApprovalRequest { arguments_digest: digest(json!({"path": "a", "content": "c"})), ..request() },
            ApprovalRequest { targets: Vec::new(), ..request() },
            ApprovalRequest { asks: vec![ask()], ..request() },
        ] {
            assert!(!grant(minute).answers(&other), "{other:?}");
        }
        assert!(grant(minute).lifts("edit", "a") && !grant(minute).lifts("edit", "b"));
    }

    #[test]
    fn the_order_of_arguments_does_not_matter_and_their_type_does() {
        assert_eq!(digest(json!({"a": 1, "b": {"c": 2, "d": 3}})), digest(json!({"b": {"d": 3, "c": 2}, "a": 1})));
        assert_ne!(digest(json!({"a": 1})), digest(json!({"a": "1"})));
        assert_ne!(digest(json!({"a": [1, 2]})), digest(json!({"a": [2, 1]})));
    }

    #[test]
    fn a_preview_hides_nothing_and_says_what_it_leaves_out() {
        let mut shown = request();
        shown.show(&format!("a\u{202e}b\u{1b}[2J\n{}", "x".repeat(5000)));
        assert!(shown.preview.starts_with("a\\u{202e}b\\u{1b}[2J\nxxx"), "{}", shown.preview);
        assert_eq!(shown.preview_omitted_bytes, 5000 + 10 - MAX_PREVIEW_BYTES);
    }
}
