//! [`Resolver`]: from a link-free name to an open descriptor, without following a link on the way.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};

use super::dir::{Component, Dir, Kind};
use super::path::{MAX_PATH_BYTES, components};

/// How names are resolved beneath a mount's root. Chosen once, when the mount is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolver {
    /// By the kernel: `openat2`.
    Kernel,
    /// Component by component, where `openat2` is missing or forbidden.
    Descent,
}

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_SYMLINKS);

impl Resolver {
    pub(crate) fn probe(root: impl AsFd) -> Self {
        if cfg!(feature = "force-descent") {
            return Self::Descent;
        }
        match fs::openat2(root, c".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), BENEATH) {
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::TOOBIG) => Self::Descent,
            _ => Self::Kernel,
        }
    }

    /// Opens `rel` beneath `root`. A link anywhere in it is `ELOOP`; the caller expands it and asks again.
    pub(crate) fn open(self, root: impl AsFd, rel: &[u8], flags: OFlags) -> Result<OwnedFd> {
        // The kernel refuses O_NOCTTY beside O_PATH.
        let tty = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY };
        let flags = flags | OFlags::CLOEXEC | tty;
        match self {
            Self::Kernel if rel.len() <= MAX_PATH_BYTES => {
                let rel = if rel.is_empty() { b"." } else { rel };
                fs::openat2(root, rel, flags, Mode::empty(), BENEATH)
            }
            // No call of the kernel takes a longer name; a walk can come back to one.
            Self::Kernel | Self::Descent => descend(root, rel, flags),
        }
    }
}

fn descend(root: impl AsFd, rel: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let walk = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut dir = Dir::new(fs::openat(root, c".", walk, Mode::empty())?);
    let mut parts = components(rel).peekable();
    let Some(mut part) = parts.next() else {
        return fs::openat(&dir, c".", flags, Mode::empty());
    };
    for next in parts {
        let name = Component::of(part)?;
        dir = match dir.open(name, walk, Mode::empty()) {
            Ok(fd) => Dir::new(fd),
            Err(Errno::NOTDIR) if dir.stat(name).is_ok_and(|s| Kind::of(s.st_mode) == Kind::Link) => {
                return Err(Errno::LOOP);
            }
            Err(errno) => return Err(errno),
        };
        part = next;
    }
    let name = Component::of(part)?;
    let opened = dir.open(name, flags, Mode::empty());
    match opened {
        // With O_PATH a link opens as itself; with O_DIRECTORY it is ENOTDIR.
        Ok(fd) if flags.contains(OFlags::PATH) && Kind::of(fs::fstat(&fd)?.st_mode) == Kind::Link => Err(Errno::LOOP),
        Err(Errno::NOTDIR) if dir.stat(name).is_ok_and(|s| Kind::of(s.st_mode) == Kind::Link) => Err(Errno::LOOP),
        other => other,
    }
}
