//! Peers that are processes of the NIC without this provider: what they send is as they like.

use std::time::Duration;

use qnic::message::{Completion, Destination, MessageEndpoint, Pattern, Source, Tag};
use qnic::{
    Access, Buffer, Endpoint, ExportOptions, Importers, Nic, NodeId, Port, Segment, SegmentName,
};

use super::harness::{Cluster, Side, BOTH, TAGGED};
use super::messages::pattern;
use crate::address::Address;
use crate::info::offer::WHOLE_MAX;
use crate::sys::{self, ADDR_UNSPEC};

/// Long enough for anything that will happen at all.
const SOON: Option<Duration> = Some(Duration::from_secs(60));

/// A process with memory.
struct Foreign {
    endpoint: Endpoint,
    buffer: Buffer,
    memory: Segment,
}

impl Foreign {
    fn new(cluster: &Cluster, node: u16, bytes: usize) -> Self {
        let nic = Nic::open_host_with(cluster.socket(node), 96 << 20).unwrap();
        let endpoint = nic.register(Port(0)).unwrap();
        let buffer = endpoint.allocate(bytes).unwrap();
        let options = ExportOptions::new(Access::READ).importers(Importers::nobody());
        let memory = endpoint.export(SegmentName(1), &buffer, options).unwrap();
        Foreign {
            endpoint,
            buffer,
            memory,
        }
    }

    /// Its address, as an endpoint of the provider would have it.
    fn address(&self) -> Address {
        Address {
            node: self.endpoint.node(),
            port: self.endpoint.port(),
            memory: Port(0),
            endpoint: 0,
            incarnation: 1,
        }
    }
}

fn process_of(side: &Side) -> (NodeId, Port) {
    let address = Address::from_bytes(&side.name).unwrap();
    (address.node, address.port)
}

/// This provider sends none as one message of the NIC. No byte that stands behind bounce memory is shown.
#[test]
fn a_message_that_is_longer_than_bounce_memory_is_truncated() {
    let cluster = Cluster::new(2);
    let side = Side::new(&cluster, 1, TAGGED, BOTH);
    const LENGTH: usize = WHOLE_MAX + 4096;
    let foreign = Foreign::new(&cluster, 0, LENGTH);
    let sent = pattern(LENGTH, 3);
    foreign.buffer.write(0, &sent).unwrap();
    let (node, port) = process_of(&side);
    let to = Destination::tagged(node, port, Tag(1));
    let mut room = vec![0; LENGTH + 100];
    side.receive(ADDR_UNSPEC, Some((1, 0)), &mut room, 1);
    let part = foreign.memory.part(0, LENGTH);
    let mut message = foreign.endpoint.send(&to, part).post().unwrap();
    let error = side.next().unwrap_err();
    assert_eq!((error.err, error.olen), (sys::FI_ETRUNC, 4096));
    assert_eq!(error.entry.len, WHOLE_MAX);
    assert!(room[..WHOLE_MAX] == sent[..WHOLE_MAX]);
    assert!(room[WHOLE_MAX..].iter().all(|byte| *byte == 0));
    let _: qnic::Result<Completion> = message.wait(SOON);
    side.close();
}
