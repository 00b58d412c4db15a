//! Artifacts: stored large outputs in the run's `artifacts` folder, named by our id of the call.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Code, ToolError};
use crate::sandbox::dir::{Component, Dir};
use crate::sandbox::host;

/// The most that the artifacts of a run take, in bytes.
const MAX_BYTES: u64 = 1 << 30;
/// What stays free on the file system, in bytes.
const MIN_FREE: u64 = 64 << 20;

/// Whether a file name is one of an artifact: our id of a call, then what it is called.
pub(crate) fn is_ours(name: &[u8]) -> bool {
    let after_id = || {
        let (prefix, rest) = name.strip_prefix(b"c")?.split_at_checked(16)?;
        let rest = rest.strip_prefix(b"-")?;
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let follows = rest.get(digits)?;
        Some(prefix.iter().all(u8::is_ascii_hexdigit) && digits > 0 && matches!(follows, b'.' | b'-'))
    };
    after_id().unwrap_or(false)
}

/// Stores `bytes` under `name`, 0600; an existing name is an error. Answers the sandbox path.
pub(crate) fn store(folder: &Dir, name: &str, bytes: &[u8]) -> Result<String, ToolError> {
    let (taken, free) = host::room(folder).map_err(|errno| ToolError::io("artifacts", "measuring", errno))?;
    let size = bytes.len() as u64;
    if taken.saturating_add(size) > MAX_BYTES || free < MIN_FREE.saturating_add(size) {
        return Err(ToolError::new(Code::TooLarge, format!("there is no room for an artifact of {size} bytes"))
            .hint("Ask for less, or tell the user that the run's artifacts fill their 1 GiB or the disk."));
    }
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

#[cfg(test)]
mod tests {
    use super::is_ours;

    #[test]
    fn only_names_that_we_give_are_ours() {
        for name in ["c0123456789abcdef-0.txt", "c0123456789abcdef-17-plot.svg", "cffffffffffffffff-3.json"] {
            assert!(is_ours(name.as_bytes()), "{name}");
        }
        let others =
            ["", "c", "c0123456789abcdef", "c0123456789abcdef-", "c0123456789abcdef-1", "c0123456789abcdex-1.txt"];
        for name in others.into_iter().chain(["x0123456789abcdef-1.txt", "c0123456789abcdef-x.txt", "notes.txt"]) {
            assert!(!is_ours(name.as_bytes()), "{name}");
        }
    }
}
