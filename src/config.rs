//! [`ToolsConfig`]: the host's `kgent.toml`, or a dict of the same shape, read strictly.
//!
//! Every key is optional. What is not understood is refused, naming the file, the line, the dotted key and what is
//! accepted: a misspelt deny must not load as no deny.

use std::time::Duration;

use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toml::de::{DeTable, DeValue};

use crate::error::KgentError;
use crate::permission::{Capability, Effect, Pattern, Rule};

/// The longest time that may be set for a call or a client, in seconds: a week.
const MAX_SECONDS: f64 = 604_800.0;

/// The configuration of a run and of its policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ToolsConfig {
    /// `[permissions]`.
    pub permissions: PermissionsConfig,
    /// `[sandbox]`.
    pub sandbox: SandboxConfig,
    /// `[memory]`.
    pub memory: MemoryConfig,
    /// `[skills]`.
    pub skills: SkillsConfig,
    /// `[limits]`.
    pub limits: Limits,
    /// `[records]`.
    pub records: RecordsConfig,
}

/// `[permissions]`: the configuration's layer of the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermissionsConfig {
    /// The capability keys that are set, in the order of [`Capability::ALL`].
    pub capabilities: Vec<(Capability, Effect)>,
    /// The list `rules`.
    pub rules: Vec<Rule>,
}

/// `[sandbox]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SandboxConfig {
    /// Patterns of what no tool may change.
    pub read_only: Vec<String>,
    /// Patterns of what no tool may see.
    pub hidden: Vec<String>,
    /// Whether regular files with more than one link may be opened.
    pub hard_links: HardLinks,
    /// Whether a file must have been read before it is replaced or edited.
    pub require_read_before_write: bool,
}

/// `[memory]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryConfig {
    /// Where `write_memory` goes.
    pub write_mode: WriteMode,
    /// `package.module:factory`, for hosts that have no client object to pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// How long a client may take, in seconds.
    pub timeout_s: f64,
}

/// `[skills]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkillsConfig {
    /// Folders to look for skills in; none by default.
    pub roots: Vec<String>,
    /// How many skills a run may load.
    pub max_skills: usize,
    /// How many characters all loaded skills may have together.
    pub max_characters: usize,
}

/// `[records]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordsConfig {
    /// What a record must survive.
    pub durability: Durability,
    /// How records guard against change.
    pub audit: Audit,
    /// The file whose bytes are the key of a chain: outside every mount and run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_key_file: Option<String>,
    /// Regular expressions of values that no record shows.
    pub redact: Vec<String>,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self { write_mode: WriteMode::default(), client: None, timeout_s: 10.0 }
    }
}

impl Default for SkillsConfig {
    fn default() -> Self {
        Self { roots: Vec::new(), max_skills: 8, max_characters: 100_000 }
    }
}

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident $word:literal),* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum $name { $($(#[$variant_doc])* $variant),* }

        impl $name {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),*];

            /// The word in configuration.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }
    )*};
}

words! {
    /// Whether hard links are opened.
    HardLinks {
        /// As any other file.
        #[default]
        Allow "allow",
        /// A regular file with more than one link is refused.
        Deny "deny"
    }
    /// Where `write_memory` goes.
    WriteMode {
        /// The tool is not offered.
        Disabled "disabled",
        /// To this run's candidates, which nobody has reviewed.
        #[default]
        Candidate "candidate",
        /// To the memory client.
        External "external"
    }
    /// What a record must survive.
    Durability {
        /// The death of the process.
        #[default]
        Process "process",
        /// The loss of power.
        Power "power"
    }
    /// How records guard against change.
    Audit {
        /// Not at all.
        #[default]
        Plain "plain",
        /// Each line with a MAC over itself and the one before.
        Chained "chained"
    }
}

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:literal up to $max:literal;)*) => {
        /// `[limits]`: what a call may use. Each is at least 1.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        pub struct Limits {
            $($(#[$doc])* pub $name: $type,)*
            /// How long a call may take, in seconds.
            pub timeout_s: f64,
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($name: $default,)* timeout_s: 120.0 }
            }
        }

        impl Limits {
            fn read(mut table: Table<'_>) -> Result<Self, KgentError> {
                let mut limits = Self::default();
                $(if let Some(field) = table.take(stringify!($name)) {
                    limits.$name = field.whole($max)?;
                })*
                if let Some(field) = table.take("timeout_s") {
                    limits.timeout_s = field.seconds()?;
                }
                table.finish()?;
                Ok(limits)
            }
        }
    };
}

