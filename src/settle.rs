//! Settle: from a call to a result. Every call of every tool goes through here, in this order, and leaves one record.

use std::any::Any;
use std::borrow::Cow;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::args;
use crate::context::{CallContext, CallInfo, Host, Interrupt, Run, RunContext};
use crate::error::{Code, KgentError, Status, ToolError};
use crate::output::bound;
use crate::permission::Effect;
use crate::permission::grant::{self, ApprovalRequest, TargetState};
use crate::record::call_record::{CallRecord, ShownPermission, now};
use crate::record::event::{self, EventType, Owner};
use crate::record::jsonl::{MAX_LINE_BYTES, Sink};
use crate::record::started::{Outcome, Planned, outcome};
use crate::registry::snapshot::check_mounts;
use crate::registry::{Output, Step, ToolDefinition};
use crate::result::{Content, ToolResult, one_line};
use crate::sandbox::{Access, Gate, SandboxPath};

/// How deep settle may run inside settle.
const MAX_DEPTH: u32 = 16;
/// The times that file systems give may be this much in the past, in nanoseconds.
const COARSE_TIMES: i128 = 50_000_000;
/// What `tool.started` shows of a call's targets, in bytes: half of what a line holds, as JSON may double it.
const MAX_TARGETS_BYTES: usize = 24 * 1024;
/// What a log puts before and after the body of a line, at most, in bytes.
const LINE_ROOM: usize = 512;
/// The largest file that a model is given, in bytes.
const MAX_INLINE_MEDIA_BYTES: usize = 5 << 20;

thread_local! {
    /// How many calls are executing on this thread, one inside the other.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Arguments as they came.
#[derive(Debug)]
pub enum Arguments {
    /// A JSON object, or its text as a string.
    Value(Value),
    /// Something that is not JSON; what is wrong with it.
    Invalid(ToolError),
}

/// A settled call.
#[derive(Debug)]
pub struct Settled {
    /// What the caller gets.
    pub result: ToolResult,
    /// What stopped the call from outside, given back to the host now that the call is on record.
    pub interrupt: Option<Interrupt>,
}

/// How far a call has come.
#[derive(Debug)]
pub enum Begun {
    /// It is settled.
    Settled(Settled),
    /// It waits for what its tool gave to be awaited.
    Pending(Box<Pending>),
}

/// The second half of a call, to be finished with what was awaited. One that is dropped is recorded as cancelled.
#[derive(Debug)]
pub struct Pending {
    call: CallContext,
    facts: Facts<'static>,
    awaited: Option<Box<dyn Any + Send>>,
    finished: bool,
}

/// Calls the tool that was looked up. Expected failures are results.
///
/// # Errors
/// [`KgentError`] for what the host must mend: a tool that is not bound, or bound in another run, other mounts than the
/// policy's, a closed run.
pub fn settle(
    name: &str,
    tool: Result<&ToolDefinition, ToolError>,
    args: Arguments,
    context: &RunContext,
    host: Arc<dyn Host>,
) -> Result<Settled, KgentError> {
    Ok(match start(name, tool, args, context, host)? {
        Begun::Settled(settled) => settled,
        Begun::Pending(pending) => pending.finish(Err(internal().cause("nobody awaited the tool"))),
    })
}

/// The same, as far as it goes without awaiting anything.
///
/// # Errors
/// As for [`settle`].
pub fn start(
    name: &str,
    tool: Result<&ToolDefinition, ToolError>,
    args: Arguments,
    context: &RunContext,
    host: Arc<dyn Host>,
) -> Result<Begun, KgentError> {
    let binding = tool.as_ref().ok().map(|tool| {
        tool.binding().ok_or_else(|| KgentError::Registration(format!("tool `{name}` is not bound to a policy")))
    });
    let binding = binding.transpose()?;
    if let Some(binding) = binding {
        check_mounts(context, &binding.policy)?;
        if binding.live.as_ref().is_some_and(|live| !live.view.is_of(context)) {
            return Err(KgentError::Registration(format!(
                "tool `{name}` was materialized for another run than `{}`",
                context.run().id()
            )));
        }
    }
    if context.run().is_closed() {
        return Err(KgentError::Run(format!("run `{}` is closed", context.run().id())));
    }
    let action = tool.as_ref().ok().and_then(|tool| tool.action()).unwrap_or(name);
    let provider = binding.and_then(|binding| binding.provider.clone());
    // What the host did not register itself asks, unless a rule says otherwise.
    let unspoken = if provider.is_some() { Effect::Ask } else { Effect::Allow };
    let depth = Depth::next(&*host);
    let mut facts = Facts {
        name: name.into(),
        scope: binding.map_or("none", |b| b.scope),
        provider,
        started_at: now(),
        mutating: tool.as_ref().is_ok_and(|tool| tool.mutating()),
        ..Facts::default()
    };
    let call = CallContext::begin(context, binding, name, (action, unspoken), host, depth)?;
    let outcome = match rooms(tool, args, &call, &mut facts) {
        Ok(Step::Done(output)) => Ok(output),
        Ok(Step::Await(awaited)) => {
            let facts = Facts { name: facts.name.into_owned().into(), ..facts };
            return Ok(Begun::Pending(Box::new(Pending { call, facts, awaited: Some(awaited), finished: false })));
        }
        Err(error) => Err(error),
    };
    Ok(Begun::Settled(finish(outcome, &call, &facts)))
}

impl Pending {
    /// The call.
    pub fn call(&self) -> &CallContext {
        &self.call
    }

    /// What is to be awaited; taken once.
    pub fn take_awaited(&mut self) -> Option<Box<dyn Any + Send>> {
        self.awaited.take()
    }

    /// Settle's last rooms, with what came of it.
    pub fn finish(mut self, outcome: Result<Output, ToolError>) -> Settled {
        self.finished = true;
        finish(outcome, &self.call, &self.facts)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.finished {
            let dropped = ToolError::new(Code::Cancelled, "the call was dropped before it ended");
            finish(Err(dropped), &self.call, &self.facts);
        }
    }
}

/// 7 encode: a declared output schema was checked by the executor, on its own value. Then 8 and 9.
fn finish(outcome: Result<Output, ToolError>, call: &CallContext, facts: &Facts<'_>) -> Settled {
    let outcome = outcome.map_err(|error| match &facts.approval {
        Some(approval) => approval.complete(error, call),
        None => error,
    });
    let outcome = outcome.and_then(|output| bounded(output, call));
    call.end();
    record(outcome, call, facts)
}

/// What the record needs of a call's way through the rooms.
#[derive(Debug, Default)]
struct Facts<'a> {
    name: Cow<'a, str>,
    scope: &'static str,
    provider: Option<Arc<str>>,
    started_at: String,
    mutating: bool,
    args: String,
    repairs: Vec<String>,
    /// What the host would be asked, where it may have to be.
    approval: Option<Approval>,
}

