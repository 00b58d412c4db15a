//! Review: people look through a run's candidates and accept or reject them. `archive/memory-reviews.jsonl` has a line for
//! what is about to be done and another for how it ended, so that a crash in between shows.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::candidates::{self, BadLine, Candidate};
use crate::error::KgentError;
use crate::record::archive::{self, Archive};
use crate::record::call_record::now;
use crate::sandbox::host::RunFolder;

const FILE: &str = "memory-reviews.jsonl";

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nobody has looked at it.
    Candidate,
    /// It was handed to the client, which took it.
    Accepted,
    /// It will not be remembered.
    Rejected,
    /// The client refused or failed; it may be tried again.
    Failed,
    /// It was being handed to the client when the reviewer died: the client may have it or not.
    Unknown,
}

impl State {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Candidate => "candidate",
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    id: String,
    hash: String,
    /// `unknown` before the client is asked.
    state: State,
    time: String,
    client: Option<String>,
    #[serde(default)]
    stored_id: Option<String>,
}

/// Candidates with what became of them, and the lines that are none.
pub type Listed = (Vec<(Candidate, State)>, Vec<BadLine>);

/// The candidates of one run, under review. It needs no open run and changes no log.
#[derive(Debug)]
pub struct Review {
    folder: RunFolder,
    run: String,
}

impl Review {
    /// The candidates of the run `runs/<run_id>`.
    pub fn open(runs: &Path, run_id: &str) -> Result<Self, KgentError> {
        let run = crate::context::checked_id(run_id)?;
        Ok(Self { folder: RunFolder::open(runs, run)?, run: run.to_owned() })
    }

    /// Each candidate with what became of it, and the lines that are none.
    pub fn list(&self) -> Result<Listed, KgentError> {
        let (found, bad) = candidates::all(&self.folder).map_err(|e| self.failed(&e.message))?;
        let states = self.states()?;
        let state = |candidate: &Candidate| states.get(&candidate.id).copied().unwrap_or(State::Candidate);
        let pair = |candidate: Candidate| {
            let state = state(&candidate);
            (candidate, state)
        };
        Ok((found.into_iter().map(pair).collect(), bad))
    }

    /// Notes that `id@hash` is about to be handed to `client`, and gives it.
    ///
    /// # Errors
    /// Where there is no such candidate, it has another hash, or it was decided on already; one whose state is unknown
    /// needs `retry`.
    pub fn begin(&self, id: &str, hash: &str, client: &str, retry: bool) -> Result<Candidate, KgentError> {
        let lock = self.lock()?;
        let candidate = self.undecided(id, hash, retry)?;
        self.note(&lock, id, hash, State::Unknown, Some(client), None)?;
        Ok(candidate)
    }

    /// Notes how it ended.
    pub fn finish(
        &self,
        id: &str,
        hash: &str,
        state: State,
        client: &str,
        stored_id: Option<&str>,
    ) -> Result<(), KgentError> {
        self.note(&self.lock()?, id, hash, state, Some(client), stored_id)
    }

    /// Notes that a candidate will not be remembered.
    pub fn reject(&self, id: &str, hash: &str, retry: bool) -> Result<(), KgentError> {
        let lock = self.lock()?;
        self.undecided(id, hash, retry)?;
        self.note(&lock, id, hash, State::Rejected, None, None)
    }

    fn undecided(&self, id: &str, hash: &str, retry: bool) -> Result<Candidate, KgentError> {
        let (found, _) = self.list()?;
        let Some((candidate, state)) = found.into_iter().find(|(candidate, _)| candidate.id == id) else {
            return Err(self.failed(&format!("there is no candidate `{id}`")));
        };
        if candidate.hash != hash {
            return Err(self.failed(&format!("`{id}` has the hash {}, not {hash}: look at it again", candidate.hash)));
        }
        match state {
            State::Candidate | State::Failed => Ok(candidate),
            State::Unknown if retry => Ok(candidate),
            State::Unknown => Err(self.failed(&format!(
                "`{id}` was being handed to the client when the last attempt ended: look whether the client has it, \
                 then repeat with --retry"
            ))),
            decided => Err(self.failed(&format!("`{id}` is {} already", decided.as_str()))),
        }
    }

    fn states(&self) -> Result<HashMap<String, State>, KgentError> {
        let mut states = HashMap::new();
        archive::each_line(&self.folder, FILE, |_, line| {
            if let Some(line) = line.and_then(|line| serde_json::from_slice::<Line>(line).ok()) {
                states.insert(line.id, line.state);
            }
            true
        })
        .map_err(|errno| self.failed(&format!("the reviews cannot be read: {}", std::io::Error::from(errno))))?;
        Ok(states)
    }

    fn lock(&self) -> Result<Archive, KgentError> {
        Archive::lock(&self.folder)
            .map_err(|errno| self.failed(&format!("the archive cannot be locked: {}", std::io::Error::from(errno))))
    }

    fn note(
        &self,
        lock: &Archive,
        id: &str,
        hash: &str,
        state: State,
        client: Option<&str>,
        stored_id: Option<&str>,
    ) -> Result<(), KgentError> {
        let line = Line {
            id: id.to_owned(),
            hash: hash.to_owned(),
            state,
            time: now(),
            client: client.map(str::to_owned),
            stored_id: stored_id.map(str::to_owned),
        };
        // On disk before the client is asked: a state that a power cut loses would be a second write to the client.
        lock.append(FILE, &crate::record::event::json(&line), true)
            .map_err(|errno| self.failed(&format!("the reviews cannot be written: {}", std::io::Error::from(errno))))
    }

    fn failed(&self, what: &str) -> KgentError {
        KgentError::Run(format!("run `{}`: {what}", self.run))
    }
}
