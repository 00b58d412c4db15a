//! What of a call may stand in a record: secrets are replaced, contents become a length and a hash, and every text is
//! one line of JSON. The tool itself gets the true value.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt::{self, Write as _};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use hmac::{Hmac, KeyInit, Mac};
use regex::{Regex, RegexSet};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::secrets::{LONG_FORMS, LONG_TOKEN, SECRET_NAMES, SECRET_WORDS, SHORT_FORMS, SHORTEST, SIGNED_FORMS};
use crate::error::{Code, KgentError, ToolError};

/// The most that a call's arguments take in its record.
pub(crate) const MAX_ARGS_BYTES: usize = 16 * 1024;
/// Arguments that carry content, whatever the tool; `-`, `_` and case make no difference.
pub(crate) const CONTENT_ARGS: &[&str] = &["content", "old_text", "new_text", "patch"];

/// The longest text that arguments show.
const MAX_TEXT_BYTES: usize = 512;
/// Shorter contents could be guessed from a plain hash.
pub(crate) const MIN_HASHED_BYTES: usize = 64;
/// The longest argument name that is shown.
const MAX_NAME_BYTES: usize = 128;
/// Items of a list, and members of an object, that are shown.
const MAX_ITEMS: usize = 64;
/// Objects and lists inside one another that are shown.
const MAX_DEPTH: usize = 16;
/// Kept free of [`MAX_ARGS_BYTES`] for the marker and the bracket of each level.
const CLOSING_BYTES: usize = MAX_DEPTH * 48;

/// Patterns, and all of them at once.
struct Forms {
    any: RegexSet,
    each: Vec<(&'static str, Regex)>,
}

impl Forms {
    fn new(forms: &[(&'static str, Cow<'_, str>)]) -> Result<Self, regex::Error> {
        Ok(Self {
            any: RegexSet::new(forms.iter().map(|(_, pattern)| pattern))?,
            each: forms
                .iter()
                .map(|(kind, pattern)| Ok((*kind, Regex::new(pattern)?)))
                .collect::<Result<_, regex::Error>>()?,
        })
    }

    fn find(&self, s: &str, found: &mut Vec<(Range<usize>, &'static str)>) {
        for (kind, pattern) in self.any.matches(s).iter().filter_map(|index| self.each.get(index)) {
            for captures in pattern.captures_iter(s) {
                if let Some(secret) =
                    captures.name("secret").or_else(|| captures.get(0)).filter(|found| !found.is_empty())
                {
                    found.push((secret.range(), kind));
                }
            }
        }
    }
}

/// What every run looks for; compiled once in a process.
struct BuiltIn {
    /// [`SHORT_FORMS`] as one pattern, which is faster than a set.
    short: Regex,
    /// [`LONG_FORMS`] likewise.
    long: Regex,
    all: Forms,
    secret_name: Regex,
}

static BUILT_IN: OnceLock<Arc<BuiltIn>> = OnceLock::new();

impl BuiltIn {
    fn get() -> Result<Arc<Self>, regex::Error> {
        if let Some(built) = BUILT_IN.get() {
            return Ok(Arc::clone(built));
        }
        // Compiled outside the cell: a process forked meanwhile would wait for it for ever.
        let built = Arc::new(Self::new()?);
        Ok(Arc::clone(BUILT_IN.get_or_init(|| built)))
    }

    fn new() -> Result<Self, regex::Error> {
        let one = |forms: &[(&str, &str)]| {
            let each: Vec<_> = forms.iter().map(|(_, pattern)| pattern.replace("?<secret>", "?:")).collect();
            Regex::new(&each.join("|"))
        };
        let forms: Vec<_> = [SHORT_FORMS, LONG_FORMS, SIGNED_FORMS]
            .into_iter()
            .flatten()
            .map(|(kind, pattern)| (*kind, pattern.replace("WORDS", SECRET_WORDS).into()))
            .collect();
        Ok(Self {
            short: one(SHORT_FORMS)?,
            long: one(LONG_FORMS)?,
            all: Forms::new(&forms)?,
            secret_name: Regex::new(&format!("(?i-u:{SECRET_WORDS}|{SECRET_NAMES})"))?,
        })
    }

