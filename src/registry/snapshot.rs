//! [`ToolSnapshot`]: the tools that a model is offered, fixed at the moment it was taken.

use std::collections::HashMap;
use std::sync::Arc;

use super::definition::{Binding, Services, ToolDefinition};
use super::scope::ToolRegistry;
use crate::context::{Host, RunContext};
use crate::error::{Code, KgentError, ToolError};
use crate::permission::Policy;
use crate::settle::{self, Arguments, Settled};
use crate::tools;

/// An immutable set of tools. Later registrations do not change it; a call of a tool that has been closed or covered
/// since is `stale_tool`.
#[derive(Clone, Debug)]
pub struct ToolSnapshot {
    context: RunContext,
    /// What the model is offered, by name.
    offered: Vec<ToolDefinition>,
    /// Every tool, also those that the policy does not offer: a call of one is still checked.
    known: Arc<HashMap<String, ToolDefinition>>,
}

impl ToolRegistry {
    /// The effective tools under `policy`.
    ///
    /// # Errors
    /// [`KgentError::Policy`] where the policy was merged for other mounts; others where the services cannot be had.
    pub fn materialize(
        &self,
        context: &RunContext,
        policy: &Arc<Policy>,
        services: &Services,
    ) -> Result<ToolSnapshot, KgentError> {
        check_mounts(context, policy)?;
        let has_skills = context.run().take_services(services)?;
        let bound = self.location.effective().into_iter().map(|(tool, live)| {
            tool.bound(Binding {
                policy: Arc::clone(policy),
                scope: "location",
                live: Some(live),
                services: services.clone(),
            })
        });
        Ok(snapshot(context, policy, has_skills, bound.collect()))
    }
}

impl ToolSnapshot {
    /// The tools that the policy offers, by name.
    pub fn definitions(&self) -> &[ToolDefinition] {
        &self.offered
    }

    /// The context that it was taken for.
    pub fn context(&self) -> &RunContext {
        &self.context
    }

    /// Calls a tool by name.
    pub fn call(
        &self,
        name: &str,
        args: Arguments,
        context: Option<&RunContext>,
        host: Arc<dyn Host>,
    ) -> Result<Settled, KgentError> {
        let tool = self.known.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.offered.iter().filter_map(ToolDefinition::name).collect();
            ToolError::new(
                Code::UnknownTool,
                format!("there is no tool `{}`", crate::output::bound::cut_word(name, 64)),
            )
            .hint(format!("The tools are: {}.", names.join(", ")))
        });
        settle::settle(name, tool, args, context.unwrap_or(&self.context), host)
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
    Ok(snapshot(context, policy, has_skills, bound.collect()).offered)
}

/// The built-in tool of that name, bound to `policy`.
pub fn built_in(name: &str, policy: &Arc<Policy>) -> Option<ToolDefinition> {
    let (name, tool) = tools::builtin().into_iter().find(|(known, _)| known == name)?;
    Some(fixed(&name, &tool, policy, &Services::default()))
}

fn fixed(name: &str, tool: &ToolDefinition, policy: &Arc<Policy>, services: &Services) -> ToolDefinition {
    let services = services.clone();
    tool.named(name).bound(Binding { policy: Arc::clone(policy), scope: "location", live: None, services })
}

fn snapshot(context: &RunContext, policy: &Policy, has_skills: bool, tools: Vec<ToolDefinition>) -> ToolSnapshot {
    let offered = |tool: &&ToolDefinition| {
        let capability = tool.capability();
        let usable = has_skills || !tool.definition().needs_skills;
        usable && tool.action().is_some_and(|action| policy.offered(action, capability.as_slice()))
    };
    let offered = tools.iter().filter(offered).cloned().collect();
    let known = tools.into_iter().filter_map(|tool| Some((tool.name()?.to_owned(), tool.clone()))).collect();
    ToolSnapshot { context: context.clone(), offered, known: Arc::new(known) }
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
