//! Names about to be written: each resolved to a directory that is held and locked, with what is there now.

use std::time::{Duration, Instant};

use rustix::fs::{self, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::dir::{Component, Dir, Kind, Version};
use super::{Access, Gate, MAX_RETRIES, OpenFile, Sandbox, SandboxPath, components, explain, host, size, unsteady};
use crate::error::{Code, ToolError};

/// How long a write waits for other writers of the same directories.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// A name that a call asks to write.
#[derive(Debug)]
pub(crate) struct Wanted<'w> {
    pub(crate) path: &'w SandboxPath,
    /// What is asked for of each name that links lead to.
    pub(crate) accesses: &'w [Access],
    /// Whether missing folders are made.
    pub(crate) create: bool,
}

/// A name about to be written: its directory, held and locked, and what is there now.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(super) sandbox: &'a Sandbox,
    pub(super) dir: Dir,
    dir_identity: (u64, u64),
    /// Whether the directory's lock is held through this descriptor.
    locked: bool,
    /// Its link-free name.
    pub(crate) path: SandboxPath,
    pub(super) current: Option<Stat>,
    /// Directories made for it, the outermost first.
    made: Vec<(Dir, Vec<u8>)>,
    pub(super) committed: bool,
}

/// The targets of one call, all locked; names that lead to the same one are one.
#[derive(Debug)]
pub(crate) struct Targets<'a> {
    pub(super) all: Vec<Target<'a>>,
    /// Of each name that was asked for, which target it is.
    pub(crate) index: Vec<usize>,
}

impl<'a> Targets<'a> {
    pub(crate) fn get(&self, index: usize) -> Result<&Target<'a>, ToolError> {
        self.all.get(index).ok_or_else(crate::settle::internal)
    }
}

impl Sandbox {
    /// Resolves the names that a call writes, makes missing parents, and locks their directories, each once and in one
    /// order for all writers. Only one writer of a directory is past this point at a time, over all threads, processes
    /// and runs that write through a sandbox.
    pub(crate) fn targets(&self, wanted: &[Wanted<'_>], gate: &dyn Gate) -> Result<Targets<'_>, ToolError> {
        let mut aims: Vec<(SandboxPath, bool)> =
            wanted.iter().map(|w| (w.path.clone(), w.path.detour().is_some())).collect();
        'again: for _ in 0..MAX_RETRIES {
            let mut all: Vec<Target<'_>> = Vec::with_capacity(wanted.len());
            let mut index = Vec::with_capacity(wanted.len());
            for (wanted, aim) in wanted.iter().zip(&mut aims) {
                let target = self.aim(wanted, aim, gate)?;
                let same = |other: &Target<'_>| {
                    other.dir_identity == target.dir_identity && other.path.name() == target.path.name()
                };
                index.push(all.iter().position(same).unwrap_or(all.len()));
                if index.last() == Some(&all.len()) {
                    all.push(target);
                }
            }
            lock(&mut all, gate)?;
            for (at, (wanted, aim)) in wanted.iter().zip(&mut aims).enumerate() {
                let Some(target) = index.get(at).and_then(|at| all.get_mut(*at)) else { continue };
                match target.look() {
                    Ok(()) => target.require_writable(wanted.path)?,
                    Err(Errno::LOOP) => {
                        aim.1 = true;
                        continue 'again;
                    }
                    Err(errno) => return Err(explain(wanted.path, errno)),
                }
            }
            return Ok(Targets { all, index });
        }
        Err(wanted.first().map_or_else(crate::settle::internal, |wanted| unsteady(wanted.path)))
    }

