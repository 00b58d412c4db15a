//! [`ToolRegistry`]: the tools of one run's location. A registration is a batch; closing it removes just that batch and
//! uncovers what it covered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;

use super::definition::ToolDefinition;
use crate::context::RunContext;
use crate::error::KgentError;
use crate::tools;

type Stacks = HashMap<Arc<str>, Vec<(u64, ToolDefinition)>>;

/// One scope's stacks of tools, the newest last. Readers see one whole state; nothing is locked.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    stacks: ArcSwap<Stacks>,
    tokens: AtomicU64,
}

impl Scope {
    /// A location: the built-ins are its first batch.
    pub(crate) fn with_builtin() -> Result<Arc<Self>, KgentError> {
        let scope = Arc::new(Self::default());
        scope.register(&tools::builtin())?;
        Ok(scope)
    }

    pub(crate) fn register(self: &Arc<Self>, tools: &[(String, ToolDefinition)]) -> Result<Registration, KgentError> {
        for (name, _) in tools {
            check_name(name)?;
        }
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        let named: Vec<(Arc<str>, ToolDefinition)> =
            tools.iter().map(|(name, tool)| (Arc::from(name.as_str()), tool.named(name))).collect();
        self.stacks.rcu(|stacks| {
            let mut stacks = Stacks::clone(stacks);
            for (name, tool) in &named {
                stacks.entry(Arc::clone(name)).or_default().push((token, tool.clone()));
            }
            stacks
        });
        Ok(Registration { scope: Arc::clone(self), token })
    }

    fn close(&self, token: u64) {
        self.stacks.rcu(|stacks| {
            let mut stacks = Stacks::clone(stacks);
            stacks.retain(|_, stack| {
                stack.retain(|(other, _)| *other != token);
                !stack.is_empty()
            });
            stacks
        });
    }

    /// The newest tool of each name.
    pub(crate) fn effective(self: &Arc<Self>) -> Vec<(ToolDefinition, Liveness)> {
        let stacks = self.stacks.load();
        let mut found: Vec<_> = stacks
            .values()
            .filter_map(|stack| stack.last())
            .map(|(token, tool)| (tool.clone(), Liveness { scope: Arc::downgrade(self), token: *token }))
            .collect();
        found.sort_by(|a, b| a.0.name().cmp(&b.0.name()));
        found
    }
}

/// Whether a tool that was offered is still the one that its name means.
#[derive(Clone, Debug)]
pub(crate) struct Liveness {
    scope: Weak<Scope>,
    token: u64,
}

impl Liveness {
    pub(crate) fn holds(&self, name: &str) -> bool {
        self.scope.upgrade().is_some_and(|scope| {
            scope.stacks.load().get(name).and_then(|stack| stack.last()).is_some_and(|(token, _)| *token == self.token)
        })
    }
}

/// A batch of registered tools. It stays until it is closed.
#[derive(Debug)]
pub struct Registration {
    scope: Arc<Scope>,
    token: u64,
}

impl Registration {
    /// Removes the batch. A second time it does nothing.
    pub fn close(&self) {
        self.scope.close(self.token);
    }
}

/// The tools of a run: the built-ins as the first batch, and what the host registers over them.
#[derive(Clone, Debug)]
pub struct ToolRegistry {
    pub(crate) location: Arc<Scope>,
}

impl ToolRegistry {
    /// The registry of the run: every registry of one run is the same.
    pub fn new(context: &RunContext) -> Self {
        Self { location: Arc::clone(&context.run().location) }
    }

    /// Registers a batch, all of it or none.
    ///
    /// # Errors
    /// [`KgentError::Registration`] for a name that is not `^[A-Za-z][A-Za-z0-9_-]{0,63}$`.
    pub fn register(&self, tools: &[(String, ToolDefinition)]) -> Result<Registration, KgentError> {
        self.location.register(tools)
    }
}

fn check_name(name: &str) -> Result<(), KgentError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    let fits = (1..=64).contains(&name.len())
        && name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
        && name.bytes().all(plain);
    if fits {
        return Ok(());
    }
    Err(KgentError::Registration(format!(
        "tool name {name:?}: use a letter, then at most 63 letters, digits, `_` or `-`"
    )))
}
