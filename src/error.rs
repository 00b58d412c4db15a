//! Failures, in two families: a [`ToolError`] is the failure of one call and becomes a result; a [`KgentError`] is
//! the host's to mend and becomes an exception.

use serde::Serialize;
use serde_json::Value;

/// How a call ended, as its record says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The tool did what it was asked.
    Completed,
    /// It could not.
    Failed,
    /// It was not let.
    Blocked,
    /// Its time was up.
    Timeout,
    /// The host stopped it.
    Cancelled,
    /// The process died under it; written when the run is opened again.
    Interrupted,
}

impl Status {
    /// The word in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Blocked => "blocked",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }

    /// The status of this word.
    pub(crate) fn named(word: &str) -> Option<Self> {
        let all = [Self::Completed, Self::Failed, Self::Blocked, Self::Timeout, Self::Cancelled, Self::Interrupted];
        all.into_iter().find(|status| status.as_str() == word)
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident $text:literal $status:ident $mendable:literal;)*) => {
        /// The closed list of error codes; the text of each is stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code { $($(#[$doc])* $variant,)* }

        impl Code {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The stable text of the code.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// How a call that failed with this code is recorded.
            pub fn status(self) -> Status {
                match self { $(Self::$variant => Status::$status,)* }
            }

            /// Whether the model can mend the call by sending other arguments.
            pub fn mendable(self) -> bool {
                match self { $(Self::$variant => $mendable,)* }
            }
        }
    };
}

codes! {
    /// The arguments do not fit the schema.
    InvalidArgs "invalid_args" Failed true;
    /// Nothing of that name.
    NotFound "not_found" Failed true;
    /// Something of that name is there.
    AlreadyExists "already_exists" Failed true;
    /// A FIFO, socket, device, or a file that is not on real storage.
    NotRegularFile "not_regular_file" Failed true;
    /// A file was asked for, a directory is there.
    IsDirectory "is_directory" Failed true;
    /// A directory was asked for, something else is there.
    NotADirectory "not_a_directory" Failed true;
    /// Over a limit.
    TooLarge "too_large" Failed true;
    /// Not text.
    Binary "binary" Failed true;
    /// Text that cannot be kept in its encoding.
    Encoding "encoding" Failed true;
    /// The quoted text is not in the file.
    NoMatch "no_match" Failed true;
    /// The quoted text is there more than once.
    AmbiguousMatch "ambiguous_match" Failed true;
    /// The file changed since it was read.
    Stale "stale" Failed true;
    /// The patch's text breaks the grammar.
    PatchParse "patch_parse" Failed true;
    /// A hunk's place is not in the file.
    PatchNoMatch "patch_no_match" Failed true;
    /// The regex or glob does not compile.
    InvalidPattern "invalid_pattern" Failed true;
    /// The tool was closed or covered after it was offered.
    StaleTool "stale_tool" Failed true;
    /// A Python handler's own `ToolFailure`.
    Failed "failed" Failed true;
    /// The policy says no.
    Denied "denied" Blocked false;
    /// The policy says: ask the host.
    ApprovalRequired "approval_required" Blocked false;
    /// The name leads out of the mounts.
    OutsideSandbox "outside_sandbox" Blocked false;
    /// The mount, the name or the file is read-only.
    ReadOnly "read_only" Blocked false;
    /// The call's time was up.
    Timeout "timeout" Timeout false;
    /// The host cancelled the call.
    Cancelled "cancelled" Cancelled false;
    /// The process died under the call.
    Interrupted "interrupted" Interrupted false;
    /// No tool of that name.
    UnknownTool "unknown_tool" Failed false;
    /// A pinned name no longer leads to what was pinned.
    SandboxUnavailable "sandbox_unavailable" Failed false;
    /// The skill's folder breaks the format.
    SkillInvalid "skill_invalid" Failed false;
    /// The run's skill budget is used up.
    SkillBudgetExceeded "skill_budget_exceeded" Failed false;
    /// The memory client failed.
    MemoryUnavailable "memory_unavailable" Failed false;
    /// The call cannot be recorded.
    LogUnavailable "log_unavailable" Failed false;
    /// The operating system failed the call.
    Io "io" Failed false;
    /// A defect of the tool; its cause is in the error log only.
    Internal "internal" Failed false;
}

/// The failure of one call. `message` says what was wrong and `hint` what to send instead; both are written for a
/// model and hold sandbox paths only. `cause` goes to the error log and nowhere else.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolError {
    /// Which failure.
    pub code: Code,
    /// What was wrong.
    pub message: String,
    /// What to do instead.
    pub hint: Option<String>,
    /// Facts for programs, a JSON object.
    pub details: Option<Box<Value>>,
    /// What lay beneath, for the error log only.
    pub cause: Option<Box<str>>,
}

impl ToolError {
    /// A failure with its message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, details: None, cause: None }
    }

    /// The same, saying what to do instead.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same, with facts for programs.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// The same, with a cause for the error log.
    #[must_use]
    pub fn cause(mut self, cause: impl std::fmt::Display) -> Self {
        self.cause = Some(cause.to_string().into_boxed_str());
        self
    }

    /// The failure of a system call on the thing named `what`.
    pub fn io(what: &str, doing: &str, errno: rustix::io::Errno) -> Self {
        Self::new(Code::Io, format!("{doing} `{what}` failed: {}", std::io::Error::from(errno)))
    }
}

impl std::fmt::Display for ToolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

impl std::error::Error for ToolError {}

/// A failure that the host must mend; the message names the file, key or value. Python raises each variant as the
/// `KgentError` subclass of the same name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KgentError {
    /// A configuration that cannot be used.
    #[error("{0}")]
    Config(String),
    /// A run that cannot be made, opened or used.
    #[error("{0}")]
    Run(String),
    /// A policy that cannot be built, or that was built for other mounts.
    #[error("{0}")]
    Policy(String),
    /// A tool that cannot be registered or used that way.
    #[error("{0}")]
    Registration(String),
}
