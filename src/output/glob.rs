//! [`Globs`]: the globs that a model sends to choose names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};

use crate::error::{Code, ToolError};
use crate::sandbox::{SandboxPath, beneath};

/// The longest glob, in bytes.
const MAX_GLOB_BYTES: usize = 4096;

/// A glob: `*` and `?` stay in a component, `**` crosses, `{a,b}` chooses. Without `/` it is matched against the last
/// component, else against the name below the start.
#[derive(Debug)]
pub(crate) struct Globs {
    matcher: GlobMatcher,
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
            return Err(ToolError::new(Code::InvalidArgs, format!("`{name}` is empty or holds a NUL character")));
        }
        if text.len() > MAX_GLOB_BYTES {
            return invalid(format!("it is over {MAX_GLOB_BYTES} bytes"));
        }
        let text = text.strip_prefix("./").unwrap_or(text);
        match GlobBuilder::new(text).literal_separator(true).backslash_escape(true).build() {
            Ok(glob) => Ok(Self { matcher: glob.compile_matcher(), whole: text.contains('/') }),
            Err(error) => invalid(error.kind().to_string()),
        }
    }

    /// Whether the glob names `path`, found below `start`.
    pub(crate) fn matches(&self, path: &SandboxPath, start: &SandboxPath) -> bool {
        let name = if self.whole { beneath(path.rel(), start.rel()).unwrap_or(path.rel()) } else { path.name() };
        self.matcher.is_match(Path::new(OsStr::from_bytes(name)))
    }
}
