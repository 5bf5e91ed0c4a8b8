//! Datagrams between processes, over shared pools: messages of up to 64 KiB that may be lost,
//! repeated and reordered, but are never changed, and never come in part.
//!
//! ```no_run
//! use qnic::datagram::Socket;
//! use qnic::{Nic, NodeId};
//!
//! # fn main() -> qnic::Result<()> {
//! let socket = Socket::bind(&Nic::open()?, 0)?;
//! socket.send_to(b"hello", NodeId(1), 2000, None)?;
//! let answer = socket.receive(None)?;
//! # Ok(())
//! # }
//! ```
//! A message that is longer than a frame goes in parts. The receiver joins them; a message of
//! which a part is missing for longer than [`SocketOptions::join_timeout`] is dropped and counted
//! ([`SocketStatistics`]).
//!
//! | module | |
//! |---|---|
//! | `join` | parts to messages |
//! | `task` | receiving in async tasks |

mod join;
#[cfg(feature = "tokio")]
mod task;

#[cfg(feature = "tokio")]
pub use task::AsyncSocket;

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use qnic_abi::pool::{DatagramPart, MAX_DATAGRAM};
use qnic_abi::NodeId;
use zerocopy::IntoBytes;

use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::pool::{PoolOptions, Pools, Statistics};
use join::Joiner;

/// The route to a node is asked for again after so long.
const ROUTE_KNOWN_FOR: Duration = Duration::from_secs(1);

/// Routes that are remembered.
const ROUTES: usize = 1024;

const PART: usize = size_of::<DatagramPart>();

/// Limits of a [`Socket`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SocketOptions {
    /// Frames.
    pub pool: PoolOptions,
    /// How long to wait for the missing parts of a message.
    pub join_timeout: Duration,
}

impl Default for SocketOptions {
    fn default() -> Self {
        SocketOptions {
            pool: PoolOptions::default(),
            join_timeout: Duration::from_millis(500),
        }
    }
}

/// A message that has come.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Datagram {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The node that has sent it.
    pub node: NodeId,
    /// The datagram port that has sent it.
    pub port: u16,
}

/// What a socket has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketStatistics {
    /// Messages handed to the driver.
    pub sent: u64,
    /// Messages received whole.
    pub received: u64,
    /// Messages dropped, as parts were missing for too long.
    pub expired: u64,
    /// Messages dropped, as too many others were being joined.
    pub crowded_out: u64,
    /// Packets dropped that are no part of a message, or disagree with other parts of theirs.
    pub malformed: u64,
    /// Packets sent to ports that no process had bound, as far as their NICs have said so.
    pub unbound: u64,
    /// Parts dropped that had come before.
    pub repeated: u64,
    /// Messages of which only the beginning fitted into the reader's buffer.
    pub truncated: u64,
    /// Frames, and the system calls that they cost.
    pub pool: Statistics,
}

#[derive(Debug)]
struct State {
    joiner: Joiner,
    counters: SocketStatistics,
    next_message: u32,
    routes: HashMap<NodeId, (usize, Instant)>,
}

/// A datagram port of this process. Dropping it sends what was not sent yet, for as long as a tenth
/// of a second, and closes it.
#[derive(Debug)]
pub struct Socket {
    pools: Pools,
    state: Mutex<State>,
}

impl Socket {
    /// Opens a socket on a datagram port from 1024 up, or 0 for any free one.
    ///
    /// # Errors
    /// Those of [`Nic::open_pools`].
    pub fn bind(nic: &Nic, port: u16) -> Result<Self> {
        Self::bind_with(nic, port, SocketOptions::default())
    }

    /// [`Socket::bind`], with other limits.
    ///
    /// # Errors
    /// Those of [`Nic::open_pools`].
    pub fn bind_with(nic: &Nic, port: u16, options: SocketOptions) -> Result<Self> {
        Ok(Socket {
            pools: nic.open_pools(port, options.pool)?,
            state: Mutex::new(State {
                joiner: Joiner::new(options.join_timeout),
                counters: SocketStatistics::default(),
                next_message: 0,
                routes: HashMap::new(),
            }),
        })
    }

