//! [`Journal`]: whole-line appends to a run's three log files, under one lock, for threads, processes and forked
//! children.

use std::cell::LazyCell;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde_json::Value;

use super::call_record::now;
use super::chain::{Chain, Mac};
use super::event::{EventType, Owner, event};
use super::reader::{self, Lines};
use crate::error::{Code, ToolError};
use crate::fork::PerProcess;
use crate::sandbox::dir::{Component, Dir, Kind, Look, Watch};
use crate::sandbox::host::{LogFile, LogText, RunFolder, mark_in_use, size_limit, try_lock, unlock};

/// The longest line, newline included, in bytes.
pub(crate) const MAX_LINE_BYTES: usize = 64 * 1024;
/// A sequence number above this is damage: it is more than JSON readers keep exactly.
pub(crate) const MAX_SEQ: u64 = 1 << 53;

/// How long the lock is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// What the logs of a run hold together, in bytes.
const MAX_LOGS_BYTES: u64 = 1 << 30;
/// Room that is kept in each file for the ends of calls that other processes began, in bytes.
const OTHERS_ROOM: u64 = 256 * 1024;
/// Room is made in steps of this many bytes, so that most appends find it made.
const ROOM_STEP: u64 = 256 * 1024;

/// A log file of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sink {
    Tools,
    Events,
    Errors,
}

impl Sink {
    pub(crate) const ALL: [Self; 3] = [Self::Tools, Self::Events, Self::Errors];

    fn name(self) -> &'static str {
        match self {
            Self::Tools => "tools.jsonl",
            Self::Events => "events.jsonl",
            Self::Errors => "errors.jsonl",
        }
    }

    /// Its path in the run's folder.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Tools => "logs/tools.jsonl",
            Self::Events => "events.jsonl",
            Self::Errors => "logs/errors.jsonl",
        }
    }

    /// Opens it for reading.
    pub(crate) fn read(self, folder: &RunFolder) -> rustix::io::Result<LogText> {
        let dir = if self == Self::Events { folder.root.open_here()? } else { folder.folder("logs")? };
        LogFile::read(&dir, self.name())
    }
}

/// How a run keeps its records.
#[derive(Debug)]
pub(crate) struct Keeping {
    pub(crate) run_id: String,
    /// Records survive a loss of power.
    pub(crate) power_safe: bool,
    pub(crate) chain: Option<Chain>,
}

/// The three log files of a run.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: RunFolder,
    process: PerProcess<Files>,
    keeping: Keeping,
}

/// One process's descriptors. Its lock is the `logs` folder's own descriptor.
#[derive(Debug)]
struct Files {
    logs: Dir,
    root: Dir,
    watches: [Watch; 2],
    /// Nobody else used the run when this process began to.
    alone: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    logs: [Log; 3],
    /// Calls of this process that began to change something and have not ended.
    begun: u64,
    /// A log is not what this process left.
    tampered: bool,
    /// Events that tell of how the logs were found, and are still to be written.
    notices: Vec<String>,
}

/// What the appended lines mean for the room that is kept for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// A call begins to change something: its end must find room in every file.
    Begin,
    /// Such a call ends: it uses the room.
    End,
    Other,
}

/// What stands before the next line of a file.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// The file's size.
    size: u64,
    /// The last sequence number in it.
    seq: u64,
    mac: Mac,
}

#[derive(Debug)]
struct Log {
    sink: Sink,
    file: LogFile,
    identity: (u64, u64),
    /// Where our last append ended; `None` before the first look.
    left: Option<Mark>,
    /// What our last append wrote; its last line begins at `last_line`.
    last: String,
    last_line: usize,
    /// The file ends with a line that was cut off; the next append closes it off.
    torn: bool,
    /// The lines that are being appended, and what will stand after them.
    out: String,
    out_line: usize,
    next: Mark,
    /// Up to here the file system has promised room; `u64::MAX` where it cannot.
    room: u64,
}

