//! How a request begins, goes to servers, and ends.

use super::server_set::ServerIndex;
use super::servers::Order;
use super::slots::{Leg, Phase, SlotIndex, Work, MAX_LEGS};
use super::{Client, ClientState, Completion, Done, Failure, Refusal};
use crate::remote_memory::wire::Ticket;

impl<P> Client<P> {
    /// Requests the page of a block. `target` is the handle of the steered buffer that waits
    /// for it; with zero the page comes in any buffer.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn read(&mut self, now: u64, token: u64, block: u64, target: u64) -> Result<(), Refusal> {
        let now = self.own_time(now);
        let slot = self.submit(now, Work::Read { target }, token, block)?;
        self.counters.reads += 1;
        self.wake(now, self.slots.get(slot).block);
        Ok(())
    }

    /// Writes a page to a block.
    ///
    /// # Errors
    /// The page, and the reason why it was not taken.
    pub fn write(&mut self, now: u64, token: u64, block: u64, page: P) -> Result<(), (P, Refusal)> {
        let now = self.own_time(now);
        let slot = match self.submit(now, Work::Write, token, block) {
            Ok(slot) => slot,
            Err(refusal) => return Err((page, refusal)),
        };
        self.counters.writes += 1;
        let version = self.volume.next_version();
        let request = self.slots.get_mut(slot);
        let block = request.block;
        request.page = Some(page);
        request.version = version;
        self.end_copies(now, block);
        self.wake(now, block);
        Ok(())
    }

    fn submit(
        &mut self,
        now: u64,
        work: Work,
        token: u64,
        block: u64,
    ) -> Result<SlotIndex, Refusal> {
        if self.is_taken_back() {
            return Err(Refusal::TakenBack);
        }
        if self.state != ClientState::Active {
            return Err(Refusal::NotActive);
        }
        if block >= self.config.blocks {
            return Err(Refusal::NoSuchBlock);
        }
        // Each request that is taken has room for its completion.
        if self.slots.free() <= self.completions.len() {
            return Err(Refusal::Busy);
        }
        let slot = self.slots.take(work, block as usize, now);
        let slot = slot.ok_or(Refusal::Busy)?;
        let deadline = now.saturating_add(self.config.limits.request_timeout);
        let request = self.slots.get_mut(slot);
        request.token = token;
        request.deadline = deadline;
        self.scan_due = self.scan_due.min(deadline);
        Ok(slot)
    }

    /// Begins the requests of a block that do not have to wait any more.
    pub(super) fn wake(&mut self, now: u64, block: usize) {
        while let Some(slot) = self.slots.first_ready(block) {
            self.slots.get_mut(slot).phase = Phase::Active;
            match self.slots.get(slot).work {
                Work::Write => self.begin_write(now, slot),
                _ => self.begin_read(now, slot),
            }
        }
    }

    /// Sends a request to one more server. Returns false if the NIC still reads its page for too
    /// many others.
    pub(super) fn add_leg(&mut self, slot: SlotIndex, server: ServerIndex) -> bool {
        let request = self.slots.get_mut(slot);
        let is_free = |leg: &usize| request.legs[*leg].is_none() && request.busy >> *leg & 1 == 0;
        let Some(free) = (0..MAX_LEGS).find(is_free) else {
            return false;
        };
        let is_new = request.work.brings() && !self.volume.holders(request.block).has(server);
        self.servers.get_mut(server).incoming += u64::from(is_new);
        request.legs[free] = Some(Leg {
            server,
            acked: false,
            is_new,
            queued: true,
            transmissions: 0,
            first_sent: 0,
        });
        let order = match request.work {
            Work::Read { .. } => Order::Read,
            _ => Order::Fresh,
        };
        let leg = (slot, free as u8);
        self.servers.get_mut(server).enqueue(leg, order);
        true
    }

    /// Expects no answer of a leg any more.
    pub(super) fn drop_leg(&mut self, slot: SlotIndex, leg: usize) {
        let Some(dropped) = self.slots.get_mut(slot).legs[leg].take() else {
            return;
        };
        let owes = dropped.transmissions > 0 && !dropped.acked;
        let server = self.servers.get_mut(dropped.server);
        server.incoming = server.incoming.saturating_sub(dropped.is_new.into());
        server.drop_leg((slot, leg as u8), dropped.queued, owes);
    }

    /// Expects no answer to a request any more.
    pub(super) fn drop_legs(&mut self, slot: SlotIndex) {
        (0..MAX_LEGS).for_each(|leg| self.drop_leg(slot, leg));
    }

    /// Sends a leg once more.
    pub(super) fn resend(&mut self, slot: SlotIndex, leg: usize) {
        let Some(resent) = &mut self.slots.get_mut(slot).legs[leg] else {
            return;
        };
        resent.queued = true;
        let server = resent.server;
        self.counters.retransmissions += 1;
        let server = self.servers.get_mut(server);
        server.enqueue((slot, leg as u8), Order::Again);
    }

    /// Ends a request: at once, or when the NIC does not read its page any more. Returns true if
    /// at once; then others of its block may begin ([`Client::wake`]).
    pub(super) fn end(&mut self, now: u64, slot: SlotIndex, result: Result<(), Failure>) -> bool {
        self.drop_legs(slot);
        let request = self.slots.get_mut(slot);
        if request.busy != 0 {
            request.phase = Phase::Draining(result);
            return false;
        }
        let page = request.page.take();
        let (work, token) = (request.work, request.token);
        let took = now.saturating_sub(request.submitted);
        self.slots.release(slot);
        if work.is_copy() {
            // There is room: each copy has one page.
            page.into_iter()
                .for_each(|page| drop(self.pages.push(page)));
            self.repair.resume(now);
            return true;
        }
        let done = match (work, page.is_some()) {
            (Work::Write, _) => Done::Written,
            (_, true) => Done::Page,
            (_, false) => Done::Zero,
        };
        match (result, work) {
            (Err(_), _) => self.counters.failed += 1,
            (Ok(()), Work::Write) => self.writes.add(took),
            (Ok(()), _) => self.reads.add(took),
        }
        // There is room: `submit` ensures it.
        let _ = self.completions.push(Completion {
            token,
            result: result.map(|()| done),
            page,
        });
        true
    }

    /// Ends a request, and begins those that have waited for it.
    pub(super) fn finish(&mut self, now: u64, slot: SlotIndex, result: Result<(), Failure>) {
        let block = self.slots.get(slot).block;
        if self.end(now, slot, result) {
            self.wake(now, block);
        }
    }

    /// Takes back a page that the NIC does not read any more.
    pub fn handle_sent(&mut self, now: u64, ticket: Ticket) {
        let now = self.own_time(now);
        let (slot, leg) = ((ticket.0 >> 8) as SlotIndex, ticket.0 as usize & 0xff);
        if usize::from(slot) >= self.slots.len() || leg >= MAX_LEGS {
            return;
        }
        let request = self.slots.get_mut(slot);
        request.busy &= !(1 << leg);
        match request.phase {
            Phase::Draining(result) if request.busy == 0 => self.finish(now, slot, result),
            Phase::Active => self.page_is_read(now, slot, leg),
            _ => {}
        }
    }
}