limits! {
    /// Lines that a model sees of one result.
    max_output_lines: usize = 2000 up to 1_000_000;
    /// Bytes that a model sees of one result.
    max_output_bytes: usize = 51_200 up to 67_108_864;
    /// Bytes of one file that a call may hold.
    max_file_bytes: u64 = 67_108_864 up to 68_719_476_736;
    /// Entries, paths or matches in one result.
    max_results: usize = 1000 up to 1_000_000;
    /// Bytes of one line in a result.
    max_line_bytes: usize = 2000 up to 1_048_576;
    /// Files that one search may look at.
    max_scan_files: u64 = 1_000_000 up to 1_000_000_000;
    /// Bytes that one search may look at.
    max_scan_bytes: u64 = 17_179_869_184 up to 1_125_899_906_842_624;
    /// Days that an artifact is kept.
    artifact_retention_days: u64 = 7 up to 36_500;
}

impl Limits {
    /// How long a call may take.
    pub fn timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.timeout_s).unwrap_or(Duration::from_secs(120))
    }
}

impl MemoryConfig {
    /// How long a client may take.
    pub fn timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.timeout_s).unwrap_or(Duration::from_secs(10))
    }
}

impl ToolsConfig {
    /// Reads TOML; `file` is the name that messages give.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, KgentError> {
        let source = Source { file, text };
        let table = DeTable::parse(text).map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            KgentError::Config(format!("{}: {}", source.place(Some(at)), e.message().trim_end()))
        })?;
        let at = table.span().start;
        let node = Node { kind: toml_table(table.into_inner()), at: Some(at) };
        Self::read(Field { source: &source, path: String::new(), node })
    }

    /// Reads a dict of the same shape.
    pub fn from_value(value: &Value) -> Result<Self, KgentError> {
        let source = Source { file: "config", text: "" };
        Self::read(Field { source: &source, path: String::new(), node: json(value) })
    }

    /// The configuration as a dict; [`ToolsConfig::from_value`] reads it back unchanged.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The configuration's layer of the policy: the capability keys, then the list; last, what a disabled memory denies.
    pub fn permission_rules(&self) -> Vec<Rule> {
        let keys =
            self.permissions.capabilities.iter().map(|(capability, effect)| Rule::capability(*capability, *effect));
        let disabled = self.memory.write_mode == WriteMode::Disabled;
        let no_memory = disabled.then(|| Rule::capability(Capability::MemoryWrite, Effect::Deny));
        keys.chain(self.permissions.rules.iter().cloned()).chain(no_memory).collect()
    }

    /// Whether regular files with more than one link are refused.
    pub fn denies_hard_links(&self) -> bool {
        self.sandbox.hard_links == HardLinks::Deny
    }

    /// Whether records must survive a loss of power.
    pub fn power_safe(&self) -> bool {
        self.records.durability == Durability::Power
    }

    /// Whether each line of a log carries a MAC over the one before.
    pub fn chained(&self) -> bool {
        self.records.audit == Audit::Chained
    }

    fn read(root: Field<'_>) -> Result<Self, KgentError> {
        let mut config = Self::default();
        let mut table = root.table()?;
        if let Some(field) = table.take("permissions") {
            config.permissions = read_permissions(field.table()?)?;
        }
        if let Some(field) = table.take("sandbox") {
            config.sandbox = read_sandbox(field.table()?)?;
        }
        if let Some(field) = table.take("memory") {
            config.memory = read_memory(field.table()?)?;
        }
        if let Some(field) = table.take("skills") {
            config.skills = read_skills(field.table()?)?;
        }
        if let Some(field) = table.take("limits") {
            config.limits = Limits::read(field.table()?)?;
        }
        if let Some(field) = table.take("records") {
            config.records = read_records(field.table()?)?;
        }
        table.finish()?;
        Ok(config)
    }
}

