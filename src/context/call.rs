//! [`CallContext`]: what a tool gets of a run for one call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::seen::Sight;
use super::{CallInfo, Host, Interrupt, MAX_ID_BYTES, Process, Run, RunContext, UnderWay, host_error, lock};
use crate::config::Limits;
use crate::error::{Code, KgentError, Status, ToolError};
use crate::memory::MemoryClient;
use crate::output::artifact;
use crate::output::bound::{cut, cut_word};
use crate::permission::grant::{ApprovalRequest, Ask, Grant};
use crate::permission::{
    Capability, Decision, EXTERNAL_DIRECTORY, Effect, Layer, Policy, READ_SECRET, Resource, is_secret,
};
use crate::record::call_record::{PermissionNote, now};
use crate::record::event::{EventType, Owner, event};
use crate::record::jsonl::Sink;
use crate::registry::definition::{Binding, Services};
use crate::sandbox::target::Wanted;
use crate::sandbox::walk::{Caps, Found, Hidden, Listed, WalkOptions, Walked, walk};
use crate::sandbox::write::Step;
use crate::sandbox::{Access, Gate, Sandbox, SandboxPath};
use crate::skills::SkillRegistry;

/// How often the waiting side asks the host whether it was interrupted, in milliseconds.
const POLL_MS: u64 = 50;

/// What a call has left for its record so far.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) permission: Option<PermissionNote>,
    pub(crate) artifacts: Vec<String>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) truncated: bool,
    /// `tool.started` is on record.
    pub(crate) begun: bool,
    pub(crate) interrupt: Option<Interrupt>,
    /// What the policy asks the host about, of the names as sent and of what they lead to.
    pub(crate) asks: Vec<Ask>,
    /// What a skill asked for.
    pub(crate) requested: Vec<String>,
}

/// What a tool gets for one call: controlled doors, and when to stop. It grants, cancels and registers nothing, and
/// its doors close when the call has ended.
#[derive(Clone)]
pub struct CallContext(Arc<Call>);

pub(crate) struct Call {
    pub(crate) run: Arc<Run>,
    pub(crate) info: Arc<CallInfo>,
    pub(crate) id: String,
    /// The caller's id, free of secrets.
    pub(crate) logged_call_id: Option<String>,
    serial: u64,
    process: Arc<(i32, Process)>,
    policy: Option<Arc<Policy>>,
    /// Its tool's name, cut.
    pub(crate) tool: Box<str>,
    services: Services,
    action: Box<str>,
    /// What the policy says of the action where no rule speaks.
    unspoken: Effect,
    depth: u32,
    started: Instant,
    deadline: Instant,
    cancelled: Arc<AtomicBool>,
    over: AtomicBool,
    caller: ThreadId,
    host: Arc<dyn Host>,
    /// When the host was last asked, in milliseconds after the start.
    polled_ms: AtomicU64,
    notes: Mutex<Notes>,
    /// The host's approval, once it was found to answer what the call asks for.
    granted: OnceLock<Arc<Grant>>,
}

impl std::fmt::Debug for CallContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallContext").field("id", &self.0.id).finish_non_exhaustive()
    }
}

impl CallContext {
    /// Begins a call of a tool with this action, as the tool is bound. `unspoken` holds for the action where no rule
    /// speaks.
    pub(crate) fn begin(
        context: &RunContext,
        binding: Option<&Binding>,
        tool: &str,
        (action, unspoken): (&str, Effect),
        host: Arc<dyn Host>,
        depth: u32,
    ) -> Result<Self, KgentError> {
        let run = Arc::clone(&context.run);
        let process = run.process().map_err(|e| host_error(&e))?;
        let serial = process.1.counter.fetch_add(1, Ordering::Relaxed);
        let cancelled = Arc::new(AtomicBool::new(false));
        let under_way = UnderWay {
            info: Arc::clone(&context.info),
            call: context.call.clone(),
            cancelled: Arc::clone(&cancelled),
            host: Arc::clone(&host),
        };
        lock(&process.1.calls).insert(serial, under_way);
        let started = Instant::now();
        let limit = run.limits().timeout();
        let own = context.info.timeout_s.and_then(|s| Duration::try_from_secs_f64(s).ok());
        let mut id = String::with_capacity(24);
        id.push('c');
        push_hex(&mut id, process.1.prefix, 16);
        id.push('-');
        id.push_str(itoa::Buffer::new().format(serial));
        Ok(Self(Arc::new(Call {
            logged_call_id: context.info.call_id.as_deref().map(|id| run.redactor.text(id).into_owned()),
            info: Arc::clone(&context.info),
            id,
            serial,
            process,
            tool: cut(tool, 64).into(),
            policy: binding.map(|binding| Arc::clone(&binding.policy)),
            services: binding.map(|binding| binding.services.clone()).unwrap_or_default(),
            action: action.into(),
            unspoken,
            depth,
            started,
            deadline: started + own.map_or(limit, |own| own.min(limit)),
            cancelled,
            over: AtomicBool::new(false),
            caller: std::thread::current().id(),
            host,
            polled_ms: AtomicU64::new(0),
            notes: Mutex::default(),
            granted: OnceLock::new(),
            run,
        })))
    }

