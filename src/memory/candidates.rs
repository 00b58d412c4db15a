//! Candidates: `archive/candidate-memory.jsonl`, a line for each thing that the run wants remembered. Lines are only ever
//! appended; a line that cannot be read is passed over and reported, never dropped. Of lines with one id the first counts.

use std::collections::HashSet;
use std::fmt::Write as _;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use sha2::{Digest, Sha256};

use super::{MemoryItem, Recalled};
use crate::context::Run;
use crate::error::{Code, ToolError};
use crate::record::archive::{self, Archive};
use crate::record::call_record::now;
use crate::sandbox::Gate;
use crate::sandbox::host::RunFolder;

/// The file.
const FILE: &str = "candidate-memory.jsonl";
/// The only status of a line; what became of a candidate stands in the reviews.
const STATUS: &str = "candidate";
/// The longest id, in bytes.
const MAX_ID_BYTES: usize = 64;
/// How many bad lines are named one by one.
const MAX_NAMED: usize = 10;
/// How many lines pass between two looks at the clock.
const LINES_PER_POLL: u64 = 256;

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Unique.
    pub id: String,
    /// `candidate`, in the file.
    pub status: String,
    /// What is to be remembered.
    pub content: String,
    /// Where it belongs.
    pub scope: String,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// When it was written.
    pub time: String,
    /// The run that wrote it.
    pub run: String,
    /// Our id of the call that wrote it.
    pub call: Option<String>,
    /// Of content, scope and tags.
    pub hash: String,
}

/// A line that is no candidate: its number, and why.
pub type BadLine = (u64, &'static str);

/// Appends a candidate.
pub(crate) fn write(
    run: &Run,
    call: Option<&str>,
    content: &str,
    scope: &str,
    tags: &[String],
) -> Result<Candidate, ToolError> {
    super::check_write(content, scope, tags)?;
    let mut random = [0; 12];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| ToolError::io("random numbers", "reading", e))?;
    let candidate = Candidate {
        id: random.iter().fold(String::from("m"), |mut id, byte| {
            let _ = write!(id, "{byte:02x}");
            id
        }),
        status: STATUS.to_owned(),
        content: content.to_owned(),
        scope: scope.to_owned(),
        tags: tags.to_vec(),
        time: now(),
        run: run.id().to_owned(),
        call: call.map(str::to_owned),
        hash: hash(content, scope, tags),
    };
    let line = crate::record::event::json(&candidate);
    let sync = run.options().config.power_safe();
    let appended = Archive::lock(run.journal.folder()).and_then(|archive| archive.append(FILE, &line, sync));
    appended.map_err(|errno| unavailable("written", errno))?;
    Ok(candidate)
}

/// The candidates of `scope` that share words with `query`, the best first and of equals the newest; all of the scope
/// where the query has no words.
pub(crate) fn recall(
    run: &Run,
    query: &str,
    scope: &str,
    limit: usize,
    gate: Option<&dyn Gate>,
) -> Result<Recalled, ToolError> {
    super::check_recall(query, scope, limit)?;
    let words = words(query);
    let mut best: Vec<(f64, u64, Candidate)> = Vec::new();
    let keep_best = |best: &mut Vec<(f64, u64, Candidate)>| {
        best.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
        best.truncate(limit);
    };
    let bad = each(run.journal.folder(), gate, |number, candidate| {
        if candidate.scope != scope {
            return;
        }
        let score = score(&words, &candidate);
        if score > 0.0 {
            best.push((score, number, candidate));
            if best.len() >= 4 * limit {
                keep_best(&mut best);
            }
        }
    })?;
    keep_best(&mut best);
    let mut recalled = super::bounded(
        best.into_iter().map(|(score, _, candidate)| item(candidate, score)).collect(),
        limit,
        run.limits().max_output_bytes,
    );
    recalled.notices.extend(warnings(&bad));
    Ok(recalled)
}

/// What a model is told about lines that were passed over.
pub(crate) fn warnings(bad: &[BadLine]) -> Vec<String> {
    let one = |(number, why): &BadLine| format!("[Line {number} of {FILE} was passed over: {why}.]");
    let mut warnings: Vec<String> = bad.iter().take(MAX_NAMED).map(one).collect();
    if bad.len() > MAX_NAMED {
        warnings.push(format!("[{} more lines of {FILE} were passed over.]", bad.len() - MAX_NAMED));
    }
    warnings
}