    fn is_match(&self, s: &str) -> bool {
        if s.len() < SHORTEST {
            return false;
        }
        let signed = s.bytes().any(|byte| matches!(byte, b':' | b'=')) || s.contains("--");
        if signed {
            return self.all.any.is_match(s);
        }
        self.short.is_match(s) || (has_long_token(s) && self.long.is_match(s))
    }
}

/// Whether there are [`LONG_TOKEN`] characters in a row of which tokens are made.
fn has_long_token(s: &str) -> bool {
    let mut run = 0;
    s.len() >= LONG_TOKEN
        && s.bytes().any(|byte| {
            run = if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'~') { run + 1 } else { 0 };
            run == LONG_TOKEN
        })
}

/// Finds secrets. One per run: its key makes the hashes of short contents the run's own.
pub(crate) struct Redactor {
    built_in: Arc<BuiltIn>,
    custom: Option<Forms>,
    /// HMAC-SHA-256 under the run's key.
    keyed: Hmac<Sha256>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

impl Redactor {
    /// A redactor that also knows the host's patterns; where one has a group `secret`, only that is replaced.
    pub(crate) fn new(extra_patterns: &[String], key: [u8; 32]) -> Result<Self, KgentError> {
        for pattern in extra_patterns {
            Regex::new(pattern).map_err(|error| {
                KgentError::Config(format!("records.redact: the pattern `{pattern}` cannot be used: {error}"))
            })?;
        }
        let unusable = |error| KgentError::Config(format!("records.redact: the patterns cannot be used: {error}"));
        let custom: Vec<_> = extra_patterns.iter().map(|pattern| ("custom", pattern.into())).collect();
        // HMAC fills a key up to its block with zeros.
        let mut block = [0; 64];
        for (to, from) in block.iter_mut().zip(key) {
            *to = from;
        }
        Ok(Self {
            built_in: BuiltIn::get().map_err(unusable)?,
            custom: if custom.is_empty() { None } else { Some(Forms::new(&custom).map_err(unusable)?) },
            keyed: Hmac::new(&block.into()),
        })
    }

    /// `s` with every secret in it replaced by `[redacted:<kind>]`.
    pub(crate) fn text<'s>(&self, s: &'s str) -> Cow<'s, str> {
        let custom = self.custom.as_ref().filter(|custom| custom.any.is_match(s));
        let built_in = self.built_in.is_match(s);
        if custom.is_none() && !built_in {
            return Cow::Borrowed(s);
        }
        let mut found = Vec::new();
        if built_in {
            self.built_in.all.find(s, &mut found);
        }
        if let Some(custom) = custom {
            custom.find(s, &mut found);
        }
        found.sort_by_key(|(range, _)| (range.start, Reverse(range.end)));
        let mut out = String::with_capacity(s.len());
        let mut done = 0;
        for (range, kind) in found {
            if range.start >= done {
                out.push_str(s.get(done..range.start).unwrap_or_default());
                out.push_str("[redacted:");
                out.push_str(kind);
                out.push(']');
            }
            done = done.max(range.end);
        }
        out.push_str(s.get(done..).unwrap_or_default());
        Cow::Owned(out)
    }

    /// A failure as everybody but the error log is told of it, and its cause as it came.
    pub(crate) fn error(&self, mut error: ToolError) -> ToolError {
        for text in [Some(&mut error.message), error.hint.as_mut()].into_iter().flatten() {
            if let Cow::Owned(shown) = self.text(text) {
                *text = shown;
            }
        }
        // What the host is asked to approve it must see as it is.
        if let Some(details) = error.details.as_mut().filter(|_| error.code != Code::ApprovalRequired) {
            self.value(details);
        }
        error
    }

