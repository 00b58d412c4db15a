//! [`Journal`]: whole-line appends to a run's three log files, under one lock, for threads, processes and forked
//! children.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::{Code, ToolError};
use crate::fork::PerProcess;
use crate::sandbox::dir::{Component, Dir, Kind, Watch};
use crate::sandbox::host::{LogFile, RunFolder, mark_in_use, try_lock, unlock};

/// The longest line, newline included, in bytes.
pub(crate) const MAX_LINE_BYTES: usize = 64 * 1024;
/// How long the lock is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// A sequence number above this is damage: it is more than JSON readers keep exactly.
const MAX_SEQ: u64 = 1 << 53;

/// A log file of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sink {
    Tools,
    Events,
    Errors,
}

impl Sink {
    fn name(self) -> &'static str {
        match self {
            Self::Tools => "tools.jsonl",
            Self::Events => "events.jsonl",
            Self::Errors => "errors.jsonl",
        }
    }
}

/// The three log files of a run.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: RunFolder,
    process: PerProcess<Files>,
    sync: bool,
}

/// One process's descriptors. Its lock is the `logs` folder's own descriptor.
#[derive(Debug)]
struct Files {
    logs: Dir,
    root: Dir,
    watches: [Watch; 2],
    /// Nobody else used the run when this process began to.
    alone: bool,
    state: Mutex<[Log; 3]>,
}

#[derive(Debug)]
struct Log {
    sink: Sink,
    file: LogFile,
    identity: (u64, u64),
    /// Where our last append ended; the file is looked at anew where this is not its size.
    size: u64,
    /// The last sequence number in the file.
    seq: u64,
}

type Result<T> = std::result::Result<T, ToolError>;

impl Journal {
    /// The journal of the run in `folder`; makes the files where they are missing.
    /// Answers too whether nobody else uses the run: then calls without an end have none to come.
    pub(crate) fn open(folder: RunFolder, sync: bool) -> Result<(Self, bool)> {
        let journal = Self { folder, process: PerProcess::new(), sync };
        let alone = journal.process.get(|| journal.files())?.1.alone;
        Ok((journal, alone))
    }

    pub(crate) fn folder(&self) -> &RunFolder {
        &self.folder
    }

    fn files(&self) -> Result<Files> {
        let open = || {
            let logs = self.folder.folder("logs")?;
            let root = self.folder.root.open_here()?;
            let alone = mark_in_use(&root)?;
            let log = |sink: Sink| {
                let file = LogFile::hold(if sink == Sink::Events { &root } else { &logs }, sink.name())?;
                let identity = file.look()?.identity;
                Ok(Log { sink, file, identity, size: 0, seq: 0 })
            };
            let state = Mutex::new([log(Sink::Tools)?, log(Sink::Events)?, log(Sink::Errors)?]);
            let watches = [Watch::of(&logs), Watch::of(&root)];
            Ok::<_, Errno>(Files { logs, root, watches, alone, state })
        };
        open().map_err(|errno| unavailable("the log files cannot be opened").cause(std::io::Error::from(errno)))
    }

    /// Lets go of this process's descriptors.
    pub(crate) fn close(&self) {
        self.process.clear();
    }

    /// Appends each body as one line of its file: all of them, or none. A body is an object's text after `"seq":N,`,
    /// its closing brace included.
    pub(crate) fn append(&self, lines: &[(Sink, &str)]) -> Result<()> {
        let process = self.process.get(|| self.files())?;
        let files = &process.1;
        let deadline = Instant::now() + LOCK_WAIT;
        let mut logs = acquire(&files.state, deadline)?;
        wait(deadline, || {
            try_lock(&files.logs).map_err(|e| unavailable("the log lock failed").cause(std::io::Error::from(e)))
        })?;
        let done = append_all(files, &mut logs, lines, self.sync);
        unlock(&files.logs);
        done
    }
}

fn append_all(files: &Files, logs: &mut [Log; 3], lines: &[(Sink, &str)], sync: bool) -> Result<()> {
    let [tools, events, errors] = logs;
    let [in_logs, in_root] = &files.watches;
    in_logs.verify(&files.logs, || tools.named(&files.logs).and_then(|()| errors.named(&files.logs)))?;
    in_root.verify(&files.root, || events.named(&files.root))?;
    let mut undo: Vec<(Sink, u64, u64)> = Vec::with_capacity(lines.len());
    let mut torn = Vec::new();
    for (sink, body) in lines {
        let Some(log) = logs.get_mut(*sink as usize) else { continue };
        let before = log.reconcile(&mut torn).map(|()| (log.size, log.seq));
        let done = before.and_then(|before| log.append(body, sync).map(|()| before));
        match done {
            Ok((size, seq)) => undo.push((*sink, size, seq)),
            Err(error) => {
                for (sink, size, seq) in undo.into_iter().rev() {
                    if let Some(log) = logs.get_mut(sink as usize) {
                        log.roll_back(size, seq);
                    }
                }
                return Err(error);
            }
        }
    }
    for (sink, at) in torn {
        let body = format!(
            "\"time\":\"{}\",\"code\":\"log_torn\",\"message\":\"{}: the line that begins at byte {at} was cut off and has been closed off\"}}",
            super::call_record::now(),
            sink.name(),
        );
        if let Some(log) = logs.get_mut(Sink::Errors as usize) {
            log.reconcile(&mut Vec::new()).and_then(|()| log.append(&body, false))?;
        }
    }
    Ok(())
}

