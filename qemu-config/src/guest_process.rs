//! Commands that run in a guest.
//!
//! ```text
//!   1  take a free command slot (a lock file)         one of COMMAND_SLOTS, whose last helper has ended
//!   2  connect to the slot's port and close it        see below
//!   3  connect to it, say Open(nonce)                 QEMU keeps it until the guest opens
//!   4  guest agent: start qnic-exec PORT nonce
//!   5  wait for the preamble, send Start
//!   6  output and errors as they come, then the end
//! ```
//!
//! **Why it connects twice.** When a guest writes to a port whose client has just closed it, QEMU (11.1)
//! finds out by that write: it closes the port, which lifts the port's throttle, and throttles it then.
//! From there on nothing comes out of the port until a client closes it again. A command that is killed
//! while it speaks leaves its slot so. As the slot's last helper has ended, nothing can write between the
//! two connections.
//!
//! Dropping a [`GuestProcess`] kills its command: the helper sees the port close.
//!
//! On a node without a guest the helper is a process of this machine, at the other end of a
//! socket pair ([`HostNode`]).

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use qnic_exec::wire::{Decoder, Frame, ToGuest, ToHost, CHUNK, MAX_PAYLOAD};

use crate::agent::{random, Agent};
use crate::dirs::NodeDir;
use crate::guest_command::{GuestCommand, GuestEvent, GuestExit, GuestOutput};
use crate::host_node::HostNode;
use crate::monitor::Monitor;
use crate::node_state::ask_qemu;
use crate::process::{Process, ProcessId};
use crate::qemu::{command_label, command_port};
use crate::ready::{self, boots_reported};
use crate::slot::Slot;
use crate::socket::Socket;
use crate::wait::{stop_in, Deadline, Stop};
use crate::{Cancel, Error, NodeState, Result};

/// Where the helper is in a guest.
pub(crate) const HELPER: &str = "/usr/lib/qnic/qnic-exec";

/// Time the agent and the helper may take to start a command.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Time between two looks at helpers that are ending.
const ENDING_TURN: Duration = Duration::from_millis(20);

/// Time for a QEMU that has closed a connection to end.
const END_SECONDS: u64 = 5;

/// Silence after which QEMU is asked whether the helper still has its port open: a
/// guest that restarts says nothing.
const SILENCE: Duration = Duration::from_secs(2);

/// A command that runs in a guest. Dropping it kills the command.
pub struct GuestProcess {
    dir: NodeDir,
    socket: Socket,
    input: GuestInput,
    decoder: Decoder,
    helper: Helper,
    cancel: Option<Cancel>,
}

/// What runs the command.
enum Helper {
    /// A helper in the guest, behind a port.
    InGuest(Slot),
    /// A process of this machine.
    Here(Child),
}

/// The input of a command in a guest, and what signals it. Clones share it.
#[derive(Clone)]
pub struct GuestInput {
    socket: Arc<Mutex<Socket>>,
    node: String,
}

impl GuestProcess {
    /// Starts `command` on the node with directory `dir`, within `limit` and [`START_LIMIT`].
    pub(crate) fn start(
        dir: &NodeDir,
        command: &GuestCommand,
        limit: Option<Duration>,
        cancel: Option<&Cancel>,
    ) -> Result<Self> {
        check_size(dir, command)?;
        let limit = limit.map_or(START_LIMIT, |limit| limit.min(START_LIMIT));
        let deadline = Deadline::new(Some(limit), cancel);
        let started = Self::start_before(&deadline, dir, command, cancel);
        started.map_err(|error| match error {
            Error::Guest { .. } if deadline.left() == Some(Duration::ZERO) => {
                why_no_answer(dir, limit)
            }
            other => other,
        })
    }

