//! Atomic writes: a temporary file in the target's own directory, then a rename over the target. After a crash there
//! is the old file or the new one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use rustix::fs::{self, Advice, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::attributes;
use super::dir::{Component, Dir, Kind};
use super::{
    Access, Gate, MAX_RETRIES, OpenFile, Sandbox, SandboxPath, components, content_hash, explain, host, size, unsteady,
};
use crate::error::{Code, ToolError};

/// How long a write waits for another writer of the same directory.
const LOCK_WAIT: Duration = Duration::from_secs(5);
const TEMP_PREFIX: &[u8] = b".kgent-";
const TEMP_SUFFIX: &[u8] = b".tmp";
const TEMP_LENGTH: usize = 7 + 32 + 4;

/// The temporary names that this process has in use; listings leave them out.
static LIVE: ArcSwapOption<Vec<Vec<u8>>> = ArcSwapOption::const_empty();

/// Whether `name` has the form of a temporary name; tools make none of that form.
pub(crate) fn is_temp_name(name: &[u8]) -> bool {
    name.len() == TEMP_LENGTH && name.starts_with(TEMP_PREFIX) && name.ends_with(TEMP_SUFFIX)
}

/// Whether `name` is a temporary file of this process.
pub(crate) fn is_live_temp(name: &[u8]) -> bool {
    is_temp_name(name) && LIVE.load().as_ref().is_some_and(|names| names.iter().any(|n| n == name))
}

/// A temporary file; removed when dropped, unless it was renamed.
struct Temp<'a> {
    dir: &'a Dir,
    name: Vec<u8>,
    renamed: bool,
}

impl<'a> Temp<'a> {
    fn create(dir: &'a Dir, mode: u32) -> rustix::io::Result<(Self, std::os::fd::OwnedFd)> {
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let digits = format!("{:032x}", u128::from_ne_bytes(random));
        let name = [TEMP_PREFIX, digits.as_bytes(), TEMP_SUFFIX].concat();
        LIVE.rcu(|names| {
            let names = names.as_deref().cloned().unwrap_or_default();
            Some(Arc::new(names.into_iter().chain([name.clone()]).collect::<Vec<_>>()))
        });
        let temp = Self { dir, name, renamed: false };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let fd = dir.open(Component::of(&temp.name)?, flags, Mode::from_raw_mode(mode))?;
        Ok((temp, fd))
    }
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = Component::of(&self.name).and_then(|name| self.dir.remove(name));
        }
        LIVE.rcu(|names| {
            let rest: Vec<Vec<u8>> =
                names.as_deref().into_iter().flatten().filter(|n| **n != self.name).cloned().collect();
            Some(Arc::new(rest))
        });
    }
}

/// A name about to be written: its directory, held and locked, and what is there now.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    sandbox: &'a Sandbox,
    dir: Dir,
    /// Its link-free name.
    pub(crate) path: SandboxPath,
    current: Option<Stat>,
    /// Directories made for it, the outermost first.
    made: Vec<(Dir, Vec<u8>)>,
    committed: bool,
}