/// How a file was found.
#[derive(Clone, Copy, Debug)]
enum Found {
    Sound,
    /// Its last line was cut off; where that begins.
    Torn(u64),
    /// What we wrote is gone or altered, from here on.
    Tampered(u64),
}

type Result<T> = std::result::Result<T, ToolError>;

impl Journal {
    /// The journal of the run in `folder`; makes the files where they are missing.
    /// Answers too whether nobody else uses the run: then calls without an end have none to come.
    pub(crate) fn open(folder: RunFolder, keeping: Keeping) -> Result<(Self, bool)> {
        let journal = Self { folder, process: PerProcess::new(), keeping };
        let alone = journal.process.get(|| journal.files())?.1.alone;
        journal.require_same_audit()?;
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
                Ok::<_, Errno>(Log {
                    sink,
                    file,
                    identity,
                    left: None,
                    last: String::new(),
                    last_line: 0,
                    torn: false,
                    out: String::new(),
                    out_line: 0,
                    next: Mark::default(),
                    room: 0,
                })
            };
            let [tools, events, errors] = Sink::ALL.map(log);
            let state =
                Mutex::new(State { logs: [tools?, events?, errors?], begun: 0, tampered: false, notices: Vec::new() });
            if self.keeping.power_safe {
                // The names of new files survive too.
                logs.sync()?;
                root.sync()?;
            }
            let watches = [Watch::of(&logs), Watch::of(&root)];
            Ok::<_, Errno>(Files { logs, root, watches, alone, state })
        };
        open().map_err(|errno| unavailable("the log files cannot be opened").cause(std::io::Error::from(errno)))
    }

    /// Refuses a run whose first line was kept in another way, or under another key.
    fn require_same_audit(&self) -> Result<()> {
        let fail = |e: std::io::Error| unavailable("the log files cannot be read").cause(e);
        let mut lines = Lines::new(Sink::Events.read(&self.folder).map_err(|e| fail(e.into()))?);
        let Some(first) = lines.next().map_err(fail)? else { return Ok(()) };
        let says = |why: &str| unavailable(&format!("run `{}` {why}", self.keeping.run_id));
        match (&self.keeping.chain, Chain::split(first.bytes)) {
            (Some(chain), Some((line, mac)))
                if chain.mac(&chain.start(&self.keeping.run_id, Sink::Events), 0, &line) != mac =>
            {
                Err(says("was made with another audit key"))
            }
            (None, Some(_)) => Err(says("was made with `audit = \"chained\"`: open it so")),
            (Some(_), None) => Err(says("was not made with `audit = \"chained\"`")),
            _ => Ok(()),
        }
    }

    /// Lets go of this process's descriptors, and of the room in the files where nobody else uses the run.
    pub(crate) fn close(&self) {
        if let Ok(process) = self.process.get(|| Err(()))
            && let Ok(state) = process.1.state.try_lock()
            && try_lock(&process.1.root).is_ok_and(|alone| alone)
        {
            for log in &state.logs {
                // Cut off at its end, a file keeps its content and gives its room back.
                let _ = log.file.end().and_then(|end| log.file.truncate(end));
            }
        }
        self.process.clear();
    }

    /// Whether the file system promised the room that the ends of calls take; `None` before the first append.
    pub(crate) fn room_is_reserved(&self) -> Option<bool> {
        let process = self.process.get(|| Err(())).ok()?;
        let state = acquire(&process.1.state, Instant::now() + LOCK_WAIT).ok()?;
        let room = state.logs.iter().map(|log| log.room).max()?;
        (room > 0).then_some(room < u64::MAX)
    }

    /// Appends each body as one line of its file: all of them, or none. A body is an object's text after `"seq":N,`,
    /// its closing brace included.
    pub(crate) fn append(&self, lines: &[(Sink, &str)]) -> Result<()> {
        self.write(Purpose::Other, lines)
    }

    /// Appends the event of a call that begins to change something, and makes sure that its end will find room.
    pub(crate) fn begin(&self, line: &str) -> Result<()> {
        self.write(Purpose::Begin, &[(Sink::Events, line)])
    }

    /// Appends the end of a call that [`Self::begin`] let begin.
    pub(crate) fn end(&self, lines: &[(Sink, &str)]) -> Result<()> {
        self.write(Purpose::End, lines)
    }

    fn write(&self, purpose: Purpose, lines: &[(Sink, &str)]) -> Result<()> {
        self.locked(|state| {
            let checked = purpose == Purpose::Begin;
            let touched = |sink| (checked && sink == Sink::Tools) || lines.iter().any(|(other, _)| *other == sink);
            state.reconcile(&self.keeping, &touched)?;
            state.put(&self.keeping, purpose, lines)
        })
    }

    /// Appends an event that `body` makes of where the other logs end.
    pub(crate) fn finish(&self, body: impl FnOnce(&Value) -> String) -> Result<()> {
        self.locked(|state| {
            state.reconcile(&self.keeping, &|_| true)?;
            let body = body(&state.ends(&self.keeping));
            state.put(&self.keeping, Purpose::Other, &[(Sink::Events, &body)])
        })
    }

    /// Works on the files while nobody else does. They must be those that the run's names lead to.
    fn locked(&self, work: impl FnOnce(&mut State) -> Result<()>) -> Result<()> {
        let process = self.process.get(|| self.files())?;
        let files = &process.1;
        let deadline = Instant::now() + LOCK_WAIT;
        let mut state = acquire(&files.state, deadline)?;
        wait(deadline, || {
            try_lock(&files.logs).map_err(|e| unavailable("the log lock failed").cause(std::io::Error::from(e)))
        })?;
        let done = files.verify(&state).and_then(|()| work(&mut state));
        unlock(&files.logs);
        done
    }
}

