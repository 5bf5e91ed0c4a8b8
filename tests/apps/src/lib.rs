//! The programs on the nodes, and what the tools that start them know of them.
//!
//! | what | feature | |
//! |---|---|---|
//! | [`report`] | always | the JSON lines that programs print and tools read |
//! | `demo`, the program `qnic-demo` | `demo` | the demo, and what all programs on nodes share |
//! | `fences`, `paper`, `walk`, the program `qnic-app` | `app` | one end of a test or of a benchmark, by subcommand |
//!
//! The programs run in guests and in host mode alike.
#![forbid(unsafe_code)]

#[cfg(feature = "demo")]
pub mod demo;
#[cfg(feature = "app")]
pub mod fences;
#[cfg(feature = "app")]
pub mod paper;
pub mod report;
#[cfg(feature = "app")]
pub mod walk;