fn rooms(
    tool: Result<&ToolDefinition, ToolError>,
    args: Arguments,
    call: &CallContext,
    facts: &mut Facts<'_>,
) -> Result<Step, ToolError> {
    let run = &call.call().run;
    let content_args = tool.as_ref().map_or(&[][..], |tool| tool.definition().content_args);
    let args = match args {
        Arguments::Value(Value::String(text)) => match args::parse_json(&text) {
            Ok(value) => Ok(value),
            Err(error) => {
                run.redactor.args_json(&Value::String(text), content_args, &mut facts.args);
                Err(error)
            }
        },
        Arguments::Value(value) => Ok(value),
        Arguments::Invalid(error) => Err(error),
    };
    match &args {
        Ok(args) => run.redactor.args_json(args, content_args, &mut facts.args),
        Err(_) if facts.args.is_empty() => facts.args.push_str("null"),
        Err(_) => {}
    }
    // 1 look up
    let tool = tool?;
    if tool.binding().and_then(|b| b.live.as_ref()).is_some_and(|live| !live.holds(&facts.name)) {
        return Err(ToolError::new(
            Code::StaleTool,
            format!("the tool `{}` was closed or replaced since it was offered", facts.name),
        )
        .hint("Look at the tools that are offered now."));
    }
    let depth = Depth::enter(call.depth())?;
    // 2 decode
    let args = args?;
    let asked = call.may_ask().then(|| args.clone());
    let prepared = tool.definition().executor.prepare(args, call)?;
    facts.repairs = prepared.repairs;
    // 3 authorise: the requested names, before any system call on them
    run.sandbox.verify()?;
    let mut paths = Vec::with_capacity(prepared.targets.len());
    for (text, access) in &prepared.targets {
        let path = run.sandbox.parse(text).inspect_err(|error| call.note_refusal(text, error))?;
        call.authorise(&path, *access)?;
        paths.push(path);
    }
    if prepared.targets.is_empty() {
        call.authorise_text(prepared.resource.as_deref().unwrap_or(&facts.name), tool.capability())?;
    }
    let approval = asked.map(|args| {
        let accesses = prepared.targets.iter().map(|(_, access)| *access);
        Approval { tool: tool.clone(), args, targets: paths.iter().cloned().zip(accesses).collect() }
    });
    if let Some(approval) = approval {
        approval.settle(call)?;
        facts.approval = Some(approval);
    }
    // 4 open: the doors of `call` resolve beneath the mount and authorise the real name of what they open
    // 5 begin
    if tool.mutating() && !tool.definition().announces {
        begin_named(call, &paths)?;
    }
    // 6 execute
    call.checkpoint()?;
    let execute = prepared.execute;
    let step = catch_unwind(AssertUnwindSafe(|| execute(paths, call))).unwrap_or_else(|panic| Err(panicked(&panic)));
    drop(depth);
    step
}

