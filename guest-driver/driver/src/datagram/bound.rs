//! A bound port, as the engine sees it: all the tables that one upper module can fill.

use alloc::collections::VecDeque;

use qnic_abi::command::Descriptor;
use qnic_abi::datagram::{Datagram, PacketFlags};
use qnic_abi::host_area::CompletionEntry;
use qnic_abi::wire::Body;
use qnic_abi::{NodeId, SharedMemory, Status};
use zerocopy::IntoBytes;

use super::buffer::{Buffer, Landed, PortKey};
use super::config::PortConfig;
use super::counters::Counters;
use super::fragments::{Fragment, Fragments, Outcome, Parts, Reason, Whole};
use super::message::{Address, Handle, Header, Sent, MAX_MESSAGE, PAGES};
use super::peers::Peers;
use super::receives::Receives;
use super::routes::Routes;
use super::sends::{Packet, Sends};
use crate::platform::{NoMemory, Platform};

/// How long no own memory is posted after the NIC has refused some, in nanoseconds.
const REFUSED_NS: u64 = 10_000_000;

/// A packet that was received.
struct Arrival<P: Platform> {
    landed: Landed<P>,
    from: Address,
    length: usize,
    record: Datagram,
}

/// A message that came in one packet.
pub(super) struct Single<P: Platform> {
    pub(super) landed: Landed<P>,
    pub(super) from: Address,
    pub(super) header: Header,
    /// At most the size of the memory.
    pub(super) length: usize,
}

/// The next event for the upper module. It is moved often, so it is small.
pub(super) enum Call<P: Platform> {
    Received(Single<P>),
    /// No module has bound this port.
    Unbound(Landed<P>, Address),
    /// All fragments of a message are there: [`Bound::whole`].
    Joinable,
    Sent(Sent<P>),
    Withdrawn(Handle, Buffer<P>),
    Deadline,
    Gone,
    /// A packet was taken in, and there is no event.
    Nothing,
}

/// A bound port.
pub(super) struct Bound<P: Platform, U> {
    pub(super) key: PortKey,
    pub(super) number: u16,
    /// The upper module; the engine's type parameter decides how it is called.
    pub(super) upper: U,
    pub(super) receives: Receives<P>,
    pub(super) sends: Sends<P>,
    fragments: Fragments<Landed<P>>,
    /// The fragments that the serving thread joins next.
    pub(super) whole: Option<Whole<Landed<P>>>,
    arrived: VecDeque<Arrival<P>>,
    /// When the upper module wants to be called.
    pub(super) deadline_ns: Option<u64>,
    /// No own memory is posted before this time.
    refused_until_ns: u64,
    /// The upper module waits for a message to be sent.
    pub(super) wants_sends: bool,
    /// The next command is a packet, if there is one.
    packet_next: bool,
    pub(super) closing: bool,
    /// The NIC is gone; and the upper module knows.
    pub(super) gone: bool,
    pub(super) told_gone: bool,
}

impl<P: Platform, U> Bound<P, U> {
    pub(super) fn new(
        platform: &P,
        (key, number): (PortKey, u16),
        config: &PortConfig,
        (upper, asks): (U, bool),
    ) -> Result<Self, NoMemory> {
        let slots = usize::from(config.receives) + usize::from(config.steered);
        let mut arrived = VecDeque::new();
        arrived.try_reserve_exact(2 * slots)?;
        Ok(Bound {
            key,
            number,
            upper,
            receives: Receives::new(platform, config.receives, config.steered)?,
            sends: Sends::new(config.messages, asks)?,
            fragments: Fragments::new(usize::from(config.receives / 2).max(PAGES))?,
            whole: None,
            arrived,
            deadline_ns: None,
            refused_until_ns: 0,
            wants_sends: false,
            packet_next: false,
            closing: false,
            gone: false,
            told_gone: false,
        })
    }