    /// Replaces the secrets in a value: in its texts, and what stands under secret names.
    pub(crate) fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(shown) = self.text(text) {
                    *text = shown;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(members) => {
                for (name, member) in members {
                    if member.is_string() && self.is_secret_name(name) {
                        *member = "[redacted:secret]".into();
                    } else {
                        self.value(member);
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Appends the arguments as a record shows them: one line of JSON, at most [`MAX_ARGS_BYTES`]. What stands under a
    /// name in [`CONTENT_ARGS`] or `content_args`, or under a secret name, and every long text becomes
    /// `{"bytes": N, "sha256": "..."}`, or `{"bytes": N, "hmac": "..."}` where a plain hash would give it away. So does
    /// text that may itself hold such names: JSON, and arguments that are no object but text.
    pub(crate) fn args_json(&self, args: &Value, content_args: &[&str], out: &mut String) {
        let end = out.len() + MAX_ARGS_BYTES - CLOSING_BYTES;
        ArgsWriter { redactor: self, content_args, out, end, full: false }.value(args, args.is_string(), 0);
    }

    /// Whether what stands under this name is secret.
    fn is_secret_name(&self, name: &str) -> bool {
        self.built_in.secret_name.is_match(name)
    }

    /// Appends what a record shows of a content.
    fn seal(&self, content: &[u8], out: &mut String) {
        let (how, hash) = if content.len() < MIN_HASHED_BYTES {
            ("hmac", self.keyed.clone().chain_update(content).finalize().into_bytes())
        } else {
            ("sha256", Sha256::digest(content))
        };
        let _ = write!(out, "{{\"bytes\":{},\"{how}\":\"", content.len());
        for byte in hash {
            for half in [byte >> 4, byte & 15] {
                out.extend(char::from_digit(half.into(), 16));
            }
        }
        out.push_str("\"}");
    }
}

struct ArgsWriter<'a> {
    redactor: &'a Redactor,
    content_args: &'a [&'a str],
    out: &'a mut String,
    /// The length of `out` from which nothing but markers and brackets is written.
    end: usize,
    full: bool,
}

impl ArgsWriter<'_> {
    /// Appends a value. `sealed`: it stands under a name whose texts and numbers are not shown.
    fn value(&mut self, value: &Value, sealed: bool, depth: usize) {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(truth) => self.out.push_str(if *truth { "true" } else { "false" }),
            Value::Number(number) if sealed => self.redactor.seal(number.to_string().as_bytes(), self.out),
            Value::Number(number) => {
                let _ = write!(self.out, "{number}");
            }
            Value::String(text) if sealed || text.len() > MAX_TEXT_BYTES || may_be_json(text) => {
                self.redactor.seal(text.as_bytes(), self.out);
            }
            Value::String(text) => json_string(self.out, &self.redactor.text(text)),
            Value::Array(_) | Value::Object(_) if depth == MAX_DEPTH => self.out.push_str("\"…\""),
            Value::Array(items) => self.list(items, sealed, depth + 1),
            Value::Object(members) => self.object(members, sealed, depth + 1),
        }
    }

    fn list(&mut self, items: &[Value], sealed: bool, depth: usize) {
        self.out.push('[');
        let mut shown = 0;
        let mut after_flag = false;
        for item in items.iter().take(MAX_ITEMS) {
            let fits = self.entry(shown, |writer| writer.value(item, sealed || after_flag, depth));
            if !fits {
                break;
            }
            shown += 1;
            // `["--password", "..."]`
            after_flag = item.as_str().is_some_and(|flag| {
                flag.starts_with('-') && !flag.contains(['=', ' ']) && self.redactor.is_secret_name(flag)
            });
        }
        if shown < items.len() {
            let comma = if shown == 0 { "" } else { "," };
            let _ = write!(self.out, "{comma}\"… {} more\"", items.len() - shown);
        }
        self.out.push(']');
    }

    fn object(&mut self, members: &Map<String, Value>, sealed: bool, depth: usize) {
        self.out.push('{');
        let mut shown = 0;
        for (name, value) in members.iter().take(MAX_ITEMS) {
            let sealed = sealed || self.is_sealed(name, value);
            let fits = self.entry(shown, |writer| {
                writer.name(name, shown);
                writer.out.push(':');
                writer.value(value, sealed, depth);
            });
            if !fits {
                break;
            }
            shown += 1;
        }
        if shown < members.len() {
            let comma = if shown == 0 { "" } else { "," };
            let _ = write!(self.out, "{comma}\"…\":\"{} more\"", members.len() - shown);
        }
        self.out.push('}');
    }

