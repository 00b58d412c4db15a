//! The built-in tools, one file each: its arguments, the names it uses, and what it does. The text for the model stands
//! beside it in `<tool>.md`.

mod apply_patch;
mod change;
mod edit_file;
mod glob_files;
mod grep_files;
mod list_files;
mod list_skills;
mod load_skill;
mod read_file;
mod recall_memory;
mod workspace;
mod write_file;
mod write_memory;

use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args;
use crate::context::CallContext;
use crate::error::ToolError;
use crate::permission::Capability;
use crate::registry::{Annotations, Definition, Executor, Output, Prepared, Step, ToolDefinition};
use crate::sandbox::{Access, SandboxPath};

/// A built-in tool.
trait BuiltIn: Send + Sync + 'static {
    /// Its arguments; the schema is generated from them.
    type Args: DeserializeOwned + JsonSchema + Send + 'static;
    const NAME: &'static str;
    /// What the model is told.
    const TEXT: &'static str;
    /// The action that its calls ask for.
    const ACTION: &'static str = Self::NAME;
    /// The capability that it needs, if any.
    const CAPABILITY: Option<Capability>;
    /// Whether it is offered only where there are skills.
    const NEEDS_SKILLS: bool = false;
    /// Whether it changes files.
    const MUTATING: bool = false;
    /// Whether it puts that on record itself before it does, as `change::commit` does.
    const ANNOUNCES: bool = Self::MUTATING;
    /// Arguments that hold content.
    const CONTENT_ARGS: &'static [&'static str] = &[];

    /// The names it will use, as sent.
    fn targets(_args: &Self::Args) -> Result<Vec<(String, Access)>, ToolError> {
        Ok(Vec::new())
    }
    /// What it asks for where it uses no name; the tool's name where absent.
    fn resource(_args: &Self::Args) -> Option<String> {
        None
    }
    /// Does it; `paths` are the targets, parsed.
    fn execute(args: Self::Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError>;
    /// What it would do, for the person who is asked to approve it; `None` where the arguments say it all.
    fn preview(_: &Self::Args, _: &[SandboxPath], _: &CallContext) -> Option<String> {
        None
    }
}

struct Typed<T>(PhantomData<fn() -> T>);

impl<T: BuiltIn> Executor for Typed<T> {
    fn prepare(&self, args: Value, _: &CallContext) -> Result<Prepared, ToolError> {
        let (args, repairs) = args::decode::<T::Args>(args)?;
        let targets = T::targets(&args)?;
        let resource = T::resource(&args);
        let execute = move |paths, call: &CallContext| T::execute(args, paths, call).map(Step::Done);
        Ok(Prepared { targets, resource, repairs, execute: Box::new(execute) })
    }

    fn preview(&self, args: Value, paths: &[SandboxPath], call: &CallContext) -> Option<String> {
        T::preview(&args::decode::<T::Args>(args).ok()?.0, paths, call)
    }
}

fn define<T: BuiltIn>() -> (String, ToolDefinition) {
    let definition = Definition {
        description: T::TEXT.trim_end().to_owned(),
        input_schema: args::schema_of::<T::Args>(),
        output_schema: None,
        action: Some(T::ACTION.to_owned()),
        capability: T::CAPABILITY,
        needs_skills: T::NEEDS_SKILLS,
        annotations: Annotations {
            read_only: !T::MUTATING,
            destructive: T::MUTATING,
            idempotent: !T::MUTATING,
            ..Annotations::default()
        },
        announces: T::ANNOUNCES,
        content_args: T::CONTENT_ARGS,
        executor: Box::new(Typed::<T>(PhantomData)),
    };
    (T::NAME.to_owned(), ToolDefinition::new(definition))
}

/// The built-in tools by name.
pub(crate) fn builtin() -> Vec<(String, ToolDefinition)> {
    vec![
        define::<read_file::ReadFile>(),
        define::<write_file::WriteFile>(),
        define::<edit_file::EditFile>(),
        define::<apply_patch::ApplyPatch>(),
        define::<list_files::ListFiles>(),
        define::<glob_files::GlobFiles>(),
        define::<grep_files::GrepFiles>(),
        define::<list_skills::ListSkills>(),
        define::<load_skill::LoadSkill>(),
        define::<recall_memory::RecallMemory>(),
        define::<write_memory::WriteMemory>(),
    ]
}

/// What a framework's workspace is made of, by name.
pub(crate) fn workspace() -> Vec<(String, ToolDefinition)> {
    vec![
        define::<workspace::Read>(),
        define::<workspace::Write>(),
        define::<workspace::Stat>(),
        define::<workspace::List>(),
        define::<workspace::RealPath>(),
        define::<workspace::MakeDir>(),
        define::<workspace::Remove>(),
    ]
}

/// The one path of a tool that takes one.
fn only(paths: Vec<SandboxPath>) -> Result<SandboxPath, ToolError> {
    paths.into_iter().next().ok_or_else(crate::settle::internal)
}
