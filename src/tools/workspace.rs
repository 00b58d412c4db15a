//! What a framework's workspace asks for in bytes and entries, as tools: settled and recorded like the model's own calls,
//! under the actions of `read_file`, `edit` and `list_files`, and offered to no model.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::{self, Before, Change};
use super::{BuiltIn, only};
use crate::context::CallContext;
use crate::context::seen::Sight;
use crate::error::{Code, ToolError};
use crate::permission::Capability;
use crate::registry::Output;
use crate::result::{Content, Data};
use crate::sandbox::target::Wanted;
use crate::sandbox::walk::{Caps, Found, Hidden, Listed, WalkOptions, Walked, walk};
use crate::sandbox::{Access, Gate, Kind, SandboxPath};

/// What all of them but a write take.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The file or folder.
    path: String,
}

/// A name as a host's path is put together from: bytes that are not UTF-8 are replaced.
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn answer(summary: String, data: Option<serde_json::Value>) -> Output {
    let content = vec![Content::text(&summary)];
    Output { summary, data: data.map(Data::new), content, ..Output::default() }
}

pub(super) struct Read;

impl BuiltIn for Read {
    type Args = Args;
    const NAME: &'static str = "workspace_read";
    const TEXT: &'static str = "Reads a file whole.";
    const ACTION: &'static str = "read_file";
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemRead);

    fn targets(args: &Args) -> Result<Vec<(String, Access)>, ToolError> {
        Ok(vec![(args.path.clone(), Access::Read)])
    }

    fn execute(_: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let path = only(paths)?;
        let file = call.sandbox().open_file(&path, call)?;
        let bytes = file.read_all(call.limits().max_file_bytes)?;
        call.notes().bytes_in += bytes.len() as u64;
        let reliable = call.sandbox().keeps_times(&file);
        call.saw(&file.path, Some(Sight::read(file.version, reliable, || Some(blake3::hash(&bytes)))));
        let summary = format!("read {}: {} bytes", file.path, bytes.len());
        let content = vec![Content::File { media_type: "application/octet-stream".to_owned(), data: bytes.into() }];
        Ok(Output { summary, content, for_host: true, ..Output::default() })
    }
}

pub(super) struct Write;

/// How text stands for bytes.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    /// As it is.
    Utf8,
    /// Each character is a byte.
    Latin1,
}

/// What a write takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteArgs {
    /// The file.
    path: String,
    /// Its whole new content.
    content: String,
    encoding: Encoding,
}

impl BuiltIn for Write {
    type Args = WriteArgs;
    const NAME: &'static str = "workspace_write";
    const TEXT: &'static str = "Creates a file or replaces its content.";
    const ACTION: &'static str = "edit";
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemWrite);
    const MUTATING: bool = true;
    const CONTENT_ARGS: &'static [&'static str] = &["content"];

    fn targets(args: &WriteArgs) -> Result<Vec<(String, Access)>, ToolError> {
        Ok(vec![(args.path.clone(), Access::Write)])
    }

    fn execute(args: WriteArgs, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let path = only(paths)?;
        let content = match args.encoding {
            Encoding::Utf8 => args.content.into_bytes(),
            Encoding::Latin1 => args.content.chars().map(u8::try_from).collect::<Result<_, _>>().map_err(|_| {
                ToolError::new(Code::InvalidArgs, "`content` has a character over U+00FF, which is no byte")
            })?,
        };
        change::require_small("`content` has", &content, call)?;
        let wanted = Wanted { path: &path, accesses: &[Access::Write], create: true };
        let targets = call.sandbox().targets(&[wanted], call)?;
        let target = targets.get(0)?;
        let before = if change::must_be_read(call) { change::read(target, true, None, call)? } else { Before::Blind };
        let bytes = content.len() as u64;
        let summary = format!("wrote {}: {bytes} bytes", target.path);
        call.notes().bytes_in = bytes;
        let change = Change { target: 0, before, after: Some(Arc::new(content)), like: None };
        change::commit(targets, &[change], call)?;
        Ok(answer(summary, None))
    }
}

pub(super) struct Stat;

impl BuiltIn for Stat {
    type Args = Args;
    const NAME: &'static str = "workspace_stat";
    const TEXT: &'static str = "Tells the type and size of what a path leads to; null where nothing is there.";
    const ACTION: &'static str = "list_files";
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemRead);

    fn targets(args: &Args) -> Result<Vec<(String, Access)>, ToolError> {
        Ok(vec![(args.path.clone(), Access::List)])
    }

    fn execute(_: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let path = only(paths)?;
        // That nothing is there is an answer here.
        let (summary, data) = match call.sandbox().stat(&path, call) {
            Ok((kind, size, real)) => (
                format!("{real} is a {}", kind.as_str()),
                serde_json::json!({"type": kind, "size": (kind == Kind::File).then_some(size)}),
            ),
            Err(error) if matches!(error.code, Code::NotFound | Code::NotADirectory) => {
                (format!("{path} does not exist"), serde_json::json!({"type": null, "size": null}))
            }
            Err(error) => return Err(error),
        };
        Ok(answer(summary, Some(data)))
    }
}

