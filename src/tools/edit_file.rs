//! `edit_file`: replaces exact, unique text in one file; all of the edits or none.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::change::{self, Before, Change, EDIT};
use super::{BuiltIn, only};
use crate::context::CallContext;
use crate::edit::encoding::{Encoding, Text};
use crate::edit::explain::near;
use crate::edit::lines::list;
use crate::edit::replace::{Refused, replace};
use crate::error::{Code, ToolError};
use crate::permission::Capability;
use crate::registry::Output;
use crate::result::{Content, Data};
use crate::sandbox::target::Wanted;
use crate::sandbox::{Access, SandboxPath, content_hash, not_found};

/// The most edits of one call.
const MAX_EDITS: usize = 1000;

pub(super) struct EditFile;

/// What `edit_file` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The file, relative to the workspace or beginning with a mount's name.
    path: String,
    /// The replacements, made in this order; 1 to 1,000.
    #[schemars(length(min = 1, max = 1000))]
    edits: Vec<Edit>,
    /// The hash that the file must still have; `b3:` and 32 hex digits, from `read_file`.
    expected_hash: Option<String>,
}

/// One replacement.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Edit {
    /// The text as the file has it, not empty; unique unless `replace_all`.
    #[schemars(length(min = 1))]
    old_text: String,
    /// What stands there afterwards; empty to delete.
    new_text: String,
    /// Whether every place is replaced. Default false.
    replace_all: Option<bool>,
}

#[derive(Serialize)]
struct EditData {
    path: String,
    replacements: usize,
    hash: String,
    files: [change::FileData; 1],
}

impl BuiltIn for EditFile {
    type Args = Args;
    const NAME: &'static str = "edit_file";
    const TEXT: &'static str = include_str!("edit_file.md");
    const ACTION: &'static str = "edit";
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemWrite);
    const MUTATING: bool = true;
    const CONTENT_ARGS: &'static [&'static str] = &["old_text", "new_text"];

    fn targets(args: &Args) -> Result<Vec<(String, Access)>, ToolError> {
        check(&args.edits)?;
        Ok(EDIT.iter().map(|access| (args.path.clone(), *access)).collect())
    }

    fn execute(args: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let path = only(paths)?;
        let missing = |error| call.sandbox().suggest(error, &path, call);
        let wanted = Wanted { path: &path, accesses: EDIT, create: false };
        let targets = call.sandbox().targets(&[wanted], call).map_err(missing)?;
        let target = targets.get(0)?;
        let real = target.path.clone();
        let Before::Content(before) = change::read(target, false, args.expected_hash.as_deref(), call)? else {
            return Err(missing(not_found(&path)));
        };
        let (after, replacements) = compute(&real, &before, &args.edits)?;
        change::require_small(&format!("`{real}` would have"), &after, call)?;
        let shown = real.to_string();
        let found = change::compare(&shown, &before, &after);
        let hash = content_hash(&after);
        call.notes().bytes_out = after.len() as u64;
        let change = Change { target: 0, before: Before::Content(before), after: Some(Arc::new(after)), like: None };
        change::commit(targets, &[change], call)?;
        let plural = if replacements == 1 { "" } else { "s" };
        let summary = format!("edited {shown}: {replacements} replacement{plural}");
        let text = format!("{summary}\n{}", found.diff.as_deref().unwrap_or_default());
        let files = [change::FileData { path: shown.clone(), status: "M", ..found }];
        let data = EditData { path: shown, replacements, hash, files };
        Ok(Output { summary, data: Some(Data::new(data)), content: vec![Content::text(text)], ..Output::default() })
    }

    fn preview(args: &Args, paths: &[SandboxPath], call: &CallContext) -> Option<String> {
        let (path, before) = change::peek(paths.first()?, call)?;
        let before = before?;
        let (after, _) = compute(&path, &before, &args.edits).ok()?;
        change::compare(&path.to_string(), &before, &after).diff
    }
}

/// What can be seen to be wrong before the file is looked at.
fn check(edits: &[Edit]) -> Result<(), ToolError> {
    let wrong = |what: String, hint: &str| Err(ToolError::new(Code::InvalidArgs, what).hint(hint));
    if !(1..=MAX_EDITS).contains(&edits.len()) {
        return wrong(format!("`edits` has {} entries", edits.len()), "Send 1 to 1,000 edits.");
    }
    for (at, edit) in edits.iter().enumerate() {
        if edit.old_text.is_empty() {
            let hint = "Quote the text to replace; to create a file or replace it whole use write_file.";
            return wrong(format!("`edits[{at}].old_text` is empty"), hint);
        }
        if edit.old_text == edit.new_text {
            let hint = "Send only edits that change something.";
            return wrong(format!("`edits[{at}]`: `old_text` and `new_text` are the same"), hint);
        }
    }
    Ok(())
}

/// The file's content after the edits, and how many replacements that took.
fn compute(path: &SandboxPath, before: &[u8], edits: &[Edit]) -> Result<(Vec<u8>, usize), ToolError> {
    let text = change::text(path, before)?;
    let mut body: Cow<'_, [u8]> = Cow::Borrowed(&text.body);
    let mut replacements = 0;
    for (at, edit) in edits.iter().enumerate() {
        change::require_encodable(path, &text, &edit.new_text, &edit.old_text)?;
        let all = edit.replace_all.unwrap_or(false);
        let pairs = text.encoding == Encoding::Unknown;
        let done = replace(&body, edit.old_text.as_bytes(), edit.new_text.as_bytes(), all, pairs)
            .map_err(|why| refusal(path, &body, at, edit, why))?;
        replacements += done.count;
        body = Cow::Owned(done.body);
    }
    Ok((Text::encode(&text, body.into_owned()), replacements))
}

fn refusal(path: &SandboxPath, body: &[u8], at: usize, edit: &Edit, why: Refused) -> ToolError {
    match why {
        Refused::NoMatch => {
            let near = near(body, &edit.old_text, Some(&edit.new_text));
            let details = json!({
                "edit": at,
                "causes": near.causes,
                "near": near.lines.iter().map(|(line, text)| json!({"line": line, "text": text})).collect::<Vec<_>>(),
            });
            let after = if at == 0 { "" } else { " as the edits before it left it" };
            ToolError::new(Code::NoMatch, format!("`edits[{at}].old_text` is not in `{path}`{after}"))
                .hint(near.hint("Quote the text exactly as read_file shows it."))
                .details(details)
        }
        Refused::Ambiguous(lines) => ToolError::new(
            Code::AmbiguousMatch,
            format!("`edits[{at}].old_text` is in `{path}` {} times, at lines {}", lines.len(), list(&lines)),
        )
        .hint("Quote more of the lines round the one that is meant, or set `replace_all` to change every place.")
        .details(json!({"edit": at, "lines": lines})),
        Refused::Same => ToolError::new(
            Code::InvalidArgs,
            format!("`edits[{at}]` changes nothing: its texts differ in line endings only, and those are kept"),
        )
        .hint("To change line endings replace the file whole with write_file."),
        Refused::Splits(line) => ToolError::new(
            Code::Encoding,
            format!("`edits[{at}].old_text` may begin inside a character of `{path}`, whose encoding is not known, at line {line}"),
        )
        .hint("Quote text that begins after a space or at the beginning of a line."),
    }
}
