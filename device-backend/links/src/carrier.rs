//! The way to other device processes.
//!
//! A carrier moves whole frames between this process and others, each named by a
//! number from 0 that both sides need not agree on. It may lose, reorder and
//! duplicate, never damage; it lets nothing in that is not from a process it knows.
//! The engine thread drives it:
//!
//! ```text
//!   send, send, …  ─► flush          at the end of each round
//!   receive        ─► take(…), …     at the start of each round
//!   prepare_sleep  ─► sleep in epoll on descriptor(), until next_deadline()
//! ```

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use qnic_nic::Time;
use serde::Serialize;

/// Moves frames between this process and others.
pub trait Carrier: Debug + Send {
    /// Sends one frame to a process. `fill` appends header and payload, or says that
    /// it cannot; the frame is dropped then.
    fn send(&mut self, now: Time, process: usize, fill: &mut dyn FnMut(&mut Vec<u8>) -> bool);

    /// Hands to the system what was sent since the last call.
    fn flush(&mut self, now: Time);

    /// Takes in a bounded number of frames and calls `take` with the process that
    /// each came from; does what is due. Says whether there was any work.
    fn receive(&mut self, now: Time, take: &mut dyn FnMut(usize, &[u8])) -> bool;

    /// Says that the engine is about to sleep; `false` if something has come.
    fn prepare_sleep(&mut self) -> bool;

    /// Readable when [`Carrier::receive`] has work, once [`Carrier::prepare_sleep`]
    /// has said `true`. Watched edge-triggered.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// When [`Carrier::receive`] must be called at the latest.
    fn next_deadline(&self) -> Option<Time>;

    /// What it has done with each process.
    fn report(&self) -> CarrierReport;
}

/// What a carrier is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CarrierReport {
    /// Kind of carrier: `udp` or `shm`.
    pub kind: &'static str,
    /// Where this process listens.
    pub address: String,
    /// Datagrams of strangers or with another key, and calls of strangers: ignored.
    pub strangers: u64,
    /// The other processes.
    pub processes: Vec<ProcessReport>,
}

/// Traffic with one other process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ProcessReport {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// Whether it answers.
    pub connected: bool,
    /// Largest piece that reaches it, in bytes.
    pub mtu: u64,
    /// Frames sent.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Frames that were dropped here: no connection, or a full queue.
    pub dropped: u64,
    /// Pieces that had come before, or from an earlier life: ignored.
    pub replayed: u64,
    /// Pieces that made no sense although they were authentic.
    pub malformed: u64,
}
