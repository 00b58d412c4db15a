//! [`Pattern`]: the one pattern language, of rules and of the sandbox's `read_only` and `hidden`.
//!
//! | pattern | matches |
//! |---|---|
//! | `*` | every resource |
//! | `*.pem` | no `/`: the last component, at any depth, in every mount |
//! | `src/*.py` | a `/`: from the root, here of the workspace |
//! | `docs/a`, `workspace/a` | a first component that is a mount's name: from the root of that mount |
//! | `private/**` | `private` and all beneath it; `private/` is the same |
//! | `**/private/*` | any number of components in front, in every mount |
//!
//! A pattern with a `/` is matched on the sandbox path as it is printed, so that `skills/**` is every skill's mount and a
//! wildcard in front may stand for a mount's name; in the workspace, whose paths print bare, `workspace/` may be left out.
//!
//! `*`, `?` and `[a-z]`, `[!a]` stay in a component; `**` is special only as a whole component; `{a,b}` is one pattern
//! for each alternative; `\` takes the next character as it is. A `?` is one character, or one byte that is not part of
//! any. Nothing is case-folded or normalised, except to find
//! a deny that a volume which does so would go round. What can only be a mistake is refused, not taken literally: host paths,
//! `..`, `~/`, and a `!` in front.
//!
//! Matching is greedy with one step back to the last `*` or `**`: its cost is bounded by the length of the pattern
//! times the length of the name, and it allocates nothing.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;

use crate::sandbox::path::WORKSPACE;

/// The longest pattern, in bytes.
pub const MAX_PATTERN_BYTES: usize = 4096;
/// The most alternatives that the braces of one pattern may make.
const MAX_ALTERNATIVES: usize = 64;

/// What a rule is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource<'a> {
    /// The mount's name; empty for what is no path.
    pub mount: &'a str,
    /// The name beneath the mount's root, without `.`, `..` or empty components; empty for the root itself.
    pub rel: &'a [u8],
}

impl<'a> Resource<'a> {
    /// The file or folder `rel` of `mount`.
    pub fn path(mount: &'a str, rel: &'a [u8]) -> Self {
        Self { mount, rel }
    }

    /// What is no path: a memory scope, a mount's name, a tool's name.
    pub fn text(text: &'a str) -> Self {
        Self { mount: "", rel: text.as_bytes() }
    }

    /// The resource that a canonical sandbox path names, given the names of all mounts.
    pub fn parse(text: &'a str, mounts: &[String]) -> Self {
        let named = mounts.iter().map(String::as_str).chain([WORKSPACE]).filter_map(|mount| {
            let rest = text.strip_prefix(mount)?;
            let rel = if rest.is_empty() { rest } else { rest.strip_prefix('/')? };
            Some(Self::path(text.get(..mount.len())?, rel.as_bytes()))
        });
        let bare = Self::path(WORKSPACE, if text == "." { b"" } else { text.as_bytes() });
        named.max_by_key(|resource| resource.mount.len()).unwrap_or(bare)
    }

    /// The components of the name that a pattern sees: a mount's own name is part of it, except the workspace's.
    fn components(self) -> Components<'a> {
        let head = if self.mount == WORKSPACE { "" } else { self.mount };
        Components { head: head.as_bytes(), tail: self.rel }
    }

    /// The last component; for a mount's root that of the mount's name.
    fn name(self) -> &'a [u8] {
        let whole = if self.rel.is_empty() { self.mount.as_bytes() } else { self.rel };
        memchr::memrchr(b'/', whole).and_then(|slash| whole.get(slash + 1..)).unwrap_or(whole)
    }
}

/// The components of two names in a row.
#[derive(Clone, Copy)]
struct Components<'a> {
    head: &'a [u8],
    tail: &'a [u8],
}

impl<'a> Components<'a> {
    /// Takes the first.
    fn take(&mut self) -> Option<&'a [u8]> {
        loop {
            if self.head.is_empty() {
                if self.tail.is_empty() {
                    return None;
                }
                self.head = std::mem::take(&mut self.tail);
            }
            let (name, rest) = match memchr::memchr(b'/', self.head) {
                Some(slash) => (self.head.get(..slash)?, self.head.get(slash + 1..)?),
                None => (self.head, &[][..]),
            };
            self.head = rest;
            if !name.is_empty() {
                return Some(name);
            }
        }
    }
}

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Box<str>,
    shapes: Box<[Shape]>,
}

