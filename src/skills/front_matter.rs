//! The front matter of a `SKILL.md`: YAML between two lines of `---`, read strictly and within bounds.

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Tag};
use serde_json::{Map, Value};

use crate::config::ToolsConfig;
use crate::permission::{Effect, Rule, action_of_tool};

/// The most front matter, in bytes.
const MAX_BYTES: usize = 16 * 1024;
/// The deepest nesting.
const MAX_DEPTH: usize = 16;
/// The most values, those that aliases repeat included.
const MAX_VALUES: usize = 2048;
/// The most text in all values, in bytes.
const MAX_TEXT_BYTES: usize = 64 * 1024;
/// The longest description, in characters, as the Agent Skills format has it.
const MAX_DESCRIPTION_CHARS: usize = 1024;
/// The longest compatibility note, in characters.
const MAX_COMPATIBILITY_CHARS: usize = 500;
/// The longest licence, in characters.
const MAX_LICENSE_CHARS: usize = 500;
/// The most allowed tools that are taken.
const MAX_TOOLS: usize = 256;

/// What is wrong with a `SKILL.md`, and in which line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// From 1; `None` where it concerns the whole file.
    pub line: Option<usize>,
    /// What is wrong.
    pub reason: String,
}

impl Fault {
    pub(super) fn whole(reason: impl Into<String>) -> Self {
        Self { line: None, reason: reason.into() }
    }

    fn at(line: usize, reason: impl Into<String>) -> Self {
        Self { line: Some(line), reason: reason.into() }
    }
}

/// What a skill says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrontMatter {
    /// Its name, which is also its folder's.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// Its licence.
    pub license: Option<String>,
    /// What it needs of its surroundings.
    pub compatibility: Option<String>,
    /// Whatever its author notes, an object.
    pub metadata: Map<String, Value>,
    /// The tools that it asks to be allowed, as written.
    pub allowed_tools: Vec<String>,
    /// Its own rules: requests where they allow, restrictions where they do not.
    pub permissions: Vec<Rule>,
    /// Whether values with an unquoted colon or the like were taken as plain text.
    pub lenient: bool,
}

impl FrontMatter {
    /// What it declares, as the rules of its layer of the policy. What it restricts comes last, where it counts.
    pub fn rules(&self) -> Vec<Rule> {
        let tools = self.allowed_tools.iter().map(|tool| Rule::new(Effect::Allow, action_of_tool(tool), "*"));
        tools.filter(|rule| rule.validate(&[]).is_ok()).chain(self.permissions.iter().cloned()).collect()
    }

    /// What it asks for, as text; nothing of it is granted.
    pub fn requested(&self) -> Vec<String> {
        let rules = self.permissions.iter().filter(|rule| rule.effect == Effect::Allow);
        let rules = rules.map(|rule| format!("{} {}", rule.action, rule.resource));
        self.allowed_tools.iter().cloned().chain(rules).map(|text| super::shown(&text)).collect()
    }
}

/// Reads the front matter of a file; answers it and where the body begins.
pub(super) fn parse(bytes: &[u8]) -> Result<(FrontMatter, usize), Fault> {
    let (yaml, body) = split(bytes)?;
    let (root, lenient) = match read(yaml) {
        Ok(root) => (root, false),
        Err(Refused::Bad(fault)) => return Err(fault),
        Err(Refused::NotYaml(fault)) => match quote_plain_values(yaml).map(|text| read(&text)) {
            Some(Ok(root)) => (root, true),
            _ => return Err(fault),
        },
    };
    let line = root.line;
    let Kind::Map(entries) = root.kind else {
        return Err(Fault::at(line, "the front matter is not a mapping of names to values"));
    };
    let mut front = FrontMatter { lenient, ..FrontMatter::default() };
    let (mut has_name, mut has_description) = (false, false);
    for (key, value) in entries {
        match key.as_str() {
            "name" => (front.name, has_name) = (value.text("name", 64)?, true),
            "description" => {
                (front.description, has_description) = (value.text("description", MAX_DESCRIPTION_CHARS)?, true);
            }
            "license" => front.license = value.optional_text("license", MAX_LICENSE_CHARS)?,
            "compatibility" => front.compatibility = value.optional_text("compatibility", MAX_COMPATIBILITY_CHARS)?,
            "metadata" => match value.json(false) {
                Value::Object(map) => front.metadata = map,
                Value::Null => {}
                _ => return Err(Fault::at(value.line, "`metadata` is not a mapping")),
            },
            "allowed-tools" => front.allowed_tools = value.tools()?,
            "permissions" => front.permissions = value.rules()?,
            // Other programs' keys are theirs.
            _ => {}
        }
    }
    for (name, there) in [("name", has_name), ("description", has_description)] {
        if !there {
            return Err(Fault::at(line, format!("`{name}` is missing")));
        }
    }
    Ok((front, body))
}

