//! A program of the host or of the distribution, and how to start it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::cache::Cache;
use crate::command::command;
use crate::distribution::STABLE;
use crate::doctor::find_program;
use crate::error::Result;
use crate::progress::Progress;
use crate::root::{PackageSet, Root};

/// How to start a program: `env` added to the environment, `program`, `args`, then the
/// caller's own arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Absolute path of what to execute.
    pub program: PathBuf,
    /// Arguments that come before any of the caller's.
    pub args: Vec<OsString>,
    /// Variables to set.
    pub env: Vec<(OsString, OsString)>,
}

impl Program {
    /// A command that starts it; the caller adds its arguments.
    pub fn command(&self) -> Command {
        let mut command = command(&self.program);
        command.args(&self.args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The program of that name in the host's `PATH`.
    pub(crate) fn of_host(name: &str) -> Option<Self> {
        Some(Program {
            program: find_program(name)?,
            args: Vec::new(),
            env: Vec::new(),
        })
    }

    /// The distribution's program of that name, alone in a root of the cache. `finish`
    /// completes the root and makes sure that the program works: one that does not is
    /// never put in place.
    pub(crate) fn of_distribution(
        cache: &Cache,
        progress: &dyn Progress,
        name: &'static str,
        finish: impl FnOnce(&Root) -> Result<()>,
    ) -> Result<Root> {
        let packages = [name.to_owned()];
        let set = PackageSet {
            kind: name,
            label: name,
            suite: STABLE,
            packages: &packages,
            keep: &|_| true,
        };
        Root::of_packages(cache, progress, &set, |dir| finish(&Root::at(dir)))
    }

    /// The program of that name in `usr/bin` of a root.
    pub(crate) fn in_root(root: &Root, name: &str) -> Self {
        Program {
            program: root.loader(),
            args: root.loader_args(&format!("usr/bin/{name}"), name),
            env: Vec::new(),
        }
    }
}