/// One alternative of a pattern.
#[derive(Clone, Debug)]
enum Shape {
    /// `*`.
    Every,
    /// No `/`: the last component.
    Name(Part),
    /// From the root of a mount.
    Path { place: Place, parts: Box<[Part]> },
}

/// In which mounts a pattern with a `/` is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In all: it names none. Other mounts' names are matched as they are printed, `skills/<id>/...`.
    All,
    /// In the workspace only: it begins with `workspace/`.
    Workspace,
    /// In another mount only: it begins with that mount's name.
    Other,
}

impl Pattern {
    /// Compiles `text` for a sandbox with these mounts; the error says what is wrong and what to write.
    pub fn compile(text: &str, mounts: &[String]) -> Result<Self, String> {
        if text.is_empty() {
            return Err("the pattern is empty; `*` is every resource".to_owned());
        }
        if text.len() > MAX_PATTERN_BYTES {
            return Err(format!("the pattern has {} bytes; at most {MAX_PATTERN_BYTES} are accepted", text.len()));
        }
        if text.matches('{').count() > MAX_ALTERNATIVES {
            return Err(format!("the pattern has more than {MAX_ALTERNATIVES} pairs of braces"));
        }
        let mut alternatives = Vec::new();
        expand(text, &mut alternatives)?;
        let shapes = alternatives.iter().map(|one| Shape::compile(one, mounts)).collect::<Result<_, _>>()?;
        Ok(Self { text: text.into(), shapes })
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The pattern for names that were [`fold`]ed. Only denies are ever folded: folding an allow would widen it.
    pub(crate) fn folded(&self) -> Self {
        Self { text: self.text.clone(), shapes: self.shapes.iter().map(Shape::folded).collect() }
    }

    /// Whether folding changes it.
    pub(crate) fn folds(&self) -> bool {
        matches!(fold(self.text.as_bytes()), Cow::Owned(_))
    }

    /// Whether it is exactly `*`.
    pub fn is_every(&self) -> bool {
        &*self.text == "*"
    }

    /// Whether it matches `resource`.
    pub fn matches(&self, resource: &Resource<'_>) -> bool {
        self.shapes.iter().any(|shape| shape.matches(resource))
    }

    /// Whether it matches `resource` or a folder above it.
    pub fn covers(&self, resource: &Resource<'_>) -> bool {
        let mut at = *resource;
        loop {
            if self.matches(&at) {
                return true;
            }
            if at.rel.is_empty() {
                return false;
            }
            at.rel = memchr::memrchr(b'/', at.rel).and_then(|slash| at.rel.get(..slash)).unwrap_or_default();
        }
    }
}

/// A name as a volume compares it that does not tell upper case from lower: NFC, in lower case. Bytes that are no text
/// stay as they are.
pub(crate) fn fold(name: &[u8]) -> Cow<'_, [u8]> {
    if name.iter().all(|b| b.is_ascii() && !b.is_ascii_uppercase()) {
        return Cow::Borrowed(name);
    }
    let mut out = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        let folded: String = chunk.valid().nfc().flat_map(char::to_lowercase).nfc().collect();
        out.extend_from_slice(folded.as_bytes());
        out.extend_from_slice(chunk.invalid());
    }
    Cow::Owned(out)
}

impl Part {
    fn folded(&self) -> Self {
        let bytes = |bytes: &[u8]| fold(bytes).into();
        match self {
            Self::AnyDepth => Self::AnyDepth,
            Self::Literal(literal) => Self::Literal(bytes(literal)),
            Self::Around(before, after) => Self::Around(bytes(before), bytes(after)),
            // Beyond ASCII a pattern that mixes wildcards is compared as it is written.
            Self::Glob(tokens) => Self::Glob(tokens.iter().map(Token::folded).collect()),
        }
    }
}

