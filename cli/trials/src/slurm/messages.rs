//! What tasks and supervisor say to each other, and how it goes through srun.
//!
//! ```text
//!   supervisor ── Told, a line of JSON ──────────────► stdin of every task
//!   supervisor ◄── "2 + {"Output…", "2 . …}" ───────── stdout of task 2
//! ```
//! srun passes output on in lines, but cuts those of more than 1 KiB, and what follows the cut may be another
//! task's. So a message goes in lines of [`CHUNK`] bytes, each with the task's number and whether more comes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;

use crate::{Step, Stream};
use base64::prelude::{Engine as _, BASE64_STANDARD};
use serde::{Deserialize, Serialize};

/// Bytes of a message in a line, without number and mark.
const CHUNK: usize = 900;
/// More bytes are no message: the task is broken.
const MAX_MESSAGE: usize = 16 << 20;

/// What a task says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Said {
    /// It runs, on the host that Slurm calls so, in the job of this number.
    Hello { host: String, job: u32 },
    /// Its device process will listen there.
    Address(SocketAddr),
    /// For the user to read.
    Progress(String),
    /// A program has printed something, in base64.
    Output {
        node: String,
        error: bool,
        bytes: String,
    },
    /// It has come to this step, and waits.
    Reached(Step),
    /// It has ended, and left nothing.
    Done(Report),
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The exit status of a trial, see [`crate::Verdict::status`].
    pub(crate) status: u8,
    /// The program's status on this node is that; `None`: it is none of a program.
    pub(crate) node: Option<String>,
    /// What happened, in words.
    pub(crate) text: String,
}

/// What the supervisor says to all tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// How the hosts are reached, by their numbers, as Slurm knows them.
    Names(Vec<String>),
    /// Where their device processes listen.
    Hosts(Vec<SocketAddr>),
    /// All have come to this step.
    Go(Step),
}

impl Said {
    pub(crate) fn output(node: &str, stream: Stream, bytes: &[u8]) -> Self {
        Self::Output {
            node: node.to_owned(),
            error: stream == Stream::Err,
            bytes: BASE64_STANDARD.encode(bytes),
        }
    }
}

/// The bytes of an output.
pub(crate) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(text).ok()
}

/// Writes what task `host` says.
pub(crate) fn write(host: usize, said: &Said, to: &mut dyn Write) -> io::Result<()> {
    let text = serde_json::to_vec(said)?;
    let mut chunks = text.chunks(CHUNK).peekable();
    let mut lines = Vec::new();
    while let Some(chunk) = chunks.next() {
        let mark = if chunks.peek().is_some() { '+' } else { '.' };
        write!(lines, "{host} {mark} ")?;
        lines.extend_from_slice(chunk);
        lines.push(b'\n');
    }
    to.write_all(&lines)?;
    to.flush()
}

/// Puts messages together of lines.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    partial: BTreeMap<usize, Vec<u8>>,
}

impl Reader {
    /// Takes a line. Returns the message that it ends, or what is wrong with it.
    pub(crate) fn take(&mut self, line: &[u8]) -> Result<Option<(usize, Said)>, String> {
        let wrong = || format!("not a message: {}", String::from_utf8_lossy(line));
        let mut parts = line.splitn(3, |byte| *byte == b' ');
        let (host, mark, chunk) = (parts.next(), parts.next(), parts.next().ok_or_else(wrong)?);
        let host = host.and_then(|host| std::str::from_utf8(host).ok()?.parse().ok());
        let host: usize = host.ok_or_else(wrong)?;
        let message = self.partial.entry(host).or_default();
        if message.len() + chunk.len() > MAX_MESSAGE {
            return Err(format!(
                "host {host}: a message has more than {MAX_MESSAGE} bytes"
            ));
        }
        message.extend_from_slice(chunk);
        match mark {
            Some(b"+") => Ok(None),
            Some(b".") => {
                let message = self.partial.remove(&host).unwrap_or_default();
                let said = serde_json::from_slice(&message);
                Ok(Some((
                    host,
                    said.map_err(|error| format!("host {host}: {error}"))?,
                )))
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Messages of several tasks whose lines mix come out whole, and no line is one that srun would cut.
        #[test]
        fn messages_go_through_lines_that_mix(
            outputs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5000), 1..4),
            seed in any::<usize>(),
        ) {
            let said = |bytes: &Vec<u8>| Said::output("n0", Stream::Err, bytes);
            let mut queues: Vec<Vec<Vec<u8>>> = Vec::new();
            for (host, bytes) in outputs.iter().enumerate() {
                let mut text = Vec::new();
                write(host, &said(bytes), &mut text).unwrap();
                let lines = text.split(|byte| *byte == b'\n');
                queues.push(lines.filter(|line| !line.is_empty()).map(<[u8]>::to_vec).rev().collect());
            }
            let (mut reader, mut turn, mut got) = (Reader::default(), seed % 7, BTreeMap::new());
            while queues.iter().any(|queue| !queue.is_empty()) {
                turn += 1;
                let index = turn % queues.len();
                let Some(line) = queues[index].pop() else { continue };
                prop_assert!(line.len() < 1000);
                if let Some((host, said)) = reader.take(&line).unwrap() {
                    got.insert(host, said);
                }
            }
            let expected: BTreeMap<_, _> = outputs.iter().map(said).enumerate().collect();
            prop_assert_eq!(got, expected);
        }

        #[test]
        fn lines_of_others_are_errors(line in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(!matches!(Reader::default().take(&line), Ok(Some(_))));
        }
    }

    #[test]
    fn what_is_not_a_message_is_quoted() {
        let error = Reader::default().take(b"slurmstepd: hello").unwrap_err();
        assert!(error.contains("hello"), "{error}");
        assert!(Reader::default().take(b"1 . {\"Nonsense\":1}").is_err());
    }
}