impl Serialize for PermissionsConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (capability, effect) in &self.capabilities {
            map.serialize_entry(capability, effect)?;
        }
        map.serialize_entry("rules", &self.rules)?;
        map.end()
    }
}

fn read_permissions(mut table: Table<'_>) -> Result<PermissionsConfig, KgentError> {
    let mut permissions = PermissionsConfig::default();
    for capability in Capability::ALL {
        if let Some(field) = table.take(capability.as_str()) {
            permissions.capabilities.push((capability, field.effect_or_flag()?));
        }
    }
    if let Some(field) = table.take("rules") {
        permissions.rules = field.list()?.into_iter().map(read_rule).collect::<Result<_, _>>()?;
    }
    table.finish()?;
    Ok(permissions)
}

fn read_rule(field: Field<'_>) -> Result<Rule, KgentError> {
    let whole = field.here();
    let mut table = field.table()?;
    let action = table.take("action");
    let resource = table.take("resource");
    let effect = table.take("effect");
    let match_ = table.take("match").map(Field::texts).transpose()?.unwrap_or_default();
    let not_match = table.take("not_match").map(Field::texts).transpose()?.unwrap_or_default();
    table.finish()?;
    let (Some(action), Some(resource), Some(effect)) = (action, resource, effect) else {
        return Err(whole.error("lacks a key; a rule has `action`, `resource` and `effect`"));
    };
    let rule = Rule { action: action.text()?, resource: resource.text()?, effect: effect.effect()?, match_, not_match };
    rule.validate_early().map_err(|e| whole.error(&format!("(`{rule}`) fails: {e}")))?;
    Ok(rule)
}

fn read_sandbox(mut table: Table<'_>) -> Result<SandboxConfig, KgentError> {
    let mut sandbox = SandboxConfig::default();
    if let Some(field) = table.take("read_only") {
        sandbox.read_only = field.patterns()?;
    }
    if let Some(field) = table.take("hidden") {
        sandbox.hidden = field.patterns()?;
    }
    if let Some(field) = table.take("hard_links") {
        sandbox.hard_links = field.word(HardLinks::WORDS)?;
    }
    if let Some(field) = table.take("require_read_before_write") {
        sandbox.require_read_before_write = field.flag()?;
    }
    table.finish()?;
    Ok(sandbox)
}

fn read_memory(mut table: Table<'_>) -> Result<MemoryConfig, KgentError> {
    let mut memory = MemoryConfig::default();
    if let Some(field) = table.take("write_mode") {
        memory.write_mode = field.word(WriteMode::WORDS)?;
    }
    if let Some(field) = table.take("client").filter(|field| !matches!(field.node.kind, Kind::Null)) {
        let here = field.here();
        let client = field.text()?;
        let dotted = |text: &str| {
            text.split('.').all(|name| !name.is_empty() && name.chars().all(|c| c == '_' || c.is_alphanumeric()))
        };
        if !client.split_once(':').is_some_and(|(module, factory)| dotted(module) && dotted(factory)) {
            return Err(here.error(&format!("is {}; accepted: \"package.module:factory\"", quoted(&client))));
        }
        memory.client = Some(client);
    }
    if let Some(field) = table.take("timeout_s") {
        memory.timeout_s = field.seconds()?;
    }
    table.finish()?;
    Ok(memory)
}

fn read_skills(mut table: Table<'_>) -> Result<SkillsConfig, KgentError> {
    let mut skills = SkillsConfig::default();
    if let Some(field) = table.take("roots") {
        skills.roots = field.checked_texts(|root| {
            if root.is_empty() || root.contains('\0') { Err("is no path".to_owned()) } else { Ok(()) }
        })?;
    }
    if let Some(field) = table.take("max_skills") {
        skills.max_skills = field.whole(10_000)?;
    }
    if let Some(field) = table.take("max_characters") {
        skills.max_characters = field.whole(100_000_000)?;
    }
    table.finish()?;
    Ok(skills)
}