    /// Ends the call: its doors are closed from now on.
    pub(crate) fn end(&self) {
        self.0.over.store(true, Ordering::Relaxed);
        let gone = lock(&self.0.process.1.calls).remove(&self.0.serial);
        drop(gone);
    }

    pub(crate) fn call(&self) -> &Call {
        &self.0
    }

    pub(crate) fn notes(&self) -> MutexGuard<'_, Notes> {
        lock(&self.0.notes)
    }

    /// The run that it belongs to.
    pub fn run_id(&self) -> &str {
        &self.0.run.id
    }

    /// What the caller said of it.
    pub fn info(&self) -> &CallInfo {
        &self.0.info
    }

    /// Leaves what stopped the call from outside, for the host to get back after the record.
    pub fn interrupt(&self, interrupt: Interrupt) {
        self.notes().interrupt = Some(interrupt);
    }

    /// Our id of the call.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// The run's mounts.
    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.0.run.sandbox
    }

    /// The skills that the tool was bound to, else those that the configuration names.
    pub(crate) fn skills(&self) -> Result<Arc<SkillRegistry>, ToolError> {
        match &self.0.services.skills {
            Some(skills) => Ok(Arc::clone(skills)),
            None => self
                .0
                .run
                .skills()
                .map_err(|error| ToolError::new(Code::SkillInvalid, "the skills cannot be looked for").cause(error)),
        }
    }

    /// The memory client that the tool was bound to, else the run's own.
    pub(crate) fn memory_client(&self) -> Option<Arc<dyn MemoryClient>> {
        self.0.services.memory.clone().or_else(|| self.0.run.memory_client())
    }

    /// The run's limits.
    pub fn limits(&self) -> &Limits {
        self.0.run.limits()
    }

    /// How many calls it is made inside of, itself included.
    pub fn depth(&self) -> u32 {
        self.0.depth
    }

    /// When the call's time is up.
    pub fn deadline(&self) -> Instant {
        self.0.deadline
    }

    /// How long the call has run.
    pub(crate) fn elapsed(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// Whether the call should stop: cancelled, or its time is up.
    pub fn cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Relaxed) || Instant::now() > self.0.deadline
    }

    /// Whether the policy allows `action` on `resource` (a sandbox path, or other text).
    pub fn check(&self, action: &str, resource: &str) -> Result<Effect, ToolError> {
        self.require_open()?;
        let policy = self.policy()?;
        let on_files = [Capability::FilesystemRead, Capability::FilesystemWrite, Capability::FilesystemDelete];
        let capabilities = crate::permission::capabilities_of(action);
        if !capabilities.is_empty() && !capabilities.iter().any(|c| on_files.contains(c)) {
            return Ok(self.decide(policy, action, capabilities, &Resource::text(resource)).effect);
        }
        let path = self.sandbox().parse(resource)?;
        let resource = Resource { mount: path.mount(), rel: path.rel() };
        let decision = if action == "read_file" {
            policy.decide_read(action, &resource)
        } else {
            self.decide(policy, action, &[], &resource)
        };
        Ok(decision.effect)
    }

    /// Reads a file of the sandbox, whole.
    pub fn read_bytes(&self, path: &str) -> Result<Vec<u8>, ToolError> {
        let path = self.door(path, Access::Read)?;
        let bytes = self.sandbox().open_file(&path, self)?.read_all(self.limits().max_file_bytes)?;
        self.notes().bytes_in += bytes.len() as u64;
        Ok(bytes)
    }

    /// Writes a file of the sandbox, atomically.
    pub fn write_bytes(&self, path: &str, bytes: &[u8]) -> Result<(), ToolError> {
        if bytes.len() as u64 > self.limits().max_file_bytes {
            return Err(ToolError::new(Code::TooLarge, format!("{} bytes are over the file limit", bytes.len())));
        }
        let path = self.door(path, Access::Write)?;
        let targets =
            self.sandbox().targets(&[Wanted { path: &path, accesses: &[Access::Write], create: true }], self)?;
        targets.commit(&[Step { target: 0, content: Some(bytes), decided_on: None, like: None }], self)?;
        self.notes().bytes_out += bytes.len() as u64;
        Ok(())
    }

    /// What a path leads to: its type and size in bytes.
    pub fn stat(&self, path: &str) -> Result<(crate::sandbox::Kind, u64), ToolError> {
        let path = self.door(path, Access::List)?;
        self.sandbox().stat(&path, self).map(|(kind, size, _)| (kind, size))
    }

    /// The entries of a folder, in the order of their names: path, type, and size in bytes of a file.
    pub fn list(&self, path: &str) -> Result<Vec<Listed>, ToolError> {
        let path = self.door(path, Access::List)?;
        let (_, real) = self.sandbox().open_dir(&path, self)?;
        let options = WalkOptions {
            hidden: Hidden::All,
            ignored: true,
            depth: 1,
            caps: Caps { entries: self.limits().max_scan_files, bytes: u64::MAX, weight: usize::MAX },
            access: Access::List,
        };
        let visit = |(): &mut (), found: Found<'_>, walked: &mut Walked<Listed>| {
            walked.items.push(Listed::new(found));
            Ok(())
        };
        Ok(walk(self.sandbox(), self, &real, &options, || (), visit)?.items)
    }

    /// What a link leads to, where that may be known; a refusal is no answer to a call, and leaves no note.
    pub(crate) fn behind(&self, link: &SandboxPath) -> Result<(crate::sandbox::Kind, u64), ToolError> {
        let real = self.sandbox().follow(link, Access::List)?;
        if !self.visible(&real, Access::List) {
            return Err(crate::sandbox::not_found(link));
        }
        self.sandbox().stat(&real, self).map(|(kind, size, _)| (kind, size))
    }

    /// What the model last saw of a file in this run, under whichever of its names.
    pub(crate) fn sight(&self, path: &SandboxPath) -> Option<Sight> {
        let seen = lock(&self.0.process.1.seen);
        seen.get(path).or_else(|| self.sandbox().aliases(path).find_map(|alias| seen.get(&alias)))
    }

    /// Notes what the model now knows of a file; `None` of one that is gone.
    pub(crate) fn saw(&self, path: &SandboxPath, sight: Option<Sight>) {
        let mut seen = lock(&self.0.process.1.seen);
        for alias in self.sandbox().aliases(path) {
            seen.forget(&alias);
        }
        match sight {
            Some(sight) => seen.enter(path, sight),
            None => seen.forget(path),
        }
    }

    /// Stores bytes as an artifact of this call; answers its sandbox path.
    pub fn save_artifact(&self, name: &str, bytes: &[u8]) -> Result<String, ToolError> {
        self.require_open()?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if !(1..=100).contains(&name.len()) || !name.bytes().all(plain) || name.starts_with('.') {
            return Err(ToolError::new(Code::InvalidArgs, format!("the artifact name {name:?} cannot be used"))
                .hint("Use 1 to 100 letters, digits, `.`, `_` or `-`."));
        }
        let shown = self.0.run.redactor.text(name).replace(|c: char| !c.is_ascii() || !plain(c as u8), "_");
        self.store(&format!("{}-{shown}", self.0.id), bytes)
    }

    pub(crate) fn store(&self, name: &str, bytes: &[u8]) -> Result<String, ToolError> {
        let folder = self.0.run.journal.folder().folder("artifacts");
        let folder = folder.map_err(|e| ToolError::io("artifacts", "opening", e))?;
        let path = artifact::store(&folder, name, bytes)?;
        let told = self.tell(EventType::ArtifactCreated, serde_json::json!({"path": path}));
        told.inspect_err(|_| artifact::remove(&folder, name))?;
        self.notes().artifacts.push(path.clone());
        Ok(path)
    }

    /// Puts an event of this call on record at once.
    pub(crate) fn tell(&self, kind: EventType, mut data: serde_json::Value) -> Result<(), ToolError> {
        let run = &self.0.run;
        run.redactor.value(&mut data);
        let owner = Owner { run_id: run.id(), id: Some(&self.0.id), call_id: self.0.logged_call_id.as_deref() };
        run.journal.append(&[(Sink::Events, &event(&owner, &now(), kind, &data))])
    }

    /// Parses and authorises a name that a handler asks for.
    fn door(&self, path: &str, access: Access) -> Result<SandboxPath, ToolError> {
        self.require_open()?;
        self.checkpoint()?;
        let path = self.sandbox().parse(path)?;
        self.sandbox().guard(&path, access).inspect_err(|error| self.note_refusal(&path.to_string(), error))?;
        self.permit(&path, access)?;
        Ok(path)
    }

    fn require_open(&self) -> Result<(), ToolError> {
        if self.0.over.load(Ordering::Relaxed) {
            return Err(ToolError::new(Code::Cancelled, "the call has ended: its context does nothing any more"));
        }
        Ok(())
    }

    /// What the sandbox and the policy say of a requested name, before any system call on it. What the host must be
    /// asked is left in the notes.
    pub(crate) fn authorise(&self, path: &SandboxPath, access: Access) -> Result<(), ToolError> {
        self.sandbox().guard(path, access).inspect_err(|error| self.note_refusal(&path.to_string(), error))?;
        self.authorise_name(path, access)
    }

    /// What the policy says of a name.
    pub(crate) fn authorise_name(&self, path: &SandboxPath, access: Access) -> Result<(), ToolError> {
        self.ask(path, access, |action, resource, decision| self.take(action, &resource.to_string(), &decision))
    }

    /// Whether the policy lets the content of the file at that link-free name be read, by whatever tool.
    pub(crate) fn may_read(&self, path: &SandboxPath) -> bool {
        let reads = |action: &str| matches!(action, "read_file" | READ_SECRET | EXTERNAL_DIRECTORY);
        let read = |action: &str, _: &dyn std::fmt::Display, decision: Decision<'_>| {
            if !reads(action) || decision.allowed() { Ok(()) } else { Err(decision.refusal(action, "")) }
        };
        self.ask(path, Access::Read, read).is_ok()
    }

    /// A refusal ends the call; what the host must be asked is collected.
    fn take(&self, action: &str, resource: &str, decision: &Decision<'_>) -> Result<(), ToolError> {
        self.note(action, resource, decision);
        match decision.effect {
            Effect::Allow => Ok(()),
            Effect::Deny => Err(decision.refusal(action, resource)),
            Effect::Ask => {
                let ask = Ask { action: action.to_owned(), resource: resource.to_owned() };
                let mut notes = self.notes();
                if !notes.asks.contains(&ask) {
                    notes.asks.push(ask);
                }
                Ok(())
            }
        }
    }

    /// Noted is the question that refused the call, else the strictest, else the first of its own.
    fn note(&self, action: &str, resource: &str, decision: &Decision<'_>) {
        let mut notes = self.notes();
        let stricter = match (&notes.permission, decision.effect) {
            (None, effect) => effect != Effect::Allow || action != EXTERNAL_DIRECTORY,
            (Some(noted), Effect::Ask) => noted.effect == Effect::Allow.as_str(),
            (Some(_), effect) => effect == Effect::Deny,
        };
        if stricter {
            notes.permission = Some(PermissionNote::new(action, resource.to_owned(), decision));
        }
    }

    /// Goes on with the host's approval. `false`: it was for one call, which was made already.
    pub(crate) fn approve(&self, grant: &Arc<Grant>) -> Result<bool, ToolError> {
        let folder = self.0.run.journal.folder();
        let free = !grant.once || folder.claim(&grant.id).map_err(|e| ToolError::io("the grant", "using up", e))?;
        if free {
            let _ = self.0.granted.set(Arc::clone(grant));
            if let Some(noted) = &mut self.notes().permission {
                noted.effect = Effect::Allow.as_str();
                noted.layer = Layer::Grant.as_str();
            }
        }
        Ok(free)
    }

    /// Whether the host may have to be asked about something.
    pub(crate) fn may_ask(&self) -> bool {
        self.0.unspoken == Effect::Ask || self.0.policy.as_ref().is_some_and(|policy| policy.may_ask())
    }

    /// The refusal of a call that the host has not approved, with all that the host is asked.
    pub(crate) fn approval_required(&self, request: &ApprovalRequest) -> ToolError {
        let named: Vec<String> =
            request.asks.iter().map(|ask| format!("`{}` on `{}`", ask.action, ask.resource)).collect();
        let noted = self.notes().permission.as_ref().map(|noted| (noted.layer, noted.rule.clone()));
        let (layer, rule) = noted.unzip();
        ToolError::new(Code::ApprovalRequired, format!("{} needs the host's approval", named.join(", ")))
            .hint("Ask for the approval and send the same call again once it is given, or go on without it.")
            .details(serde_json::json!({
                "layer": layer,
                "rule": rule.flatten(),
                "action": request.asks.first().map(|ask| &ask.action),
                "resource": request.asks.first().map(|ask| &ask.resource),
                "approval": request,
            }))
    }

    /// A refusal by the sandbox itself, as the record shows it.
    pub(crate) fn note_refusal(&self, resource: &str, error: &ToolError) {
        if error.code.status() == Status::Blocked {
            self.notes().permission = Some(PermissionNote {
                action: self.0.action.to_string(),
                resource: cut_word(resource, 4 * MAX_ID_BYTES).to_owned(),
                effect: Effect::Deny.as_str(),
                layer: Layer::Sandbox.as_str(),
                rule: None,
            });
        }
    }

    /// What the policy says of a handler that uses memory.
    pub(crate) fn memory_door(&self, action: &str, scope: &str) -> Result<(), ToolError> {
        self.require_open()?;
        self.checkpoint()?;
        let decision = self.decide(self.policy()?, action, &[], &Resource::text(scope));
        if decision.allowed() {
            return Ok(());
        }
        let scope = cut_word(scope, MAX_ID_BYTES);
        self.note(action, scope, &decision);
        Err(decision.refusal(action, scope))
    }

    /// What the policy says of a call that names no path: the resource is other text, such as the tool itself.
    pub(crate) fn authorise_text(&self, resource: &str, capability: Option<Capability>) -> Result<(), ToolError> {
        let text = Resource::text(resource);
        let decision = self.decide(self.policy()?, &self.0.action, capability.as_slice(), &text);
        self.take(&self.0.action, cut_word(resource, MAX_ID_BYTES), &decision)
    }

    /// What the policy says; of the call's own action, whoever registered the tool has the say where no rule speaks.
    fn decide<'a>(
        &self,
        policy: &'a Policy,
        action: &str,
        capabilities: &[Capability],
        resource: &Resource<'_>,
    ) -> Decision<'a> {
        let unspoken = if action == &*self.0.action { self.0.unspoken } else { Effect::Allow };
        policy.decide_or(unspoken, action, capabilities, resource)
    }

    fn policy(&self) -> Result<&Arc<Policy>, ToolError> {
        self.0.policy.as_ref().ok_or_else(|| ToolError::new(Code::Denied, "no policy applies to the call"))
    }

    /// Asks the policy of every name that the object at `path` has, and of the user's own mount that a name lies in;
    /// `take` gets each action, resource and answer, until it fails.
    fn ask(
        &self,
        path: &SandboxPath,
        access: Access,
        mut take: impl FnMut(&str, &dyn std::fmt::Display, Decision<'_>) -> Result<(), ToolError>,
    ) -> Result<(), ToolError> {
        let policy = self.policy()?;
        let mut ask_of = |name: &SandboxPath| {
            let mount = name.mount();
            if self.sandbox().is_external(name) {
                let decision = policy.decide(EXTERNAL_DIRECTORY, &[], &Resource::text(mount));
                take(EXTERNAL_DIRECTORY, &mount, decision)?;
            }
            let resource = Resource { mount, rel: name.rel() };
            self.questions(name, access).try_for_each(|(action, capabilities)| {
                take(action, name, self.decide(policy, action, capabilities, &resource))
            })
        };
        ask_of(path)?;
        self.sandbox().aliases(path).try_for_each(|alias| ask_of(&alias))
    }

    /// The decision after the host's approval.
    fn lifted<'p>(&self, action: &str, resource: &dyn std::fmt::Display, decision: Decision<'p>) -> Decision<'p> {
        match self.0.granted.get() {
            Some(grant) if decision.effect == Effect::Ask && grant.lifts(action, &resource.to_string()) => {
                decision.granted()
            }
            _ => decision,
        }
    }

    /// What an access asks for: the tool's own action, and, where content is read, that of reading it.
    fn questions(
        &self,
        path: &SandboxPath,
        access: Access,
    ) -> impl Iterator<Item = (&str, &'static [Capability])> + use<'_> {
        let capabilities: &[Capability] = match access {
            Access::Read | Access::List => &[Capability::FilesystemRead],
            Access::Write | Access::Delete => &[Capability::FilesystemWrite],
        };
        let own = &*self.0.action;
        let reads = access == Access::Read;
        let read: Option<(&str, &'static [Capability])> =
            (reads && own != "read_file").then_some(("read_file", &[Capability::FilesystemRead]));
        let secret: Option<(&str, &'static [Capability])> =
            (reads && is_secret(path.rel())).then_some((READ_SECRET, &[]));
        // Asked by its own name: a rule on the tool's action does not lift it.
        let delete: Option<(&str, &'static [Capability])> =
            (access == Access::Delete).then_some((Capability::FilesystemDelete.as_str(), &[]));
        std::iter::once((own, capabilities)).chain(read).chain(secret).chain(delete)
    }
}

impl Gate for CallContext {
    fn permit(&self, path: &SandboxPath, access: Access) -> Result<(), ToolError> {
        let mut asked = None;
        self.ask(path, access, |action, resource, decision| {
            let decision = self.lifted(action, resource, decision);
            if decision.allowed() && self.notes().permission.is_some() {
                return Ok(());
            }
            let resource = resource.to_string();
            self.take(action, &resource, &decision)?;
            if !decision.allowed() && asked.is_none() {
                asked = Some(decision.refusal(action, &resource));
            }
            Ok(())
        })?;
        asked.map_or(Ok(()), Err)
    }

    fn visible(&self, path: &SandboxPath, access: Access) -> bool {
        let seen = |action: &str, resource: &dyn std::fmt::Display, decision: Decision<'_>| {
            if self.lifted(action, resource, decision).allowed() {
                Ok(())
            } else {
                Err(ToolError::new(Code::Denied, String::new()))
            }
        };
        self.ask(path, access, seen).is_ok()
    }

    fn may_be_folded(&self, path: &SandboxPath) -> bool {
        let Ok(policy) = self.policy() else { return false };
        let one = |path: &SandboxPath| policy.may_be_folded(&Resource { mount: path.mount(), rel: path.rel() });
        one(path) || self.sandbox().aliases(path).any(|alias| one(&alias))
    }

    fn approved_state(&self, path: &SandboxPath) -> Option<&str> {
        self.0.granted.get().and_then(|grant| grant.state_of(&path.to_string()))
    }

    fn checkpoint(&self) -> Result<(), ToolError> {
        let call = &*self.0;
        if call.cancelled.load(Ordering::Relaxed) {
            return Err(ToolError::new(Code::Cancelled, "the call was cancelled"));
        }
        let elapsed = call.started.elapsed();
        if call.started + elapsed > call.deadline {
            return Err(ToolError::new(
                Code::Timeout,
                format!("the call's time was up after {:.1} s", elapsed.as_secs_f64()),
            )
            .hint("Ask for less: a narrower path, a smaller window, a stricter pattern."));
        }
        Ok(())
    }

    fn poll(&self) -> Result<(), ToolError> {
        self.checkpoint()?;
        let call = &*self.0;
        let now = u64::try_from(call.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let due = now.saturating_sub(call.polled_ms.load(Ordering::Relaxed)) >= POLL_MS;
        if due && std::thread::current().id() == call.caller {
            call.polled_ms.store(now, Ordering::Relaxed);
            if let Some(interrupt) = call.host.interrupted() {
                self.notes().interrupt = Some(interrupt);
                call.cancelled.store(true, Ordering::Relaxed);
                return Err(ToolError::new(Code::Cancelled, "the call was interrupted"));
            }
        }
        Ok(())
    }
}

fn push_hex(out: &mut String, value: u64, digits: u32) {
    for digit in (0..digits).rev() {
        let nibble = (value >> (4 * digit)) & 0xf;
        out.push(char::from_digit(u32::try_from(nibble).unwrap_or(0), 16).unwrap_or('0'));
    }
}
