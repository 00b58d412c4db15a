//! [`ToolSnapshot`]: the tools that a model is offered, fixed at the moment it was taken.

use std::sync::Arc;

use super::definition::{Binding, Services, ToolDefinition};
use super::scope::{Captured, Found, Liveness, ToolRegistry, View};
use crate::context::{Host, RunContext};
use crate::error::{Code, KgentError, ToolError};
use crate::permission::Policy;
use crate::settle::{self, Arguments, Settled};
use crate::tools;

/// How many names the answer to an unknown one lists.
const MAX_NAMES: usize = 50;

/// An immutable set of tools. Later registrations do not change it; a call of a tool that has been closed or covered
/// since is `stale_tool`.
#[derive(Clone, Debug)]
pub struct ToolSnapshot {
    context: RunContext,
    policy: Arc<Policy>,
    services: Services,
    has_skills: bool,
    view: View,
    /// Every tool, also those that the policy does not offer: a call of one is still checked.
    captured: Captured,
}

impl ToolRegistry {
    /// The effective tools under `policy`.
    ///
    /// # Errors
    /// [`KgentError::Policy`] where the policy was merged for other mounts; [`KgentError::Registration`] for the
    /// application's registry, which belongs to no run; others where the services cannot be had.
    pub fn materialize(&self, policy: &Arc<Policy>, services: &Services) -> Result<ToolSnapshot, KgentError> {
        let context = self.context()?;
        check_mounts(context, policy)?;
        let has_skills = context.run().take_services(services)?;
        let view = self.view()?;
        let captured = view.capture();
        let (context, policy, services) = (context.clone(), Arc::clone(policy), services.clone());
        Ok(ToolSnapshot { context, policy, services, has_skills, view, captured })
    }
}

impl ToolSnapshot {
    /// The tools that the policy offers, by name.
    pub fn definitions(&self) -> Vec<ToolDefinition> {
        self.offered().map(|found| self.bound(found)).collect()
    }

    /// The context that it was taken for.
    pub fn context(&self) -> &RunContext {
        &self.context
    }

    /// The tool of that name, whether offered or not; or the error of a call that names none.
    ///
    /// # Errors
    /// `unknown_tool`.
    pub fn look_up(&self, name: &str) -> Result<ToolDefinition, ToolError> {
        self.captured.find(name).map(|found| self.bound(found)).ok_or_else(|| self.unknown(name))
    }

    /// Calls a tool by name.
    ///
    /// # Errors
    /// [`KgentError`] for what the host must mend; a failed call is a result.
    pub fn call(
        &self,
        name: &str,
        args: Arguments,
        context: Option<&RunContext>,
        host: Arc<dyn Host>,
    ) -> Result<Settled, KgentError> {
        let tool = self.look_up(name);
        settle::settle(name, tool.as_ref().map_err(ToolError::clone), args, context.unwrap_or(&self.context), host)
    }

    fn unknown(&self, name: &str) -> ToolError {
        let mut names: Vec<&str> = self.offered().filter_map(|(_, entry)| entry.item.tool.name()).collect();
        let more = names.len().saturating_sub(MAX_NAMES);
        names.truncate(MAX_NAMES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        ToolError::new(Code::UnknownTool, format!("there is no tool `{}`", crate::output::bound::cut_word(name, 64)))
            .hint(format!("The tools are: {}{more}.", names.join(", ")))
    }

    fn offered(&self) -> impl Iterator<Item = Found<'_>> {
        self.captured.all().filter(|(_, entry)| offered(&entry.item.tool, &self.policy, self.has_skills))
    }

    fn bound(&self, (scope, entry): Found<'_>) -> ToolDefinition {
        entry.item.tool.bound(Binding {
            policy: Arc::clone(&self.policy),
            scope,
            provider: entry.item.provider.clone(),
            live: Some(Liveness { view: self.view.clone(), scope, id: entry.id }),
            services: self.services.clone(),
        })
    }
}

/// The built-in tools that `policy` offers, bound to it: fixed, they never go stale.
///
/// # Errors
/// [`KgentError::Policy`] where the policy was merged for other mounts; others where the services cannot be had.
pub fn build_toolsets(
    context: &RunContext,
    policy: &Arc<Policy>,
    services: &Services,
) -> Result<Vec<ToolDefinition>, KgentError> {
    check_mounts(context, policy)?;
    let has_skills = context.run().take_services(services)?;
    let bound = tools::builtin().into_iter().map(|(name, tool)| fixed(&name, &tool, policy, services));
    Ok(bound.filter(|tool| offered(tool, policy, has_skills)).collect())
}

/// The tools that a framework's workspace is made of, bound to `policy`. No model is offered them.
///
/// # Errors
/// [`KgentError::Policy`] where the policy was merged for other mounts.
pub fn build_workspace(context: &RunContext, policy: &Arc<Policy>) -> Result<Vec<ToolDefinition>, KgentError> {
    check_mounts(context, policy)?;
    let services = Services::default();
    Ok(tools::workspace().into_iter().map(|(name, tool)| fixed(&name, &tool, policy, &services)).collect())
}

/// The names of the built-in tools, which only the host may cover.
pub fn built_in_names() -> Vec<String> {
    tools::builtin().into_iter().map(|(name, _)| name).collect()
}

/// The built-in tool of that name, bound to `policy`.
pub fn built_in(name: &str, policy: &Arc<Policy>) -> Option<ToolDefinition> {
    let (name, tool) = tools::builtin().into_iter().find(|(known, _)| known == name)?;
    Some(fixed(&name, &tool, policy, &Services::default()))
}

fn fixed(name: &str, tool: &ToolDefinition, policy: &Arc<Policy>, services: &Services) -> ToolDefinition {
    let (policy, services) = (Arc::clone(policy), services.clone());
    tool.named(name.into()).bound(Binding { policy, scope: "location", provider: None, live: None, services })
}

fn offered(tool: &ToolDefinition, policy: &Policy, has_skills: bool) -> bool {
    let usable = has_skills || !tool.definition().needs_skills;
    usable && tool.action().is_some_and(|action| policy.offered(action, tool.capability().as_slice()))
}

/// A policy's patterns were compiled for certain mounts; under others they would mean something else.
pub(crate) fn check_mounts(context: &RunContext, policy: &Policy) -> Result<(), KgentError> {
    let (have, want) = (context.run().sandbox().mount_names(), policy.mounts());
    if have == want {
        return Ok(());
    }
    Err(KgentError::Policy(format!(
        "the policy was merged for the mounts {}, the run has {}: merge it with context=",
        want.join(", "),
        have.join(", ")
    )))
}
