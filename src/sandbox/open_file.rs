//! [`OpenFile`]: a regular file that was opened, and its hash.

use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
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
        self.retried(|| rustix::io::read(&self.fd, &mut *buffer))
    }

    fn retried(&self, mut read: impl FnMut() -> rustix::io::Result<usize>) -> Result<usize, ToolError> {
        loop {
            match read() {
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
        bytes.clear();
        bytes.reserve(expected.saturating_add(1));
        loop {
            let room = bytes.capacity() - bytes.len();
            let count = self.retried(|| rustix::io::read(&self.fd, spare_capacity(bytes)))?;
            let length = bytes.len();
            if length as u64 > limit {
                return Err(too_large(&self.path, self.size.max(length as u64), limit));
            }
            // A read that leaves room has reached the end of a regular file.
            if count < room {
                return Ok(());
            }
            bytes.reserve(length);
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
