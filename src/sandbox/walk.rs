//! [`Walk`]: one descriptor-relative walk for listing, globbing and searching. Entries come in path order; links are
//! reported and never entered, so that nothing can be swapped under it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use globset::GlobMatcher;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use super::dir::{Component, Dir, Entry, Kind};
use super::write::is_live_temp;
use super::{Access, Gate, OpenFile, Sandbox, SandboxPath, beneath, explain, size};
use crate::error::{Code, ToolError};

/// The deepest directory entered below the start.
const MAX_DEPTH: usize = 256;
/// The most directories held open along the way down.
const MAX_HELD: usize = 24;
/// The largest ignore file that is obeyed, in bytes and lines.
const MAX_IGNORE_BYTES: u64 = 256 * 1024;
const MAX_IGNORE_LINES: usize = 5_000;

/// How many entries were passed over, by reason. Only numbers: what is withheld is never named.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(transparent)]
pub(crate) struct Skipped(BTreeMap<&'static str, u64>);

impl Skipped {
    pub(crate) fn add(&mut self, reason: &'static str, count: u64) {
        if count > 0 {
            *self.0.entry(reason).or_default() += count;
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(reason, count)| self.add(reason, *count));
    }

    /// A sentence for the model, empty where nothing was skipped.
    pub(crate) fn sentence(&self) -> String {
        let parts: Vec<String> =
            self.0.iter().map(|(reason, count)| format!("{count} {}", reason.replace('_', " "))).collect();
        if parts.is_empty() { String::new() } else { format!("Skipped: {}.", parts.join(", ")) }
    }
}

/// What a walk passes over.
#[derive(Clone, Debug)]
pub(crate) struct WalkOptions {
    /// Which names that begin with a dot are entered and reported.
    pub(crate) hidden: Hidden,
    /// Enter and report what ignore files name.
    pub(crate) ignored: bool,
    /// The deepest entry reported; 1 is the start's own entries.
    pub(crate) depth: usize,
    /// The most entries looked at.
    pub(crate) max_entries: u64,
    /// What entries are reported for.
    pub(crate) access: Access,
}

/// Names that begin with a dot.
#[derive(Clone, Debug)]
pub(crate) enum Hidden {
    /// All of them are as good as others.
    All,
    /// Only those that one of these matches.
    Named(Vec<GlobMatcher>),
}

impl Hidden {
    /// All of them, or none.
    pub(crate) fn shown(all: bool) -> Self {
        if all { Self::All } else { Self::Named(Vec::new()) }
    }

    fn hides(&self, name: &[u8]) -> bool {
        match self {
            Self::Named(globs) if name.first() == Some(&b'.') => {
                !globs.iter().any(|glob| glob.is_match(Path::new(OsStr::from_bytes(name))))
            }
            Self::Named(_) | Self::All => false,
        }
    }
}

/// An entry that a walk found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The directory that holds it, held.
    pub(crate) dir: Arc<Dir>,
    pub(crate) path: SandboxPath,
    pub(crate) kind: Kind,
}

impl Found {
    /// When its content last changed: seconds and nanoseconds.
    pub(crate) fn modified(&self) -> (i64, u64) {
        let stat = Component::new(self.path.name()).and_then(|name| self.dir.stat(name).ok());
        stat.map_or((0, 0), |stat| (stat.st_mtime, stat.st_mtime_nsec))
    }

    /// Its size now, in bytes.
    fn size(&self) -> Option<u64> {
        let name = Component::new(self.path.name())?;
        self.dir.look(name).ok().map(|look| look.size)
    }
}

/// The ignore files of one directory, and those above it.
struct Ignores {
    above: Option<Arc<Self>>,
    /// How long the directory's own name is; what is matched is relative to it.
    base: Vec<u8>,
    ignore: Option<Gitignore>,
    gitignore: Option<Gitignore>,
    exclude: Option<Gitignore>,
}

struct Frame {
    dir: Option<Arc<Dir>>,
    identity: (u64, u64),
    path: SandboxPath,
    entries: std::vec::IntoIter<Entry>,
    ignores: Option<Arc<Ignores>>,
}

/// A walk below one directory.
pub(crate) struct Walk<'a> {
    sandbox: &'a Sandbox,
    gate: &'a dyn Gate,
    options: WalkOptions,
    stack: Vec<Frame>,
    seen: u64,
    pub(crate) skipped: Skipped,
    /// Whether `max_entries` ended it.
    pub(crate) capped: bool,
}

impl<'a> Walk<'a> {
    /// Starts below the held directory.
    pub(crate) fn new(
        sandbox: &'a Sandbox,
        gate: &'a dyn Gate,
        dir: Dir,
        path: &SandboxPath,
        options: WalkOptions,
    ) -> Result<Self, ToolError> {
        let mut walk =
            Self { sandbox, gate, options, stack: Vec::new(), seen: 0, skipped: Skipped::default(), capped: false };
        let identity = dir.identity().map_err(|e| explain(path, e))?;
        walk.enter(dir, identity, path.clone(), None).map_err(|e| explain(path, e))?;
        Ok(walk)
    }

