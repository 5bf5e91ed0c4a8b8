//! Messages to be sent (H2): waiting ones, and those under way.
//!
//! ```text
//!   Port::send ──► waiting, in order ──► packets, each in a send slot ──► NIC
//!                                             BUSY ──completion──► FREE, at the next output
//! ```
//! A message goes to one destination after the other, its fragments in order (H7). It belongs to the
//! driver until the NIC has returned its last packet. A message is *held* while its node has its share of
//! packets under way ([`super::peers`]): other messages pass it, but none to the same node.
//!
//! A packet goes to a steered buffer if it is a whole page, or all bytes of the message in that page.
//! Smaller fragments would have to be copied there anyway; and if one of them were lost,
//! the others would keep the buffer from the same message when it is sent again.
//!
//! # Bounds
//! A message is [`MAX_FRAGMENTS`] packets at most; it fails where the route would need more. A port has as
//! many slots for messages as it was bound with, and all ports together
//! [`PACKETS`] for packets. All are allocated before the first message: sending allocates nothing.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use qnic_abi::command::{CommandBody, CommandHeader, Descriptor};
use qnic_abi::datagram::{DatagramSendCommand, PacketFlags};
use qnic_abi::{NodeId, Status};

use super::buffer::{PortKey, WithNic};
use super::fragments::MAX_FRAGMENTS;
use super::message::{Address, Data, Handle, Header, Outgoing, Sent, MAX_DESTINATIONS};
use super::peers::{Peers, PACKETS, PACKETS_OF_PORT};
use super::routes::Routes;
use crate::platform::{table, DeviceMemory, NoMemory, Platform};

/// The destinations of a message.
#[derive(Clone, Copy)]
pub(super) struct Destinations {
    addresses: [Address; MAX_DESTINATIONS],
    count: usize,
}

impl Destinations {
    /// Returns `None` if there are none, or too many.
    pub(super) fn new(to: &[Address]) -> Option<Self> {
        let mut addresses = [*to.first()?; MAX_DESTINATIONS];
        addresses.get_mut(..to.len())?.copy_from_slice(to);
        let count = to.len();
        Some(Destinations { addresses, count })
    }

    fn get(&self, index: u8) -> Option<Address> {
        self.addresses.get(usize::from(index)).copied()
    }
}

/// A message, and its progress.
struct Sending<P: Platform> {
    data: WithNic<Data<P>>,
    header: Header,
    target: Option<Handle>,
    token: u64,
    to: Destinations,
    /// Destinations that still need fragments, a bit for each.
    to_do: u16,
    /// Destinations that cannot be reached.
    failed: u16,
    status: Status,
    /// The present destination, if it has got a fragment, else the next one: its number, message number,
    /// and the bytes of each fragment.
    destination: u8,
    fragment: usize,
    sequence: u32,
    size: usize,
    /// Packets that the NIC has.
    under_way: u32,
}

/// A packet for the NIC to send.
pub(super) struct Packet {
    pub(super) command: Descriptor,
    pub(super) header: Header,
    pub(super) message: u16,
    pub(super) node: NodeId,
    pub(super) destination: u8,
    /// The most bytes of a fragment.
    pub(super) size: u16,
}

impl Packet {
    /// Its completion will carry this handle.
    pub(super) fn name(&mut self, handle: u64) {
        let mut command: DatagramSendCommand = self.command.read();
        command.handle = handle.into();
        self.command = command.descriptor();
    }
}

/// The messages of a port.
pub(super) struct Sends<P: Platform> {
    messages: Vec<Option<Sending<P>>>,
    free: Vec<u16>,
    /// Messages with fragments to be sent.
    waiting: VecDeque<u16>,
    /// Messages that wait because their nodes have all packets under way that they may.
    held: VecDeque<u16>,
    /// Messages that are done.
    done: VecDeque<u16>,
    /// Packets that the NIC has.
    under_way: u32,
    /// NICs are to answer packets for ports that are not bound.
    asks: bool,
}

