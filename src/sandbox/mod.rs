//! The only opener. Every file that a tool reads, writes or lists is opened here, relative to a held directory, and
//! resolved beneath it by the kernel; the other rooms get descriptors, never names.
//!
//! No decision is followed by a lookup that can follow a link: a requested name is authorised first and opened with
//! links forbidden; where it holds a link, the link is expanded component by component to a link-free name, that name
//! is authorised, and that name is opened with links forbidden.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "the one opener")]

mod attributes;
pub(crate) mod dir;
mod folding;
pub mod host;
mod ignores;
pub(crate) mod mount;
mod open_file;
mod order;
mod overlap;
pub(crate) mod path;
mod remove;
mod resolver;
pub(crate) mod target;
pub(crate) mod walk;
pub(crate) mod write;

use std::borrow::Cow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustix::fs::{self, Mode, OFlags, Stat};
use rustix::io::Errno;

pub use self::dir::Kind;
use self::dir::{Component, Dir};
use self::folding::spelled;
pub use self::mount::MountSpec;
use self::mount::{Mount, Pin};
pub use self::open_file::OpenFile;
pub(crate) use self::open_file::{content_hash, hash_text, too_large};
use self::overlap::{KernelMounts, overlaps};
pub use self::path::SandboxPath;
pub(crate) use self::path::is_deceptive;
use self::path::{MountTable, components};
use crate::error::{Code, KgentError, ToolError};
use crate::permission::{Capability, Effect, Pattern, Resource, Rule, fold};

/// How often a name is expanded anew, when it keeps changing under the call.
const MAX_RETRIES: usize = 16;
/// The largest folder that near names are looked for in.
const MAX_SUGGESTED_FROM: usize = 4096;
/// The mount of loaded skills.
const SKILLS: &str = "skills";
/// The most links in one name, as in the kernel.
const MAX_LINKS: usize = 40;

/// What a door is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The content of a file.
    Read,
    /// Creating or replacing a file.
    Write,
    /// Removing a file, or moving it away.
    Delete,
    /// Names, types and sizes.
    List,
}

/// The call that a door is opened for: it authorises names and says when to stop.
pub trait Gate: Sync {
    /// Authorises the name; asked again for each name that links led to.
    fn permit(&self, path: &SandboxPath, access: Access) -> Result<(), ToolError>;
    /// Whether a walk may report the name; not recorded.
    fn visible(&self, path: &SandboxPath, access: Access) -> bool;
    /// Whether the policy would forbid the name in another case or normal form.
    fn may_be_folded(&self, _path: &SandboxPath) -> bool {
        false
    }
    /// What the host's approval of the call says that the file of that link-free name holds; `None` where it says nothing.
    fn approved_state(&self, _path: &SandboxPath) -> Option<&str> {
        None
    }
    /// Fails once the call is cancelled or its time is up. Asks nobody: fit for use under a lock.
    fn checkpoint(&self) -> Result<(), ToolError>;
    /// The same, and asks the host now and then whether it was interrupted.
    fn poll(&self) -> Result<(), ToolError>;
}

/// What the config forbids, whatever the policy says.
#[derive(Debug, Default)]
pub struct Constraints {
    /// Names that tools do not see.
    pub hidden: Vec<Pattern>,
    /// Names that tools do not write.
    pub read_only: Vec<Pattern>,
    /// Whether a file with more than one name is refused.
    pub deny_hard_links: bool,
    /// Whether writes survive a power cut.
    pub power_safe: bool,
}

/// The host's own look: the policy is for tools.
pub(crate) struct HostGate;

impl Gate for HostGate {
    fn permit(&self, _: &SandboxPath, _: Access) -> Result<(), ToolError> {
        Ok(())
    }

    fn visible(&self, _: &SandboxPath, _: Access) -> bool {
        true
    }

    fn checkpoint(&self) -> Result<(), ToolError> {
        Ok(())
    }

    fn poll(&self) -> Result<(), ToolError> {
        Ok(())
    }
}

/// Names that no tool writes, by the number of their mount, and what pins them.
#[derive(Clone, Debug, Default)]
struct Frozen {
    names: Vec<(usize, Vec<u8>)>,
    pins: Vec<Arc<Pin>>,
    /// Whether one of the names has letters that fold.
    folds: bool,
}