fn read_records(mut table: Table<'_>) -> Result<RecordsConfig, KgentError> {
    let mut records = RecordsConfig::default();
    if let Some(field) = table.take("durability") {
        records.durability = field.word(Durability::WORDS)?;
    }
    if let Some(field) = table.take("audit") {
        records.audit = field.word(Audit::WORDS)?;
    }
    if let Some(field) = table.take("audit_key_file") {
        if records.audit != Audit::Chained {
            return Err(field.here().error("is only used with `audit = \"chained\"`"));
        }
        records.audit_key_file = Some(field.text()?);
    }
    if let Some(field) = table.take("redact") {
        records.redact = field.checked_texts(|pattern| match regex::Regex::new(pattern) {
            Err(e) => Err(format!("is no regular expression: {e}")),
            Ok(regex) if regex.is_match("") => Err("matches the empty text, so it would redact everything".to_owned()),
            Ok(_) => Ok(()),
        })?;
    }
    table.finish()?;
    Ok(records)
}

/// Where the configuration came from; a dict has no text.
struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl Source<'_> {
    /// The file, and the line where one is known.
    fn place(&self, at: Option<usize>) -> String {
        let Some(at) = at else { return self.file.to_owned() };
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        format!("{}:{}", self.file, 1 + memchr::memchr_iter(b'\n', before).count())
    }
}

/// A value of TOML or JSON and where it stands.
struct Node {
    kind: Kind,
    at: Option<usize>,
}

enum Kind {
    Null,
    Flag(bool),
    Whole(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// Each key with its own place.
    Table(Vec<(String, Option<usize>, Node)>),
    /// What is never accepted.
    Other(&'static str),
}

fn toml_table(table: DeTable<'_>) -> Kind {
    let entry = |(key, value): (toml::Spanned<std::borrow::Cow<'_, str>>, toml::Spanned<DeValue<'_>>)| {
        let at = Some(key.span().start);
        (key.into_inner().into_owned(), at, toml_value(value))
    };
    Kind::Table(table.into_iter().map(entry).collect())
}

fn toml_value(value: toml::Spanned<DeValue<'_>>) -> Node {
    let at = Some(value.span().start);
    let kind = match value.into_inner() {
        DeValue::String(text) => Kind::Text(text.into_owned()),
        DeValue::Integer(whole) => i128::from_str_radix(whole.as_str(), whole.radix())
            .map_or(Kind::Other("an integer that is too large"), Kind::Whole),
        DeValue::Float(float) => float.as_str().parse().map_or(Kind::Other("a number"), Kind::Float),
        DeValue::Boolean(flag) => Kind::Flag(flag),
        DeValue::Datetime(_) => Kind::Other("a date"),
        DeValue::Array(list) => Kind::List(list.into_iter().map(toml_value).collect()),
        DeValue::Table(table) => toml_table(table),
    };
    Node { kind, at }
}

fn json(value: &Value) -> Node {
    let kind = match value {
        Value::Null => Kind::Null,
        Value::Bool(flag) => Kind::Flag(*flag),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(whole), _, _) => Kind::Whole(whole.into()),
            (_, Some(whole), _) => Kind::Whole(whole.into()),
            (_, _, Some(float)) => Kind::Float(float),
            _ => Kind::Other("a number"),
        },
        Value::String(text) => Kind::Text(text.clone()),
        Value::Array(list) => Kind::List(list.iter().map(json).collect()),
        Value::Object(map) => Kind::Table(map.iter().map(|(key, value)| (key.clone(), None, json(value))).collect()),
    };
    Node { kind, at: None }
}

/// A dotted key and its place, for a message.
struct Here<'a> {
    source: &'a Source<'a>,
    path: String,
    at: Option<usize>,
}

