//! Doors for the host's own side: the runs directory, a run's folders, config files. Paths here are the host's, never
//! a model's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{self, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, Result};

use super::dir::{Component, Dir, Kind, Look};
use super::mount::Pin;
use crate::error::KgentError;

/// How long another's exclusive lock on a run's folder is waited for.
const MARK_WAIT: Duration = Duration::from_secs(5);
/// The largest config file, in bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// The folders of a run; files are 0600, folders 0700.
const FOLDERS: &[&str] = &["logs", "deliverables", "artifacts", "skills", "archive"];

/// Reads a config file: a regular file of at most 1 MiB, as text.
pub fn read_config(path: &Path) -> std::result::Result<String, KgentError> {
    String::from_utf8(read_file(path, MAX_CONFIG_BYTES)?)
        .map_err(|e| KgentError::Config(format!("`{}` cannot be read as UTF-8: {e}", path.display())))
}

/// Reads a regular file of the host's, of at most `max` bytes.
pub(crate) fn read_file(path: &Path, max: u64) -> std::result::Result<Vec<u8>, KgentError> {
    let fail = |why: &str| KgentError::Config(format!("`{}` {why}", path.display()));
    let unread = |e: std::io::Error| fail(&format!("cannot be read: {e}"));
    let fd = fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
        .map_err(|e| unread(e.into()))?;
    let stat = fs::fstat(&fd).map_err(|e| unread(e.into()))?;
    if Kind::of(stat.st_mode) != Kind::File {
        return Err(fail("is not a regular file"));
    }
    if super::size(&stat) > max {
        return Err(fail(&format!("is over {max} bytes")));
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::fs::File::from(fd), &mut bytes).map_err(unread)?;
    Ok(bytes)
}

/// The link-free path of a file of the host's.
pub(crate) fn real_path(file: &Path) -> std::result::Result<std::path::PathBuf, KgentError> {
    std::fs::canonicalize(file).map_err(|e| KgentError::Config(format!("`{}` cannot be read: {e}", file.display())))
}

/// Pins the last component of a directory's real path.
pub(crate) fn pin(dir: &Path) -> Result<Vec<Pin>> {
    let real = std::fs::canonicalize(dir).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else { return Ok(Vec::new()) };
    let parent = fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Pin::chain(parent, &[name.as_encoded_bytes().to_vec()])
}

/// A run's folder, held. It is made whole or not at all.
#[derive(Debug)]
pub(crate) struct RunFolder {
    pub(crate) root: Dir,
}

impl RunFolder {
    /// Makes `runs/<id>` with its folders; an existing one is an error.
    pub(crate) fn create(runs: &Path, id: &str, own_workspace: bool) -> std::result::Result<Self, KgentError> {
        let fail = |e: Errno| run_error(runs, id, e);
        std::fs::create_dir_all(runs)
            .map_err(|e| KgentError::Run(format!("the runs directory `{}` cannot be made: {e}", runs.display())))?;
        let parent = open_runs(runs)?;
        let name = Component::of(id.as_bytes()).map_err(fail)?;
        parent.make_dir(name, 0o700).map_err(|errno| match errno {
            Errno::EXIST => KgentError::Run(format!(
                "run `{id}` already exists in `{}`; join it with RunContext.open or choose another run_id",
                runs.display()
            )),
            other => fail(other),
        })?;
        let made = (|| {
            let root = parent.open_dir(name)?;
            for folder in folders(own_workspace) {
                root.make_dir(Component::of(folder.as_bytes())?, 0o700)?;
            }
            Ok(Self { root })
        })();
        made.map_err(|errno| {
            // Nothing is left behind: what was made is empty.
            if let Ok(root) = parent.open_dir(name) {
                for folder in folders(own_workspace) {
                    let _ = Component::of(folder.as_bytes()).and_then(|f| root.remove_dir(f));
                }
            }
            let _ = parent.remove_dir(name);
            fail(errno)
        })
    }

    /// Removes a run that was just made and could not be used.
    pub(crate) fn discard(&self, runs: &Path, id: &str) {
        let logs = Component::of(b"logs").and_then(|name| self.root.open_dir(name));
        for (dir, file) in [
            (logs.as_ref().ok(), "tools.jsonl"),
            (logs.as_ref().ok(), "errors.jsonl"),
            (Some(&self.root), "events.jsonl"),
        ] {
            let _ = dir.ok_or(Errno::NOENT).and_then(|d| d.remove(Component::of(file.as_bytes())?));
        }
        for folder in folders(true) {
            let _ = Component::of(folder.as_bytes()).and_then(|f| self.root.remove_dir(f));
        }
        if let Ok(parent) = open_runs(runs) {
            let _ = Component::of(id.as_bytes()).and_then(|name| parent.remove_dir(name));
        }
    }