    /// The NIC has returned a receive buffer.
    pub(super) fn returned(&mut self, now_ns: u64, entry: &CompletionEntry, counters: &Counters) {
        let Some(returned) = self.receives.returned(entry.handle.get()) else {
            counters.completions_unknown.add(1);
            return;
        };
        let from = Address {
            node: NodeId(entry.node.get()),
            port: entry.port.get(),
        };
        if entry.status.get() == Status::Ok.code() {
            counters.packets_received.add(1);
            self.arrived.push_back(Arrival {
                landed: returned.landed,
                from,
                length: usize::try_from(entry.length.get()).unwrap_or(usize::MAX),
                record: returned.record,
            });
            return;
        }
        if entry.status.get() != Status::Cancelled.code() {
            counters.posts_refused.add(1);
            self.refused_until_ns = now_ns.saturating_add(REFUSED_NS);
        }
        self.take_back(returned.landed, entry.handle.get());
    }

    /// The NIC accesses no memory any more.
    pub(super) fn abandon(&mut self) {
        self.gone = true;
        let mut start = 0;
        while let Some((handle, slot)) = self.receives.next_with_nic(start) {
            start = slot;
            let Some(returned) = self.receives.returned(handle) else {
                break;
            };
            self.take_back(returned.landed, handle);
        }
        self.sends.give_up();
        self.receives.close();
    }

    /// Takes back memory that came without a packet; a steered buffer ends with it.
    fn take_back(&mut self, landed: Landed<P>, handle: u64) {
        if matches!(landed, Landed::Steered(..)) {
            self.receives.end(Handle(handle & !1));
        }
        self.receives.put_back(landed);
    }

    /// The next event for the upper module.
    pub(super) fn next_call(&mut self, now_ns: u64, counters: &Counters) -> Option<Call<P>> {
        if let Some(sent) = self.sends.next_done() {
            self.wants_sends = false;
            return Some(Call::Sent(sent));
        }
        if let Some((handle, buffer)) = self.receives.next_withdrawn() {
            counters.pages_withdrawn.add(1);
            return Some(Call::Withdrawn(handle, buffer));
        }
        if let Some(parts) = self.fragments.expire(now_ns) {
            self.drop_parts(Reason::Expired, parts, counters);
            return Some(Call::Nothing);
        }
        if let Some(arrival) = self.arrived.pop_front() {
            return Some(self.take_in(now_ns, arrival, counters));
        }
        if self.deadline_ns.is_some_and(|deadline| deadline <= now_ns) {
            self.deadline_ns = None;
            return Some(Call::Deadline);
        }
        if self.gone && !core::mem::replace(&mut self.told_gone, true) {
            return Some(Call::Gone);
        }
        None
    }

    /// Takes a packet in.
    fn take_in(&mut self, now_ns: u64, arrival: Arrival<P>, counters: &Counters) -> Call<P> {
        let Arrival {
            landed,
            from,
            length,
            record,
        } = arrival;
        let header = record
            .header
            .as_bytes()
            .get(..record.header_length.into())
            .and_then(Header::new);
        let Some(header) = header.filter(|_| record.is_valid() && !self.closing) else {
            counters.packets_malformed.add(u64::from(!self.closing));
            self.receives.put_back(landed);
            return Call::Nothing;
        };
        if record.flags & PacketFlags::UNBOUND.bits() != 0 {
            return self.take_unbound(landed, from);
        }
        let last = record.flags & PacketFlags::LAST.bits() != 0;
        if last && record.fragment.get() == 0 {
            if length > landed.memory().size().min(MAX_MESSAGE) {
                counters.packets_malformed.add(1);
                self.receives.put_back(landed);
                return Call::Nothing;
            }
            return Call::Received(Single {
                landed,
                from,
                header,
                length,
            });
        }
        while let Some(parts) = self.fragments.evict() {
            self.drop_parts(Reason::Evicted, parts, counters);
        }
        let fragment = Fragment {
            from,
            sequence: record.sequence.get(),
            number: record.fragment.get(),
            last,
            header,
            length,
            own: matches!(landed, Landed::Own(_)),
            memory: landed,
        };
        match self.fragments.insert(now_ns, fragment) {
            Outcome::Kept => Call::Nothing,
            Outcome::Whole(whole) => {
                self.whole = Some(whole);
                Call::Joinable
            }
            Outcome::Dropped(reason, parts) => {
                self.drop_parts(reason, parts, counters);
                Call::Nothing
            }
        }
    }

