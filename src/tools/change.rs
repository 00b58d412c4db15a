//! What the tools that change files share: a change is computed whole, announced with what each file was and becomes, and
//! then committed, all of it or nothing.

use std::sync::Arc;

use serde::Serialize;

use crate::context::CallContext;
use crate::context::seen::{Sight, Standing, standing};
use crate::edit::diff::{Diff, diff};
use crate::edit::encoding::{Text, Undecodable};
use crate::error::{Code, ToolError};
use crate::record::started::{FileState, Planned};
use crate::sandbox::target::{Target, Targets};
use crate::sandbox::write::Step;
use crate::sandbox::{Access, SandboxPath, content_hash, too_large};
use crate::settle;

/// What an edit asks of a file that it changes, and of one that it removes.
pub(super) const EDIT: &[Access] = &[Access::Read, Access::Write];
pub(super) const REMOVE: &[Access] = &[Access::Read, Access::Delete];

/// What a file held when its change was decided on.
#[derive(Clone, Debug)]
pub(super) enum Before {
    Absent,
    /// It is replaced whatever it holds: that was not, or must not be, known.
    Blind,
    Content(Arc<Vec<u8>>),
}

/// What becomes of one target.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) target: usize,
    pub(super) before: Before,
    /// `None` removes it.
    pub(super) after: Option<Arc<Vec<u8>>>,
    /// The target whose owner, mode and attributes a new file takes over.
    pub(super) like: Option<usize>,
}

/// What a result says of one file.
#[derive(Debug, Default, Serialize)]
pub(super) struct FileData {
    pub(super) path: String,
    /// A added, M changed, D removed, R moved.
    pub(super) status: &'static str,
    /// Where it was before it was moved.
    pub(super) from: Option<String>,
    pub(super) additions: usize,
    pub(super) deletions: usize,
    pub(super) diff: Option<String>,
}

/// How a content changed, as a result says it of the file named `path`.
pub(super) fn compare(path: &str, before: &[u8], after: &[u8]) -> FileData {
    // UTF-16 is compared as text, and so is a mark before it.
    let body = |content| Text::decode(content).map(|text| text.body);
    let found = match (body(before), body(after)) {
        (Ok(before), Ok(after)) => diff(path, &before, &after),
        _ => Diff { text: None, ..diff(path, before, after) },
    };
    let Diff { additions, deletions, text } = found;
    FileData { path: path.to_owned(), additions, deletions, diff: text, ..FileData::default() }
}

/// Whether the config asks that files are read before they are changed.
pub(super) fn must_be_read(call: &CallContext) -> bool {
    call.call().run.options().config.sandbox.require_read_before_write
}

/// What the file that is there holds. What is kept of it the model must have seen as it is, and where the config says so,
/// also what is `replaced` whole; `expected_hash` proves that too.
pub(super) fn read(
    target: &Target<'_>,
    replaced: bool,
    expected_hash: Option<&str>,
    call: &CallContext,
) -> Result<Before, ToolError> {
    let limit = call.limits().max_file_bytes;
    let path = &target.path;
    let Some(file) = target.open_current()? else {
        return match expected_hash {
            Some(_) => Err(stale(path, "does not exist, but `expected_hash` names a content")),
            None => Ok(Before::Absent),
        };
    };
    if file.size > limit {
        return Err(too_large(path, file.size, limit));
    }
    let content = file.read_all(limit)?;
    call.notes().bytes_in += content.len() as u64;
    if let Some(expected) = expected_hash {
        let now = content_hash(&content);
        if now != expected {
            return Err(stale(path, &format!("has the hash {now} now, not `expected_hash`")));
        }
        return Ok(Before::Content(Arc::new(content)));
    }
    if replaced && !must_be_read(call) {
        return Ok(Before::Content(Arc::new(content)));
    }
    match standing(call.sight(path), file.version, || blake3::hash(&content)) {
        Standing::Changed => Err(stale(path, "has changed since it was last read here")),
        Standing::NotSeen if must_be_read(call) => {
            Err(stale(path, "has not been read in this run, and files must be read before they are changed"))
        }
        Standing::NotSeen | Standing::AsSeen => Ok(Before::Content(Arc::new(content))),
    }
}

