//! N8, X9: what has become of a node's memory is not what another engine reads from it: a write
//! whose bytes are in a ring, and then something that ends the use of that memory.

use qnic_abi::wire::kind;
use qnic_abi::PAGE_SIZE;
use qnic_nic::env::{Channel, HostMemory, Payload, Wire};
use qnic_nic::testing::{pattern, Memory, Net, Pair, SimHost};
use qnic_nic::Limits;

use super::*;
use crate::codec::tests::header;
use crate::siblings::mesh;

const FRAMES: u64 = 512;

/// Two engines with a NIC each.
struct Engines {
    fabrics: [Fabric<SimHost>; 2],
    now: Time,
    /// Of both nodes.
    memory: [Memory; 2],
    bytes: Vec<u8>,
}

impl Engines {
    /// A write from the first to the second lies in the ring between them.
    fn new() -> Self {
        let net = Net::new(2, FRAMES, 8, &Limits::default());
        let Pair { net, a, b } = Pair::present(net);
        a.write(&b).bytes(8).run();
        b.write(&a).bytes(8).run();
        let bytes = a.fill(0, 700, 5);
        a.write(&b).bytes(700).issue();
        let nodes = std::mem::take(&mut net.cluster().nodes);
        let now = net.cluster().now.after(1);
        let mut nodes = nodes.into_iter();
        let mut fabrics: [Fabric<SimHost>; 2] = Default::default();
        let memory = fabrics.each_mut().map(|fabric| {
            let node = nodes.next().expect("two nodes");
            let memory = node.host.memory().clone();
            fabric.add(node.nic, node.host).unwrap();
            memory
        });
        let of_engines = [vec![NodeId(0)], vec![NodeId(1)]];
        for (fabric, siblings) in fabrics.iter_mut().zip(mesh(2).unwrap()) {
            fabric.join_engines(siblings, &of_engines).unwrap();
        }
        fabrics[0].poll(0, now);
        assert!(fabrics[0].nic(0).keeps_frames());
        let mut engines = Engines {
            fabrics,
            now,
            memory,
            bytes,
        };
        assert!(!engines.has_arrived());
        engines.now = now.after(1);
        engines
    }

    /// The first node's memory has another use.
    fn reuse(&self) {
        let other = pattern(9, FRAMES as usize * PAGE_SIZE);
        self.memory[0].write(0, &other).unwrap();
    }

    fn has_arrived(&self) -> bool {
        let mut memory = vec![0; FRAMES as usize * PAGE_SIZE];
        self.memory[1].read(0, &mut memory).unwrap();
        let mut parts = memory.windows(self.bytes.len());
        parts.any(|part| part == self.bytes)
    }

    /// What was sent arrives, although the memory that it lay in has another use by now.
    fn arrives(mut self) {
        self.reuse();
        assert!(self.fabrics[1].receive(self.now));
        assert!(self.has_arrived());
    }
}

#[test]
fn without_a_recall_frames_lie_in_their_pages() {
    let mut engines = Engines::new();
    engines.reuse();
    assert!(engines.fabrics[1].receive(engines.now));
    assert!(!engines.has_arrived());
}

#[test]
fn a_node_that_stands_still_is_not_read_from() {
    let mut engines = Engines::new();
    engines.fabrics[0].suspend(0, engines.now);
    engines.arrives();
}

#[test]
fn a_node_whose_nic_was_reset_is_not_read_from() {
    let mut engines = Engines::new();
    engines.fabrics[0].reset(0, engines.now);
    engines.arrives();
}

#[test]
fn memory_that_a_node_has_no_longer_is_not_read() {
    let mut engines = Engines::new();
    let _ = engines.fabrics[0].host_mut(0);
    engines.arrives();
}

/// A peer may end an operation whose bytes it has not read.
#[test]
fn what_a_peer_may_end_is_read_before_it_does() {
    for kind in [kind::PROCESS_GONE, kind::GOODBYE, kind::LEAVE] {
        let mut engines = Engines::new();
        let mut frame = header(1, 0, 0);
        frame.envelope.kind = kind;
        engines.fabrics[1].with(0, engines.now, |_, _, _, wire| {
            wire.send(&frame, Payload::None, Channel::Data);
        });
        assert!(engines.fabrics[0].receive(engines.now));
        engines.arrives();
    }
}