impl Here<'_> {
    fn error(&self, what: &str) -> KgentError {
        let name = if self.path.is_empty() { "the configuration".to_owned() } else { format!("`{}`", self.path) };
        KgentError::Config(format!("{}: {name} {what}", self.source.place(self.at)))
    }
}

/// A value under its dotted key.
struct Field<'a> {
    source: &'a Source<'a>,
    path: String,
    node: Node,
}

impl<'a> Field<'a> {
    fn here(&self) -> Here<'a> {
        Here { source: self.source, path: self.path.clone(), at: self.node.at }
    }

    /// The failure of a value of another type or out of range.
    fn refused(&self, accepted: &str) -> KgentError {
        let is = match &self.node.kind {
            Kind::Null => "null".to_owned(),
            Kind::Flag(flag) => flag.to_string(),
            Kind::Whole(whole) => whole.to_string(),
            Kind::Float(float) => float.to_string(),
            Kind::Text(text) => quoted(text),
            Kind::List(_) => "a list".to_owned(),
            Kind::Table(_) => "a table".to_owned(),
            Kind::Other(what) => (*what).to_owned(),
        };
        self.here().error(&format!("is {is}; accepted: {accepted}"))
    }

    fn table(self) -> Result<Table<'a>, KgentError> {
        let here = self.here();
        match self.node.kind {
            Kind::Table(entries) => Ok(Table { here, entries, accepted: Vec::new() }),
            _ => Err(self.refused("a table")),
        }
    }

    fn list(self) -> Result<Vec<Self>, KgentError> {
        let Kind::List(items) = self.node.kind else { return Err(self.refused("a list")) };
        let item = |(at, node)| Field { source: self.source, path: format!("{}[{at}]", self.path), node };
        Ok(items.into_iter().enumerate().map(item).collect())
    }

    fn text(self) -> Result<String, KgentError> {
        if let Kind::Text(text) = self.node.kind { Ok(text) } else { Err(self.refused("a text")) }
    }

    fn texts(self) -> Result<Vec<String>, KgentError> {
        self.checked_texts(|_| Ok(()))
    }

    /// A list of texts, each of which `check` accepts.
    fn checked_texts(self, check: impl Fn(&str) -> Result<(), String>) -> Result<Vec<String>, KgentError> {
        let one = |item: Self| {
            let here = item.here();
            let text = item.text()?;
            check(&text).map_err(|e| here.error(&format!("({}) {e}", quoted(&text))))?;
            Ok(text)
        };
        if !matches!(self.node.kind, Kind::List(_)) {
            return Err(self.refused("a list of texts"));
        }
        self.list()?.into_iter().map(one).collect()
    }

    fn patterns(self) -> Result<Vec<String>, KgentError> {
        self.checked_texts(|text| Pattern::compile(text, &[]).map(drop).map_err(|e| format!("is no pattern: {e}")))
    }

    fn flag(self) -> Result<bool, KgentError> {
        if let Kind::Flag(flag) = self.node.kind { Ok(flag) } else { Err(self.refused("true, false")) }
    }

    fn effect(self) -> Result<Effect, KgentError> {
        self.word(&[("allow", Effect::Allow), ("deny", Effect::Deny), ("ask", Effect::Ask)])
    }

    fn effect_or_flag(self) -> Result<Effect, KgentError> {
        let effect = match &self.node.kind {
            Kind::Flag(true) => Some(Effect::Allow),
            Kind::Flag(false) => Some(Effect::Deny),
            Kind::Text(text) => Effect::parse(text),
            _ => None,
        };
        effect.ok_or_else(|| self.refused("\"allow\", \"deny\", \"ask\", true, false"))
    }

    fn word<T: Copy>(self, words: &[(&str, T)]) -> Result<T, KgentError> {
        let named = |text: &String| words.iter().find(|(word, _)| word == text).map(|(_, value)| *value);
        let value = if let Kind::Text(text) = &self.node.kind { named(text) } else { None };
        value.ok_or_else(|| self.refused(&words.iter().map(|(word, _)| quoted(word)).collect::<Vec<_>>().join(", ")))
    }

    /// A whole number from 1 to `max`.
    fn whole<T: TryFrom<i128>>(self, max: i128) -> Result<T, KgentError> {
        let value = match self.node.kind {
            Kind::Whole(whole) if (1..=max).contains(&whole) => T::try_from(whole).ok(),
            _ => None,
        };
        value.ok_or_else(|| self.refused(&format!("a whole number from 1 to {max}")))
    }

    /// A positive number of seconds.
    fn seconds(self) -> Result<f64, KgentError> {
        let value = match self.node.kind {
            Kind::Whole(whole) => i32::try_from(whole).ok().map(f64::from),
            Kind::Float(float) => Some(float),
            _ => None,
        };
        value
            .filter(|seconds| *seconds >= 0.001 && *seconds <= MAX_SECONDS)
            .ok_or_else(|| self.refused(&format!("a number of seconds from 0.001 to {MAX_SECONDS}")))
    }
}

