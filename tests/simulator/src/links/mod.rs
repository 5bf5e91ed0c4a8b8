//! The wires between nodes, and what must hold of the sessions on them.

mod direct;
mod late;
pub(crate) mod sessions;
pub(crate) mod wire;
