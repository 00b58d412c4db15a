//! [`SandboxPath`]: a model-facing path that has been parsed. It names a place beneath a mount and cannot name any
//! other; whether something is there, and whether a link leads on from it, only the resolver knows.

use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::error::{Code, ToolError};

/// The mount that relative paths start in.
pub(crate) const WORKSPACE: &str = "workspace";
/// The longest path, in bytes, as the kernel has it.
pub(crate) const MAX_PATH_BYTES: usize = 4095;
/// The longest component, in bytes.
const MAX_COMPONENT_BYTES: usize = 255;

/// What parsing must know of the mounts, in their order; the first is the workspace.
#[derive(Debug)]
pub(crate) struct MountTable {
    pub(crate) names: Vec<String>,
    /// The host paths of each mount's root, as components: as given and as resolved.
    pub(crate) roots: Vec<(usize, Vec<Vec<u8>>)>,
}

/// A place beneath a mount: the mount and a name of `/`-separated components without `.`, `..` or empty ones.
#[derive(Clone)]
pub struct SandboxPath {
    table: Arc<MountTable>,
    mount: usize,
    rel: Vec<u8>,
    /// The components as sent, where they held a `..` that may follow a link.
    detour: Option<Box<[u8]>>,
}

impl SandboxPath {
    pub(crate) fn new(table: &Arc<MountTable>, mount: usize, rel: Vec<u8>) -> Self {
        Self { table: Arc::clone(table), mount, rel, detour: None }
    }

    /// The mount's name.
    pub fn mount(&self) -> &str {
        self.table.names.get(self.mount).map_or("", String::as_str)
    }

    pub(crate) fn mount_index(&self) -> usize {
        self.mount
    }

    /// The name beneath the mount's root; empty for the root itself. Bytes: a name need not be UTF-8.
    pub fn rel(&self) -> &[u8] {
        &self.rel
    }

    pub(crate) fn detour(&self) -> Option<&[u8]> {
        self.detour.as_deref()
    }

    /// The last component; empty for a mount's root.
    pub fn name(&self) -> &[u8] {
        self.rel.rsplit(|b| *b == b'/').next().unwrap_or_default()
    }

    /// The directory that holds it; the root is its own parent.
    #[must_use]
    pub fn parent(&self) -> Self {
        let end = memchr::memrchr(b'/', &self.rel).unwrap_or(0);
        self.at(self.rel.get(..end).unwrap_or_default().to_vec())
    }

    /// The entry `name` of this directory.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Self {
        let mut rel = Vec::with_capacity(self.rel.len() + 1 + name.len());
        rel.extend_from_slice(&self.rel);
        if !rel.is_empty() {
            rel.push(b'/');
        }
        rel.extend_from_slice(name);
        self.at(rel)
    }

    /// Becomes the entry `name` of `dir`, of which it was an entry or itself before.
    pub(crate) fn set_entry(&mut self, dir: &Self, name: &[u8]) {
        self.rel.truncate(dir.rel.len());
        if !self.rel.is_empty() {
            self.rel.push(b'/');
        }
        self.rel.extend_from_slice(name);
    }

    /// Another name of the same mount.
    pub(crate) fn at(&self, rel: Vec<u8>) -> Self {
        Self { table: Arc::clone(&self.table), mount: self.mount, rel, detour: None }
    }

    /// The same name beneath another mount.
    pub(crate) fn on(&self, mount: usize, rel: Vec<u8>) -> Self {
        Self { table: Arc::clone(&self.table), mount, rel, detour: None }
    }

    /// The path for a `path:line:text` row: quoted too where it holds a colon, so that no name forges a row.
    pub fn row(&self) -> String {
        let text = self.plain();
        match text {
            Some(text) if !text.contains(':') => text,
            _ => self.quoted(),
        }
    }

    /// The unquoted text, where that reads back as this path.
    fn plain(&self) -> Option<String> {
        let rel = std::str::from_utf8(&self.rel).ok()?;
        if rel.bytes().any(|b| !(0x20..0x7f).contains(&b) || matches!(b, b'"' | b'\\')) && rel.chars().any(must_quote) {
            return None;
        }
        let prefix = self.prefix();
        let mut text = String::with_capacity(prefix.len() + rel.len() + 1);
        text.push_str(prefix);
        if !prefix.is_empty() && !rel.is_empty() {
            text.push('/');
        }
        text.push_str(rel);
        if text.is_empty() {
            text.push('.');
        }
        Some(text)
    }

    /// The mount's name where the text must begin with it.
    fn prefix(&self) -> &str {
        let ambiguous = || self.rel.first() == Some(&b'~') || select_mount(&self.table.names, &self.rel).is_some();
        if self.mount() == WORKSPACE && !ambiguous() { "" } else { self.mount() }
    }

    fn quoted(&self) -> String {
        let prefix = self.prefix();
        let mut out = String::with_capacity(prefix.len() + self.rel.len() + 8);
        out.push('"');
        out.push_str(prefix);
        if !prefix.is_empty() && !self.rel.is_empty() {
            out.push('/');
        }
        for chunk in self.rel.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '"' => out.push_str("\\\""),
                    '\\' => out.push_str("\\\\"),
                    '\n' => out.push_str("\\n"),
                    '\t' => out.push_str("\\t"),
                    '\r' => out.push_str("\\r"),
                    c if must_quote(c) => {
                        let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
                    }
                    c => out.push(c),
                }
            }
            for byte in chunk.invalid() {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
        out.push('"');
        out
    }
}

