//! Unreliable datagrams of the driver (H1 to H3, H5, H6, H8): one frame for each packet, without a
//! number and without a copy. docs/datagrams.md has the protocol as a whole.
//!
//! ```text
//!   driver's queue                                                    driver's completion queue
//!   DatagramSend ──► turn: pages locked ─ DATAGRAM ──► receive ─┐     ▲
//!        ▲             │                  (may be lost)         │     │
//!        └── completion┘                                        ▼     │
//!   DatagramPost ─────────────────────────────────► buffers: data, record, completion
//!   DatagramWithdraw ─────────────────────────────► buffers ── Cancelled ──►
//! ```
//! | module | holds |
//! |---|---|
//! | `command` | from a descriptor to a checked command; packets that wait for their turn |
//! | `buffers` | receive buffers that are posted |
//! | `receive` | a packet that arrives, and its buffer |
//!
//! # Invariants
//! - Only the process on [`DRIVER_PORT`] has packets and buffers; they end with it and with a reset
//!   of its queue, without completions.
//! - A packet that is sent has one completion, a buffer that is posted has one. Between command
//!   and completion its pages are the NIC's, before and after they are the driver's (H8).
//! - A peer cannot make this NIC keep a packet: when `receive` returns, it is in a buffer, or was dropped
//!   and counted. At most [`ANSWERS`] answers to packets for ports that are not bound wait to be sent; an
//!   answer is a packet without data, and is not answered.
//! - Pages are named by guest-physical address, which is checked at each use.

mod buffers;
mod command;
mod receive;

use std::collections::VecDeque;

use buffers::Buffers;
use command::{Command, Packet, Sends, Withdraw};
use qnic_abi::command::Descriptor;
use qnic_abi::datagram::{kind, Datagram, Opcode, PacketFlags, DRIVER_PORT};
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::wire::{fragments, Frame, SPAN_PAGES};
use qnic_abi::{Status, VniId, PAGE_SIZE};

use super::protocol::{Context, Ended, Outgoing, Protocol, Received, Source, Turn};
use crate::budget::Budget;
use crate::config::Limits;
use crate::core::{Counter, Fetched, LookupSide, PageError, PageKey};
use crate::env::{Host, HostMemory};
use crate::frame::Arrival;
use crate::ids::{OperationId, PeerIndex};
use crate::stages::Kind;
use crate::transport::Window;

/// Answers that wait for a turn at most; others are not sent.
const ANSWERS: usize = 64;

/// The answer to a packet for a port that is not bound.
#[derive(Debug)]
struct Unbound {
    peer: PeerIndex,
    /// The port that is not bound.
    port: u16,
    /// The port that has sent the packet, and the number of its message.
    to: u16,
    sequence: u32,
}

/// State of the protocol.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    sends: Sends,
    buffers: Buffers,
    answers: VecDeque<Unbound>,
}

/// Returns true if so many bytes from an address on are memory of the node, in as many pages as a
/// frame may touch.
fn is_in_span<H: Host>(host: &H, address: u64, length: usize) -> bool {
    fragments(address, length) <= SPAN_PAGES as u64
        && host.memory().contains(address, length as u64)
}

/// Returns true if a process is the driver.
fn is_driver<H>(cx: &Context<'_, H>, vni: VniId) -> bool {
    let process = cx.core.process(vni);
    process.is_some_and(|process| process.port.0 == DRIVER_PORT)
}

impl Datagrams {
    /// Begins to send a packet.
    fn send<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        fetched: &Fetched,
        packet: Packet,
    ) {
        // The process at the other end, as processes have ports of their own.
        let mut header = fetched.descriptor.header;
        header.remote_port = DRIVER_PORT.into();
        let issuer = (vni, Self::ID);
        let Some(id) = cx
            .core
            .begin(issuer, (Counter::Own, false), &header, fetched.peer)
        else {
            return;
        };
        self.sends.put(id, packet);
        let inside = packet.length == 0 || is_in_span(cx.host, packet.address, packet.length);
        match fetched.peer {
            None => self.end_send(cx, id, Status::NoSuchNode),
            Some(_) if !inside => self.end_send(cx, id, Status::BadAddress),
            Some(_) => cx.core.set_ready(id, true),
        }
    }

    /// Ends a packet: its page is the driver's again.
    fn end_send<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, status: Status) {
        let Some(packet) = self.sends.take(id) else {
            return;
        };
        let entry = CompletionEntry {
            handle: packet.handle.into(),
            length: (packet.length as u64).into(),
            status: status.code().into(),
            node: packet.node.into(),
            port: packet.port.into(),
            kind: CompletionKind::DatagramSend as u8,
            ..CompletionEntry::default()
        };
        match status {
            Status::Ok => cx.core.complete(cx.host, id.vni(), entry),
            _ => cx.core.complete_signalled(cx.host, id.vni(), entry),
        }
        cx.core.finish(cx.host, id, status);
    }

    /// Takes buffers back.
    fn withdraw<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId, which: Withdraw) {
        let port = match which {
            Withdraw::All(port) => port,
            Withdraw::One(handle, port) => {
                if self.buffers.take(port, handle).is_some() {
                    receive::end_buffer(cx, vni, handle, Status::Cancelled);
                }
                return;
            }
        };
        while let Some(buffer) = self.buffers.take_first(port) {
            receive::end_buffer(cx, vni, buffer.handle, Status::Cancelled);
        }
        self.buffers.unbind(port);
    }
}

