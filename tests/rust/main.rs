//! The crate through its public interface: what must hold against whatever a model sends, whatever lies in a workspace
//! and whatever another process does to it meanwhile.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "fixtures are laid and checked by host paths, and a broken one ends its test"
)]

mod escape;
mod race;
mod record;
mod scenarios;
mod support;
mod walk;
