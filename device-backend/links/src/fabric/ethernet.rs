//! Ethernet frames on the links of the nodes ([`crate::ethernet`]).

use std::fmt::Debug;
use std::sync::Arc;

use qnic_abi::ethernet::Ethernet;
use qnic_abi::wire::MAX_PAYLOAD;
use qnic_abi::NodeId;
use qnic_nic::env::{Channel, Host, HostMemory, Payload, Time, Wire};

use super::routes::Route;
use super::{Fabric, Slot};
use crate::codec::Packet;
use crate::ethernet::{
    Destinations, EthernetFrame, Inbox, Lease, Offloads, Port, PortCounters, Switch,
};

impl<H: Host<Memory: Clone + Debug>> Fabric<H> {
    /// The addresses of all ports of the network, also of those in other processes.
    pub fn set_switch(&mut self, switch: Switch) {
        self.ethernet = switch;
    }

    /// Gives the node of a slot an Ethernet port: what comes for it is put into `inbox`. Its guest gets
    /// `lease` by DHCP.
    pub fn add_port(&mut self, slot: usize, inbox: Arc<Inbox>, lease: Option<Lease>) {
        self.slots[slot].port = Some(Port::new(inbox, lease));
    }

    /// What has passed through the port of a slot, if it has one.
    pub fn port_counters(&self, slot: usize) -> Option<PortCounters> {
        self.slots[slot].port.as_ref().map(Port::counters)
    }

    /// Sends a frame of the guest whose port is at this slot, at time `now`. What cannot be sent is
    /// dropped and counted.
    pub fn send_ethernet(&mut self, slot: usize, now: Time, left: Ethernet, bytes: Vec<u8>) {
        let from = self.slots[slot].nic.geometry().node;
        let Some(port) = &mut self.slots[slot].port else {
            return;
        };
        let Ok(frame) = EthernetFrame::new(left, bytes) else {
            port.counters.malformed += 1;
            return;
        };
        if !self.ethernet.is_honest(from, &frame) {
            port.counters.spoofed += 1;
            return;
        }
        if port.answers(&frame) {
            return port.counters.count_sent(&frame);
        }
        let hosts = self.ethernet.hosts();
        let others = match self.ethernet.destinations(from, &frame) {
            Destinations::One(node) => vec![node],
            Destinations::All(nodes) => {
                hosts.put_all(&frame);
                nodes
            }
            Destinations::Host(number) if hosts.put(number, &frame) => Vec::new(),
            Destinations::Host(_) | Destinations::Unknown => {
                port.counters.unknown += 1;
                return;
            }
        };
        port.counters.count_sent(&frame);
        for to in others {
            self.send_to_port(slot, now, (from, to), &frame);
        }
    }

    /// Gives a frame of a program of the host to the ports here that it is for. One for an address that no
    /// port here has is dropped.
    pub fn receive_from_host(&mut self, frame: &EthernetFrame) {
        let to = match frame.destination() {
            address if address.is_group() => None,
            address => match self.ethernet.port(address) {
                Some(node) => Some(node),
                None => return,
            },
        };
        for slot in &mut self.slots {
            let node = slot.nic.geometry().node;
            if let Some(port) = slot
                .port
                .as_mut()
                .filter(|_| to.is_none_or(|to| to == node))
            {
                port.receive(frame.clone());
            }
        }
    }

    fn send_to_port(
        &mut self,
        slot: usize,
        now: Time,
        (from, to): (NodeId, NodeId),
        frame: &EthernetFrame,
    ) {
        let route = self.switch.routes.find(to);
        let stays = matches!(route, Some(Route::Local(_) | Route::Sibling(_)));
        if stays && self.switch.network.is_clear(from, to) {
            return self.put_on_wire(slot, now, (from, to), frame);
        }
        let mut parts = Vec::new();
        let divided = frame
            .clone()
            .finish(Offloads::NONE, |part| parts.push(part));
        let fit = parts.iter().all(|part| part.bytes().len() <= MAX_PAYLOAD);
        if divided.is_err() || !fit {
            if let Some(port) = &mut self.slots[slot].port {
                port.counters.malformed += 1;
            }
            return;
        }
        for part in &parts {
            self.put_on_wire(slot, now, (from, to), part);
        }
    }

    /// What finds no route is lost.
    fn put_on_wire(
        &mut self,
        slot: usize,
        now: Time,
        (from, to): (NodeId, NodeId),
        frame: &EthernetFrame,
    ) {
        let header = frame.wire_frame(from, to);
        let (_, mut wire) = self.split(slot, now);
        // One channel: short packets of a stream do not overtake the long ones before them.
        wire.send(&header, Payload::Bytes(frame.bytes()), Channel::Data);
    }
}

impl<H: Host> Slot<H> {
    /// Gives a frame to the port, whatever the NIC does. A node without a port drops it.
    #[cold]
    #[inline(never)]
    pub(super) fn deliver_ethernet(&mut self, packet: &Packet<'_, H::Memory>)
    where
        H::Memory: HostMemory,
    {
        let Some(port) = &mut self.port else {
            return;
        };
        let mut bytes = vec![0; packet.payload().len()];
        let read = packet.payload().read(&mut bytes);
        match EthernetFrame::from_wire(packet.frame(), bytes) {
            Ok(frame) if read.is_ok() => port.receive(frame),
            _ => port.counters.malformed += 1,
        }
    }
}
