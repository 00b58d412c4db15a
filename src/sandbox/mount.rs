//! [`Mount`]: a named directory of the sandbox, held by descriptor from the moment it is made.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use super::dir::{Component, Dir, Watch};
use super::overlap::{KernelMounts, Overlap, Part, Place};
use super::path::components;
use super::resolver::Resolver;
use crate::error::{Code, KgentError, ToolError};

/// File systems that store files: ext, xfs, btrfs, tmpfs, ramfs, overlay, zfs, f2fs, 9p, virtiofs and FUSE, NFS, CIFS.
const STORAGE: &[u32] = &[
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x8584_58f6,
    0x794c_7630,
    0x2fc1_2fc1,
    0xf2f5_2010,
    0x0102_1997,
    0x6573_5546,
    0x6969,
    0xff53_4d42,
    0xfe53_4d42,
];
/// Those of them that may hang in the kernel, where no deadline fires.
const REMOTE: &[u32] = &[0x6573_5546, 0x6969, 0x0102_1997, 0xff53_4d42, 0xfe53_4d42];

/// Those of them that exchange two names in one step: ext, xfs, btrfs, tmpfs, ramfs, overlay and f2fs.
const EXCHANGING: &[u32] = &[0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x8584_58f6, 0x794c_7630, 0xf2f5_2010];

/// What a mount is made from.
#[derive(Clone, Debug)]
pub struct MountSpec {
    /// Its name: the first component of its sandbox paths.
    pub name: String,
    /// The host directory.
    pub host: PathBuf,
    /// Whether tools may write in it.
    pub writable: bool,
    /// One of the run's own directories: files 0600, folders 0700.
    pub private: bool,
    /// Added by the user: `external_directory` is asked first.
    pub external: bool,
}

/// A named directory of the sandbox.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) spec: MountSpec,
    pub(crate) root: OwnedFd,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    /// The real host path, as components.
    pub(crate) real: Vec<Vec<u8>>,
    pub(crate) resolver: Resolver,
    pub(crate) remote: bool,
    /// Whether a replace can give back what it displaced.
    pub(crate) exchanges: bool,
    /// What it is put together from.
    pub(crate) parts: Vec<Part>,
    /// The other names of its objects.
    pub(crate) overlaps: Vec<Overlap>,
    /// Names beneath the root, each with its subtree, that no tool sees: the runs directory.
    pub(crate) withheld: Vec<Vec<u8>>,
}

impl Mount {
    pub(crate) fn open(spec: MountSpec, kernel: &KernelMounts) -> Result<Self, KgentError> {
        let shown = spec.host.display().to_string();
        let fail = |why: String| KgentError::Run(format!("mount `{}`: `{shown}` {why}", spec.name));
        let root = fs::open(&spec.host, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(
            |errno| match errno {
                Errno::NOENT => fail("does not exist".into()),
                Errno::NOTDIR => fail("is not a directory".into()),
                other => fail(format!("cannot be opened: {}", std::io::Error::from(other))),
            },
        )?;
        let stat = fs::fstat(&root).map_err(|e| fail(std::io::Error::from(e).to_string()))?;
        let magic = magic(&root).map_err(|e| fail(std::io::Error::from(e).to_string()))?;
        if !STORAGE.contains(&magic) {
            return Err(fail("is not on a file system that stores files".into()));
        }
        let real = host_components(&std::fs::canonicalize(&spec.host).map_err(|e| fail(e.to_string()))?);
        Ok(Self {
            resolver: Resolver::probe(&root),
            dev: stat.st_dev,
            ino: stat.st_ino,
            parts: kernel.parts(&real),
            real,
            remote: REMOTE.contains(&magic),
            exchanges: EXCHANGING.contains(&magic),
            overlaps: Vec::new(),
            withheld: Vec::new(),
            spec,
            root,
        })
    }

    /// Pins each component of a name beneath this mount's root.
    pub(crate) fn pin(&self, rel: &[u8]) -> rustix::io::Result<Vec<Pin>> {
        let start = self.resolver.open(&self.root, b"", OFlags::PATH)?;
        let parts: Vec<Vec<u8>> = components(rel).map(<[u8]>::to_vec).collect();
        Pin::chain(start, &parts)
    }

    /// The names beneath this mount's root under which everything is stored in `place`; the empty one is the root.
    pub(crate) fn names_within(&self, place: &Place) -> impl Iterator<Item = Vec<u8>> {
        self.parts.iter().filter_map(|part| part.name_within(place))
    }
}

/// An absolute host path as components.
pub(crate) fn host_components(path: &Path) -> Vec<Vec<u8>> {
    components(path.as_os_str().as_bytes()).map(<[u8]>::to_vec).collect()
}

pub(crate) fn host_path(components: &[Vec<u8>]) -> std::path::PathBuf {
    Path::new("/").join(std::ffi::OsStr::from_bytes(&components.join(&b'/')))
}

fn magic(fd: impl AsFd) -> rustix::io::Result<u32> {
    // The kernel's field is wider than the constants on some machines; the constants fit 32 bits.
    fs::fstatfs(fd).map(|s| u32::try_from(i128::from(s.f_type) & 0xffff_ffff).unwrap_or(0))
}

/// Whether the open file lies on a file system that stores files.
pub(crate) fn on_storage(fd: impl AsFd) -> bool {
    magic(fd).is_ok_and(|magic| STORAGE.contains(&magic))
}

/// Whether the open file lies on a file system of this machine's kernel.
pub(crate) fn is_local(fd: impl AsFd) -> bool {
    magic(fd).is_ok_and(|magic| STORAGE.contains(&magic) && !REMOTE.contains(&magic))
}

/// A name that must keep leading to the same object for as long as the run lives.
#[derive(Debug)]
pub(crate) struct Pin {
    parent: Dir,
    name: Vec<u8>,
    identity: (u64, u64),
    watch: Watch,
}

impl Pin {
    /// Pins each component of `path` below `start`, a component-wise path without links; the last may be a file.
    pub(crate) fn chain(start: OwnedFd, path: &[Vec<u8>]) -> rustix::io::Result<Vec<Self>> {
        let mut pins = Vec::with_capacity(path.len());
        let mut dir = start;
        for name in path {
            let parent = Dir::new(dir);
            let component = Component::of(name)?;
            dir = parent.open(component, OFlags::PATH, Mode::empty())?;
            let stat = fs::fstat(&dir)?;
            let watch = Watch::of(&parent);
            pins.push(Self { parent, name: name.clone(), identity: (stat.st_dev, stat.st_ino), watch });
        }
        Ok(pins)
    }

    /// Fails where the name leads elsewhere now.
    pub(crate) fn verify(&self) -> Result<(), ToolError> {
        self.watch.verify(&self.parent, || self.look())
    }

    fn look(&self) -> Result<(), ToolError> {
        let now = Component::of(&self.name).and_then(|name| self.parent.look(name));
        if now.is_ok_and(|look| look.identity == self.identity) {
            return Ok(());
        }
        Err(ToolError::new(
            Code::SandboxUnavailable,
            "a directory of the run was moved or replaced while the run was open",
        )
        .hint("Nothing the model sends can mend this; the host must open the run again."))
    }
}
