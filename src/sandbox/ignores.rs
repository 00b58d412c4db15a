//! [`Ignores`]: the rules of ignore files, those of a folder and those above it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{self, Mode, OFlags};

use super::dir::{Component, Dir, Entry, Kind};
use super::walk::Skipped;
use super::{beneath, size};

/// The largest ignore file that is obeyed, in bytes and lines.
const MAX_IGNORE_BYTES: u64 = 256 * 1024;
const MAX_IGNORE_LINES: usize = 5_000;

/// The ignore files of one directory, and those above it.
pub(super) struct Ignores {
    above: Option<Arc<Self>>,
    /// How long the directory's own name is; what is matched is relative to it.
    base: Vec<u8>,
    ignore: Option<Gitignore>,
    gitignore: Option<Gitignore>,
    exclude: Option<Gitignore>,
}

impl Ignores {
    /// Reads those of a directory with these entries, whose name is `rel`.
    pub(super) fn read(
        dir: &Dir,
        entries: &[Entry],
        rel: &[u8],
        above: Option<Arc<Self>>,
        skipped: &mut Skipped,
    ) -> Option<Arc<Self>> {
        let has = |name: &[u8], kind: Kind| {
            let at = entries.binary_search_by(|e| e.name.as_slice().cmp(name));
            at.ok().and_then(|at| entries.get(at)).is_some_and(|e| e.kind == kind)
        };
        let mut read = |dir: &Dir, name: &[u8]| {
            let (matcher, complete) = compile(dir, name)?;
            if !complete {
                skipped.add("ignore_rules_not_understood", 1);
            }
            Some(matcher)
        };
        let ignore = has(b".ignore", Kind::File).then(|| read(dir, b".ignore")).flatten();
        let gitignore = has(b".gitignore", Kind::File).then(|| read(dir, b".gitignore")).flatten();
        let info = || dir.open_dir(Component::new(b".git")?).ok()?.open_dir(Component::new(b"info")?).ok();
        let info = has(b".git", Kind::Directory).then(info).flatten();
        let exclude = info.and_then(|info| read(&info, b"exclude"));
        if ignore.is_none() && gitignore.is_none() && exclude.is_none() {
            return above;
        }
        Some(Arc::new(Self { above, base: rel.to_vec(), ignore, gitignore, exclude }))
    }

    /// Whether the nearest rule that speaks says so; `.ignore` files go before `.gitignore` files.
    pub(super) fn ignored(&self, rel: &[u8], is_dir: bool) -> bool {
        let nearest = |pick: fn(&Self) -> Option<&Gitignore>| {
            let mut level = Some(self);
            while let Some(here) = level {
                if let (Some(rules), Some(rest)) = (pick(here), beneath(rel, &here.base)) {
                    match rules.matched(Path::new(OsStr::from_bytes(rest)), is_dir) {
                        Match::None => {}
                        Match::Ignore(_) => return Some(true),
                        Match::Whitelist(_) => return Some(false),
                    }
                }
                level = here.above.as_deref();
            }
            None
        };
        nearest(|i| i.ignore.as_ref())
            .or_else(|| nearest(|i| i.gitignore.as_ref()))
            .or_else(|| nearest(|i| i.exclude.as_ref()))
            .unwrap_or(false)
    }
}

/// An ignore file's rules, and whether all of it was understood. `None` where it cannot be opened.
fn compile(dir: &Dir, name: &[u8]) -> Option<(Gitignore, bool)> {
    let fd = dir.open(Component::new(name)?, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).ok()?;
    let stat = fs::fstat(&fd).ok()?;
    if Kind::of(stat.st_mode) != Kind::File {
        return None;
    }
    let mut complete = size(&stat) <= MAX_IGNORE_BYTES;
    let mut bytes = Vec::new();
    let limited = std::io::Read::take(std::fs::File::from(fd), MAX_IGNORE_BYTES);
    std::io::Read::read_to_end(&mut { limited }, &mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut builder = GitignoreBuilder::new("");
    for (count, line) in text.trim_start_matches('\u{feff}').split('\n').enumerate() {
        if count == MAX_IGNORE_LINES {
            complete = false;
            break;
        }
        complete &= builder.add_line(None, line.trim_end_matches('\r')).is_ok();
    }
    match builder.build() {
        Ok(rules) => Some((rules, complete)),
        Err(_) => Some((Gitignore::empty(), false)),
    }
}
