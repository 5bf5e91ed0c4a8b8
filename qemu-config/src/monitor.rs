//! QEMU's monitor ([QMP](crate::qmp)), with a deadline on every exchange.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::dirs::NodeDir;
use crate::follow::readable;
use crate::qmp::{
    Command, Event, Message, RunState, QMP_CAPABILITIES, QUERY_CHARDEV, QUERY_STATUS,
};
use crate::socket::Socket;
use crate::wait::{stop_in, Deadline, Stop};
use crate::{Error, Result};

/// Seconds that an answer about the guest's state may take.
pub(crate) const STATE_SECONDS: u64 = 3;

/// Longest line that is taken from QEMU.
const MAX_LINE: u64 = 1 << 20;

/// Bytes of a line that an error shows.
const SHOWN: usize = 200;

/// A connection to the monitor of one node's QEMU. QEMU serves one at a time: keep
/// it short.
pub struct Monitor {
    stream: BufReader<Socket>,
    node: String,
}

impl Monitor {
    /// Connects to the monitor for commands.
    pub(crate) fn connect(dir: &NodeDir, deadline: Deadline) -> Result<Self> {
        Self::connect_to(&dir.monitor(), dir.name(), deadline)
    }

    fn connect_to(path: &Path, node: &str, deadline: Deadline) -> Result<Self> {
        let socket = Socket::connect(path, deadline).map_err(|error| failure(node, &error))?;
        let mut monitor = Self {
            stream: BufReader::new(socket),
            node: node.to_owned(),
        };
        match monitor.read_message()? {
            Message::Greeting => {}
            other => return Err(monitor.nonsense(&format!("{other:?}"))),
        }
        monitor.execute(&QMP_CAPABILITIES)?;
        Ok(monitor)
    }

    /// Executes `command` and returns its answer.
    ///
    /// # Errors
    /// [`Error::Monitor`] if QEMU refuses it, does not answer in time or answers nonsense.
    pub fn execute<A: DeserializeOwned>(&mut self, command: &Command<A>) -> Result<A> {
        let written = self.stream.get_mut().write_all(command.line().as_bytes());
        written.map_err(|error| failure(&self.node, &error))?;
        loop {
            match self.read_message()? {
                Message::Event(_) => {}
                Message::Refused(reason) => return Err(Error::monitor(&self.node, reason)),
                Message::Returned(value) => {
                    return command.answer(value).map_err(|error| {
                        self.nonsense(&format!("{error} in its answer to {}", command.name()))
                    })
                }
                Message::Greeting => return Err(self.nonsense("a second greeting")),
            }
        }
    }

    fn read_message(&mut self) -> Result<Message> {
        let mut line = Vec::new();
        let read = (&mut self.stream)
            .take(MAX_LINE)
            .read_until(b'\n', &mut line);
        read.map_err(|error| failure(&self.node, &error))?;
        if line.is_empty() {
            return Err(failure(&self.node, &io::ErrorKind::UnexpectedEof.into()));
        }
        Message::parse(&line).ok_or_else(|| {
            line.truncate(SHOWN);
            self.nonsense(readable(&line).trim_end())
        })
    }

    fn nonsense(&self, what: &str) -> Error {
        Error::monitor(&self.node, format!("the monitor answers nonsense: {what}"))
    }

    /// Returns true if the guest has the port open whose character device is `label`.
    pub(crate) fn is_port_open(&mut self, label: &str) -> Result<bool> {
        let devices = self.execute(&QUERY_CHARDEV)?;
        let mut open = devices.iter().filter(|device| device.frontend_open);
        Ok(open.any(|device| device.label == label))
    }

    /// Returns true if the guest's kernel has panicked.
    pub(crate) fn has_panicked(&mut self) -> Result<bool> {
        Ok(self.execute(&QUERY_STATUS)?.status == RunState::GuestPanicked)
    }
}

/// Returns true if QEMU says that the guest's kernel has panicked.
pub(crate) fn has_panicked(dir: &NodeDir) -> Result<bool> {
    Monitor::connect(dir, Deadline::seconds(STATE_SECONDS))?.has_panicked()
}

/// The events of one node's QEMU from the moment of connecting.
pub(crate) struct Events {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Events {
    /// Connects to the monitor for events.
    pub(crate) fn connect(dir: &NodeDir, deadline: Deadline) -> Result<Self> {
        let monitor = Monitor::connect_to(&dir.events(), dir.name(), deadline)?;
        let buffer = monitor.stream.buffer().to_vec();
        let socket = monitor.stream.into_inner();
        socket.set_deadline(Deadline::seconds(0));
        Ok(Self { socket, buffer })
    }

    /// Takes the events that have arrived, without waiting for more.
    pub(crate) fn take(&mut self) -> io::Result<Vec<Event>> {
        let mut chunk = [0; 4096];
        loop {
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.buffer.extend_from_slice(&chunk[..read]),
                Err(error) if stop_in(&error) == Some(Stop::Timeout) => break,
                Err(error) => return Err(error),
            }
        }
        let end = self.buffer.iter().rposition(|byte| *byte == b'\n');
        let lines: Vec<u8> = self.buffer.drain(..end.map_or(0, |at| at + 1)).collect();
        let lines = lines.split(|byte| *byte == b'\n');
        let events = lines.filter_map(|line| match Message::parse(line) {
            Some(Message::Event(event)) => Some(event),
            _ => None,
        });
        Ok(events.collect())
    }
}

impl AsFd for Events {
    /// Readable when there are events, or when QEMU has gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn failure(node: &str, error: &io::Error) -> Error {
    Error::of_connection(error, || {
        Error::monitor(node, format!("the monitor does not answer: {error}"))
    })
}

#[cfg(test)]
#[path = "monitor_tests.rs"]
mod tests;
