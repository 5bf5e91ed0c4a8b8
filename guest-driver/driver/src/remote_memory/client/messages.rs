//! Messages of servers. Each message is checked. If it names an open session and a pending request, the
//! request takes it; otherwise it is dropped and counted.

use qnic_abi::remote_memory::{Header, Kind, Reason};
use qnic_abi::PAGE_SIZE;
use zerocopy::FromBytes;

use super::on_the_way::Answered;
use super::server_set::ServerIndex;
use super::slots::{SlotIndex, Work};
use super::Client;
use crate::remote_memory::wire::Arrival;

/// How long a full server is not asked for more pages, in nanoseconds.
const FULL_PAUSE: u64 = 1_000_000_000;

impl<P> Client<P> {
    /// Takes a message. Returns its buffer if the message is done with it: the buffer belongs to
    /// the caller again.
    pub fn handle_message(&mut self, now: u64, arrival: Arrival<'_, P>) -> Option<P> {
        let now = self.own_time(now);
        let Arrival {
            from,
            header,
            target,
            page,
            length,
        } = arrival;
        let page = match Header::read_from_bytes(header) {
            Ok(header) if header.is_valid() => match self.servers.find(from) {
                Some(server) => self.handle(now, server, &header, target, page, length),
                None => self.foreign(page),
            },
            _ => self.foreign(page),
        };
        if page.is_some() && target != 0 {
            self.lose_target(target);
        }
        page
    }

    fn foreign(&mut self, page: P) -> Option<P> {
        self.counters.foreign += 1;
        Some(page)
    }

    fn handle(
        &mut self,
        now: u64,
        server: ServerIndex,
        header: &Header,
        target: u64,
        page: P,
        length: usize,
    ) -> Option<P> {
        let session = header.session.get();
        let Ok(kind) = Kind::try_from(header.kind) else {
            return self.foreign(page);
        };
        match kind {
            Kind::Attached => self.attached(now, server, header),
            Kind::Refused if session == 0 => self.attach_refused(now, server, header),
            Kind::Ask => self.asked(server, session),
            _ if !self.servers.get(server).has_session()
                || self.servers.get(server).session != session =>
            {
                self.counters.stale_answers += 1;
            }
            Kind::Page if length == PAGE_SIZE => {
                self.received_from(now, server);
                return self.page_arrived(now, server, header, target, page);
            }
            Kind::Written | Kind::Refused => {
                self.received_from(now, server);
                self.answer(now, server, header, kind);
            }
            Kind::Renewed => {
                self.received_from(now, server);
                self.servers.get_mut(server).granted = header.block.get();
            }
            Kind::Reserved => self.reserved(now, server, header),
            Kind::Leave => {
                self.received_from(now, server);
                self.leaves(now, server);
            }
            Kind::Detached => self.server_lost(now, server),
            _ => return self.foreign(page),
        }
        Some(page)
    }

    fn page_arrived(
        &mut self,
        now: u64,
        server: ServerIndex,
        header: &Header,
        target: u64,
        page: P,
    ) -> Option<P> {
        let slot = self.request_of(header);
        // A buffer that waits for another request is not taken for this one.
        let slot = slot.filter(|slot| {
            let work = self.slots.get(*slot).work;
            target == 0 || work == Work::Read { target }
        });
        let Some(slot) = slot else {
            self.counters.stale_answers += 1;
            return Some(page);
        };
        if !self.slots.get(slot).work.brings() {
            self.measure(now, slot, server, header);
        }
        self.page_read(now, slot, server, header.version.get(), page)
    }

    /// An answer without a page.
    fn answer(&mut self, now: u64, server: ServerIndex, header: &Header, kind: Kind) {
        let reason = Reason::try_from(header.reason).ok();
        match reason {
            Some(Reason::NoSession) => return self.server_lost(now, server),
            Some(Reason::Expired) => return self.taken_back(now, server),
            _ => {}
        }
        let Some(slot) = self.request_of(header) else {
            self.counters.stale_answers += 1;
            return;
        };
        let request = self.slots.get(slot);
        let work = request.work;
        if reason == Some(Reason::NoPage) && !work.brings() && request.tried.has(server) {
            return self.not_there(now, slot, server);
        }
        let leg = request.leg_of(server).filter(|_| work.brings());
        let leg = leg.filter(|leg| {
            request.legs[*leg].is_some_and(|leg| leg.transmissions > 0 && !leg.acked)
        });
        let Some(leg) = leg else {
            self.counters.stale_answers += 1;
            return;
        };
        let same = header.version.get() == request.version;
        match (kind, reason) {
            (Kind::Written, _) if same => {
                self.measure(now, slot, server, header);
                self.written(now, server, slot, leg);
            }
            (Kind::Refused, Some(Reason::Full)) => {
                self.servers.get_mut(server).full_until = now + FULL_PAUSE;
                self.slots.get_mut(slot).full.insert(server);
                self.leg_failed(now, slot, leg, true);
            }
            _ => {
                self.counters.bad_answers += 1;
                self.leg_failed(now, slot, leg, true);
            }
        }
    }

    /// A server has a page.
    fn written(&mut self, now: u64, server: ServerIndex, slot: SlotIndex, leg: usize) {
        let request = self.slots.get_mut(slot);
        if let Some(acked) = &mut request.legs[leg] {
            let was_queued = core::mem::replace(&mut acked.queued, false);
            acked.acked = true;
            let entry = self.servers.get_mut(server);
            entry.drop_leg((slot, leg as u8), was_queued, true);
        }
        match self.slots.get(slot).work {
            Work::Write => self.write_acked(now, slot),
            _ => self.store_acked(now, slot),
        }
    }

    /// The request that a message answers, if it is about the same block.
    fn request_of(&self, header: &Header) -> Option<SlotIndex> {
        let slot = self.slots.find(header.request.get())?;
        let block = self.slots.get(slot).block as u64;
        (header.block.get() == block).then_some(slot)
    }

    /// A leg is answered: measures the round trip, if the answer says of which transmission.
    fn measure(&mut self, now: u64, slot: SlotIndex, server: ServerIndex, header: &Header) {
        let request = self.slots.get(slot);
        let Some((index, leg)) = request.legs().find(|(_, leg)| leg.server == server) else {
            return;
        };
        let number = header.request.get();
        let of = |transmission| self.slots.number(slot, transmission) == number;
        let sent = match request.transmission(index) {
            latest if of(latest) => Answered::Latest,
            2 if request.work.brings() => Answered::SentAt(leg.first_sent),
            _ => Answered::Earlier,
        };
        let queue_delay = self.config.limits.queue_delay;
        let on_the_way = &mut self.servers.get_mut(server).on_the_way;
        on_the_way.answered(now, (slot, index as u8), sent, queue_delay);
        self.note_deadline(server);
    }
}