    /// Resolves one name: `aim` is its link-free name as known so far, and whether it is to be expanded.
    fn aim(
        &self,
        wanted: &Wanted<'_>,
        aim: &mut (SandboxPath, bool),
        gate: &dyn Gate,
    ) -> Result<Target<'_>, ToolError> {
        let path = wanted.path;
        let (real, expand) = aim;
        let mut spell = self.may_be_folded(path, gate);
        *expand |= spell;
        for _ in 0..MAX_RETRIES {
            if *expand {
                *real = self.expand(real, spell)?;
                if !spell && self.may_be_folded(real, gate) {
                    spell = true;
                    continue;
                }
            }
            for access in wanted.accesses {
                self.guard_as(real, path, *access)?;
                if *expand {
                    gate.permit(real, *access)?;
                }
            }
            if real.rel().is_empty() {
                return Err(is_directory(path));
            }
            let mount = self.mount(real)?;
            let parent = real.parent();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
            let mut made = Vec::new();
            let dir = match mount.resolver.open(&mount.root, parent.rel(), flags) {
                Ok(fd) => Dir::new(fd),
                Err(Errno::LOOP) => {
                    *expand = true;
                    continue;
                }
                Err(Errno::NOENT) if wanted.create => match self.make_parents(&parent, &mut made) {
                    Ok(dir) => dir,
                    Err(errno) => {
                        remove_empty(&made);
                        if errno == Errno::LOOP {
                            *expand = true;
                            continue;
                        }
                        return Err(explain(path, errno));
                    }
                },
                Err(errno) => return Err(explain(path, errno)),
            };
            let stat = fs::fstat(&dir).map_err(|e| explain(path, e))?;
            let target = Target {
                sandbox: self,
                dir,
                dir_identity: (stat.st_dev, stat.st_ino),
                locked: false,
                path: real.clone(),
                current: None,
                made,
                committed: false,
            };
            if target.is_in_repository() {
                return Err(ToolError::new(
                    Code::ReadOnly,
                    format!("`{path}` cannot be written: it lies in a bare git repository"),
                )
                .hint("Write elsewhere, for example under `deliverables/`."));
            }
            self.require_storage(real, stat.st_dev, &target.dir)?;
            return Ok(target);
        }
        Err(unsteady(path))
    }

    /// Makes the missing components of `parent`, one at a time on held descriptors.
    fn make_parents(&self, parent: &SandboxPath, made: &mut Vec<(Dir, Vec<u8>)>) -> rustix::io::Result<Dir> {
        let mount = self.mount(parent).map_err(|_| Errno::NOENT)?;
        let mode = if mount.spec.private { 0o700 } else { 0o777 };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let mut dir = Dir::new(mount.resolver.open(&mount.root, b"", flags)?);
        for part in components(parent.rel()) {
            let name = Component::of(part)?;
            let next = match dir.open_dir(name) {
                Err(Errno::NOENT) => {
                    // A folder made on another kind of file system may be an order to the kernel, such as a new cgroup.
                    let dev = dir.identity()?.0;
                    self.require_storage(parent, dev, &dir).map_err(|_| Errno::NXIO)?;
                    match dir.make_dir(name, mode) {
                        Ok(()) => {
                            made.push((dir.open_here()?, part.to_vec()));
                        }
                        Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno),
                    }
                    dir.open_dir(name)
                }
                other => other,
            };
            dir = match next {
                // A link there, seen without O_PATH, is ENOTDIR.
                Err(Errno::NOTDIR) if dir.stat(name).is_ok_and(|s| Kind::of(s.st_mode) == Kind::Link) => {
                    return Err(Errno::LOOP);
                }
                other => other?,
            };
        }
        Ok(dir)
    }
}

