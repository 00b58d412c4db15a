//! [`RunContext`], the host's handle on a run; in [`call`], [`CallContext`], what a tool gets of it for one call.

mod call;
pub(crate) mod seen;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;

pub use self::call::CallContext;
use self::seen::Seen;
use crate::config::{Limits, ToolsConfig, WriteMode};
use crate::error::{KgentError, ToolError};
use crate::fork::PerProcess;
use crate::memory::MemoryClient;
use crate::output::bound::cut;
use crate::permission::Pattern;
use crate::permission::grant::{ApprovalRequest, Ask, Grant};
use crate::record::call_record::now;
use crate::record::chain::Chain;
use crate::record::event::{EventType, Owner, event};
use crate::record::jsonl::{Journal, Keeping, Sink};
use crate::record::reader::{LogReader, RunLog};
use crate::record::redact::Redactor;
use crate::registry::Services;
use crate::registry::scope::Location;
use crate::sandbox::host::{self, RunFolder};
use crate::sandbox::{Constraints, MountSpec, Sandbox};
use crate::settle;
use crate::skills::SkillRegistry;

use serde_json::Value;

/// The longest caller's id that is kept, in bytes.
const MAX_ID_BYTES: usize = 256;
/// The most requests for approval that are kept.
const MAX_REQUESTS: usize = 256;
/// What is asked of one call, as events show it.
const MAX_SHOWN_ASKS: usize = 32;
/// The length of an audit key, in bytes.
const MIN_KEY_BYTES: usize = 32;
const MAX_KEY_BYTES: u64 = 4096;
/// Mount names that belong to the run.
const OWN_MOUNTS: &[&str] = &["workspace", "deliverables", "artifacts", "skills", "runs"];

/// What stops a call from outside, such as Ctrl-C; given back to the host after the call's record.
pub type Interrupt = Box<dyn Any + Send>;

/// Whoever waits for the call.
pub trait Host: Send + Sync {
    /// Asked at least every 50 ms on the calling thread while a tool works.
    fn interrupted(&self) -> Option<Interrupt>;

    /// Told, on any thread, that the call was cancelled.
    fn cancelled(&self) {}

    /// How many calls this one is made inside of, where that cannot be seen on this thread.
    fn depth(&self) -> u32 {
        0
    }
}

/// A host that never interrupts.
#[derive(Clone, Copy, Debug)]
pub struct Patient;

impl Host for Patient {
    fn interrupted(&self) -> Option<Interrupt> {
        None
    }
}

/// How a run is made or joined.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// The project directory that becomes the workspace; `None` gives the run one of its own.
    pub workspace: Option<PathBuf>,
    /// The user's own mounts: name, host directory, writable.
    pub mounts: Vec<(String, PathBuf, bool)>,
    /// The configuration.
    pub config: ToolsConfig,
    /// The files that the configuration was read from; no tool writes them.
    pub config_files: Vec<PathBuf>,
}

/// What belongs to one call, from the caller.
#[derive(Clone, Debug, Default)]
pub struct CallInfo {
    /// The caller's id of the call; may repeat.
    pub call_id: Option<String>,
    /// The conversation it belongs to.
    pub conversation_id: Option<String>,
    /// The agent's step.
    pub step: Option<u64>,
    /// The agent's name.
    pub agent: Option<String>,
    /// The trace that the call belongs to, hexadecimal.
    pub trace_id: Option<String>,
    /// The span that the call belongs to, hexadecimal.
    pub span_id: Option<String>,
    /// The call's time, in seconds; at most the configured one.
    pub timeout_s: Option<f64>,
    /// The host's approval of what the call asks for.
    pub grant: Option<Arc<Grant>>,
}

impl CallInfo {
    /// The same with each text cut to a length that a record can carry.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        for text in
            [&mut self.call_id, &mut self.conversation_id, &mut self.agent, &mut self.trace_id, &mut self.span_id]
                .into_iter()
                .flatten()
        {
            let kept = cut(text, MAX_ID_BYTES).len();
            text.truncate(kept);
        }
        self
    }
}

