//! `glob_files`: files by name, the newest first. The walk is complete; the cap bounds the output only.

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
use crate::sandbox::path::components;
use crate::sandbox::walk::{Caps, Found, Hidden, Skipped, WalkOptions, Walked, walk};
use crate::sandbox::{Access, Kind, SandboxPath};

pub(super) struct GlobFiles;

/// What `glob_files` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The glob. Without `/` it is matched against the last component at any depth, else against the name below `path`.
    pattern: String,
    /// The folder to look in. Default: the workspace.
    path: Option<String>,
    /// Find names that begin with a dot too. Default false.
    hidden: Option<bool>,
    /// Find what ignore files name too. Default false.
    ignored: Option<bool>,
}

#[derive(Serialize)]
struct GlobData {
    paths: Vec<String>,
    total: u64,
    truncated: bool,
    skipped: Skipped,
}

impl BuiltIn for GlobFiles {
    type Args = Args;
    const NAME: &'static str = "glob_files";
    const TEXT: &'static str = include_str!("glob_files.md");
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemRead);

    fn targets(args: &Args) -> Result<Vec<(String, Access)>, ToolError> {
        Ok(vec![(split(args).0.to_owned(), Access::List)])
    }

    fn execute(args: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let path = only(paths)?;
        let (_, pattern) = split(&args);
        if pattern.split('/').any(|part| part == "..") {
            return Err(ToolError::new(Code::OutsideSandbox, "`pattern` holds `..`")
                .hint("Name the folder with `path` and match below it."));
        }
        let globs = Globs::compile("pattern", pattern)?;
        let (_, real) = call.sandbox().open_dir(&path, call)?;
        let limits = call.limits();
        let options = WalkOptions {
            hidden: if args.hidden.unwrap_or(false) { Hidden::All } else { Hidden::Named(globs.dotted()) },
            ignored: args.ignored.unwrap_or(false),
            depth: globs.depth(),
            caps: Caps { entries: limits.max_scan_files, bytes: u64::MAX, weight: usize::MAX },
            access: Access::List,
        };
        let visit = |(): &mut (), entry: Found<'_>, walked: &mut Walked<_>| {
            if matches!(entry.kind, Kind::File | Kind::Link) && globs.matches(entry.path, &real) {
                walked.items.push((entry.modified(), entry.path.clone()));
            }
            Ok(())
        };
        let Walked { items: mut found, skipped, capped, .. } =
            walk(call.sandbox(), call, &real, &options, || (), visit)?;
        // The newest first; of one age in path order.
        found.sort_by_key(|(modified, _)| std::cmp::Reverse(*modified));
        let total = found.len() as u64;
        found.truncate(limits.max_results);
        let mut paths: Vec<String> = found.iter().map(|(_, path)| path.to_string()).collect();
        let shown = paths.len();
        let more = capped || (shown as u64) < total;
        let mut text = String::new();
        for path in &paths {
            let _ = writeln!(text, "{path}");
        }
        let mut notices = Vec::new();
        if total == 0 {
            notices.push("[No file has such a name.]".to_owned());
        }
        let mut data_bytes = 0;
        paths.retain(|path| {
            data_bytes += path.len() + 4;
            data_bytes <= limits.max_output_bytes
        });
        let truncated = more || paths.len() < shown;
        if more {
            let of = if capped { "more than".to_owned() } else { format!("{total},") };
            notices.push(format!("[Of {of} the newest {shown} are given. Narrow the pattern or the path.]"));
        }
        if globs.special() {
            let literal = components(globs.text().as_bytes()).fold(real.clone(), |path, name| path.join(name));
            if call.authorise(&literal, Access::List).is_ok() && call.sandbox().stat(&literal, call).is_ok() {
                notices.push(format!("[A file is named exactly {literal}; the pattern was read as a glob.]"));
            }
        }
        let left_out = skipped.sentence();
        if !left_out.is_empty() {
            notices.push(format!("[{left_out}]"));
        }
        let summary = format!("found {total} files for `{}`", crate::output::bound::cut_word(&args.pattern, 60));
        let data = GlobData { paths, total, truncated, skipped };
        let content = vec![Content::text(text)];
        Ok(Output { summary, data: Some(Data::new(data)), content, notices, truncated, ..Output::default() })
    }
}

/// Where to look, and the glob below it. Without `path`, the pattern's leading plain components are where to look, so
/// that a mount's name or an absolute path may begin it.
fn split(args: &Args) -> (&str, &str) {
    let pattern = args.pattern.as_str();
    if let Some(path) = &args.path {
        return (path, pattern);
    }
    let special = pattern.find(['*', '?', '[', ']', '{', '}', '\\']).unwrap_or(pattern.len());
    match pattern.get(..special).and_then(|plain| plain.rfind('/')) {
        Some(0) => ("/", pattern.get(1..).unwrap_or_default()),
        Some(at) => (pattern.get(..at).unwrap_or_default(), pattern.get(at..).unwrap_or_default()),
        None if pattern.starts_with('~') => (pattern, ""),
        None => (".", pattern),
    }
}
