//! Names about to be written: each resolved to a directory that is held and locked, with what is there now.

use std::time::{Duration, Instant};

use rustix::fs::{self, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::dir::{Component, Dir, Kind, Version};
use super::{Access, Gate, MAX_RETRIES, OpenFile, Sandbox, SandboxPath, components, explain, host, size, unsteady};
use crate::error::{Code, ToolError};

/// How long a write waits for other writers of the same directories.
const LOCK_WAIT: Duration = Duration::from_secs(20);

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
    /// Folders made for it.
    pub(super) made: Made,
}

/// Folders that were made, the outermost first; removed again where they are empty, unless they are kept.
#[derive(Debug, Default)]
pub(super) struct Made(Vec<(Dir, Vec<u8>)>);

impl Made {
    pub(super) fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for (dir, name) in self.0.iter().rev() {
            let _ = Component::of(name).and_then(|name| dir.remove_dir(name));
        }
    }
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
        self.lead(path, wanted.accesses, aim, gate, |real| {
            if real.rel().is_empty() {
                return Err(is_directory(path));
            }
            let mount = self.mount(real)?;
            let parent = real.parent();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
            let mut made = Made::default();
            let dir = match mount.resolver.open(&mount.root, parent.rel(), flags) {
                Ok(fd) => Ok(Dir::new(fd)),
                Err(Errno::NOENT) if wanted.create => self.make_dirs(&parent, &mut made),
                Err(errno) => Err(errno),
            };
            let dir = match dir {
                Ok(dir) => dir,
                Err(Errno::LOOP) => return Ok(None),
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
            };
            self.require_no_repository(path, real, &target.dir)?;
            self.require_storage(real, stat.st_dev, &target.dir)?;
            Ok(Some(target))
        })
    }

    /// Does `work` on the link-free name of `path`, which is authorised first. `None` out of it says that a link turned up
    /// on the way: then the name is expanded anew.
    fn lead<T>(
        &self,
        path: &SandboxPath,
        accesses: &[Access],
        (real, expand): &mut (SandboxPath, bool),
        gate: &dyn Gate,
        work: impl Fn(&SandboxPath) -> Result<Option<T>, ToolError>,
    ) -> Result<T, ToolError> {
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
            for access in accesses {
                self.guard_as(real, path, *access)?;
                if *expand {
                    gate.permit(real, *access)?;
                }
            }
            if let Some(done) = work(real)? {
                return Ok(done);
            }
            *expand = true;
        }
        Err(unsteady(path))
    }

    /// Makes a folder and its missing parents; answers its link-free name, and whether it was not there.
    pub(crate) fn make_dir(&self, path: &SandboxPath, gate: &dyn Gate) -> Result<(SandboxPath, bool), ToolError> {
        let mut aim = (path.clone(), path.detour().is_some());
        self.lead(path, &[Access::Write], &mut aim, gate, |real| {
            let mut made = Made::default();
            match self.make_dirs(real, &mut made) {
                Ok(dir) if made.0.is_empty() => drop(dir),
                Ok(dir) => {
                    // Made beside `HEAD` and `config`, `objects` would make the folder above a repository.
                    self.require_no_repository(path, &real.join(b"objects"), &dir)?;
                }
                Err(Errno::LOOP) => return Ok(None),
                Err(Errno::NOTDIR) if self.stat(real, gate).is_ok() => {
                    return Err(ToolError::new(Code::AlreadyExists, format!("`{path}` is there and is no folder"))
                        .hint("Choose another name."));
                }
                Err(errno) => return Err(explain(path, errno)),
            }
            let created = !made.0.is_empty();
            made.keep();
            Ok(Some((real.clone(), created)))
        })
    }

    /// Refuses a write of `real` in `dir` where a folder above it is a bare git repository, or the write would make its own
    /// folder one. Git runs what such a folder's `config` and `hooks` say.
    fn require_no_repository(&self, path: &SandboxPath, real: &SandboxPath, dir: &Dir) -> Result<(), ToolError> {
        let has = |dir: &Dir, name: &[u8], kind: Kind| {
            Component::of(name).and_then(|name| dir.look(name)).is_ok_and(|look| look.kind == kind)
        };
        let bare = |dir: &Dir, made: &[u8]| {
            (made == b"HEAD" || has(dir, b"HEAD", Kind::File))
                && (made == b"config" || has(dir, b"config", Kind::File))
                && has(dir, b"objects", Kind::Directory)
        };
        let mut found = bare(dir, real.name());
        let mount = self.mount(real)?;
        let mut above = real.parent();
        while !found && !above.rel().is_empty() {
            above = above.parent();
            let opened = mount.resolver.open(&mount.root, above.rel(), OFlags::PATH | OFlags::DIRECTORY);
            found = opened.is_ok_and(|fd| bare(&Dir::new(fd), b""));
        }
        if !found {
            return Ok(());
        }
        Err(ToolError::new(Code::ReadOnly, format!("`{path}` cannot be written: it lies in a bare git repository"))
            .hint("Write elsewhere, for example under `deliverables/`."))
    }

    /// Opens the folder `path` and makes its missing components, one at a time on held descriptors.
    fn make_dirs(&self, path: &SandboxPath, made: &mut Made) -> rustix::io::Result<Dir> {
        let mount = self.mount(path).map_err(|_| Errno::NOENT)?;
        let mode = if mount.spec.private { 0o700 } else { 0o777 };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let mut dir = Dir::new(mount.resolver.open(&mount.root, b"", flags)?);
        for part in components(path.rel()) {
            let name = Component::of(part)?;
            let next = match dir.open_dir(name) {
                Err(Errno::NOENT) => {
                    // A folder made on another kind of file system may be an order to the kernel, such as a new cgroup.
                    let dev = dir.identity()?.0;
                    self.require_storage(path, dev, &dir).map_err(|_| Errno::NXIO)?;
                    match dir.make_dir(name, mode) {
                        Ok(()) => {
                            made.0.push((dir.open_here()?, part.to_vec()));
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
        lock_dir(&target.dir, &target.path, start, gate)?;
        target.locked = true;
    }
    Ok(())
}

/// Takes the lock of the directory of `path`; waits from `start` on.
pub(super) fn lock_dir(dir: &Dir, path: &SandboxPath, start: Instant, gate: &dyn Gate) -> Result<(), ToolError> {
    let mut pause = Duration::from_micros(50);
    let failed = |e: Errno| ToolError::io(&path.to_string(), "locking the directory of", e);
    while !host::try_lock(dir).map_err(failed)? {
        gate.poll()?;
        if start.elapsed() > LOCK_WAIT {
            let message = format!("another writer holds the directory of `{path}`");
            return Err(ToolError::new(Code::Io, message).hint("Try again."));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
    Ok(())
}