/// A run: its mounts, its records, its limits.
#[derive(Debug)]
pub struct Run {
    id: String,
    runs: PathBuf,
    options: RunOptions,
    pub(crate) sandbox: Sandbox,
    pub(crate) redactor: Redactor,
    pub(crate) journal: Journal,
    process: PerProcess<Process>,
    closed: AtomicBool,
    /// The tools registered in this run, the built-ins first.
    pub(crate) location: Arc<Location>,
    /// The skills that the configuration names, once they were looked for.
    skills: ArcSwapOption<SkillRegistry>,
    /// The client that the configuration names, once it was made.
    memory: ArcSwapOption<Arc<dyn MemoryClient>>,
}

/// What one process holds of a run.
#[derive(Debug)]
struct Process {
    prefix: u64,
    counter: AtomicU64,
    /// The calls under way, by their number.
    calls: Mutex<BTreeMap<u64, UnderWay>>,
    /// What the host was asked to approve last, with the caller's id of the call.
    requests: Mutex<VecDeque<(String, ApprovalRequest)>>,
    /// What the model saw of each file.
    seen: Mutex<Seen>,
}

/// A call under way: what the caller said of it, and the flag that stops it.
struct UnderWay {
    info: Arc<CallInfo>,
    call: Option<Arc<()>>,
    cancelled: Arc<AtomicBool>,
    host: Arc<dyn Host>,
}

impl std::fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnderWay").field("info", &self.info).finish_non_exhaustive()
    }
}

/// The host's handle on a run. Clones share the run.
#[derive(Clone, Debug)]
pub struct RunContext {
    run: Arc<Run>,
    info: Arc<CallInfo>,
    /// What tells the call that it stands for from others; `None` where it stands for the run.
    call: Option<Arc<()>>,
}

impl RunContext {
    /// Makes `runs/<run_id>`; an existing one is an error. Nothing is left behind where this fails.
    pub fn create(runs: &Path, run_id: Option<&str>, options: RunOptions) -> Result<Self, KgentError> {
        let id = match run_id {
            Some(id) => checked_id(id)?.to_owned(),
            None => new_id()?,
        };
        check(&options)?;
        let last_change = host::last_change(runs);
        let missing: Vec<&Path> = runs.ancestors().take_while(|p| !host::exists(p)).collect();
        let folder = RunFolder::create(runs, &id, options.workspace.is_none());
        let made = folder.and_then(|folder| {
            let context = Self::assemble(runs, &id, folder, options);
            match context {
                Ok((context, _)) => {
                    context.run.sweep(last_change);
                    let data = serde_json::json!({"audit": context.run.audit()});
                    context.run.announce(EventType::RunCreated, &data).map_err(|e| host_error(&e))?;
                    Ok(context)
                }
                Err(error) => {
                    if let Ok(folder) = RunFolder::open(runs, &id) {
                        folder.discard(runs, &id);
                    }
                    Err(error)
                }
            }
        });
        if made.is_err() {
            for made_for_us in missing {
                host::remove_empty(made_for_us);
            }
        }
        made
    }

    /// Joins an existing run.
    pub fn open(runs: &Path, run_id: &str, options: RunOptions) -> Result<Self, KgentError> {
        check(&options)?;
        let folder = RunFolder::open(runs, checked_id(run_id)?)?;
        let (context, alone) = Self::assemble(runs, run_id, folder, options)?;
        if alone {
            context.run.close_interrupted()?;
        }
        Ok(context)
    }