impl PartialEq for SandboxPath {
    fn eq(&self, other: &Self) -> bool {
        self.mount() == other.mount() && self.rel == other.rel
    }
}

impl Eq for SandboxPath {}

impl Hash for SandboxPath {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.mount().hash(state);
        self.rel.hash(state);
    }
}

impl fmt::Display for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plain().unwrap_or_else(|| self.quoted()))
    }
}

impl fmt::Debug for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SandboxPath({self})")
    }
}

/// Whether a name with `c` prints in the quoted form.
fn must_quote(c: char) -> bool {
    matches!(c, '"' | '\\') || is_deceptive(c)
}

/// Whether a reader does not see the character, or it changes what they see around it.
pub(crate) fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}')
        || matches!(u32::from(c),
            0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890 | 0x891 | 0x8e2 | 0x180e | 0x200b..=0x200f
            | 0x202a..=0x202e | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb | 0x110bd | 0x110cd | 0x13430..=0x1343f
            | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a | 0xe0000..=0xe007f)
}

/// The components of `bytes` that mean something.
pub(crate) fn components(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|b| *b == b'/').filter(|c| !c.is_empty() && *c != b".")
}

/// The mount that a relative path's first component (or two: `skills/<id>`) names, and the rest.
fn select_mount<'a>(names: &[String], rel: &'a [u8]) -> Option<(usize, &'a [u8])> {
    let under = |name: &str| {
        let rest = rel.strip_prefix(name.as_bytes())?;
        if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
    };
    names.iter().enumerate().find_map(|(index, name)| under(name).map(|rest| (index, rest)))
}

/// Reads model-facing text. The rules are those of the design's section 6: nothing is decoded, folded or re-rooted.
pub(crate) fn parse(table: &Arc<MountTable>, text: &str) -> Result<SandboxPath, ToolError> {
    let shown = || one_line(text);
    if text.is_empty() {
        return Err(ToolError::new(Code::InvalidArgs, "the path is empty").hint("Send `.` for the workspace."));
    }
    if text.contains('\0') {
        return Err(ToolError::new(Code::InvalidArgs, format!("the path `{}` holds a NUL character", shown()))
            .hint("Send a path without it."));
    }
    let decoded;
    let (bytes, quoted): (&[u8], bool) = match text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        Some(inner) => {
            decoded = unquote(inner).ok_or_else(|| {
                ToolError::new(Code::InvalidArgs, format!("the quoted path `{}` cannot be read", shown()))
                    .hint(r#"Inside quotes only \\ \" \n \t \r \xHH and \u{HEX} are escapes."#)
            })?;
            (&decoded, true)
        }
        None => (text.as_bytes(), false),
    };
    if bytes.is_empty() || bytes.contains(&0) {
        return Err(ToolError::new(Code::InvalidArgs, format!("the path `{}` is not a name", shown())));
    }
    if bytes.len() > MAX_PATH_BYTES || components(bytes).any(|c| c.len() > MAX_COMPONENT_BYTES) {
        return Err(ToolError::new(Code::InvalidArgs, "the path is too long")
            .hint("A path has at most 4095 bytes and each component at most 255."));
    }
    if !quoted && bytes.first() == Some(&b'~') {
        return Err(outside(&shown(), "`~` is not expanded").hint("Send a path relative to the workspace."));
    }
    let (mount, rest) = if bytes.first() == Some(&b'/') {
        locate(table, bytes).ok_or_else(|| {
            outside(&shown(), "the absolute path lies in no mount").hint("Send a path relative to the workspace.")
        })?
    } else {
        let joined = components(bytes).collect::<Vec<_>>().join(&b'/');
        match select_mount(&table.names, &joined) {
            Some((mount, rest)) => (mount, rest.to_vec()),
            None => (0, joined),
        }
    };
    let (rel, detour) = fold(&rest).ok_or_else(|| {
        outside(&shown(), "`..` leads out of the mount").hint("Send a path that stays inside the workspace.")
    })?;
    Ok(SandboxPath { table: Arc::clone(table), mount, rel, detour: detour.then(|| rest.into_boxed_slice()) })
}

