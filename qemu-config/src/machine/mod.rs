//! Parallel machines (S7): nodes of a running cluster that run one program together.
//!
//! ```text
//!   create lab ──▶ record: nodes, interface, exclusive ◀── rm, ls      (records)
//!                     │
//!   run lab -n 4 ─────┤ ports of this run, which no other run has      (ports)
//!                     │ rank:  0   1   2   3
//!                     │ node: n0  n1  n2  n0      round robin          (placement)
//!                     ▼
//!         a command in a guest for each rank, with its environment     (run)
//!         output with its rank; the first failure ends the others      (supervise)
//! ```
//!
//! - Records and runs live in the cluster's directory and go with it.
//! - Records are read and replaced under one lock, whole, by a rename: of two programs that
//!   make machines at once, none loses the other's.
//! - A run under way holds a lock file that the kernel unlocks when its program ends, whatever
//!   ends it: there is nothing to clean up after a kill.
//! - The commands of a run end with it: orderly by a signal, and otherwise because the helper in
//!   the guest sees its port close.
//!
//! The daemon in guests is the helper of all commands (`qnic-exec`). A program learns of its
//! machine by its environment; [`MachineRun`] lists the variables.

mod placement;
mod ports;
mod records;
mod run;
mod supervise;

pub use records::{Interface, Machine, MachineOverview, Machines};
pub use run::{MachineRun, RunReport};
pub use supervise::RunEnd;
