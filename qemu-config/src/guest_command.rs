//! What to run in a guest, what it says, and how it ends.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use qnic_exec::wire::Start;

/// What to run in a guest.
#[derive(Clone, Debug, Default)]
pub struct GuestCommand {
    pub(crate) start: Start,
}

/// How a command in a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestExit {
    /// It returned this code.
    Code(u8),
    /// This signal ended it.
    Signal(u8),
}

/// What a running command says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestEvent {
    /// Bytes of standard output.
    Stdout(Vec<u8>),
    /// Bytes of standard error.
    Stderr(Vec<u8>),
    /// It ended; nothing comes after this.
    Exit(GuestExit),
}

/// Everything a command said, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestOutput {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// How it ended.
    pub exit: GuestExit,
}

impl GuestCommand {
    /// Runs `program`, which is looked up in the guest's `PATH` if it has no slash.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self::default().arg(program)
    }

    /// Runs `script` in the guest's shell.
    pub fn shell(script: impl Into<OsString>) -> Self {
        Self::new("sh").arg("-c").arg(script)
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.start.argv.push(arg.into().into_vec());
        self
    }

    /// Adds arguments.
    pub fn args<A: Into<OsString>>(self, args: impl IntoIterator<Item = A>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    /// Adds the words of `program` as arguments.
    pub(crate) fn with_program(mut self, program: &Self) -> Self {
        let words = program.start.argv.iter().cloned();
        self.start.argv.extend(words);
        self
    }

    /// Sets a variable in the command's environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let bytes = |text: &OsStr| text.as_bytes().to_vec();
        let variable = (bytes(name.as_ref()), bytes(value.as_ref()));
        self.start.env.push(variable);
        self
    }

    /// Sets the working directory.
    pub fn current_dir(mut self, dir: impl Into<OsString>) -> Self {
        self.start.cwd = dir.into().into_vec();
        self
    }

    /// Lets the command read what is written to [`crate::GuestProcess::input`]; without
    /// this it reads nothing.
    pub fn with_input(mut self) -> Self {
        self.start.stdin = true;
        self
    }
}

impl GuestExit {
    /// Returns true if it returned 0.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }

    /// The code as a shell gives it: 128 and the signal's number for a signal.
    pub fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => signal.saturating_add(128),
        }
    }
}

impl GuestOutput {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}