    fn assemble(runs: &Path, id: &str, folder: RunFolder, options: RunOptions) -> Result<(Self, bool), KgentError> {
        let runs = std::path::absolute(runs).map_err(|e| KgentError::Run(format!("`{}`: {e}", runs.display())))?;
        let own = |name: &str, writable| MountSpec {
            name: name.to_owned(),
            host: runs.join(id).join(name),
            writable,
            private: true,
            external: false,
        };
        let mut specs = vec![match &options.workspace {
            Some(host) => MountSpec { host: absolute(host)?, private: false, ..own("workspace", true) },
            None => own("workspace", true),
        }];
        specs.extend([own("deliverables", true), own("artifacts", false), own("skills", false)]);
        for (name, host, writable) in &options.mounts {
            let host = absolute(host)?;
            specs.push(MountSpec { name: name.clone(), host, writable: *writable, private: false, external: true });
        }
        let names: Vec<String> = specs.iter().map(|s| s.name.clone()).collect();
        let config = &options.config;
        let compile = |key: &str, patterns: &[String]| {
            let compiled = patterns.iter().map(|p| Pattern::compile(p, &names));
            compiled.collect::<Result<Vec<_>, _>>().map_err(|e| KgentError::Config(format!("sandbox.{key}: {e}")))
        };
        let constraints = Constraints {
            hidden: compile("hidden", &config.sandbox.hidden)?,
            read_only: compile("read_only", &config.sandbox.read_only)?,
            deny_hard_links: config.denies_hard_links(),
            power_safe: config.power_safe(),
        };
        let mut key = [0; 32];
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| KgentError::Run(format!("no random numbers: {}", std::io::Error::from(e))))?;
        let redactor = Redactor::new(&config.records.redact, key)?;
        let sandbox = Sandbox::new(specs, &runs, &options.config_files, constraints)?;
        let chain = if config.chained() { Some(audit_chain(&options, &sandbox, &runs)?) } else { None };
        let keeping = Keeping { run_id: id.to_owned(), power_safe: config.power_safe(), chain };
        let (journal, alone) = Journal::open(folder, keeping).map_err(|e| host_error(&e))?;
        let run = Run {
            id: id.to_owned(),
            runs,
            options,
            sandbox,
            redactor,
            journal,
            process: PerProcess::new(),
            closed: AtomicBool::new(false),
            location: Location::with_builtin(),
            skills: ArcSwapOption::empty(),
            memory: ArcSwapOption::empty(),
        };
        run.sandbox.freeze(run.skill_roots().iter().map(PathBuf::as_path))?;
        Ok((Self { run: Arc::new(run), info: Arc::default(), call: None }, alone))
    }

    /// The same run with what belongs to one call.
    #[must_use]
    pub fn for_call(&self, info: CallInfo) -> Self {
        Self { run: Arc::clone(&self.run), info: Arc::new(info.bounded()), call: Some(Arc::new(())) }
    }

    /// The same call, on record as part of this span.
    #[must_use]
    pub fn in_span(&self, trace_id: String, span_id: String) -> Self {
        let info = CallInfo { trace_id: Some(trace_id), span_id: Some(span_id), ..CallInfo::clone(&self.info) };
        Self { info: Arc::new(info.bounded()), ..self.clone() }
    }

    /// The run.
    pub fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// What belongs to the call.
    pub fn info(&self) -> &CallInfo {
        &self.info
    }

    /// Stops the calls under way in this process: all of them, or those of one caller's id. Later calls run. A context
    /// that stands for one call stops no others.
    pub fn cancel(&self, call_id: Option<&str>) {
        let Ok(process) = self.run.process() else { return };
        let call_id = call_id.map(|id| cut(id, MAX_ID_BYTES));
        let mut told = Vec::new();
        for call in lock(&process.1.calls).values() {
            let own =
                self.call.as_ref().is_none_or(|own| call.call.as_ref().is_some_and(|call| Arc::ptr_eq(call, own)));
            if own && (call_id.is_none() || call_id == call.info.call_id.as_deref()) {
                call.cancelled.store(true, Ordering::Relaxed);
                told.push(Arc::clone(&call.host));
            }
        }
        for host in told {
            host.cancelled();
        }
    }

    /// Approves what a call asked for: the same call may be made with the grant, `once` or until `lifetime` is over.
    ///
    /// # Errors
    /// [`KgentError::Policy`] for a request of another run; [`KgentError::Run`] where the grant cannot be put on record.
    pub fn grant(&self, request: ApprovalRequest, once: bool, lifetime: Duration) -> Result<Arc<Grant>, KgentError> {
        let run = &self.run;
        if request.run_id != run.id {
            return Err(KgentError::Policy(format!(
                "the request belongs to run `{}`, not to `{}`",
                cut(&request.run_id, MAX_ID_BYTES),
                run.id
            )));
        }
        let id = format!("g{:016x}{:016x}", random_number()?, random_number()?);
        let grant = Grant::new(id, request, once, lifetime)
            .ok_or_else(|| KgentError::Policy("the grant's time is too long".to_owned()))?;
        let data = serde_json::json!({
            "grant": grant.id,
            "tool": run.redactor.text(&grant.request.tool),
            "asks": run.redacted(&grant.request.asks),
            "once": once,
            "expires_s": lifetime.as_secs_f64(),
        });
        run.announce(EventType::PermissionGranted, &data).map_err(|e| host_error(&e))?;
        Ok(Arc::new(grant))
    }

    /// What the call with this id of the caller's was last refused for, in this process, until the host approves it.
    pub fn requested(&self, call_id: &str) -> Option<ApprovalRequest> {
        let process = self.run.process().ok()?;
        let requests = lock(&process.1.requests);
        let found = requests.iter().rev().find(|(id, _)| id == cut(call_id, MAX_ID_BYTES));
        found.map(|(_, request)| request.clone())
    }

    /// Writes `run.closed` and lets go of the log files and of the registrations. A second time it does nothing.
    pub fn close(&self) -> Result<(), KgentError> {
        if self.run.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let owner = Owner { run_id: &self.run.id, id: None, call_id: None };
        let closed = |ends: &Value| event(&owner, &now(), EventType::RunClosed, &serde_json::json!({"logs": ends}));
        let announced = self.run.journal.finish(closed);
        self.run.journal.close();
        self.run.location.close();
        announced.map_err(|e| host_error(&e))
    }
}

