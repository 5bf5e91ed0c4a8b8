//! The report of a client.

use super::servers::ServerState;
use super::{Client, Histogram, Repair};
use crate::datagram::Address;

/// Counters since the client was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientCounters {
    /// Reads that were taken.
    pub reads: u64,
    /// Writes that were taken.
    pub writes: u64,
    /// Requests that have ended with an error.
    pub failed: u64,
    /// Requests, copies included, that have ended because their time was over.
    pub timed_out: u64,
    /// Messages that were sent again, to the same server or to another.
    pub retransmissions: u64,
    /// Answers to no pending request, or of another session: late ones, and repeated ones.
    pub stale_answers: u64,
    /// Wrong answers of servers, and requests that a server that is alive did not answer.
    pub bad_answers: u64,
    /// Messages that are malformed, or whose sender is no server of the volume.
    pub foreign: u64,
    /// Pages that were copied to servers because others were lost or left.
    pub copied: u64,
    /// Times that a server has attached the volume.
    pub attached: u64,
    /// Times that a server has fallen silent.
    pub silences: u64,
    /// Times that a silent server has answered again.
    pub returned: u64,
    /// Times that the memory of a server was lost, or given up.
    pub lost_servers: u64,
    /// Writes that have failed because servers are full.
    pub full: u64,
    /// Writes that have ended well with fewer copies than they should have.
    pub degraded: u64,
    /// Times that the client itself stood still.
    pub pauses: u64,
}

/// The client's record of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerStatus {
    /// Its address.
    pub address: Address,
    /// Its state.
    pub state: ServerState,
    /// It wants to leave.
    pub leaving: bool,
    /// Blocks whose newest version it has.
    pub pages: u64,
    /// Pages that the client may have there.
    pub granted: u64,
    /// Pages there that are reserved for it.
    pub reserved: u64,
    /// It takes no page of a block that it does not hold.
    pub full: bool,
    /// A silence of the client for so long ends the session, in milliseconds.
    pub lease_ms: u64,
    /// Smoothed round trip in nanoseconds; zero before the first one.
    pub round_trip: u64,
}

impl<P> Client<P> {
    /// The counters.
    pub fn counters(&self) -> ClientCounters {
        self.counters
    }

    /// The servers, in the order of the configuration.
    pub fn servers(&self) -> impl Iterator<Item = ServerStatus> + '_ {
        self.servers.iter().map(|(index, server)| ServerStatus {
            address: server.address,
            state: server.state,
            leaving: server.leaving && server.has_session(),
            pages: self.volume.pages(index),
            granted: server.granted,
            reserved: server.reserved,
            full: server.has_session() && server.granted <= self.volume.pages(index),
            lease_ms: server.lease_ms,
            round_trip: server.on_the_way.round_trip(),
        })
    }

    /// The progress of repair.
    pub fn repair(&self) -> Repair {
        self.repair.status()
    }

    /// Written blocks with fewer live copies than they should have.
    pub fn degraded(&self) -> u64 {
        self.volume
            .short_of(self.config.replicas, self.servers.live)
    }

    /// Returns true if no block can be written that was not written before.
    pub fn is_full(&self) -> bool {
        let written = self.volume.written();
        let takes = |server: &ServerStatus| server.state == ServerState::Live && !server.full;
        let takers = self
            .servers()
            .filter(|server| takes(server) && !server.leaving);
        written < self.config.blocks && takers.count() < self.needed()
    }

    /// How many servers have to take a new block.
    fn needed(&self) -> usize {
        match self.servers.staying().count() == self.servers.len() {
            true => self.config.replicas,
            false => 1,
        }
    }

    /// Latencies of successful reads.
    pub fn read_latency(&self) -> &Histogram {
        &self.reads
    }

    /// Latencies of successful writes.
    pub fn write_latency(&self) -> &Histogram {
        &self.writes
    }
}
