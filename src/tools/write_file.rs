//! `write_file`: creates a file or replaces its content, atomically.

use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BuiltIn, only};
use crate::context::CallContext;
use crate::error::{Code, ToolError};
use crate::output::bound::cut;
use crate::permission::Capability;
use crate::registry::Output;
use crate::result::{Content, Data};
use crate::sandbox::{Access, Gate, SandboxPath, content_hash};

/// Texts longer than this are not compared line by line, in bytes.
const MAX_DIFF_INPUT: usize = 512 * 1024;
/// The longest diff, in bytes.
const MAX_DIFF_BYTES: usize = 16 * 1024;
/// The longest time that a diff may take.
const MAX_DIFF_TIME: Duration = Duration::from_millis(100);

pub(super) struct WriteFile;

/// What `write_file` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The file, relative to the workspace or beginning with a mount's name.
    path: String,
    /// The whole new content of the file.
    content: String,
    /// The hash that the file must still have; `b3:` and 32 hex digits, from `read_file`.
    expected_hash: Option<String>,
}

#[derive(Serialize)]
struct WriteData {
    path: String,
    /// `None` where the policy does not let the call know.
    created: Option<bool>,
    bytes: u64,
    hash: Option<String>,
    diff: Option<String>,
}

impl BuiltIn for WriteFile {
    type Args = Args;
    const NAME: &'static str = "write_file";
    const TEXT: &'static str = include_str!("write_file.md");
    const ACTION: &'static str = "edit";
    const CAPABILITY: Capability = Capability::FilesystemWrite;
    const MUTATING: bool = true;
    const CONTENT_ARGS: &'static [&'static str] = &["content"];

    fn targets(args: &Args) -> Vec<(String, Access)> {
        vec![(args.path.clone(), Access::Write)]
    }

    fn execute(args: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let path = only(paths)?;
        let content = args.content.as_bytes();
        let limit = call.limits().max_file_bytes;
        if content.len() as u64 > limit {
            return Err(ToolError::new(
                Code::TooLarge,
                format!("`content` has {} bytes, over the limit of {limit}", content.len()),
            )
            .hint("Write a smaller file."));
        }
        let target = call.sandbox().target(&path, call)?;
        // What the answer tells of the old file needs the right to read it.
        let readable = call.visible(&target.path, Access::Read);
        let old = if readable && target.size() <= limit {
            target.open_current()?.map(|file| file.read_all(limit)).transpose()?
        } else {
            None
        };
        if let Some(expected) = &args.expected_hash {
            if !readable {
                call.permit(&target.path, Access::Read)?;
            }
            expect(&target.path, expected, old.as_deref())?;
        }
        let created = readable.then(|| !target.exists());
        let shown = target.path.to_string();
        let decided_on = args.expected_hash.as_ref().and(old.as_deref());
        target.commit(content, decided_on, call)?;
        call.notes().bytes_in = content.len() as u64;
        let diff = old.as_deref().and_then(|old| diff(&shown, old, &args.content));
        let verb = match created {
            Some(true) => "created",
            Some(false) => "replaced",
            None => "wrote",
        };
        let summary = format!("{verb} {shown}: {} bytes", content.len());
        let mut text = format!("{summary}\n");
        if let Some(diff) = &diff {
            text.push_str(diff);
        }
        let data = WriteData {
            path: shown,
            created,
            bytes: content.len() as u64,
            hash: readable.then(|| content_hash(content)),
            diff,
        };
        Ok(Output { summary, data: Some(Data::new(data)), content: vec![Content::text(text)], ..Output::default() })
    }

    fn preview(args: &Args, paths: &[SandboxPath], call: &CallContext) -> Option<String> {
        let path = call.sandbox().follow(paths.first()?, Access::Read).ok().filter(|path| call.may_read(path));
        let changed = path.and_then(|path| {
            let old = match call.sandbox().open_file(&path, call) {
                Ok(file) => file.read_all(call.limits().max_file_bytes).ok()?,
                Err(error) if error.code == Code::NotFound => Vec::new(),
                Err(_) => return None,
            };
            diff(&path.to_string(), &old, &args.content)
        });
        Some(changed.unwrap_or_else(|| args.content.clone()))
    }
}

fn expect(path: &SandboxPath, expected: &str, old: Option<&[u8]>) -> Result<(), ToolError> {
    let stale = |what: String| {
        Err(ToolError::new(Code::Stale, format!("`{path}` {what}"))
            .hint("Read the file again, then write what is right now."))
    };
    match old {
        None => stale("does not exist, but `expected_hash` names a content".to_owned()),
        Some(old) if content_hash(old) == expected => Ok(()),
        Some(old) => stale(format!("has the hash {} now, not `expected_hash`", content_hash(old))),
    }
}

/// The change as a unified diff, cut to a length a model can use; `None` where it would not be text or not be short.
fn diff(path: &str, old: &[u8], new: &str) -> Option<String> {
    let old = std::str::from_utf8(old).ok()?;
    if old.len().max(new.len()) > MAX_DIFF_INPUT || old == new {
        return None;
    }
    let diff = similar::TextDiff::configure().deadline(Instant::now() + MAX_DIFF_TIME).diff_lines(old, new);
    let text = diff.unified_diff().context_radius(3).header(path, path).to_string();
    let kept = cut(&text, MAX_DIFF_BYTES);
    if kept.len() == text.len() {
        return Some(text);
    }
    let end = memchr::memrchr(b'\n', kept.as_bytes()).map_or(0, |at| at + 1);
    Some(format!("{}[the diff goes on]\n", kept.get(..end).unwrap_or_default()))
}