/// The mounts of a run, and the doors to them.
#[derive(Debug)]
pub struct Sandbox {
    table: Arc<MountTable>,
    mounts: Vec<Mount>,
    pins: Vec<Pin>,
    /// What was frozen after the mounts were made: by mount, names that no tool writes; and their pins.
    frozen: ArcSwap<Frozen>,
    constraints: Constraints,
    /// Whether a name that the sandbox protects has letters that fold.
    folds: bool,
    /// Devices other than a mount's own that were found to be storage.
    storage: ArcSwap<Vec<u64>>,
}

impl Sandbox {
    /// Holds each mount. `runs` is the runs directory: out of reach through every mount but the private ones.
    /// `frozen` are host paths that no tool writes.
    pub fn new(
        specs: Vec<MountSpec>,
        runs: &std::path::Path,
        frozen: &[std::path::PathBuf],
        constraints: Constraints,
    ) -> Result<Self, KgentError> {
        let kernel = KernelMounts::read();
        let opened = specs.into_iter().map(|spec| Mount::open(spec, &kernel));
        let mut mounts = opened.collect::<Result<Vec<_>, _>>()?;
        let fail = |what: &std::path::Path, e: std::io::Error| KgentError::Run(format!("`{}`: {e}", what.display()));
        let runs_stored =
            kernel.place(&mount::host_components(&std::fs::canonicalize(runs).map_err(|e| fail(runs, e))?));
        let (mut pins, mut runs_pinned) = (Vec::new(), false);
        for mount in mounts.iter_mut().filter(|m| !m.spec.private) {
            mount.withheld = mount.names_within(&runs_stored).collect();
            if mount.withheld.iter().any(Vec::is_empty) {
                return Err(KgentError::Run(format!(
                    "mount `{}`: it is the runs directory or lies in it, which no tool may reach",
                    mount.spec.name
                )));
            }
            for rel in &mount.withheld {
                pins.extend(mount.pin(rel).map_err(|e| fail(runs, e.into()))?);
                runs_pinned = true;
            }
        }
        if !runs_pinned {
            pins.extend(host::pin(runs).map_err(|e| fail(runs, e.into()))?);
        }
        let table = Arc::new(MountTable {
            names: mounts.iter().map(|m| m.spec.name.clone()).collect(),
            roots: mounts.iter().enumerate().flat_map(|(i, m)| roots(i, m)).collect(),
        });
        for index in 0..mounts.len() {
            let found = overlaps(&mounts, index);
            if let Some(mount) = mounts.get_mut(index) {
                mount.overlaps = found;
            }
        }
        let protected = mounts.iter().flat_map(|mount| &mount.withheld);
        let folds = protected.into_iter().any(|name| matches!(fold(name), Cow::Owned(_)))
            || constraints.hidden.iter().chain(&constraints.read_only).any(Pattern::folds);
        let later = ArcSwap::default();
        let sandbox = Self { table, mounts, pins, frozen: later, constraints, folds, storage: ArcSwap::default() };
        sandbox.freeze(frozen.iter().map(std::path::PathBuf::as_path))?;
        Ok(sandbox)
    }

