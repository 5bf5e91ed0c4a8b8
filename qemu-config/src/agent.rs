//! The guest agent (QGA), through `qapi`, with a deadline on every exchange.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufReader};
use std::time::Duration;

use qapi::qga::{guest_exec, guest_exec_status, guest_sync};
use qapi::{ExecuteError, Qga, Stream};

use crate::dirs::NodeDir;
use crate::socket::Socket;
use crate::wait::{stop_in, Deadline, Stop};
use crate::{Error, Result};

/// Time that the agent has to answer a client before that connects again, and waits behind all others that do.
const SYNC_TURN: Duration = Duration::from_secs(5);

/// A connection to one node's agent, which serves one connection at a time: keep it short.
pub(crate) struct Agent {
    qga: Qga<Stream<BufReader<Socket>, Socket>>,
    node: String,
}

impl Agent {
    /// Connects, and skips answers that an earlier client has not waited for.
    ///
    /// It connects again whenever a turn is over without an answer: an earlier client that was killed
    /// while the agent answered it leaves a port out of which nothing comes until a client closes it (see
    /// [`crate::guest_process`]).
    pub(crate) fn connect(dir: &NodeDir, deadline: Deadline) -> Result<Self> {
        loop {
            let error = match Self::connect_once(dir, &deadline) {
                Ok(agent) => return Ok(agent),
                Err(error) => error,
            };
            let again = stop_in(&error) == Some(Stop::Timeout);
            if !again || deadline.left() == Some(Duration::ZERO) {
                return Err(failure(dir.name(), &error));
            }
        }
    }

    fn connect_once(dir: &NodeDir, deadline: &Deadline) -> io::Result<Self> {
        let socket = Socket::connect(&dir.agent(), deadline.clone())?;
        socket.set_deadline(deadline.at_most(SYNC_TURN));
        let stream = Stream::new(BufReader::new(socket.clone()), socket.clone());
        let mut agent = Self {
            qga: Qga::new(stream),
            node: dir.name().to_owned(),
        };
        agent.synchronize()?;
        socket.set_deadline(deadline.clone());
        Ok(agent)
    }

    fn synchronize(&mut self) -> io::Result<()> {
        let id = (random() >> 33) as i64;
        self.qga.write_command(&guest_sync { id })?;
        loop {
            match self.qga.read_response::<guest_sync>() {
                Ok(answer) if answer == id => return Ok(()),
                Err(ExecuteError::Io(error)) if !is_garbage(&error) => return Err(error),
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

    /// Returns true if the program `pid` has ended. The agent forgets it then; after a restart of the
    /// guest it knows of none.
    pub(crate) fn has_ended(&mut self, pid: i64) -> Result<bool> {
        match self.qga.execute(&guest_exec_status { pid }) {
            Ok(status) => Ok(status.exited),
            Err(ExecuteError::Qapi(_)) => Ok(true),
            Err(error) => Err(self.refused("guest-exec-status", error)),
        }
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
