//! [`Globs`]: the globs that a model sends to choose names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{ErrorKind, Glob, GlobBuilder, GlobMatcher, GlobSet};

use crate::error::{Code, ToolError};
use crate::sandbox::{SandboxPath, beneath};

/// The longest glob, in bytes.
const MAX_GLOB_BYTES: usize = 4096;

/// A glob: `*` and `?` stay in a component, `**` crosses, `{a,b}` chooses. Without `/` it is matched against the last
/// component, else against the name below the start.
#[derive(Debug)]
pub(crate) struct Globs {
    /// Of one glob: unlike a matcher, it knows what to do for a plain suffix.
    matcher: GlobSet,
    text: String,
    whole: bool,
}

impl Globs {
    /// Compiles the text of argument `name`.
    pub(crate) fn compile(name: &str, text: &str) -> Result<Self, ToolError> {
        let invalid = |why: String| {
            Err(ToolError::new(Code::InvalidPattern, format!("`{name}` is not a glob: {why}"))
                .hint("Write `*`, `?`, `**`, `[ab]` and `{a,b}`; put a literal bracket in brackets: `[[]`."))
        };
        if text.is_empty() || text.contains('\0') {
            return Err(ToolError::new(Code::InvalidArgs, format!("`{name}` is empty or holds a NUL character"))
                .hint("Send a glob such as `*.py` or `src/**`."));
        }
        if text.len() > MAX_GLOB_BYTES {
            return invalid(format!("it is over {MAX_GLOB_BYTES} bytes"));
        }
        let text = text.strip_prefix("./").unwrap_or(text);
        // What begins with `/` was split off a folder: it is matched from there, not at any depth.
        let (text, whole) = text.strip_prefix('/').map_or((text, text.contains('/')), |rest| (rest, true));
        match glob(text, whole).and_then(|glob| GlobSet::builder().add(glob).build()) {
            Ok(matcher) => Ok(Self { matcher, text: text.to_owned(), whole }),
            Err(error) => invalid(format!("{}{}", error.kind(), place(text, error.kind()))),
        }
    }

    /// The components that themselves begin with a dot: names that match one are asked for.
    pub(crate) fn dotted(&self) -> Vec<GlobMatcher> {
        self.text
            .split('/')
            .filter(|part| part.starts_with('.'))
            .filter_map(|part| glob(part, true).ok())
            .map(|glob| glob.compile_matcher())
            .collect()
    }

    /// How deep names that match can lie.
    pub(crate) fn depth(&self) -> usize {
        let crosses = !self.whole || self.text.contains("**") || self.text.contains('{');
        if crosses { usize::MAX } else { self.text.split('/').count() }
    }

    /// The glob, without what only says where it begins.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether any character of it is more than itself.
    pub(crate) fn special(&self) -> bool {
        self.text.contains(['*', '?', '[', ']', '{', '}', '\\'])
    }

    /// Whether the glob names `path`, found below `start`.
    pub(crate) fn matches(&self, path: &SandboxPath, start: &SandboxPath) -> bool {
        let name = if self.whole { beneath(path.rel(), start.rel()).unwrap_or(path.rel()) } else { path.name() };
        self.matcher.is_match(Path::new(OsStr::from_bytes(name)))
    }
}

/// Where it is matched against one component only, no separator needs to be minded.
fn glob(text: &str, whole: bool) -> Result<Glob, globset::Error> {
    GlobBuilder::new(text).literal_separator(whole).backslash_escape(true).build()
}

/// Where an opening character has no closing one.
fn place(text: &str, kind: &ErrorKind) -> String {
    let open = match kind {
        ErrorKind::UnclosedClass => text.rfind('['),
        ErrorKind::UnclosedAlternates => text.rfind('{'),
        ErrorKind::UnopenedAlternates => text.find('}'),
        _ => None,
    };
    open.map(|at| format!(" at offset {at}")).unwrap_or_default()
}
