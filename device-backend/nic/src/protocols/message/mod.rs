//! The message protocol (Q4). So far only its matching is here; no command uses it, and it
//! is built for tests and the bench alone.

pub mod matching;
