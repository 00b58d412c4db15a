//! [`Dir`]: a held directory, and the single-component calls on it. Every `*at` call but `openat2` goes through here
//! and takes exactly one [`Component`], so that none of them can follow a path out.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RawDir, RenameFlags, Stat, StatxFlags};
use rustix::io::{Errno, Result};

/// Coarser than any file system's times here, in nanoseconds.
const COARSEST: i128 = 50_000_000;

/// One name in a directory: not empty, not `.` or `..`, without `/` and NUL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Component<'a>(&'a [u8]);

impl<'a> Component<'a> {
    /// Takes a name that is one component.
    pub(crate) fn new(name: &'a [u8]) -> Option<Self> {
        let whole = !name.is_empty() && name != b"." && name != b".." && memchr::memchr2(b'/', 0, name).is_none();
        whole.then_some(Self(name))
    }

    /// The same, as the error that the kernel would give.
    pub(crate) fn of(name: &'a [u8]) -> Result<Self> {
        Self::new(name).ok_or(Errno::INVAL)
    }
}

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A block or character device.
    Device,
}

impl Kind {
    pub(crate) fn of(mode: u32) -> Self {
        FileType::from_raw_mode(mode).into()
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Link => "link",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Device => "device",
        }
    }
}

impl From<FileType> for Kind {
    fn from(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Link,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            _ => Self::Device,
        }
    }
}

/// What a name is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) kind: Kind,
    /// Its device and inode.
    pub(crate) identity: (u64, u64),
    /// In bytes.
    pub(crate) size: u64,
    pub(crate) links: u32,
}

/// Which state of a file it is: its change time moves with every write and cannot be set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// Its device and inode.
    pub(crate) identity: (u64, u64),
    /// In bytes.
    pub(crate) size: u64,
    /// Its change time, in nanoseconds.
    changed: i64,
}

impl Version {
    pub(crate) fn of(stat: &Stat) -> Self {
        let identity = (stat.st_dev, stat.st_ino);
        let nanoseconds = i64::try_from(stat.st_ctime_nsec).unwrap_or(0);
        let changed = stat.st_ctime.saturating_mul(1_000_000_000).saturating_add(nanoseconds);
        Self { identity, size: u64::try_from(stat.st_size).unwrap_or(0), changed }
    }

    /// Whether its change time is past, so that a later write bears another one. Where times are coarse, one may
    /// follow within the same tick.
    pub(crate) fn is_past(self) -> bool {
        now() - i128::from(self.changed) > COARSEST
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}:{:x}:{:x}", self.identity.0, self.identity.1, self.changed)
    }
}

/// The time now, in nanoseconds.
fn now() -> i128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    i128::try_from(now).unwrap_or(0)
}

impl Look {
    const WANTED: StatxFlags = StatxFlags::TYPE.union(StatxFlags::INO).union(StatxFlags::NLINK).union(StatxFlags::SIZE);

    /// The same of an open file.
    pub(crate) fn at(file: impl AsFd) -> Result<Self> {
        fs::statx(file, c"", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, Self::WANTED).map(Self::of)
    }

    fn of(stat: fs::Statx) -> Self {
        Self {
            kind: Kind::of(u32::from(stat.stx_mode)),
            identity: (fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino),
            size: stat.stx_size,
            links: stat.stx_nlink,
        }
    }
}

/// One entry of a listing.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: Kind,
}

/// Opens the entry `name` of `at` itself; a link there is ELOOP (with `O_PATH`, the link).
pub(crate) fn open_at(at: impl AsFd, name: Component<'_>, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    fs::openat(at, name.0, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY, mode)
}

/// A held directory.
#[derive(Debug)]
pub(crate) struct Dir(OwnedFd);

