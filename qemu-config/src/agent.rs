//! The guest agent (QGA), with a deadline on every exchange.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;

use serde_json::{json, Value};

use crate::dirs::NodeDir;
use crate::qapi::{Connection, Failure};
use crate::socket::Socket;
use crate::wait::{stop_in, Deadline};
use crate::{Error, Result};

/// A connection to one node's agent. It serves one at a time: keep it short.
pub(crate) struct Agent {
    connection: Connection,
    node: String,
}

impl Agent {
    /// Connects, and synchronizes: an answer to an earlier client may still come.
    pub(crate) fn connect(dir: &NodeDir, deadline: Deadline) -> Result<Self> {
        let node = dir.name();
        let socket = Socket::connect(&dir.agent(), deadline);
        let socket = socket.map_err(|error| failure(node, &error))?;
        let mut agent = Self {
            connection: Connection::new(socket),
            node: node.to_owned(),
        };
        agent.synchronize()?;
        Ok(agent)
    }

    fn synchronize(&mut self) -> Result<()> {
        let id = (random() >> 33) as i64;
        self.connection
            .send("guest-sync", json!({ "id": id }))
            .map_err(|error| failure(&self.node, &error))?;
        loop {
            match self.connection.answer() {
                Ok(answer) if answer == id => return Ok(()),
                Err(Failure::Io(error)) if !is_garbage(&error) => {
                    return Err(failure(&self.node, &error))
                }
                _ => {}
            }
        }
    }

    /// Starts a program in the guest; its process number.
    pub(crate) fn start(&mut self, path: &str, args: &[&str]) -> Result<i64> {
        let started = self.execute("guest-exec", json!({ "path": path, "arg": args }), path)?;
        let no_number = || self.no_answer(&io::ErrorKind::InvalidData.into());
        started["pid"].as_i64().ok_or_else(no_number)
    }

    /// Returns true if the program `pid` has ended. The agent forgets it when it has.
    pub(crate) fn has_ended(&mut self, pid: i64) -> Result<bool> {
        let command = "guest-exec-status";
        let status = self.execute(command, json!({ "pid": pid }), command)?;
        let no_state = || self.no_answer(&io::ErrorKind::InvalidData.into());
        status["exited"].as_bool().ok_or_else(no_state)
    }

    /// Executes a command; `what` says in errors what was refused.
    fn execute(&mut self, command: &str, arguments: Value, what: &str) -> Result<Value> {
        let answer = self.connection.execute(command, arguments);
        answer.map_err(|error| match error {
            Failure::Io(error) => self.no_answer(&error),
            Failure::Refused(why) => {
                let message = format!("the guest agent refused {what}: {why}");
                Error::guest(&self.node, message)
            }
        })
    }

    fn no_answer(&self, error: &io::Error) -> Error {
        failure(&self.node, error)
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