/// What a file holds, for a preview, if the policy lets it be read.
pub(super) fn peek(path: &SandboxPath, call: &CallContext) -> Option<(SandboxPath, Option<Vec<u8>>)> {
    let path = call.sandbox().follow(path, Access::Read).ok().filter(|path| call.may_read(path))?;
    let content = match call.sandbox().open_file(&path, call) {
        Ok(file) => Some(file.read_all(call.limits().max_file_bytes).ok()?),
        Err(error) if error.code == Code::NotFound => None,
        Err(_) => return None,
    };
    Some((path, content))
}

/// A file that is not what the call takes it for.
fn stale(path: &SandboxPath, what: &str) -> ToolError {
    let shown = serde_json::Value::String(path.to_string());
    ToolError::new(Code::Stale, format!("`{path}` {what}"))
        .hint(format!("Call read_file(path={shown}), then send what is right for what it holds now."))
}

/// The file's text, to be edited.
pub(super) fn text<'a>(path: &SandboxPath, content: &'a [u8]) -> Result<Text<'a>, ToolError> {
    Text::decode(content).map_err(|why| match why {
        Undecodable::Binary => ToolError::new(Code::Binary, format!("`{path}` is a binary file"))
            .hint("Only text is edited; write_file replaces a file whole."),
        Undecodable::BrokenUtf16 => ToolError::new(
            Code::Encoding,
            format!("`{path}` begins like UTF-16 text, but is not: it cannot be kept as it is"),
        )
        .hint("Replace it whole with write_file, or leave it."),
    })
}

/// Refuses text that a file's encoding cannot take.
pub(super) fn require_encodable(path: &SandboxPath, text: &Text<'_>, new: &str, quoted: &str) -> Result<(), ToolError> {
    match text.refuses(new, quoted) {
        None => Ok(()),
        Some(c) => Err(ToolError::new(
            Code::Encoding,
            format!("`{path}` is not UTF-8, so `{c}` cannot be written in its encoding, which is not known"),
        )
        .hint("Write ASCII only into this file, or leave it.")),
    }
}

/// Refuses a content that is too large; `has` names it.
pub(super) fn require_small(has: &str, content: &[u8], call: &CallContext) -> Result<(), ToolError> {
    let limit = call.limits().max_file_bytes;
    if content.len() as u64 <= limit {
        return Ok(());
    }
    Err(ToolError::new(Code::TooLarge, format!("{has} {} bytes, over the limit of {limit}", content.len()))
        .hint("Write a smaller file."))
}

/// Puts the change on record as begun, makes it, and notes what the model knows now.
pub(super) fn commit(targets: Targets<'_>, changes: &[Change], call: &CallContext) -> Result<(), ToolError> {
    let mut planned = Vec::with_capacity(changes.len());
    let mut after = Vec::with_capacity(changes.len());
    for change in changes {
        let target = targets.get(change.target)?;
        let path = &target.path;
        let becomes = change.after.as_ref().map(|content| (content.len() as u64, blake3::hash(content)));
        let before = match &change.before {
            Before::Absent => None,
            Before::Blind => target.version().map(|v| FileState::new(path, v.size, None, Some(v))),
            Before::Content(content) => {
                Some(FileState::new(path, content.len() as u64, Some(&blake3::hash(content)), target.version()))
            }
        };
        planned.push(Planned {
            path: call.call().run.redactor.text(&path.to_string()).into_owned(),
            before,
            after: becomes.as_ref().map(|(bytes, hash)| FileState::new(path, *bytes, Some(hash), None)),
        });
        after.push((path.clone(), becomes));
    }
    settle::begin(call, &planned)?;
    let steps: Vec<Step<'_>> = changes
        .iter()
        .map(|change| Step {
            target: change.target,
            content: change.after.as_deref().map(Vec::as_slice),
            decided_on: match &change.before {
                Before::Content(content) => Some(content.as_slice()),
                Before::Absent | Before::Blind => None,
            },
            like: change.like,
        })
        .collect();
    let versions = targets.commit(&steps, call)?;
    for (((path, becomes), version), change) in after.iter().zip(versions).zip(changes) {
        let blind = matches!(change.before, Before::Blind);
        let sight = version.zip(becomes.as_ref()).map(|(version, (_, hash))| Sight::written(version, *hash));
        // What the model may not read it has not seen.
        call.saw(path, sight.filter(|_| !blind));
    }
    Ok(())
}
