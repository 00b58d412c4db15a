//! `recall_memory`: what is remembered in a scope.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::BuiltIn;
use crate::context::CallContext;
use crate::error::ToolError;
use crate::memory::{DEFAULT_SCOPE, MAX_LIMIT, MemoryItem};
use crate::permission::Capability;
use crate::registry::Output;
use crate::result::{Content, Data};
use crate::sandbox::SandboxPath;

/// How many items are recalled unless the call says otherwise.
const DEFAULT_LIMIT: u64 = 10;

pub(super) struct RecallMemory;

/// What `recall_memory` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// What to look for; words. Empty lists the newest. At most 4096 bytes.
    query: String,
    /// Where it belongs, such as `team/style`. Default `default`.
    scope: Option<String>,
    /// The most items. Default 10.
    #[schemars(range(min = 1, max = 100))]
    limit: Option<u64>,
}

#[derive(Serialize)]
struct RecallData {
    items: Vec<MemoryItem>,
}

impl BuiltIn for RecallMemory {
    type Args = Args;
    const NAME: &'static str = "recall_memory";
    const TEXT: &'static str = include_str!("recall_memory.md");
    const CAPABILITY: Option<Capability> = None;

    fn resource(args: &Args) -> Option<String> {
        Some(args.scope.clone().unwrap_or_else(|| DEFAULT_SCOPE.to_owned()))
    }

    fn execute(args: Args, _: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let scope = args.scope.as_deref().unwrap_or(DEFAULT_SCOPE);
        let limit = usize::try_from(args.limit.unwrap_or(DEFAULT_LIMIT)).unwrap_or(MAX_LIMIT + 1);
        let recalled = call.recall(&args.query, scope, limit)?;
        let mut text = String::new();
        for (number, item) in (1..).zip(&recalled.items) {
            let _ = write!(text, "{number}. {}", crate::result::one_line(&item.id));
            if item.metadata.get("reviewed").and_then(serde_json::Value::as_bool) == Some(false) {
                text.push_str(" (unreviewed)");
            }
            text.push_str(":\n");
            for line in item.content.lines() {
                let _ = writeln!(text, "   {line}");
            }
        }
        let mut notices = recalled.notices;
        if recalled.items.is_empty() {
            notices.insert(0, "[Nothing was found.]".to_owned());
        }
        let count = recalled.items.len();
        let summary = format!("recalled {count} items of the scope {scope}");
        call.notes().bytes_in = recalled.items.iter().map(|item| item.content.len() as u64).sum();
        let data = Data::new(RecallData { items: recalled.items });
        Ok(Output { summary, data: Some(data), content: vec![Content::text(text)], notices, ..Output::default() })
    }
}