impl Files {
    fn verify(&self, state: &State) -> Result<()> {
        let [tools, events, errors] = &state.logs;
        let [in_logs, in_root] = &self.watches;
        in_logs.verify(&self.logs, || tools.named(&self.logs).and_then(|()| errors.named(&self.logs)))?;
        in_root.verify(&self.root, || events.named(&self.root))
    }
}

impl State {
    /// Brings what we know of the files up to date: others may have appended, or died while they did, or done harm.
    fn reconcile(&mut self, keeping: &Keeping, touched: &dyn Fn(Sink) -> bool) -> Result<()> {
        for log in self.logs.iter_mut().filter(|log| touched(log.sink)) {
            let (kind, at) = match log.reconcile(keeping)? {
                Found::Sound => continue,
                Found::Torn(at) => (EventType::LogTorn, at),
                Found::Tampered(at) => {
                    self.tampered = true;
                    (EventType::LogTampered, at)
                }
            };
            let owner = Owner { run_id: &keeping.run_id, id: None, call_id: None };
            let data = serde_json::json!({"log": log.sink.path(), "at": at});
            self.notices.push(event(&owner, &now(), kind, &data));
        }
        if !self.notices.is_empty() && !touched(Sink::Events) {
            return self.reconcile(keeping, &|sink| sink == Sink::Events);
        }
        Ok(())
    }

    /// Where the other logs end.
    fn ends(&self, keeping: &Keeping) -> Value {
        let [tools, _, errors] = &self.logs;
        let ends = [tools, errors].map(|log| {
            let Mark { size, seq, mac } = log.left.unwrap_or_default();
            let mac = keeping.chain.as_ref().map(|_| mac.to_string());
            (log.sink.path().to_owned(), serde_json::json!({"bytes": size, "seq": seq, "mac": mac}))
        });
        Value::Object(ends.into_iter().collect())
    }

