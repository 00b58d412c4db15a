//! Tools: what one is, who registered it, and the snapshot that a model is offered.

pub(crate) mod definition;
pub(crate) mod schema;
pub(crate) mod scope;
pub(crate) mod snapshot;

pub use self::definition::{Definition, Execute, Executor, Output, Prepared, Services, ToolDefinition};
pub use self::schema::Schema;
pub use self::scope::{Registration, ToolRegistry};
pub use self::snapshot::{ToolSnapshot, build_toolsets, built_in};
