//! The servers that have acknowledged each write, according to the packets on the wire.

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::remote_memory::{Header, Kind};
use zerocopy::FromBytes;

use crate::wire::Packet;

/// The newest version of one block of one client, and the servers that have acknowledged it.
#[derive(Debug, Default)]
struct Copy {
    version: u64,
    servers: BTreeSet<u16>,
}

/// The copies of all blocks.
#[derive(Debug, Default)]
pub(crate) struct Copies(BTreeMap<(usize, u64), Copy>);

impl Copies {
    /// A packet is sent.
    pub(crate) fn note(&mut self, packet: &Packet) {
        let Ok(header) = Header::read_from_bytes(&packet.header) else {
            return;
        };
        let (block, version) = (header.block.get(), header.version.get());
        let (client, server) = match Kind::try_from(header.kind) {
            Ok(Kind::Write) => (packet.from, None),
            Ok(Kind::Written) => (packet.to, Some(packet.from.node.0)),
            _ => return,
        };
        let copy = self.0.entry((client.node.0.into(), block)).or_default();
        // An answer to an earlier life of the client may have a higher version.
        if version > copy.version && server.is_none() {
            *copy = Copy::default();
            copy.version = version;
        }
        if version == copy.version {
            copy.servers.extend(server);
        }
    }

    /// The number of servers with the newest version.
    pub(crate) fn of(&self, client: usize, block: u64) -> usize {
        self.0
            .get(&(client, block))
            .map_or(0, |copy| copy.servers.len())
    }

    /// A client restarts.
    pub(crate) fn forget(&mut self, client: usize) {
        self.0.retain(|place, _| place.0 != client);
    }
}