    fn start_before(
        deadline: &Deadline,
        dir: &NodeDir,
        command: &GuestCommand,
        cancel: Option<&Cancel>,
    ) -> Result<Self> {
        let mut agent = Agent::connect(dir, deadline.clone())?;
        let mut slot = slot_without_helper(dir, &mut agent, deadline)?;
        let connect = || {
            let socket = Socket::connect(&dir.command(slot.index), deadline.clone());
            socket.map_err(|error| broken(dir.name(), &error))
        };
        drop(connect()?);
        let socket = connect()?;
        let nonce = random();
        let input = input_of(dir, &socket, cancel);
        input.send(&ToGuest::Open(nonce))?;
        let port = command_port(slot.index);
        slot.remember(agent.start(HELPER, &["serve", &port, &nonce.to_string()])?);
        // The next command may ask it.
        drop(agent);
        let process = Self::over(dir, (socket, input), Helper::InGuest(slot), cancel);
        process.begin(nonce, command)
    }

    /// Starts `command` as a process of this machine, which is to be a program of `node`.
    pub(crate) fn start_here(
        dir: &NodeDir,
        node: &HostNode,
        command: &GuestCommand,
        cancel: Option<&Cancel>,
    ) -> Result<Self> {
        check_size(dir, command)?;
        let nonce = random();
        let (stream, child) = node.start_helper(nonce)?;
        let socket = Socket::over(stream, Deadline::new(Some(START_LIMIT), cancel));
        let socket = socket.map_err(|error| broken(dir.name(), &error))?;
        let input = input_of(dir, &socket, cancel);
        let process = Self::over(dir, (socket, input), Helper::Here(child), cancel);
        process.input.send(&ToGuest::Open(nonce))?;
        process.begin(nonce, command)
    }

    fn over(
        dir: &NodeDir,
        (socket, input): (Socket, GuestInput),
        helper: Helper,
        cancel: Option<&Cancel>,
    ) -> Self {
        Self {
            dir: dir.clone(),
            socket,
            input,
            decoder: Decoder::default(),
            helper,
            cancel: cancel.cloned(),
        }
    }

    /// Waits for the helper that knows `nonce`, and gives it the command.
    fn begin(mut self, nonce: u64, command: &GuestCommand) -> Result<Self> {
        while !self.decoder.skip_preamble(nonce) {
            let filled = self.fill();
            filled.map_err(|error| broken(self.dir.name(), &error))?;
        }
        self.input.send(&ToGuest::Start(command.start.clone()))?;
        Ok(self)
    }

    /// The command's input, which can be used from another thread.
    pub fn input(&self) -> GuestInput {
        self.input.clone()
    }

    /// Ends the connection, and the command with it, also for a thread that waits to
    /// write its input.
    pub(crate) fn abandon(&self) {
        self.socket.shut_down();
    }

    /// Sends a signal to the command's process group.
    ///
    /// # Errors
    /// [`Error::Guest`] if the guest has gone.
    pub fn signal(&self, number: u8) -> Result<()> {
        self.input.signal(number)
    }

    /// Waits for what the command says next; `None` when `limit` is over first.
    ///
    /// # Errors
    /// [`Error::Interrupted`] when cancelled, [`Error::Guest`] if the guest restarted,
    /// its QEMU ended or its helper failed, [`Error::NotStarted`] if the command
    /// could not be started.
    pub fn next_event(&mut self, limit: Option<Duration>) -> Result<Option<GuestEvent>> {
        let whole = Deadline::new(limit, self.cancel.as_ref());
        loop {
            let frame = self
                .decoder
                .next_frame()
                .map_err(|error| self.nonsense(&error.to_string()))?;
            if let Some(frame) = frame {
                return self.understand(frame).map(Some);
            }
            self.socket.set_deadline(whole.at_most(SILENCE));
            match self.fill() {
                Ok(()) => {}
                Err(error) if stop_in(&error) == Some(Stop::Timeout) => {
                    if whole.left() == Some(Duration::ZERO) {
                        return Ok(None);
                    }
                    self.check_helper()?;
                }
                Err(error) => return Err(self.connection_ended(&error)),
            }
        }
    }