    /// Holds an existing run: ours, 0700, with its folders.
    pub(crate) fn open(runs: &Path, id: &str) -> std::result::Result<Self, KgentError> {
        let fail = |e: Errno| run_error(runs, id, e);
        let parent = open_runs(runs)?;
        let name = Component::of(id.as_bytes()).map_err(fail)?;
        let root = parent.open_dir(name).map_err(|errno| match errno {
            Errno::NOENT => KgentError::Run(format!("run `{id}` is not in `{}`", runs.display())),
            other => fail(other),
        })?;
        let stat = fs::fstat(&root).map_err(fail)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(KgentError::Run(format!(
                "run `{id}` in `{}` is not a folder of this user with mode 0700",
                runs.display()
            )));
        }
        Ok(Self { root })
    }

    /// Uses up `name` for good: whether nobody has before, in any process.
    pub(crate) fn claim(&self, name: &str) -> Result<bool> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let archive = self.folder("archive")?;
        match archive.open(Component::of(name.as_bytes())?, flags, Mode::from_raw_mode(0o600)) {
            Ok(_) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Holds a run's folder to read its logs, whoever owns it and wherever it was copied to.
    pub(crate) fn look(path: &Path) -> std::result::Result<Self, KgentError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, Mode::empty())
            .map_err(|e| KgentError::Run(format!("`{}`: {}", path.display(), std::io::Error::from(e))))?;
        Ok(Self { root: Dir::new(root) })
    }

    pub(crate) fn folder(&self, name: &str) -> Result<Dir> {
        self.root.open_dir(Component::of(name.as_bytes())?)
    }
}

fn folders(own_workspace: bool) -> impl Iterator<Item = &'static str> {
    FOLDERS.iter().copied().chain(own_workspace.then_some("workspace"))
}

fn open_runs(runs: &Path) -> std::result::Result<Dir, KgentError> {
    fs::open(runs, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map(Dir::new).map_err(|e| {
        KgentError::Run(format!(
            "the runs directory `{}` cannot be opened: {}",
            runs.display(),
            std::io::Error::from(e)
        ))
    })
}

fn run_error(runs: &Path, id: &str, errno: Errno) -> KgentError {
    KgentError::Run(format!("run `{id}` in `{}`: {}", runs.display(), std::io::Error::from(errno)))
}

/// Why a file was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is no regular file.
    Is(Kind),
    /// It has more bytes than the limit.
    TooLarge,
    /// The system call failed.
    Failed(Errno),
}

impl From<Errno> for Unread {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

/// Opens the directory at a host path, and says its real path.
pub(crate) fn open_root(path: &Path) -> std::result::Result<(Dir, PathBuf), KgentError> {
    require_dir(path)?;
    let fail = |e: Errno| KgentError::Run(format!("`{}`: {}", path.display(), std::io::Error::from(e)));
    let dir = fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(fail)?;
    let real = std::fs::canonicalize(path).map_err(|e| KgentError::Run(format!("`{}`: {e}", path.display())))?;
    Ok((Dir::new(dir), real))
}

/// The whole content of the regular file `name` of `dir`, at most `limit` bytes. A link is not followed, and nothing
/// else is opened: it is typed first by a descriptor without side effects.
pub(crate) fn read_entry(dir: &Dir, name: Component<'_>, limit: u64) -> std::result::Result<Vec<u8>, Unread> {
    let probe = fs::fstat(dir.open(name, OFlags::PATH, Mode::empty())?)?;
    let kind = Kind::of(probe.st_mode);
    if kind != Kind::File {
        return Err(Unread::Is(kind));
    }
    let fd = dir.open(name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    let stat = fs::fstat(&fd)?;
    if (stat.st_dev, stat.st_ino) != (probe.st_dev, probe.st_ino) {
        return Err(Errno::STALE.into());
    }
    if !super::mount::on_storage(&fd) {
        return Err(Errno::OPNOTSUPP.into());
    }
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&fd, &mut *chunk))?;
        if count == 0 {
            return Ok(bytes);
        }
        if bytes.len() as u64 + count as u64 > limit {
            return Err(Unread::TooLarge);
        }
        bytes.extend_from_slice(chunk.get(..count).unwrap_or_default());
    }
}

