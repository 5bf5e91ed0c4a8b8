//! QEMU's monitor (QMP), through `qapi`, with a deadline on every exchange.

use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use qapi::qmp::{query_chardev, Event, QmpCommand};
use qapi::{ExecuteError, Qmp, Stream};

use crate::dirs::NodeDir;
use crate::socket::Socket;
use crate::wait::{stop_in, Deadline, Stop};
use crate::{Error, Result};

type Connection = Stream<BufReader<Socket>, Socket>;

/// A connection to the monitor of one node's QEMU. QEMU serves one at a time: keep
/// it short.
pub struct Monitor {
    qmp: Qmp<Connection>,
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
        let mut stream = Stream::new(BufReader::new(socket.clone()), socket);
        // A monitor that closes before its greeting would panic in the crate.
        if stream.fill_buf().map_err(failed)?.is_empty() {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        let mut qmp = Qmp::new(stream);
        qmp.handshake().map_err(|error| refused(node, error))?;
        Ok(Self {
            qmp,
            node: node.to_owned(),
        })
    }

    /// Executes `command` and returns its answer.
    ///
    /// # Errors
    /// [`Error::Monitor`] if QEMU refuses it or does not answer in time.
    pub fn execute<C: QmpCommand>(&mut self, command: &C) -> Result<C::Ok> {
        self.qmp
            .execute(command)
            .map_err(|error| refused(&self.node, error))
    }

    /// Returns true if the guest has the port open whose character device is `label`.
    pub(crate) fn is_port_open(&mut self, label: &str) -> Result<bool> {
        let devices = self.execute(&query_chardev {})?;
        let mut open = devices.iter().filter(|device| device.frontend_open);
        Ok(open.any(|device| device.label == label))
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
        let (reader, socket) = monitor.qmp.into_inner().into_inner();
        socket.set_deadline(Deadline::seconds(0));
        Ok(Self {
            buffer: reader.buffer().to_vec(),
            socket,
        })
    }

    /// Takes the events that have arrived, without waiting for more. Events that are
    /// newer than the crate are left out.
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

fn refused(node: &str, error: ExecuteError) -> Error {
    match error {
        ExecuteError::Io(error) => failure(node, &error),
        ExecuteError::Qapi(error) => Error::monitor(node, error.to_string()),
    }
}

fn failure(node: &str, error: &io::Error) -> Error {
    Error::of_connection(error, || {
        Error::monitor(node, format!("the monitor does not answer: {error}"))
    })
}
