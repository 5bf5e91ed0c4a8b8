//! The command that runs in the guest, and the ends of its pipes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags};
use rustix::io::ioctl_fionbio;
use rustix::process::{kill_process_group, pidfd_open, Pid, PidfdFlags, Signal};

use crate::wire::{Frame, Start, ToHost, CHUNK};

/// Bytes of output to the host, or of input to the command, above which no more is read.
pub(crate) const HIGH_WATER: usize = 4 * CHUNK;

/// The command and our ends of its pipes.
pub(crate) struct Job {
    pub(crate) child: Child,
    group: Pid,
    exit_fd: OwnedFd,
    pub(crate) stdin: Option<File>,
    pub(crate) input: Vec<u8>,
    pub(crate) input_ended: bool,
    pub(crate) outputs: [Option<File>; 2],
    pub(crate) status: Option<ExitStatus>,
}

impl Job {
    pub(crate) fn start(start: &Start) -> io::Result<Self> {
        let Some((program, args)) = start.argv.split_first() else {
            let message = "no command was given";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        let mut command = Command::new(OsStr::from_bytes(program));
        command.args(args.iter().map(|arg| OsStr::from_bytes(arg)));
        for (name, value) in &start.env {
            command.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
        }
        if !start.cwd.is_empty() {
            command.current_dir(OsStr::from_bytes(&start.cwd));
        }
        command.stdin(match start.stdin {
            true => Stdio::piped(),
            false => Stdio::null(),
        });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let group = Pid::from_child(&child);
        Ok(Self {
            group,
            exit_fd: pidfd_open(group, PidfdFlags::empty())?,
            stdin: nonblocking(child.stdin.take())?,
            input: Vec::new(),
            input_ended: false,
            outputs: [
                nonblocking(child.stdout.take())?,
                nonblocking(child.stderr.take())?,
            ],
            status: None,
            child,
        })
    }

    /// Whether more input can be taken from the host.
    pub(crate) fn takes_input(&self) -> bool {
        self.input.len() < HIGH_WATER
    }

    /// Adds what there is to wait for; output only while there is `room` for it.
    pub(crate) fn watch<'a>(&'a self, room: bool, fds: &mut Vec<PollFd<'a>>) {
        if self.status.is_none() {
            fds.push(PollFd::new(&self.exit_fd, PollFlags::IN));
        }
        if let Some(stdin) = self.stdin.as_ref().filter(|_| !self.input.is_empty()) {
            fds.push(PollFd::new(stdin, PollFlags::OUT));
        }
        if room {
            let outputs = self.outputs.iter().flatten();
            fds.extend(outputs.map(|output| PollFd::new(output, PollFlags::IN)));
        }
    }

    /// Gives the command what it reads, as far as it takes it, and then the end of it.
    /// One that has closed its input gets no more.
    pub(crate) fn feed(&mut self) -> io::Result<()> {
        let Some(stdin) = self.stdin.as_mut().filter(|_| !self.input.is_empty()) else {
            return Ok(());
        };
        match stdin.write(&self.input) {
            Ok(written) => drop(self.input.drain(..written)),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.stdin = None;
                self.input.clear();
            }
            Err(error) => unless_retry(error)?,
        }
        Ok(())
    }

    /// Takes a chunk of output; returns false if there was none.
    pub(crate) fn drain(&mut self, index: usize, out: &mut Vec<u8>) -> io::Result<bool> {
        let Some(pipe) = &mut self.outputs[index] else {
            return Ok(false);
        };
        let mut buffer = [0; CHUNK];
        match pipe.read(&mut buffer) {
            Ok(0) => {
                self.outputs[index] = None;
                Ok(false)
            }
            Ok(read) => {
                let frame = [ToHost::Stdout, ToHost::Stderr][index];
                frame(buffer[..read].to_vec()).encode(out);
                Ok(true)
            }
            Err(error) => unless_retry(error).map(|()| false),
        }
    }

    pub(crate) fn signal(&self, number: u8) {
        // A group that is gone needs no signal, and one that does not exist has no effect.
        if let Some(signal) = Signal::from_named_raw(i32::from(number)) {
            let _ = kill_process_group(self.group, signal);
        }
    }

    /// Ends the command's process group if the command itself still runs.
    pub(crate) fn kill(&mut self) {
        if self.status.is_none() {
            let _ = kill_process_group(self.group, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

pub(crate) fn unless_retry(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

/// Our end of a pipe, as a file that never blocks.
fn nonblocking(end: Option<impl Into<OwnedFd>>) -> io::Result<Option<File>> {
    let Some(end) = end.map(|end| File::from(end.into())) else {
        return Ok(None);
    };
    ioctl_fionbio(&end, true)?;
    Ok(Some(end))
}
