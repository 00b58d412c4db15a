//! Tools: what one is, who registered it, and the snapshot that a model is offered.

pub(crate) mod definition;
pub(crate) mod schema;
pub(crate) mod scope;
pub(crate) mod snapshot;
mod stacks;
mod swap;

pub use self::definition::{
    Annotations, Definition, Execute, Executor, Output, Prepared, Services, Step, ToolDefinition,
};
pub use self::schema::Schema;
pub use self::scope::{Registration, ToolRegistrar, ToolRegistry, checked_name};
pub use self::snapshot::{ToolSnapshot, build_toolsets, build_workspace, built_in, built_in_names};
