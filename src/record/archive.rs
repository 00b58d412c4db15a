//! Line files of a run's `archive` folder: whole lines appended under one lock, and read without it.

use std::time::{Duration, Instant};

use rustix::io::{Errno, Result};

use super::reader::Lines;
use crate::sandbox::dir::{Component, Dir, Kind};
use crate::sandbox::host::{LogFile, RunFolder, size_limit, try_lock, unlock};

/// The longest line, newline included, in bytes.
pub(crate) const MAX_LINE_BYTES: usize = 512 * 1024;
/// The largest file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 28;
/// How long the lock is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// The archive folder, locked for this open file until it is dropped.
#[derive(Debug)]
pub(crate) struct Archive(Dir);

impl Drop for Archive {
    fn drop(&mut self) {
        unlock(&self.0);
    }
}

impl Archive {
    /// Takes the lock; `ETIMEDOUT` where somebody holds it for more than 5 s.
    pub(crate) fn lock(folder: &RunFolder) -> Result<Self> {
        // Opened for this call, so that no thread and no forked child shares the lock.
        let dir = folder.folder("archive")?;
        let deadline = Instant::now() + LOCK_WAIT;
        let mut pause = Duration::from_micros(20);
        while !try_lock(&dir)? {
            if Instant::now() > deadline {
                return Err(Errno::TIMEDOUT);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
        Ok(Self(dir))
    }

    /// Appends `line`, which has no newline, as a line of its own: whole or not at all.
    pub(crate) fn append(&self, name: &str, line: &str, sync: bool) -> Result<()> {
        let file = LogFile::hold(&self.0, name)?;
        let look = file.look()?;
        if look.kind != Kind::File || look.links != 1 {
            return Err(Errno::BADF);
        }
        // The process of an earlier writer may have died in the middle of its line.
        let torn = look.size > 0 && !file.holds(b"\n", look.size - 1)?;
        let line = [if torn { "\n" } else { "" }, line, "\n"].concat();
        // To try would be answered with a signal.
        let most = size_limit().map_or(MAX_FILE_BYTES, |limit| limit.min(MAX_FILE_BYTES));
        if line.len() > MAX_LINE_BYTES || look.size + line.len() as u64 > most {
            return Err(Errno::FBIG);
        }
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            match file.append(rest) {
                Ok(count) if count > 0 => rest = rest.get(count..).unwrap_or_default(),
                other => {
                    let written = (line.len() - rest.len()) as u64;
                    if file.look().is_ok_and(|now| now.size == look.size + written) {
                        let _ = file.truncate(look.size);
                    }
                    return Err(other.err().unwrap_or(Errno::NOSPC));
                }
            }
        }
        if sync { file.sync() } else { Ok(()) }
    }
}

/// Hands over each whole line with its number, from 1; a line over the limit as `None`. A missing file has no lines, and
/// the end of a file without a newline is a line that somebody is still writing. Holds one line at a time.
pub(crate) fn each_line(
    folder: &RunFolder,
    name: &str,
    mut take: impl FnMut(u64, Option<&[u8]>) -> bool,
) -> Result<()> {
    let dir = folder.folder("archive")?;
    // Typed before it is opened: opening a pipe would wake or break its writer.
    match dir.stat(Component::of(name.as_bytes())?) {
        Err(Errno::NOENT) => return Ok(()),
        other if Kind::of(other?.st_mode) != Kind::File => return Err(Errno::BADF),
        _ => {}
    }
    let mut lines = Lines::of_at_most(MAX_LINE_BYTES, LogFile::read(&dir, name)?);
    let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let mut number = 0;
    while let Some(line) = lines.next().map_err(failed)?.filter(|line| line.whole) {
        number += 1;
        let whole = line.end - line.at == line.bytes.len() as u64 + 1;
        if !take(number, whole.then_some(line.bytes)) {
            break;
        }
    }
    Ok(())
}
