//! `apply_patch`: adds, deletes, updates and moves files by one text, all of it or nothing.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::BuiltIn;
use super::change::{self, Before, Change, EDIT, FileData, REMOVE};
use crate::context::CallContext;
use crate::edit::encoding::Encoding;
use crate::edit::hunks::{self, NoPlace};
use crate::edit::patch::{Broken, Hunk, Section, Sign, Work, parse};
use crate::error::{Code, ToolError};
use crate::permission::Capability;
use crate::registry::Output;
use crate::result::{Content, Data};
use crate::sandbox::target::{Targets, Wanted};
use crate::sandbox::{Access, Gate, SandboxPath, not_found};
use crate::settle;

/// The longest patch, in bytes, and the most files in it.
const MAX_PATCH_BYTES: usize = 4 << 20;
const MAX_FILES: usize = 200;
/// The diffs of one result, in bytes.
const MAX_DIFF_BYTES: usize = 32 * 1024;

pub(super) struct ApplyPatch;

/// What `apply_patch` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The patch, from `*** Begin Patch` to `*** End Patch`; at most 4 MiB and 200 files.
    patch: String,
}

#[derive(Serialize)]
struct PatchData {
    files: Vec<FileData>,
}

impl BuiltIn for ApplyPatch {
    type Args = Args;
    const NAME: &'static str = "apply_patch";
    const TEXT: &'static str = include_str!("apply_patch.md");
    const ACTION: &'static str = "edit";
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemWrite);
    const MUTATING: bool = true;
    const CONTENT_ARGS: &'static [&'static str] = &["patch"];

    fn targets(args: &Args) -> Result<Vec<(String, Access)>, ToolError> {
        let names = names(&read(&args.patch)?);
        let asked = names.iter().flat_map(|name| name.accesses.iter().map(|access| (name.path.to_owned(), *access)));
        Ok(asked.collect())
    }

    fn execute(args: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let sections = read(&args.patch)?;
        let names = names(&sections);
        // The paths come once for each access.
        let mut paths = paths.into_iter();
        let mut own = Vec::with_capacity(names.len());
        for name in &names {
            own.push(paths.next().ok_or_else(settle::internal)?);
            paths.by_ref().take(name.accesses.len() - 1).for_each(drop);
        }
        let wanted: Vec<Wanted<'_>> = names
            .iter()
            .zip(&own)
            .map(|(name, path)| Wanted { path, accesses: name.accesses, create: name.create })
            .collect();
        let missing = |error| own.iter().fold(error, |error, path| suggest(error, path, call));
        let targets = call.sandbox().targets(&wanted, call).map_err(missing)?;
        let Computed { changes, rows, notices } = Files::compute(&sections, &targets, call).map_err(missing)?;
        if changes.is_empty() {
            return Err(ToolError::new(Code::InvalidArgs, "the patch changes nothing")
                .hint("Send a patch whose `+` and `-` lines differ."));
        }
        change::commit(targets, &changes, call)?;
        Ok(output(rows, notices))
    }

    fn preview(args: &Args, _: &[SandboxPath], _: &CallContext) -> Option<String> {
        Some(args.patch.clone())
    }
}

/// The patch, read; what breaks its grammar is told with its line.
fn read(patch: &str) -> Result<Vec<Section<'_>>, ToolError> {
    let too_large = |what: String| Err(ToolError::new(Code::TooLarge, what).hint("Send it as several patches."));
    if patch.len() > MAX_PATCH_BYTES {
        return too_large(format!("the patch has {} bytes, over the limit of {MAX_PATCH_BYTES}", patch.len()));
    }
    let sections = parse(patch).map_err(|Broken { line, what, instead }| {
        ToolError::new(Code::PatchParse, format!("line {line} of the patch: {what}"))
            .hint(instead)
            .details(json!({"line": line}))
    })?;
    let names = names(&sections).len();
    if names > MAX_FILES {
        return too_large(format!("the patch names {names} files, over the limit of {MAX_FILES}"));
    }
    Ok(sections)
}

/// A name in the patch, and what is asked of it.
struct Name<'a> {
    path: &'a str,
    accesses: &'static [Access],
    /// Whether the file is to be made.
    create: bool,
}

/// The names in the patch, in their order: a section's own, then where it moves to.
fn names<'a>(sections: &[Section<'a>]) -> Vec<Name<'a>> {
    let mut names = Vec::with_capacity(sections.len());
    for section in sections {
        let (accesses, create, to) = match section.work {
            Work::Add(_) => (EDIT, true, None),
            Work::Delete => (REMOVE, false, None),
            Work::Update { move_to: None, .. } => (EDIT, false, None),
            Work::Update { move_to, .. } => (REMOVE, false, move_to),
        };
        names.push(Name { path: section.path, accesses, create });
        names.extend(to.map(|path| Name { path, accesses: EDIT, create: true }));
    }
    names
}

