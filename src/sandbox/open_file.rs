//! [`OpenFile`]: a regular file that was opened, and its hash.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::Stat;
use rustix::io::Errno;

use super::SandboxPath;
use super::dir::Version;
use crate::error::{Code, ToolError};

/// An open regular file.
#[derive(Debug)]
pub struct OpenFile {
    fd: OwnedFd,
    /// Its size when it was opened, in bytes.
    pub size: u64,
    /// Its device and inode.
    pub identity: (u64, u64),
    /// Which state of it was opened.
    pub(crate) version: Version,
    /// Its link-free name.
    pub path: SandboxPath,
}

impl OpenFile {
    pub(super) fn new(fd: OwnedFd, stat: &Stat, path: SandboxPath) -> Self {
        let version = Version::of(stat);
        Self { fd, size: version.size, identity: version.identity, version, path }
    }

    /// Reads from where the last read ended; 0 bytes are the end.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, ToolError> {
        loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(ToolError::io(&self.path.to_string(), "reading", errno)),
                Ok(count) => return Ok(count),
            }
        }
    }

    /// The whole file; `too_large` over `limit` bytes.
    pub fn read_all(&self, limit: u64) -> Result<Vec<u8>, ToolError> {
        let mut bytes = Vec::new();
        self.read_into(&mut bytes, limit)?;
        Ok(bytes)
    }

    /// The whole file, in place of what `bytes` held; `too_large` over `limit` bytes.
    pub(crate) fn read_into(&self, bytes: &mut Vec<u8>, limit: u64) -> Result<(), ToolError> {
        let expected = usize::try_from(self.size.min(limit)).unwrap_or(usize::MAX);
        let mut filled = 0;
        bytes.resize(expected.saturating_add(1), 0);
        loop {
            let space = bytes.get_mut(filled..).unwrap_or_default();
            // A read that leaves room has reached the end of a regular file.
            let wanted = space.len();
            let count = self.read(space)?;
            filled += count;
            if filled as u64 > limit {
                return Err(too_large(&self.path, self.size.max(filled as u64), limit));
            }
            if count < wanted {
                bytes.truncate(filled);
                return Ok(());
            }
            bytes.resize(filled.saturating_mul(2), 0);
        }
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The content hash that reads give and writes expect: `b3:` and 32 hex digits of the whole file.
pub(crate) fn content_hash(bytes: &[u8]) -> String {
    hash_text(&blake3::hash(bytes))
}

/// The same of a hash.
pub(crate) fn hash_text(hash: &blake3::Hash) -> String {
    format!("b3:{}", hash.to_hex().get(..32).unwrap_or_default())
}

pub(crate) fn too_large(path: &SandboxPath, size: u64, limit: u64) -> ToolError {
    ToolError::new(Code::TooLarge, format!("`{path}` has {size} bytes, over the limit of {limit}"))
        .hint("Read it in parts with `offset` and `limit`, or search it.")
}
