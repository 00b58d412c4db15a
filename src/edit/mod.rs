//! What the tools that change files stand on. Everything here is a pure function of bytes: nothing is opened or asked.

pub(crate) mod diff;
pub(crate) mod encoding;
pub(crate) mod explain;
pub(crate) mod hunks;
pub(crate) mod lines;
pub(crate) mod patch;
pub(crate) mod replace;
