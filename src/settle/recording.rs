//! The lines that a call leaves: before it changes anything, when it ends, and when its process died under it.

use serde_json::{Value, json};

use super::{Facts, Settled};
use crate::context::{CallContext, CallInfo, Run};
use crate::error::{Code, Status, ToolError};
use crate::output::bound;
use crate::record::call_record::{CallRecord, ShownPermission, now};
use crate::record::event::{self, EventType, Owner};
use crate::record::jsonl::{MAX_LINE_BYTES, Sink};
use crate::record::started::{Outcome, Planned, outcome};
use crate::result::{Content, ToolResult, one_line};
use crate::sandbox::SandboxPath;

/// The times that file systems give may be this much in the past, in nanoseconds.
const COARSE_TIMES: i128 = 50_000_000;
/// What `tool.started` shows of a call's targets, in bytes: half of what a line holds, as JSON may double it.
const MAX_TARGETS_BYTES: usize = 24 * 1024;
/// What a log puts before and after the body of a line, at most, in bytes.
const LINE_ROOM: usize = 512;

/// `tool.started` is on record before anything is done.
pub(super) fn begin_named(call: &CallContext, paths: &[SandboxPath]) -> Result<(), ToolError> {
    let run = &call.call().run;
    let mut room = MAX_TARGETS_BYTES;
    let mut targets = Vec::new();
    for path in paths {
        let path = run.redactor.text(&path.to_string()).into_owned();
        let Some(left) = room.checked_sub(path.len() + 16) else { break };
        room = left;
        targets.push(json!({"path": path}));
    }
    let omitted = paths.len() - targets.len();
    let mut data = json!({"tool": call.call().tool, "targets": targets});
    if let Some(data) = data.as_object_mut().filter(|_| omitted > 0) {
        data.insert("omitted".to_owned(), omitted.into());
    }
    announce(call, &data)
}

/// The same of a call that knows what each of its files was and becomes.
pub(crate) fn begin(call: &CallContext, targets: &[Planned]) -> Result<(), ToolError> {
    announce(call, &json!({"tool": call.call().tool, "targets": targets}))
}

fn announce(call: &CallContext, data: &Value) -> Result<(), ToolError> {
    let line = event::event(&owner(call), &now(), EventType::ToolStarted, data);
    if line.len() + LINE_ROOM > MAX_LINE_BYTES {
        return Err(ToolError::new(Code::TooLarge, "the call names more files than a record can hold")
            .hint("Do it in several calls."));
    }
    call.call().run.journal.begin(&line)?;
    call.notes().begun = true;
    Ok(())
}

fn owner(call: &CallContext) -> Owner<'_> {
    let inner = call.call();
    Owner { run_id: inner.run.id(), id: Some(&inner.id), call_id: inner.logged_call_id.as_deref() }
}

/// 9 record: one line for the call, its events, an error line if it failed; what cannot be recorded is not told.
pub(super) fn record(outcome: Result<ToolResult, ToolError>, call: &CallContext, facts: &Facts<'_>) -> Settled {
    let inner = call.call();
    let run = &inner.run;
    let result = outcome.unwrap_or_else(|error| ToolResult::failure(run.redactor.error(error)));
    let tool = run.redactor.text(&facts.name);
    let tool = bound::cut(&tool, 64);
    let status = result.error.as_ref().map_or(Status::Completed, |error| error.code.status());
    let mut notes = call.notes();
    if notes.bytes_out == 0 {
        notes.bytes_out = result
            .content
            .iter()
            .map(|part| match part {
                Content::Text(text) => text.len() as u64,
                Content::File { data, .. } => data.len() as u64,
            })
            .sum();
    }
    let duration_us = u64::try_from(call.elapsed().as_micros()).unwrap_or(u64::MAX);
    let body = CallRecord {
        id: &inner.id,
        run_id: run.id(),
        info: &inner.info,
        tool,
        scope: facts.scope,
        provider: facts.provider.as_deref(),
        status,
        started_at: &facts.started_at,
        duration_us,
        summary: &result.summary,
        args: &facts.args,
        repairs: &facts.repairs,
        permission: notes.permission.as_ref(),
        artifacts: &notes.artifacts,
        error: result.error.as_ref(),
        bytes_in: notes.bytes_in,
        bytes_out: notes.bytes_out,
        truncated: notes.truncated,
        requested: &notes.requested,
    }
    .body(&run.redactor);
    let owner = owner(call);
    let time = now();
    let code = result.error.as_ref().map(|error| error.code.as_str());
    let blocked = notes.permission.as_ref().filter(|_| status == Status::Blocked);
    let permission = blocked.map(|noted| noted.shown(&run.redactor));
    let ended =
        EndedData { tool, status: status.as_str(), duration_us, code, permission, added: false, targets: Vec::new() };
    let mut lines = vec![(Sink::Tools, body)];
    if result.error.as_ref().is_some_and(|error| error.code == Code::ApprovalRequired) {
        let data = json!({"tool": tool, "asks": run.redacted(&notes.asks)});
        lines.push((Sink::Events, event::event(&owner, &time, EventType::PermissionRequested, &data)));
    }
    lines.push((Sink::Events, event::event(&owner, &time, EventType::ended(status), &ended)));
    if let Some(error) = &result.error {
        let cause = error.cause.as_deref().map(|cause| run.redactor.text(&run.scrub(cause)).into());
        let logged = ToolError { cause, ..error.clone() };
        lines.push((Sink::Errors, event::error(&owner, &time, tool, &logged)));
    }
    let (interrupt, begun) = (notes.interrupt.take(), notes.begun);
    drop(notes);
    let lines: Vec<(Sink, &str)> = lines.iter().map(|(sink, line)| (*sink, line.as_str())).collect();
    let appended = if begun { run.journal.end(&lines) } else { run.journal.append(&lines) };
    let result = match appended {
        Ok(()) => result,
        Err(error) => ToolResult::failure(error.details(json!({"done": result.ok && facts.mutating}))),
    };
    Settled { result, interrupt }
}