impl Token {
    fn folded(&self) -> Self {
        match self {
            Self::Byte(byte) => Self::Byte(byte.to_ascii_lowercase()),
            Self::Class(negated, ranges) => {
                let upper =
                    |(low, high): &(char, char)| Some((*low.max(&'A'), *high.min(&'Z'))).filter(|(l, h)| l <= h);
                let lower =
                    ranges.iter().filter_map(upper).map(|(l, h)| (l.to_ascii_lowercase(), h.to_ascii_lowercase()));
                Self::Class(*negated, ranges.iter().copied().chain(lower).collect())
            }
            Self::One => Self::One,
            Self::Star => Self::Star,
        }
    }
}

impl Shape {
    fn folded(&self) -> Self {
        match self {
            Self::Every => Self::Every,
            Self::Name(part) => Self::Name(part.folded()),
            Self::Path { place, parts } => {
                Self::Path { place: *place, parts: parts.iter().map(Part::folded).collect() }
            }
        }
    }

    fn compile(text: &str, mounts: &[String]) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Every);
        }
        refuse_mistakes(text)?;
        if !text.contains('/') {
            let part = if text == "**" { "*" } else { text };
            return Part::compile(part).map(Self::Name);
        }
        let mut parts = Vec::new();
        let beneath = if text.ends_with('/') { Some("**") } else { None };
        for component in text.split('/').chain(beneath) {
            match component {
                "" | "." => {}
                "**" if matches!(parts.last(), Some(Part::AnyDepth)) => {}
                "**" => parts.push(Part::AnyDepth),
                _ => parts.push(Part::compile(component)?),
            }
        }
        let names = |mount: &str| {
            let mut parts = parts.iter();
            mount.split('/').all(|name| matches!(parts.next(), Some(Part::Literal(part)) if **part == *name.as_bytes()))
        };
        let place = if names(WORKSPACE) {
            parts.remove(0);
            Place::Workspace
        } else if mounts.iter().any(|mount| names(mount)) {
            Place::Other
        } else {
            Place::All
        };
        Ok(Self::Path { place, parts: parts.into() })
    }

    fn matches(&self, resource: &Resource<'_>) -> bool {
        match self {
            Self::Every => true,
            Self::Name(part) => part.matches(resource.name()),
            Self::Path { place, parts } => {
                let mut components = resource.components();
                let here = match place {
                    Place::All => true,
                    Place::Workspace if resource.mount.is_empty() => components.take() == Some(WORKSPACE.as_bytes()),
                    Place::Workspace => resource.mount == WORKSPACE,
                    Place::Other => resource.mount != WORKSPACE,
                };
                here && match_parts(parts, components)
            }
        }
    }
}

/// Refuses what reads like something that patterns do not have.
fn refuse_mistakes(text: &str) -> Result<(), String> {
    if text.contains('\0') {
        return Err("NUL is in no name".to_owned());
    }
    if text.starts_with('/') {
        return Err(format!(
            "patterns are sandbox paths, not host paths; write `workspace{text}` for a path from the workspace's root"
        ));
    }
    if text == "~" || text.starts_with("~/") {
        return Err("patterns are sandbox paths; `~` is outside the sandbox".to_owned());
    }
    if text.starts_with('!') {
        return Err("there is no negation; write a later rule, or `\\!` for the character".to_owned());
    }
    if text.split('/').any(|component| component == "..") {
        return Err("`..` is in no canonical sandbox path".to_owned());
    }
    Ok(())
}