/// Makes the file `name` of `dir`, 0600, with this content; replaces an old one.
pub(crate) fn write_file(dir: &Dir, name: Component<'_>, bytes: &[u8]) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK;
    let fd = dir.open(name, flags, Mode::from_raw_mode(0o600))?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = rustix::io::retry_on_intr(|| rustix::io::write(&fd, rest))?;
        rest = rest.get(count..).unwrap_or_default();
    }
    Ok(())
}

/// Removes the artifacts that were left before `before` (seconds since 1970) in runs that nobody uses. It happens when
/// the first run of a UTC day is made: `last` is when an entry of the runs directory last changed.
pub(crate) fn sweep(runs: &Path, last: i64, now: i64, before: i64) {
    const DAY: i64 = 24 * 60 * 60;
    if last.div_euclid(DAY) >= now.div_euclid(DAY) {
        return;
    }
    let Ok(parent) = open_runs(runs) else { return };
    for entry in parent.entries(usize::MAX).unwrap_or_default() {
        let root = Component::of(&entry.name).and_then(|name| parent.open_dir(name));
        // What cannot be swept today stays for another day.
        let _ = root.and_then(|root| if ours(&root)? { sweep_run(&root, before) } else { Ok(()) });
    }
}

/// Removes one run's old artifacts: regular files of ours, by single names on held directories, while no context uses
/// the run.
fn sweep_run(root: &Dir, before: i64) -> Result<()> {
    if !try_lock(root)? {
        return Ok(());
    }
    // The lock ends with the descriptor.
    let artifacts = root.open_dir(Component::of(b"artifacts")?)?;
    if !ours(&artifacts)? {
        return Ok(());
    }
    for entry in artifacts.entries(usize::MAX)? {
        let name = Component::of(&entry.name)?;
        let Ok(stat) = artifacts.stat(name) else { continue };
        let old = stat.st_mtime < before && stat.st_uid == rustix::process::geteuid().as_raw();
        if old && Kind::of(stat.st_mode) == Kind::File && crate::output::artifact::is_ours(&entry.name) {
            let _ = artifacts.remove(name);
        }
    }
    Ok(())
}

/// Whether a directory is this user's and nobody else's.
fn ours(dir: &Dir) -> Result<bool> {
    let stat = fs::fstat(dir)?;
    let shared = stat.st_mode & 0o077 != 0;
    Ok(stat.st_uid == rustix::process::geteuid().as_raw() && !shared)
}

/// When an entry of the runs directory last changed, in seconds since 1970.
pub(crate) fn last_change(runs: &Path) -> Option<i64> {
    fs::stat(runs).ok().map(|stat| stat.st_mtime)
}

/// The bytes that the artifacts of a run take, and that are free on its file system.
pub(crate) fn room(artifacts: &Dir) -> Result<(u64, u64)> {
    let mut taken = 0;
    for entry in artifacts.entries(usize::MAX)? {
        if let Ok(stat) = Component::of(&entry.name).and_then(|name| artifacts.stat(name)) {
            taken += super::size(&stat);
        }
    }
    let space = fs::fstatvfs(artifacts)?;
    Ok((taken, space.f_bavail.saturating_mul(space.f_frsize)))
}

/// A log file held for appending.
#[derive(Debug)]
pub(crate) struct LogFile(OwnedFd);

impl LogFile {
    /// Opens `name` for appending and reading; makes it, 0600, where it is missing.
    pub(crate) fn hold(dir: &Dir, name: &str) -> Result<Self> {
        let name = Component::of(name.as_bytes())?;
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CREATE;
        dir.open(name, flags, Mode::from_raw_mode(0o600)).map(Self)
    }

    /// Which object it is now, its size and its links.
    pub(crate) fn look(&self) -> Result<Look> {
        Look::at(&self.0)
    }

    /// One write call.
    pub(crate) fn append(&self, bytes: &[u8]) -> Result<usize> {
        rustix::io::retry_on_intr(|| rustix::io::write(&self.0, bytes))
    }