/// The YAML text, and where the body begins.
fn split(bytes: &[u8]) -> Result<(&str, usize), Fault> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(Fault::whole("the file is UTF-16; save it as UTF-8"));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let before = bytes.get(..e.valid_up_to()).unwrap_or_default();
        Fault::at(1 + memchr::memchr_iter(b'\n', before).count(), "the file is not UTF-8")
    })?;
    if let Some(at) = text.find('\0') {
        let before = text.get(..at).unwrap_or_default();
        return Err(Fault::at(1 + before.matches('\n').count(), "the file holds a NUL character"));
    }
    let start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let fence = |line: &str| {
        let line = line.strip_suffix('\n').unwrap_or(line);
        line.strip_suffix('\r').unwrap_or(line).trim_end_matches([' ', '\t']) == "---"
    };
    let mut at = start;
    let mut yaml_start = None;
    for line in text.get(start..).unwrap_or_default().split_inclusive('\n') {
        let Some(from) = yaml_start else {
            if !fence(line) {
                let lone = line.starts_with("---\r");
                let why = if lone { "lines end with a lone CR" } else { "the first line is not `---`" };
                return Err(Fault::at(1, why));
            }
            at += line.len();
            yaml_start = Some(at);
            continue;
        };
        if fence(line) {
            let yaml = text.get(from..at).unwrap_or_default();
            if yaml.len() > MAX_BYTES {
                return Err(Fault::whole(format!("the front matter has more than {MAX_BYTES} bytes")));
            }
            return Ok((yaml, at + line.len()));
        }
        at += line.len();
    }
    Err(match yaml_start {
        None => Fault::whole("the file is empty"),
        Some(_) => Fault::at(1, "the front matter is not closed by a line of `---`"),
    })
}

/// A YAML value and its line in the file.
#[derive(Clone, Debug)]
struct Node {
    line: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Null,
    /// A scalar as it is written; `plain` where no quotes say that it is text.
    Text {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    fn what(&self) -> &'static str {
        match self.kind {
            Kind::Null => "empty",
            Kind::Text { .. } => "text",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a mapping",
        }
    }

    fn text(&self, name: &str, max_chars: usize) -> Result<String, Fault> {
        let Kind::Text { text, .. } = &self.kind else {
            return Err(Fault::at(self.line, format!("`{name}` is {}, not text", self.what())));
        };
        let text = text.trim();
        if text.is_empty() {
            return Err(Fault::at(self.line, format!("`{name}` is empty")));
        }
        if text.chars().count() > max_chars {
            return Err(Fault::at(self.line, format!("`{name}` has more than {max_chars} characters")));
        }
        Ok(text.to_owned())
    }

    fn optional_text(&self, name: &str, max_chars: usize) -> Result<Option<String>, Fault> {
        if matches!(self.kind, Kind::Null) { Ok(None) } else { self.text(name, max_chars).map(Some) }
    }

