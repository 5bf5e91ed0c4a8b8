//! Trials: a cluster is booted, a program runs on it to its end, everything is taken down.
//!
//! ```text
//!   cluster file + Setting… ─▶ Trial ── run ─▶ Outcome ─▶ exit status
//!                                │               │
//!        boot ─▶ copy ─▶ run ─▶ collect ─▶ end   └─▶ Suite ─▶ JUnit XML
//!                         │        │
//!               schedule, captures └─▶ artifacts: consoles, outputs, counters
//!
//!   Matrix: every combination of settings and seeds ─▶ as many trials side by side as the
//!           machine carries ─▶ one Outcome each
//! ```
//!
//! - A trial always ends with its cluster gone: after success, failure, a timeout, a panic of
//!   a guest, a signal. If this program is killed, the kernel ends what it started, and the
//!   next command removes the files.
//! - Whatever goes wrong becomes the trial's [`Verdict`]; [`Trial::run`] returns no error.
//! - Its cluster may be on several hosts, as a job of Slurm ([`slurm`]).
//! - A trial's cluster has a name of its own, so that trials of one file run side by side.
#![forbid(unsafe_code)]

mod artifacts;
mod boot;
mod capture;
mod cases;
mod gate;
mod junit;
pub mod matrix;
mod names;
pub mod nodes;
mod output;
mod program;
mod project;
mod running;
mod settings;
pub mod slurm;
mod stop;
mod trial;
mod verdict;

pub use cases::{Case, Ended, Suite};
pub use gate::{Gate, Step};
pub use junit::{write_junit, JunitFile};
pub use output::{Lines, Quiet, Screen, Stream, Terminal};
pub use program::Program;
pub use project::{create as create_project, ProjectError};
pub use settings::{duration, Setting, WrongSetting};
pub use trial::Trial;
pub use verdict::{Outcome, Verdict};