impl<P: Platform> Sends<P> {
    pub(super) fn new(messages: u16, asks: bool) -> Result<Self, NoMemory> {
        let count = usize::from(messages);
        let (mut free, mut waiting, mut done) = (Vec::new(), VecDeque::new(), VecDeque::new());
        let mut held = VecDeque::new();
        held.try_reserve_exact(count)?;
        free.try_reserve_exact(count)?;
        free.extend((0..messages).rev());
        waiting.try_reserve_exact(count)?;
        done.try_reserve_exact(count)?;
        Ok(Sends {
            messages: table(count)?,
            free,
            waiting,
            held,
            done,
            under_way: 0,
            asks,
        })
    }

    /// Takes a message; gives it back if there is no slot.
    pub(super) fn push(&mut self, to: Destinations, out: Outgoing<P>) -> Result<(), Outgoing<P>> {
        let free = self.free.last().copied();
        let Some(slot) = free.and_then(|index| self.messages.get_mut(usize::from(index))) else {
            return Err(out);
        };
        *slot = Some(Sending {
            data: WithNic::lend(out.data),
            header: out.header,
            target: out.target,
            token: out.token,
            to_do: u16::MAX >> (MAX_DESTINATIONS - to.count),
            to,
            failed: 0,
            status: Status::Ok,
            destination: 0,
            fragment: 0,
            sequence: 0,
            size: 0,
            under_way: 0,
        });
        self.waiting.extend(self.free.pop());
        Ok(())
    }

    /// Returns true if a packet is to be sent.
    pub(super) fn has_packet(&self) -> bool {
        !self.waiting.is_empty() && self.under_way < PACKETS_OF_PORT
    }

    /// The next packet. `sequence` is the number of the next message.
    pub(super) fn next_packet(
        &mut self,
        (port, now_ns): (u16, u64),
        (routes, peers): (&Routes, &mut Peers),
        sequence: &mut u32,
    ) -> Option<Packet> {
        loop {
            let index = *self.waiting.front().filter(|_| self.has_packet())?;
            let message = self.messages.get_mut(usize::from(index))?.as_mut()?;
            let Some((destination, to)) = message.turn(peers, self.under_way) else {
                self.held.extend(self.waiting.pop_front());
                continue;
            };
            if message.fragment == 0 {
                message.destination = destination;
                let unit = message.data.named().unit();
                message.size = routes.size(now_ns, to.node).min(unit);
                message.sequence = *sequence;
                *sequence = sequence.wrapping_add(1);
                if message.data.named().len() > MAX_FRAGMENTS * message.size {
                    message.fail(1 << destination, Status::BadLength);
                    self.drop_if_done(index);
                    continue;
                }
            }
            let (command, last) = message.command(port, to, self.asks);
            let packet = Packet {
                command: command.descriptor(),
                header: message.header,
                message: index,
                node: to.node,
                destination,
                size: message.size as u16,
            };
            message.under_way += 1;
            self.under_way += 1;
            message.fragment += 1;
            if last {
                message.fragment = 0;
                message.to_do &= !(1 << destination);
                if message.to_do == 0 {
                    self.waiting.pop_front();
                }
            }
            return Some(packet);
        }
    }

    /// The first message has lost a destination: it ends if it has no other, and the NIC has
    /// none of its packets.
    fn drop_if_done(&mut self, index: u16) {
        let slot = self.messages.get(usize::from(index));
        let Some(message) = slot.and_then(Option::as_ref).filter(|it| it.to_do == 0) else {
            return;
        };
        self.waiting.pop_front();
        if message.under_way == 0 {
            self.done.push_back(index);
        }
    }