    /// As JSON; scalars stay text, but with `flags` a plain `true` or `false` is a boolean.
    fn json(&self, flags: bool) -> Value {
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Text { text, plain } => match text.as_str() {
                "true" if flags && *plain => Value::Bool(true),
                "false" if flags && *plain => Value::Bool(false),
                _ => Value::String(text.clone()),
            },
            Kind::List(items) => items.iter().map(|item| item.json(flags)).collect(),
            Kind::Map(entries) => {
                Value::Object(entries.iter().map(|(key, value)| (key.clone(), value.json(flags))).collect())
            }
        }
    }

    /// `allowed-tools`: names separated by spaces or commas, or a list of them; `Bash(git add:*)` is one name.
    fn tools(&self) -> Result<Vec<String>, Fault> {
        let mut tools = Vec::new();
        match &self.kind {
            Kind::Null => {}
            Kind::Text { text, .. } => split_tools(text, &mut tools),
            Kind::List(items) => {
                for item in items {
                    tools.push(item.text("allowed-tools", 256)?);
                }
            }
            Kind::Map(_) => return Err(Fault::at(self.line, "`allowed-tools` is a mapping, not text or a list")),
        }
        if tools.len() > MAX_TOOLS {
            return Err(Fault::at(self.line, format!("`allowed-tools` has more than {MAX_TOOLS} names")));
        }
        Ok(tools)
    }

    /// `permissions`, in the shape of the configuration's.
    fn rules(&self) -> Result<Vec<Rule>, Fault> {
        if matches!(self.kind, Kind::Null) {
            return Ok(Vec::new());
        }
        let config = ToolsConfig::from_value(&serde_json::json!({"permissions": self.json(true)}));
        let config = config.map_err(|error| {
            let text = error.to_string();
            Fault::at(self.line, text.strip_prefix("config: ").unwrap_or(&text))
        })?;
        let rules = config.permission_rules().into_iter().map(|mut rule| {
            // Checked just now; the run's mounts must not make one skill's examples everybody's failure.
            (rule.match_, rule.not_match) = (Vec::new(), Vec::new());
            rule
        });
        Ok(rules.collect())
    }
}

fn split_tools(text: &str, tools: &mut Vec<String>) {
    let mut depth = 0_usize;
    let mut current = String::new();
    for c in text.chars().chain([' ']) {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && (c == ',' || c.is_whitespace()) {
            if !current.is_empty() {
                tools.push(std::mem::take(&mut current));
            }
        } else {
            current.push(c);
        }
    }
}

/// What is open while events come in.
struct Frame {
    node: Node,
    /// The key that waits for its value, in a mapping.
    key: Option<String>,
    anchor: usize,
}

/// Builds values from events, within bounds.
#[derive(Default)]
struct Builder {
    frames: Vec<Frame>,
    /// What aliases repeat, by the parser's number.
    anchors: Vec<(usize, Node)>,
    values: usize,
    text_bytes: usize,
    root: Option<Node>,
}

/// Why text was not read: it is no YAML, or YAML that is not taken.
enum Refused {
    NotYaml(Fault),
    Bad(Fault),
}

fn read(yaml: &str) -> Result<Node, Refused> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(yaml) {
        let not_yaml = |error: ScanError| {
            Refused::NotYaml(Fault::at(error.marker().line() + 1, format!("not YAML: {}", error.info())))
        };
        let (event, span) = event.map_err(not_yaml)?;
        // The file's first line is the fence.
        builder.take(event, span.start.line() + 1).map_err(Refused::Bad)?;
    }
    builder.root.ok_or_else(|| Refused::Bad(Fault::at(1, "the front matter is empty")))
}

