//! [`Rule`]: one line of a layer, and what holds without any: the defaults and the names that are secret.

use serde::{Deserialize, Serialize};

use super::pattern::{Pattern, Resource};
use super::{BUILT_IN_ACTIONS, Capability};

/// The longest action, in bytes.
const MAX_ACTION_BYTES: usize = 128;

/// What a rule or a policy says. The order is that of strictness: the stricter of two is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// Go on.
    Allow,
    /// Ask the host first.
    Ask,
    /// No.
    Deny,
}

impl Effect {
    /// Every effect.
    pub const ALL: [Self; 3] = [Self::Allow, Self::Ask, Self::Deny];

    /// The word in configuration and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }

    /// The effect of that word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effect| effect.as_str() == text)
    }
}

/// `effect` for `action` on what `resource` matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// An action, a capability, or `*`.
    pub action: String,
    /// A [`Pattern`].
    pub resource: String,
    /// What it says.
    pub effect: Effect,
    /// Resources that it must match; a rule that fails its own examples does not load.
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    pub match_: Vec<String>,
    /// Resources that it must not match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_match: Vec<String>,
}

impl Rule {
    /// A rule without examples.
    pub fn new(effect: Effect, action: impl Into<String>, resource: impl Into<String>) -> Self {
        Self { action: action.into(), resource: resource.into(), effect, match_: Vec::new(), not_match: Vec::new() }
    }

    /// The rule as a capability key of the configuration has it: on every resource.
    pub fn capability(capability: Capability, effect: Effect) -> Self {
        Self::new(effect, capability.as_str(), "*")
    }

    /// Checks the rule by itself, for a sandbox with these mounts; the error begins with the field at fault.
    pub fn validate(&self, mounts: &[String]) -> Result<(), String> {
        self.compile("", mounts)?.check_examples(self, mounts, |_| true)
    }

    /// The same, where the mounts are not known yet. A `not_match` that hangs on which mounts there are is left to
    /// [`Rule::validate`]; every other fault is one whatever the mounts are.
    pub(crate) fn validate_early(&self) -> Result<(), String> {
        let says = |text: &str| text.starts_with("workspace/");
        self.compile("", &[])?.check_examples(self, &[], |example| !says(&self.resource) && !says(example))
    }

    /// Makes the rule ready to be matched; `whose` names its layer.
    pub(super) fn compile(&self, whose: &str, mounts: &[String]) -> Result<Compiled, String> {
        let capability = Capability::parse(&self.action);
        let well_formed = self.action.starts_with(|c: char| c.is_ascii_alphabetic())
            && self.action.len() <= MAX_ACTION_BYTES
            && self.action.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:/".contains(c));
        if self.action != "*" && !well_formed {
            return Err(format!(
                "action: `{}` is no action; accepted: the name of an action, a capability, or `*`",
                self.action.escape_debug()
            ));
        }
        let like_a_capability = ["filesystem_", "memory_"].iter().any(|family| self.action.starts_with(family));
        if like_a_capability && capability.is_none() {
            return Err(format!("action: `{}` is no capability; accepted: {}", self.action, Capability::list()));
        }
        let pattern = Pattern::compile(&self.resource, mounts).map_err(|e| format!("resource: {e}"))?;
        let says = format!("{whose}: {self}").into();
        let folded = (self.effect != Effect::Allow && !pattern.is_every()).then(|| pattern.folded());
        Ok(Compiled { action: self.action.as_str().into(), capability, effect: self.effect, pattern, folded, says })
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.effect.as_str(), self.action, self.resource)
    }
}

/// A rule, ready to be matched.
#[derive(Clone, Debug)]
pub(super) struct Compiled {
    pub(super) action: Box<str>,
    pub(super) capability: Option<Capability>,
    pub(super) effect: Effect,
    pub(super) pattern: Pattern,
    /// The same for folded names, of a rule that forbids something.
    pub(super) folded: Option<Pattern>,
    /// Its text, for records.
    pub(super) says: Box<str>,
}

impl Compiled {
    /// Whether it speaks of `action` done with `capability`. Of `read_secret` speaks only what names it.
    pub(super) fn names(&self, action: &str, capability: Option<Capability>) -> bool {
        if *self.action == *action {
            return true;
        }
        action != READ_SECRET && (self.any() || self.capability.is_some() && self.capability == capability)
    }

    /// Whether its action is `*`.
    pub(super) fn any(&self) -> bool {
        &*self.action == "*"
    }

    /// Whether, standing later in the same layer, it leaves `earlier` nothing to say.
    pub(super) fn shadows(&self, earlier: &Self) -> bool {
        (self.pattern.is_every() || self.pattern.as_str() == earlier.pattern.as_str())
            && (self.action == earlier.action || self.any() && &*earlier.action != READ_SECRET)
    }

