//! [`Policy`]: four [`Layers`] merged and frozen. Merging is a pure function; a policy is the same wherever it is built.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::decision::{Decision, Layer, PermissionResult};
use super::pattern::{Pattern, Resource, fold};
use super::rule::{Compiled, EXTERNAL_DIRECTORY, Effect, READ_SECRET, Rule, is_secret};
use super::{BUILT_IN_ACTIONS, Capability, capabilities_of};
use crate::error::{Code, KgentError, ToolError};

/// What a policy is merged from: of each layer its rules, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Layers {
    /// The host's own rules.
    pub runtime: Vec<Rule>,
    /// The sandbox's constraints.
    pub sandbox: Vec<Rule>,
    /// The configuration's, capability keys first.
    pub config: Vec<Rule>,
    /// Each loaded skill's, under its id. An `allow` is a request and decides nothing.
    pub skills: Vec<(String, Vec<Rule>)>,
}

/// The effective permission policy.
///
/// It answers three questions and keeps them apart: [`Policy::decide`], whether a call may do what it asks for, at every call and
/// on the real target; [`Policy::offered`], whether a tool belongs in the catalog at all; and [`Policy::effect`], what
/// holds for a capability everywhere. A policy without rules answers without looking at a pattern.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Policy {
    mounts: Vec<String>,
    source: Layers,
    /// Runtime, sandbox, config: those that have rules.
    layers: Vec<Ruled>,
    skills: Vec<Ruled>,
    /// Whether a pattern that forbids something has letters that fold.
    folds: bool,
}

/// A policy as JSON has it; loading merges it again.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    mounts: Vec<String>,
    layers: Layers,
}

impl From<Policy> for Stored {
    fn from(policy: Policy) -> Self {
        Self { mounts: policy.mounts, layers: policy.source }
    }
}

impl TryFrom<Stored> for Policy {
    type Error = KgentError;

    fn try_from(stored: Stored) -> Result<Self, KgentError> {
        Self::merge(stored.layers, &stored.mounts)
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.mounts == other.mounts && self.source == other.source
    }
}

impl Eq for Policy {}

/// The rules of one layer, ready to be matched.
#[derive(Clone, Debug)]
struct Ruled {
    layer: Layer,
    rules: Vec<Compiled>,
}

impl Ruled {
    fn compile(layer: Layer, whose: &str, rules: &[Rule], mounts: &[String]) -> Result<Self, KgentError> {
        let one = |(at, rule): (usize, &Rule)| {
            let failed = |e: String| KgentError::Config(format!("{whose}: rule {} (`{rule}`): {e}", at + 1));
            rule.validate(mounts).map_err(failed)?;
            rule.compile(whose, mounts).map_err(failed)
        };
        Ok(Self { layer, rules: rules.iter().enumerate().map(one).collect::<Result<_, _>>()? })
    }

    /// The last rule that speaks of `action` done with `capability` and that `hit` accepts.
    fn last(&self, action: &str, capability: Option<Capability>, hit: impl Fn(&Pattern) -> bool) -> Option<&Compiled> {
        self.rules.iter().rev().find(|rule| rule.names(action, capability) && hit(&rule.pattern))
    }

    /// What that rule says.
    fn says(
        &self,
        action: &str,
        capability: Option<Capability>,
        hit: impl Fn(&Pattern) -> bool,
    ) -> Option<Decision<'_>> {
        let rule = self.last(action, capability, hit)?;
        Some(Decision { effect: rule.effect, layer: self.layer, rule: Some(&rule.says) })
    }
}

