//! Carriers: they move frames to other device processes. (As in tunnelling, the carrier
//! is the protocol that encapsulates the frames.)
//!
//! A carrier moves whole frames between this process and others, which it numbers from
//! 0. Two processes need not agree on these numbers. A carrier may lose, reorder and
//! duplicate frames, but never damage them, and it accepts nothing from a process that
//! it does not know. The engine thread drives it:
//!
//! ```text
//!   send, send, …  ─► flush          at the end of each round
//!   receive        ─► take(…), …     at the start of each round
//!   prepare_sleep  ─► sleep in epoll on descriptor(), until next_deadline()
//! ```
//!
//! Each carrier has two channels (U4): a frame of the priority channel does not wait behind those
//! of the data channel. The modules of the carriers say how.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use qnic_nic::env::Channel;
use qnic_nic::Time;
use serde::Serialize;

/// Moves frames between this process and others.
pub trait Carrier: Debug + Send {
    /// Sends one frame to a process. `fill` appends the frame, or returns false if it
    /// cannot; then nothing is sent.
    fn send(
        &mut self,
        now: Time,
        process: usize,
        channel: Channel,
        fill: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    );

    /// Hands to the operating system what was sent since the last call.
    fn flush(&mut self, now: Time);

    /// Receives a bounded number of frames, and calls `take` with the process that each
    /// came from; does what is due. Returns true if there was any work.
    fn receive(&mut self, now: Time, take: &mut dyn FnMut(usize, &[u8])) -> bool;

    /// Announces that the engine is about to sleep. Returns false if something has
    /// arrived.
    fn prepare_sleep(&mut self) -> bool;

    /// Readable when [`Carrier::receive`] has work, once [`Carrier::prepare_sleep`]
    /// has returned true. Watched edge-triggered.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// When [`Carrier::receive`] must be called at the latest.
    fn next_deadline(&self) -> Option<Time>;

    /// Longest frame that reaches a process in one piece, in bytes (U5). Longer ones reach it, too,
    /// but are lost as a whole if one of their pieces is.
    fn max_frame(&self, process: usize) -> usize;

    /// Returns true if [`Carrier::max_frame`] says something else of a process than before the
    /// last call.
    fn take_path_change(&mut self) -> bool;

    /// What it has done with each process.
    fn report(&self) -> CarrierReport;
}

qnic_abi::counters! {
    /// What a carrier has done.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
    pub struct CarrierReport: u64 {
        {
            /// Kind of carrier: `udp` or `shm`.
            pub kind: &'static str,
            /// Where this process listens.
            pub address: String,
            /// The other processes.
            pub processes: Vec<ProcessReport>,
        }
        Counter qnic_carrier_rejected_total
            "Datagrams and connections of processes that are unknown or have another key, which were dropped." =
            rejected;
    }
}

qnic_abi::counters! {
    /// Traffic with one other process.
    #[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
    pub struct ProcessReport: u64 {
        {
            /// Its name.
            pub name: String,
            /// Where it listens.
            pub address: String,
            /// Whether it is connected.
            pub connected: bool,
        }
        Gauge qnic_peer_mtu_bytes "Largest datagram or record that reaches the other process." = mtu;
        Counter qnic_peer_frames_total
            "Frames to and from another process: sent, fragmented (of those sent), received, or dropped here." =
            frames_sent { outcome: "sent" },
            fragmented { outcome: "fragmented" },
            frames_received { outcome: "received" },
            dropped { outcome: "dropped" };
        Counter qnic_peer_sessions_total
            "Times that the two processes agreed on a session." = sessions;
        Counter qnic_peer_replayed_total
            "Datagrams that had arrived before, or belong to an earlier session, which were dropped." =
            replayed;
        Counter qnic_peer_malformed_total
            "Messages that were malformed although they were authentic." = malformed;
    }
}

/// Time without a connection after which that is logged, in nanoseconds.
pub(crate) const OUTAGE: u64 = 5_000_000_000;

/// A time without a connection, to be logged once when it lasts.
#[derive(Debug, Default)]
pub(crate) struct Outage(Option<Time>);

impl Outage {
    /// There has been no connection since `start`.
    pub(crate) fn since(start: Time) -> Self {
        Outage(Some(start.after(OUTAGE)))
    }

    /// There is a connection.
    pub(crate) fn end(&mut self) {
        self.0 = None;
    }

    /// When it is to be logged, unless it was.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.0
    }

    /// Returns true, once, if it is to be logged.
    pub(crate) fn is_reported_at(&mut self, now: Time) -> bool {
        self.0.take_if(|deadline| now >= *deadline).is_some()
    }
}
