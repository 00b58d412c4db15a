//! [`ToolDefinition`]: the one representation of an executable tool, built-in or the application's, Rust or Python.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::scope::Liveness;
use crate::context::{CallContext, Host, RunContext};
use crate::error::{KgentError, ToolError};
use crate::memory::MemoryClient;
use crate::permission::{Capability, Policy, grant};
use crate::result::{Content, Data};
use crate::sandbox::{Access, SandboxPath};
use crate::settle::{self, Arguments, Begun, Settled};
use crate::skills::SkillRegistry;

/// What a tool is made from.
pub struct Definition {
    /// What the model is told it does.
    pub description: String,
    /// The JSON schema of its arguments.
    pub input_schema: Value,
    /// The JSON schema of its data, where declared.
    pub output_schema: Option<Value>,
    /// The action that its calls ask for; the tool's name where absent.
    pub action: Option<String>,
    /// The capability that it needs.
    pub capability: Option<Capability>,
    /// Whether it is offered only where there are skills.
    pub needs_skills: bool,
    /// What it does to the world.
    pub annotations: Annotations,
    /// Whether its executor puts `tool.started` on record itself, once it knows what becomes of each target.
    pub announces: bool,
    /// Arguments that hold content; a record keeps their length and digest only.
    pub content_args: &'static [&'static str],
    /// Who does it.
    pub executor: Box<dyn Executor>,
}

/// What a tool does to the world, in the words of the Model Context Protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the protocol's own hints")]
pub struct Annotations {
    /// A title for people.
    pub title: Option<String>,
    /// It changes nothing. A tool that does not say so is announced by `tool.started` before it does anything.
    pub read_only: bool,
    /// It may destroy; meant where it is not read-only.
    pub destructive: bool,
    /// Done twice it does no more than once.
    pub idempotent: bool,
    /// It reaches outside the sandbox.
    pub open_world: bool,
}

/// Decodes a tool's arguments.
pub trait Executor: Send + Sync {
    /// Arguments as the call that they stand for. Makes no system call.
    fn prepare(&self, args: Value, call: &CallContext) -> Result<Prepared, ToolError>;

    /// What the call would do, for the person who is asked to approve it; `None` where the arguments say it all.
    fn preview(&self, _args: Value, _paths: &[SandboxPath], _call: &CallContext) -> Option<String> {
        None
    }

    /// Whether executing it gives a [`Step::Await`].
    fn is_async(&self) -> bool {
        false
    }
}

/// Executes a prepared call, with its targets parsed, in their order.
pub type Execute = Box<dyn FnOnce(Vec<SandboxPath>, &CallContext) -> Result<Step, ToolError> + Send>;

/// How far executing a call has come.
pub enum Step {
    /// It is done.
    Done(Output),
    /// Its caller must await this, which only the binding that made it knows, and then finish the call.
    Await(Box<dyn Any + Send>),
}

/// A call whose arguments are decoded.
pub struct Prepared {
    /// The names it will use, as sent, and what for. All are authorised before it executes.
    pub targets: Vec<(String, Access)>,
    /// What is asked for instead where it uses no name, such as a memory's scope; the tool's name where absent.
    pub resource: Option<String>,
    /// What was mended in the arguments.
    pub repairs: Vec<String>,
    /// Executes it.
    pub execute: Execute,
}

/// What a tool answers, before it is bounded.
#[derive(Debug, Default)]
pub struct Output {
    /// One line.
    pub summary: String,
    /// Facts for programs.
    pub data: Option<Data>,
    /// What the model reads.
    pub content: Vec<Content>,
    /// What the model is told about the content, never part of it.
    pub notices: Vec<String>,
    /// Whether the tool itself left something out.
    pub truncated: bool,
    /// Sandbox paths that a Python result named itself.
    pub artifacts: Vec<String>,
    /// Whether the host asked, not a model: then files are given at any size.
    pub for_host: bool,
}

/// How a definition is used: under which policy, from which scope.
#[derive(Clone)]
pub(crate) struct Binding {
    pub(crate) policy: Arc<Policy>,
    pub(crate) scope: &'static str,
    /// Who stands behind the tool, where it is not the host.
    pub(crate) provider: Option<Arc<str>>,
    pub(crate) live: Option<Liveness>,
    pub(crate) services: Services,
}

/// What tools use beside the run. What is not given is the run's own, by its configuration.
#[derive(Clone, Debug, Default)]
pub struct Services {
    /// The skills.
    pub skills: Option<Arc<SkillRegistry>>,
    /// The memory client.
    pub memory: Option<Arc<dyn MemoryClient>>,
}