    /// Appends one item or member, or nothing if there is no room for it.
    fn entry(&mut self, shown: usize, write: impl FnOnce(&mut Self)) -> bool {
        if self.full {
            return false;
        }
        let start = self.out.len();
        if shown > 0 {
            self.out.push(',');
        }
        write(self);
        // Where something inside did not fit, that has been cut already.
        let fits = self.full || self.out.len() <= self.end;
        if !fits {
            self.out.truncate(start);
            self.full = true;
        }
        fits
    }

    /// Appends a name; one that cannot be shown as it is gets its place, so that no two become one.
    fn name(&mut self, name: &str, place: usize) {
        if name.len() > MAX_NAME_BYTES {
            let _ = write!(self.out, "\"[{} bytes] #{place}\"", name.len());
            return;
        }
        match self.redactor.text(name) {
            Cow::Borrowed(name) => json_string(self.out, name),
            Cow::Owned(name) => json_string(self.out, &format!("{name} #{place}")),
        }
    }

    fn is_sealed(&self, name: &str, value: &Value) -> bool {
        if CONTENT_ARGS.iter().chain(self.content_args).any(|content| same_name(name, content)) {
            return true;
        }
        // `max_tokens` counts them.
        let counts = value.is_number() && name.to_ascii_lowercase().ends_with("tokens");
        !counts && self.redactor.is_secret_name(name)
    }
}

/// Whether two names differ in `-`, `_` and case only.
fn same_name(a: &str, b: &str) -> bool {
    fn letters(name: &str) -> impl Iterator<Item = u8> {
        name.bytes().filter(|byte| !matches!(byte, b'-' | b'_')).map(|byte| byte.to_ascii_lowercase())
    }
    letters(a).eq(letters(b))
}