/// Hands over each candidate with the number of its line; answers the lines that are none.
pub(crate) fn each(
    folder: &RunFolder,
    gate: Option<&dyn Gate>,
    mut take: impl FnMut(u64, Candidate),
) -> Result<Vec<BadLine>, ToolError> {
    let mut bad = Vec::new();
    let mut seen = HashSet::new();
    let mut stopped = None;
    archive::each_line(folder, FILE, |number, line| {
        if number % LINES_PER_POLL == 0
            && let Some(error) = gate.and_then(|gate| gate.poll().err())
        {
            stopped = Some(error);
            return false;
        }
        match read(number, line) {
            Ok(candidate) if !seen.insert(candidate.id.clone()) => bad.push((number, "its id was there before")),
            Ok(candidate) => take(number, candidate),
            Err(why) => bad.push((number, why)),
        }
        true
    })
    .map_err(|errno| unavailable("read", errno))?;
    stopped.map_or(Ok(bad), Err)
}

fn read(number: u64, line: Option<&[u8]>) -> Result<Candidate, &'static str> {
    let line = line.ok_or("it is too long")?;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = if number == 1 { line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line) } else { line };
    if line.is_empty() {
        return Err("it is empty");
    }
    let candidate: Candidate = serde_json::from_slice(line).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => "it is no candidate",
        _ => "it is not JSON",
    })?;
    let known = candidate.status == STATUS && (1..=MAX_ID_BYTES).contains(&candidate.id.len());
    if !known {
        return Err("it is no candidate");
    }
    if candidate.hash != hash(&candidate.content, &candidate.scope, &candidate.tags) {
        return Err("its hash is not that of its content");
    }
    Ok(candidate)
}

fn hash(content: &str, scope: &str, tags: &[String]) -> String {
    let text = json!([content, scope, tags]).to_string();
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(16).fold(String::with_capacity(32), |mut hash, byte| {
        let _ = write!(hash, "{byte:02x}");
        hash
    })
}

/// The words of a text, in lower case, each once.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = text
        .to_lowercase()
        .split(|c: char| !c.is_alphanumeric())
        .filter(|w| !w.is_empty())
        .map(str::to_owned)
        .collect();
    words.sort_unstable();
    words.dedup();
    words
}

/// The part of the words that are in the candidate; 1 where there are none to look for.
fn score(words: &[String], candidate: &Candidate) -> f64 {
    if words.is_empty() {
        return 1.0;
    }
    let text = candidate.content.to_lowercase();
    let tags: Vec<String> = candidate.tags.iter().map(|tag| tag.to_lowercase()).collect();
    let hit = |word: &&String| text.contains(word.as_str()) || tags.iter().any(|tag| tag.contains(word.as_str()));
    let count = |n: usize| u32::try_from(n).map_or(f64::MAX, f64::from);
    count(words.iter().filter(hit).count()) / count(words.len())
}

fn item(candidate: Candidate, score: f64) -> MemoryItem {
    let metadata = json!({
        "status": STATUS,
        "reviewed": false,
        "tags": candidate.tags,
        "time": candidate.time,
        "run": candidate.run,
        "hash": candidate.hash,
    });
    let metadata = match metadata {
        serde_json::Value::Object(map) => map,
        _ => Map::new(),
    };
    MemoryItem { id: candidate.id, content: candidate.content, scope: candidate.scope, score: Some(score), metadata }
}

pub(crate) fn unavailable(done: &str, errno: Errno) -> ToolError {
    let why = match errno {
        Errno::BADF | Errno::LOOP => "it is no file of its own".to_owned(),
        Errno::FBIG => "it, or the line, would be too large".to_owned(),
        Errno::TIMEDOUT => "another process holds its lock".to_owned(),
        other => std::io::Error::from(other).to_string(),
    };
    ToolError::new(Code::MemoryUnavailable, format!("the run's candidates cannot be {done}: {why}"))
        .hint("Go on without it, or tell the user.")
}

/// The candidates by id, in the order of the file, for people.
pub(crate) fn all(folder: &RunFolder) -> Result<(Vec<Candidate>, Vec<BadLine>), ToolError> {
    let mut found = Vec::new();
    let bad = each(folder, None, |_, candidate| found.push(candidate))?;
    Ok((found, bad))
}
