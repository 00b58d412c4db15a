//! What is on record: one line for each call in `logs/tools.jsonl`, its events in `events.jsonl`, a line for each
//! failure in `logs/errors.jsonl`; and the line files of the archive.

pub(crate) mod archive;
pub(crate) mod call_record;
pub(crate) mod chain;
pub(crate) mod event;
pub(crate) mod jsonl;
pub mod reader;
pub(crate) mod redact;
mod secrets;
pub(crate) mod started;
pub mod verify;