    fn check_examples(&self, rule: &Rule, mounts: &[String], not_match: impl Fn(&str) -> bool) -> Result<(), String> {
        let hits = |example: &str| self.pattern.matches(&Resource::parse(example, mounts));
        if let Some(example) = rule.match_.iter().find(|example| !hits(example)) {
            return Err(format!("match: `{example}` is not matched by `{}`", rule.resource));
        }
        if let Some(example) = rule.not_match.iter().find(|example| not_match(example) && hits(example)) {
            return Err(format!("not_match: `{example}` is matched by `{}`", rule.resource));
        }
        Ok(())
    }

    /// Why it can never match, as far as its own text shows it.
    pub(super) fn never_matches(&self, mounts: &[String]) -> Option<String> {
        if let Some((_, asked)) = ASKED_AS.iter().find(|(tool, _)| *tool == &*self.action) {
            return Some(format!("the tool `{}` asks as `{asked}`", self.action));
        }
        let text = self.pattern.as_str();
        if &*self.action == EXTERNAL_DIRECTORY {
            let matched = mounts.iter().any(|mount| self.pattern.matches(&Resource::text(mount)));
            return (!matched).then(|| format!("`{text}` matches the name of no mount"));
        }
        let first = text.split_once('/').map(|(first, _)| first)?;
        let has = |mount: &String| mount.split('/').next() == Some(first);
        (USUAL_MOUNTS.contains(&first) && !mounts.iter().any(has)).then(|| {
            format!("`{first}` is no mount here; a folder of that name in the workspace is `workspace/{first}`")
        })
    }

    /// Whether its action is one letter or two away from a built-in one: most likely a slip of the pen.
    pub(super) fn resembles(&self) -> Option<&'static str> {
        let known = || BUILT_IN_ACTIONS.iter().map(|(name, _)| *name).chain(Capability::ALL.iter().map(|c| c.as_str()));
        if self.any() || known().any(|name| *name == *self.action) {
            return None;
        }
        known().find(|name| distance(name, &self.action) <= 2)
    }
}

/// The action of reading a file whose name says that it holds secrets.
pub const READ_SECRET: &str = "read_secret";
/// The action of entering one of the user's own mounts; its resource is the mount's name.
pub const EXTERNAL_DIRECTORY: &str = "external_directory";

/// Tools whose action is not their name.
const ASKED_AS: [(&str, &str); 3] = [("write_file", "edit"), ("edit_file", "edit"), ("apply_patch", "edit")];

/// The action that calls of the tool of that name ask for.
pub fn action_of_tool(tool: &str) -> &str {
    ASKED_AS.iter().find(|(name, _)| *name == tool).map_or(tool, |(_, action)| action)
}

/// First components of the mounts that a run usually has.
const USUAL_MOUNTS: [&str; 3] = ["deliverables", "artifacts", "skills"];

/// How many letters must be changed, added or left out to make `a` of `b`.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(b.bytes()) {
            let here = (diagonal + usize::from(x != y)).min(left + 1).min(*cell + 1);
            diagonal = std::mem::replace(cell, here);
            left = here;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

/// Files that hold secrets, by their whole name.
const SECRET_NAMES: &[&str] = &[
    ".boto",
    ".dockercfg",
    ".env",
    ".envrc",
    ".git-credentials",
    ".htpasswd",
    ".my.cnf",
    ".netrc",
    ".npmrc",
    ".pgpass",
    ".pypirc",
    ".s3cfg",
    ".terraformrc",
    ".vault-token",
    "_netrc",
    "application_default_credentials.json",
    "credentials.tfrc.json",
    "id_dsa",
    "id_ecdsa",
    "id_ecdsa_sk",
    "id_ed25519",
    "id_ed25519_sk",
    "id_rsa",
    "secring.gpg",
];
/// The same, by what follows the last dot: private keys and the stores that hold them.
const SECRET_EXTENSIONS: &[&str] = &["jks", "kdbx", "key", "keystore", "p12", "pem", "pfx", "pkcs12", "ppk"];
/// Folders in which every file is one.
const SECRET_FOLDERS: &[&str] = &[".aws", ".azure", ".gnupg", ".kube", ".password-store", ".ssh"];
/// Files that hold secrets where their folder has this name.
const SECRET_PAIRS: &[(&str, &str)] = &[
    (".cargo", "credentials"),
    (".cargo", "credentials.toml"),
    (".docker", "config.json"),
    (".gem", "credentials"),
    ("gcloud", "credentials.db"),
    ("gh", "hosts.yml"),
];