impl Run {
    /// Its id, the name of its folder.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The runs directory, absolute.
    pub fn runs(&self) -> &Path {
        &self.runs
    }

    /// What it was made from.
    pub fn options(&self) -> &RunOptions {
        &self.options
    }

    /// Its limits.
    pub fn limits(&self) -> &Limits {
        &self.options.config.limits
    }

    /// Its mounts.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The folders that the configuration names for skills: from the config file's own folder, or the process's.
    fn skill_roots(&self) -> Vec<PathBuf> {
        let base = self.options.config_files.first().and_then(|file| file.parent());
        let roots = self.options.config.skills.roots.iter();
        roots.map(|root| base.map_or_else(|| PathBuf::from(root), |base| base.join(root))).collect()
    }

    /// The skills that the configuration names; looked for once.
    pub(crate) fn skills(&self) -> Result<Arc<SkillRegistry>, KgentError> {
        if let Some(found) = self.skills.load_full() {
            return Ok(found);
        }
        let found = Arc::new(SkillRegistry::discover(&self.skill_roots())?);
        // Another thread may have been first: its registry is the one.
        let before = self.skills.compare_and_swap(&None::<Arc<SkillRegistry>>, Some(Arc::clone(&found)));
        Ok(before.as_ref().map_or(found, Arc::clone))
    }

    /// The client that the configuration names, where it was made in this process.
    pub fn memory_client(&self) -> Option<Arc<dyn MemoryClient>> {
        self.memory.load().as_deref().cloned()
    }

    /// Gives the run the client that its configuration names; the first one stays.
    pub fn give_memory_client(&self, client: Arc<dyn MemoryClient>) {
        self.memory.compare_and_swap(&None::<Arc<Arc<dyn MemoryClient>>>, Some(Arc::new(client)));
    }

    /// Makes the run ready for tools that use these services: no tool writes the skills' folders. Answers whether there
    /// are skills.
    pub(crate) fn take_services(&self, services: &Services) -> Result<bool, KgentError> {
        let memory = &self.options.config.memory;
        let has_client = services.memory.is_some() || self.memory.load().is_some();
        if memory.write_mode == WriteMode::External && !has_client {
            return Err(KgentError::Config(
                "memory.write_mode is \"external\", but there is no client: pass one, or name it in memory.client"
                    .into(),
            ));
        }
        if let Some(skills) = &services.skills {
            self.sandbox.freeze(skills.real_roots())?;
            return Ok(true);
        }
        if self.options.config.skills.roots.is_empty() {
            return Ok(false);
        }
        self.skills().map(|_| true)
    }

    /// What is guaranteed here, and what is not.
    pub fn guarantees(&self) -> serde_json::Value {
        let mounts = self.sandbox.describe().map(|(name, said)| (name.to_owned(), said));
        let mounts: serde_json::Map<String, serde_json::Value> = mounts.collect();
        serde_json::json!({
            "confinement": "kernel",
            "mounts": mounts,
            "durability": if self.options.config.power_safe() { "power" } else { "process" },
            "room_for_records": self.journal.room_is_reserved(),
        })
    }

