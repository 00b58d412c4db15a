//! [`verify`]: whether a run's logs are what was written. Nothing is written here.

use std::collections::VecDeque;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::chain::Chain;
use super::jsonl::Sink;
use super::reader::{Entry, Fault, FaultKind, LogReader};
use crate::error::KgentError;
use crate::sandbox::host::{LogText, RunFolder};

/// What a run's logs are worth.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// Nothing is wrong in any log.
    pub ok: bool,
    /// `plain`: nothing guards the lines but their numbers. `unkeyed`: a chain that anybody can make, against accidents.
    /// `keyed`: a chain under the host's key.
    pub audit: &'static str,
    /// The run's last event says that it was closed: a log that ends early is found. Otherwise lines at the end of all
    /// logs can be missing.
    pub closed: bool,
    /// Each log.
    pub logs: Vec<VerifiedLog>,
}

/// What was found in one log.
#[derive(Clone, Debug, Serialize)]
pub struct VerifiedLog {
    /// Its path in the run's folder.
    pub log: &'static str,
    /// Its whole lines.
    pub records: u64,
    /// Lines that a crash cut off.
    pub torn: u64,
    /// The first fault.
    pub fault: Option<Fault>,
    /// Where its last whole line ends.
    pub bytes: u64,
}

/// Where a log ended when the run was closed.
struct End {
    bytes: u64,
    seq: u64,
    mac: Option<String>,
}

/// Checks the logs in a run's folder, line by line; of a run whose events were kept under a key, with that key.
///
/// # Errors
/// [`KgentError`] where the logs cannot be read, or the key is missing.
pub fn verify(run: &Path, key: Option<&[u8]>) -> Result<Verified, KgentError> {
    let folder = RunFolder::look(run)?;
    let unread = |e: std::io::Error| KgentError::Run(format!("the logs in `{}` cannot be read: {e}", run.display()));
    let open = |sink: Sink| sink.read(&folder).map_err(|e| unread(e.into()));
    let (run_id, made) = first_event(open(Sink::Events)?).map_err(unread)?;
    let audit = match (key, made.as_str()) {
        (Some(_), _) => "keyed",
        (None, "keyed") => {
            return Err(KgentError::Run(format!(
                "the logs in `{}` were kept under a key, which is needed",
                run.display()
            )));
        }
        (None, "unkeyed") => "unkeyed",
        (None, _) => "plain",
    };
    let chain = (audit != "plain").then(|| Chain::new(key.unwrap_or_default())).flatten();
    let reader = |sink: Sink| {
        let file = open(sink)?;
        Ok::<_, KgentError>(match &chain {
            Some(chain) => LogReader::chained(file, chain, &run_id, sink),
            None => LogReader::new(file),
        })
    };

    let mut ends = [VecDeque::new(), VecDeque::new()];
    let (mut closed, mut events_end) = (false, 0);
    let events = check(Sink::Events, reader(Sink::Events)?, VecDeque::new(), |entry| {
        events_end = entry.end;
        closed = text(entry, "type") == Some("run.closed");
        for (ends, sink) in ends.iter_mut().zip([Sink::Tools, Sink::Errors]).filter(|_| closed) {
            ends.extend(End::of(entry, sink));
        }
        Ok(())
    });
    let [tools_ends, errors_ends] = ends;

    // The end of each call stands first in the one log, then in the other.
    let mut ended = Ended { events: LogReader::new(open(Sink::Events)?), until: events_end };
    let mut awaited = ended.next().map_err(unread)?;
    let tools = check(Sink::Tools, reader(Sink::Tools)?, tools_ends, |entry| {
        if awaited.is_some() && awaited.as_deref() == text(entry, "id") {
            awaited = ended.next()?;
        }
        Ok(())
    });
    let mut tools = tools.map_err(unread)?;
    if awaited.is_some() && tools.fault.is_none() {
        tools.fault = Some(Fault { kind: FaultKind::Missing, seq: tools.records + 1, at: tools.bytes });
    }
    let errors = check(Sink::Errors, reader(Sink::Errors)?, errors_ends, |_| Ok(()));
    let logs = vec![tools, events.map_err(unread)?, errors.map_err(unread)?];
    Ok(Verified { ok: logs.iter().all(|log| log.fault.is_none()), audit, closed, logs })
}

/// The ends of calls among the events, by our ids of the calls.
struct Ended {
    events: LogReader,
    /// Where the events ended that were checked.
    until: u64,
}

impl Ended {
    fn next(&mut self) -> std::io::Result<Option<String>> {
        while let Some(entry) = self.events.entry()?.filter(|entry| entry.end <= self.until) {
            let kind = text(&entry, "type").unwrap_or_default();
            // One that was added when the run was opened again stands later than its record.
            let added = entry.members.get("data").is_some_and(|data| data.get("added").is_some());
            if kind.starts_with("tool.") && kind != "tool.started" && !added {
                return Ok(text(&entry, "id").map(str::to_owned));
            }
        }
        Ok(None)
    }
}

impl End {
    fn of(closed: &Entry, sink: Sink) -> Option<Self> {
        let end = closed.members.get("data")?.get("logs")?.get(sink.path())?;
        Some(Self {
            bytes: end.get("bytes")?.as_u64()?,
            seq: end.get("seq")?.as_u64()?,
            mac: end.get("mac").and_then(Value::as_str).map(str::to_owned),
        })
    }
}

fn text<'e>(entry: &'e Entry, member: &str) -> Option<&'e str> {
    entry.members.get(member).and_then(Value::as_str)
}

/// The run's id, and how it was said to be audited, from the first event.
fn first_event(file: LogText) -> std::io::Result<(String, String)> {
    let first = LogReader::new(file).entry()?;
    let text = |pointer: fn(&Entry) -> Option<&Value>| {
        first.as_ref().and_then(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    Ok((text(|e| e.members.get("run_id")), text(|e| e.members.get("data")?.get("audit"))))
}

/// Reads a log to its end; it must have reached each of `ends`.
fn check(
    sink: Sink,
    mut reader: LogReader,
    mut ends: VecDeque<End>,
    mut each: impl FnMut(&Entry) -> std::io::Result<()>,
) -> std::io::Result<VerifiedLog> {
    let (mut records, mut bytes, mut seq) = (0, 0, 0);
    let mut fault: Option<Fault> = None;
    while let Some(entry) = reader.entry()? {
        (records, bytes, seq) = (records + 1, entry.end, entry.seq);
        while ends.front().is_some_and(|end| end.seq <= entry.seq)
            && let Some(end) = ends.pop_front()
        {
            let same = end.bytes == entry.end && (end.mac.is_none() || end.mac == entry.mac.map(|mac| mac.to_string()));
            if end.seq == entry.seq && !same {
                fault = fault.or(Some(Fault { kind: FaultKind::Altered, seq: entry.seq, at: entry.at }));
            }
        }
        each(&entry)?;
    }
    let truncated = ends.iter().any(|end| end.seq > seq);
    let truncated = truncated.then_some(Fault { kind: FaultKind::Truncated, seq: seq + 1, at: bytes });
    let fault = [reader.faults().first().copied(), fault, truncated].into_iter().flatten().min_by_key(|fault| fault.at);
    Ok(VerifiedLog { log: sink.path(), records, torn: reader.torn(), fault, bytes })
}
