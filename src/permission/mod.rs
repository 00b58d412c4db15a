//! Who may do what to which resource: the [`Policy`], merged from four layers, and the [`Decision`] on one request.
//!
//! A call asks for its **action** and its **capabilities** on a **resource**. In one layer the last rule that matches speaks;
//! across layers the strictest word wins; where no layer speaks the defaults hold. A skill's word counts only where it is
//! stricter than what holds without it. Nothing here opens a file: a decision needs the name and nothing else.

mod decision;
pub mod grant;
mod layers;
mod pattern;
mod rule;

pub use self::decision::{Decision, Layer, PermissionResult};
pub use self::layers::{Layers, Policy};
pub(crate) use self::pattern::fold;
pub use self::pattern::{MAX_PATTERN_BYTES, Pattern, Resource};
pub use self::rule::{EXTERNAL_DIRECTORY, Effect, READ_SECRET, Rule, action_of_tool, is_secret};

use serde::{Deserialize, Serialize};

/// What a tool is able to do to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Names and contents of files.
    FilesystemRead,
    /// Creating and replacing files.
    FilesystemWrite,
    /// Removing and moving files.
    FilesystemDelete,
    /// Running commands.
    Shell,
    /// Reaching other machines.
    Network,
    /// Adding to memory.
    MemoryWrite,
}

impl Capability {
    /// Every capability, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::FilesystemRead,
        Self::FilesystemWrite,
        Self::FilesystemDelete,
        Self::Shell,
        Self::Network,
        Self::MemoryWrite,
    ];

    /// The word in configuration and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FilesystemRead => "filesystem_read",
            Self::FilesystemWrite => "filesystem_write",
            Self::FilesystemDelete => "filesystem_delete",
            Self::Shell => "shell",
            Self::Network => "network",
            Self::MemoryWrite => "memory_write",
        }
    }

    /// The capability of that word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|capability| capability.as_str() == text)
    }

    /// What holds where no layer speaks, and the text of a rule that would say so.
    fn default_effect(self) -> (Effect, Option<&'static str>) {
        match self {
            Self::FilesystemRead | Self::FilesystemWrite | Self::MemoryWrite => (Effect::Allow, None),
            Self::FilesystemDelete => (Effect::Deny, Some("default: deny filesystem_delete *")),
            Self::Shell => (Effect::Deny, Some("default: deny shell *")),
            Self::Network => (Effect::Deny, Some("default: deny network *")),
        }
    }

    /// The words, for messages.
    pub(crate) fn list() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

/// The actions of the built-in tools and the capabilities that each takes.
pub const BUILT_IN_ACTIONS: &[(&str, &[Capability])] = &[
    ("read_file", &[Capability::FilesystemRead]),
    (READ_SECRET, &[Capability::FilesystemRead]),
    ("list_files", &[Capability::FilesystemRead]),
    ("glob_files", &[Capability::FilesystemRead]),
    ("grep_files", &[Capability::FilesystemRead]),
    ("edit", &[Capability::FilesystemWrite]),
    (EXTERNAL_DIRECTORY, &[]),
    ("list_skills", &[]),
    ("load_skill", &[]),
    ("recall_memory", &[]),
    ("write_memory", &[Capability::MemoryWrite]),
    ("run_command", &[Capability::Shell]),
    ("web_fetch", &[Capability::Network]),
    ("web_search", &[Capability::Network]),
];