    /// What the end of the connection means: QEMU closes it a moment before its process has ended.
    fn connection_ended(&self, error: &io::Error) -> Error {
        let broken = broken(self.dir.name(), error);
        let closed = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
        let id = ProcessId::load(&self.dir.qemu_pid());
        let Some(id) = id.filter(|_| closed.contains(&error.kind())) else {
            return broken;
        };
        let ends = |process: Process| process.wait(&Deadline::seconds(END_SECONDS)).is_ok();
        match id.open().is_none_or(ends) {
            true => ready::ended(&self.dir),
            false => broken,
        }
    }

    /// Collects everything until the end, which is to come within `limit`.
    ///
    /// # Errors
    /// As [`Self::next_event`], and [`Error::Timeout`]; the command is killed then.
    pub fn wait(mut self, limit: Option<Duration>) -> Result<GuestOutput> {
        let whole = Deadline::new(limit, None);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match self.next_event(whole.left())? {
                Some(GuestEvent::Stdout(bytes)) => stdout.extend(bytes),
                Some(GuestEvent::Stderr(bytes)) => stderr.extend(bytes),
                Some(GuestEvent::Exit(exit)) => {
                    return Ok(GuestOutput {
                        stdout,
                        stderr,
                        exit,
                    })
                }
                None => {
                    let what = format!("node {}: the end of the command", self.dir.name());
                    let log = crate::follow::readable(&stderr);
                    return Err(Error::Timeout {
                        what,
                        after: limit.unwrap_or_default(),
                        log,
                    });
                }
            }
        }
    }

    fn understand(&self, frame: ToHost) -> Result<GuestEvent> {
        Ok(match frame {
            ToHost::Stdout(bytes) => GuestEvent::Stdout(bytes),
            ToHost::Stderr(bytes) => GuestEvent::Stderr(bytes),
            ToHost::Exited(code) => GuestEvent::Exit(GuestExit::Code(code)),
            ToHost::Signaled(signal) => GuestEvent::Exit(GuestExit::Signal(signal)),
            ToHost::NotStarted { errno, message } => {
                return Err(Error::NotStarted {
                    node: self.dir.name().to_owned(),
                    errno,
                    message,
                });
            }
        })
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut buffer = [0; CHUNK];
        match self.socket.read(&mut buffer)? {
            0 => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "its QEMU has ended",
            )),
            read => {
                self.decoder.push(&buffer[..read]);
                Ok(())
            }
        }
    }

    /// Fails if the guest's side of the port is closed, or never speaks again.
    fn check_helper(&self) -> Result<()> {
        let Helper::InGuest(slot) = &self.helper else {
            // Its end closes the socket.
            return Ok(());
        };
        let mut monitor = Monitor::connect(&self.dir, Deadline::seconds(10))?;
        let label = command_label(slot.index);
        if monitor.has_panicked()? {
            let node = self.dir.name();
            return Err(self.nonsense(&format!(
                "its kernel has panicked: see \"qnic logs {node}\""
            )));
        }
        let open = monitor.is_port_open(&label)?;
        // Its last words may have come while we asked.
        let more = Deadline::seconds(0).readable(self.socket.as_fd()).is_ok();
        if open || more {
            return Ok(());
        }
        Err(self.nonsense("the guest restarted, or its command helper was killed"))
    }

    fn nonsense(&self, message: &str) -> Error {
        Error::guest(self.dir.name(), message)
    }
}

impl Drop for GuestProcess {
    /// Closing is not enough: another thread may still have the input.
    fn drop(&mut self) {
        self.abandon();
        if let Helper::Here(child) = &mut self.helper {
            // It ends with the socket, and its command with it; this takes its exit status.
            let _ = child.wait();
        }
    }
}