    /// The datagram port.
    pub fn port(&self) -> u16 {
        self.pools.port()
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.pools.node()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message; waits while all frames are on their way.
    ///
    /// # Errors
    /// [`Error::DatagramTooLong`], [`Error::TimedOut`] (parts may have been sent: no process receives
    /// them), [`Error::DeviceGone`]
    pub fn send_to(
        &self,
        bytes: &[u8],
        node: NodeId,
        port: u16,
        timeout: Option<Duration>,
    ) -> Result<()> {
        self.send_parts(bytes, node, port, timeout)?;
        self.pools.flush()
    }

    /// Sends a message without waiting.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if frames are missing; [`Error::DatagramTooLong`],
    /// [`Error::DeviceGone`]
    pub fn try_send_to(&self, bytes: &[u8], node: NodeId, port: u16) -> Result<()> {
        match self.send_to(bytes, node, port, Some(Duration::ZERO)) {
            Err(Error::TimedOut) => Err(Error::WouldBlock),
            other => other,
        }
    }

    /// Sends messages to a datagram port each, and tells the driver once.
    ///
    /// # Errors
    /// Those of [`Socket::send_to`]; the messages before have been sent.
    pub fn send_batch<'a>(
        &self,
        messages: impl IntoIterator<Item = (&'a [u8], NodeId, u16)>,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let mut messages = messages.into_iter();
        let sent = messages
            .try_for_each(|(bytes, node, port)| self.send_parts(bytes, node, port, timeout));
        sent.and(self.pools.flush())
    }

    fn send_parts(
        &self,
        bytes: &[u8],
        node: NodeId,
        port: u16,
        timeout: Option<Duration>,
    ) -> Result<()> {
        if bytes.len() > MAX_DATAGRAM {
            return Err(Error::DatagramTooLong {
                length: bytes.len(),
                limit: MAX_DATAGRAM,
            });
        }
        let part_bytes = self.part_bytes(node);
        let message = {
            let mut state = self.state();
            state.next_message = state.next_message.wrapping_add(1);
            state.next_message
        };
        let parts = bytes.len().div_ceil(part_bytes).max(1);
        for part in 0..parts {
            let rest = &bytes[part * part_bytes..];
            let piece = &rest[..rest.len().min(part_bytes)];
            let header = DatagramPart {
                message: message.into(),
                length: (bytes.len() as u32).into(),
                part: (part as u16).into(),
                part_bytes: (part_bytes as u16).into(),
                ..DatagramPart::default()
            };
            let mut frame = loop {
                match self.pools.output()? {
                    Some(frame) => break frame,
                    None => self.pools.wait_output(timeout)?,
                }
            };
            frame.write(0, header.as_bytes())?;
            frame.write(PART, piece)?;
            frame.send(node, port, PART + piece.len())?;
        }
        self.state().counters.sent += 1;
        Ok(())
    }

    /// Bytes of a message in each frame to a node.
    fn part_bytes(&self, node: NodeId) -> usize {
        let now = Instant::now();
        let known = self.state().routes.get(&node).copied();
        let bytes = match known {
            Some((bytes, at)) if now.duration_since(at) < ROUTE_KNOWN_FOR => bytes,
            _ => {
                let bytes = self.pools.shared().route_bytes(node);
                let mut state = self.state();
                if state.routes.len() >= ROUTES {
                    state.routes.clear();
                }
                state.routes.insert(node, (bytes, now));
                bytes
            }
        };
        bytes.saturating_sub(PART).max(1)
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::DeviceGone`]
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Datagram> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            match self.try_receive() {
                Err(Error::WouldBlock) => {}
                other => return other,
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            self.pools.wait_input(left)?;
        }
    }

    /// A message that has come.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if none is there, [`Error::DeviceGone`]
    pub fn try_receive(&self) -> Result<Datagram> {
        loop {
            let Some(frame) = self.pools.receive()? else {
                return Err(Error::WouldBlock);
            };
            let mut state = self.state();
            let State {
                joiner, counters, ..
            } = &mut *state;
            if frame.is_empty() {
                counters.unbound += 1;
                continue;
            }
            if let Some(datagram) = joiner.take(Instant::now(), &frame, counters) {
                counters.received += 1;
                return Ok(datagram);
            }
        }
    }

    /// Waits for a message and copies it out. Returns its length there, and its sender. What does not
    /// fit is dropped, and counted as truncated.
    ///
    /// # Errors
    /// Those of [`Socket::receive`].
    pub fn recv_from(
        &self,
        bytes: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<(usize, NodeId, u16)> {
        let datagram = self.receive(timeout)?;
        let count = datagram.bytes.len().min(bytes.len());
        bytes[..count].copy_from_slice(&datagram.bytes[..count]);
        if count < datagram.bytes.len() {
            self.state().counters.truncated += 1;
        }
        Ok((count, datagram.node, datagram.port))
    }

    /// Waits for a message, and takes what else has come, `most` in all.
    ///
    /// # Errors
    /// Those of [`Socket::receive`], for the first.
    pub fn receive_batch(&self, most: usize, timeout: Option<Duration>) -> Result<Vec<Datagram>> {
        let mut batch = vec![self.receive(timeout)?];
        while batch.len() < most {
            match self.try_receive() {
                Ok(datagram) => batch.push(datagram),
                Err(Error::WouldBlock) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(batch)
    }

    /// Asks to be woken for a packet, and returns a descriptor for poll or epoll; none if there is
    /// one already. Ask again each time before blocking: a packet may be a part of a message.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::System`]
    pub fn poll_input(&self) -> Result<Option<BorrowedFd<'_>>> {
        self.pools.poll_input()
    }

    /// What this socket has counted. What the driver has counted: [`Pools::info`] of
    /// [`Socket::pools`].
    pub fn statistics(&self) -> SocketStatistics {
        SocketStatistics {
            pool: self.pools.statistics(),
            ..self.state().counters
        }
    }

    /// The pools beneath.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }
}