/// Matches components: a failure steps back to the last `**`, which swallows one component more.
fn match_parts(parts: &[Part], mut names: Components<'_>) -> bool {
    let mut at = 0;
    let mut retry: Option<(usize, Components<'_>)> = None;
    loop {
        let matched = match parts.get(at) {
            Some(Part::AnyDepth) => {
                at += 1;
                if at == parts.len() {
                    return true;
                }
                retry = Some((at, names));
                continue;
            }
            Some(part) => names.take().is_some_and(|name| part.matches(name)),
            None if names.take().is_none() => return true,
            None => false,
        };
        if matched {
            at += 1;
            continue;
        }
        let Some((back, mut from)) = retry else { return false };
        if from.take().is_none() {
            return false;
        }
        (at, names, retry) = (back, from, Some((back, from)));
    }
}

/// A component of a pattern.
#[derive(Clone, Debug)]
enum Part {
    /// `**`.
    AnyDepth,
    /// No wildcard in it.
    Literal(Box<[u8]>),
    /// One `*` and what stands before and after it.
    Around(Box<[u8]>, Box<[u8]>),
    /// With other wildcards.
    Glob(Box<[Token]>),
}

/// A piece of a component with wildcards.
#[derive(Clone, Debug)]
enum Token {
    /// This byte.
    Byte(u8),
    /// `?`.
    One,
    /// `*`.
    Star,
    /// `[...]`: whether it is negated, and its ranges.
    Class(bool, Box<[(char, char)]>),
}

impl Part {
    fn compile(text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            match c {
                '*' if matches!(tokens.last(), Some(Token::Star)) => {}
                '*' => tokens.push(Token::Star),
                '?' => tokens.push(Token::One),
                '[' => tokens.push(class(&mut chars)?),
                '\\' => {
                    let escaped =
                        chars.next().ok_or("`\\` stands at the end of a component; write `\\\\` for the character")?;
                    push_char(&mut tokens, escaped);
                }
                _ => push_char(&mut tokens, c),
            }
        }
        let literal = |tokens: &[Token]| {
            let byte = |token: &Token| if let Token::Byte(byte) = token { Some(*byte) } else { None };
            tokens.iter().map(byte).collect::<Option<Box<[u8]>>>()
        };
        if let Some(bytes) = literal(&tokens) {
            return Ok(Self::Literal(bytes));
        }
        let mut sides = tokens.splitn(2, |token| matches!(token, Token::Star));
        let mut side = || sides.next().and_then(literal);
        if let (Some(before), Some(after)) = (side(), side()) {
            return Ok(Self::Around(before, after));
        }
        Ok(Self::Glob(tokens.into()))
    }

    fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::AnyDepth => true,
            Self::Literal(bytes) => **bytes == *name,
            Self::Around(before, after) => name.strip_prefix(&**before).is_some_and(|rest| rest.ends_with(after)),
            Self::Glob(tokens) => match_tokens(tokens, name),
        }
    }
}

fn push_char(tokens: &mut Vec<Token>, c: char) {
    tokens.extend(c.encode_utf8(&mut [0; 4]).bytes().map(Token::Byte));
}

/// Reads a class whose `[` was taken.
fn class(chars: &mut std::str::Chars<'_>) -> Result<Token, String> {
    let unclosed = || "`[` is not closed in its component; write `\\[` for the character".to_owned();
    let mut ranges: Vec<(char, char)> = Vec::new();
    let negated = chars.as_str().starts_with(['!', '^']);
    if negated {
        chars.next();
    }
    let mut first = true;
    loop {
        let low = match chars.next().ok_or_else(unclosed)? {
            ']' if !first => return Ok(Token::Class(negated, ranges.into())),
            '[' if chars.as_str().starts_with([':', '.', '=']) => {
                return Err("named classes such as `[[:alpha:]]` are not accepted; write the range, `[a-z]`".to_owned());
            }
            '\\' => chars.next().ok_or_else(unclosed)?,
            c => c,
        };
        first = false;
        let mut ahead = chars.clone();
        let high = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(']') | None) => low,
            (Some('-'), Some('\\')) => {
                let escaped = ahead.next().ok_or_else(unclosed)?;
                *chars = ahead;
                escaped
            }
            (Some('-'), Some(high)) => {
                *chars = ahead;
                high
            }
            _ => low,
        };
        if low > high {
            return Err(format!("the range `{low}-{high}` is the wrong way round"));
        }
        ranges.push((low, high));
    }
}

/// Matches one component: a failure steps back to the last `*`, which swallows one character more.
fn match_tokens(tokens: &[Token], name: &[u8]) -> bool {
    let (mut at, mut rest) = (0, name);
    let mut retry: Option<(usize, &[u8])> = None;
    loop {
        let taken = match tokens.get(at) {
            Some(Token::Star) => {
                at += 1;
                if at == tokens.len() {
                    return true;
                }
                retry = Some((at, rest));
                continue;
            }
            Some(Token::Byte(byte)) => usize::from(rest.first() == Some(byte)),
            Some(Token::One) => first_char(rest).1,
            Some(Token::Class(negated, ranges)) => match first_char(rest) {
                (Some(c), len) if ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated => len,
                (None, len) if *negated => len,
                _ => 0,
            },
            None if rest.is_empty() => return true,
            None => 0,
        };
        if taken > 0 {
            at += 1;
            rest = rest.get(taken..).unwrap_or_default();
            continue;
        }
        let Some((back, from)) = retry else { return false };
        if from.is_empty() {
            return false;
        }
        rest = from.get(first_char(from).1..).unwrap_or_default();
        at = back;
        retry = Some((back, rest));
    }
}