    fn put(&mut self, keeping: &Keeping, purpose: Purpose, lines: &[(Sink, &str)]) -> Result<()> {
        let refused = purpose == Purpose::Begin && self.tampered;
        for log in &mut self.logs {
            let sink = log.sink;
            let notices = self.notices.iter().filter(|_| sink == Sink::Events).map(String::as_str);
            let own = lines.iter().filter(|(other, _)| *other == sink && !refused).map(|(_, body)| *body);
            log.compose(notices.chain(own), keeping.chain.as_ref())?;
        }
        self.make_room(if refused { Purpose::Other } else { purpose })?;
        let mut outcome = Ok(());
        let mut begun = 0;
        for log in self.logs.iter_mut().filter(|log| !log.out.is_empty()) {
            begun += 1;
            outcome = log.write(keeping.power_safe);
            if outcome.is_err() {
                break;
            }
        }
        for log in self.logs.iter_mut().filter(|log| !log.out.is_empty()) {
            if outcome.is_ok() {
                log.keep();
            } else if begun > 0 {
                begun -= 1;
                log.take_back();
            }
        }
        outcome?;
        self.notices.clear();
        match purpose {
            Purpose::Begin if refused => {
                Err(unavailable("a log was cut or altered since it was written (log.tampered)"))
            }
            Purpose::Begin => {
                self.begun += 1;
                Ok(())
            }
            Purpose::End => {
                self.begun = self.begun.saturating_sub(1);
                Ok(())
            }
            Purpose::Other => Ok(()),
        }
    }

    /// Makes sure that there is room for what is about to be written, and after it for the ends of calls that have
    /// begun: all of this process, and some of others.
    fn make_room(&mut self, purpose: Purpose) -> Result<()> {
        let kept = match purpose {
            Purpose::Begin => OTHERS_ROOM + (self.begun + 1) * MAX_LINE_BYTES as u64,
            Purpose::Other => OTHERS_ROOM + self.begun * MAX_LINE_BYTES as u64,
            Purpose::End => 0,
        };
        // What the process may write can change at any time.
        let limit: LazyCell<Option<u64>> = LazyCell::new(size_limit);
        let mut total = 0;
        for log in &mut self.logs {
            let idle = log.out.is_empty() && purpose != Purpose::Begin;
            let end = log.left.unwrap_or_default().size + log.out.len() as u64 + if idle { 0 } else { kept };
            total += end;
            if !idle {
                log.make_room(end, purpose, &limit)?;
            }
        }
        if total > MAX_LOGS_BYTES {
            return Err(unavailable("the run's logs have reached 1 GiB together; begin a new run"));
        }
        Ok(())
    }
}

impl Log {
    /// Whether the file's name still leads to it, and no other name does.
    fn named(&self, dir: &Dir) -> Result<()> {
        let found = Component::of(self.sink.name().as_bytes()).and_then(|name| dir.look(name));
        let ours = |look: &Look| look.identity == self.identity && look.kind == Kind::File && look.links == 1;
        if found.is_ok_and(|look| ours(&look)) {
            return Ok(());
        }
        Err(unavailable(&format!("{} was replaced, linked or removed", self.sink.name())))
    }