impl Policy {
    /// Merges the layers for a sandbox with these mounts.
    ///
    /// Fails on the first rule that is malformed or fails its own examples. The order of the skills does not matter.
    pub fn merge(layers: Layers, mounts: &[String]) -> Result<Self, KgentError> {
        let mut source = layers;
        source.skills.sort();
        source.skills.dedup();
        let mut ruled = Vec::new();
        for (layer, rules) in
            [(Layer::Runtime, &source.runtime), (Layer::Sandbox, &source.sandbox), (Layer::Config, &source.config)]
        {
            if !rules.is_empty() {
                ruled.push(Ruled::compile(layer, layer.as_str(), rules, mounts)?);
            }
        }
        let mut skills = Vec::new();
        for (id, rules) in &source.skills {
            skills.push(Ruled::compile(Layer::Skill, &format!("skill {id}"), rules, mounts)?);
        }
        let mut rules = ruled.iter().chain(&skills).flat_map(|ruled: &Ruled| &ruled.rules);
        let folds = rules.any(|rule| rule.folded.is_some() && rule.pattern.folds());
        Ok(Self { mounts: mounts.to_vec(), source, layers: ruled, skills, folds })
    }

    /// Whether `action`, done with `capabilities`, may be done to `resource`.
    ///
    /// Each capability is asked for by itself and the strictest answer holds, so that a rule on one lifts nothing of
    /// another; without any given they are those of the action. [`READ_SECRET`] is denied unless a rule that names it allows it.
    pub fn decide(&self, action: &str, capabilities: &[Capability], resource: &Resource<'_>) -> Decision<'_> {
        self.decide_or(Effect::Allow, action, capabilities, resource)
    }

    /// The same, for a tool whose own default is `fallback`: it counts only where no layer speaks.
    pub fn decide_or(
        &self,
        fallback: Effect,
        action: &str,
        capabilities: &[Capability],
        resource: &Resource<'_>,
    ) -> Decision<'_> {
        self.evaluate(fallback, action, capabilities, |pattern| pattern.matches(resource))
    }

    /// Whether `action` may read the content of `resource`: a file whose name says that it holds secrets also asks
    /// [`READ_SECRET`].
    pub fn decide_read(&self, action: &str, resource: &Resource<'_>) -> Decision<'_> {
        let decision = self.decide(action, &[Capability::FilesystemRead], resource);
        if is_secret(resource.rel) {
            return decision.stricter(self.decide(READ_SECRET, &[], resource));
        }
        decision
    }

    /// The strictest answer over the capabilities, counting the rules whose pattern `hit` accepts.
    fn evaluate(
        &self,
        fallback: Effect,
        action: &str,
        capabilities: &[Capability],
        hit: impl Fn(&Pattern) -> bool,
    ) -> Decision<'_> {
        let capabilities = if capabilities.is_empty() { capabilities_of(action) } else { capabilities };
        let one = |capability| self.evaluate_one(fallback, action, capability, &hit);
        let answers = capabilities.iter().map(|capability| one(Some(*capability)));
        answers.reduce(Decision::stricter).unwrap_or_else(|| one(None))
    }