/// The character that `bytes` begins with and its length; no character and 1 for a byte that begins none; 0 at the end.
fn first_char(bytes: &[u8]) -> (Option<char>, usize) {
    let Some(first) = bytes.first() else { return (None, 0) };
    if first.is_ascii() {
        return (Some(char::from(*first)), 1);
    }
    let c = bytes.get(..bytes.len().min(4)).and_then(|window| window.utf8_chunks().next()?.valid().chars().next());
    (c, c.map_or(1, char::len_utf8))
}

/// Writes out the braces of `text`, the first pair first; escapes and classes are passed over.
fn expand(text: &str, out: &mut Vec<String>) -> Result<(), String> {
    let Some((open, commas, close)) = braces(text)? else {
        if out.len() == MAX_ALTERNATIVES {
            return Err(format!("the braces make more than {MAX_ALTERNATIVES} alternatives"));
        }
        out.push(text.to_owned());
        return Ok(());
    };
    let (before, after) = (text.get(..open).unwrap_or_default(), text.get(close + 1..).unwrap_or_default());
    let mut from = open + 1;
    for to in commas.into_iter().chain([close]) {
        let one = text.get(from..to).unwrap_or_default();
        expand(&[before, one, after].concat(), out)?;
        from = to + 1;
    }
    Ok(())
}

