//! `list_files`: names, types and sizes below a folder, in path order.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BuiltIn, only};
use crate::context::CallContext;
use crate::error::{Code, ToolError};
use crate::output::glob::Globs;
use crate::permission::Capability;
use crate::registry::Output;
use crate::result::{Content, Data};
use crate::sandbox::walk::{Caps, Found, Hidden, Listed, Skipped, WalkOptions, Walked, walk};
use crate::sandbox::{Access, Kind, SandboxPath};

/// What an entry takes in the data beside its path, in bytes.
const ENTRY_BYTES: usize = 48;

pub(super) struct ListFiles;

/// What `list_files` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The folder. Default: the workspace.
    path: Option<String>,
    /// How deep to go; 1 lists the folder's own entries. Default 1.
    #[schemars(range(min = 1, max = 256))]
    depth: Option<u64>,
    /// A glob that the names must match; without `/` it is matched against the last component.
    pattern: Option<String>,
    /// List names that begin with a dot too. Default false.
    hidden: Option<bool>,
    /// List what ignore files name too. Default false.
    ignored: Option<bool>,
}

#[derive(Serialize)]
struct ListData {
    entries: Vec<Listed>,
    truncated: bool,
    skipped: Skipped,
}

impl BuiltIn for ListFiles {
    type Args = Args;
    const NAME: &'static str = "list_files";
    const TEXT: &'static str = include_str!("list_files.md");
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemRead);

    fn targets(args: &Args) -> Result<Vec<(String, Access)>, ToolError> {
        Ok(vec![(args.path.clone().unwrap_or_else(|| ".".to_owned()), Access::List)])
    }

    fn execute(args: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let path = only(paths)?;
        if args.depth.is_some_and(|depth| !(1..=256).contains(&depth)) {
            return Err(
                ToolError::new(Code::InvalidArgs, "`depth` is out of range").hint("Send a depth from 1 to 256.")
            );
        }
        let pattern = args.pattern.as_deref().map(|text| Globs::compile("pattern", text)).transpose()?;
        let (_, real) = call.sandbox().open_dir(&path, call)?;
        let limits = call.limits();
        let options = WalkOptions {
            hidden: Hidden::shown(args.hidden.unwrap_or(false)),
            ignored: args.ignored.unwrap_or(false),
            depth: usize::try_from(args.depth.unwrap_or(1)).unwrap_or(usize::MAX),
            caps: Caps { entries: limits.max_scan_files, bytes: u64::MAX, weight: limits.max_results },
            access: Access::List,
        };
        let visit = |(): &mut (), found: Found<'_>, walked: &mut Walked<Listed>| {
            if pattern.as_ref().is_none_or(|pattern| pattern.matches(found.path, &real)) {
                walked.items.push(Listed::new(found));
                walked.weight += 1;
            }
            Ok(())
        };
        let walked = walk(call.sandbox(), call, &real, &options, || (), visit)?;
        let (more, count) = (walked.capped, walked.items.len().min(limits.max_results));
        let (mut text, mut entries, mut data_bytes) = (String::new(), Vec::new(), 0);
        for entry in walked.items.into_iter().take(limits.max_results) {
            let _ = match (entry.kind, entry.size) {
                (Kind::Directory, _) => writeln!(text, "{}/", entry.path),
                (Kind::File, Some(size)) => writeln!(text, "{}\t{size}", entry.path),
                (kind, _) => writeln!(text, "{}\t({})", entry.path, kind.as_str()),
            };
            data_bytes += entry.path.len() + ENTRY_BYTES;
            if data_bytes <= limits.max_output_bytes {
                entries.push(entry);
            }
        }
        let truncated = more || entries.len() < count;
        let data = ListData { entries, truncated, skipped: walked.skipped };
        let mut notices = Vec::new();
        if count == 0 {
            notices.push(format!("[{real}: no entries to list.]"));
        }
        if more {
            notices.push(format!("[Only the first {count} entries are listed. List a subfolder, or give a pattern.]"));
        }
        let left_out = data.skipped.sentence();
        if !left_out.is_empty() {
            notices.push(format!("[{left_out}]"));
        }
        let summary = format!("listed {real}: {count} entries{}", if more { ", more exist" } else { "" });
        let content = vec![Content::text(text)];
        Ok(Output { summary, data: Some(Data::new(data)), content, notices, truncated, ..Output::default() })
    }
}