    /// `text` with the host paths of the run's own directories, and of the process's, replaced by what they are.
    pub(crate) fn scrub(&self, text: &str) -> String {
        let place = |path: Option<PathBuf>, name: &str| path.map(|p| (p.display().to_string(), name.to_owned()));
        let mut hosts: Vec<(String, String)> = self
            .sandbox
            .hosts()
            .chain([(self.runs.display().to_string(), "<runs>".to_owned())])
            .chain(place(std::env::current_dir().ok(), "<cwd>"))
            .chain(place(std::env::home_dir(), "<home>"))
            .filter(|(host, _)| host.len() > 1)
            .collect();
        hosts.sort_by_key(|(host, _)| std::cmp::Reverse(host.len()));
        hosts.iter().fold(text.to_owned(), |text, (host, name)| replace_path(&text, host, name))
    }

    /// Reads one of its logs from the beginning, line by line.
    pub fn read(&self, log: RunLog) -> Result<LogReader, KgentError> {
        log.sink().read(self.journal.folder()).map(LogReader::new).map_err(|e| self.unread(&e.into()))
    }

    /// Replaces the secrets in a value that goes where others read it: metadata, a span, a log of the host's.
    pub fn redact(&self, value: &mut Value) {
        self.redactor.value(value);
    }

    fn unread(&self, error: &std::io::Error) -> KgentError {
        KgentError::Run(format!("the log of run `{}` cannot be read: {error}", self.id))
    }

    /// Puts calls on record that were begun and never ended: their process died under them. One that died between its
    /// record and its event gets the event.
    fn close_interrupted(&self) -> Result<(), KgentError> {
        let text = |line: &Value, member: &str| line.get(member).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut begun = BTreeMap::new();
        for line in self.read(RunLog::Events)? {
            let line = line.map_err(|e| self.unread(&e))?;
            let (id, kind) = (text(&line, "id"), text(&line, "type"));
            if kind == "tool.started" {
                begun.insert(id, line);
            } else if kind.starts_with("tool.") {
                begun.remove(&id);
            }
        }
        let mut recorded = BTreeMap::new();
        if !begun.is_empty() {
            for line in self.read(RunLog::Records)? {
                let line = line.map_err(|e| self.unread(&e))?;
                let id = text(&line, "id");
                if begun.contains_key(&id) {
                    recorded.insert(id, line);
                }
            }
        }
        for (id, started) in &begun {
            settle::interrupted(self, started, recorded.get(id)).map_err(|e| host_error(&e))?;
        }
        Ok(())
    }

    /// Removes what lies in the runs directory longer than artifacts are kept.
    fn sweep(&self, last_change: Option<i64>) {
        let kept = i64::try_from(self.limits().artifact_retention_days).unwrap_or(i64::MAX);
        let now = jiff::Timestamp::now().as_second();
        if let Some(last) = last_change {
            host::sweep(&self.runs, last, now, now.saturating_sub(kept.saturating_mul(24 * 60 * 60)));
        }
    }

    fn process(&self) -> Result<Arc<(i32, Process)>, ToolError> {
        self.process.get(|| {
            let mut random = [0; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
                .map_err(|e| ToolError::io("random numbers", "reading", e))?;
            Ok(Process {
                prefix: u64::from_ne_bytes(random),
                counter: AtomicU64::new(0),
                calls: Mutex::default(),
                requests: Mutex::default(),
                seen: Mutex::default(),
            })
        })
    }

    fn announce(&self, kind: EventType, data: &Value) -> Result<(), ToolError> {
        let owner = Owner { run_id: &self.id, id: None, call_id: None };
        self.journal.append(&[(Sink::Events, &event(&owner, &now(), kind, data))])
    }

    /// How its records guard against change, as its first event says it.
    fn audit(&self) -> &'static str {
        match (self.options.config.chained(), &self.options.config.records.audit_key_file) {
            (false, _) => "plain",
            (true, None) => "unkeyed",
            (true, Some(_)) => "keyed",
        }
    }

    /// A name that came from outside, as events and spans show it: free of secrets, and cut.
    pub(crate) fn shown(&self, name: &str) -> String {
        cut(&self.redactor.text(name), MAX_ID_BYTES).to_owned()
    }

    /// What is asked for, as events show it.
    pub(crate) fn redacted(&self, asks: &[Ask]) -> Vec<serde_json::Value> {
        let one = |ask: &Ask| serde_json::json!({"action": ask.action, "resource": self.shown(&ask.resource)});
        asks.iter().take(MAX_SHOWN_ASKS).map(one).collect()
    }

