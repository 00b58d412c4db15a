//! Artifacts: stored large outputs in the run's `artifacts` folder, named by our id of the call.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Code, ToolError};
use crate::sandbox::dir::{Component, Dir};

/// Stores `bytes` under `name`, 0600; an existing name is an error. Answers the sandbox path.
pub(crate) fn store(folder: &Dir, name: &str, bytes: &[u8]) -> Result<String, ToolError> {
    let write = || {
        let name = Component::of(name.as_bytes())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let fd = folder.open(name, flags, Mode::from_raw_mode(0o600))?;
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::io::retry_on_intr(|| rustix::io::write(&fd, rest)) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(errno) => {
                    let _ = folder.remove(name);
                    return Err(errno);
                }
            }
        }
        Ok::<_, Errno>(())
    };
    match write() {
        Ok(()) => Ok(format!("artifacts/{name}")),
        Err(Errno::EXIST) => Err(ToolError::new(Code::AlreadyExists, format!("the artifact `{name}` exists"))),
        Err(errno) => Err(ToolError::io(&format!("artifacts/{name}"), "storing", errno)),
    }
}

/// Takes back an artifact that cannot be put on record.
pub(crate) fn remove(folder: &Dir, name: &str) {
    let _ = Component::of(name.as_bytes()).and_then(|name| folder.remove(name));
}