    /// From now on no tool writes these host paths, or what lies beneath them, through any mount.
    pub(crate) fn freeze<'a>(&self, paths: impl Iterator<Item = &'a std::path::Path>) -> Result<(), KgentError> {
        let mut paths = paths.peekable();
        if paths.peek().is_none() {
            return Ok(());
        }
        let kernel = KernelMounts::read();
        let mut more = Frozen::default();
        for path in paths {
            let fail =
                |e: std::io::Error| KgentError::Run(format!("`{}` cannot be kept from writing: {e}", path.display()));
            let real = std::fs::canonicalize(path).map_err(fail)?;
            let place = kernel.place(&mount::host_components(&real));
            let mounts = self.mounts.iter().enumerate().filter(|(_, mount)| !mount.spec.private);
            for (index, mount, rel) in
                mounts.flat_map(|(index, mount)| mount.names_within(&place).map(move |rel| (index, mount, rel)))
            {
                let known = |names: &[(usize, Vec<u8>)]| names.iter().any(|(m, name)| *m == index && *name == rel);
                if known(&self.frozen.load().names) || known(&more.names) {
                    continue;
                }
                more.pins.extend(mount.pin(&rel).map_err(|e| fail(e.into()))?.into_iter().map(Arc::new));
                more.names.push((index, rel));
            }
        }
        if !more.names.is_empty() {
            more.folds = more.names.iter().any(|(_, name)| matches!(fold(name), Cow::Owned(_)));
            self.frozen.rcu(|now| Frozen {
                folds: now.folds || more.folds,
                names: now.names.iter().chain(&more.names).cloned().collect(),
                pins: now.pins.iter().chain(&more.pins).cloned().collect(),
            });
        }
        Ok(())
    }

    /// The mounts, in order; the workspace is the first.
    pub fn mounts(&self) -> impl Iterator<Item = &MountSpec> {
        self.mounts.iter().map(|m| &m.spec)
    }

    /// The mounts' names, in order.
    pub fn mount_names(&self) -> &[String] {
        &self.table.names
    }

    /// Each mount's name, and the device and inode of its root.
    pub fn roots_identity(&self) -> Vec<(String, u64, u64)> {
        self.mounts.iter().map(|m| (m.spec.name.clone(), m.dev, m.ino)).collect()
    }

    /// The mount in which a file of the host's lies.
    pub(crate) fn mount_of(&self, file: &std::path::Path) -> Result<Option<&str>, KgentError> {
        let real = host::real_path(file)?;
        let parts = mount::host_components(&real);
        let holds = |mount: &&Mount| parts.starts_with(&mount.real);
        Ok(self.mounts.iter().find(holds).map(|mount| mount.spec.name.as_str()))
    }

    /// Each mount's name and the link-free host path of its root: for the host, no tool tells it.
    pub fn real_roots(&self) -> impl Iterator<Item = (String, std::path::PathBuf)> {
        self.mounts.iter().map(|mount| (mount.spec.name.clone(), mount::host_path(&mount.real)))
    }

    /// The host paths of each mount's root, as given and as resolved, and what stands for them in text.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = (String, String)> {
        self.table.roots.iter().map(|(mount, root)| {
            let name = self.table.names.get(*mount).map_or("", String::as_str);
            (format!("/{}", String::from_utf8_lossy(&root.join(&b'/'))), format!("<{name}>"))
        })
    }

    /// The sandbox's layer of the policy: what it forbids whatever a config allows.
    pub fn rules(&self) -> Vec<Rule> {
        let mounts = self.mounts.iter().filter(|m| !m.spec.writable).map(|m| format!("{}/**", m.spec.name));
        let patterns = self.constraints.read_only.iter().map(|p| p.as_str().to_owned());
        let deny = |resource: String| Rule::new(Effect::Deny, Capability::FilesystemWrite.as_str(), resource);
        mounts.chain(patterns).map(deny).collect()
    }

    /// The link-free name that model-facing text leads to; the last components may be missing.
    pub fn resolve(&self, text: &str) -> Result<SandboxPath, ToolError> {
        let path = self.parse(text)?;
        self.guard(&path, Access::List)?;
        let real = self.expand(&path, true)?;
        self.guard_as(&real, &path, Access::List)?;
        Ok(real)
    }

    /// How names are resolved, and what weakens the promises here.
    pub(crate) fn describe(&self) -> impl Iterator<Item = (&str, serde_json::Value)> {
        self.mounts.iter().map(|m| {
            let resolver = if m.resolver == resolver::Resolver::Kernel { "openat2" } else { "descent" };
            let said = serde_json::json!({"resolver": resolver, "may_hang": m.remote, "atomic_exchange": m.exchanges});
            (m.spec.name.as_str(), said)
        })
    }

    /// Parses model-facing text.
    pub fn parse(&self, text: &str) -> Result<SandboxPath, ToolError> {
        path::parse(&self.table, text)
    }

    fn mount(&self, path: &SandboxPath) -> Result<&Mount, ToolError> {
        self.mounts.get(path.mount_index()).ok_or_else(|| {
            ToolError::new(Code::OutsideSandbox, format!("`{path}` names a mount that this run does not have"))
        })
    }

    /// Whether the name lies in a mount that the user added.
    pub(crate) fn is_external(&self, path: &SandboxPath) -> bool {
        self.mounts.get(path.mount_index()).is_some_and(|m| m.spec.external)
    }

    /// Fails where a pinned name no longer leads to what was pinned.
    pub(crate) fn verify(&self) -> Result<(), ToolError> {
        self.pins.iter().try_for_each(Pin::verify)?;
        self.frozen.load().pins.iter().try_for_each(|pin| pin.verify())
    }

    /// The other names of the same object, through overlapping mounts.
    pub(crate) fn aliases<'a>(&'a self, path: &'a SandboxPath) -> impl Iterator<Item = SandboxPath> + 'a {
        let overlaps = self.mounts.get(path.mount_index()).map_or(&[][..], |m| &m.overlaps);
        overlaps.iter().filter_map(|o| {
            let rest = beneath(path.rel(), &o.strip)?;
            let rel = if o.prepend.is_empty() || rest.is_empty() {
                [o.prepend.as_slice(), rest].concat()
            } else {
                [o.prepend.as_slice(), rest].join(&b'/')
            };
            Some(path.on(o.mount, rel))
        })
    }

    /// What the sandbox itself forbids of a name, under each name that the object has. Makes no system call.
    pub(crate) fn guard(&self, path: &SandboxPath, access: Access) -> Result<(), ToolError> {
        self.guard_as(path, path, access)
    }

    /// The same of a name that links led to from `shown`: a hidden name is never told to whoever did not send it.
    fn guard_as(&self, path: &SandboxPath, shown: &SandboxPath, access: Access) -> Result<(), ToolError> {
        self.guard_one(path, shown, access)?;
        self.aliases(path).try_for_each(|alias| self.guard_one(&alias, shown, access))
    }

    fn guard_one(&self, path: &SandboxPath, shown: &SandboxPath, access: Access) -> Result<(), ToolError> {
        let mount = self.mount(path)?;
        let under = |names: &[Vec<u8>]| names.iter().any(|name| beneath(path.rel(), name).is_some());
        let matches = |patterns: &[Pattern]| {
            patterns.iter().any(|p| p.covers(&Resource { mount: path.mount(), rel: path.rel() }))
        };
        if under(&mount.withheld) || matches(&self.constraints.hidden) {
            return Err(not_found(shown));
        }
        if matches!(access, Access::Read | Access::List) {
            return Ok(());
        }
        let read_only = |why: &str| {
            Err(ToolError::new(Code::ReadOnly, format!("`{shown}` cannot be written: {why}"))
                .hint("Write elsewhere, for example under `deliverables/`."))
        };
        if !mount.spec.writable {
            return read_only(&format!("the mount `{}` is read-only", path.mount()));
        }
        if components(path.rel()).any(|c| c == b".git") {
            return read_only("`.git` is read-only for tools");
        }
        let frozen = self.frozen.load();
        let in_frozen =
            |(index, name): &(usize, Vec<u8>)| *index == path.mount_index() && beneath(path.rel(), name).is_some();
        if frozen.names.iter().any(in_frozen) {
            return read_only("it configures this run");
        }
        if matches(&self.constraints.read_only) {
            return read_only("the config makes it read-only");
        }
        if components(path.rel()).any(write::is_temp_name) {
            return Err(ToolError::new(Code::InvalidArgs, format!("`{shown}` has the form of a temporary name"))
                .hint("Choose another name."));
        }
        Ok(())
    }

    /// Opens `path` with `flags`, link-free or not at all, and says under which name.
    fn open(
        &self,
        path: &SandboxPath,
        flags: OFlags,
        access: Access,
        gate: &dyn Gate,
    ) -> Result<(OwnedFd, SandboxPath), ToolError> {
        let mut real = path.clone();
        let mut spell = self.may_be_folded(path, gate);
        let mut expand = spell || path.detour().is_some();
        for _ in 0..MAX_RETRIES {
            if expand {
                real = self.expand(&real, spell)?;
                if !spell && self.may_be_folded(&real, gate) {
                    spell = true;
                    continue;
                }
            }
            self.guard_as(&real, path, access)?;
            if expand {
                gate.permit(&real, access)?;
            }
            let mount = self.mount(&real)?;
            match mount.resolver.open(&mount.root, real.rel(), flags) {
                Ok(fd) => return Ok((fd, real)),
                Err(Errno::LOOP) => expand = true,
                Err(errno) => return Err(explain(path, errno)),
            }
        }
        Err(unsteady(path))
    }

    /// The link-free name that `path` leads to, for a question that is asked before it is opened.
    pub(crate) fn follow(&self, path: &SandboxPath, access: Access) -> Result<SandboxPath, ToolError> {
        let real = self.expand(path, true)?;
        self.guard_as(&real, path, access)?;
        Ok(real)
    }

    /// What a link-free name leads to, as an approval is bound to it: nothing, a file's content, or another kind. It is
    /// for the host, whatever the policy lets the call see.
    pub(crate) fn state(&self, path: &SandboxPath, limit: u64) -> Result<String, ToolError> {
        let mount = self.mount(path)?;
        let fd = match mount.resolver.open(&mount.root, path.rel(), OFlags::PATH) {
            Err(Errno::NOENT) => return Ok("absent".to_owned()),
            opened => opened.map_err(|e| explain(path, e))?,
        };
        let stat = fs::fstat(&fd).map_err(|e| explain(path, e))?;
        let kind = Kind::of(stat.st_mode);
        if kind != Kind::File {
            return Ok(kind.as_str().to_owned());
        }
        self.require_file(path, &stat, &fd)?;
        if size(&stat) > limit {
            return Ok(format!("{} bytes, changed {}.{:09}", size(&stat), stat.st_mtime, stat.st_mtime_nsec));
        }
        let opened = mount.resolver.open(&mount.root, path.rel(), OFlags::RDONLY | OFlags::NONBLOCK);
        let fd = opened.map_err(|e| explain(path, e))?;
        let now = fs::fstat(&fd).map_err(|e| explain(path, e))?;
        let identity = (now.st_dev, now.st_ino);
        if identity != (stat.st_dev, stat.st_ino) {
            return Err(unsteady(path));
        }
        let file = OpenFile::new(fd, &now, path.clone());
        Ok(content_hash(&file.read_all(limit)?))
    }

    /// Opens a regular file for reading. It is typed by a descriptor that has no side effects before it is opened for
    /// its data, and both must be the same object.
    pub fn open_file(&self, path: &SandboxPath, gate: &dyn Gate) -> Result<OpenFile, ToolError> {
        for _ in 0..MAX_RETRIES {
            let (probe, real) = self.open(path, OFlags::PATH, Access::Read, gate)?;
            let stat = fs::fstat(&probe).map_err(|e| explain(path, e))?;
            self.require_file(&real, &stat, &probe)?;
            let mount = self.mount(&real)?;
            let fd = match mount.resolver.open(&mount.root, real.rel(), OFlags::RDONLY | OFlags::NONBLOCK) {
                Ok(fd) => fd,
                Err(Errno::LOOP | Errno::NOENT | Errno::NOTDIR | Errno::NXIO) => continue,
                Err(errno) => return Err(explain(path, errno)),
            };
            let opened = fs::fstat(&fd).map_err(|e| explain(path, e))?;
            if (opened.st_dev, opened.st_ino) == (stat.st_dev, stat.st_ino) {
                return Ok(OpenFile::new(fd, &opened, real));
            }
        }
        Err(unsteady(path))
    }

    /// Whether the change time of a file that was opened here can be relied on: it is this machine's own.
    pub(crate) fn keeps_times(&self, file: &OpenFile) -> bool {
        self.mount(&file.path).is_ok_and(|mount| !mount.remote && mount.dev == file.identity.0)
    }

    /// `error` with names near the missing one, where the policy lets the call see them.
    pub(crate) fn suggest(&self, error: ToolError, path: &SandboxPath, gate: &dyn Gate) -> ToolError {
        if error.code != Code::NotFound {
            return error;
        }
        let parent = path.parent();
        let Ok((dir, real)) = self.open_dir(&parent, gate) else { return error };
        let Ok(entries) = dir.entries(MAX_SUGGESTED_FROM) else { return error };
        let visible = |name: &[u8]| {
            let entry = real.join(name);
            self.guard(&entry, Access::List).is_ok() && gate.visible(&entry, Access::List)
        };
        let entries = entries.iter().filter(|e| visible(&e.name)).filter_map(|e| std::str::from_utf8(&e.name).ok());
        let names: Vec<&str> = entries.collect();
        let wanted = String::from_utf8_lossy(path.name());
        let near = similar::get_close_matches(&*wanted, &names, 3, 0.6);
        let near: Vec<String> = near.into_iter().map(|name| parent.join(name.as_bytes()).to_string()).collect();
        if near.is_empty() {
            return error;
        }
        let hint = format!("Did you mean `{}`?", near.join("` or `"));
        error.hint(hint).details(serde_json::json!({"did_you_mean": near}))
    }

    fn require_file(&self, path: &SandboxPath, stat: &Stat, fd: impl AsFd) -> Result<(), ToolError> {
        match Kind::of(stat.st_mode) {
            Kind::File => {}
            Kind::Directory => {
                return Err(ToolError::new(Code::IsDirectory, format!("`{path}` is a directory"))
                    .hint(format!("List it with list_files(path=\"{path}\").")));
            }
            other => {
                return Err(ToolError::new(
                    Code::NotRegularFile,
                    format!("`{path}` is a {}, not a regular file", other.as_str()),
                )
                .hint("Only regular files are read and written."));
            }
        }
        if self.constraints.deny_hard_links && stat.st_nlink > 1 {
            return Err(ToolError::new(
                Code::Denied,
                format!("`{path}` has more than one name (hard links are refused)"),
            ));
        }
        self.require_storage(path, stat.st_dev, fd)
    }

    fn require_storage(&self, path: &SandboxPath, dev: u64, fd: impl AsFd) -> Result<(), ToolError> {
        if self.mount(path)?.dev == dev || self.storage.load().contains(&dev) {
            return Ok(());
        }
        if !mount::on_storage(fd) {
            return Err(ToolError::new(
                Code::NotRegularFile,
                format!("`{path}` is not on a file system that stores files"),
            ));
        }
        self.storage.rcu(|known| known.iter().copied().chain([dev]).collect::<Vec<_>>());
        Ok(())
    }

    /// Opens a directory for listing.
    pub(crate) fn open_dir(&self, path: &SandboxPath, gate: &dyn Gate) -> Result<(Dir, SandboxPath), ToolError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let opened = self.open(path, flags, Access::List, gate);
        let (fd, real) = opened.map_err(|error| match (error.code, self.stat(path, gate)) {
            (Code::NotADirectory, Ok((kind, _, _))) => {
                ToolError::new(Code::NotADirectory, format!("`{path}` is a {}, not a directory", kind.as_str()))
                    .hint(format!("Read it with read_file(path=\"{path}\"), or name the folder that holds it."))
            }
            _ => error,
        })?;
        let stat = fs::fstat(&fd).map_err(|e| explain(path, e))?;
        self.require_storage(&real, stat.st_dev, &fd)?;
        Ok((Dir::new(fd), real))
    }

    /// What `path` leads to.
    pub(crate) fn stat(&self, path: &SandboxPath, gate: &dyn Gate) -> Result<(Kind, u64, SandboxPath), ToolError> {
        let (fd, real) = self.open(path, OFlags::PATH, Access::List, gate)?;
        let stat = fs::fstat(&fd).map_err(|e| explain(path, e))?;
        Ok((Kind::of(stat.st_mode), size(&stat), real))
    }

    /// When what the host finds at `path` was last changed, in nanoseconds; `None` where nothing is there.
    pub(crate) fn changed(&self, path: &SandboxPath) -> Result<Option<i128>, ToolError> {
        match self.open(path, OFlags::PATH, Access::List, &HostGate) {
            Ok((fd, _)) => {
                let stat = fs::fstat(&fd).map_err(|e| explain(path, e))?;
                Ok(Some(i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec)))
            }
            Err(error) if error.code == Code::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The link-free name that `path` leads to, component by component on held descriptors; `..` pops one and is never
    /// given to the kernel. Where a component is missing the rest is kept as it stands. With `spell` each name is that of
    /// the entry itself, where the volume takes another case or normal form for it.
    fn expand(&self, path: &SandboxPath, spell: bool) -> Result<SandboxPath, ToolError> {
        let mut mount_index = path.mount_index();
        let mut links = 0;
        let mut todo: Vec<Vec<u8>> = stack(path.detour().unwrap_or(path.rel()));
        let mut done: Vec<(Option<Dir>, Vec<u8>)> = Vec::new();
        while let Some(part) = todo.pop() {
            let Some(mount) = self.mounts.get(mount_index) else { return Err(unsteady(path)) };
            if part == b".." {
                if done.pop().is_some() {
                    continue;
                }
                // A link climbs above its mount's root: go on from the real host path, which may lie in another mount.
                let mut host = mount.real.clone();
                host.pop();
                (mount_index, todo) = self.cross(path, host, todo)?;
                continue;
            }
            let at = match done.last() {
                Some((dir, _)) => dir.as_ref().map(AsFd::as_fd),
                None => Some(mount.root.as_fd()),
            };
            // Beneath a missing component there is nothing to look at.
            let Some(at) = at else {
                done.push((None, part));
                continue;
            };
            let opened = Component::of(&part).and_then(|name| dir::open_at(at, name, OFlags::PATH, Mode::empty()));
            let fd = match opened {
                Ok(fd) => fd,
                Err(Errno::NOENT) => {
                    done.push((None, part));
                    continue;
                }
                Err(errno) => return Err(explain(path, errno)),
            };
            let stat = fs::fstat(&fd).map_err(|e| explain(path, e))?;
            if Kind::of(stat.st_mode) != Kind::Link {
                let part = if spell { spelled(at, part, (stat.st_dev, stat.st_ino)) } else { part };
                done.push((Some(Dir::new(fd)), part));
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(ToolError::new(Code::NotFound, format!("`{path}` leads through too many links")));
            }
            let target = fs::readlinkat(&fd, c"", Vec::new()).map_err(|e| explain(path, e))?.into_bytes();
            if target.first() == Some(&b'/') {
                todo.extend(stack(&target));
                done.clear();
                (mount_index, todo) = self.cross(path, Vec::new(), todo)?;
            } else {
                todo.extend(stack(&target));
            }
        }
        let rel = done.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(&b'/');
        Ok(SandboxPath::new(&self.table, mount_index, rel))
    }

    /// The mount that a host path lies in, and what remains to be resolved beneath it.
    fn cross(
        &self,
        path: &SandboxPath,
        host: Vec<Vec<u8>>,
        todo: Vec<Vec<u8>>,
    ) -> Result<(usize, Vec<Vec<u8>>), ToolError> {
        let whole = host.into_iter().chain(todo.into_iter().rev()).collect::<Vec<_>>().join(&b'/');
        let (mount, rest) = path::locate(&self.table, &whole).ok_or_else(|| {
            ToolError::new(Code::OutsideSandbox, format!("`{path}` leads outside the sandbox through a link"))
                .hint("Use a path that stays inside the mounts.")
        })?;
        Ok((mount, stack(&rest)))
    }
}