pub(super) struct List;

#[derive(Serialize)]
struct Entry {
    name: String,
    /// Of what a link leads to; `link` where that is nothing, or nothing that the call may know of.
    #[serde(rename = "type")]
    kind: Kind,
    size: Option<u64>,
}

impl BuiltIn for List {
    type Args = Args;
    const NAME: &'static str = "workspace_list";
    const TEXT: &'static str = "Lists the entries of a folder, all of them.";
    const ACTION: &'static str = "list_files";
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemRead);

    fn targets(args: &Args) -> Result<Vec<(String, Access)>, ToolError> {
        Ok(vec![(args.path.clone(), Access::List)])
    }

    fn execute(_: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let path = only(paths)?;
        let (_, real) = call.sandbox().open_dir(&path, call)?;
        let options = WalkOptions {
            hidden: Hidden::All,
            ignored: true,
            depth: 1,
            caps: Caps { entries: call.limits().max_scan_files, bytes: u64::MAX, weight: usize::MAX },
            access: Access::List,
        };
        let visit = |(): &mut (), found: Found<'_>, walked: &mut Walked<Entry>| {
            let name = text(found.path.name());
            let behind = if found.kind == Kind::Link { call.behind(found.path).ok() } else { None };
            let Listed { kind, size, .. } = Listed::new(found);
            let (kind, size) = match behind {
                Some((kind, bytes)) => (kind, (kind == Kind::File).then_some(bytes)),
                None => (kind, size),
            };
            walked.items.push(Entry { name, kind, size });
            Ok(())
        };
        let walked = walk(call.sandbox(), call, &real, &options, || (), visit)?;
        if walked.capped {
            return Err(ToolError::new(Code::TooLarge, format!("`{path}` has more entries than are listed")));
        }
        let summary = format!("listed {real}: {} entries", walked.items.len());
        let data = Data::new(serde_json::json!({"entries": walked.items}));
        Ok(Output { content: vec![Content::text(&summary)], summary, data: Some(data), ..Output::default() })
    }
}

pub(super) struct RealPath;

impl BuiltIn for RealPath {
    type Args = Args;
    const NAME: &'static str = "workspace_realpath";
    const TEXT: &'static str = "Tells the link-free name that a path leads to; the last components may be missing.";
    const ACTION: &'static str = "list_files";
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemRead);

    fn targets(args: &Args) -> Result<Vec<(String, Access)>, ToolError> {
        Ok(vec![(args.path.clone(), Access::List)])
    }

    fn execute(_: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let path = only(paths)?;
        let real = call.sandbox().follow(&path, Access::List)?;
        if real != path {
            call.permit(&real, Access::List)?;
        }
        let data = serde_json::json!({"mount": real.mount(), "rel": text(real.rel())});
        Ok(answer(format!("{path} leads to {real}"), Some(data)))
    }
}

pub(super) struct MakeDir;

impl BuiltIn for MakeDir {
    type Args = Args;
    const NAME: &'static str = "workspace_make_dir";
    const TEXT: &'static str = "Makes a folder and its missing parents.";
    const ACTION: &'static str = "edit";
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemWrite);
    const MUTATING: bool = true;
    const ANNOUNCES: bool = false;

    fn targets(args: &Args) -> Result<Vec<(String, Access)>, ToolError> {
        Ok(vec![(args.path.clone(), Access::Write)])
    }

    fn execute(_: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let (real, created) = call.sandbox().make_dir(&only(paths)?, call)?;
        let did = if created { "made" } else { "found" };
        Ok(answer(format!("{did} {real}"), Some(serde_json::json!({"created": created}))))
    }
}

pub(super) struct Remove;

impl BuiltIn for Remove {
    type Args = Args;
    const NAME: &'static str = "workspace_remove";
    const TEXT: &'static str = "Removes a file, a link itself, or a folder with all beneath it.";
    const ACTION: &'static str = "edit";
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemDelete);
    const MUTATING: bool = true;
    const ANNOUNCES: bool = false;

    fn targets(args: &Args) -> Result<Vec<(String, Access)>, ToolError> {
        Ok(vec![(args.path.clone(), Access::Delete)])
    }

    fn execute(_: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let removed = call.sandbox().remove(&only(paths)?, call)?;
        call.saw(&removed.path, None);
        let (path, kind) = (&removed.path, removed.kind.as_str());
        let data = serde_json::json!({"type": removed.kind, "entries": removed.entries});
        Ok(answer(format!("removed {path}: a {kind}, {} entries", removed.entries), Some(data)))
    }
}
