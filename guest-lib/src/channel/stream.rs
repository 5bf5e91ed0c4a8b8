//! Channels as byte streams: `std::io::Read` and `std::io::Write`.

use std::io;
use std::time::Duration;

use super::{Receiver, Sender};
use crate::error::Error;

/// Writes bytes as messages: each [`write`](io::Write::write) is one, of at most the
/// channel's message length. [`flush`](io::Write::flush) waits until all are in the
/// receiver's memory.
///
/// Errors: `BrokenPipe` when the receiver closed the channel, `ConnectionReset` when
/// it is gone, `TimedOut`; each carries the [`Error`].
#[derive(Debug)]
pub struct Writer {
    sender: Sender,
    timeout: Option<Duration>,
}

impl Writer {
    /// Waits for room without limit, unless told otherwise.
    pub fn new(sender: Sender) -> Self {
        Writer {
            sender,
            timeout: None,
        }
    }

    /// Longest time that a write waits for room, and a flush for the end of the writes.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// The sender, which ends the stream when it is closed.
    pub fn into_inner(self) -> Sender {
        self.sender
    }
}

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len().min(self.sender.message_bytes());
        if length > 0 {
            self.sender
                .send(&bytes[..length], self.timeout)
                .map_err(|error| to_io(error, io::ErrorKind::BrokenPipe))?;
        }
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = match self.timeout {
            Some(timeout) => self.sender.flush_timeout(timeout),
            None => self.sender.flush(),
        };
        flushed.map_err(|error| to_io(error, io::ErrorKind::BrokenPipe))
    }
}

/// Reads the bytes of messages one after the other; the end of the channel is the
/// end of the stream.
///
/// Errors: `ConnectionReset` when the sender is gone without having closed the
/// channel, `TimedOut`; each carries the [`Error`].
#[derive(Debug)]
pub struct Reader {
    receiver: Receiver,
    timeout: Option<Duration>,
    /// Length of the current message, and how much of it was read.
    current: Option<(usize, usize)>,
}

impl Reader {
    /// Waits for bytes without limit, unless told otherwise.
    pub fn new(receiver: Receiver) -> Self {
        Reader {
            receiver,
            timeout: None,
            current: None,
        }
    }

    /// Longest time that a read waits for bytes.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Length of the current message, and how much of it was read; waits for one.
    fn current(&mut self) -> crate::Result<(usize, usize)> {
        while self.current.is_none() {
            let length = self.receiver.next_length(self.timeout)?;
            match length {
                0 => self.receiver.free(),
                length => self.current = Some((length, 0)),
            }
        }
        Ok(self.current.unwrap_or_default())
    }
}

impl io::Read for Reader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let (length, done) = match self.current() {
            Ok(current) => current,
            Err(Error::ChannelClosed) => return Ok(0),
            Err(error) => return Err(to_io(error, io::ErrorKind::UnexpectedEof)),
        };
        let count = bytes.len().min(length - done);
        let copied = self.receiver.copy(done, &mut bytes[..count]);
        copied.map_err(io::Error::other)?;
        self.current = Some((length, done + count));
        if done + count == length {
            self.current = None;
            self.receiver.free();
        }
        Ok(count)
    }
}

fn to_io(error: Error, closed: io::ErrorKind) -> io::Error {
    let kind = match &error {
        Error::ChannelClosed => closed,
        Error::PeerLost { .. } | Error::DeviceGone => io::ErrorKind::ConnectionReset,
        Error::TimedOut => io::ErrorKind::TimedOut,
        Error::ChannelBroken(_) => io::ErrorKind::InvalidData,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