/// The deepest mount that a host-absolute path lies in, and the rest of the path.
pub(crate) fn locate(table: &MountTable, bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
    let parts: Vec<&[u8]> = components(bytes).collect();
    table
        .roots
        .iter()
        .filter(|(_, root)| root.len() <= parts.len() && root.iter().zip(&parts).all(|(a, b)| a == b))
        .max_by_key(|(_, root)| root.len())
        .map(|(mount, root)| (*mount, parts.get(root.len()..).unwrap_or_default().join(&b'/')))
}

/// `rel` with each `..` folded away and whether there was one; `None` where one leads above the start.
fn fold(rel: &[u8]) -> Option<(Vec<u8>, bool)> {
    if memchr::memmem::find(rel, b"..").is_none() {
        return Some((rel.to_vec(), false));
    }
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut detour = false;
    for part in components(rel) {
        if part == b".." {
            detour = true;
            kept.pop()?;
        } else {
            kept.push(part);
        }
    }
    Some((kept.join(&b'/'), detour))
}

fn outside(shown: &str, why: &str) -> ToolError {
    ToolError::new(Code::OutsideSandbox, format!("`{shown}` is outside the sandbox: {why}"))
}

fn one_line(text: &str) -> String {
    text.chars()
        .take(120)
        .flat_map(|c| if must_quote(c) { c.escape_unicode().collect::<Vec<_>>() } else { vec![c] })
        .collect()
}

/// The bytes that the inside of a quoted form stands for.
fn unquote(inner: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = memchr::memchr2(b'\\', b'"', rest.as_bytes()) {
        let (clean, escape) = rest.split_at_checked(at)?;
        out.extend_from_slice(clean.as_bytes());
        let escape = escape.strip_prefix('\\')?;
        let kind = escape.chars().next()?;
        let after = escape.get(kind.len_utf8()..)?;
        rest = match kind {
            '\\' | '"' => {
                out.push(u8::try_from(u32::from(kind)).ok()?);
                after
            }
            'n' | 't' | 'r' => {
                out.push(match kind {
                    'n' => b'\n',
                    't' => b'\t',
                    _ => b'\r',
                });
                after
            }
            'x' => {
                let (digits, after) = after.split_at_checked(2)?;
                out.push(hex(digits)?.try_into().ok()?);
                after
            }
            'u' => {
                let (digits, after) = after.strip_prefix('{')?.split_once('}')?;
                out.extend_from_slice(char::from_u32(hex(digits)?)?.encode_utf8(&mut [0; 4]).as_bytes());
                after
            }
            _ => return None,
        };
    }
    out.extend_from_slice(rest.as_bytes());
    Some(out)
}

