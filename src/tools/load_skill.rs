//! `load_skill`: a skill's summary and body, and its files brought into the run.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::BuiltIn;
use crate::context::CallContext;
use crate::error::ToolError;
use crate::output::bound::cut;
use crate::permission::Capability;
use crate::record::event::EventType;
use crate::registry::Output;
use crate::result::{Content, Data};
use crate::sandbox::SandboxPath;

/// How many files are named.
const MAX_NAMED: usize = 100;

pub(super) struct LoadSkill;

/// What `load_skill` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The id of the skill, from `list_skills`: at most 64 letters, digits, `-` or `_`.
    skill_id: String,
}

#[derive(Serialize)]
struct LoadData {
    id: String,
    name: String,
    description: String,
    body: String,
    /// At most 100, as sandbox paths.
    files: Vec<String>,
    /// Asked for by the skill, and not granted.
    requested_permissions: Vec<String>,
    truncated: bool,
}

impl BuiltIn for LoadSkill {
    type Args = Args;
    const NAME: &'static str = "load_skill";
    const TEXT: &'static str = include_str!("load_skill.md");
    const CAPABILITY: Option<Capability> = None;
    const NEEDS_SKILLS: bool = true;

    fn resource(args: &Args) -> Option<String> {
        Some(args.skill_id.clone())
    }

    fn execute(args: Args, _: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let registry = call.skills()?;
        let run = &call.call().run;
        let skill = registry.load(&args.skill_id, run, call)?;
        let id = args.skill_id;
        let front = &skill.sound.front;
        let requested = front.requested();
        let characters = skill.sound.characters;
        let loaded = json!({"skill": id, "hash": skill.hash, "characters": characters, "first": skill.first});
        call.tell(EventType::SkillLoaded, loaded)?;
        if !requested.is_empty() {
            let asked = json!({"skill": id, "requested": requested, "granted": false});
            call.tell(EventType::PermissionRequested, asked)?;
        }
        call.notes().requested.clone_from(&requested);
        call.notes().bytes_in = skill.body.len() as u64;
        let files: Vec<String> = skill.files.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        let mut head = format!("Skill {id}: {}\n", front.description.split_whitespace().collect::<Vec<_>>().join(" "));
        if let Some(compatibility) = &front.compatibility {
            let _ = writeln!(head, "Needs: {}", compatibility.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        if !files.is_empty() {
            let _ = writeln!(head, "Files:");
            for file in &files {
                let _ = writeln!(head, "  {file}");
            }
        }
        let mut notices = Vec::new();
        if skill.files.len() > files.len() {
            let more = skill.files.len() - files.len();
            notices.push(format!("[{more} more files are in skills/{id}; list_files shows them.]"));
        }
        if skill.left_behind > 0 {
            notices
                .push(format!("[{} links, special files or too large files were not brought in.]", skill.left_behind));
        }
        if !requested.is_empty() {
            notices
                .push(format!("[The skill asks for {}. Nothing of it is granted by loading.]", requested.join(", ")));
        }
        let max_bytes = call.limits().max_output_bytes;
        let body = cut(&skill.body, max_bytes).to_owned();
        let truncated = body.len() < skill.body.len();
        let summary = if skill.first {
            format!("loaded the skill {id}: {characters} characters, {} files", skill.files.len())
        } else {
            format!("loaded the skill {id} again")
        };
        let content = vec![Content::text(head), Content::text(skill.body)];
        let data = LoadData {
            id,
            name: front.name.clone(),
            description: front.description.clone(),
            body,
            files,
            requested_permissions: requested,
            truncated,
        };
        Ok(Output { summary, data: Some(Data::new(data)), content, notices, truncated, ..Output::default() })
    }
}
