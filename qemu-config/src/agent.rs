//! The guest agent (QGA), through `qapi`, with a deadline on every exchange.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufReader};

use qapi::qga::{guest_exec, guest_exec_status, guest_sync};
use qapi::{ExecuteError, Qga, Stream};

use crate::dirs::NodeDir;
use crate::socket::Socket;
use crate::wait::{stop_in, Deadline};
use crate::{Error, Result};

/// A connection to one node's agent, which serves one connection at a time: keep it short.
pub(crate) struct Agent {
    qga: Qga<Stream<BufReader<Socket>, Socket>>,
    node: String,
}

impl Agent {
    /// Connects, and skips answers that an earlier client has not waited for.
    pub(crate) fn connect(dir: &NodeDir, deadline: Deadline) -> Result<Self> {
        let node = dir.name();
        let socket = Socket::connect(&dir.agent(), deadline);
        let socket = socket.map_err(|error| failure(node, &error))?;
        let stream = Stream::new(BufReader::new(socket.clone()), socket);
        let mut agent = Self {
            qga: Qga::new(stream),
            node: node.to_owned(),
        };
        agent.synchronize()?;
        Ok(agent)
    }

    fn synchronize(&mut self) -> Result<()> {
        let id = (random() >> 33) as i64;
        let sync = guest_sync { id };
        self.qga
            .write_command(&sync)
            .map_err(|error| failure(&self.node, &error))?;
        loop {
            match self.qga.read_response::<guest_sync>() {
                Ok(answer) if answer == id => return Ok(()),
                Err(ExecuteError::Io(error)) if !is_garbage(&error) => {
                    return Err(failure(&self.node, &error))
                }
                _ => {}
            }
        }
    }

    /// Starts a program in the guest. Returns the number of its process.
    pub(crate) fn start(&mut self, path: &str, args: &[&str]) -> Result<i64> {
        let command = guest_exec {
            path: path.to_owned(),
            arg: Some(args.iter().map(|arg| (*arg).to_owned()).collect()),
            env: None,
            input_data: None,
            capture_output: None,
        };
        self.qga
            .execute(&command)
            .map(|started| started.pid)
            .map_err(|error| self.refused(path, error))
    }

    /// Returns true if the program `pid` has ended. The agent forgets it when it has.
    pub(crate) fn has_ended(&mut self, pid: i64) -> Result<bool> {
        let status = self.qga.execute(&guest_exec_status { pid });
        status
            .map(|status| status.exited)
            .map_err(|error| self.refused("guest-exec-status", error))
    }

    fn refused(&self, what: &str, error: ExecuteError) -> Error {
        match error {
            ExecuteError::Io(error) => failure(&self.node, &error),
            ExecuteError::Qapi(error) => {
                let message = format!("the guest agent refused {what}: {error}");
                Error::guest(&self.node, message)
            }
        }
    }
}

/// A number that differs each time. Not secret.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn is_garbage(error: &io::Error) -> bool {
    stop_in(error).is_none() && error.kind() == io::ErrorKind::InvalidData
}

fn failure(node: &str, error: &io::Error) -> Error {
    Error::of_connection(error, || {
        Error::guest(node, format!("the guest agent does not answer: {error}"))
    })
}