impl Dir {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// What `name` itself is; a link is not followed.
    pub(crate) fn stat(&self, name: Component<'_>) -> Result<Stat> {
        fs::statat(&self.0, name.0, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Which object `name` is now, its size and its links; a link is not followed. Times are not asked for: on file
    /// systems with fine-grained times, asking makes the next write to the file dearer.
    pub(crate) fn look(&self, name: Component<'_>) -> Result<Look> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        fs::statx(&self.0, name.0, flags, Look::WANTED).map(Look::of)
    }

    /// When the content of `name` last changed: seconds and nanoseconds. A link is not followed.
    pub(crate) fn modified(&self, name: Component<'_>) -> Result<(i64, u32)> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let stat = fs::statx(&self.0, name.0, flags, StatxFlags::MTIME)?;
        Ok((stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec))
    }

    /// Its change time, in nanoseconds; 0 where it cannot be told.
    fn changed(&self) -> i64 {
        let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
        let stat = fs::statx(&self.0, c"", flags, StatxFlags::CTIME);
        stat.map_or(0, |s| {
            s.stx_ctime.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(s.stx_ctime.tv_nsec))
        })
    }

    /// The directory's own identity.
    pub(crate) fn identity(&self) -> Result<(u64, u64)> {
        fs::fstat(&self.0).map(|s| (s.st_dev, s.st_ino))
    }

    /// Opens `name` itself; a link at `name` is ELOOP (with `O_PATH`, the link).
    pub(crate) fn open(&self, name: Component<'_>, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        open_at(&self.0, name, flags, mode)
    }

    /// The same directory through an open file of its own.
    pub(crate) fn open_here(&self) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        fs::openat(&self.0, c".", flags, Mode::empty()).map(Self)
    }

    /// Opens the directory `name` for listing.
    pub(crate) fn open_dir(&self, name: Component<'_>) -> Result<Self> {
        self.open(name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map(Self)
    }

    /// Makes its names survive a loss of power.
    pub(crate) fn sync(&self) -> Result<()> {
        fs::fsync(&self.0)
    }

    pub(crate) fn make_dir(&self, name: Component<'_>, mode: u32) -> Result<()> {
        fs::mkdirat(&self.0, name.0, Mode::from_raw_mode(mode))
    }

    pub(crate) fn remove_dir(&self, name: Component<'_>) -> Result<()> {
        fs::unlinkat(&self.0, name.0, AtFlags::REMOVEDIR)
    }

    pub(crate) fn remove(&self, name: Component<'_>) -> Result<()> {
        fs::unlinkat(&self.0, name.0, AtFlags::empty())
    }

    /// Gives the file `from` the name `to` as well, where that is free.
    pub(crate) fn link(&self, from: Component<'_>, to: Component<'_>) -> Result<()> {
        fs::linkat(&self.0, from.0, &self.0, to.0, AtFlags::empty())
    }

    pub(crate) fn rename(&self, from: Component<'_>, to: Component<'_>, flags: RenameFlags) -> Result<()> {
        if flags.is_empty() {
            return fs::renameat(&self.0, from.0, &self.0, to.0);
        }
        fs::renameat_with(&self.0, from.0, &self.0, to.0, flags)
    }

    /// Every entry but `.` and `..`, in the order of the names' bytes. Stops with `Errno::TOOBIG` after `cap` entries.
    pub(crate) fn entries(&self, cap: usize) -> Result<Vec<Entry>> {
        let mut found = Vec::new();
        let mut buffer = [const { MaybeUninit::uninit() }; 16 * 1024];
        let mut iter = RawDir::new(&self.0, &mut buffer);
        while let Some(entry) = iter.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let Some(component) = Component::new(name) else { continue };
            if found.len() == cap {
                return Err(Errno::TOOBIG);
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match self.stat(component) {
                    Ok(stat) => Kind::of(stat.st_mode),
                    Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(errno),
                },
                known => known.into(),
            };
            found.push(Entry { name: name.to_vec(), kind });
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }
}

/// Remembers that a directory's names were found as they should be, for as long as its change time says that no entry
/// was added, removed or renamed. (A change time cannot be set back; that of a directory does not move when a file in it
/// is written.) It saves looking each name up again. Where the times are another machine's or program's, and may be old
/// or made up, nothing is remembered.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The change time at which all was as it should be; 0 for none.
    known: AtomicI64,
    trusted: bool,
}

impl Watch {
    /// Of the names in `dir`.
    pub(crate) fn of(dir: &Dir) -> Self {
        Self { known: AtomicI64::new(0), trusted: super::mount::is_local(dir) }
    }

    /// Runs `check` on the names unless they cannot have changed since it last succeeded.
    pub(crate) fn verify<E>(
        &self,
        dir: &Dir,
        check: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if !self.trusted {
            return check();
        }
        let changed = dir.changed();
        if changed != 0 && changed == self.known.load(Ordering::Relaxed) {
            return Ok(());
        }
        check()?;
        // Where times are coarse, a later change could bear the same time: only a time that is past is trusted.
        let past = now() - i128::from(changed) > COARSEST;
        self.known.store(if past { changed } else { 0 }, Ordering::Relaxed);
        Ok(())
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
