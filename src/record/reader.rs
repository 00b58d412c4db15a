//! [`LogReader`]: a log read back line by line, never held as a whole, never written. It tells what a crash left from
//! what somebody damaged: a line that was cut off took no sequence number, a record that is gone leaves its number open.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::chain::{Chain, Mac};
use super::jsonl::{MAX_LINE_BYTES, MAX_SEQ, Sink};
use crate::error::KgentError;
use crate::sandbox::host::{LogFile, LogText, RunFolder};

/// Faults that are kept of one log.
const MAX_FAULTS: usize = 100;

/// A log that can be read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunLog {
    /// `logs/tools.jsonl`.
    Records,
    /// `events.jsonl`.
    Events,
    /// `logs/errors.jsonl`.
    Errors,
}

impl RunLog {
    pub(crate) fn sink(self) -> Sink {
        match self {
            Self::Records => Sink::Tools,
            Self::Events => Sink::Events,
            Self::Errors => Sink::Errors,
        }
    }
}

/// What is wrong with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Where a record was, something unreadable is.
    Broken,
    /// Records are not there.
    Missing,
    /// A record stands where an earlier one, or itself, has been.
    Reordered,
    /// A record is not what was written, or was not written here.
    Altered,
    /// The log ends before it did when the run was closed.
    Truncated,
}

/// A place where a log is not as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Fault {
    /// What is wrong.
    pub kind: FaultKind,
    /// The number of the record that was expected there.
    pub seq: u64,
    /// The byte at which the line begins.
    pub at: u64,
}

/// The lines of a file, one at a time; of a line that is longer than any of ours nothing is kept.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    at: u64,
    line: Vec<u8>,
    max: usize,
}

/// A line as it stands, without its newline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) at: u64,
    /// Where the next one begins.
    pub(crate) end: u64,
    pub(crate) bytes: &'a [u8],
    /// Its newline is there.
    pub(crate) whole: bool,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(file: R) -> Self {
        Self::of_at_most(MAX_LINE_BYTES, file)
    }

    /// Of files whose lines have at most `max` bytes.
    pub(crate) fn of_at_most(max: usize, file: R) -> Self {
        Self { reader: BufReader::with_capacity(MAX_LINE_BYTES, file), at: 0, line: Vec::new(), max }
    }

    pub(crate) fn next(&mut self) -> std::io::Result<Option<Line<'_>>> {
        self.line.clear();
        let at = self.at;
        let mut whole = false;
        while !whole {
            let found = self.reader.fill_buf()?;
            if found.is_empty() {
                break;
            }
            let newline = memchr::memchr(b'\n', found);
            whole = newline.is_some();
            let text = found.get(..newline.unwrap_or(found.len())).unwrap_or_default();
            if self.line.len() <= self.max {
                self.line.extend_from_slice(text);
            }
            let used = text.len() + usize::from(whole);
            self.reader.consume(used);
            self.at += used as u64;
        }
        if self.line.len() > self.max {
            self.line.clear();
        }
        Ok((self.at > at).then_some(Line { at, end: self.at, bytes: &self.line, whole }))
    }
}

impl<R: Read + Seek> Lines<R> {
    fn go_back(&mut self, at: u64) -> std::io::Result<()> {
        self.at = self.reader.seek(SeekFrom::Start(at))?;
        Ok(())
    }
}

/// A record, an event or an error, and where it stands.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) at: u64,
    pub(crate) end: u64,
    pub(crate) seq: u64,
    pub(crate) mac: Option<Mac>,
    pub(crate) members: Map<String, Value>,
}

/// Reads a log from its beginning to the end that it has when it is reached.
#[derive(Debug)]
pub struct LogReader {
    lines: Lines<LogText>,
    chain: Option<(Chain, Mac)>,
    seq: u64,
    unreadable: Vec<u64>,
    torn: u64,
    faults: Vec<Fault>,
    over: bool,
    /// The end of the last whole record, and how many torn lines and faults were known there.
    sure: (u64, u64, usize),
}

impl LogReader {
    pub(crate) fn new(file: LogText) -> Self {
        let lines = Lines::new(file);
        Self {
            lines,
            chain: None,
            seq: 0,
            unreadable: Vec::new(),
            torn: 0,
            faults: Vec::new(),
            over: false,
            sure: (0, 0, 0),
        }
    }

    /// Reads a log of the run whose folder this is; the run need not be joined, and nothing is written.
    ///
    /// # Errors
    /// [`KgentError::Run`] where the folder is none of a run, or the log cannot be read.
    pub fn open(run: &Path, log: RunLog) -> Result<Self, KgentError> {
        log.sink().read(&RunFolder::look(run)?).map(Self::new).map_err(|errno| {
            let errno = std::io::Error::from(errno);
            KgentError::Run(format!("`{}` of the run `{}` cannot be read: {errno}", log.sink().path(), run.display()))
        })
    }

