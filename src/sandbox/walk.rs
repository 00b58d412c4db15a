//! [`walk`]: one descriptor-relative walk for listing, globbing and searching. Threads share it, entries come in path
//! order; links are reported and never entered, so that nothing can be swapped under it.
//!
//! No folder is held while another is looked at: each is opened anew beneath its mount by the name that was authorised,
//! and where only some of its entries have been visited, it must be the same folder as before.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use globset::GlobMatcher;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use super::dir::{Component, Dir, Entry, Kind};
use super::ignores::Ignores;
pub(crate) use super::order::Caps;
use super::order::{Done, Order, Place};
use super::write::is_live_temp;
use super::{Access, Gate, OpenFile, Sandbox, SandboxPath};
use crate::error::{Code, ToolError};

/// The deepest directory entered below the start.
const MAX_DEPTH: usize = 256;
/// How many entries of a folder are visited in one go.
const BATCH: usize = 64;
/// After how many jobs a walk gets help: a small one is done before threads are made.
const ALONE: usize = 8;
/// The most threads: each holds a folder and a file.
const MAX_WORKERS: usize = 8;

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
    /// After how much the walk ends.
    pub(crate) caps: Caps,
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    /// The directory that holds it, held; not for a folder that is entered.
    dir: Option<&'a Dir>,
    pub(crate) path: &'a SandboxPath,
    pub(crate) kind: Kind,
    /// Set once the visit is for nothing.
    pub(crate) over: &'a AtomicBool,
}

impl Found<'_> {
    /// When its content last changed: seconds and nanoseconds.
    pub(crate) fn modified(&self) -> (i64, u32) {
        self.place().and_then(|(dir, name)| dir.modified(name).ok()).unwrap_or_default()
    }

    /// Its size now, in bytes.
    fn size(&self) -> Option<u64> {
        let (dir, name) = self.place()?;
        dir.look(name).ok().map(|look| look.size)
    }

    fn place(&self) -> Option<(&Dir, Component<'_>)> {
        Some((self.dir?, Component::new(self.path.name())?))
    }
}

/// What a walk gave, or a piece of it.
#[derive(Debug)]
pub(crate) struct Walked<T> {
    /// What the visits made of the entries, in path order.
    pub(crate) items: Vec<T>,
    /// How much of an answer they are.
    pub(crate) weight: usize,
    /// How many entries were looked at, and bytes of files.
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) skipped: Skipped,
    /// Whether a cap ended it before its end.
    pub(crate) capped: bool,
}

impl<T> Default for Walked<T> {
    fn default() -> Self {
        let skipped = Skipped::default();
        Self { items: Vec::new(), weight: 0, entries: 0, bytes: 0, skipped, capped: false }
    }
}

impl<T> Walked<T> {
    fn passed_over(reason: &'static str) -> Self {
        let mut walked = Self::default();
        walked.skipped.add(reason, 1);
        walked
    }

    pub(super) fn append(&mut self, mut next: Self) {
        self.items.append(&mut next.items);
        self.weight += next.weight;
        self.entries += next.entries;
        self.bytes += next.bytes;
        self.skipped.merge(&next.skipped);
        self.capped |= next.capped;
    }
}

/// A folder whose entries are being visited.
struct Folder {
    path: SandboxPath,
    identity: (u64, u64),
    /// Open while a thread is in it.
    dir: Mutex<Weak<Dir>>,
}

/// A folder that a thread is in.
type Inside = Option<(Arc<Folder>, Arc<Dir>)>;

enum Job {
    /// To report a folder and to list it; its entries lie `depth` below the start, which itself is not reported.
    List { path: SandboxPath, depth: usize, above: Option<Arc<Ignores>> },
    /// To visit some of its entries.
    Visit { folder: Arc<Folder>, entries: Vec<Entry> },
}

struct Walk<'a, T, W, V> {
    sandbox: &'a Sandbox,
    gate: &'a dyn Gate,
    options: &'a WalkOptions,
    order: Order<Job, T>,
    worker: W,
    visit: V,
}

