//! [`Decision`]: what the policy says to one request, and which layer and rule said it.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::READ_SECRET;
use super::rule::Effect;
use crate::error::{Code, ToolError};

/// Whose word it was. The order is that of authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The rules that the host gave when it built the policy.
    Runtime,
    /// The sandbox's constraints.
    Sandbox,
    /// The configuration.
    Config,
    /// A loaded skill, which can only narrow.
    Skill,
    /// The host, for this call.
    Grant,
    /// Nobody: what holds where no layer speaks.
    Default,
}

impl Layer {
    /// The word in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Sandbox => "sandbox",
            Self::Config => "config",
            Self::Skill => "skill",
            Self::Grant => "grant",
            Self::Default => "default",
        }
    }
}

/// The answer to one request; it borrows its text from the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    /// The answer.
    pub effect: Effect,
    /// Whose word it was.
    pub layer: Layer,
    /// The rule, such as `config: deny read_file private/**`; `None` where an allow came from no rule.
    pub rule: Option<&'a str>,
}

impl Decision<'_> {
    /// Whether the call goes on.
    pub fn allowed(&self) -> bool {
        self.effect == Effect::Allow
    }

    /// The stricter of two; of equals the first.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        if other.effect > self.effect { other } else { self }
    }

    /// The same after the host's grant: `ask` becomes `allow`, a deny stays.
    #[must_use]
    pub fn granted(self) -> Self {
        match self.effect {
            Effect::Ask => Self { effect: Effect::Allow, layer: Layer::Grant, ..self },
            Effect::Allow | Effect::Deny => self,
        }
    }

    /// The rule's text, for records.
    pub fn rule_text(&self) -> Option<String> {
        self.rule.map(str::to_owned)
    }

    /// The failure of a call that asked for `action` on `resource` (as it is printed) and is not allowed.
    ///
    /// The text is the same whether or not the resource exists.
    pub fn refusal(&self, action: &str, resource: &str) -> ToolError {
        let (code, message, hint) = if self.effect == Effect::Ask {
            (
                Code::ApprovalRequired,
                format!("`{action}` on `{resource}` needs the host's approval"),
                "Ask for the approval and send the same call again once it is given, or go on without it.",
            )
        } else if action == READ_SECRET {
            (
                Code::Denied,
                format!("reading `{resource}` is denied: by its name it holds secrets"),
                "Go on without its content. Only the host can allow it, with a rule that names `read_secret`.",
            )
        } else {
            (
                Code::Denied,
                format!("`{action}` on `{resource}` is denied by the {} layer of the policy", self.layer.as_str()),
                "Do not send it again: only the host can allow it. Use another resource or go on without it.",
            )
        };
        let details =
            json!({ "layer": self.layer.as_str(), "rule": self.rule, "action": action, "resource": resource });
        ToolError::new(code, message).hint(hint).details(details)
    }

    /// The answer in the form that callers of the package get.
    pub fn permission_result(&self, action: &str, resource: &str) -> PermissionResult {
        let error = (!self.allowed()).then(|| self.refusal(action, resource));
        PermissionResult {
            allowed: self.allowed(),
            reason: error.as_ref().map(|error| error.message.clone()),
            error,
            effect: self.effect,
            layer: self.layer,
            rule: self.rule_text(),
        }
    }
}

/// A [`Decision`] that stands by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct PermissionResult {
    /// Whether the effect is allow.
    pub allowed: bool,
    /// Why not; `None` exactly when allowed.
    pub reason: Option<String>,
    /// The failure that the call would have; `None` exactly when allowed.
    pub error: Option<ToolError>,
    /// The answer.
    pub effect: Effect,
    /// Whose word it was.
    pub layer: Layer,
    /// The rule that decided.
    pub rule: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_lifts_ask_and_never_deny() {
        let decision = |effect| Decision { effect, layer: Layer::Config, rule: Some("config: x") };
        assert_eq!(decision(Effect::Ask).granted().layer, Layer::Grant);
        assert!(decision(Effect::Ask).granted().allowed());
        assert_eq!(decision(Effect::Deny).granted(), decision(Effect::Deny));
        assert_eq!(decision(Effect::Allow).granted(), decision(Effect::Allow));
    }

    #[test]
    fn a_denial_names_its_layer_and_rule() {
        let rule = Some("config: deny read_file private/**");
        let error = Decision { effect: Effect::Deny, layer: Layer::Config, rule }.refusal("read_file", "private/k");
        assert_eq!(error.code, Code::Denied);
        assert_eq!(error.message, "`read_file` on `private/k` is denied by the config layer of the policy");
        let details = json!({ "layer": "config", "rule": rule, "action": "read_file", "resource": "private/k" });
        assert_eq!(error.details.as_deref(), Some(&details));
        let ask = Decision { effect: Effect::Ask, layer: Layer::Sandbox, rule: None }.permission_result("edit", "a");
        assert_eq!((ask.allowed, ask.error.unwrap().code), (false, Code::ApprovalRequired));
        let allow =
            Decision { effect: Effect::Allow, layer: Layer::Default, rule: None }.permission_result("edit", "a");
        assert_eq!((allow.allowed, allow.reason, allow.error), (true, None, None));
    }
}