    fn evaluate_one(
        &self,
        fallback: Effect,
        action: &str,
        capability: Option<Capability>,
        hit: impl Fn(&Pattern) -> bool,
    ) -> Decision<'_> {
        let layers = self.layers.iter().filter_map(|ruled| ruled.says(action, capability, &hit));
        let holds = layers.reduce(Decision::stricter).unwrap_or_else(|| by_default(fallback, action, capability));
        // After the default: a skill's `ask` must not lift a default deny, nor its `allow` anything.
        self.skills.iter().filter_map(|skill| skill.says(action, capability, &hit)).fold(holds, Decision::stricter)
    }

    /// What holds for a capability or an action on every resource: only rules on exactly `*` count.
    pub fn effect(&self, name: &str) -> Effect {
        self.everywhere(name).effect
    }

    fn everywhere(&self, name: &str) -> Decision<'_> {
        self.evaluate(Effect::Allow, name, capabilities_of(name), Pattern::is_every)
    }

    /// Whether [`Policy::effect`] of the capability is allow.
    pub fn allows(&self, capability: Capability) -> bool {
        self.effect(capability.as_str()) == Effect::Allow
    }

    /// Whether a tool with this action, which cannot work without these capabilities, belongs in the catalog.
    ///
    /// It does not iff in some layer the last rule that speaks of it denies exactly `*`. The defaults are such a layer
    /// where no rule above lifts them on any resource. This is no authorisation.
    pub fn offered(&self, action: &str, capabilities: &[Capability]) -> bool {
        let offered = |capability: Option<Capability>| {
            let disabled = |ruled: &Ruled| {
                let last = ruled.last(action, capability, |_| true);
                last.is_some_and(|rule| rule.effect == Effect::Deny && rule.pattern.is_every())
            };
            let lifts = |rule: &Compiled| rule.effect < Effect::Deny && rule.names(action, capability);
            !self.layers.iter().chain(&self.skills).any(disabled)
                && (by_default(Effect::Allow, action, capability).effect < Effect::Deny
                    || self.layers.iter().flat_map(|ruled| &ruled.rules).any(lifts))
        };
        let capabilities = if capabilities.is_empty() { capabilities_of(action) } else { capabilities };
        if capabilities.is_empty() { offered(None) } else { capabilities.iter().all(|c| offered(Some(*c))) }
    }

    /// What a call of `action` on `resource` would be told, given as a sandbox path or as the action's own kind of text.
    ///
    /// A path is judged as it is written, with `.` and empty components dropped; links are not followed.
    pub fn check(&self, action: &str, resource: &str) -> PermissionResult {
        let capabilities = capabilities_of(action);
        let is_path = |capability: &Capability| {
            matches!(
                capability,
                Capability::FilesystemRead | Capability::FilesystemWrite | Capability::FilesystemDelete
            )
        };
        let known = BUILT_IN_ACTIONS.iter().any(|(name, _)| *name == action) || !capabilities.is_empty();
        if known && !capabilities.iter().any(is_path) {
            return self.decide(action, capabilities, &Resource::text(resource)).permission_result(action, resource);
        }
        if resource.starts_with(['/', '~']) || resource.split('/').any(|component| component == "..") {
            return not_canonical(resource);
        }
        let kept: Vec<&str> = resource.split('/').filter(|component| !matches!(*component, "" | ".")).collect();
        let canonical = kept.join("/");
        let target = Resource::parse(&canonical, &self.mounts);
        if action == "read_file" {
            return self.decide_read(action, &target).permission_result(action, resource);
        }
        self.decide(action, capabilities, &target).permission_result(action, resource)
    }

    /// Whether a rule, or the list of secrets, forbids the name only in another case or normal form: on some volumes it
    /// leads to the same file.
    pub(crate) fn may_be_folded(&self, resource: &Resource<'_>) -> bool {
        let rel = fold(resource.rel);
        if matches!(rel, Cow::Borrowed(_)) && !self.folds {
            return false;
        }
        let mount = resource.mount.to_lowercase();
        let folded = Resource { mount: &mount, rel: &rel };
        let mut rules = self.layers.iter().chain(&self.skills).flat_map(|ruled| &ruled.rules);
        is_secret(&rel) && !is_secret(resource.rel)
            || rules.any(|rule| {
                rule.folded.as_ref().is_some_and(|pattern| pattern.matches(&folded)) && !rule.pattern.matches(resource)
            })
    }

    /// Whether any rule says `ask`.
    pub(crate) fn may_ask(&self) -> bool {
        self.layers.iter().chain(&self.skills).flat_map(|ruled| &ruled.rules).any(|rule| rule.effect == Effect::Ask)
    }

    /// The mounts that it was merged for, in the order given: a context with others must not use it.
    pub fn mounts(&self) -> &[String] {
        &self.mounts
    }

    /// The layers that it was merged from.
    pub fn layers(&self) -> &Layers {
        &self.source
    }

    /// What loaded skills ask for, by skill; it decides nothing.
    pub fn requested(&self) -> impl Iterator<Item = (&str, &Rule)> {
        let all = self.source.skills.iter().flat_map(|(id, rules)| rules.iter().map(move |rule| (id.as_str(), rule)));
        all.filter(|(_, rule)| rule.effect == Effect::Allow)
    }

    /// Rules that can never match, or that a later one leaves nothing to say, and why.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for ruled in self.layers.iter().chain(&self.skills) {
            for (at, rule) in ruled.rules.iter().enumerate() {
                let later = ruled.rules.get(at + 1..).unwrap_or_default();
                if let Some(why) = rule.never_matches(&self.mounts) {
                    warnings.push(format!("`{}` never matches: {why}", rule.says));
                } else if let Some(by) = later.iter().find(|later| later.shadows(rule)) {
                    warnings.push(format!("`{}` never speaks: the later `{}` does", rule.says, by.says));
                } else if let Some(known) = rule.resembles() {
                    warnings.push(format!("`{}`: no built-in action has this name; is `{known}` meant?", rule.says));
                }
            }
        }
        warnings
    }

    /// The whole policy as a table for people.
    pub fn explain(&self) -> String {
        let mut rows = vec![["name", "effect", "layer", "rule"].map(str::to_owned)];
        let names = Capability::ALL.iter().map(|c| c.as_str()).chain([READ_SECRET, EXTERNAL_DIRECTORY]);
        for name in names {
            let holds = self.everywhere(name);
            let rule = holds.rule.unwrap_or_default();
            rows.push([name, holds.effect.as_str(), holds.layer.as_str(), rule].map(str::to_owned));
        }
        let mut text = String::from("Holds everywhere, unless a rule below says otherwise for a resource:\n");
        table(&mut text, &rows);
        let rules: Vec<_> = self.layers.iter().chain(&self.skills).flat_map(|ruled| &ruled.rules).collect();
        if !rules.is_empty() {
            text.push_str("\nRules; in a layer the last match speaks, across layers the strictest:\n");
            for rule in rules {
                let _ = writeln!(text, "  {}", rule.says);
            }
        }
        if self.requested().next().is_some() {
            text.push_str("\nAsked for by skills, not granted:\n");
            for (id, rule) in self.requested() {
                let _ = writeln!(text, "  skill {id}: {} {}", rule.action, rule.resource);
            }
        }
        let warnings = self.warnings();
        if !warnings.is_empty() {
            text.push_str("\nWarnings:\n");
            for warning in warnings {
                let _ = writeln!(text, "  {warning}");
            }
        }
        let _ = writeln!(text, "\nMounts: {}", self.mounts.join(", "));
        text
    }
}

/// What holds where no layer speaks.
fn by_default(fallback: Effect, action: &str, capability: Option<Capability>) -> Decision<'static> {
    let (effect, rule) = match capability {
        _ if action == READ_SECRET => (Effect::Deny, Some("default: deny read_secret *")),
        Some(capability) => capability.default_effect(),
        None => (Effect::Allow, None),
    };
    let holds = Decision { effect, layer: Layer::Default, rule };
    holds.stricter(Decision { effect: fallback, layer: Layer::Default, rule: None })
}

/// The answer to a path that only a sandbox can judge.
fn not_canonical(resource: &str) -> PermissionResult {
    let message = format!("`{resource}` is no canonical sandbox path");
    let error = ToolError::new(Code::InvalidArgs, message.clone())
        .hint("Send a path relative to the workspace, or one that begins with a mount's name, without `..`.");
    PermissionResult {
        allowed: false,
        reason: Some(message),
        error: Some(error),
        effect: Effect::Deny,
        layer: Layer::Sandbox,
        rule: None,
    }
}

/// Writes rows in columns as wide as their widest cell.
fn table(text: &mut String, rows: &[[String; 4]]) {
    let mut widths = [0; 4];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let _ = writeln!(text, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