/// The capabilities that `action` takes: a capability's own name takes that one, an unknown action takes none.
pub fn capabilities_of(action: &str) -> &'static [Capability] {
    if let Some((_, capabilities)) = BUILT_IN_ACTIONS.iter().find(|(name, _)| *name == action) {
        return capabilities;
    }
    let all: &'static [Capability] = &Capability::ALL;
    let own = all.iter().position(|capability| capability.as_str() == action);
    own.and_then(|at| all.get(at..=at)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::KgentError;

    fn mounts() -> Vec<String> {
        ["workspace", "docs"].map(str::to_owned).to_vec()
    }

    fn policy(layers: Layers) -> Policy {
        Policy::merge(layers, &mounts()).unwrap()
    }

    fn config(rules: &[(Effect, &str, &str)]) -> Policy {
        let config = rules.iter().map(|(effect, action, resource)| Rule::new(*effect, *action, *resource)).collect();
        policy(Layers { config, ..Layers::default() })
    }

    fn effect(policy: &Policy, action: &str, capabilities: &[Capability], path: &str) -> Effect {
        policy.decide(action, capabilities, &Resource::parse(path, policy.mounts())).effect
    }

    use Capability::{FilesystemDelete, FilesystemRead, FilesystemWrite, Shell};
    use Effect::{Allow, Ask, Deny};

    /// The five rules, said as they are written: runtime denies win; sandbox constraints win over the configuration;
    /// the configuration can enable; a skill can only narrow; what destroys or reaches out is off by default.
    fn five_rules(capability: Capability, [runtime, sandbox, config, skill]: [Option<Effect>; 4]) -> Effect {
        let off_by_default = matches!(capability.as_str(), "filesystem_delete" | "shell" | "network");
        let nobody_spoke = runtime.is_none() && sandbox.is_none() && config.is_none();
        if runtime == Some(Deny) || sandbox == Some(Deny) || config == Some(Deny) || skill == Some(Deny) {
            return Deny;
        }
        if nobody_spoke && off_by_default {
            return Deny;
        }
        if runtime == Some(Ask) || sandbox == Some(Ask) || config == Some(Ask) || skill == Some(Ask) {
            return Ask;
        }
        Allow
    }

    #[test]
    fn every_combination_of_four_layers_follows_the_five_rules() {
        let words = [None, Some(Allow), Some(Deny), Some(Ask)];
        let mut seen = 0;
        for capability in Capability::ALL {
            for combination in 0..256_usize {
                let spoken = [0, 2, 4, 6].map(|shift| words[combination >> shift & 3]);
                let rules = spoken.map(|word| {
                    word.map(|effect| Rule::capability(capability, effect)).into_iter().collect::<Vec<_>>()
                });
                let [runtime, sandbox, config, skill] = rules;
                let policy = policy(Layers { runtime, sandbox, config, skills: vec![("s".to_owned(), skill)] });
                let expected = five_rules(capability, spoken);
                for path in ["a", "docs/b/c"] {
                    assert_eq!(effect(&policy, "any_tool", &[capability], path), expected, "{capability:?} {spoken:?}");
                }
                assert_eq!(policy.effect(capability.as_str()), expected, "{capability:?} {spoken:?}");
                assert_eq!(policy.allows(capability), expected == Allow);
                assert_eq!(policy.offered("any_tool", &[capability]), expected != Deny, "{capability:?} {spoken:?}");
                for other in Capability::ALL.into_iter().filter(|other| *other != capability) {
                    assert_eq!(
                        policy.effect(other.as_str()),
                        five_rules(other, [None; 4]),
                        "{capability:?} touches {other:?}"
                    );
                    assert_eq!(effect(&policy, "any_tool", &[other], "a"), five_rules(other, [None; 4]));
                }
                seen += 1;
            }
        }
        assert_eq!(seen, 6 * 256);
    }

    #[test]
    fn the_last_match_in_a_layer_speaks() {
        let policy = config(&[(Deny, "filesystem_read", "*"), (Allow, "read_file", "docs/**"), (Ask, "*", "docs/x")]);
        assert_eq!(effect(&policy, "read_file", &[FilesystemRead], "a"), Deny);
        assert_eq!(effect(&policy, "read_file", &[FilesystemRead], "docs/a"), Allow);
        assert_eq!(effect(&policy, "read_file", &[FilesystemRead], "docs/x"), Ask);
        assert_eq!(effect(&policy, "list_files", &[FilesystemRead], "docs/a"), Deny);
        let decision = policy.decide("list_files", &[FilesystemRead], &Resource::path("docs", b"a"));
        assert_eq!((decision.layer, decision.rule), (Layer::Config, Some("config: deny filesystem_read *")));
    }

    #[test]
    fn a_rule_on_one_capability_lifts_nothing_of_another() {
        let policy = config(&[(Allow, "filesystem_write", "*")]);
        assert_eq!(effect(&policy, "move_file", &[FilesystemWrite, FilesystemDelete], "a"), Deny);
        assert_eq!(effect(&policy, "move_file", &[FilesystemDelete, FilesystemWrite], "a"), Deny);
        assert_eq!(effect(&policy, "filesystem_delete", &[], "a"), Deny);
    }

    #[test]
    fn defaults_name_themselves() {
        let policy = policy(Layers::default());
        let decision = policy.decide("run_command", &[Shell], &Resource::text("ls"));
        assert_eq!(decision, Decision { effect: Deny, layer: Layer::Default, rule: Some("default: deny shell *") });
        let decision = policy.decide("read_file", &[FilesystemRead], &Resource::path("workspace", b"a"));
        assert_eq!(decision, Decision { effect: Allow, layer: Layer::Default, rule: None });
        let decision = policy.decide_or(Ask, "plugin_tool", &[], &Resource::text("x"));
        assert_eq!((decision.effect, decision.layer), (Ask, Layer::Default));
        assert_eq!(
            config(&[(Allow, "plugin_tool", "*")]).decide_or(Ask, "plugin_tool", &[], &Resource::text("x")).effect,
            Allow
        );
    }

    #[test]
    fn a_skill_asks_or_narrows_and_never_grants() {
        let skill = |rules: &[(Effect, &str)]| {
            let rules = rules.iter().map(|(effect, action)| Rule::new(*effect, *action, "*")).collect();
            policy(Layers { skills: vec![("csv".to_owned(), rules)], ..Layers::default() })
        };
        let asks = skill(&[(Allow, "run_command"), (Allow, "read_secret"), (Ask, "shell")]);
        assert_eq!(effect(&asks, "run_command", &[Shell], "ls"), Deny);
        assert_eq!(asks.decide("run_command", &[Shell], &Resource::text("ls")).layer, Layer::Default);
        assert_eq!(asks.check("read_file", ".env").effect, Deny);
        assert_eq!(
            asks.requested().map(|(id, rule)| (id, rule.action.as_str())).collect::<Vec<_>>(),
            [("csv", "run_command"), ("csv", "read_secret")]
        );
        let narrows = skill(&[(Deny, "edit")]);
        let decision = narrows.decide("edit", &[FilesystemWrite], &Resource::path("workspace", b"a"));
        assert_eq!(
            (decision.effect, decision.layer, decision.rule),
            (Deny, Layer::Skill, Some("skill csv: deny edit *"))
        );
        assert!(!narrows.offered("edit", &[FilesystemWrite]));
    }

    #[test]
    fn no_wildcard_and_no_capability_lifts_a_secret() {
        let blanket =
            [(Allow, "*", "*"), (Allow, "filesystem_read", "*"), (Allow, "read_file", ".env"), (Ask, "*", ".env")];
        let read = |policy: &Policy, path: &str| policy.check("read_file", path).effect;
        assert_eq!(read(&config(&blanket), ".env"), Deny);
        assert_eq!(read(&config(&blanket[..3]), "a/.ssh/config"), Deny);
        assert_eq!(read(&config(&blanket[..3]), ".env.example"), Allow);
        let named = config(&[(Allow, "read_secret", "*.pem"), (Deny, "*", "private/**")]);
        assert_eq!(read(&named, "a.pem"), Allow);
        assert_eq!(read(&named, "private/a.pem"), Deny);
        assert_eq!(read(&named, ".env"), Deny);
        assert_eq!(named.effect("read_secret"), Deny);
        let decision = policy(Layers::default()).check("read_file", ".env");
        assert_eq!((decision.layer, decision.rule.as_deref()), (Layer::Default, Some("default: deny read_secret *")));
        let runtime = vec![Rule::new(Deny, "read_secret", "*")];
        let both = policy(Layers { runtime, config: vec![Rule::new(Allow, "read_secret", "*")], ..Layers::default() });
        assert_eq!(read(&both, "a.pem"), Deny);
    }

    #[test]
    fn a_tool_is_offered_unless_its_last_rule_denies_everything() {
        let offered = |rules: &[(Effect, &str, &str)]| config(rules).offered("edit", &[FilesystemWrite]);
        assert!(offered(&[]));
        assert!(!offered(&[(Deny, "edit", "*")]));
        assert!(!offered(&[(Deny, "*", "*")]));
        assert!(!offered(&[(Allow, "edit", "a/**"), (Deny, "filesystem_write", "*")]));
        assert!(offered(&[(Deny, "edit", "*"), (Allow, "edit", "a/**")]));
        assert!(offered(&[(Deny, "edit", "**")]), "only exactly `*` takes a tool from the catalog");
        assert!(offered(&[(Deny, "read_file", "*"), (Ask, "edit", "*")]));
        let shell = |rules: &[(Effect, &str, &str)]| config(rules).offered("run_command", &[Shell]);
        assert!(!shell(&[]));
        assert!(!shell(&[(Deny, "run_command", "rm")]));
        assert!(shell(&[(Ask, "run_command", "ls")]));
    }

    #[test]
    fn check_judges_the_path_as_written() {
        let policy = config(&[
            (Deny, "read_file", "private/**"),
            (Deny, "external_directory", "docs"),
            (Deny, "write_memory", "team/**"),
        ]);
        let allowed = |action: &str, resource: &str| policy.check(action, resource).allowed;
        assert!(!allowed("read_file", "private/k"));
        assert!(!allowed("read_file", "./private//k"));
        assert!(!allowed("read_file", "workspace/private/k"));
        assert!(allowed("read_file", "docs/private/k"));
        assert!(allowed("list_files", "private"));
        assert!(!allowed("external_directory", "docs"));
        assert!(!allowed("write_memory", "team/a"));
        assert!(!allowed("write_memory", "team"), "`d/**` includes `d`");
        assert!(allowed("write_memory", "teams"));
        for outside in ["a/../private/k", "/etc/passwd", "~/x"] {
            let result = policy.check("read_file", outside);
            assert_eq!((result.allowed, result.error.unwrap().code.as_str()), (false, "invalid_args"));
        }
    }

    #[test]
    fn what_can_never_match_is_reported() {
        let warnings = |rules: &[(Effect, &str, &str)]| config(rules).warnings();
        assert_eq!(
            warnings(&[(Deny, "read_file", "docs/**"), (Deny, "edit", "*.lock"), (Allow, "word_count", "*")]),
            [""; 0]
        );
        assert_eq!(
            warnings(&[(Deny, "write_file", "*")]),
            ["`config: deny write_file *` never matches: the tool `write_file` asks as `edit`"]
        );
        assert_eq!(
            warnings(&[(Deny, "edit", "a"), (Allow, "edit", "*")]),
            ["`config: deny edit a` never speaks: the later `config: allow edit *` does"]
        );
        assert_eq!(warnings(&[(Allow, "read_secret", "a"), (Allow, "*", "*")]), [""; 0]);
        assert!(warnings(&[(Deny, "edit", "artifacts/**")])[0].contains("`artifacts` is no mount here"));
        assert!(warnings(&[(Deny, "external_directory", "dosc")])[0].contains("the name of no mount"));
        assert!(warnings(&[(Deny, "read_fil", "*")])[0].contains("is `read_file` meant?"));
    }

    #[test]
    fn a_policy_that_fails_its_own_examples_does_not_load() {
        let rule = Rule { match_: vec!["b".into()], ..Rule::new(Deny, "edit", "a/**") };
        let failed = |layers| Policy::merge(layers, &mounts()).unwrap_err();
        assert_eq!(
            failed(Layers { config: vec![Rule::new(Deny, "edit", "x"), rule.clone()], ..Layers::default() }),
            KgentError::Config("config: rule 2 (`deny edit a/**`): match: `b` is not matched by `a/**`".to_owned())
        );
        assert_eq!(
            failed(Layers { skills: vec![("csv".into(), vec![rule])], ..Layers::default() }).to_string(),
            "skill csv: rule 1 (`deny edit a/**`): match: `b` is not matched by `a/**`"
        );
    }

    #[test]
    fn explain_is_a_table() {
        let layers = Layers {
            config: vec![Rule::capability(FilesystemDelete, Ask), Rule::new(Deny, "read_file", "private/**")],
            skills: vec![("csv".into(), vec![Rule::new(Allow, "run_command", "*")])],
            ..Layers::default()
        };
        let text = policy(layers).explain();
        assert_eq!(
            text,
            "Holds everywhere, unless a rule below says otherwise for a resource:
  name                effect  layer    rule
  filesystem_read     allow   default
  filesystem_write    allow   default
  filesystem_delete   ask     config   config: ask filesystem_delete *
  shell               deny    default  default: deny shell *
  network             deny    default  default: deny network *
  memory_write        allow   default
  read_secret         deny    default  default: deny read_secret *
  external_directory  allow   default

Rules; in a layer the last match speaks, across layers the strictest:
  config: ask filesystem_delete *
  config: deny read_file private/**
  skill csv: allow run_command *

Asked for by skills, not granted:
  skill csv: run_command *

Mounts: workspace, docs
"
        );
    }

    #[test]
    fn words_are_words() {
        for capability in Capability::ALL {
            assert_eq!(Capability::parse(capability.as_str()), Some(capability));
            assert_eq!(serde_json::to_value(capability).unwrap(), capability.as_str());
            assert_eq!(capabilities_of(capability.as_str()), [capability]);
        }
        assert_eq!(capabilities_of("edit"), [FilesystemWrite]);
        assert_eq!(capabilities_of("word_count"), []);
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let action = prop::sample::select(vec![
            "*",
            "edit",
            "read_file",
            "read_secret",
            "filesystem_read",
            "filesystem_delete",
            "shell",
        ]);
        let resource =
            prop::sample::select(vec!["*", "**", "a/**", "*.pem", "docs/**", "a/b", "workspace/docs/*", "?"]);
        (prop::sample::select(Effect::ALL.to_vec()), action, resource)
            .prop_map(|(effect, action, resource)| Rule::new(effect, action, resource))
    }

    fn any_rules() -> impl Strategy<Value = Vec<Rule>> {
        prop::collection::vec(any_rule(), 0..4)
    }

    fn any_layers() -> impl Strategy<Value = Layers> {
        let skills = prop::collection::vec(("[a-c]", any_rules()), 0..3);
        (any_rules(), any_rules(), any_rules(), skills).prop_map(|(runtime, sandbox, config, skills)| Layers {
            runtime,
            sandbox,
            config,
            skills,
        })
    }

    /// What a policy answers to every request of a small world.
    fn answers(policy: &Policy) -> Vec<Effect> {
        let mut answers = Vec::new();
        for path in [".", "a", "a/b", "a/k.pem", "docs", "docs/x", "docs/k.pem", "workspace/docs/x"] {
            let resource = Resource::parse(path, policy.mounts());
            for action in ["edit", "read_file", "read_secret", "word_count"] {
                for capabilities in [&[][..], &[FilesystemRead], &[FilesystemDelete, FilesystemWrite], &[Shell]] {
                    answers.push(policy.decide(action, capabilities, &resource).effect);
                }
                answers.push(policy.decide_read(action, &resource).effect);
            }
        }
        answers.extend(Capability::ALL.map(|capability| policy.effect(capability.as_str())));
        answers
    }

    fn never_wider(before: &Policy, after: &Policy) -> bool {
        answers(before).into_iter().zip(answers(after)).all(|(before, after)| after >= before)
    }

    proptest! {
        #[test]
        fn adding_a_deny_anywhere_never_widens(layers in any_layers(), rule in any_rule(), layer in 0..4_usize, at in 0..4_usize) {
            let before = policy(layers.clone());
            let rule = Rule { effect: Deny, ..rule };
            let mut layers = layers;
            if layers.skills.is_empty() {
                layers.skills.push(("a".to_owned(), Vec::new()));
            }
            let rules = match layer {
                0 => &mut layers.runtime,
                1 => &mut layers.sandbox,
                2 => &mut layers.config,
                _ => &mut layers.skills[0].1,
            };
            rules.insert(at.min(rules.len()), rule);
            prop_assert!(never_wider(&before, &policy(layers)));
        }

        #[test]
        fn adding_a_skill_never_widens(layers in any_layers(), rules in any_rules()) {
            let before = policy(layers.clone());
            let mut layers = layers;
            layers.skills.push(("new".to_owned(), rules));
            prop_assert!(never_wider(&before, &policy(layers)));
        }

        #[test]
        fn the_order_of_skills_does_not_matter(layers in any_layers()) {
            let mut turned = layers.clone();
            turned.skills.reverse();
            let (one, other) = (policy(layers), policy(turned));
            prop_assert_eq!(&one, &other);
            prop_assert_eq!(answers(&one), answers(&other));
            prop_assert_eq!(one.explain(), other.explain());
        }

        #[test]
        fn serialise_and_load_is_identity(layers in any_layers()) {
            let policy = policy(layers);
            let text = serde_json::to_string(&policy).unwrap();
            let loaded: Policy = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&loaded, &policy);
            prop_assert_eq!(answers(&loaded), answers(&policy));
            prop_assert_eq!(serde_json::to_string(&loaded).unwrap(), text);
        }

        #[test]
        fn blanket_allows_never_lift_a_secret(layers in any_layers()) {
            let mut layers = layers;
            for rules in [&mut layers.runtime, &mut layers.sandbox, &mut layers.config] {
                rules.retain(|rule| rule.action != READ_SECRET);
                rules.push(Rule::new(Allow, "*", "*"));
            }
            layers.skills.push(("s".to_owned(), vec![Rule::new(Allow, READ_SECRET, "*")]));
            prop_assert_eq!(policy(layers).decide_read("read_file", &Resource::path("workspace", b"a/k.pem")).effect, Deny);
        }

        #[test]
        fn a_runtime_deny_always_wins(layers in any_layers(), action in prop::sample::select(vec!["edit", "read_file", "word_count"])) {
            let mut layers = layers;
            layers.runtime.push(Rule::new(Deny, action, "a/**"));
            let policy = policy(layers);
            let decision = policy.decide(action, capabilities_of(action), &Resource::path("workspace", b"a/b"));
            prop_assert_eq!((decision.effect, decision.layer), (Deny, Layer::Runtime));
        }
    }

    #[test]
    fn stored_policies_are_checked_like_configuration() {
        let load = |text: &str| serde_json::from_str::<Policy>(text).unwrap_err().to_string();
        assert!(
            load(r#"{"mounts":["workspace"],"layers":{"config":[{"action":"edit","resource":"[","effect":"deny"}]}}"#)
                .contains("is not closed")
        );
        assert!(load(r#"{"mounts":[],"layers":{"runtme":[]}}"#).contains("unknown field"));
        assert!(
            load(r#"{"mounts":[],"layers":{"config":[{"action":"edit","resource":"*","effect":"maybe"}]}}"#)
                .contains("unknown variant")
        );
    }
}
