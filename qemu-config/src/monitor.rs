//! QEMU's monitor (QMP), with a deadline on every exchange.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::dirs::NodeDir;
use crate::qapi::{Connection, Failure};
use crate::socket::Socket;
use crate::wait::{stop_in, Deadline, Stop};
use crate::{Error, Result};

/// A connection to the monitor of one node's QEMU. QEMU serves one at a time: keep
/// it short.
pub struct Monitor {
    connection: Connection,
    node: String,
}

impl Monitor {
    /// Connects to the monitor for commands.
    pub(crate) fn connect(dir: &NodeDir, deadline: Deadline) -> Result<Self> {
        Self::connect_to(&dir.monitor(), dir.name(), deadline)
    }

    fn connect_to(path: &Path, node: &str, deadline: Deadline) -> Result<Self> {
        let failed = |error: io::Error| failure(node, &error);
        let socket = Socket::connect(path, deadline).map_err(failed)?;
        let mut monitor = Self {
            connection: Connection::new(socket),
            node: node.to_owned(),
        };
        // It greets, and executes nothing else before this.
        monitor.connection.receive().map_err(failed)?;
        monitor.execute("qmp_capabilities")?;
        Ok(monitor)
    }

    /// Executes `command`, which has no arguments, and returns its answer.
    ///
    /// # Errors
    /// [`Error::Monitor`] if QEMU refuses it or does not answer in time.
    pub fn execute(&mut self, command: &str) -> Result<Value> {
        self.connection
            .execute(command, Value::Null)
            .map_err(|error| refused(&self.node, error))
    }

    /// Returns true if the guest has the port open whose character device is `label`.
    pub(crate) fn is_port_open(&mut self, label: &str) -> Result<bool> {
        let devices = self.execute("query-chardev")?;
        let mut devices = devices.as_array().into_iter().flatten();
        Ok(devices.any(|device| device["frontend-open"] == true && device["label"] == label))
    }

    /// What QEMU says of the guest: such as `running`, `paused` or `guest-panicked`.
    pub(crate) fn status(&mut self) -> Result<Status> {
        let status = self.execute("query-status")?;
        serde_json::from_value(status).map_err(|error| failure(&self.node, &error.into()))
    }
}

/// What QEMU says of its guest.
#[derive(Debug, Deserialize)]
pub(crate) struct Status {
    /// The virtual CPUs run.
    pub(crate) running: bool,
    status: String,
}

impl Status {
    /// Returns true if the guest's kernel has panicked.
    pub(crate) fn is_panicked(&self) -> bool {
        self.status == "guest-panicked"
    }
}

/// Something that happened to a guest.
#[derive(Debug, Deserialize)]
pub(crate) struct Event {
    event: String,
    #[serde(default)]
    data: Value,
}

impl Event {
    /// Returns true if the guest's kernel has panicked.
    pub(crate) fn is_panic(&self) -> bool {
        self.event == "GUEST_PANICKED"
    }

    /// Returns true if the guest has reset itself.
    pub(crate) fn is_own_reset(&self) -> bool {
        self.event == "RESET" && self.data["guest"] == true
    }
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
        let (socket, buffer) = monitor.connection.into_parts();
        socket.set_deadline(Deadline::seconds(0));
        Ok(Self { buffer, socket })
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
        Ok(lines
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect())
    }
}

impl AsFd for Events {
    /// Readable when there are events, or when QEMU has gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn refused(node: &str, error: Failure) -> Error {
    match error {
        Failure::Io(error) => failure(node, &error),
        Failure::Refused(why) => Error::monitor(node, why),
    }
}

fn failure(node: &str, error: &io::Error) -> Error {
    Error::of_connection(error, || {
        Error::monitor(node, format!("the monitor does not answer: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(line: &str) -> Event {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn events_are_told_apart() {
        let stamp = r#""timestamp": {"seconds": 1, "microseconds": 2}"#;
        let reset = |guest| {
            let data = format!(r#"{{"guest": {guest}, "reason": "guest-reset"}}"#);
            event(&format!(r#"{{{stamp}, "event": "RESET", "data": {data}}}"#))
        };
        assert!(reset(true).is_own_reset() && !reset(true).is_panic());
        assert!(!reset(false).is_own_reset());
        let panic = event(&format!(
            r#"{{{stamp}, "event": "GUEST_PANICKED", "data": {{"action": "pause"}}}}"#
        ));
        assert!(panic.is_panic() && !panic.is_own_reset());
        assert!(!event(&format!(r#"{{{stamp}, "event": "STOP"}}"#)).is_panic());
    }
}