impl Protocol for Datagrams {
    const OPERATIONS: Kind = Kind::Datagram;
    const OPCODES: &'static [u8] = &[
        Opcode::DatagramSend as u8,
        Opcode::DatagramPost as u8,
        Opcode::DatagramWithdraw as u8,
    ];
    const KINDS: &'static [u8] = &[kind::DATAGRAM];

    fn kind_of_command(command: &Descriptor) -> Kind {
        match Opcode::try_from(command.header.opcode) {
            Ok(Opcode::DatagramPost) => Kind::DatagramPost,
            _ => Kind::Datagram,
        }
    }

    fn is_well_formed(frame: &Frame) -> bool {
        let envelope = &frame.envelope;
        frame.is::<Datagram>()
            && envelope.source_port.get() != 0
            && envelope.destination_port.get() != 0
    }

    #[inline(never)] // It would cost transfers registers.
    fn submit<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        fetched: &Fetched,
    ) -> Result<(), Status> {
        if !is_driver(cx, vni) {
            return Err(Status::AccessDenied);
        }
        match Command::try_from(fetched)? {
            Command::Send(packet) => self.send(cx, vni, fetched, packet),
            Command::Post(buffer) => return self.post(cx, vni, buffer),
            Command::Withdraw(which) => self.withdraw(cx, vni, which),
        }
        Ok(())
    }

    #[inline(never)] // It would cost transfers registers.
    fn turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        _budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let peer = cx.core.operation(id).map(|operation| operation.peer);
        let (Some(peer), Some(packet)) = (peer, self.sends.get(id)) else {
            return Turn::Idle;
        };
        // No window holds it up: memory of other processes may be on the way in it.
        if !cx.transport.is_open(peer) {
            return Turn::Blocked(peer, Window::Requests);
        }
        if packet.length > cx.transport.max_payload(peer) as usize {
            return Turn::Refuse(Status::BadLength);
        }
        outgoing.begin(peer, &packet.body);
        let envelope = &mut outgoing.frame.envelope;
        envelope.source_port = packet.source_port.into();
        envelope.destination_port = packet.port.into();
        envelope.operation = id.0.into();
        if packet.length == 0 {
            return Turn::Send;
        }
        let range = (packet.address, packet.length);
        let (key, side) = (PageKey::Physical, LookupSide::Source);
        let pages = &mut outgoing.pages;
        match cx
            .core
            .lock_some(cx.host, id.vni(), range, key, side, pages)
        {
            // The node may have less memory than when the packet was given to the NIC.
            Ok(()) if pages.bytes_from(packet.address) < packet.length as u64 => {
                cx.core.unlock_span(cx.host, pages, 0);
                return Turn::Refuse(Status::BadAddress);
            }
            Ok(()) => {}
            Err(PageError::Refused(status)) => return Turn::Refuse(status),
            Err(PageError::Absent) => return Turn::Refuse(Status::BadAddress),
        }
        outgoing.source = Source::Pages((packet.address % PAGE_SIZE as u64) as usize);
        outgoing.length = packet.length;
        Turn::Send
    }

    #[inline(never)] // It would cost transfers registers.
    fn sent<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, frame: &Outgoing) {
        cx.core.counters.datagrams_sent += 1;
        cx.core.count_sent(id.vni(), frame.length);
        self.end_send(cx, id, Status::Ok);
    }

    #[inline(never)] // It would cost transfers registers.
    fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        match self.deliver(cx, arrival) {
            Ok(()) => Received::Done,
            // Only a trace shows it: no answer goes back.
            Err(status) => Received::Refuse(status),
        }
    }

    fn nic_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        _budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        while let Some(answer) = self.answers.pop_front() {
            // It may be lost, so it waits for no session.
            if !cx.transport.is_open(answer.peer) {
                continue;
            }
            let body = Datagram {
                sequence: answer.sequence.into(),
                flags: (PacketFlags::LAST | PacketFlags::UNBOUND).bits(),
                ..Datagram::default()
            };
            outgoing.begin(answer.peer, &body);
            let envelope = &mut outgoing.frame.envelope;
            envelope.source_port = answer.port.into();
            envelope.destination_port = answer.to.into();
            return Turn::Send;
        }
        Turn::Idle
    }

    fn update<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        let may_send = cx.core.operation(id).is_some_and(|it| it.may_send());
        cx.core.set_ready(id, may_send);
    }

    fn fail<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, status: Status) {
        self.end_send(cx, id, status);
    }

    fn lost<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        self.end_send(cx, id, Status::PeerGone);
    }

    fn ended<H: Host>(&mut self, cx: &mut Context<'_, H>, ended: Ended) {
        if let Ended::Operations(vni) | Ended::Process(vni) = ended {
            if is_driver(cx, vni) {
                self.sends = Sends::default();
                self.buffers = Buffers::default();
            }
        }
    }

    fn budgets(&self, limits: &Limits, budgets: &mut Vec<Budget>) {
        let used = self.buffers.count();
        budgets.push(Budget::new(
            "datagram_buffers",
            used,
            limits.datagram_buffers,
        ));
    }
}
