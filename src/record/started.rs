//! What `tool.started` says of a file that is about to change, and what an interrupted call did to it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::redact::MIN_HASHED_BYTES;
use crate::error::Code;
use crate::permission::is_secret;
use crate::sandbox::dir::Version;
use crate::sandbox::{HostGate, Sandbox, SandboxPath, content_hash, hash_text};

/// One file of a call: what it was and what it becomes; `null` where there is none.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Planned {
    pub(crate) path: String,
    pub(crate) before: Option<FileState>,
    pub(crate) after: Option<FileState>,
}

/// One content of a file. A content that its hash would give away, being short or secret, has none here; then the file
/// itself says which one it is.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FileState {
    bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
}

impl FileState {
    /// The state of a file with this content; `version` of one that is there, `hash` where the content is known.
    pub(crate) fn new(path: &SandboxPath, bytes: u64, hash: Option<&blake3::Hash>, version: Option<Version>) -> Self {
        let hash = hash.filter(|_| bytes >= MIN_HASHED_BYTES as u64 && !is_secret(path.rel())).map(hash_text);
        let version = version.filter(|_| hash.is_none()).map(|version| version.to_string());
        Self { bytes, hash, version }
    }
}

/// What became of a file of an interrupted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It is as it was to become.
    Done,
    /// It is as it was.
    NotDone,
    /// It is neither: someone else has changed it since.
    Changed,
}

/// What became of a target that `tool.started` named, as this run finds it now; `None` where that does not say what it
/// was and becomes, as it does not of tools that are not ours, or where it cannot be looked at.
pub(crate) fn outcome(sandbox: &Sandbox, limit: u64, target: &Value) -> Option<Outcome> {
    target.get("after")?;
    let planned = Planned::deserialize(target).ok()?;
    match sandbox.open_file(&sandbox.parse(&planned.path).ok()?, &HostGate) {
        Ok(file) => Some(planned.outcome(Some((&file.read_all(limit).ok()?, file.version)))),
        Err(error) if error.code == Code::NotFound => Some(planned.outcome(None)),
        Err(_) => None,
    }
}

impl Outcome {
    /// What became of the file, in words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Done => "has been changed",
            Self::NotDone => "has not been changed",
            Self::Changed => "has been changed by someone else since",
        }
    }
}

impl Planned {
    /// What became of the file, which now has this content in this state, or is not there.
    fn outcome(&self, now: Option<(&[u8], Version)>) -> Outcome {
        let is = |state: Option<&FileState>, was: bool| match (state, now) {
            (None, None) => true,
            (Some(state), Some((content, version))) => {
                state.bytes == content.len() as u64
                    && match (&state.hash, &state.version) {
                        (Some(wanted), _) => *wanted == content_hash(content),
                        (None, Some(wanted)) => *wanted == version.to_string(),
                        (None, None) => !was,
                    }
            }
            _ => false,
        };
        if is(self.before.as_ref(), true) {
            Outcome::NotDone
        } else if is(self.after.as_ref(), false) {
            Outcome::Done
        } else {
            Outcome::Changed
        }
    }
}
