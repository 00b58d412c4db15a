//! [`Dir`]: a held directory, and the single-component calls on it. Every `*at` call but `openat2` goes through here
//! and takes exactly one [`Component`], so that none of them can follow a path out.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RawDir, RenameFlags, Stat, StatxFlags};
use rustix::io::{Errno, Result};

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
        let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::NLINK | StatxFlags::SIZE;
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let stat = fs::statx(&self.0, name.0, flags, wanted)?;
        Ok(Look {
            kind: Kind::of(u32::from(stat.stx_mode)),
            identity: (fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino),
            size: stat.stx_size,
            links: stat.stx_nlink,
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

    pub(crate) fn make_dir(&self, name: Component<'_>, mode: u32) -> Result<()> {
        fs::mkdirat(&self.0, name.0, Mode::from_raw_mode(mode))
    }

    pub(crate) fn remove_dir(&self, name: Component<'_>) -> Result<()> {
        fs::unlinkat(&self.0, name.0, AtFlags::REMOVEDIR)
    }

    pub(crate) fn remove(&self, name: Component<'_>) -> Result<()> {
        fs::unlinkat(&self.0, name.0, AtFlags::empty())
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
        let mut buffer = Vec::with_capacity(32 * 1024);
        let mut iter = RawDir::new(&self.0, buffer.spare_capacity_mut());
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

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