    /// Lets it go on with what was appended since it came to the end. What was no record then is looked at again.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub fn resume(&mut self) -> std::io::Result<()> {
        let (end, torn, faults) = self.sure;
        self.lines.go_back(end)?;
        (self.torn, self.over) = (torn, false);
        self.faults.truncate(faults);
        self.unreadable.clear();
        Ok(())
    }

    /// The byte up to which the log was read.
    pub fn offset(&self) -> u64 {
        self.lines.at
    }

    /// A reader that checks the chain too.
    pub(crate) fn chained(file: LogText, chain: &Chain, run_id: &str, sink: Sink) -> Self {
        Self { chain: Some((chain.clone(), chain.start(run_id, sink))), ..Self::new(file) }
    }

    /// Lines that a crash, or a full disk, cut off, so far.
    pub fn torn(&self) -> u64 {
        self.torn
    }

    /// What was found damaged so far: the first hundred places.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// The next whole line that is a record.
    pub(crate) fn entry(&mut self) -> std::io::Result<Option<Entry>> {
        while !self.over {
            let Some(line) = self.lines.next()? else { break };
            let members = match serde_json::from_slice(line.bytes) {
                Ok(Value::Object(members)) => Some(members),
                _ => None,
            };
            let seq = members.as_ref().and_then(|m| m.get("seq")?.as_u64()).filter(|seq| *seq <= MAX_SEQ);
            let (Some(members), Some(seq)) = (members, seq) else {
                // A line that was cut off is no whole one before its last byte.
                let cut_off = !line.whole && !is_object(line.bytes.split_last().map_or(&[], |(_, rest)| rest));
                if cut_off {
                    // By a crash, or it is being written.
                    self.torn += 1;
                    self.over = true;
                } else {
                    self.unreadable.push(line.at);
                    self.unreadable.truncate(MAX_FAULTS);
                }
                continue;
            };
            let expected = self.seq + 1;
            let kind = match seq.cmp(&expected) {
                std::cmp::Ordering::Less => Some(FaultKind::Reordered),
                std::cmp::Ordering::Greater if self.unreadable.is_empty() => Some(FaultKind::Missing),
                std::cmp::Ordering::Greater => Some(FaultKind::Broken),
                std::cmp::Ordering::Equal => None,
            };
            let mut mac = None;
            let mut sound = true;
            if let Some((chain, before)) = &mut self.chain {
                let split = Chain::split(line.bytes);
                sound = split.as_ref().is_some_and(|(body, mac)| chain.mac(before, line.at, body) == *mac);
                mac = split.map(|(_, mac)| mac);
                *before = mac.unwrap_or_default();
            }
            let kind = kind.or_else(|| (!sound).then_some(FaultKind::Altered));
            let entry = Entry { at: line.at, end: line.end, seq, mac, members };
            match kind {
                None => self.torn += self.unreadable.len() as u64,
                Some(kind) if self.faults.len() < MAX_FAULTS => {
                    let at = if kind == FaultKind::Broken { self.unreadable.first() } else { None };
                    self.faults.push(Fault { kind, seq: expected, at: at.copied().unwrap_or(entry.at) });
                }
                Some(_) => {}
            }
            self.unreadable.clear();
            self.seq = seq;
            self.sure = (entry.end, self.torn, self.faults.len());
            return Ok(Some(entry));
        }
        // What was cut off is closed off together with the next line: these were something else.
        if let Some(at) = std::mem::take(&mut self.unreadable).first() {
            self.faults.push(Fault { kind: FaultKind::Broken, seq: self.seq + 1, at: *at });
        }
        self.over = true;
        Ok(None)
    }
}

fn is_object(line: &[u8]) -> bool {
    matches!(serde_json::from_slice(line), Ok(Value::Object(_)))
}

impl Iterator for LogReader {
    type Item = std::io::Result<Value>;

    fn next(&mut self) -> Option<Self::Item> {
        self.entry().map(|entry| entry.map(|entry| Value::Object(entry.members))).transpose()
    }
}

/// How a file ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tail {
    /// Where an unfinished last line begins.
    pub(crate) torn: Option<u64>,
    /// Of the last line that is whole, also where only its newline is missing.
    pub(crate) seq: u64,
    pub(crate) mac: Option<Mac>,
}

/// How the file of this size ends. Two lines' worth of it is enough, unless it was damaged: then all of it is read.
pub(crate) fn tail(file: &LogFile, size: u64) -> std::io::Result<Tail> {
    #[derive(Deserialize)]
    struct Seq {
        seq: u64,
    }
    let near = size.saturating_sub(2 * MAX_LINE_BYTES as u64);
    for from in [near, 0] {
        let mut lines = Lines::new(file.from(from));
        let mut tail = Tail::default();
        let mut found = from == 0;
        if !found {
            // The first line of a part may be half a line.
            lines.next()?;
        }
        while let Some(line) = lines.next()? {
            let seq = serde_json::from_slice::<Seq>(line.bytes).ok().map(|found| found.seq);
            if let Some(seq) = seq.filter(|seq| *seq <= MAX_SEQ) {
                found = true;
                tail.seq = seq;
                tail.mac = Chain::split(line.bytes).map(|(_, mac)| mac);
            }
            tail.torn = (!line.whole).then_some(from + line.at);
        }
        if found {
            return Ok(tail);
        }
    }
    Ok(Tail::default())
}