/// `error` with near names, where it is of this path.
fn suggest(error: ToolError, path: &SandboxPath, call: &CallContext) -> ToolError {
    if error == not_found(path) { call.sandbox().suggest(error, path, call) } else { error }
}

/// The files of a patch as its sections leave them, one after the other.
struct Files<'t> {
    targets: &'t Targets<'t>,
    /// Of each target what it held, once that was read, and what it holds now.
    before: Vec<Option<Before>>,
    now: Vec<State>,
    notices: Vec<String>,
    bytes: u64,
}

/// What a target holds at some point of the patch.
#[derive(Clone, Default)]
struct State {
    content: Option<Arc<Vec<u8>>>,
    /// The target whose file was moved here.
    from: Option<usize>,
}

/// A patch that is computed.
struct Computed {
    changes: Vec<Change>,
    rows: Vec<FileData>,
    notices: Vec<String>,
}

impl<'t> Files<'t> {
    fn compute(sections: &[Section<'_>], targets: &'t Targets<'t>, call: &CallContext) -> Result<Computed, ToolError> {
        let count = targets.index.iter().max().map_or(0, |last| last + 1);
        let before = std::iter::repeat_with(|| None).take(count).collect();
        let mut files = Self { targets, before, now: vec![State::default(); count], notices: Vec::new(), bytes: 0 };
        let mut index = targets.index.iter().copied();
        let mut next = || index.next().ok_or_else(settle::internal);
        for section in sections {
            call.poll()?;
            let at = next()?;
            files.load(at, call)?;
            match &section.work {
                Work::Add(lines) => {
                    let content: Vec<u8> = lines.iter().flat_map(|line| [line.as_bytes(), b"\n"].concat()).collect();
                    files.put(at, State { content: Some(Arc::new(content)), from: None }, call)?;
                }
                Work::Delete => drop(files.take(at)?),
                Work::Update { move_to, hunks } => {
                    let mut state = files.take(at)?;
                    if !hunks.is_empty() {
                        state.content = Some(files.update(at, &state.content.unwrap_or_default(), hunks)?);
                    }
                    if move_to.is_some() {
                        let to = next()?;
                        files.load(to, call)?;
                        files.put(to, State { from: state.from.or(Some(at)), ..state }, call)?;
                    } else {
                        files.put(at, state, call)?;
                    }
                }
            }
        }
        let (changes, rows) = files.changes()?;
        Ok(Computed { changes, rows, notices: files.notices })
    }

    fn path(&self, at: usize) -> Result<&SandboxPath, ToolError> {
        self.targets.get(at).map(|target| &target.path)
    }

    /// Reads what a target holds, the first time that it is named.
    fn load(&mut self, at: usize, call: &CallContext) -> Result<(), ToolError> {
        let (Some(before), Some(now)) = (self.before.get_mut(at), self.now.get_mut(at)) else { return Ok(()) };
        if before.is_some() {
            return Ok(());
        }
        let found = change::read(self.targets.get(at)?, false, None, call)?;
        if let Before::Content(content) = &found {
            now.content = Some(Arc::clone(content));
            self.bytes += content.len() as u64;
            let limit = call.limits().max_file_bytes;
            if self.bytes > limit {
                let what = format!("the files of the patch have more than {limit} bytes together");
                return Err(ToolError::new(Code::TooLarge, what).hint("Send it as several patches."));
            }
        }
        *before = Some(found);
        Ok(())
    }

    /// Takes a file away from its name.
    fn take(&mut self, at: usize) -> Result<State, ToolError> {
        let state = self.now.get_mut(at).map(std::mem::take).filter(|state| state.content.is_some());
        state.ok_or_else(|| self.path(at).map_or_else(|error| error, not_found))
    }

    /// Puts a file at a name that is free.
    fn put(&mut self, at: usize, state: State, call: &CallContext) -> Result<(), ToolError> {
        let path = self.path(at)?;
        change::require_small(
            &format!("`{path}` would have"),
            state.content.as_deref().map_or(&[], Vec::as_slice),
            call,
        )?;
        let now = self.now.get(at).filter(|now| now.content.is_some());
        if now.is_some() {
            return Err(ToolError::new(Code::AlreadyExists, format!("`{path}` exists"))
                .hint("Use `*** Update File:` to change it, or delete it first."));
        }
        if let Some(now) = self.now.get_mut(at) {
            *now = state;
        }
        Ok(())
    }

    /// The content of a file after its hunks.
    fn update(&mut self, at: usize, content: &[u8], hunks: &[Hunk<'_>]) -> Result<Arc<Vec<u8>>, ToolError> {
        let path = self.path(at)?;
        let text = change::text(path, content)?;
        let side = |new: bool| -> String {
            let lines = hunks.iter().flat_map(|hunk| &hunk.lines);
            lines.filter(|(sign, _)| (*sign == Sign::Add) == new).map(|(_, line)| *line).collect()
        };
        if text.encoding == Encoding::Unknown {
            change::require_encodable(path, &text, &side(true), &side(false))?;
        }
        let done = hunks::apply(&text.body, hunks).map_err(|NoPlace { ambiguous, number, what, hint }| {
            let (code, places) = if ambiguous {
                (Code::AmbiguousMatch, "more than one place")
            } else {
                (Code::PatchNoMatch, "no place")
            };
            ToolError::new(code, format!("`{path}`: the hunk at line {number} of the patch has {places}: {what}"))
                .hint(hint)
                .details(json!({"path": path.to_string(), "line": number}))
        })?;
        let (likeness, number) = done.loosest;
        if let Some(how) = likeness.note() {
            self.notices.push(format!("[{path}: the hunk at line {number} of the patch matches only {how}.]"));
        }
        Ok(Arc::new(text.encode(done.body)))
    }

    /// What is to be done, and what the result says of it.
    fn changes(&mut self) -> Result<(Vec<Change>, Vec<FileData>), ToolError> {
        let (mut changes, mut rows, mut room) = (Vec::new(), Vec::new(), MAX_DIFF_BYTES);
        let before: Vec<Before> = std::mem::take(&mut self.before).into_iter().flatten().collect();
        let origin = |at: usize, state: &State| {
            state.from.filter(|from| *from != at && matches!(before.get(*from), Some(Before::Content(_))))
        };
        let moved: Vec<usize> = self.now.iter().enumerate().filter_map(|(at, state)| origin(at, state)).collect();
        for (at, (before_it, now)) in before.iter().zip(&self.now).enumerate() {
            let path = self.path(at)?.to_string();
            let from = origin(at, now);
            let source = from.and_then(|from| before.get(from)).unwrap_or(before_it);
            let old: &[u8] = match source {
                Before::Content(content) => content,
                Before::Absent | Before::Blind => b"",
            };
            let status = match (before_it, &now.content) {
                (Before::Content(old), Some(new)) if old == new => continue,
                (Before::Absent | Before::Blind, None) => continue,
                (_, None) => "D",
                (_, Some(_)) if from.is_some() => "R",
                (Before::Content(_), Some(_)) => "M",
                (_, Some(_)) => "A",
            };
            changes.push(Change { target: at, before: before_it.clone(), after: now.content.clone(), like: from });
            if status == "D" && moved.contains(&at) {
                continue;
            }
            let new: &[u8] = now.content.as_deref().map_or(&[], Vec::as_slice);
            let mut row = change::compare(&path, old, new);
            let bytes = row.diff.as_ref().map_or(0, String::len);
            if status == "D" || bytes > room {
                row.diff = None;
            } else {
                room -= bytes;
            }
            let from = from.map(|from| self.path(from).map(ToString::to_string)).transpose()?;
            rows.push(FileData { status, from, ..row });
        }
        Ok((changes, rows))
    }
}

/// The answer: what became of each file, and as many diffs as fit.
fn output(rows: Vec<FileData>, notices: Vec<String>) -> Output {
    let plural = if rows.len() == 1 { "" } else { "s" };
    let (additions, deletions) =
        rows.iter().fold((0, 0), |(plus, minus), row| (plus + row.additions, minus + row.deletions));
    let summary = format!("patched {} file{plural}: +{additions} -{deletions} lines", rows.len());
    let mut text = format!("{summary}\n");
    for row in &rows {
        let from = row.from.as_ref().map(|from| format!("{from} -> ")).unwrap_or_default();
        let _ = writeln!(text, "{} {from}{} (+{} -{})", row.status, row.path, row.additions, row.deletions);
    }
    rows.iter().filter_map(|row| row.diff.as_deref()).for_each(|diff| text.push_str(diff));
    let data = Some(Data::new(PatchData { files: rows }));
    Output { summary, data, content: vec![Content::text(text)], notices, ..Output::default() }
}