impl Log {
    /// Whether the file's name still leads to it.
    fn named(&self, dir: &Dir) -> Result<()> {
        let found = Component::of(self.sink.name().as_bytes()).and_then(|name| dir.look(name));
        if found.is_ok_and(|look| look.identity == self.identity && look.kind == Kind::File) {
            return Ok(());
        }
        Err(self.replaced())
    }

    fn replaced(&self) -> ToolError {
        unavailable(&format!("{} was replaced, linked or removed", self.sink.name()))
    }

    /// Brings what we know of the file up to date: others may have appended, or died while they did. Refuses a file
    /// that has more names than its own, or none.
    fn reconcile(&mut self, torn: &mut Vec<(Sink, u64)>) -> Result<()> {
        let look = self.file.look().map_err(|e| self.failed(e))?;
        if look.links != 1 {
            return Err(self.replaced());
        }
        let now = look.size;
        if now == self.size {
            return Ok(());
        }
        let fail = |errno: Errno| self.failed(errno);
        let (start, seq) = last_line(&self.file, now).map_err(fail)?;
        let mut end = now;
        if let Some(start) = start {
            self.file.append(b"\n").map_err(fail)?;
            end += 1;
            torn.push((self.sink, start));
        }
        (self.size, self.seq) = (end, seq);
        Ok(())
    }

    fn append(&mut self, body: &str, sync: bool) -> Result<()> {
        let mut line = String::with_capacity(body.len() + 40);
        line.push_str("{\"v\":1,\"seq\":");
        line.push_str(itoa::Buffer::new().format(self.seq + 1));
        line.push(',');
        line.push_str(body);
        line.push('\n');
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            match self.file.append(rest) {
                Ok(count) if count > 0 => rest = rest.get(count..).unwrap_or_default(),
                other => {
                    let written = (line.len() - rest.len()) as u64;
                    if self.file.look().is_ok_and(|look| look.size == self.size + written) {
                        let _ = self.file.truncate(self.size);
                    }
                    return Err(self.failed(other.err().unwrap_or(Errno::NOSPC)));
                }
            }
        }
        if sync {
            self.file.sync().map_err(|e| self.failed(e))?;
        }
        self.size += line.len() as u64;
        self.seq += 1;
        Ok(())
    }

    /// Takes back our own last line, if nothing came after it.
    fn roll_back(&mut self, size_before: u64, seq: u64) {
        if self.file.look().is_ok_and(|look| look.size == self.size) && self.file.truncate(size_before).is_ok() {
            (self.size, self.seq) = (size_before, seq);
        }
    }

    fn failed(&self, errno: Errno) -> ToolError {
        unavailable(&format!("{} cannot be written", self.sink.name())).cause(std::io::Error::from(errno))
    }
}

/// Where an unfinished last line begins, if there is one, and the last sequence number in the file.
fn last_line(file: &LogFile, size: u64) -> rustix::io::Result<(Option<u64>, u64)> {
    #[derive(serde::Deserialize)]
    struct Seq {
        seq: u64,
    }
    let mut window = (2 * MAX_LINE_BYTES) as u64;
    loop {
        let from = size.saturating_sub(window);
        let mut tail = vec![0; usize::try_from(size - from).map_err(|_| Errno::FBIG)?];
        let mut filled = 0;
        while let Some(space) = tail.get_mut(filled..).filter(|s| !s.is_empty()) {
            match file.read_at(space, from + filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        tail.truncate(filled);
        let cut_off = tail.last().is_some_and(|b| *b != b'\n');
        let start = memchr::memrchr(b'\n', &tail).map_or(0, |at| at + 1) as u64;
        // The last line that parses counts, also where only its newline is missing.
        let seq = tail
            .rsplit(|b| *b == b'\n')
            .find_map(|line| serde_json::from_slice::<Seq>(line).ok().map(|s| s.seq).filter(|seq| *seq <= MAX_SEQ));
        if from == 0 || (seq.is_some() && (start > 0 || !cut_off)) {
            return Ok((cut_off.then_some(from + start), seq.unwrap_or(0)));
        }
        window = window.saturating_mul(8);
    }
}

fn acquire(state: &Mutex<[Log; 3]>, deadline: Instant) -> Result<MutexGuard<'_, [Log; 3]>> {
    let mut held = None;
    wait(deadline, || {
        held = match state.try_lock() {
            Ok(guard) => Some(guard),
            // What a panicking holder left is looked at anew: the sizes differ.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        Ok(held.is_some())
    })?;
    held.ok_or_else(|| unavailable("the log lock failed"))
}

fn wait(deadline: Instant, mut attempt: impl FnMut() -> Result<bool>) -> Result<()> {
    let mut pause = Duration::from_micros(20);
    while !attempt()? {
        if Instant::now() > deadline {
            return Err(unavailable("another process holds the log lock"));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
    Ok(())
}

fn unavailable(why: &str) -> ToolError {
    ToolError::new(Code::LogUnavailable, format!("the call cannot be recorded: {why}"))
        .hint("Nothing the model sends can mend this; tell the user.")
}
