//! `write_memory`: something to be remembered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::BuiltIn;
use crate::context::CallContext;
use crate::error::ToolError;
use crate::memory::DEFAULT_SCOPE;
use crate::permission::Capability;
use crate::registry::Output;
use crate::result::{Content, Data};
use crate::sandbox::SandboxPath;

pub(super) struct WriteMemory;

/// What `write_memory` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// What is to be remembered; at most 65,536 bytes.
    content: String,
    /// Where it belongs, such as `team/style`; at most 256 bytes. Default `default`.
    scope: Option<String>,
    /// Words to find it by; at most 32 of 128 bytes each.
    tags: Option<Vec<String>>,
}

#[derive(Serialize)]
struct WriteData {
    status: String,
    id: Option<String>,
}

impl BuiltIn for WriteMemory {
    type Args = Args;
    const NAME: &'static str = "write_memory";
    const TEXT: &'static str = include_str!("write_memory.md");
    const CAPABILITY: Option<Capability> = Some(Capability::MemoryWrite);
    const MUTATING: bool = true;
    const CONTENT_ARGS: &'static [&'static str] = &["content"];

    fn resource(args: &Args) -> Option<String> {
        Some(args.scope.clone().unwrap_or_else(|| DEFAULT_SCOPE.to_owned()))
    }

    fn execute(args: Args, _: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let scope = args.scope.as_deref().unwrap_or(DEFAULT_SCOPE);
        let written = call.remember(&args.content, scope, &args.tags.unwrap_or_default())?;
        let id = written.id.as_deref().map(|id| format!(" as {id}")).unwrap_or_default();
        let summary = format!("remembered in the scope {scope}{id}: {}", written.status);
        let notice = (written.status == "candidate")
            .then(|| "[It is a candidate: it counts in later runs once a person has accepted it.]".to_owned());
        let content = vec![Content::text(format!("{summary}\n"))];
        call.notes().bytes_in = args.content.len() as u64;
        let data = Data::new(WriteData { status: written.status, id: written.id });
        Ok(Output { summary, data: Some(data), content, notices: notice.into_iter().collect(), ..Output::default() })
    }
}