fn hex(digits: &str) -> Option<u32> {
    let plain = (1..=6).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table() -> Arc<MountTable> {
        let roots = [(0, "/srv/ws"), (1, "/srv/ws/runs/r/deliverables"), (2, "/srv/docs"), (3, "/skills/x")];
        Arc::new(MountTable {
            names: ["workspace", "deliverables", "docs", "skills/x"].map(String::from).to_vec(),
            roots: roots.iter().map(|(i, p)| (*i, components(p.as_bytes()).map(<[u8]>::to_vec).collect())).collect(),
        })
    }

    fn read(text: &str) -> Result<(String, String), Code> {
        let path = parse(&table(), text).map_err(|e| e.code)?;
        Ok((path.mount().to_owned(), String::from_utf8_lossy(path.rel()).into_owned()))
    }

    #[test]
    fn text_selects_its_mount_and_folds() {
        let ok = |text: &str, mount: &str, rel: &str| {
            assert_eq!(read(text), Ok((mount.to_owned(), rel.to_owned())), "{text}");
        };
        ok("a.txt", "workspace", "a.txt");
        ok(".", "workspace", "");
        ok("./deliverables/r.md", "deliverables", "r.md");
        ok("workspace/deliverables/r.md", "workspace", "deliverables/r.md");
        ok("deliverablesx", "workspace", "deliverablesx");
        ok("skills/x/SKILL.md", "skills/x", "SKILL.md");
        ok("skills/y", "workspace", "skills/y");
        ok("a//./b/", "workspace", "a/b");
        ok("a/../b", "workspace", "b");
        ok("[...slug].ts", "workspace", "[...slug].ts");
        ok("...", "workspace", "...");
        ok("/srv/ws/a", "workspace", "a");
        ok("/srv/ws/runs/r/deliverables/b", "deliverables", "b");
        ok("a~", "workspace", "a~");
        ok("sub/~b.txt", "workspace", "sub/~b.txt");
        ok("%2e%2e/secret", "workspace", "%2e%2e/secret");
        ok("a\\b", "workspace", "a\\b");
        ok(r#""a\x2fb\n""#, "workspace", "a/b\n");
    }

    #[test]
    fn text_that_leads_out_is_refused() {
        for text in [
            "..",
            "../x",
            "a/../../x",
            "../ws/a.txt",
            "docs/../a",
            "/etc/hostname",
            "/srv/ws-evil/s",
            "~",
            "~/x",
            "~root/x",
            "/srv/ws/../ws/a",
            "/",
        ] {
            assert_eq!(read(text), Err(Code::OutsideSandbox), "{text}");
        }
        for text in ["", "a\0b", "\"a\\q\"", "\"a\\x00\"", &"x".repeat(256), &"a/".repeat(3000)] {
            assert_eq!(read(text), Err(Code::InvalidArgs), "{text}");
        }
    }

    #[test]
    fn odd_names_print_quoted() {
        let path = |rel: &[u8]| SandboxPath::new(&table(), 0, rel.to_vec()).to_string();
        assert_eq!(path(b"d\xe9j\xe0.txt"), r#""d\xe9j\xe0.txt""#);
        assert_eq!(path("a\u{202e}b".as_bytes()), r#""a\u{202e}b""#);
        assert_eq!(path(b"docs/x"), "workspace/docs/x");
        assert_eq!(path(b"~x"), "workspace/~x");
        assert_eq!(path("caf\u{e9} 1".as_bytes()), "caf\u{e9} 1");
        assert_eq!(SandboxPath::new(&table(), 0, b"a:1:b".to_vec()).row(), r#""a:1:b""#);
    }

    proptest! {
        #[test]
        fn a_printed_path_reads_back(parts in prop::collection::vec(prop::collection::vec(1u8..=255, 1..12), 0..4), mount in 0usize..4) {
            let rel = parts.iter().map(|p| p.iter().map(|b| if *b == b'/' { b'_' } else { *b }).collect::<Vec<u8>>())
                .filter(|p| p != b"." && p != b"..").collect::<Vec<_>>().join(&b'/');
            let path = SandboxPath::new(&table(), mount, rel);
            let (printed, row) = (parse(&table(), &path.to_string()).unwrap(), parse(&table(), &path.row()).unwrap());
            prop_assert_eq!(&printed, &path);
            prop_assert_eq!(&row, &path);
        }

        #[test]
        fn no_text_names_a_place_above_a_mount(text in "\\PC{0,40}|[./~a\"\\\\]{0,20}") {
            if let Ok(path) = parse(&table(), &text) {
                prop_assert!(components(path.rel()).all(|c| c != b".."));
                prop_assert!(!path.rel().starts_with(b"/"));
            }
        }
    }
}
