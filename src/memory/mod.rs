//! Memory: what a run remembers for later runs. Writes go to the run's candidates, which nobody has reviewed, or to the
//! client that the host gave; recalls ask the client, or the candidates where there is none.

pub mod candidates;
pub mod review;

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::config::WriteMode;
use crate::context::CallContext;
use crate::error::{Code, ToolError};
use crate::output::bound::cut;
use crate::record::event::EventType;
use crate::sandbox::Gate;

/// The scope where none is given.
pub(crate) const DEFAULT_SCOPE: &str = "default";
/// The most items of one recall.
pub(crate) const MAX_LIMIT: usize = 100;
/// The longest content that is written, in bytes.
pub(crate) const MAX_CONTENT_BYTES: usize = 64 * 1024;
/// The longest query, in bytes.
const MAX_QUERY_BYTES: usize = 4096;
/// The longest scope, in bytes.
const MAX_SCOPE_BYTES: usize = 256;
/// The most tags of one content.
const MAX_TAGS: usize = 32;
/// The longest tag, in bytes.
const MAX_TAG_BYTES: usize = 128;
/// How often a recall is asked again.
const RETRIES: u32 = 2;
/// How long before it is asked again, in milliseconds; doubled each time.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// One thing remembered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryItem {
    /// Its id in its store.
    pub id: String,
    /// What is remembered.
    pub content: String,
    /// Where it belongs.
    pub scope: String,
    /// How well it fits the query, by the store's own measure.
    pub score: Option<f64>,
    /// Whatever the store notes.
    pub metadata: Map<String, Value>,
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryWriteResult {
    /// A word of the client's, such as `written`; `candidate` for candidates.
    pub status: String,
    /// The id that it got.
    pub id: Option<String>,
    /// Why it was not written.
    pub error: Option<ToolError>,
}

/// Why a client gave no answer that can be used.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientFault {
    /// It raised; what, for the error log.
    Raised(String),
    /// It answered with something else than the contract says.
    Junk(String),
    /// Its time was up; the call is abandoned and its answer thrown away.
    Late,
    /// So many earlier calls hang that no other is begun.
    Hanging(usize),
    /// The call itself was stopped.
    Stopped(ToolError),
}

/// Another program's memory. A call that is not answered by `until` is given up.
pub trait MemoryClient: Send + Sync + std::fmt::Debug {
    /// What messages call it.
    fn name(&self) -> &str;

    /// At most `limit` items that fit `query` in `scope`, the best first.
    fn recall(
        &self,
        query: &str,
        scope: &str,
        limit: usize,
        until: Instant,
        call: &CallContext,
    ) -> Result<Vec<MemoryItem>, ClientFault>;

    /// Remembers `content`.
    fn write(
        &self,
        content: &str,
        scope: &str,
        tags: &[String],
        until: Instant,
        call: &CallContext,
    ) -> Result<MemoryWriteResult, ClientFault>;
}

/// What a recall found.
#[derive(Debug, Default)]
pub(crate) struct Recalled {
    pub(crate) items: Vec<MemoryItem>,
    /// What the model is told about them.
    pub(crate) notices: Vec<String>,
}

