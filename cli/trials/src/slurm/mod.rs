//! Clusters on several hosts, which Slurm places and starts (X16): one cluster is one job.
//!
//! ```text
//!   qnic exec FILE --on slurm                     host 0          host 1          host 2
//!     │ plan: which nodes on which host
//!     │ images, programs: into the shared cache
//!     │ Job: cluster, keys, a directory
//!     ▼
//!   supervisor ──► srun ── one task on each ──► host task       host task       host task
//!        │                                       │ Trial         │ Trial         │ Trial
//!        ├──── stdin: Told (addresses, go) ────► │ device ◄─UDP─►│ device ◄─UDP─►│ device
//!        ◄──── stdout: Said (address, output, ── │ guests        │ guests        │ guests
//!              what was reached, report)
//! ```
//! For `up` the supervisor runs in the job, in its batch step; for `exec` it is the command itself.
//!
//! - Slurm decides on which hosts a job runs, when, how long, and ends all of it. This module chooses no host,
//!   looks after none, and has no daemon.
//! - Tasks and supervisor talk through the standard input and output that srun joins, so no port is open for that,
//!   and srun's credentials are the only ones.
//! - When its input ends, a task takes down what it has started: the supervisor has ended, or srun, or the host's
//!   slurmstepd. When a task is killed, the kernel ends its guests and device process.
//! - All hosts have booted before a program starts, and no host is taken down before all programs have ended
//!   ([`crate::Gate`]).
//! - Private keys are made for the job. They are files of mode 0600 in the job's directory, of mode 0700; neither
//!   environment nor arguments have them.
//!
//! | module | what |
//! |---|---|
//! | `plan` | which nodes on which host; pure |
//! | `engine` | the commands of Slurm, and what they say |
//! | `job` | what a job runs, and its directory |
//! | `messages` | what tasks and supervisor say |
//! | `supervise` | the supervisor |
//! | `host` | a task |

mod engine;
mod host;
mod job;
mod messages;
mod plan;
mod supervise;

pub use engine::{cluster_name, Engine, JobState, Request};
pub use host::run as run_host;
pub use job::{Job, JobDir, Jobs, Part, Work};
pub use plan::{Capacity, Plan};
pub use supervise::{supervise, Ending, Watching};