/// Visits the entries below `start`, a link-free name of a directory. Each thread makes itself a worker; what the visits
/// add up to is the same however many threads there are.
pub(crate) fn walk<S, T: Send>(
    sandbox: &Sandbox,
    gate: &dyn Gate,
    start: &SandboxPath,
    options: &WalkOptions,
    worker: impl Fn() -> S + Sync,
    visit: impl Fn(&mut S, Found<'_>, &mut Walked<T>) -> Result<(), ToolError> + Sync,
) -> Result<Walked<T>, ToolError> {
    let job = Job::List { path: start.clone(), depth: 1, above: None };
    let order = Order::new(options.caps, Place::beneath(start.rel()), job);
    let walk = Walk { sandbox, gate, options, order, worker, visit };
    std::thread::scope(|scope| {
        let walk = &walk;
        walk.work(|jobs| {
            if jobs == ALONE {
                for _ in 1..workers() {
                    // Where no thread can be had, the walk takes longer.
                    let _ = std::thread::Builder::new().spawn_scoped(scope, move || walk.work(|_| ()));
                }
            }
        });
    });
    walk.order.into_whole()
}

/// How many threads take part in a walk.
fn workers() -> usize {
    static WORKERS: OnceLock<usize> = OnceLock::new();
    *WORKERS.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_WORKERS)))
}