    /// Lets messages that wait for a node be sent: they are next, in their order. With
    /// `gone` they fail for it.
    pub(super) fn release(&mut self, node: NodeId, gone: bool) {
        for _ in 0..self.held.len() {
            let Some(index) = self.held.pop_back() else {
                return;
            };
            let slot = self.messages.get_mut(usize::from(index));
            let Some(message) = slot.and_then(Option::as_mut) else {
                continue;
            };
            let waits = message.destinations_on(node);
            if waits == 0 {
                self.held.push_front(index);
                continue;
            }
            if gone {
                message.fail(waits, Status::PeerGone);
            }
            if message.to_do != 0 {
                self.waiting.push_front(index);
            } else if message.under_way == 0 {
                self.done.push_back(index);
            }
        }
    }

    /// Takes back a packet that the NIC has returned. With `again` its message is sent once more to that
    /// destination, in smaller fragments.
    pub(super) fn returned(&mut self, index: u16, destination: u8, status: Status, again: bool) {
        self.under_way = self.under_way.saturating_sub(1);
        let slot = self.messages.get_mut(usize::from(index));
        let Some(message) = slot.and_then(Option::as_mut) else {
            return;
        };
        message.under_way = message.under_way.saturating_sub(1);
        let bit = 1 << (u32::from(destination) % u16::BITS);
        if again && message.failed & bit == 0 {
            if message.to_do == 0 {
                self.waiting.push_back(index);
            }
            // The present destination begins anew: it loses fewer fragments by that than the
            // next one would.
            message.to_do |= bit;
            message.fragment = 0;
        } else if status != Status::Ok && message.failed & bit == 0 {
            let waits = message.to_do != 0;
            message.fail(bit, status);
            if waits && message.to_do == 0 {
                self.waiting.retain(|other| *other != index);
                self.held.retain(|other| *other != index);
            }
        }
        if message.to_do == 0 && message.under_way == 0 {
            self.done.push_back(index);
        }
    }

    /// Gives up every waiting message: packets that the NIC has end by themselves.
    pub(super) fn give_up(&mut self) {
        self.waiting.append(&mut self.held);
        while let Some(index) = self.waiting.pop_front() {
            let slot = self.messages.get_mut(usize::from(index));
            let Some(message) = slot.and_then(Option::as_mut) else {
                continue;
            };
            message.failed |= message.to_do;
            message.to_do = 0;
            message.status = Status::Aborted;
            if message.under_way == 0 {
                self.done.push_back(index);
            }
        }
    }

    /// A message that is done.
    pub(super) fn next_done(&mut self) -> Option<Sent<P>> {
        let index = self.done.pop_front()?;
        let message = self.messages.get_mut(usize::from(index))?.take()?;
        self.free.push(index);
        Some(Sent {
            token: message.token,
            data: message.data.returned(),
            failed: message.failed.count_ones() as usize,
            status: message.status,
        })
    }

    /// Returns true if a message is done.
    pub(super) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Returns true if a message waits for packets to end.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.held.is_empty()
    }

    /// Returns true if there is no message.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.messages.len()
    }
}