    /// Opens `name` for reading from its beginning.
    pub(crate) fn read(dir: &Dir, name: &str) -> Result<LogText> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let fd = dir.open(Component::of(name.as_bytes())?, flags, Mode::empty())?;
        if Look::at(&fd)?.kind != Kind::File {
            return Err(Errno::INVAL);
        }
        Ok(LogText { fd, at: 0 })
    }

    /// Its size. (Cheaper than a look.)
    pub(crate) fn end(&self) -> Result<u64> {
        fs::seek(&self.0, fs::SeekFrom::End(0))
    }

    /// Whether these bytes stand at this place.
    pub(crate) fn holds(&self, bytes: &[u8], at: u64) -> Result<bool> {
        let mut found = vec![0; bytes.len()];
        let mut filled = 0;
        let mut from = self.from(at);
        while let Some(space) = found.get_mut(filled..).filter(|space| !space.is_empty()) {
            match from.read_once(space)? {
                0 => return Ok(false),
                count => filled += count,
            }
        }
        Ok(found == bytes)
    }

    /// Has the file system promise room for these bytes, without a change of the file's size.
    pub(crate) fn reserve(&self, from: u64, bytes: u64) -> Result<()> {
        rustix::io::retry_on_intr(|| fs::fallocate(&self.0, FallocateFlags::KEEP_SIZE, from, bytes))
    }

    /// Reads from this place on.
    pub(crate) fn from(&self, at: u64) -> LogText<BorrowedFd<'_>> {
        LogText { fd: self.0.as_fd(), at }
    }

    pub(crate) fn truncate(&self, size: u64) -> Result<()> {
        fs::ftruncate(&self.0, size)
    }

    pub(crate) fn sync(&self) -> Result<()> {
        fs::fdatasync(&self.0)
    }
}

/// A log file being read, from some place on; the position that it shares with others stays.
#[derive(Debug)]
pub(crate) struct LogText<F = OwnedFd> {
    fd: F,
    at: u64,
}

impl<F: AsFd> LogText<F> {
    fn read_once(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = rustix::io::retry_on_intr(|| rustix::io::pread(&self.fd, &mut *buffer, self.at))?;
        self.at += count as u64;
        Ok(count)
    }
}

impl<F: AsFd> std::io::Read for LogText<F> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        Ok(self.read_once(buffer)?)
    }
}

impl<F: AsFd> std::io::Seek for LogText<F> {
    fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
        let at = match to {
            std::io::SeekFrom::Start(at) => Some(at),
            std::io::SeekFrom::Current(by) => self.at.checked_add_signed(by),
            std::io::SeekFrom::End(by) => {
                u64::try_from(fs::fstat(&self.fd)?.st_size).ok().and_then(|size| size.checked_add_signed(by))
            }
        };
        self.at = at.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// How large this process may make a file. (To try would be answered with a signal.)
pub(crate) fn size_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current
}

/// Takes the exclusive lock on `dir`'s open file if nobody holds it.
pub(crate) fn try_lock(dir: &Dir) -> Result<bool> {
    match fs::flock(dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Marks the run of `root` as in use by this open file, until it is closed. Answers whether nobody else uses it.
pub(crate) fn mark_in_use(root: &Dir) -> Result<bool> {
    let alone = try_lock(root)?;
    // Taken exclusively first, the lock is turned into a shared one; whoever comes after is not alone.
    let start = Instant::now();
    loop {
        match fs::flock(root, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(alone),
            // Somebody is between the two steps; or a stranger holds the lock, who is not waited for for ever.
            Err(Errno::WOULDBLOCK | Errno::INTR) if start.elapsed() < MARK_WAIT => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(errno) => return Err(errno),
        }
    }
}

/// Lets go of a lock.
pub(crate) fn unlock(dir: &Dir) {
    let _ = fs::flock(dir, FlockOperation::Unlock);
}

/// Whether anything is at `path`.
pub(crate) fn exists(path: &Path) -> bool {
    path.as_os_str().is_empty() || std::fs::symlink_metadata(path).is_ok()
}

/// Removes a directory if it is empty.
pub(crate) fn remove_empty(path: &Path) {
    let _ = std::fs::remove_dir(path);
}

/// Fails where `path` is not a directory that can be opened.
pub(crate) fn require_dir(path: &Path) -> std::result::Result<(), KgentError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::open(path, flags, Mode::empty()).map(drop).map_err(|errno| match errno {
        Errno::NOENT => KgentError::Run(format!("`{}` does not exist", path.display())),
        Errno::NOTDIR => KgentError::Run(format!("`{}` is not a directory", path.display())),
        other => KgentError::Run(format!("`{}`: {}", path.display(), std::io::Error::from(other))),
    })
}
