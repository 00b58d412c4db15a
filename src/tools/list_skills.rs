//! `list_skills`: what there is to load.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::BuiltIn;
use crate::context::CallContext;
use crate::error::ToolError;
use crate::permission::Capability;
use crate::registry::Output;
use crate::result::{Content, Data};
use crate::sandbox::SandboxPath;

/// What an entry takes in the data beside its texts, in bytes.
const ENTRY_BYTES: usize = 80;

pub(super) struct ListSkills;

/// What `list_skills` takes: nothing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {}

#[derive(Serialize)]
struct ListData {
    skills: Vec<Listed>,
    truncated: bool,
}

#[derive(Serialize)]
struct Listed {
    id: String,
    name: Option<String>,
    description: String,
    valid: bool,
    /// The unquoted values of its front matter were taken as plain text.
    lenient: bool,
    error: Option<String>,
}

impl BuiltIn for ListSkills {
    type Args = Args;
    const NAME: &'static str = "list_skills";
    const TEXT: &'static str = include_str!("list_skills.md");
    const CAPABILITY: Option<Capability> = None;
    const NEEDS_SKILLS: bool = true;

    fn execute(_: Args, _: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let registry = call.skills()?;
        let max_bytes = call.limits().max_output_bytes;
        let mut data = ListData { skills: Vec::new(), truncated: false };
        let (mut text, mut bytes, mut valid) = (String::new(), 0, 0);
        for skill in registry.skills() {
            let error = skill.error();
            let description = skill.shown_description();
            let _ = match &error {
                None => writeln!(text, "{}: {description}", skill.id),
                Some(error) => writeln!(text, "{} (cannot be used): {error}", skill.id),
            };
            valid += usize::from(error.is_none());
            let front = skill.front();
            bytes += ENTRY_BYTES + 2 * skill.id.len() + description.len() + error.as_ref().map_or(0, String::len);
            if bytes <= max_bytes {
                data.skills.push(Listed {
                    id: skill.id.clone(),
                    name: front.map(|front| front.name.clone()),
                    description,
                    valid: error.is_none(),
                    lenient: front.is_some_and(|front| front.lenient),
                    error,
                });
            }
        }
        let all = registry.skills().len();
        data.truncated = data.skills.len() < all;
        let summary = match all - valid {
            0 => format!("listed {valid} skills"),
            broken => format!("listed {valid} skills, and {broken} that cannot be used"),
        };
        let notices = if all == 0 { vec!["[There are no skills.]".to_owned()] } else { Vec::new() };
        let truncated = data.truncated;
        let content = vec![Content::text(text)];
        Ok(Output { summary, data: Some(Data::new(data)), content, notices, truncated, ..Output::default() })
    }
}
