//! The command that runs in the guest, and the ends of its pipes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::PollFlags;
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use rustix::process::{kill_process_group, pidfd_open, Pid, PidfdFlags, Signal};

use crate::wire::{Frame, Start, ToHost, CHUNK};

/// Bytes of output to the host, or of input to the command, above which no more is read.
pub(crate) const HIGH_WATER: usize = 4 * CHUNK;

/// Something that poll watches.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    Port,
    Exit,
    Stdin,
    Output(usize),
}

/// What is watched, and for which events.
pub(crate) type Watched<'a> = (Source, BorrowedFd<'a>, PollFlags);

/// What poll said, taken out of the borrow of the descriptors.
#[derive(Default)]
pub(crate) struct Ready {
    pub(crate) port: Option<PollFlags>,
    pub(crate) exit: bool,
    pub(crate) stdin: bool,
    pub(crate) outputs: [bool; 2],
}

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
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no command was given",
            ));
        };
        let mut command = Command::new(OsStr::from_bytes(program));
        command.args(args.iter().map(|arg| OsStr::from_bytes(arg)));
        for variable in &start.env {
            let split = variable
                .iter()
                .position(|byte| *byte == b'=')
                .unwrap_or(variable.len());
            let (name, value) = variable.split_at(split);
            command.env(
                OsStr::from_bytes(name),
                OsStr::from_bytes(value.get(1..).unwrap_or_default()),
            );
        }
        if !start.cwd.is_empty() {
            command.current_dir(OsStr::from_bytes(&start.cwd));
        }
        command.stdin(if start.stdin {
            Stdio::piped()
        } else {
            Stdio::null()
        });
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn()?;
        let group = Pid::from_child(&child);
        let exit_fd = pidfd_open(group, PidfdFlags::empty())?;
        let stdin = child
            .stdin
            .take()
            .map(|pipe| File::from(OwnedFd::from(pipe)));
        let stdout = child
            .stdout
            .take()
            .map(|pipe| File::from(OwnedFd::from(pipe)));
        let stderr = child
            .stderr
            .take()
            .map(|pipe| File::from(OwnedFd::from(pipe)));
        for pipe in [&stdin, &stdout, &stderr].into_iter().flatten() {
            set_nonblocking(pipe.as_fd())?;
        }
        let outputs = [stdout, stderr];
        Ok(Self {
            child,
            group,
            exit_fd,
            stdin,
            input: Vec::new(),
            input_ended: false,
            outputs,
            status: None,
        })
    }

    /// Whether more input can be taken from the host.
    pub(crate) fn takes_input(&self) -> bool {
        self.input.len() < HIGH_WATER
    }

    /// Adds what there is to wait for; output only while there is `room` for it.
    pub(crate) fn watch<'a>(&'a self, room: bool, watched: &mut Vec<Watched<'a>>) {
        if self.status.is_none() {
            watched.push((Source::Exit, self.exit_fd.as_fd(), PollFlags::IN));
        }
        if let Some(stdin) = self.stdin.as_ref().filter(|_| !self.input.is_empty()) {
            watched.push((Source::Stdin, stdin.as_fd(), PollFlags::OUT));
        }
        for (index, output) in self.outputs.iter().enumerate() {
            if let Some(output) = output.as_ref().filter(|_| room) {
                watched.push((Source::Output(index), output.as_fd(), PollFlags::IN));
            }
        }
    }

    /// Gives the command what it reads. One that has closed its input gets no more.
    pub(crate) fn feed(&mut self) -> io::Result<()> {
        let Some(stdin) = &mut self.stdin else {
            return Ok(());
        };
        match stdin.write(&self.input) {
            Ok(written) => {
                self.input.drain(..written);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.stdin = None;
                self.input.clear();
                Ok(())
            }
            Err(error) => unless_retry(error),
        }
    }

    /// Takes a chunk of output; false if there was none.
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
                let bytes = buffer[..read].to_vec();
                let frame = if index == 0 {
                    ToHost::Stdout(bytes)
                } else {
                    ToHost::Stderr(bytes)
                };
                frame.encode(out);
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

pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
    Ok(())
}