impl<P: Platform> Sending<P> {
    /// The destination that gets the next fragment: the one that has got a fragment, or the first
    /// whose node has room. `None` if the message has to wait.
    fn turn(&self, peers: &mut Peers, of_port: u32) -> Option<(u8, Address)> {
        let mut candidates = match self.fragment {
            0 => self.to_do,
            _ => 1 << (u32::from(self.destination) % u16::BITS),
        };
        while candidates != 0 {
            let destination = candidates.trailing_zeros() as u8;
            let to = self.to.get(destination)?;
            if peers.has_room(to.node, of_port) {
                return Some((destination, to));
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// Destinations on a node that still need fragments.
    fn destinations_on(&self, node: NodeId) -> u16 {
        let all = (0..MAX_DESTINATIONS as u8).filter(|index| self.to_do >> index & 1 == 1);
        let on_node = all.filter(|index| self.to.get(*index).is_some_and(|to| to.node == node));
        on_node.fold(0, |bits, index| bits | 1 << index)
    }

    /// Marks destinations as failed.
    fn fail(&mut self, bits: u16, status: Status) {
        if (self.to_do & bits) >> self.destination & 1 == 1 {
            self.fragment = 0;
        }
        self.to_do &= !bits;
        self.failed |= bits;
        self.status = match self.status {
            Status::Ok => status,
            first => first,
        };
    }

    /// The command for the next fragment, and whether it is the last to its destination.
    fn command(&self, port: u16, to: Address, asks: bool) -> (DatagramSendCommand, bool) {
        let data = self.data.named();
        let offset = self.fragment * self.size;
        let length = self.size.min(data.len().saturating_sub(offset));
        let last = offset + length >= data.len();
        let unit = data.unit();
        let buffer = data.buffer(offset / unit).filter(|_| length > 0);
        let address = buffer.map_or(0, |buffer| {
            buffer.memory().address() + (offset % unit) as u64
        });
        // A page goes to the buffer that waits for it if it goes as a whole.
        let whole = length == unit || (last && offset % unit == 0);
        let target = self.target.filter(|_| whole);
        let target = target.map_or(0, |target| target.0 + (offset / unit) as u64);
        let mut flags = PacketFlags::empty();
        flags.set(PacketFlags::LAST, last);
        flags.set(PacketFlags::ASK, asks);
        let command = DatagramSendCommand {
            header: CommandHeader {
                inline_length: self.header.as_bytes().len() as u8,
                remote_node: to.node.0.into(),
                remote_port: to.port.into(),
                ..DatagramSendCommand::command().header
            },
            address: address.into(),
            target: target.into(),
            sequence: self.sequence.into(),
            fragment: (self.fragment as u16).into(),
            flags: flags.bits(),
            length: (length as u16).into(),
            source_port: port.into(),
            ..DatagramSendCommand::command()
        };
        (command, last)
    }
}

/// A send slot with a packet that the NIC has.
#[derive(Clone, Copy)]
pub(super) struct Busy {
    pub(super) port: PortKey,
    pub(super) node: NodeId,
    pub(super) message: u16,
    pub(super) destination: u8,
    pub(super) size: u16,
    handle: u64,
}

/// The send slots of all ports: BUSY, with a packet, or FREE (H2).
pub(super) struct Slots {
    slots: Vec<Option<Busy>>,
    free: Vec<u8>,
    uses: u64,
}

impl Slots {
    pub(super) fn new() -> Result<Self, NoMemory> {
        let mut free = Vec::new();
        free.try_reserve_exact(PACKETS)?;
        free.extend((0..=u8::MAX).rev());
        Ok(Slots {
            slots: table(PACKETS)?,
            free,
            uses: 0,
        })
    }

    /// Returns true if one is FREE.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns true if one is BUSY.
    pub(super) fn has_busy(&self) -> bool {
        self.free.len() < PACKETS
    }

    /// Makes a slot BUSY; returns the handle of the packet.
    pub(super) fn take(&mut self, port: PortKey, packet: &Packet) -> Option<u64> {
        let index = self.free.pop()?;
        self.uses += 1;
        let handle = self.uses << u8::BITS | u64::from(index);
        let slot = self.slots.get_mut(usize::from(index))?;
        *slot = Some(Busy {
            port,
            node: packet.node,
            message: packet.message,
            destination: packet.destination,
            size: packet.size,
            handle,
        });
        Some(handle)
    }

    /// Makes the slot of a handle FREE; `None` if it is not BUSY with that packet.
    pub(super) fn release(&mut self, handle: u64) -> Option<Busy> {
        let slot = self.slots.get_mut((handle & 0xff) as usize)?;
        let busy = slot.take_if(|busy| busy.handle == handle)?;
        self.free.push(handle as u8);
        Some(busy)
    }

    /// A slot that is BUSY.
    pub(super) fn any_busy(&self) -> Option<u64> {
        self.slots.iter().flatten().next().map(|busy| busy.handle)
    }
}