impl CallContext {
    /// Recalls: from the client where there is one, else from the run's candidates.
    pub(crate) fn recall(&self, query: &str, scope: &str, limit: usize) -> Result<Recalled, ToolError> {
        let Some(client) = self.memory_client() else {
            return candidates::recall(&self.call().run, query, scope, limit, Some(self));
        };
        check_recall(query, scope, limit)?;
        let until = self.client_deadline();
        let mut attempt = 0;
        let items = loop {
            match client.recall(query, scope, limit, until, self) {
                Err(ClientFault::Raised(_)) if attempt < RETRIES && Instant::now() < until => {
                    let pause = RETRY_PAUSE * 2_u32.pow(attempt);
                    attempt += 1;
                    let resume = (Instant::now() + pause).min(until);
                    while Instant::now() < resume {
                        self.poll()?;
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
                other => break other.map_err(|fault| self.unavailable(client.name(), fault, attempt, false))?,
            }
        };
        Ok(bounded(items, limit, self.limits().max_output_bytes))
    }

    /// Remembers, in the way that the configuration says.
    pub(crate) fn remember(&self, content: &str, scope: &str, tags: &[String]) -> Result<MemoryWriteResult, ToolError> {
        check_write(content, scope, tags)?;
        let run = &self.call().run;
        match run.options().config.memory.write_mode {
            WriteMode::Disabled => {
                Err(ToolError::new(Code::Denied, "writing to memory is disabled in this run").hint("Go on without it."))
            }
            WriteMode::Candidate => {
                let candidate = candidates::write(run, Some(self.id()), content, scope, tags)?;
                let data = json!({"memory_id": candidate.id, "scope": candidate.scope, "hash": candidate.hash});
                self.told(EventType::MemoryCandidateWritten, data)?;
                Ok(MemoryWriteResult { status: "candidate".to_owned(), id: Some(candidate.id), error: None })
            }
            WriteMode::External => {
                let client = self.memory_client().ok_or_else(|| {
                    ToolError::new(Code::MemoryUnavailable, "no memory client was given to this process")
                        .hint("Nothing the model sends can mend this; tell the user.")
                })?;
                let written = client.write(content, scope, tags, self.client_deadline(), self);
                let written = written.map_err(|fault| self.unavailable(client.name(), fault, 0, true))?;
                if let Some(error) = written.error {
                    return Err(error);
                }
                let data = json!({"memory_id": written.id, "scope": scope, "status": written.status});
                self.told(EventType::MemoryWritten, data)?;
                Ok(written)
            }
        }
    }

    /// The door of a handler: recalls, if the policy lets it.
    pub fn memory_recall(&self, query: &str, scope: &str, limit: usize) -> Result<Vec<MemoryItem>, ToolError> {
        self.memory_door("recall_memory", scope)?;
        self.recall(query, scope, limit).map(|recalled| recalled.items)
    }

    /// The door of a handler: remembers, if the policy lets it.
    pub fn memory_write(&self, content: &str, scope: &str, tags: &[String]) -> Result<MemoryWriteResult, ToolError> {
        self.memory_door("write_memory", scope)?;
        self.remember(content, scope, tags)
    }

    /// What was written stays written, also where that cannot be told.
    fn told(&self, kind: EventType, data: Value) -> Result<(), ToolError> {
        self.tell(kind, data).map_err(|error| error.details(json!({"done": true})))
    }

    fn client_deadline(&self) -> Instant {
        self.deadline().min(Instant::now() + self.call().run.options().config.memory.timeout())
    }

    fn unavailable(&self, client: &str, fault: ClientFault, retries: u32, write: bool) -> ToolError {
        let (what, cause) = match fault {
            ClientFault::Stopped(error) => return error,
            ClientFault::Raised(cause) => ("failed".to_owned(), Some(cause)),
            ClientFault::Junk(what) => (format!("answered with {what}"), None),
            ClientFault::Late => {
                if let Err(stopped) = self.checkpoint() {
                    return stopped;
                }
                (format!("did not answer within {:?}", self.call().run.options().config.memory.timeout()), None)
            }
            ClientFault::Hanging(count) => (format!("is not asked: {count} calls of it still hang"), None),
        };
        let unsure = if write { "; what was to be written may have been stored or not" } else { "" };
        let message = format!("the memory client `{client}` {what}{unsure}");
        let mut error = ToolError::new(Code::MemoryUnavailable, message)
            .hint("Go on without it, or tell the user.")
            .details(json!({"client": client, "retries": retries}));
        error.cause = cause.map(String::into_boxed_str);
        error
    }
}

/// What can be seen to be wrong with a recall.
fn check_recall(query: &str, scope: &str, limit: usize) -> Result<(), ToolError> {
    check_text("query", query, MAX_QUERY_BYTES)?;
    check_scope(scope)?;
    if (1..=MAX_LIMIT).contains(&limit) {
        return Ok(());
    }
    Err(ToolError::new(Code::InvalidArgs, "`limit` is out of range")
        .hint(format!("Send a limit from 1 to {MAX_LIMIT}.")))
}

/// What can be seen to be wrong with a write.
fn check_write(content: &str, scope: &str, tags: &[String]) -> Result<(), ToolError> {
    check_text("content", content, MAX_CONTENT_BYTES)?;
    if content.trim().is_empty() {
        return Err(ToolError::new(Code::InvalidArgs, "`content` is empty").hint("Send what is to be remembered."));
    }
    check_scope(scope)?;
    if tags.len() > MAX_TAGS {
        return Err(ToolError::new(Code::InvalidArgs, format!("`tags` has {} tags", tags.len()))
            .hint(format!("Send at most {MAX_TAGS} tags.")));
    }
    tags.iter().try_for_each(|tag| check_text("tags", tag, MAX_TAG_BYTES))
}

/// What a client answered, cut to what was asked for and to what a result may hold.
fn bounded(mut items: Vec<MemoryItem>, limit: usize, max_bytes: usize) -> Recalled {
    let mut notices = Vec::new();
    if items.len() > limit {
        notices.push(format!("[The client answered with {} items; the first {limit} are shown.]", items.len()));
        items.truncate(limit);
    }
    let mut left = max_bytes;
    let mut shortened = 0;
    for item in &mut items {
        let kept = cut(&item.content, left).len();
        if kept < item.content.len() {
            item.content.truncate(kept);
            shortened += 1;
        }
        left -= kept;
        if item.metadata.is_empty() {
            continue;
        }
        let metadata = serde_json::to_string(&item.metadata).map_or(usize::MAX, |text| text.len());
        if metadata > left {
            item.metadata = Map::from_iter([("truncated".to_owned(), Value::Bool(true))]);
        } else {
            left -= metadata;
        }
    }
    if shortened > 0 {
        notices.push(format!("[{shortened} items are cut off: together they are too long. Ask for fewer.]"));
    }
    Recalled { items, notices }
}

fn check_text(name: &str, text: &str, max_bytes: usize) -> Result<(), ToolError> {
    if text.len() > max_bytes {
        return Err(ToolError::new(Code::InvalidArgs, format!("`{name}` has {} bytes", text.len()))
            .hint(format!("Send at most {max_bytes} bytes.")));
    }
    if text.contains('\0') {
        return Err(ToolError::new(Code::InvalidArgs, format!("`{name}` holds a NUL character")));
    }
    Ok(())
}

/// A scope has one spelling, so that a rule about it has one meaning.
fn check_scope(scope: &str) -> Result<(), ToolError> {
    let plain = (1..=MAX_SCOPE_BYTES).contains(&scope.len())
        && !scope.chars().any(|c| c == '\\' || crate::sandbox::path::is_deceptive(c))
        && scope.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && scope.trim() == scope;
    if plain {
        return Ok(());
    }
    Err(ToolError::new(Code::InvalidArgs, "`scope` is no scope").hint(format!(
        "Send words separated by `/`, such as `team/style`, at most {MAX_SCOPE_BYTES} bytes; without it the scope is \
         `{DEFAULT_SCOPE}`."
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_has_one_spelling() {
        for scope in ["default", "team/style", "用户/偏好", "user:42", "a b", "..."] {
            assert_eq!(check_scope(scope), Ok(()), "{scope}");
        }
        for scope in ["", "/", "a/", "/a", "a//b", "./a", "a/../b", "..", " a", "a\n", "a\u{202e}b", "a\\b", "a\0"] {
            assert_eq!(check_scope(scope).map_err(|e| e.code), Err(Code::InvalidArgs), "{scope:?}");
        }
        assert!(check_scope(&"x".repeat(257)).is_err());
    }

    #[test]
    fn a_client_s_answer_is_cut_to_the_limits() {
        let item = |content: &str| MemoryItem {
            id: "i".into(),
            content: content.into(),
            scope: "s".into(),
            score: None,
            metadata: Map::new(),
        };
        let recalled = bounded(vec![item(&"é".repeat(10)), item("0123456789"), item("x"), item("y")], 3, 27);
        let texts: Vec<&str> = recalled.items.iter().map(|item| item.content.as_str()).collect();
        assert_eq!(texts, [&"é".repeat(10), "0123456", ""]);
        assert!(recalled.items.iter().all(|item| item.metadata.is_empty()));
        assert_eq!(recalled.notices.len(), 2);
    }
}