impl<S, T, W: Fn() -> S, V: Fn(&mut S, Found<'_>, &mut Walked<T>) -> Result<(), ToolError>> Walk<'_, T, W, V> {
    /// Takes jobs until there are none, and counts them to `count`.
    fn work(&self, count: impl Fn(usize)) {
        let _attendance = self.order.attend();
        let mut worker = (self.worker)();
        let (mut inside, mut done) = (None, None);
        for jobs in 1.. {
            let Some((place, job)) = self.order.next(done.take(), self.gate) else { return };
            let mut made = Vec::new();
            match self.job(job, &mut worker, &mut inside, &mut made) {
                Ok(walked) => done = Some(Done { place, walked, jobs: made }),
                Err(error) => return self.order.fail(error),
            }
            count(jobs);
        }
    }

    fn job(
        &self,
        job: Job,
        worker: &mut S,
        inside: &mut Inside,
        made: &mut Vec<(Place, Job)>,
    ) -> Result<Walked<T>, ToolError> {
        let (path, depth, above) = match job {
            Job::List { path, depth, above } => (path, depth, above),
            Job::Visit { folder, entries } => return self.visit(worker, &folder, &entries, inside),
        };
        let mut walked = Walked::default();
        if depth > 1 {
            let found = Found { dir: None, path: &path, kind: Kind::Directory, over: self.order.over() };
            (self.visit)(worker, found, &mut walked)?;
        }
        walked.append(self.list(path, depth, above, inside, made)?);
        // A small folder without folders is visited by the thread that has just listed it.
        if let [(_, Job::Visit { folder, entries })] = made.as_slice() {
            walked.append(self.visit(worker, folder, entries, inside)?);
            made.clear();
        }
        Ok(walked)
    }

    /// Lists a folder: what is to be visited in it, and the folders to be listed.
    fn list(
        &self,
        path: SandboxPath,
        depth: usize,
        above: Option<Arc<Ignores>>,
        inside: &mut Inside,
        jobs: &mut Vec<(Place, Job)>,
    ) -> Result<Walked<T>, ToolError> {
        *inside = None;
        let (dir, identity) = match self.open(&path) {
            Ok(opened) => opened,
            Err(reason) => return Ok(Walked::passed_over(reason)),
        };
        let most = usize::try_from(self.options.caps.entries).unwrap_or(usize::MAX).saturating_add(1);
        let entries = match dir.entries(most) {
            Ok(entries) => entries,
            Err(Errno::TOOBIG) => return Ok(Walked { capped: true, ..Walked::default() }),
            Err(errno) => return Ok(Walked::passed_over(reason(errno))),
        };
        let mut walked = Walked { entries: entries.len() as u64, ..Walked::default() };
        let ignores = if self.options.ignored {
            None
        } else {
            Ignores::read(&dir, &entries, path.rel(), above, &mut walked.skipped)
        };
        let dir = Arc::new(dir);
        let folder = Arc::new(Folder { path, identity, dir: Mutex::new(Arc::downgrade(&dir)) });
        *inside = Some((Arc::clone(&folder), dir));
        let mut at = folder.path.clone();
        let mut batch = Vec::new();
        let send = |batch: &mut Vec<Entry>, jobs: &mut Vec<(Place, Job)>| {
            if let Some(first) = batch.first() {
                let place = Place::of(folder.path.join(&first.name).rel());
                jobs.push((place, Job::Visit { folder: Arc::clone(&folder), entries: std::mem::take(batch) }));
            }
        };
        for (count, entry) in entries.into_iter().enumerate() {
            if count.is_multiple_of(64) {
                self.gate.checkpoint()?;
            }
            if is_live_temp(&entry.name) {
                continue;
            }
            at.set_entry(&folder.path, &entry.name);
            if let Some(reason) = self.passes_over(&at, &entry, ignores.as_deref()) {
                walked.skipped.add(reason, 1);
                continue;
            }
            let enter = entry.kind == Kind::Directory && depth < self.options.depth && entry.name != b".git";
            if enter && depth < MAX_DEPTH {
                send(&mut batch, jobs);
                let job = Job::List { path: at.clone(), depth: depth + 1, above: ignores.clone() };
                jobs.push((Place::beneath(at.rel()), job));
                continue;
            }
            walked.skipped.add("too_deep", u64::from(enter));
            batch.push(entry);
            if batch.len() == BATCH {
                send(&mut batch, jobs);
            }
        }
        send(&mut batch, jobs);
        Ok(walked)
    }

    /// Why an entry is not reported, if it is not.
    fn passes_over(&self, path: &SandboxPath, entry: &Entry, ignores: Option<&Ignores>) -> Option<&'static str> {
        if self.sandbox.guard(path, Access::List).is_err() || !self.gate.visible(path, self.options.access) {
            return Some("withheld");
        }
        if self.options.hidden.hides(&entry.name) {
            return Some("hidden");
        }
        let is_dir = entry.kind == Kind::Directory;
        ignores.is_some_and(|ignores| ignores.ignored(path.rel(), is_dir)).then_some("ignored")
    }

    fn visit(
        &self,
        worker: &mut S,
        folder: &Arc<Folder>,
        entries: &[Entry],
        inside: &mut Inside,
    ) -> Result<Walked<T>, ToolError> {
        self.gate.poll()?;
        let dir = match self.enter(folder, inside) {
            Ok(dir) => dir,
            Err(reason) => return Ok(Walked::passed_over(reason)),
        };
        let (mut walked, mut path) = (Walked::default(), folder.path.clone());
        for entry in entries {
            path.set_entry(&folder.path, &entry.name);
            let found = Found { dir: Some(dir), path: &path, kind: entry.kind, over: self.order.over() };
            (self.visit)(worker, found, &mut walked)?;
            if self.options.caps.passed(&walked) {
                break;
            }
        }
        Ok(walked)
    }

    /// The folder, open: the one that this thread is in, or that another is in, or opened again.
    fn enter<'i>(&self, folder: &Arc<Folder>, inside: &'i mut Inside) -> Result<&'i Dir, &'static str> {
        if !inside.as_ref().is_some_and(|(here, _)| Arc::ptr_eq(here, folder)) {
            *inside = None;
            let mut known = folder.dir.lock().unwrap_or_else(PoisonError::into_inner);
            let dir = if let Some(dir) = known.upgrade() {
                dir
            } else {
                let (dir, identity) = self.open(&folder.path)?;
                if identity != folder.identity {
                    return Err("moved");
                }
                let dir = Arc::new(dir);
                *known = Arc::downgrade(&dir);
                dir
            };
            *inside = Some((Arc::clone(folder), dir));
        }
        inside.as_ref().map(|(_, dir)| &**dir).ok_or("moved")
    }

    /// Opens a folder by its link-free name. `Err` is the reason why it is passed over.
    fn open(&self, path: &SandboxPath) -> Result<(Dir, (u64, u64)), &'static str> {
        let mount = self.sandbox.mount(path).map_err(|_| "moved")?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let dir = Dir::new(mount.resolver.open(&mount.root, path.rel(), flags).map_err(reason)?);
        let identity = dir.identity().map_err(reason)?;
        self.sandbox.require_storage(path, identity.0, &dir).map_err(|_| "not_storage")?;
        Ok((dir, identity))
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
    pub(crate) fn new(found: Found<'_>) -> Self {
        let size = (found.kind == Kind::File).then(|| found.size()).flatten();
        Self { path: found.path.to_string(), kind: found.kind, size }
    }
}

impl Sandbox {
    /// Opens a file that a walk found. `Err` is the reason why it is passed over.
    pub(crate) fn open_found(&self, found: Found<'_>) -> Result<OpenFile, &'static str> {
        let (dir, name) = found.place().ok_or("moved")?;
        let fd = dir.open(name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).map_err(reason)?;
        let stat = fs::fstat(&fd).map_err(reason)?;
        self.require_file(found.path, &stat, &fd).map_err(|e| match e.code {
            Code::NotRegularFile => "special",
            _ => "withheld",
        })?;
        Ok(OpenFile::new(fd, &stat, found.path.clone()))
    }
}