/// Whether the name says that the file holds secrets: `rel` is a path beneath a mount, and case counts.
///
/// `.env` and `.env.*` (but not `.env.example`), private keys and key stores, the credential files of the usual tools, and all
/// in `.ssh/`, `.aws/` and the like. The content is not looked at.
pub fn is_secret(rel: &[u8]) -> bool {
    let mut folder: &[u8] = &[];
    let mut rest = rel;
    loop {
        let (name, after) = match memchr::memchr(b'/', rest) {
            Some(slash) => (rest.get(..slash).unwrap_or_default(), rest.get(slash + 1..)),
            None => (rest, None),
        };
        if name.first() == Some(&b'.') && SECRET_FOLDERS.iter().any(|known| known.as_bytes() == name) {
            return true;
        }
        let Some(after) = after else { return is_secret_name(folder, name) };
        (folder, rest) = (name, after);
    }
}

fn is_secret_name(folder: &[u8], name: &[u8]) -> bool {
    let extension = memchr::memrchr(b'.', name).and_then(|dot| name.get(dot + 1..)).unwrap_or_default();
    SECRET_EXTENSIONS.iter().any(|known| known.as_bytes() == extension)
        || SECRET_NAMES.iter().any(|known| known.as_bytes() == name)
        || name.starts_with(b".env.") && name != b".env.example"
        || SECRET_PAIRS.iter().any(|(parent, known)| parent.as_bytes() == folder && known.as_bytes() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets() {
        for secret in [
            ".env",
            "a/.env",
            ".env.local",
            ".env.production",
            "id_rsa",
            "keys/id_ed25519",
            "x.pem",
            "a/b.key",
            "x.p12",
            "x.pfx",
            ".ssh/config",
            "home/.ssh/known_hosts",
            ".ssh",
            ".aws/credentials",
            ".netrc",
            ".git-credentials",
            ".pypirc",
            ".npmrc",
            ".docker/config.json",
            "a/.kube/config",
            ".cargo/credentials.toml",
            ".env.example.bak",
        ] {
            assert!(is_secret(secret.as_bytes()), "{secret}");
        }
        for plain in [
            "",
            ".env.example",
            ".environment",
            "env",
            "x.env",
            "id_rsa.pub",
            "pem",
            "keys",
            "a.keys",
            "README.md",
            "ssh/config",
            ".ENV",
            "config.json",
            "credentials",
            "src/key.rs",
            ".envoy",
            "xid_rsa",
        ] {
            assert!(!is_secret(plain.as_bytes()), "{plain}");
        }
        assert!(is_secret(b"\xff/.env"));
    }

    #[test]
    fn effects_are_ordered_by_strictness() {
        assert!(Effect::Allow < Effect::Ask && Effect::Ask < Effect::Deny);
        for effect in Effect::ALL {
            assert_eq!(Effect::parse(effect.as_str()), Some(effect));
        }
        assert_eq!(Effect::parse("Allow"), None);
    }

    #[test]
    fn a_rule_is_checked_by_itself() {
        let rule = Rule {
            match_: vec!["private/k".into()],
            not_match: vec!["a".into()],
            ..Rule::new(Effect::Deny, "*", "private/**")
        };
        assert_eq!(rule.validate(&[]), Ok(()));
        let fails = |action: &str, resource: &str, hit: &str, miss: &str| {
            let list = |text: &str| if text.is_empty() { Vec::new() } else { vec![text.to_owned()] };
            Rule { match_: list(hit), not_match: list(miss), ..Rule::new(Effect::Deny, action, resource) }
                .validate(&[])
                .unwrap_err()
        };
        assert_eq!(fails("*", "private/**", "public/k", ""), "match: `public/k` is not matched by `private/**`");
        assert_eq!(fails("*", "private/**", "", "private/k"), "not_match: `private/k` is matched by `private/**`");
        assert!(
            fails("filesystem_reed", "*", "", "")
                .starts_with("action: `filesystem_reed` is no capability; accepted: filesystem_read,")
        );
        assert!(fails("read*", "*", "", "").starts_with("action: `read*` is no action"));
        assert!(fails("read_file", "a/[", "", "").starts_with("resource: `[` is not closed"));
    }

    #[test]
    fn examples_that_hang_on_the_mounts_wait_for_them() {
        let docs = ["docs".to_owned()];
        let rule = Rule { not_match: vec!["workspace/docs/a".into()], ..Rule::new(Effect::Deny, "*", "docs/**") };
        assert_eq!((rule.validate_early(), rule.validate(&docs)), (Ok(()), Ok(())));
        assert!(rule.validate(&[]).is_err());
        let rule = Rule { not_match: vec!["docs/a".into()], ..Rule::new(Effect::Deny, "*", "workspace/docs/**") };
        assert_eq!((rule.validate_early(), rule.validate(&docs)), (Ok(()), Ok(())));
        let rule = Rule { not_match: vec!["docs/a".into()], ..Rule::new(Effect::Deny, "*", "docs/**") };
        assert!(rule.validate_early().is_err());
    }

    #[test]
    fn distance_counts_letters() {
        assert_eq!(distance("read_file", "read_file"), 0);
        assert_eq!(distance("read_file", "read_fil"), 1);
        assert_eq!(distance("edit", "edits"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("shell", "shlel"), 2);
    }
}
