//! Which port a frame is for, and the ports of this engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use qnic_abi::ethernet::Ethernet;
use qnic_abi::NodeId;
use qnic_config::MacAddress;
use serde::Serialize;
use zerocopy::FromZeros;

use super::{EthernetFrame, Hosts, Inbox, Lease};

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

impl PortCounters {
    /// A frame of the guest goes on its way.
    pub(crate) fn count_sent(&mut self, frame: &EthernetFrame) {
        self.sent += 1;
        self.sent_bytes += frame.bytes().len() as u64;
    }
}

/// The addresses of all ports of a network.
#[derive(Debug, Clone, Default)]
pub struct Switch {
    of_address: BTreeMap<MacAddress, NodeId>,
    hosts: Arc<Hosts>,
}

/// Where a frame goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destinations {
    One(NodeId),
    /// A program of the host, if it is there.
    Host(u8),
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
            hosts: Arc::default(),
        }
    }

    /// The programs of the host. Clones of a switch have the same ones.
    pub fn hosts(&self) -> &Arc<Hosts> {
        &self.hosts
    }

    /// The port with an address.
    pub(crate) fn port(&self, address: MacAddress) -> Option<NodeId> {
        self.of_address.get(&address).copied()
    }

    /// Where a frame of `from` goes.
    pub(crate) fn destinations(&self, from: NodeId, frame: &EthernetFrame) -> Destinations {
        let address = frame.destination();
        if address.is_group() {
            let others = self.of_address.values().copied();
            return Destinations::All(others.filter(|node| *node != from).collect());
        }
        match self.port(address) {
            Some(node) if node != from => Destinations::One(node),
            _ => (address.host_number()).map_or(Destinations::Unknown, Destinations::Host),
        }
    }

    /// Returns true if a frame of `from` has no other port's address as its source.
    pub(crate) fn is_honest(&self, from: NodeId, frame: &EthernetFrame) -> bool {
        let source = frame.source();
        let is_free = self.port(source).is_none_or(|owner| owner == from);
        !source.is_group() && source.host_number().is_none() && is_free
    }
}

/// A port of this engine.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) inbox: Arc<Inbox>,
    /// What its guest gets by DHCP.
    pub(crate) lease: Option<Lease>,
    pub(crate) counters: PortCounters,
}

impl Port {
    pub(crate) fn new(inbox: Arc<Inbox>, lease: Option<Lease>) -> Self {
        Port {
            inbox,
            lease,
            counters: PortCounters::default(),
        }
    }

    /// What has passed through it.
    pub(crate) fn counters(&self) -> PortCounters {
        let mut counters = self.counters;
        counters.overflowed += self.inbox.overflowed();
        counters
    }

    /// Answers a frame of the guest, if it asks for an address and the port has one to give. Returns true
    /// if it has.
    pub(crate) fn answers(&mut self, frame: &EthernetFrame) -> bool {
        let answer = self
            .lease
            .as_ref()
            .and_then(|lease| lease.answer(frame.bytes()));
        let answer =
            answer.and_then(|bytes| EthernetFrame::new(Ethernet::new_zeroed(), bytes).ok());
        let has_answered = answer.is_some();
        if let Some(answer) = answer {
            self.receive(answer);
        }
        has_answered
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
