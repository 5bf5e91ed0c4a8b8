//! The protocol of QEMU's monitor and of the guest agent: each command, answer and event is a
//! JSON object in a line of its own.
//!
//! Only what is needed of an answer is looked at. The types of all commands, which a crate has,
//! take longer to compile than the rest of this one.

use std::io::{self, BufRead, BufReader, Read, Write};

use serde_json::{json, Map, Value};

use crate::socket::Socket;

/// Longest line: the agent is a program of the guest, and may send anything.
const LINE_MAX: u64 = 1 << 20;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The other side has refused the command, and says why.
    Refused(String),
    /// The connection has failed; [`io::ErrorKind::InvalidData`]: what came is no answer.
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A connection over which commands are executed one after the other.
pub(crate) struct Connection {
    reader: BufReader<Socket>,
}

impl Connection {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            reader: BufReader::new(socket),
        }
    }

    /// Sends a command.
    pub(crate) fn send(&mut self, command: &str, arguments: Value) -> io::Result<()> {
        let mut line = json!({ "execute": command });
        if !arguments.is_null() {
            line["arguments"] = arguments;
        }
        self.reader
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
    }

    /// Reads the next object.
    pub(crate) fn receive(&mut self) -> io::Result<Map<String, Value>> {
        let mut line = Vec::new();
        let mut limited = (&mut self.reader).take(LINE_MAX);
        limited.read_until(b'\n', &mut line)?;
        match line.last() {
            Some(b'\n') => serde_json::from_slice(&line)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
            _ if line.len() as u64 == LINE_MAX => {
                Err(io::Error::other("it sends a line without an end"))
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads the next answer. What comes before it, such as events, is left out.
    pub(crate) fn answer(&mut self) -> Result<Value, Failure> {
        loop {
            let mut object = self.receive()?;
            if let Some(answer) = object.remove("return") {
                return Ok(answer);
            }
            if let Some(error) = object.get("error") {
                let why = error["desc"].as_str();
                return Err(Failure::Refused(why.unwrap_or("no reason").to_owned()));
            }
        }
    }

    /// Executes a command and returns its answer.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, Failure> {
        self.send(command, arguments)?;
        self.answer()
    }

    /// The socket, and what was read from it and not yet taken.
    pub(crate) fn into_parts(self) -> (Socket, Vec<u8>) {
        let buffer = self.reader.buffer().to_vec();
        (self.reader.into_inner(), buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::wait::Deadline;

    /// A connection to somebody who has sent `sent` and closes; and who that is.
    fn connected(sent: &str) -> (Connection, std::os::unix::net::UnixStream) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let socket = Socket::connect(&path, Deadline::seconds(10)).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        other.write_all(sent.as_bytes()).unwrap();
        other.shutdown(std::net::Shutdown::Write).unwrap();
        (Connection::new(socket), other)
    }

    #[test]
    fn a_command_is_a_line_and_its_answer_follows_the_events() {
        let answers = "{\"event\":\"RESET\"}\r\n{\"return\":{\"pid\":7}}\r\n";
        let (mut connection, other) = connected(answers);
        let answer = connection.execute("guest-exec", json!({ "path": "x" }));
        assert_eq!(answer.unwrap()["pid"], 7);
        let mut line = String::new();
        BufReader::new(other).read_line(&mut line).unwrap();
        let sent: Value = serde_json::from_str(&line).unwrap();
        let expected = json!({ "execute": "guest-exec", "arguments": { "path": "x" } });
        assert_eq!(sent, expected);
    }

    #[test]
    fn a_refusal_garbage_and_an_end_are_told_apart() {
        let sent = "{\"error\":{\"class\":\"X\",\"desc\":\"no\"}}\n[1]\n{\"ret";
        let (mut connection, _other) = connected(sent);
        let mut next = || connection.answer().unwrap_err();
        assert!(matches!(next(), Failure::Refused(why) if why == "no"));
        for kind in [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof] {
            assert!(matches!(next(), Failure::Io(error) if error.kind() == kind));
        }
    }

    #[test]
    fn a_line_without_an_end_is_an_error() {
        let socket = tempfile::tempdir().unwrap();
        let path = socket.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let mut connection =
            Connection::new(Socket::connect(&path, Deadline::seconds(10)).unwrap());
        let (mut other, _) = listener.accept().unwrap();
        let sender = std::thread::spawn(move || {
            // It ends when nobody reads any more.
            while other.write_all(&[b'x'; 4096]).is_ok() {}
        });
        assert!(matches!(connection.answer(), Err(Failure::Io(_))));
        drop(connection);
        sender.join().unwrap();
    }
}
