//! What a model sees of an output: bounded text, the whole of it in an artifact.

pub(crate) mod artifact;
pub(crate) mod bound;
pub(crate) mod glob;