impl Builder {
    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), Fault> {
        match event {
            Event::DocumentStart(_) if self.root.is_some() => {
                Err(Fault::at(line, "the front matter holds a second document"))
            }
            Event::Alias(anchor) => {
                let found = self.anchors.iter().find(|(known, _)| *known == anchor).map(|(_, node)| node.clone());
                let node = found.ok_or_else(|| Fault::at(line, "an alias stands inside of what it names"))?;
                self.count(&node, line)?;
                self.place(node, 0)
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                check_tag(tag.as_deref(), line)?;
                let null = plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let kind = if null { Kind::Null } else { Kind::Text { text: text.into_owned(), plain } };
                let node = Node { line, kind };
                self.count(&node, line)?;
                self.place(node, anchor)
            }
            Event::SequenceStart(anchor, tag) => self.open(Kind::List(Vec::new()), anchor, tag.as_deref(), line),
            Event::MappingStart(anchor, tag) => self.open(Kind::Map(Vec::new()), anchor, tag.as_deref(), line),
            Event::SequenceEnd | Event::MappingEnd => match self.frames.pop() {
                Some(frame) => self.place(frame.node, frame.anchor),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn open(&mut self, kind: Kind, anchor: usize, tag: Option<&Tag>, line: usize) -> Result<(), Fault> {
        check_tag(tag, line)?;
        if self.frames.len() == MAX_DEPTH {
            return Err(Fault::at(line, format!("the front matter is nested deeper than {MAX_DEPTH} levels")));
        }
        let node = Node { line, kind };
        self.count(&node, line)?;
        self.frames.push(Frame { node, key: None, anchor });
        Ok(())
    }

    /// Counts a value and all in it against the limits.
    fn count(&mut self, node: &Node, line: usize) -> Result<(), Fault> {
        let mut todo = vec![node];
        while let Some(node) = todo.pop() {
            self.values += 1;
            match &node.kind {
                Kind::Null => {}
                Kind::Text { text, .. } => self.text_bytes += text.len(),
                Kind::List(items) => todo.extend(items),
                Kind::Map(entries) => {
                    self.text_bytes += entries.iter().map(|(key, _)| key.len()).sum::<usize>();
                    todo.extend(entries.iter().map(|(_, value)| value));
                }
            }
            if self.values > MAX_VALUES || self.text_bytes > MAX_TEXT_BYTES {
                return Err(Fault::at(
                    line,
                    format!("the front matter holds more than {MAX_VALUES} values or {MAX_TEXT_BYTES} bytes of text"),
                ));
            }
        }
        Ok(())
    }

    /// Puts a whole value where it belongs.
    fn place(&mut self, node: Node, anchor: usize) -> Result<(), Fault> {
        if anchor != 0 {
            self.anchors.push((anchor, node.clone()));
        }
        let Some(frame) = self.frames.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut frame.node.kind {
            Kind::List(items) => items.push(node),
            Kind::Map(entries) => {
                if let Some(key) = frame.key.take() {
                    entries.push((key, node));
                    return Ok(());
                }
                let Kind::Text { text, .. } = node.kind else {
                    return Err(Fault::at(node.line, "a name of the front matter is not text"));
                };
                if entries.iter().any(|(known, _)| *known == text) {
                    return Err(Fault::at(node.line, format!("`{text}` is given twice")));
                }
                frame.key = Some(text);
            }
            Kind::Null | Kind::Text { .. } => {}
        }
        Ok(())
    }
}

/// Tags make objects in other readers; here only those of plain YAML are known.
fn check_tag(tag: Option<&Tag>, line: usize) -> Result<(), Fault> {
    let known = ["str", "int", "bool", "float", "null", "seq", "map"];
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && known.contains(&tag.suffix.as_str())) => {
            Err(Fault::at(line, format!("the tag `{tag}` is refused")))
        }
        _ => Ok(()),
    }
}