    /// The answer to a packet that asked.
    #[cold]
    fn take_unbound(&mut self, landed: Landed<P>, from: Address) -> Call<P> {
        match landed {
            Landed::Own(_) => Call::Unbound(landed, from),
            Landed::Steered(..) => {
                self.receives.put_back(landed);
                Call::Nothing
            }
        }
    }

    fn drop_parts(&mut self, reason: Reason, parts: Parts<Landed<P>>, counters: &Counters) {
        let counter = match reason {
            Reason::Duplicate => &counters.fragments_duplicate,
            Reason::Malformed => &counters.fragments_malformed,
            Reason::Expired => &counters.fragments_expired,
            Reason::Evicted => &counters.fragments_evicted,
        };
        for landed in parts.into_iter().flatten() {
            counter.add(1);
            self.receives.put_back(landed);
        }
    }

    /// Ends a steered buffer, and the message that has a part in it.
    pub(super) fn withdraw(&mut self, handle: Handle, counters: &Counters) {
        let Some(slot) = self.receives.end(handle) else {
            return;
        };
        let parts = self
            .fragments
            .take_where(|landed| matches!(landed, Landed::Steered(_, place) if place.slot == slot));
        if let Some(parts) = parts {
            self.drop_parts(Reason::Expired, parts, counters);
        }
    }

    /// Closes the port: from now on it neither sends nor receives.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.deadline_ns = None;
        self.sends.give_up();
        self.receives.close();
        let whole = self.whole.take().map(|whole| whole.parts);
        for landed in whole.into_iter().flatten().flatten() {
            self.receives.put_back(landed);
        }
        while let Some(parts) = self.fragments.take_any() {
            for landed in parts.into_iter().flatten() {
                self.receives.put_back(landed);
            }
        }
    }

    /// The next command that gives the NIC buffers, or takes them back.
    pub(super) fn next_command(&mut self, now_ns: u64, uses: &mut u64) -> Option<Descriptor> {
        let own = !self.closing && !self.packet_comes() && self.refused_until_ns <= now_ns;
        self.packet_next = true;
        let names = (self.key.index, self.number);
        self.receives.next_command(uses, names, own)
    }

    /// Returns true if the next command is to be a packet.
    fn packet_comes(&self) -> bool {
        self.packet_next && self.sends.has_packet()
    }

    /// The next packet.
    pub(super) fn next_packet(
        &mut self,
        now_ns: u64,
        nodes: (&Routes, &mut Peers),
        sequence: &mut u32,
    ) -> Option<Packet> {
        self.packet_next = false;
        self.sends
            .next_packet((self.number, now_ns), nodes, sequence)
    }

    /// Returns true if the upper module is to be called at once.
    pub(super) fn has_calls(&self) -> bool {
        !self.arrived.is_empty() || self.sends.has_done() || (self.gone && !self.told_gone)
    }

    /// Returns true if a message or the upper module waits for packets to be sent.
    pub(super) fn awaits_sends(&self) -> bool {
        self.wants_sends || self.sends.has_waiting()
    }

    /// When the port has work to do without an event.
    pub(super) fn deadline(&self, now_ns: u64) -> Option<u64> {
        let refused = (self.refused_until_ns > now_ns).then_some(self.refused_until_ns);
        let deadlines = [self.deadline_ns, self.fragments.deadline(), refused];
        deadlines.into_iter().flatten().min()
    }

    /// Returns true if a closing port has nothing left.
    pub(super) fn is_quiet(&self) -> bool {
        self.receives.is_quiet() && self.sends.is_empty() && self.arrived.is_empty()
    }
}