    /// The next entry in path order; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Found>, ToolError> {
        loop {
            let depth = self.stack.len();
            let Some(frame) = self.stack.last_mut() else { return Ok(None) };
            let Some(entry) = frame.entries.next() else {
                self.stack.pop();
                continue;
            };
            self.seen += 1;
            if self.seen > self.options.max_entries {
                self.capped = true;
                return Ok(None);
            }
            if self.seen.is_multiple_of(64) {
                self.gate.checkpoint()?;
            }
            if is_live_temp(&entry.name) {
                continue;
            }
            let path = frame.path.join(&entry.name);
            let ignores = frame.ignores.clone();
            if self.sandbox.guard(&path, Access::List).is_err() || !self.gate.visible(&path, self.options.access) {
                self.skipped.add("withheld", 1);
                continue;
            }
            if self.options.hidden.hides(&entry.name) {
                self.skipped.add("hidden", 1);
                continue;
            }
            let is_dir = entry.kind == Kind::Directory;
            if !self.options.ignored && ignores.as_deref().is_some_and(|i| i.ignored(path.rel(), is_dir)) {
                self.skipped.add("ignored", 1);
                continue;
            }
            let Some(dir) = self.held() else {
                self.skipped.add("moved", 1);
                self.stack.pop();
                continue;
            };
            let found = Found { dir, path, kind: entry.kind };
            if is_dir && depth < self.options.depth && entry.name != b".git" {
                if depth >= MAX_DEPTH {
                    self.skipped.add("too_deep", 1);
                } else {
                    self.descend(&found, &entry.name, ignores);
                }
            }
            return Ok(Some(found));
        }
    }

    /// The directory of the top frame, opened again where it was let go.
    fn held(&mut self) -> Option<Arc<Dir>> {
        let sandbox = self.sandbox;
        let frame = self.stack.last_mut()?;
        if frame.dir.is_none() {
            let mount = sandbox.mount(&frame.path).ok()?;
            let fd = mount.resolver.open(&mount.root, frame.path.rel(), OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
            let dir = Dir::new(fd);
            if dir.identity().ok()? != frame.identity {
                return None;
            }
            frame.dir = Some(Arc::new(dir));
        }
        frame.dir.clone()
    }

    fn descend(&mut self, found: &Found, name: &[u8], ignores: Option<Arc<Ignores>>) {
        let opened = Component::of(name).and_then(|name| {
            let dir = found.dir.open_dir(name)?;
            let identity = dir.identity()?;
            Ok((dir, identity))
        });
        match opened {
            Ok((dir, identity)) => {
                if self.sandbox.require_storage(&found.path, identity.0, &dir).is_err() {
                    self.skipped.add("not_storage", 1);
                } else if let Err(errno) = self.enter(dir, identity, found.path.clone(), ignores) {
                    self.skipped.add(reason(errno), 1);
                }
            }
            Err(errno) => self.skipped.add(reason(errno), 1),
        }
    }

    fn enter(
        &mut self,
        dir: Dir,
        identity: (u64, u64),
        path: SandboxPath,
        above: Option<Arc<Ignores>>,
    ) -> rustix::io::Result<()> {
        let room = self.options.max_entries.saturating_sub(self.seen).saturating_add(1);
        let entries = match dir.entries(usize::try_from(room).unwrap_or(usize::MAX)) {
            Err(Errno::TOOBIG) => {
                self.capped = true;
                return Ok(());
            }
            other => other?,
        };
        let ignores = if self.options.ignored { None } else { self.ignores(&dir, &entries, &path, above) };
        if let Some(frame) = self.stack.len().checked_sub(MAX_HELD).and_then(|i| self.stack.get_mut(i)) {
            frame.dir = None;
        }
        self.stack.push(Frame { dir: Some(Arc::new(dir)), identity, path, entries: entries.into_iter(), ignores });
        Ok(())
    }

    fn ignores(
        &mut self,
        dir: &Dir,
        entries: &[Entry],
        path: &SandboxPath,
        above: Option<Arc<Ignores>>,
    ) -> Option<Arc<Ignores>> {
        let has = |name: &[u8], kind: Kind| {
            let at = entries.binary_search_by(|e| e.name.as_slice().cmp(name));
            at.ok().and_then(|at| entries.get(at)).is_some_and(|e| e.kind == kind)
        };
        let mut read = |dir: &Dir, name: &[u8]| {
            let (matcher, complete) = compile(dir, name)?;
            if !complete {
                self.skipped.add("ignore_rules_not_understood", 1);
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
        Some(Arc::new(Ignores { above, base: path.rel().to_vec(), ignore, gitignore, exclude }))
    }
}

impl Ignores {
    /// Whether the nearest rule that speaks says so; `.ignore` files go before `.gitignore` files.
    fn ignored(&self, rel: &[u8], is_dir: bool) -> bool {
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

fn reason(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => "out_of_descriptors_or_memory",
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => "moved",
        _ => "unreadable",
    }
}

/// An entry as tools give it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Listed {
    /// Its sandbox path.
    pub path: String,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The size of a file, in bytes.
    pub size: Option<u64>,
}

impl Listed {
    pub(crate) fn new(found: &Found) -> Self {
        let size = (found.kind == Kind::File).then(|| found.size()).flatten();
        Self { path: found.path.to_string(), kind: found.kind, size }
    }
}

impl Sandbox {
    /// Opens a file that a walk found. `Err` is the reason why it is passed over.
    pub(crate) fn open_found(&self, found: &Found) -> Result<OpenFile, &'static str> {
        let name = Component::new(found.path.name()).ok_or("moved")?;
        let fd = found.dir.open(name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).map_err(reason)?;
        let stat = fs::fstat(&fd).map_err(reason)?;
        self.require_file(&found.path, &stat, &fd).map_err(|e| match e.code {
            Code::NotRegularFile => "special",
            _ => "withheld",
        })?;
        Ok(OpenFile { fd, size: size(&stat), identity: (stat.st_dev, stat.st_ino), path: found.path.clone() })
    }
}