/// The text with each unquoted value of a known name at the left margin put in quotes, its continuation lines with it:
/// what its author meant by `description: Use it: now`. `None` where there is nothing to quote.
fn quote_plain_values(yaml: &str) -> Option<String> {
    let mut out = String::with_capacity(yaml.len() + 16);
    let mut changed = false;
    let mut lines = yaml.lines().peekable();
    while let Some(line) = lines.next() {
        let value = ["name", "description", "license", "compatibility"]
            .into_iter()
            .find_map(|key| Some((key, line.strip_prefix(key)?.strip_prefix(':')?)))
            .filter(|(_, rest)| rest.starts_with([' ', '\t']))
            .map(|(key, rest)| (key, rest.trim()));
        match value {
            Some((key, text)) if !text.is_empty() && !text.starts_with(['\'', '"', '|', '>']) => {
                changed = true;
                out.push_str(key);
                out.push_str(": '");
                out.push_str(&text.replace('\'', "''"));
                let mut skipped = 0;
                while let Some(more) = lines.next_if(|next| next.starts_with([' ', '\t']) && !next.trim().is_empty()) {
                    out.push(' ');
                    out.push_str(&more.trim().replace('\'', "''"));
                    skipped += 1;
                }
                out.push('\'');
                // Later lines keep their numbers.
                out.extend(std::iter::repeat_n('\n', skipped));
            }
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    changed.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front(yaml: &str) -> Result<FrontMatter, (Option<usize>, String)> {
        let text = format!("---\n{yaml}\n---\nbody\n");
        parse(text.as_bytes()).map(|(front, _)| front).map_err(|fault| (fault.line, fault.reason))
    }

    #[test]
    fn every_feature_is_read() {
        let read = front(
            "name: csv\ndescription: >\n  Cleans\n  tables.\nlicense: MIT\ncompatibility: python 3\n\
             metadata:\n  version: 1.0\n  tags: [a, b]\nallowed-tools: Read, write_file Bash(git add:*)\n\
             permissions:\n  filesystem_write: false\n  rules:\n    - {action: read_file, resource: '*.csv', effect: allow}\nversion: 3",
        )
        .unwrap();
        let rule = |effect, action: &str, resource: &str| Rule::new(effect, action, resource);
        let own = [rule(Effect::Deny, "filesystem_write", "*"), rule(Effect::Allow, "read_file", "*.csv")];
        assert_eq!(
            read,
            FrontMatter {
                name: "csv".into(),
                description: "Cleans tables.".into(),
                license: Some("MIT".into()),
                compatibility: Some("python 3".into()),
                metadata: serde_json::from_str(r#"{"version": "1.0", "tags": ["a", "b"]}"#).unwrap(),
                allowed_tools: ["Read", "write_file", "Bash(git add:*)"].map(String::from).to_vec(),
                permissions: own.to_vec(),
                lenient: false,
            }
        );
        let tools = [rule(Effect::Allow, "Read", "*"), rule(Effect::Allow, "edit", "*")];
        assert_eq!(read.rules(), [tools, own].concat());
        assert_eq!(read.requested(), ["Read", "write_file", "Bash(git add:*)", "read_file *.csv"]);
    }

    #[test]
    fn scalars_are_text_and_never_something_else() {
        for text in ["yes", "1.0", "2024-01-01", "0x10", "true", "1e3", ".inf"] {
            assert_eq!(front(&format!("name: s\ndescription: {text}")).unwrap().description, text);
        }
        for text in ["~", "", "null", "''"] {
            assert!(front(&format!("name: s\ndescription: {text}")).is_err(), "{text}");
        }
    }

    #[test]
    fn unquoted_values_are_read_leniently() {
        for text in ["Use it: now", "[x] — y", "@x y", "*x", "- a", "`x`", "it's: so", "{x} y", "& x: y"] {
            let read = front(&format!("name: s\ndescription: {text}\nmetadata: {{a: b}}")).unwrap();
            assert_eq!((read.description.as_str(), read.lenient), (text, true), "{text}");
        }
        let read = front("name: s\ndescription: Use it: now\n  and then\nlicense: MIT").unwrap();
        assert_eq!((read.description.as_str(), read.lenient), ("Use it: now and then", true));
    }

    #[test]
    fn faults_name_their_line() {
        let fails = |yaml: &str| front(yaml).unwrap_err();
        assert_eq!(fails("name: s"), (Some(2), "`description` is missing".into()));
        assert_eq!(fails("description: d"), (Some(2), "`name` is missing".into()));
        assert_eq!(fails(""), (Some(1), "the front matter is empty".into()));
        assert_eq!(fails("# nothing"), (Some(1), "the front matter is empty".into()));
        assert_eq!(fails("- a\n- b"), (Some(2), "the front matter is not a mapping of names to values".into()));
        assert_eq!(fails("name: s\ndescription: d\nname: t"), (Some(4), "`name` is given twice".into()));
        assert_eq!(fails("name: s\ndescription: [a]"), (Some(3), "`description` is a list, not text".into()));
        assert_eq!(
            fails("name: s\ndescription: !!python/object:os.system x"),
            (Some(3), "the tag `tag:yaml.org,2002:!python/object:os.system` is refused".into())
        );
        assert_eq!(fails("name: s\nmetadata: 3\ndescription: d"), (Some(3), "`metadata` is not a mapping".into()));
        let (line, reason) = fails("name: s\ndescription: d\npermissions: {filesystem_reed: allow}");
        assert_eq!(line, Some(4));
        assert!(reason.contains("filesystem_reed"), "{reason}");
        let (line, reason) = fails("name: s\ndescription: d\nmetadata:\n\ta: b");
        assert!(line == Some(5) && reason.starts_with("not YAML: "), "{line:?} {reason}");
        assert_eq!(fails("name: s\ndescription: d\n...\nname: t").0, Some(5));
        assert!(fails(&format!("name: s\ndescription: {}", "x".repeat(1025))).1.contains("more than 1024 characters"));
    }

    #[test]
    fn depth_size_and_aliases_are_bounded() {
        let fails = |yaml: &str, why: &str| {
            let (_, reason) = front(yaml).unwrap_err();
            assert!(reason.contains(why), "{reason}");
        };
        fails(&format!("name: s\ndescription: d\nmetadata: {}", "[".repeat(15_000)), "not YAML: ");
        fails(&format!("name: s\ndescription: d\nmetadata: {}", "{a: ".repeat(40)), "nested deeper than 16");
        fails(&format!("# {}", "x".repeat(MAX_BYTES)), "the front matter has more than 16384 bytes");
        let mut bomb = String::from("name: s\ndescription: d\nmetadata:\n  a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..9 {
            let last = &*format!("*a{}", level - 1);
            bomb +=
                &["  a", &level.to_string(), ": &a", &level.to_string(), " [", &[last; 9].join(", "), "]\n"].concat();
        }
        fails(&bomb, "more than 2048 values");
        let text = "x".repeat(4000);
        let repeat = ["*t"; 40].join(", ");
        fails(&format!("name: s\ndescription: d\nmetadata: {{t: &t {text}, l: [{repeat}]}}"), "bytes of text");
        let read = front("name: &n s\ndescription: d\nlicense: *n").unwrap();
        assert_eq!(read.license.as_deref(), Some("s"));
        assert!(front("name: s\ndescription: d\nmetadata: &m {a: *m}").is_err());
    }

    #[test]
    fn byte_order_marks_and_line_ends() {
        let lf = "---\nname: s\ndescription: d e\n---\none\n---\ntwo\n";
        let expected = parse(lf.as_bytes()).unwrap();
        assert_eq!(lf.get(expected.1..), Some("one\n---\ntwo\n"));
        let crlf = lf.replace('\n', "\r\n");
        for (text, body) in [
            (crlf.clone(), "one\r\n---\r\ntwo\r\n"),
            (format!("\u{feff}{lf}"), "one\n---\ntwo\n"),
            (format!("\u{feff}{crlf}"), "one\r\n---\r\ntwo\r\n"),
            (lf.replacen("---\n", "--- \t\n", 2), "one\n---\ntwo\n"),
            ("---\nname: s\ndescription: d e\n---".to_owned(), ""),
        ] {
            let (front, at) = parse(text.as_bytes()).unwrap();
            assert_eq!((front, text.get(at..)), (expected.0.clone(), Some(body)));
        }
        let fails = |bytes: &[u8]| parse(bytes).unwrap_err().reason;
        let utf16: Vec<u8> = [0xfeff].into_iter().chain(lf.encode_utf16()).flat_map(u16::to_le_bytes).collect();
        assert_eq!(fails(&utf16), "the file is UTF-16; save it as UTF-8");
        assert_eq!(fails(format!("\n{lf}").as_bytes()), "the first line is not `---`");
        assert_eq!(fails(lf.replace('\n', "\r").as_bytes()), "lines end with a lone CR");
        assert_eq!(fails(b"---\nname: s\n"), "the front matter is not closed by a line of `---`");
        assert_eq!(fails(b"# Title\n"), "the first line is not `---`");
        assert_eq!(fails(b""), "the file is empty");
        assert_eq!(parse(b"---\nname: \xff\n---\n").unwrap_err(), Fault::at(2, "the file is not UTF-8"));
    }
}
