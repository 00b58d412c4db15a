//! Settle: from a call to a result. Every call of every tool goes through here, in this order, and leaves one record.

mod approval;
mod bounding;
mod recording;

use std::any::Any;
use std::borrow::Cow;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::Value;

use self::approval::Approval;
use self::bounding::bounded;
pub(crate) use self::recording::{begin, interrupted};
use self::recording::{begin_named, record};
use crate::args;
use crate::context::{CallContext, Host, Interrupt, RunContext};
use crate::error::{Code, KgentError, ToolError};
use crate::permission::Effect;
use crate::record::call_record::now;
use crate::registry::snapshot::check_mounts;
use crate::registry::{Output, Step, ToolDefinition};
use crate::result::ToolResult;
use crate::sandbox::Gate;

/// How deep settle may run inside settle.
const MAX_DEPTH: u32 = 16;

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

fn panicked(panic: &Box<dyn Any + Send>) -> ToolError {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    internal().cause(format!("panic: {}", text.unwrap_or("without a message")))
}

/// A defect of a tool, as the model is told of it.
pub fn internal() -> ToolError {
    ToolError::new(Code::Internal, "the tool failed for a reason of its own").hint("Try another way, or tell the user.")
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