impl Sandbox {
    /// Resolves the name that a write goes to, makes missing parents, and locks its directory. Only one writer of a
    /// directory is past this point at a time, over all threads, processes and runs that write through a sandbox.
    pub(crate) fn target(&self, path: &SandboxPath, gate: &dyn Gate) -> Result<Target<'_>, ToolError> {
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
            self.guard_as(&real, path, Access::Write)?;
            if expand {
                gate.permit(&real, Access::Write)?;
            }
            if real.rel().is_empty() {
                return Err(is_directory(path));
            }
            let mount = self.mount(&real)?;
            let parent = real.parent();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
            let mut made = Vec::new();
            let dir = match mount.resolver.open(&mount.root, parent.rel(), flags) {
                Ok(fd) => Dir::new(fd),
                Err(Errno::LOOP) => {
                    expand = true;
                    continue;
                }
                Err(Errno::NOENT) => match self.make_parents(&parent, &mut made) {
                    Ok(dir) => dir,
                    Err(errno) => {
                        remove_empty(&made);
                        if errno == Errno::LOOP {
                            expand = true;
                            continue;
                        }
                        return Err(explain(path, errno));
                    }
                },
                Err(errno) => return Err(explain(path, errno)),
            };
            let mut target = Target { sandbox: self, dir, path: real.clone(), current: None, made, committed: false };
            if target.is_in_repository() {
                return Err(ToolError::new(
                    Code::ReadOnly,
                    format!("`{path}` cannot be written: it lies in a bare git repository"),
                )
                .hint("Write elsewhere, for example under `deliverables/`."));
            }
            let dev = fs::fstat(&target.dir).map_err(|e| explain(path, e))?.st_dev;
            self.require_storage(&real, dev, &target.dir)?;
            lock(&target.dir, path, gate)?;
            match target.look() {
                Ok(()) => {}
                Err(Errno::LOOP) => {
                    expand = true;
                    continue;
                }
                Err(errno) => return Err(explain(path, errno)),
            }
            match target.current.as_ref().map(|s| Kind::of(s.st_mode)) {
                None => {}
                Some(Kind::File) => {
                    let stat = target.current.as_ref().map_or(0, |s| s.st_mode);
                    if stat & 0o222 == 0 {
                        return Err(ToolError::new(
                            Code::ReadOnly,
                            format!("`{path}` is marked read-only by its mode"),
                        )
                        .hint("Write another file, or ask the user to make it writable."));
                    }
                }
                Some(Kind::Directory) => return Err(is_directory(path)),
                Some(other) => {
                    return Err(ToolError::new(
                        Code::NotRegularFile,
                        format!("`{path}` is a {}, not a regular file", other.as_str()),
                    )
                    .hint("Only regular files are read and written."));
                }
            }
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
    fn name(&self) -> rustix::io::Result<Component<'_>> {
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
        Ok(Some(OpenFile { fd, size: size(&now), identity: (now.st_dev, now.st_ino), path: self.path.clone() }))
    }

    /// Puts `bytes` at the name. Before the rename nothing has changed; after it everything has. With `decided_on`, the
    /// content that the caller decided on, a file that holds anything else by then is left as it is: `stale`.
    pub(crate) fn commit(mut self, bytes: &[u8], decided_on: Option<&[u8]>, gate: &dyn Gate) -> Result<(), ToolError> {
        let approved = gate.approved_state(&self.path).map(|state| self.require_state(state)).transpose()?.flatten();
        let decided_on = decided_on.or(approved.as_deref());
        let path = self.path.clone();
        let io = |doing: &'static str| {
            move |errno: Errno| match errno {
                Errno::NOSPC | Errno::DQUOT => {
                    ToolError::new(Code::Io, format!("{doing} `{path}` failed: no space left"))
                        .hint("Free space first.")
                }
                other => ToolError::io(&path.to_string(), doing, other),
            }
        };
        let private = self.sandbox.mount(&self.path)?.spec.private;
        let mode = if self.current.is_some() || private { 0o600 } else { 0o666 };
        let (mut temp, fd) = Temp::create(&self.dir, mode).map_err(io.clone()("writing"))?;
        for chunk in bytes.chunks(1 << 20) {
            gate.checkpoint()?;
            let mut rest = chunk;
            while !rest.is_empty() {
                let count =
                    rustix::io::retry_on_intr(|| rustix::io::write(&fd, rest)).map_err(io.clone()("writing"))?;
                rest = rest.get(count..).unwrap_or_default();
            }
        }
        if let Some(old) = &self.current {
            let reading =
                self.name().and_then(|name| self.dir.open(name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()));
            let from = reading.map_err(io.clone()("keeping the attributes of"))?;
            attributes::keep(&from, old, &fd).map_err(|(doing, errno)| io.clone()(doing)(errno))?;
        }
        let power_safe = self.sandbox.constraints.power_safe;
        if power_safe {
            fs::fsync(&fd).map_err(io.clone()("writing"))?;
        } else if self.current.is_some() && decided_on.is_some() {
            // ext4 starts to write a file back by itself where it replaces another, but not where it is exchanged with
            // one. This starts it, as `sync_file_range` would, and waits for nothing.
            let _ = fs::fadvise(&fd, 0, None, Advice::DontNeed);
        }
        let written = fs::fstat(&fd).map_err(io.clone()("writing"))?;
        gate.checkpoint()?;
        let put = |flags| self.name().and_then(|to| self.dir.rename(Component::of(&temp.name)?, to, flags));
        let link = || self.name().and_then(|to| self.dir.link(Component::of(&temp.name)?, to));
        match (&self.current, decided_on) {
            (None, _) => match put(RenameFlags::NOREPLACE) {
                Ok(()) => temp.renamed = true,
                // A link is not made over a name either; the temporary one goes when it is dropped.
                Err(Errno::INVAL | Errno::NOSYS) => link().map_err(|errno| match errno {
                    Errno::EXIST => self.stale("was created by someone else meanwhile"),
                    errno => io("writing")(errno),
                })?,
                Err(Errno::EXIST) => return Err(self.stale("was created by someone else meanwhile")),
                Err(errno) => return Err(io("writing")(errno)),
            },
            (Some(_), None) => {
                put(RenameFlags::empty()).map_err(io.clone()("writing"))?;
                temp.renamed = true;
            }
            // Writers that do not take our lock are seen by what they put in between: the file that is displaced must
            // be the one that the caller decided on, else it goes back.
            (Some(old), Some(content)) => match put(RenameFlags::EXCHANGE) {
                Ok(()) if self.holds(&temp.name, old, content) => {}
                Ok(()) => {
                    put(RenameFlags::EXCHANGE).map_err(io.clone()("putting back"))?;
                    return Err(self.stale("was changed by someone else meanwhile"));
                }
                // The file system cannot, as `guarantees` says: what such a writer does between these two is lost.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    if !self.holds(self.path.name(), old, content) {
                        return Err(self.stale("was changed by someone else meanwhile"));
                    }
                    put(RenameFlags::empty()).map_err(io.clone()("writing"))?;
                    temp.renamed = true;
                }
                Err(errno) => return Err(io("writing")(errno)),
            },
        }
        drop(temp);
        self.committed = true;
        if power_safe {
            fs::fsync(&self.dir).map_err(|e| ToolError::io(&self.path.to_string(), "syncing the directory of", e))?;
        }
        self.confirm(&written)
    }

    /// The content that the host approved to replace; `stale` where anything else is there by now.
    fn require_state(&self, state: &str) -> Result<Option<Vec<u8>>, ToolError> {
        let now = self.open_current()?;
        let content = now.map(|file| file.read_all(file.size)).transpose()?;
        let found = content.as_deref().map_or_else(|| "absent".to_owned(), content_hash);
        if found == state { Ok(content) } else { Err(self.stale("was changed since the host approved the call")) }
    }

    fn stale(&self, what: &str) -> ToolError {
        ToolError::new(Code::Stale, format!("`{}` {what}", self.path)).hint("Read it, then decide again.")
    }

    /// Whether `name` is the old file, with the content that was decided on.
    fn holds(&self, name: &[u8], old: &Stat, content: &[u8]) -> bool {
        let opened =
            Component::of(name).and_then(|name| self.dir.open(name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()));
        let Ok(fd) = opened else { return false };
        let Ok(stat) = fs::fstat(&fd) else { return false };
        if (stat.st_dev, stat.st_ino) != (old.st_dev, old.st_ino) {
            return false;
        }
        let identity = (stat.st_dev, stat.st_ino);
        let file = OpenFile { fd, size: size(&stat), identity, path: self.path.clone() };
        file.read_all(content.len() as u64).is_ok_and(|bytes| bytes == content)
    }

    /// The name, looked up anew from the mount's root, must lead to what was written: its parent may have been moved.
    fn confirm(&self, written: &Stat) -> Result<(), ToolError> {
        let mount = self.sandbox.mount(&self.path)?;
        let found = mount.resolver.open(&mount.root, self.path.rel(), OFlags::PATH).and_then(fs::fstat);
        if found.is_ok_and(|s| (s.st_dev, s.st_ino) == (written.st_dev, written.st_ino)) {
            return Ok(());
        }
        Err(ToolError::new(
            Code::Io,
            format!(
                "`{}` was written, but the name no longer leads to it: it was moved or replaced meanwhile",
                self.path
            ),
        )
        .hint("Read the file again before going on.")
        .details(serde_json::json!({"done": true})))
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        host::unlock(&self.dir);
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

fn lock(dir: &Dir, path: &SandboxPath, gate: &dyn Gate) -> Result<(), ToolError> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(50);
    while !host::try_lock(dir).map_err(|e| ToolError::io(&path.to_string(), "locking the directory of", e))? {
        gate.poll()?;
        if start.elapsed() > LOCK_WAIT {
            return Err(
                ToolError::new(Code::Io, format!("another writer holds the directory of `{path}`")).hint("Try again.")
            );
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
    Ok(())
}