/// An executable tool. Opaque: its executor, compiled schema and permission are hidden and cannot be replaced.
#[derive(Clone)]
pub struct ToolDefinition {
    name: Option<Arc<str>>,
    /// The action, where it is another than the definition's own.
    action: Option<Arc<str>>,
    inner: Arc<Definition>,
    binding: Option<Binding>,
}

impl ToolDefinition {
    /// Makes a tool; it gets its name where it is registered.
    pub fn new(definition: Definition) -> Self {
        Self { name: None, action: None, inner: Arc::new(definition), binding: None }
    }

    /// The same tool under a name. It is bound to nothing.
    #[must_use]
    pub fn named(&self, name: Arc<str>) -> Self {
        Self { name: Some(name), binding: None, ..self.clone() }
    }

    /// The same tool, asking for another action. It is bound to nothing.
    #[must_use]
    pub fn with_permission(&self, action: &str) -> Self {
        Self { action: Some(action.into()), binding: None, ..self.clone() }
    }

    /// Whether it is the same tool: the same executor, asking for the same action.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) && self.action() == other.action()
    }

    pub(crate) fn bound(&self, binding: Binding) -> Self {
        Self { binding: Some(binding), ..self.clone() }
    }

    /// Its name; `None` before it is registered.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What the model is told it does.
    pub fn description(&self) -> &str {
        &self.inner.description
    }

    /// The JSON schema of its arguments.
    pub fn input_schema(&self) -> &Value {
        &self.inner.input_schema
    }

    /// The JSON schema of its data.
    pub fn output_schema(&self) -> Option<&Value> {
        self.inner.output_schema.as_ref()
    }

    /// The action that its calls ask for.
    pub fn action(&self) -> Option<&str> {
        self.action.as_deref().or(self.inner.action.as_deref()).or(self.name())
    }

    /// The capability that it needs.
    pub fn capability(&self) -> Option<Capability> {
        self.inner.capability
    }

    /// What it does to the world.
    pub fn annotations(&self) -> &Annotations {
        &self.inner.annotations
    }

    /// Whether it may change anything.
    pub fn mutating(&self) -> bool {
        !self.inner.annotations.read_only
    }

    /// Whether its calls must be awaited.
    pub fn is_async(&self) -> bool {
        self.inner.executor.is_async()
    }

    /// SHA-256 of what the tool is: its scope, texts, schemas and action.
    pub(crate) fn digest(&self) -> String {
        let scope = self.binding.as_ref().map_or("none", |binding| binding.scope);
        grant::digest(serde_json::json!([
            self.name(),
            scope,
            self.description(),
            self.input_schema(),
            self.output_schema(),
            self.action()
        ]))
    }

    pub(crate) fn definition(&self) -> &Definition {
        &self.inner
    }

    pub(crate) fn binding(&self) -> Option<&Binding> {
        self.binding.as_ref()
    }

    /// The policy of a tool that `build_toolsets` returned: built-in, and fixed.
    pub fn fixed_policy(&self) -> Option<&Arc<Policy>> {
        self.binding.as_ref().filter(|binding| binding.live.is_none()).map(|binding| &binding.policy)
    }

    /// Whether it was bound to a client or to skills that the configuration does not name.
    pub fn has_own_services(&self) -> bool {
        let services = self.binding.as_ref().map(|binding| &binding.services);
        services.is_some_and(|services| services.skills.is_some() || services.memory.is_some())
    }

    /// Whether it can be called: it is named and bound to a policy.
    pub fn is_bound(&self) -> bool {
        self.name.is_some() && self.binding.is_some()
    }

    /// Calls the tool: this is settle, there is no other way in.
    ///
    /// # Errors
    /// [`KgentError`] for what the host must mend; a failed call is a result.
    pub fn call(&self, args: Arguments, context: &RunContext, host: Arc<dyn Host>) -> Result<Settled, KgentError> {
        settle::settle(self.required_name()?, Ok(self), args, context, host)
    }

    /// Calls the tool as far as it goes without awaiting anything: settle's first half.
    ///
    /// # Errors
    /// As for [`ToolDefinition::call`].
    pub fn start(&self, args: Arguments, context: &RunContext, host: Arc<dyn Host>) -> Result<Begun, KgentError> {
        settle::start(self.required_name()?, Ok(self), args, context, host)
    }

    fn required_name(&self) -> Result<&str, KgentError> {
        let unnamed = || KgentError::Registration("a tool without a name cannot be called: register it first".into());
        self.name().ok_or_else(unnamed)
    }
}

impl fmt::Debug for ToolDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolDefinition").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Definition").field("description", &self.description).finish_non_exhaustive()
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(output) => f.debug_tuple("Done").field(output).finish(),
            Self::Await(_) => f.debug_tuple("Await").finish_non_exhaustive(),
        }
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("targets", &self.targets).finish_non_exhaustive()
    }
}