    /// Keeps a request for [`RunContext::requested`].
    pub(crate) fn keep_request(&self, call_id: &str, request: ApprovalRequest) {
        let Ok(process) = self.process() else { return };
        let mut requests = lock(&process.1.requests);
        requests.retain(|(id, _)| id != call_id);
        if requests.len() == MAX_REQUESTS {
            requests.pop_front();
        }
        requests.push_back((call_id.to_owned(), request));
    }
}

/// The chain of the run's logs, under the key in the host's file.
fn audit_chain(options: &RunOptions, sandbox: &Sandbox, runs: &Path) -> Result<Chain, KgentError> {
    let key = match &options.config.records.audit_key_file {
        None => Vec::new(),
        Some(file) => {
            // A relative name is meant from where the configuration is.
            let beside = options.config_files.first().and_then(|file| file.parent());
            let file = beside.map_or_else(|| PathBuf::from(file), |beside| beside.join(file));
            if host::real_path(&file)?.starts_with(host::real_path(runs)?) {
                return Err(KgentError::Config(format!(
                    "records.audit_key_file: `{}` lies in the runs directory, beside what it guards",
                    file.display()
                )));
            }
            if let Some(mount) = sandbox.mount_of(&file)? {
                return Err(KgentError::Config(format!(
                    "records.audit_key_file: `{}` lies in the mount `{mount}`, where tools could read it",
                    file.display()
                )));
            }
            read_audit_key(&file)?
        }
    };
    Chain::new(&key).ok_or_else(|| KgentError::Config("records.audit_key_file: the key cannot be used".into()))
}

/// The key in the host's file: its bytes, as they are.
pub fn read_audit_key(file: &Path) -> Result<Vec<u8>, KgentError> {
    let key = host::read_file(file, MAX_KEY_BYTES)?;
    if key.len() < MIN_KEY_BYTES {
        return Err(KgentError::Config(format!("`{}` holds fewer than {MIN_KEY_BYTES} bytes of key", file.display())));
    }
    Ok(key)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn host_error(error: &ToolError) -> KgentError {
    let cause = error.cause.as_deref().map(|c| format!(": {c}")).unwrap_or_default();
    KgentError::Run(format!("{}{cause}", error.message))
}

fn absolute(path: &Path) -> Result<PathBuf, KgentError> {
    std::path::absolute(path).map_err(|e| KgentError::Run(format!("`{}`: {e}", path.display())))
}

pub(crate) fn checked_id(id: &str) -> Result<&str, KgentError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let fits = (1..=128).contains(&id.len()) && id.bytes().all(plain) && !id.starts_with(['.', '-']);
    if fits {
        return Ok(id);
    }
    Err(KgentError::Run(format!(
        "run_id {id:?} cannot be a folder's name: use 1 to 128 letters, digits, `.`, `_` or `-`, not `.` or `-` first"
    )))
}

fn new_id() -> Result<String, KgentError> {
    let time = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S").to_string();
    Ok(format!("{time}-{:08x}", random_number()? & 0xffff_ffff))
}

fn random_number() -> Result<u64, KgentError> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| KgentError::Run(format!("no random numbers: {}", std::io::Error::from(e))))?;
    Ok(u64::from_ne_bytes(random))
}

/// What can be seen to be wrong before anything is made.
fn check(options: &RunOptions) -> Result<(), KgentError> {
    for (index, (name, _, _)) in options.mounts.iter().enumerate() {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        if !(1..=64).contains(&name.len()) || !name.bytes().all(plain) || name.starts_with('-') {
            return Err(KgentError::Run(format!(
                "mount name {name:?}: use 1 to 64 letters, digits, `_` or `-`, not `-` first"
            )));
        }
        let taken = options.mounts.iter().take(index).any(|(other, _, _)| other == name);
        if taken || OWN_MOUNTS.contains(&name.as_str()) {
            return Err(KgentError::Run(format!("mount name {name:?} is taken")));
        }
    }
    for host in options.workspace.iter().chain(options.mounts.iter().map(|(_, host, _)| host)) {
        host::require_dir(host)?;
    }
    Ok(())
}

/// `text` with each place where `path` stands, whole or as the beginning of a longer path, replaced by `name`.
fn replace_path(text: &str, path: &str, name: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(path) {
        out.push_str(before);
        let goes_on = after.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'));
        out.push_str(if goes_on { path } else { name });
        rest = after;
    }
    out.push_str(rest);
    out
}
