//! Removal: an entry itself, a folder with all beneath it, descriptor by descriptor.

use std::time::Instant;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::dir::{Component, Dir, Entry, Kind};
use super::{Access, Gate, Sandbox, SandboxPath, explain, host, spelled, target, unsteady, write};
use crate::error::{Code, ToolError};

/// The deepest tree that is removed: each level holds a descriptor.
const MAX_DEPTH: usize = 64;

/// What was removed.
#[derive(Clone, Debug)]
pub(crate) struct Removed {
    /// The link-free name of the folder that held it, and its own.
    pub(crate) path: SandboxPath,
    pub(crate) kind: Kind,
    /// How many entries are gone.
    pub(crate) entries: u64,
}

/// A removal under way.
struct Sweep<'s> {
    sandbox: &'s Sandbox,
    gate: &'s dyn Gate,
    /// The name that was asked for.
    shown: &'s SandboxPath,
    /// What lies on another device is left: it is mounted there.
    device: u64,
    /// Only looks whether all may be removed.
    rehearsal: bool,
    removed: u64,
}

impl Sandbox {
    /// Removes the entry itself: a link is not followed, a folder goes with all beneath it. Every name is authorised before
    /// the first is removed, and again when its turn comes.
    pub(crate) fn remove(&self, path: &SandboxPath, gate: &dyn Gate) -> Result<Removed, ToolError> {
        if path.detour().is_some() || path.rel().is_empty() {
            return Err(ToolError::new(Code::InvalidArgs, format!("`{path}` is not removed"))
                .hint("Name one file or folder below a mount, without `..`."));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let (fd, parent) = self.open(&path.parent(), flags, Access::List, gate)?;
        let dir = Dir::new(fd);
        let failed = |errno| explain(path, errno);
        let device = dir.identity().map_err(failed)?.0;
        let look = |name: &[u8]| Component::of(name).and_then(|name| dir.look(name)).map_err(failed);
        let mut name = path.name().to_vec();
        // Refused before anything is told of what is there.
        self.guard_as(&parent.join(&name), path, Access::Delete)?;
        let found = look(&name)?;
        if self.may_be_folded(&parent.join(&name), gate) {
            name = spelled(&dir, name, found.identity);
        }
        let real = parent.join(&name);
        self.require_storage(&real, device, &dir)?;
        let entry = Entry { name, kind: found.kind };
        let mut sweep = Sweep { sandbox: self, gate, shown: path, device, rehearsal: true, removed: 0 };
        sweep.entry(&dir, &real, &entry, 0)?;
        target::lock_dir(&dir, path, Instant::now(), gate)?;
        sweep.rehearsal = false;
        let done = match look(&entry.name) {
            Ok(now) if now.identity != found.identity => Err(unsteady(path)),
            Ok(_) => sweep.entry(&dir, &real, &entry, 0),
            Err(error) => Err(error),
        };
        let synced = if self.constraints.power_safe { dir.sync().map_err(failed) } else { Ok(()) };
        host::unlock(&dir);
        done.and(synced).map_err(|error| sweep.told(error))?;
        Ok(Removed { path: real, kind: found.kind, entries: sweep.removed })
    }
}

impl Sweep<'_> {
    fn entry(&mut self, dir: &Dir, path: &SandboxPath, entry: &Entry, depth: usize) -> Result<(), ToolError> {
        // The host is asked for signals before the lock is taken, not under it.
        if self.rehearsal { self.gate.poll() } else { self.gate.checkpoint() }?;
        self.permit(path, &entry.name, depth)?;
        let failed = |errno| self.failed(path, errno);
        let name = Component::of(&entry.name).map_err(failed)?;
        if entry.kind == Kind::Directory {
            let sub = dir.open_dir(name).map_err(failed)?;
            if sub.identity().map_err(failed)?.0 != self.device {
                return Err(self.refused("another file system is mounted in it"));
            }
            if depth == MAX_DEPTH {
                return Err(self.refused(&format!("it is more than {MAX_DEPTH} folders deep")));
            }
            for entry in sub.entries(usize::MAX).map_err(failed)? {
                self.entry(&sub, &path.join(&entry.name), &entry, depth + 1)?;
            }
        }
        if self.rehearsal {
            return Ok(());
        }
        match entry.kind {
            Kind::Directory => dir.remove_dir(name),
            _ => dir.remove(name),
        }
        .map_err(|errno| self.failed(path, errno))?;
        self.removed += 1;
        Ok(())
    }

    /// Whether that name may go; beneath what was asked for, what is hidden is not told.
    fn permit(&self, path: &SandboxPath, name: &[u8], depth: usize) -> Result<(), ToolError> {
        if depth > 0 && write::is_temp_name(name) {
            // Left by a writer that was killed.
            return if write::is_live_temp(name) { Err(unsteady(self.shown)) } else { Ok(()) };
        }
        if self.sandbox.aliases(path).any(|alias| alias.rel().is_empty()) {
            return Err(self.refused("a mount of this run lies in it"));
        }
        let shown = if depth == 0 { self.shown } else { path };
        match self.sandbox.guard_as(path, shown, Access::Delete) {
            Err(error) if depth > 0 && error.code == Code::NotFound => {
                Err(self.refused("it holds something that is not removed"))
            }
            Err(error) => Err(error),
            Ok(()) => self.gate.permit(path, Access::Delete),
        }
    }

    fn refused(&self, why: &str) -> ToolError {
        ToolError::new(Code::Denied, format!("`{}` cannot be removed: {why}", self.shown))
            .hint("Remove what is not needed in it by name.")
    }

    fn failed(&self, path: &SandboxPath, errno: Errno) -> ToolError {
        match errno {
            Errno::NOENT if path != self.shown => unsteady(self.shown),
            Errno::NOTEMPTY | Errno::LOOP | Errno::NOTDIR | Errno::ISDIR => unsteady(self.shown),
            Errno::NOENT => explain(self.shown, errno),
            errno => ToolError::io(&path.to_string(), "removing", errno),
        }
    }

    /// A failure in the middle says what is gone.
    fn told(&self, mut error: ToolError) -> ToolError {
        if self.removed > 0 {
            error.message = format!("{}; {} entries in it are gone already", error.message, self.removed);
            error = error.details(serde_json::json!({"removed": self.removed}));
        }
        error
    }
}