/// A call as the host would approve it: what it asks for by now, and what the names that it was sent lead to.
#[derive(Debug)]
struct Approval {
    tool: ToolDefinition,
    args: Value,
    targets: Vec<(SandboxPath, Access)>,
}

impl Approval {
    /// Goes on where nothing is asked, or the host has approved it; else the host must be asked.
    fn settle(&self, call: &CallContext) -> Result<(), ToolError> {
        let grant = call.info().grant.as_ref();
        if grant.is_none() && call.notes().asks.is_empty() {
            return Ok(());
        }
        let request = self.request(call)?;
        if let Some(grant) = grant.filter(|grant| grant.answers(&request))
            && call.approve(grant)?
        {
            return Ok(());
        }
        if request.asks.is_empty() { Ok(()) } else { Err(self.refuse(request, call)) }
    }

    /// The same failure of a call that met something to ask about only while it ran.
    fn complete(&self, error: ToolError, call: &CallContext) -> ToolError {
        if error.code != Code::ApprovalRequired || call.notes().asks.is_empty() {
            return error;
        }
        self.request(call).map_or_else(|other| other, |request| self.refuse(request, call))
    }

    fn request(&self, call: &CallContext) -> Result<ApprovalRequest, ToolError> {
        let mut targets = Vec::with_capacity(self.targets.len());
        for (path, access) in &self.targets {
            let real = call.sandbox().follow(path, *access)?;
            if real != *path {
                call.authorise_name(&real, *access)?;
            }
            let shown = real.to_string();
            if targets.iter().any(|target: &TargetState| target.path == shown) {
                continue;
            }
            let state = call.sandbox().state(&real, call.limits().max_file_bytes)?;
            targets.push(TargetState { path: shown, state });
        }
        Ok(ApprovalRequest {
            run_id: call.run_id().to_owned(),
            tool: self.tool.name().unwrap_or_default().to_owned(),
            tool_digest: self.tool.digest(),
            arguments_digest: grant::digest(self.args.clone()),
            asks: call.notes().asks.clone(),
            targets,
            preview: String::new(),
            preview_omitted_bytes: 0,
        })
    }

    fn refuse(&self, mut request: ApprovalRequest, call: &CallContext) -> ToolError {
        let paths: Vec<SandboxPath> = self.targets.iter().map(|(path, _)| path.clone()).collect();
        let preview = self.tool.definition().executor.preview(self.args.clone(), &paths, call);
        request.show(&preview.unwrap_or_else(|| serde_json::to_string_pretty(&self.args).unwrap_or_default()));
        let error = call.approval_required(&request);
        if let Some(call_id) = &call.info().call_id {
            call.call().run.keep_request(call_id, request);
        }
        error
    }
}