impl GuestInput {
    /// Writes `bytes` to the command's input.
    ///
    /// # Errors
    /// [`Error::Guest`] if the guest has gone.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        bytes
            .chunks(CHUNK)
            .try_for_each(|part| self.send(&ToGuest::Stdin(part.to_vec())))
    }

    /// Ends the command's input.
    ///
    /// # Errors
    /// [`Error::Guest`] if the guest has gone.
    pub fn close(&self) -> Result<()> {
        self.send(&ToGuest::StdinEnd)
    }

    /// Sends a signal to the command's process group.
    ///
    /// # Errors
    /// [`Error::Guest`] if the guest has gone.
    pub fn signal(&self, number: u8) -> Result<()> {
        self.send(&ToGuest::Signal(number))
    }

    fn send(&self, frame: &ToGuest) -> Result<()> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket
            .write_all(&bytes)
            .map_err(|error| broken(&self.node, &error))
    }
}

fn check_size(dir: &NodeDir, command: &GuestCommand) -> Result<()> {
    let size = command.start.encoded_len();
    if size <= MAX_PAYLOAD {
        return Ok(());
    }
    let message =
        format!("the command has {size} bytes, more than the {MAX_PAYLOAD} that can be sent");
    Err(Error::guest(dir.name(), message))
}

fn input_of(dir: &NodeDir, socket: &Socket, cancel: Option<&Cancel>) -> GuestInput {
    let to_guest = socket.with_deadline(Deadline::new(None, cancel));
    GuestInput {
        socket: Arc::new(Mutex::new(to_guest)),
        node: dir.name().to_owned(),
    }
}

/// Takes a free slot that no helper of an earlier command uses. When all free ones have one, which ends
/// with its command, it asks again until one is gone.
fn slot_without_helper(dir: &NodeDir, agent: &mut Agent, deadline: &Deadline) -> Result<Slot> {
    loop {
        let slot = Slot::take(dir, |last| agent.has_ended(last))?;
        if let Some(slot) = slot {
            return Ok(slot);
        }
        let turn = deadline.at_most(ENDING_TURN);
        if turn.over() == Stop::Cancelled {
            return Err(Error::Interrupted);
        }
        if deadline.left() == Some(Duration::ZERO) {
            let message =
                "the helpers of earlier commands do not end: the guest is too busy, or hangs";
            return Err(Error::guest(dir.name(), message));
        }
    }
}

/// Fails if a guest stands still: what it is asked waits until it goes on.
pub(crate) fn check_runs(dir: &NodeDir) -> Result<()> {
    let why = why_still(dir, ask_qemu(dir).unwrap_or(NodeState::Silent));
    why.map_or(Ok(()), |why| Err(Error::guest(dir.name(), why)))
}

/// Why a guest in this state stands still, if it does.
fn why_still(dir: &NodeDir, state: NodeState) -> Option<String> {
    let name = dir.name();
    match state {
        NodeState::Paused => Some(format!(
            "the guest is paused: resume it with \"qnic resume {name}\""
        )),
        NodeState::Panicked => Some(format!("its kernel has panicked: see \"qnic logs {name}\"")),
        NodeState::Silent => Some("its QEMU does not answer".to_owned()),
        _ => None,
    }
}

/// The error for a guest that has started no command within `limit`: what QEMU says of it.
fn why_no_answer(dir: &NodeDir, limit: Duration) -> Error {
    let state = ask_qemu(dir).unwrap_or(NodeState::Silent);
    let why = why_still(dir, state).unwrap_or_else(|| match state {
        NodeState::Booting if boots_reported(dir) == 0 => "the guest is booting".to_owned(),
        // A guest that sleeps has closed the port of its agent.
        NodeState::Booting => {
            "the guest sleeps, or boots again: its power button wakes it".to_owned()
        }
        _ => format!(
            "the guest agent has not answered within {} s: the guest sleeps, hangs or is too busy",
            limit.as_secs_f32()
        ),
    });
    Error::guest(dir.name(), why)
}

fn broken(node: &str, error: &io::Error) -> Error {
    Error::of_connection(error, || {
        Error::guest(
            node,
            format!("the connection to the command failed: {error}"),
        )
    })
}

#[cfg(test)]
#[path = "guest_process_tests.rs"]
mod tests;