/// A table whose keys are taken one by one; what is left at the end is unknown.
struct Table<'a> {
    here: Here<'a>,
    entries: Vec<(String, Option<usize>, Node)>,
    accepted: Vec<&'static str>,
}

impl<'a> Table<'a> {
    fn path(&self, key: &str) -> String {
        if self.here.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.here.path) }
    }

    fn take(&mut self, key: &'static str) -> Option<Field<'a>> {
        self.accepted.push(key);
        let at = self.entries.iter().position(|(name, _, _)| name == key)?;
        let (_, _, node) = self.entries.remove(at);
        Some(Field { source: self.here.source, path: self.path(key), node })
    }

    /// Refuses the first key that nobody took.
    fn finish(self) -> Result<(), KgentError> {
        let Some((key, at, _)) = self.entries.iter().min_by_key(|(_, at, _)| *at) else { return Ok(()) };
        let here = Here { source: self.here.source, path: self.path(&key.escape_debug().to_string()), at: *at };
        Err(here.error(&format!("is an unknown key; accepted: {}", self.accepted.join(", "))))
    }
}

/// A text as messages show it.
fn quoted(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    format!("\"{}{}\"", short.escape_debug(), if short.len() < text.len() { "..." } else { "" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const WHOLE: &str = r#"
[permissions]
filesystem_delete = "ask"
shell = false
network = true
[[permissions.rules]]
action = "*"
resource = "private/**"
effect = "deny"
match = ["private/k"]
not_match = ["public/k"]
[sandbox]
read_only = ["vendor/**"]
hidden = ["*.sqlite"]
hard_links = "deny"
require_read_before_write = true
[memory]
write_mode = "external"
client = "package.module:factory"
timeout_s = 2.5
[skills]
roots = ["skills"]
max_skills = 3
max_characters = 1000
[limits]
max_output_lines = 100
max_file_bytes = 1_000
timeout_s = 5
[records]
durability = "power"
audit = "chained"
audit_key_file = "../audit.key"
redact = ["(?i)internal-[0-9]{6}"]
"#;

    fn refused(text: &str) -> String {
        ToolsConfig::from_toml(text, "kgent.toml").unwrap_err().to_string()
    }

    fn refused_value(value: &Value) -> String {
        ToolsConfig::from_value(value).unwrap_err().to_string()
    }

    #[test]
    fn every_key_is_read() {
        let config = ToolsConfig::from_toml(WHOLE, "kgent.toml").unwrap();
        let expected = ToolsConfig {
            permissions: PermissionsConfig {
                capabilities: vec![
                    (Capability::FilesystemDelete, Effect::Ask),
                    (Capability::Shell, Effect::Deny),
                    (Capability::Network, Effect::Allow),
                ],
                rules: vec![Rule {
                    match_: vec!["private/k".into()],
                    not_match: vec!["public/k".into()],
                    ..Rule::new(Effect::Deny, "*", "private/**")
                }],
            },
            sandbox: SandboxConfig {
                read_only: vec!["vendor/**".into()],
                hidden: vec!["*.sqlite".into()],
                hard_links: HardLinks::Deny,
                require_read_before_write: true,
            },
            memory: MemoryConfig {
                write_mode: WriteMode::External,
                client: Some("package.module:factory".into()),
                timeout_s: 2.5,
            },
            skills: SkillsConfig { roots: vec!["skills".into()], max_skills: 3, max_characters: 1000 },
            limits: Limits { max_output_lines: 100, max_file_bytes: 1000, timeout_s: 5.0, ..Limits::default() },
            records: RecordsConfig {
                durability: Durability::Power,
                audit: Audit::Chained,
                audit_key_file: Some("../audit.key".into()),
                redact: vec!["(?i)internal-[0-9]{6}".into()],
            },
        };
        assert_eq!(config, expected);
        assert!(config.power_safe() && config.denies_hard_links());
        let rules: Vec<String> = config.permission_rules().iter().map(ToString::to_string).collect();
        assert_eq!(rules, ["ask filesystem_delete *", "deny shell *", "allow network *", "deny * private/**"]);
    }

    #[test]
    fn to_value_and_back_is_identity() {
        for config in [ToolsConfig::default(), ToolsConfig::from_toml(WHOLE, "kgent.toml").unwrap()] {
            assert_eq!(ToolsConfig::from_value(&config.to_value()).unwrap(), config);
            let text = serde_json::to_string(&config).unwrap();
            assert_eq!(ToolsConfig::from_value(&serde_json::from_str(&text).unwrap()).unwrap(), config);
        }
        assert_eq!(ToolsConfig::from_toml("", "kgent.toml").unwrap(), ToolsConfig::default());
        assert_eq!(ToolsConfig::from_value(&json!({})).unwrap(), ToolsConfig::default());
    }

    #[test]
    fn a_default_holds_what_is_documented() {
        let limits = Limits::default();
        assert_eq!(
            serde_json::to_value(&limits).unwrap(),
            json!({"max_output_lines": 2000, "max_output_bytes": 51200, "max_file_bytes": 67_108_864, "max_results": 1000,
                   "max_line_bytes": 2000, "max_scan_files": 1_000_000, "max_scan_bytes": 17_179_869_184_u64,
                   "artifact_retention_days": 7, "timeout_s": 120.0})
        );
        assert_eq!(limits.timeout(), Duration::from_secs(120));
        let config = ToolsConfig::default();
        assert_eq!((config.memory.write_mode, config.skills.max_skills), (WriteMode::Candidate, 8));
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        for (text, message) in [
            (
                "\n[permissions]\nfilesystem_reed = \"deny\"\n",
                "kgent.toml:3: `permissions.filesystem_reed` is an unknown key; accepted: filesystem_read, filesystem_write, \
                 filesystem_delete, shell, network, memory_write, rules",
            ),
            (
                "[permissions]\nshell = \"maybe\"",
                "kgent.toml:2: `permissions.shell` is \"maybe\"; accepted: \"allow\", \"deny\", \"ask\", true, false",
            ),
            (
                "[permissions]\nshell = 1",
                "kgent.toml:2: `permissions.shell` is 1; accepted: \"allow\", \"deny\", \"ask\", true, false",
            ),
            (
                "[limit]\n",
                "kgent.toml:1: `limit` is an unknown key; accepted: permissions, sandbox, memory, skills, limits, records",
            ),
            ("sandbox = 3", "kgent.toml:1: `sandbox` is 3; accepted: a table"),
            (
                "[limits]\n\nmax_results = 0",
                "kgent.toml:3: `limits.max_results` is 0; accepted: a whole number from 1 to 1000000",
            ),
            (
                "[limits]\nmax_results = -1",
                "kgent.toml:2: `limits.max_results` is -1; accepted: a whole number from 1 to 1000000",
            ),
            (
                "[limits]\nmax_results = 10.0",
                "kgent.toml:2: `limits.max_results` is 10; accepted: a whole number from 1 to 1000000",
            ),
            (
                "[limits]\nmax_output_bytes = 99999999999",
                "kgent.toml:2: `limits.max_output_bytes` is 99999999999; accepted: a whole number from 1 to 67108864",
            ),
            (
                "[limits]\ntimeout_s = 0",
                "kgent.toml:2: `limits.timeout_s` is 0; accepted: a number of seconds from 0.001 to 604800",
            ),
            (
                "[limits]\ntimeout_s = nan",
                "kgent.toml:2: `limits.timeout_s` is NaN; accepted: a number of seconds from 0.001 to 604800",
            ),
            (
                "[memory]\nwrite_mode = \"on\"",
                "kgent.toml:2: `memory.write_mode` is \"on\"; accepted: \"disabled\", \"candidate\", \"external\"",
            ),
            (
                "[memory]\nclient = \"factory\"",
                "kgent.toml:2: `memory.client` is \"factory\"; accepted: \"package.module:factory\"",
            ),
            (
                "[sandbox]\nread_only = \"vendor\"",
                "kgent.toml:2: `sandbox.read_only` is \"vendor\"; accepted: a list of texts",
            ),
            (
                "[sandbox]\nhidden = [\n  \"a\",\n  \"[\",\n]",
                "kgent.toml:4: `sandbox.hidden[1]` (\"[\") is no pattern: `[` is not closed in its component; write `\\[` for the character",
            ),
            (
                "[records]\nredact = [\"x*\"]",
                "kgent.toml:2: `records.redact[0]` (\"x*\") matches the empty text, so it would redact everything",
            ),
            ("[skills]\nroots = [1979-05-27]", "kgent.toml:2: `skills.roots[0]` is a date; accepted: a text"),
            (
                "[[permissions.rules]]\naction = \"edit\"\n",
                "kgent.toml:1: `permissions.rules[0]` lacks a key; a rule has `action`, `resource` and `effect`",
            ),
            (
                "[[permissions.rules]]\naction = \"edit\"\nresource = \"a\"\neffect = true\n",
                "kgent.toml:4: `permissions.rules[0].effect` is true; accepted: \"allow\", \"deny\", \"ask\"",
            ),
            (
                "[permissions]\n[[permissions.rules]]\naction = \"edit\"\nresource = \"a/**\"\neffect = \"deny\"\nmatch = [\"b\"]",
                "kgent.toml:2: `permissions.rules[0]` (`deny edit a/**`) fails: match: `b` is not matched by `a/**`",
            ),
            (
                "[[permissions.rules]]\naction = \"filesystem_reed\"\nresource = \"*\"\neffect = \"deny\"",
                "kgent.toml:1: `permissions.rules[0]` (`deny filesystem_reed *`) fails: action: `filesystem_reed` is no capability; \
                 accepted: filesystem_read, filesystem_write, filesystem_delete, shell, network, memory_write",
            ),
        ] {
            assert_eq!(refused(text), message);
        }
        assert!(refused("a = \n").starts_with("kgent.toml:1: "));
        assert!(refused("[limits]\nmax_results = 1\nmax_results = 2").starts_with("kgent.toml:3: "));
        assert!(
            refused("[records]\nredact = [\"(\"]")
                .starts_with("kgent.toml:2: `records.redact[0]` (\"(\") is no regular expression")
        );
    }

    #[test]
    fn a_dict_is_read_as_strictly() {
        assert_eq!(refused_value(&json!([])), "config: the configuration is a list; accepted: a table");
        assert_eq!(
            refused_value(&json!({"limits": {"max_results": true}})),
            "config: `limits.max_results` is true; accepted: a whole number from 1 to 1000000"
        );
        assert_eq!(refused_value(&json!({"sandbox": null})), "config: `sandbox` is null; accepted: a table");
        assert_eq!(
            refused_value(&json!({"limits": {"max_result": 1}})).split(';').next().unwrap(),
            "config: `limits.max_result` is an unknown key"
        );
        assert_eq!(ToolsConfig::from_value(&json!({"memory": {"client": null}})).unwrap(), ToolsConfig::default());
        let shell = ToolsConfig::from_value(&json!({"permissions": {"shell": true}})).unwrap();
        assert_eq!(shell.permissions.capabilities, [(Capability::Shell, Effect::Allow)]);
    }
}