/// Whether a text looks like a JSON object or list with texts in it.
fn may_be_json(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[']) && text.contains('"')
}

/// Appends `s` as a JSON string on one line: U+2028, U+2029 and U+0085, which some readers take for line breaks, are
/// escaped too.
pub(crate) fn json_string(out: &mut String, s: &str) {
    // 0xC2 and 0xE2 lead the three, and other characters too.
    let special = |byte: u8| matches!(byte, ..b' ' | b'"' | b'\\' | 0xC2 | 0xE2);
    out.reserve(s.len() + 2);
    out.push('"');
    let mut rest = s;
    // Most texts are clean: one pass without a branch says so.
    let clean = !s.bytes().fold(false, |found, byte| found | special(byte));
    while let Some(clean) = if clean { None } else { rest.bytes().position(special) } {
        let (run, tail) = rest.split_at(clean);
        out.push_str(run);
        let mut tail = tail.chars();
        match tail.next() {
            Some('"') => out.push_str("\\\""),
            Some('\\') => out.push_str("\\\\"),
            Some('\n') => out.push_str("\\n"),
            Some('\r') => out.push_str("\\r"),
            Some('\t') => out.push_str("\\t"),
            Some('\u{8}') => out.push_str("\\b"),
            Some('\u{c}') => out.push_str("\\f"),
            Some(c @ (..' ' | '\u{85}' | '\u{2028}' | '\u{2029}')) => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.extend(c),
        }
        rest = tail.as_str();
    }
    out.push_str(rest);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn redactor() -> Redactor {
        Redactor::new(&[], [7; 32]).unwrap()
    }

    fn args(value: &Value) -> String {
        let mut out = String::new();
        redactor().args_json(value, &["body"], &mut out);
        let _: Value = serde_json::from_str(&out).unwrap();
        out
    }

    fn string(s: &str) -> String {
        let mut out = String::new();
        json_string(&mut out, s);
        out
    }

    /// One example of each form, in two halves so that this file holds none.
    fn secrets() -> Vec<String> {
        let long = "CANARYcanary0123456789CANARYcanary0123456789";
        let hex = "0123456789abcdef0123456789abcdef";
        [
            ("sk", "-CANARY1"),
            ("sk", &format!("-ant-api03-{long}")),
            ("sk", &format!("-proj-{long}")),
            ("AK", "IACANARY0123456789"),
            ("gh", &format!("p_{long}")),
            ("github", &format!("_pat_{long}")),
            ("glp", &format!("at-{long}")),
            ("xo", "xb-1234567890-CANARY"),
            ("AI", &format!("za{long}")),
            ("ya", &format!("29.{long}")),
            ("GOC", &format!("SPX-{long}")),
            ("sk", "_live_CANARY0123456789"),
            ("rk", "_test_CANARY0123456789"),
            ("ey", "JCANARY0123.eyJzdWIiOiIxIn0.CANARY-sig"),
            ("npm", &format!("_{long}")),
            ("pyp", &format!("i-{long}")),
            ("hf", &format!("_{long}")),
            ("dap", &format!("i{hex}")),
            ("hv", &format!("s.{long}")),
            ("SG", &format!(".{long}.{long}")),
            ("1234567890", &format!(":AA{long}")),
            ("GR134", &format!("8941{long}")),
            ("glc", &format!("bt-{long}")),
            ("LT", &format!("AI{long}")),
            ("AT", &format!("ATT{long}")),
            ("abC8", &format!("Q~{}", &long[..33])),
            ("MCANARYcanaryCANARYcanary", &format!(".CANARY.{long}")),
            ("dt0", &format!("c01.CANARYCANARYCANARYCANARY.{}", "CANARY01".repeat(8))),
            ("EA", &format!("A{long}")),
            ("fm", &format!("2_{long}")),
            ("glsa", &format!("_{long}")),
            ("lin", &format!("_api_{long}")),
            ("ke", &format!("y-{hex}")),
            (hex, "-us12"),
            ("NR", &format!("AK-{long}")),
            ("ops", &format!("_eyJ{long}")),
            ("sha", &format!("256~{long}")),
            ("psc", &format!("ale_tkn_{long}")),
            ("snt", &format!("rys_{long}")),
            ("shp", &format!("at_{hex}")),
            ("sq0", &format!("atp-{long}")),
            ("CANARYcanary01", &format!(".atlasv1.{long}")),
            ("S", &format!("K{hex}")),
            ("AQ", &format!("VN{long}")),
            ("pat", &format!("CANARYcanary01.{hex}{hex}")),
            ("AK", &format!("C{long}")),
            ("ABS", &format!("K{long}")),
            ("do", &format!("p_v1_{hex}")),
            ("dckr", &format!("_pat_{long}")),
            ("xkey", &format!("sib-{hex}")),
            ("fig", &format!("d_{long}")),
            ("v1.", &format!("0-{}-{hex}{hex}", &hex[..24])),
            ("EZ", &format!("AK{long}")),
            ("pat", &format!("-na1-{long}")),
            ("wh", &format!("sec_{long}")),
            ("https://discord", ".com/api/webhooks/1/CANARY"),
            ("AGE-SECRET", "-KEY-1CANARY0123456789CANARY"),
            ("-----BEGIN RSA PRIV", "ATE KEY-----\nCANARY\n-----END RSA PRIVATE KEY-----"),
            ("-----BEGIN PRIV", "ATE KEY-----\nCANARY cut off"),
        ]
        .iter()
        .map(|(a, b)| format!("{a}{b}"))
        .collect()
    }

    #[test]
    fn every_form_is_found_anywhere() {
        let redactor = redactor();
        for secret in secrets() {
            for text in [secret.clone(), format!("see {secret}"), format!("größe=1\n'{secret}'"), format!("a/{secret}")]
            {
                let shown = redactor.text(&text);
                assert!(shown.contains("[redacted:"), "{text} -> {shown}");
                assert!(
                    !shown.to_ascii_lowercase().contains("canary") && !shown.contains("9abcdef"),
                    "{text} -> {shown}"
                );
                assert_eq!(redactor.text(&shown), shown);
            }
        }
    }

    #[test]
    fn what_names_a_secret_stays_and_its_value_goes() {
        let redactor = redactor();
        for (text, shown) in [
            ("PASSWORD=CANARY4", "PASSWORD=[redacted:secret]"),
            ("token=CANARY6 x", "token=[redacted:secret] x"),
            ("--password=CANARY7", "--password=[redacted:secret]"),
            ("run --db-password CANARY7 now", "run --db-password [redacted:secret] now"),
            ("DB_PASSWORD: 'a b c'", "DB_PASSWORD: [redacted:secret]"),
            ("{\"apiKey\": \"a b\", \"x\": 1}", "{\"apiKey\": [redacted:secret], \"x\": 1}"),
            ("{\\\"client_secret\\\":\\\"ab\\\"}", "{\\\"client_secret\\\":[redacted:secret]}"),
            ("?a=1&access_token=CANARY&b=2", "?a=1&access_token=[redacted:secret]&b=2"),
            ("passwordHash => x", "passwordHash => [redacted:secret]"),
            ("secretKey=x", "secretKey=[redacted:secret]"),
            ("Authorization: Bearer CANARY2", "Authorization: [redacted:authorization]"),
            ("-H 'X-Api-Key: CANARY'", "-H 'X-Api-Key: [redacted:secret]'"),
            ("Bearer CANARY2", "Bearer [redacted:authorization]"),
            ("Basic dXNlcjpwYXNz==", "Basic [redacted:authorization]"),
            ("Set-Cookie: a=b; c=d", "Set-Cookie: [redacted:cookie]"),
            ("https://me:p@ss@h/x?y=1", "https://me:[redacted:password]@h/x?y=1"),
            ("postgres://:pw@h:5432/db", "postgres://:[redacted:password]@h:5432/db"),
            ("Server=x;Pwd=CANARY;AccountKey=ab==;", "Server=x;Pwd=[redacted:secret];AccountKey=[redacted:secret];"),
        ] {
            assert_eq!(redactor.text(text), shown);
        }
    }

    #[test]
    fn ordinary_text_is_borrowed() {
        for text in [
            "",
            "src/main.rs",
            "read 120 lines of src/main.rs (4.2 KiB)",
            "task-runner/disk-usage/risk-assessment.md",
            "http://localhost:8080/a@b",
            "tokens: 512, max_tokens=512",
            "a basic example: the bearer of news",
            "[a-z]*.{rs,py}",
            "größe/日本語/файл.txt",
            "fn token(x: u8) -> Key",
            "docs/API-documentation-for-something-long/v1.0-a-rather-long-name.md",
            "b3:4b1d4b1d4b1d4b1d4b1d4b1d4b1d4b1d 4b1d4b1d4b1d4b1d4b1d4b1d4b1d4b1d4b1d4b1d",
            "node_modules/some-very-long-package-name/key-value-store.js",
        ] {
            assert!(matches!(redactor().text(text), Cow::Borrowed(_)), "{text} -> {}", redactor().text(text));
        }
    }

    #[test]
    fn the_host_adds_patterns() {
        let extra = ["(?i)internal-[0-9]{6}".to_owned(), "x(?<secret>y*)z".to_owned()];
        let redactor = Redactor::new(&extra, [7; 32]).unwrap();
        assert_eq!(redactor.text("see Internal-123456, xyyz, xz"), "see [redacted:custom], x[redacted:custom]z, xz");
        let error = Redactor::new(&["(a".to_owned()], [7; 32]).unwrap_err();
        assert!(matches!(error, KgentError::Config(text) if text.contains("`(a`")));
    }

    #[test]
    fn contents_become_length_and_hash() {
        let long = "x".repeat(64);
        assert_eq!(
            args(&json!({"path": "f", "content": long})),
            "{\"path\":\"f\",\"content\":{\"bytes\":64,\"sha256\":\"7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c\"}}"
        );
        // Computed with Python's hmac under bytes([7]) * 32.
        assert_eq!(
            args(&json!({"content": "123456"})),
            "{\"content\":{\"bytes\":6,\"hmac\":\"81724240e1fda9e29cc0d4ab9b2f9ae3ece6e9b0d27fdc255f924f58bc0734f9\"}}"
        );
        let other = Redactor::new(&[], [8; 32]).unwrap();
        let mut out = String::new();
        other.args_json(&json!({"content": "123456"}), &[], &mut out);
        assert_ne!(out, args(&json!({"content": "123456"})));
    }

    #[test]
    fn no_canary_reaches_a_record() {
        let long = format!("CANARY{}", "-".repeat(600));
        let mut calls = vec![
            json!({"env": {"API_KEY": "CANARY", "apikey": ["CANARY", {"x": "CANARY"}], "Session-Id": "CANARY"}}),
            json!({"content": "CANARY", "oldText": "CANARY", "BODY": "CANARY", "new-text": ["CANARY"], "patch": {"a": "CANARY"}}),
            json!({"edits": [{"old_text": "CANARY", "new": "token=CANARY6"}]}),
            json!({"edits": "[{\"old_text\": \"CANARY\"}]", "more": [" {\"content\": \"CANARY\"}"]}),
            json!("{\"content\": \"CANARY"),
            json!("content = CANARY"),
            json!(["--password", "CANARY", "--api-key=CANARY"]),
            json!({"url": "https://u:CANARY@h/", "header": "Authorization: Bearer CANARY", "long": long, (long.as_str()): 1}),
            json!({"token=CANARY": 1, "auth": "CANARY", "x": {"password": "CANARY"}}),
        ];
        calls.extend(secrets().into_iter().map(|secret| json!({"x": [secret.as_str()], (secret.as_str()): 1})));
        for call in calls {
            let shown = args(&call);
            assert!(!shown.to_ascii_lowercase().contains("canary"), "{call} -> {shown}");
        }
        assert!(args(&json!({"password": 123_456})).starts_with("{\"password\":{\"bytes\":6,\"hmac\""));
        assert_eq!(
            args(&json!({"max_tokens": 5, "token": null, "secret": true})),
            "{\"max_tokens\":5,\"token\":null,\"secret\":true}"
        );
    }

    #[test]
    fn arguments_are_bounded() {
        let mut deep = json!(1);
        for _ in 0..500 {
            deep = Value::Array(vec![deep]);
        }
        assert_eq!(args(&deep), format!("{}\"…\"{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH)));
        let shown = args(&json!((0..100).collect::<Vec<_>>()));
        assert!(shown.ends_with(",63,\"… 36 more\"]"));
        let wide: Map<String, Value> = (0..100).map(|n| (n.to_string(), json!(n))).collect();
        assert!(args(&Value::Object(wide)).ends_with(",\"63\":63,\"…\":\"36 more\"}"));
        let text = "\u{1}".repeat(512);
        let mut big = json!(vec![text; 64]);
        for _ in 0..5 {
            big = json!({"a": [big, 1, 2], "b": 3});
        }
        let shown = args(&big);
        assert!((MAX_ARGS_BYTES - 5000..=MAX_ARGS_BYTES).contains(&shown.len()), "{}", shown.len());
    }

    #[test]
    fn strings_are_one_line() {
        assert_eq!(string("a\"\\\n\r\t\u{8}\u{c}\0\u{1b}é"), r#""a\"\\\n\r\t\b\f\u0000\u001bé""#);
        assert_eq!(string("\u{85}\u{2028}─\u{2029}\u{2027}Â"), "\"\\u0085\\u2028─\\u2029\u{2027}Â\"");
    }

    fn one_line(text: &str) -> bool {
        !text.contains(|c: char| c < ' ' || matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}'))
    }

    fn texts() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<String>(),
            "[a─🍸\u{85}\u{2028}\u{2029}\u{2027}Â\"\\\\\n\r\t\u{0}\u{1b}\u{7f}]{0,40}",
            "(password|token|--secret|cookie|://a|Bearer|sk-|AKIA)[ :=\"'@]{0,3}[A-Z0-9=\"'\\\\ ]{0,20}",
            "x{500,600}",
        ]
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            texts().prop_map(Value::from),
        ];
        leaf.prop_recursive(20, 300, 70, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..70).prop_map(Value::from),
                prop::collection::vec((texts(), inner), 0..8).prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_string_reads_back_as_itself(s in texts()) {
            let line = string(&s);
            prop_assert_eq!(serde_json::from_str::<String>(&line).unwrap(), s);
            prop_assert!(one_line(&line));
        }

        #[test]
        fn arguments_are_one_bounded_line_of_json(value in values()) {
            let line = args(&value);
            prop_assert!(line.len() <= MAX_ARGS_BYTES);
            prop_assert!(one_line(&line));
        }

        /// The fast way and the plain way find the same.
        #[test]
        fn no_form_needs_a_sign_it_does_not_have(s in texts()) {
            let redactor = redactor();
            prop_assert_eq!(redactor.built_in.is_match(&s), redactor.built_in.all.any.is_match(&s));
        }
    }
}
