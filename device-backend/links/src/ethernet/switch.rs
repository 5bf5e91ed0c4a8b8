//! Which port a frame is for, and the ports of this engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use qnic_abi::NodeId;
use qnic_config::MacAddress;
use serde::Serialize;

use super::{EthernetFrame, Inbox};

qnic_abi::counters! {
    /// What has passed through one port, seen from its guest.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
    pub struct PortCounters: u64 {
        {}
        Counter qnic_ethernet_frames_total
            "Ethernet frames of the guest's network device: sent, or received for it. A long segment counts once." =
            sent { direction: "sent" },
            received { direction: "received" };
        Counter qnic_ethernet_bytes_total
            "Bytes of these frames." =
            sent_bytes { direction: "sent" },
            received_bytes { direction: "received" };
        Counter qnic_ethernet_dropped_total
            "Ethernet frames that were dropped at a port: with another port's address as their source, for an address that no port has, malformed, or because the guest took none." =
            spoofed { reason: "spoofed" },
            unknown { reason: "unknown_destination" },
            malformed { reason: "malformed" },
            overflowed { reason: "guest_slow" };
    }
}

/// The addresses of all ports of a network.
#[derive(Debug, Clone, Default)]
pub struct Switch {
    of_address: BTreeMap<MacAddress, NodeId>,
}

/// Where a frame goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destinations {
    One(NodeId),
    /// Every port but that of its source.
    All(Vec<NodeId>),
    /// No port has its address.
    Unknown,
}

impl Switch {
    /// A switch between these ports.
    pub fn new(ports: impl IntoIterator<Item = (MacAddress, NodeId)>) -> Self {
        Switch {
            of_address: ports.into_iter().collect(),
        }
    }

    /// Where a frame of `from` goes.
    pub(crate) fn destinations(&self, from: NodeId, frame: &EthernetFrame) -> Destinations {
        let address = frame.destination();
        if address.is_group() {
            let others = self.of_address.values().copied();
            return Destinations::All(others.filter(|node| *node != from).collect());
        }
        match self.of_address.get(&address) {
            Some(node) if *node != from => Destinations::One(*node),
            _ => Destinations::Unknown,
        }
    }

    /// Returns true if a frame of `from` has no other port's address as its source.
    pub(crate) fn is_honest(&self, from: NodeId, frame: &EthernetFrame) -> bool {
        let source = frame.source();
        let owner = self.of_address.get(&source);
        !source.is_group() && owner.is_none_or(|owner| *owner == from)
    }
}

/// A port of this engine.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) counters: PortCounters,
}

impl Port {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Self {
        Port {
            inbox,
            counters: PortCounters::default(),
        }
    }

    /// What has passed through it.
    pub(crate) fn counters(&self) -> PortCounters {
        let mut counters = self.counters;
        counters.overflowed += self.inbox.overflowed();
        counters
    }

    /// Gives a frame to the guest, or drops it.
    pub(crate) fn receive(&mut self, frame: EthernetFrame) {
        let bytes = frame.bytes().len() as u64;
        if self.inbox.put(frame) {
            self.counters.received += 1;
            self.counters.received_bytes += bytes;
        } else {
            self.counters.overflowed += 1;
        }
    }
}