/// Where the first pair of braces opens, its commas, and where it closes.
fn braces(text: &str) -> Result<Option<(usize, Vec<usize>, usize)>, String> {
    let (mut open, mut depth, mut commas) = (0, 0_usize, Vec::new());
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            '[' => {
                let mut inner = chars.as_str().chars();
                class(&mut inner)?;
                let end = text.len() - inner.as_str().len();
                while chars.offset() < end {
                    chars.next();
                }
            }
            '{' => {
                depth += 1;
                if depth == 1 {
                    open = at;
                }
            }
            ',' if depth == 1 => commas.push(at),
            '}' if depth == 1 => return Ok(Some((open, commas, at))),
            '}' if depth > 1 => depth -= 1,
            '}' => return Err("`}` closes nothing; write `\\}` for the character".to_owned()),
            _ => {}
        }
    }
    if depth > 0 {
        return Err("`{` is not closed; write `\\{` for the character".to_owned());
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mounts() -> Vec<String> {
        ["workspace", "deliverables", "docs", "skills/csv"].map(str::to_owned).to_vec()
    }

    fn matches(pattern: &str, path: &str) -> bool {
        let mounts = mounts();
        Pattern::compile(pattern, &mounts).unwrap().matches(&Resource::parse(path, &mounts))
    }

    #[test]
    fn a_folded_pattern_matches_what_a_folding_volume_takes_for_the_same_name() {
        let mounts = ["Docs".to_owned()];
        for (pattern, mount, name, hit) in [
            ("private/**", "workspace", "Private/K", true),
            ("Private/**", "workspace", "private/k", true),
            ("*.PEM", "workspace", "a.pem", true),
            ("caf\u{e9}", "workspace", "CAFE\u{301}", true),
            ("[A-C]?x", "workspace", "BZX", true),
            ("Docs/Secret/*", "Docs", "SECRET/a", true),
            ("Docs/Secret/*", "workspace", "SECRET/a", false),
            ("private/**", "workspace", "privat/k", false),
        ] {
            let folded = Pattern::compile(pattern, &mounts).unwrap().folded();
            let (mount, rel) = (mount.to_lowercase(), fold(name.as_bytes()));
            assert_eq!(folded.matches(&Resource { mount: &mount, rel: &rel }), hit, "{pattern} {name}");
        }
        assert_eq!(fold(b"A\xffB"), &b"a\xffb"[..]);
        assert!(matches!(fold(b"plain/name-1.txt"), Cow::Borrowed(_)));
    }

    #[test]
    fn table_of_patterns() {
        for (pattern, yes, no) in [
            ("*", vec![".", "a", "docs", "docs/a/b", "skills/csv/SKILL.md"], vec![]),
            ("**", vec![".", "a", "docs/a/b"], vec![]),
            ("*.pem", vec!["x.pem", "a/b/x.pem", "docs/x.pem", ".pem"], vec!["x.pem/a", "x.PEM"]),
            ("private", vec!["private", "a/private", "docs/private"], vec!["private/a"]),
            ("docs", vec!["docs", "a/docs", "workspace/docs"], vec!["docs/a"]),
            ("src/*.py", vec!["src/a.py"], vec!["src/a/b.py", "docs/src/a.py", "a/src/a.py"]),
            (
                "private/**",
                vec!["private", "private/a", "private/a/b"],
                vec!["privates", "docs/private/a", "a/private"],
            ),
            ("private/", vec!["private", "private/a/b"], vec!["a/private"]),
            ("./build", vec!["build"], vec!["a/build", "docs/build"]),
            ("docs/**", vec!["docs", "docs/a"], vec!["workspace/docs/a", "a/docs/a"]),
            ("docs/a", vec!["docs/a"], vec!["workspace/docs/a"]),
            ("workspace/docs/**", vec!["workspace/docs", "workspace/docs/a"], vec!["docs/a"]),
            ("workspace/**", vec![".", "a", "workspace/docs/a", "workspace"], vec!["docs/a", "skills/csv/a"]),
            ("skills/csv/*", vec!["skills/csv/SKILL.md"], vec!["skills/csv", "workspace/skills/csv/a"]),
            ("skills/**", vec!["skills/csv/SKILL.md", "skills/other/x", "skills"], vec!["a/skills/x"]),
            ("**/.git/**", vec![".git", ".git/x", "a/.git", "docs/a/.git/x/y"], vec!["a/.gitx"]),
            ("a/**/b", vec!["a/b", "a/x/b", "a/x/y/b", "a/b/b"], vec!["a", "b", "a/b/c"]),
            ("a/**/b/**/c", vec!["a/b/c", "a/b/b/x/c", "a/x/b/c/c"], vec!["a/c/b"]),
            ("a?c", vec!["abc", "aéc", "x/a€c"], vec!["ac", "abbc", "a/c"]),
            ("[a-c]x[!0-9]", vec!["bxa", "axé"], vec!["dxa", "ax0", "ax"]),
            ("[]x]", vec!["]", "x"], vec!["[", "y"]),
            ("[a-]", vec!["a", "-"], vec!["b"]),
            ("\\*", vec!["*", "a/*"], vec!["a"]),
            ("*.{pem,k{e,a}y}", vec!["a.pem", "a.key", "a.kay"], vec!["a.kxy"]),
            ("{docs,src}/**", vec!["docs/a", "src/a"], vec!["workspace/docs/a"]),
            ("{a,b/c}", vec!["x/a", "b/c"], vec!["x/b/c"]),
            ("[{]", vec!["{"], vec!["a"]),
            ("\\{a\\}", vec!["{a}"], vec!["a"]),
            ("a**b", vec!["ab", "axxb"], vec!["a/b"]),
            ("*a*b*", vec!["ab", "xaxbx"], vec!["ba"]),
        ] {
            for path in yes {
                assert!(matches(pattern, path), "`{pattern}` must match `{path}`");
            }
            for path in no {
                assert!(!matches(pattern, path), "`{pattern}` must not match `{path}`");
            }
        }
    }

    #[test]
    fn what_is_a_mistake_is_refused() {
        for (pattern, part) in [
            ("", "empty"),
            ("/etc/passwd", "workspace/etc/passwd"),
            ("~/x", "outside"),
            ("!x", "negation"),
            ("a/../b", "`..`"),
            ("[a", "`[` is not closed"),
            ("[a/b]", "not closed"),
            ("[]", "not closed"),
            ("[z-a]", "wrong way"),
            ("[[:alpha:]]", "named classes"),
            ("a\\", "at the end"),
            ("{a", "`{` is not closed"),
            ("a}", "closes nothing"),
            ("{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}", "alternatives"),
            ("a\0", "NUL"),
        ] {
            let error = Pattern::compile(pattern, &mounts()).unwrap_err();
            assert!(error.contains(part), "`{pattern}`: {error}");
        }
        assert!(Pattern::compile(&"a".repeat(MAX_PATTERN_BYTES + 1), &mounts()).is_err());
    }

    #[test]
    fn names_are_bytes() {
        let pattern = Pattern::compile("a?b", &mounts()).unwrap();
        assert!(pattern.matches(&Resource::path("workspace", b"a\xffb")));
        let pattern = Pattern::compile("*??", &mounts()).unwrap();
        assert!(!pattern.matches(&Resource::path("workspace", "€".as_bytes())));
        let pattern = Pattern::compile("*.txt", &mounts()).unwrap();
        assert!(pattern.matches(&Resource::path("docs", b"\xe9j\xe0.txt")));
    }

    #[test]
    fn other_resources_match_as_they_are_written() {
        let text =
            |pattern: &str, text: &str| Pattern::compile(pattern, &mounts()).unwrap().matches(&Resource::text(text));
        assert!(text("docs", "docs"));
        assert!(text("skills/*", "skills/csv"));
        assert!(text("workspace/x", "workspace/x"));
        assert!(!text("workspace/x", "x"));
        assert!(text("team/**", "team/alpha"));
        assert!(text("*", ""));
        assert!(!text("a*", ""));
    }

    #[test]
    fn covers_what_lies_beneath() {
        let covers = |pattern: &str, rel: &str| {
            Pattern::compile(pattern, &mounts()).unwrap().covers(&Resource::path("workspace", rel.as_bytes()))
        };
        assert!(covers("node_modules", "a/node_modules/b/c"));
        assert!(covers("a/b", "a/b/c"));
        assert!(!covers("a/b", "a/bc"));
    }

    #[test]
    fn hostile_patterns_end_soon() {
        let name = "a".repeat(255);
        let path = [&*name; 16].join("/");
        for pattern in
            ["*a".repeat(2000) + "b", "a*".repeat(100) + "/b", "**/*a*a*a*a/".repeat(300) + "b", "?".repeat(4096)]
        {
            let pattern = Pattern::compile(&pattern, &mounts()).unwrap();
            let start = std::time::Instant::now();
            assert!(!pattern.matches(&Resource::path("workspace", path.as_bytes())));
            assert!(start.elapsed().as_secs() < 2);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        /// The same answers as another implementation, where the languages are the same.
        #[test]
        fn agrees_with_globset(pattern in "(\\*?[ab?]){1,3}\\*?(/((\\*?[ab?]){1,3}|\\*|\\*\\*)){1,4}", path in "[abc]{1,3}(/[abc]{1,3}){0,5}") {
            let theirs = globset::GlobBuilder::new(&pattern).literal_separator(true).build().unwrap().compile_matcher();
            // `d/**` includes `d` here and not there.
            let short = pattern.trim_end_matches("/**");
            let included = short != pattern && globset::GlobBuilder::new(short).literal_separator(true).build().unwrap().compile_matcher().is_match(&path);
            let ours = Pattern::compile(&pattern, &mounts()).unwrap();
            prop_assert_eq!(ours.matches(&Resource::path("workspace", path.as_bytes())), theirs.is_match(&path) || included);
        }

        #[test]
        fn any_text_compiles_or_is_refused(pattern in ".{0,40}", name in proptest::collection::vec(any::<u8>(), 0..20)) {
            if let Ok(pattern) = Pattern::compile(&pattern, &mounts()) {
                pattern.matches(&Resource::path("docs", &name));
                pattern.covers(&Resource::path("workspace", &name));
            }
        }

        #[test]
        fn an_escaped_name_matches_only_itself(name in "[^/\0]{1,12}", other in "[^/\0]{1,12}") {
            let escaped: String = name.chars().flat_map(|c| ['\\', c]).collect();
            let pattern = Pattern::compile(&escaped, &mounts()).unwrap();
            prop_assert!(pattern.matches(&Resource::path("workspace", name.as_bytes())));
            prop_assert_eq!(pattern.matches(&Resource::path("workspace", other.as_bytes())), name == other);
        }
    }
}
