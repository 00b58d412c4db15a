//! `write_file`: creates a file or replaces its content, atomically.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::{self, Before, Change};
use super::{BuiltIn, only};
use crate::context::CallContext;
use crate::error::ToolError;
use crate::permission::Capability;
use crate::registry::Output;
use crate::result::{Content, Data};
use crate::sandbox::target::Wanted;
use crate::sandbox::{Access, Gate, SandboxPath, content_hash};

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
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemWrite);
    const MUTATING: bool = true;
    const CONTENT_ARGS: &'static [&'static str] = &["content"];

    fn targets(args: &Args) -> Result<Vec<(String, Access)>, ToolError> {
        Ok(vec![(args.path.clone(), Access::Write)])
    }

    fn execute(args: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let path = only(paths)?;
        let content = args.content.into_bytes();
        change::require_small("`content` has", &content, call)?;
        let wanted = Wanted { path: &path, accesses: &[Access::Write], create: true };
        let targets = call.sandbox().targets(&[wanted], call)?;
        let target = targets.get(0)?;
        let real = target.path.clone();
        // What the answer tells of the old file, or depends on it, needs the right to read it.
        let readable = call.visible(&real, Access::Read);
        let known = args.expected_hash.is_some() || change::must_be_read(call);
        if !readable && known {
            call.permit(&real, Access::Read)?;
        }
        let blind = !readable || (target.size() > call.limits().max_file_bytes && !known);
        let before =
            if blind { Before::Blind } else { change::read(target, true, args.expected_hash.as_deref(), call)? };
        let created = readable.then(|| !target.exists());
        let shown = real.to_string();
        let diff = match &before {
            Before::Content(old) => change::compare(&shown, old, &content).diff,
            Before::Absent | Before::Blind => None,
        };
        let bytes = content.len() as u64;
        let hash = readable.then(|| content_hash(&content));
        call.notes().bytes_in = bytes;
        let change = Change { target: 0, before, after: Some(Arc::new(content)), like: None };
        change::commit(targets, &[change], call)?;
        let verb = match created {
            Some(true) => "created",
            Some(false) => "replaced",
            None => "wrote",
        };
        let summary = format!("{verb} {shown}: {bytes} bytes");
        let mut text = format!("{summary}\n");
        if let Some(diff) = &diff {
            text.push_str(diff);
        }
        let data = WriteData { path: shown, created, bytes, hash, diff };
        Ok(Output { summary, data: Some(Data::new(data)), content: vec![Content::text(text)], ..Output::default() })
    }

    fn preview(args: &Args, paths: &[SandboxPath], call: &CallContext) -> Option<String> {
        let changed = change::peek(paths.first()?, call).and_then(|(path, old)| {
            change::compare(&path.to_string(), &old.unwrap_or_default(), args.content.as_bytes()).diff
        });
        Some(changed.unwrap_or_else(|| args.content.clone()))
    }
}