    /// Brings what we know of the file up to date.
    fn reconcile(&mut self, keeping: &Keeping) -> Result<Found> {
        let fail = |errno: Errno| failed(self.sink, errno);
        let size = self.file.end().map_err(fail)?;
        let chained = keeping.chain.is_some();
        if let Some(left) = self.left {
            if size == left.size && !chained {
                return Ok(Found::Sound);
            }
            let line = self.last.as_bytes().get(self.last_line..).unwrap_or_default();
            let at = left.size - line.len() as u64;
            if size < left.size || !self.file.holds(line, at).map_err(fail)? {
                // The chain goes on from what we wrote, so that it shows the harm for ever.
                self.found(Mark { size, ..left }, size > 0 && !self.file.holds(b"\n", size - 1).map_err(fail)?);
                return Ok(Found::Tampered(at.min(size)));
            }
            if size == left.size {
                return Ok(Found::Sound);
            }
        }
        let tail = reader::tail(&self.file, size).map_err(|e| fail(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        let start = || keeping.chain.as_ref().map(|chain| chain.start(&keeping.run_id, self.sink));
        let mac = tail.mac.or_else(start).unwrap_or_default();
        self.found(Mark { size, seq: tail.seq, mac }, tail.torn.is_some());
        Ok(tail.torn.map_or(Found::Sound, Found::Torn))
    }

    fn found(&mut self, left: Mark, torn: bool) {
        self.left = Some(left);
        self.torn = torn;
        self.last.clear();
        self.last_line = 0;
    }

    /// Makes the lines that are to be appended.
    fn compose<'l>(&mut self, bodies: impl Iterator<Item = &'l str>, chain: Option<&Chain>) -> Result<()> {
        self.out.clear();
        self.next = self.left.unwrap_or_default();
        let start = self.next.size;
        for body in bodies {
            if self.torn && self.out.is_empty() {
                self.out.push('\n');
            }
            let line = self.out.len();
            self.out.push_str("{\"v\":1,\"seq\":");
            self.next.seq += 1;
            self.out.push_str(itoa::Buffer::new().format(self.next.seq));
            self.out.push(',');
            self.out.push_str(body);
            if let Some(chain) = chain {
                self.next.mac = chain.seal(&self.next.mac, start + line as u64, &mut self.out, line);
            }
            self.out.push('\n');
            self.out_line = line;
            if self.out.len() - line > MAX_LINE_BYTES {
                self.out.clear();
                return Err(unavailable("its record is over 64 KiB"));
            }
        }
        self.next.size = start + self.out.len() as u64;
        Ok(())
    }

    /// Makes sure that the file can grow to `end`.
    fn make_room(&mut self, end: u64, purpose: Purpose, limit: &LazyCell<Option<u64>>) -> Result<()> {
        let made = end <= self.room;
        // The end of a call was looked after when it began.
        let asks = purpose == Purpose::Begin || (purpose == Purpose::Other && !made);
        if asks && limit.is_some_and(|limit| end > limit) {
            return Err(failed(self.sink, Errno::FBIG));
        }
        if made {
            return Ok(());
        }
        let from = self.left.unwrap_or_default().size;
        let far = self.file.reserve(from, end + ROOM_STEP - from).map(|()| end + ROOM_STEP);
        let made = far.or_else(|errno| match errno {
            Errno::OPNOTSUPP | Errno::NOSYS => Ok(u64::MAX),
            _ => self.file.reserve(from, end - from).map(|()| end),
        });
        self.room = made.map_err(|errno| failed(self.sink, errno))?;
        Ok(())
    }

    fn write(&mut self, sync: bool) -> Result<()> {
        let mut rest = self.out.as_bytes();
        while !rest.is_empty() {
            match self.file.append(rest) {
                Ok(count) if count > 0 => rest = rest.get(count..).unwrap_or_default(),
                other => return Err(failed(self.sink, other.err().unwrap_or(Errno::NOSPC))),
            }
        }
        if sync { self.file.sync().map_err(|errno| failed(self.sink, errno)) } else { Ok(()) }
    }

    fn keep(&mut self) {
        self.left = Some(self.next);
        self.last_line = self.out_line;
        self.torn = false;
        std::mem::swap(&mut self.last, &mut self.out);
        self.out.clear();
    }

    /// Takes back what we wrote, whole or in part, if nothing came after it.
    fn take_back(&mut self) {
        let start = self.left.unwrap_or_default().size;
        let end = self.file.end().unwrap_or(start);
        let ours = usize::try_from(end.saturating_sub(start)).ok().and_then(|length| self.out.as_bytes().get(..length));
        if ours.is_some_and(|ours| self.file.holds(ours, start) == Ok(true)) {
            let _ = self.file.truncate(start);
        }
        self.out.clear();
        self.room = self.room.min(start);
    }
}

fn acquire(state: &Mutex<State>, deadline: Instant) -> Result<MutexGuard<'_, State>> {
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
        pause = (pause * 2).min(Duration::from_millis(1));
    }
    Ok(())
}

fn failed(sink: Sink, errno: Errno) -> ToolError {
    unavailable(&format!("{} cannot be written", sink.name())).cause(std::io::Error::from(errno))
}

fn unavailable(why: &str) -> ToolError {
    ToolError::new(Code::LogUnavailable, format!("the call cannot be recorded: {why}"))
        .hint("Nothing the model sends can mend this; tell the user.")
        .details(serde_json::json!({"done": false}))
}
