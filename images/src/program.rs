//! Programs that are the host's own if they are good enough, else the distribution's.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{command, find_program};
use crate::context::Context;
use crate::error::Result;
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
}

/// A program to provision.
pub(crate) struct Tool {
    /// Its name, on the host and in the distribution.
    pub(crate) name: &'static str,
    /// The distribution's packages with it.
    pub(crate) packages: PackageSet<'static>,
    /// Completes a new root: what the packages' own scripts would have done.
    pub(crate) finish: fn(&Path) -> Result<()>,
    /// Adds arguments and variables that point the program to its root.
    pub(crate) adapt: fn(&mut Program, &Root),
    /// Fails unless the program does what it is wanted for.
    pub(crate) check: fn(&Program) -> Result<()>,
}

impl Tool {
    /// The program of the host if it is good enough, else of the distribution.
    pub(crate) fn provision(&self, cx: Context<'_>) -> Result<Program> {
        if let Some(program) = self.of_host().filter(|found| (self.check)(found).is_ok()) {
            return Ok(program);
        }
        let root = Root::of_packages(cx, &self.packages, |dir| {
            (self.finish)(dir)?;
            // A root whose program does not work is never kept.
            (self.check)(&self.in_root(&Root {
                dir: dir.to_owned(),
            }))
        })?;
        Ok(self.in_root(&root))
    }

    /// The program in the host's `PATH`.
    pub(crate) fn of_host(&self) -> Option<Program> {
        Some(Program {
            program: find_program(self.name)?,
            args: Vec::new(),
            env: Vec::new(),
        })
    }

    /// The program in `usr/bin` of a root.
    pub(crate) fn in_root(&self, root: &Root) -> Program {
        let mut program = Program {
            program: root.loader(),
            args: root.loader_args(&format!("usr/bin/{}", self.name), self.name),
            env: Vec::new(),
        };
        (self.adapt)(&mut program, root);
        program
    }
}