impl Target<'_> {
    pub(super) fn name(&self) -> rustix::io::Result<Component<'_>> {
        Component::of(self.path.name())
    }

    /// Whether a folder above it is a bare git repository, or the write would make its own folder one. Git runs what
    /// such a folder's `config` and `hooks` say.
    fn is_in_repository(&self) -> bool {
        let has = |dir: &Dir, name: &[u8], kind: Kind| {
            Component::of(name).and_then(|name| dir.look(name)).is_ok_and(|look| look.kind == kind)
        };
        let bare = |dir: &Dir, made: &[u8]| {
            (made == b"HEAD" || has(dir, b"HEAD", Kind::File))
                && (made == b"config" || has(dir, b"config", Kind::File))
                && has(dir, b"objects", Kind::Directory)
        };
        if bare(&self.dir, self.path.name()) {
            return true;
        }
        let Ok(mount) = self.sandbox.mount(&self.path) else { return false };
        let mut above = self.path.parent();
        while !above.rel().is_empty() {
            above = above.parent();
            let opened = mount.resolver.open(&mount.root, above.rel(), OFlags::PATH | OFlags::DIRECTORY);
            if opened.is_ok_and(|fd| bare(&Dir::new(fd), b"")) {
                return true;
            }
        }
        false
    }

    /// Looks at what is there now; a link is `ELOOP`.
    fn look(&mut self) -> rustix::io::Result<()> {
        self.current = match self.name().and_then(|name| self.dir.stat(name)) {
            Ok(stat) if Kind::of(stat.st_mode) == Kind::Link => return Err(Errno::LOOP),
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        Ok(())
    }

    /// Whether a file is there.
    pub(crate) fn exists(&self) -> bool {
        self.current.is_some()
    }

    /// The size of the file that is there, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.current.as_ref().map_or(0, size)
    }

    /// Which state of the file is there.
    pub(crate) fn version(&self) -> Option<Version> {
        self.current.as_ref().map(Version::of)
    }

    /// Refuses what is there where no file can be put in its place.
    fn require_writable(&self, path: &SandboxPath) -> Result<(), ToolError> {
        let Some(mode) = self.current.as_ref().map(|s| s.st_mode) else { return Ok(()) };
        match Kind::of(mode) {
            Kind::File if mode & 0o222 == 0 => {
                Err(ToolError::new(Code::ReadOnly, format!("`{path}` is marked read-only by its mode"))
                    .hint("Write another file, or ask the user to make it writable."))
            }
            Kind::File => Ok(()),
            Kind::Directory => Err(is_directory(path)),
            other => Err(ToolError::new(
                Code::NotRegularFile,
                format!("`{path}` is a {}, not a regular file", other.as_str()),
            )
            .hint("Only regular files are read and written.")),
        }
    }

    /// Opens the file that is there.
    pub(crate) fn open_current(&self) -> Result<Option<OpenFile>, ToolError> {
        let Some(stat) = &self.current else { return Ok(None) };
        let opened = self.name().and_then(|name| self.dir.open(name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()));
        let fd = opened.map_err(|e| explain(&self.path, e))?;
        let now = fs::fstat(&fd).map_err(|e| explain(&self.path, e))?;
        if (now.st_dev, now.st_ino) != (stat.st_dev, stat.st_ino) {
            return Err(unsteady(&self.path));
        }
        self.sandbox.require_file(&self.path, &now, &fd)?;
        Ok(Some(OpenFile::new(fd, &now, self.path.clone())))
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        if self.locked {
            host::unlock(&self.dir);
        }
        if !self.committed {
            remove_empty(&self.made);
        }
    }
}

fn remove_empty(made: &[(Dir, Vec<u8>)]) {
    for (dir, name) in made.iter().rev() {
        let _ = Component::of(name).and_then(|name| dir.remove_dir(name));
    }
}

fn is_directory(path: &SandboxPath) -> ToolError {
    ToolError::new(Code::IsDirectory, format!("`{path}` is a directory")).hint("Name a file to write.")
}

/// Takes the lock of each directory, once, in the order of their identities: two writers of the same ones cannot hold
/// each other up.
fn lock(targets: &mut [Target<'_>], gate: &dyn Gate) -> Result<(), ToolError> {
    let start = Instant::now();
    let mut order: Vec<&mut Target<'_>> = targets.iter_mut().collect();
    order.sort_by_key(|target| target.dir_identity);
    order.dedup_by_key(|target| target.dir_identity);
    for target in order {
        let mut pause = Duration::from_micros(50);
        let failed = |e: Errno| ToolError::io(&target.path.to_string(), "locking the directory of", e);
        while !host::try_lock(&target.dir).map_err(failed)? {
            gate.poll()?;
            if start.elapsed() > LOCK_WAIT {
                let message = format!("another writer holds the directory of `{}`", target.path);
                return Err(ToolError::new(Code::Io, message).hint("Try again."));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
        target.locked = true;
    }
    Ok(())
}
