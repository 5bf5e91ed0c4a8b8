//! Streams of pools and of TCP alike: what is sent first says what the server does with the rest.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use anyhow::{ensure, Context, Result};
use qnic::stream::{Stream, Streams};

/// Bytes that are read or written at once, at most.
pub(super) const CHUNK: usize = 64 << 10;

/// A stream of bytes in both directions.
pub(super) trait Connection: Read + Write {
    /// Ends this side's direction.
    fn finish(&self) -> Result<()>;

    /// System calls that this side has made for it so far.
    fn calls(&self) -> u64;

    /// Those of them that were kicks, where there are such.
    fn kicks(&self) -> Option<u64>;
}

/// What the server does with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Purpose {
    /// Sends back what comes.
    Echo = 1,
    /// Drops what comes, and says how much that was.
    Drop = 2,
    /// The same, and says its checksum.
    Check = 3,
}

impl Purpose {
    /// From the first byte of a connection.
    pub(super) fn read(connection: &mut impl Read) -> Result<Self> {
        let mut byte = [0];
        connection.read_exact(&mut byte).context("the first byte")?;
        [Purpose::Echo, Purpose::Drop, Purpose::Check]
            .into_iter()
            .find(|purpose| *purpose as u8 == byte[0])
            .with_context(|| format!("there is no purpose {}", byte[0]))
    }

    /// Says it to the server.
    pub(super) fn write(self, connection: &mut impl Write) -> Result<()> {
        let written = connection.write_all(&[self as u8]);
        written.context("say what the connection is for")
    }
}

/// What the server says at the end of what it dropped or checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) bytes: u64,
    /// CRC-32; 0 if it was not asked for.
    pub(super) checksum: u32,
    /// System calls of the server.
    pub(super) calls: u64,
}

impl Answer {
    pub(super) fn write(&self, connection: &mut impl Write) -> Result<()> {
        let words = [self.bytes, self.checksum.into(), self.calls];
        let bytes = words.map(u64::to_le_bytes).concat();
        connection.write_all(&bytes).context("answer")
    }

    /// Reads it, and the end.
    pub(super) fn read(connection: &mut impl Read) -> Result<Self> {
        let mut bytes = Vec::new();
        connection.read_to_end(&mut bytes).context("the answer")?;
        ensure!(bytes.len() == 24, "an answer of {} bytes", bytes.len());
        let mut words = qnic_apps::demo::pattern::words(&bytes);
        let mut next = || words.next().unwrap_or_default();
        Ok(Answer {
            bytes: next(),
            checksum: next() as u32,
            calls: next(),
        })
    }
}

/// A stream over pools, with what counts its system calls.
pub(super) struct Pooled {
    pub(super) stream: Stream,
    pub(super) streams: Streams,
}

impl Connection for Pooled {
    fn finish(&self) -> Result<()> {
        Ok(self.stream.finish()?)
    }

    fn calls(&self) -> u64 {
        self.streams.pool_statistics().calls()
    }

    fn kicks(&self) -> Option<u64> {
        Some(self.streams.pool_statistics().kicks)
    }
}

impl Read for Pooled {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.read(bytes)
    }
}

impl Write for Pooled {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A connection of TCP, whose reads and writes are a system call each.
pub(super) struct Tcp {
    stream: TcpStream,
    calls: u64,
}

impl Tcp {
    pub(super) fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        Ok(Tcp { stream, calls: 0 })
    }
}

impl Connection for Tcp {
    fn finish(&self) -> Result<()> {
        let ended = self.stream.shutdown(Shutdown::Write);
        ended.context("end a connection of TCP")
    }

    fn calls(&self) -> u64 {
        self.calls
    }

    fn kicks(&self) -> Option<u64> {
        None
    }
}

impl Read for Tcp {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.calls += 1;
        self.stream.read(bytes)
    }
}

impl Write for Tcp {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.calls += 1;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_and_answers_are_read_as_written() {
        let mut wire = Vec::new();
        for purpose in [Purpose::Echo, Purpose::Drop, Purpose::Check] {
            purpose.write(&mut wire).unwrap();
        }
        let mut rest = &wire[..];
        assert_eq!(Purpose::read(&mut rest).unwrap(), Purpose::Echo);
        assert_eq!(Purpose::read(&mut rest).unwrap(), Purpose::Drop);
        assert_eq!(Purpose::read(&mut rest).unwrap(), Purpose::Check);
        assert!(Purpose::read(&mut rest).is_err() && Purpose::read(&mut &[9][..]).is_err());
        let answer = Answer {
            bytes: 1 << 40,
            checksum: u32::MAX,
            calls: 7,
        };
        wire.clear();
        answer.write(&mut wire).unwrap();
        assert_eq!(Answer::read(&mut &wire[..]).unwrap(), answer);
        assert!(Answer::read(&mut &wire[1..]).is_err());
    }
}