/// The components of `rel`, the next one last.
fn stack(rel: &[u8]) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = components(rel).map(<[u8]>::to_vec).collect();
    parts.reverse();
    parts
}

/// `rel` without the leading components `top`; `None` where it does not begin with them.
pub(crate) fn beneath<'a>(rel: &'a [u8], top: &[u8]) -> Option<&'a [u8]> {
    if top.is_empty() {
        return Some(rel);
    }
    let rest = rel.strip_prefix(top)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

fn roots(index: usize, mount: &Mount) -> Vec<(usize, Vec<Vec<u8>>)> {
    let given = std::path::absolute(&mount.spec.host).map(|p| mount::host_components(&p)).unwrap_or_default();
    let mut roots = vec![(index, mount.real.clone())];
    if given != mount.real && !given.iter().any(|c| c == b"..") {
        roots.push((index, given));
    }
    roots
}

pub(crate) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

pub(crate) fn not_found(path: &SandboxPath) -> ToolError {
    ToolError::new(Code::NotFound, format!("`{path}` does not exist"))
        .hint(match path.mount() {
            SKILLS => "A skill's files are there once load_skill has loaded it; a folder `skills` of the workspace is `workspace/skills`.",
            _ => "Look for the right name with list_files or grep_files.",
        })
}

pub(crate) fn unsteady(path: &SandboxPath) -> ToolError {
    ToolError::new(Code::Io, format!("`{path}` kept changing while it was opened")).hint("Try again.")
}

/// A system call's failure on a name, as the model is told of it.
pub(crate) fn explain(path: &SandboxPath, errno: Errno) -> ToolError {
    match errno {
        Errno::NOENT => not_found(path),
        Errno::NOTDIR => ToolError::new(Code::NotADirectory, format!("`{path}`: a component is not a directory"))
            .hint("Look at the parent with list_files."),
        Errno::XDEV => ToolError::new(Code::OutsideSandbox, format!("`{path}` leads outside the sandbox")),
        Errno::NAMETOOLONG => ToolError::new(Code::InvalidArgs, "the path is too long"),
        Errno::NXIO => ToolError::new(Code::NotRegularFile, format!("`{path}` is not a regular file")),
        other => ToolError::io(&path.to_string(), "opening", other),
    }
}