/// The end of a call whose process died under it, from its `tool.started`; `recorded` is its record, where it got one.
pub(crate) fn interrupted(run: &Run, started: &Value, recorded: Option<&Value>) -> Result<(), ToolError> {
    let text =
        |line: &Value, pointer: &str| line.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (id, tool, began) = (text(started, "/id"), text(started, "/data/tool"), text(started, "/time"));
    let (id, tool) = (id.as_str(), tool.as_str());
    let info =
        CallInfo { call_id: started.get("call_id").and_then(Value::as_str).map(str::to_owned), ..CallInfo::default() };
    let owner = Owner { run_id: run.id(), id: Some(id), call_id: info.call_id.as_deref() };
    let time = now();
    if let Some(record) = recorded {
        let status = text(record, "/status");
        let code = record.pointer("/error/code").and_then(Value::as_str);
        let duration_us = record.get("duration_us").and_then(Value::as_u64).unwrap_or(0);
        let ended =
            EndedData { tool, status: &status, duration_us, code, permission: None, added: true, targets: Vec::new() };
        let line = event::event(
            &owner,
            &time,
            EventType::ended(Status::named(&status).unwrap_or(Status::Interrupted)),
            &ended,
        );
        return run.journal.append(&[(Sink::Events, &line)]);
    }
    let (done, targets) = what_was_done(run, started, &began);
    let error = ToolError::new(Code::Interrupted, format!("the process ended during the call; {done}"));
    let body = CallRecord {
        id,
        run_id: run.id(),
        info: &info,
        tool,
        scope: "none",
        provider: None,
        status: Status::Interrupted,
        started_at: &began,
        duration_us: 0,
        summary: &one_line(&error.to_string()),
        args: "null",
        repairs: &[],
        permission: None,
        artifacts: &[],
        error: Some(&error),
        bytes_in: 0,
        bytes_out: 0,
        truncated: false,
        requested: &[],
    }
    .body(&run.redactor);
    let (status, code) = (Status::Interrupted.as_str(), Some(error.code.as_str()));
    let ended = EndedData { tool, status, duration_us: 0, code, permission: None, added: false, targets };
    run.journal.append(&[
        (Sink::Tools, &body),
        (Sink::Events, &event::event(&owner, &time, EventType::ToolFailed, &ended)),
        (Sink::Errors, &event::error(&owner, &time, tool, &error)),
    ])
}

/// What can be seen now of a call that was to change the targets in its `tool.started`.
fn what_was_done(run: &Run, started: &Value, began: &str) -> (String, Vec<TargetData>) {
    let targets = started.pointer("/data/targets").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let began = began.parse::<jiff::Timestamp>().map(jiff::Timestamp::as_nanosecond);
    let mut outcomes = Vec::new();
    let said =
        targets.iter().filter_map(|target| Some((target, target.get("path")?.as_str()?))).map(|(target, text)| {
            if let Some(outcome) = outcome(&run.sandbox, run.limits().max_file_bytes, target) {
                outcomes.push(TargetData { path: text.to_owned(), outcome });
                return format!("`{text}` {}", outcome.words());
            }
            let changed = run.sandbox.parse(text).and_then(|path| run.sandbox.changed(&path));
            let what = match (changed, &began) {
                (Ok(Some(at)), Ok(began)) if at >= *began => "has been changed since it began",
                (Ok(Some(at)), Ok(began)) if at + COARSE_TIMES < *began => "has not been changed",
                (Ok(None), _) => "is not there",
                _ => "may have been changed or not",
            };
            format!("`{text}` {what}")
        });
    let said = said.collect::<Vec<_>>().join(", ");
    let said = if said.is_empty() { "it named no files, so what it changed is not known".to_owned() } else { said };
    (said, outcomes)
}

/// What an event says of a call that ended.
#[derive(serde::Serialize)]
struct EndedData<'a> {
    tool: &'a str,
    status: &'a str,
    duration_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a str>,
    /// Whose word blocked the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    permission: Option<ShownPermission<'a>>,
    /// When the run was opened again, since the process died before it could.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    added: bool,
    /// Of an interrupted call: what became of each file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    targets: Vec<TargetData>,
}

#[derive(serde::Serialize)]
struct TargetData {
    path: String,
    outcome: Outcome,
}