/// `tool.started` is on record before anything is done.
fn begin_named(call: &CallContext, paths: &[SandboxPath]) -> Result<(), ToolError> {
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

fn panicked(panic: &Box<dyn Any + Send>) -> ToolError {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    internal().cause(format!("panic: {}", text.unwrap_or("without a message")))
}

/// A defect of a tool, as the model is told of it.
pub fn internal() -> ToolError {
    ToolError::new(Code::Internal, "the tool failed for a reason of its own").hint("Try another way, or tell the user.")
}

/// 8 bound: cuts what the model sees; the whole goes to an artifact.
fn bounded(output: Output, call: &CallContext) -> Result<ToolResult, ToolError> {
    for part in &output.content {
        let Content::File { media_type, data } = part else { continue };
        if data.len() > MAX_INLINE_MEDIA_BYTES {
            return Err(ToolError::new(
                Code::TooLarge,
                format!(
                    "the tool gave a {} of {} bytes; a file for the model is at most {MAX_INLINE_MEDIA_BYTES} bytes",
                    one_line(media_type),
                    data.len()
                ),
            )
            .hint("Ask for a smaller or a scaled version.")
            .details(json!({"done": true, "bytes": data.len()})));
        }
    }
    let limits = call.limits();
    let (max_lines, max_bytes) = (limits.max_output_lines, limits.max_output_bytes);
    let mut content = output.content;
    let texts = content.iter().filter_map(|part| match part {
        Content::Text(text) => Some(text.as_str()),
        Content::File { .. } => None,
    });
    let notices = bound::notices(output.notices, max_bytes);
    let max_bytes = max_bytes - notices.iter().map(String::len).sum::<usize>();
    let max_lines = max_lines.saturating_sub(notices.len()).max(1);
    let bytes: usize = texts.clone().map(str::len).sum();
    let mut truncated = output.truncated;
    let lines = || texts.clone().map(|t| memchr::memchr_iter(b'\n', t.as_bytes()).count()).sum::<usize>();
    if bytes > max_bytes || lines() > max_lines {
        let whole = texts.collect::<Vec<_>>().join("\n");
        if let Some(cut) = bound::preview(&whole, max_lines, max_bytes) {
            truncated = true;
            let stored = call.store(&format!("{}.txt", call.id()), whole.as_bytes());
            let notice = match stored {
                Ok(path) => format!(
                    "[{} lines and {} bytes are left out here; the whole output is in {path}. \
                     Read on with read_file(path=\"{path}\", offset={}).]",
                    cut.omitted_lines,
                    cut.omitted_bytes,
                    cut.head.matches('\n').count() + 1
                ),
                Err(_) => format!(
                    "[{} lines and {} bytes are left out here, and the whole output could not be stored. Ask for less.]",
                    cut.omitted_lines, cut.omitted_bytes
                ),
            };
            let parts = [cut.head, &notice, cut.tail].map(Content::text);
            content =
                parts.into_iter().chain(content.into_iter().filter(|c| matches!(c, Content::File { .. }))).collect();
        }
    }
    if !notices.is_empty() {
        content.retain(|part| !matches!(part, Content::Text(text) if text.is_empty()));
    }
    content.extend(notices.into_iter().map(Content::text));
    let mut notes = call.notes();
    notes.truncated |= truncated;
    let artifacts = output.artifacts.into_iter().chain(notes.artifacts.iter().cloned()).collect();
    Ok(ToolResult {
        ok: true,
        summary: one_line(&call.call().run.redactor.text(&output.summary)),
        data: output.data,
        artifacts,
        error: None,
        content,
    })
}

/// 9 record: one line for the call, its events, an error line if it failed; what cannot be recorded is not told.
fn record(outcome: Result<ToolResult, ToolError>, call: &CallContext, facts: &Facts<'_>) -> Settled {
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

/// One level of settle inside settle, on this thread; the level before it comes back when it ends.
struct Depth(u32);

impl Depth {
    /// The level of a call that begins here.
    fn next(host: &dyn Host) -> u32 {
        DEPTH.get().max(host.depth()) + 1
    }

    fn enter(level: u32) -> Result<Self, ToolError> {
        if level > MAX_DEPTH {
            return Err(ToolError::new(Code::Failed, format!("calls are nested more than {MAX_DEPTH} deep")));
        }
        Ok(Self(DEPTH.replace(level)))
    }
}

impl Drop for Depth {
    fn drop(&mut self) {
        DEPTH.set(self.0);
    }
}
