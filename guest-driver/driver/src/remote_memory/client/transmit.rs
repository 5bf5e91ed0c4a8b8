//! The next message to send: servers take turns; a server's session messages come before its requests.

use qnic_abi::remote_memory::{Attach, Header, Kind};

use super::server_set::ServerIndex;
use super::slots::{LegOf, Phase, Work};
use super::Client;
use crate::remote_memory::wire::{bare, header, AsHeader, Ticket, Transmit};

impl<P> Client<P> {
    /// The next message to send.
    pub fn poll_transmit(&mut self, now: u64) -> Option<Transmit<'_, P>> {
        let now = self.own_time(now);
        let count = self.servers.len() as u8;
        for step in 0..count {
            let server = (self.turn + step) % count;
            if let Some(session) = self.servers.get_mut(server).disowned.take() {
                self.next_request = self.next_request.wrapping_add(1);
                let to = self.servers.get(server).address;
                return Some(bare(to, &header(Kind::Detach, self.next_request, session)));
            }
            if let Some(kind) = self.servers.get_mut(server).control.take() {
                return Some(self.control(now, server, kind));
            }
            while let Some(leg) = self.servers.get_mut(server).next_leg() {
                if self.is_queued(server, leg) {
                    self.turn = (server + 1) % count;
                    return self.send(now, server, leg);
                }
            }
        }
        None
    }

    /// A message of the session.
    fn control(&mut self, now: u64, server: ServerIndex, kind: Kind) -> Transmit<'_, P> {
        self.next_request = self.next_request.wrapping_add(1);
        let entry = self.servers.get_mut(server);
        entry.expect_answer(now);
        if kind != Kind::Attach {
            let mut wanted = 0;
            if kind == Kind::Reserve {
                entry.reserving = self.next_request;
                wanted = entry.wanted;
            }
            let message = Header {
                block: wanted.into(),
                ..header(kind, self.next_request, entry.session)
            };
            return bare(entry.address, &message);
        }
        let attach = Attach {
            kind: kind as u8,
            request: self.next_request.into(),
            client: self.config.client.into(),
            volume: self.config.volume.into(),
            key: self.config.key.0,
            ..Attach::default()
        };
        bare(entry.address, &attach)
    }

    fn is_queued(&self, server: ServerIndex, (slot, leg): LegOf) -> bool {
        let request = self.slots.get(slot);
        let leg = request.legs[usize::from(leg)];
        request.phase == Phase::Active && leg.is_some_and(|leg| leg.server == server && leg.queued)
    }

    /// A message of a request.
    fn send(&mut self, now: u64, server: ServerIndex, leg: LegOf) -> Option<Transmit<'_, P>> {
        let (slot, index) = (leg.0, usize::from(leg.1));
        let request = self.slots.get_mut(slot);
        let sent = request.legs[index].as_mut()?;
        sent.queued = false;
        sent.transmissions += 1;
        if sent.transmissions == 1 {
            sent.first_sent = now;
        }
        request.attempts += 1;
        let (work, brings) = (request.work, request.work.brings());
        let transmission = request.transmission(index);
        let number = self.slots.number(slot, transmission);
        let request = self.slots.get_mut(slot);
        if brings {
            request.busy |= 1 << index;
        }
        let entry = self.servers.get_mut(server);
        entry.on_the_way.send(now, leg, brings);
        entry.expect_answer(now);
        self.note_deadline(server);
        let entry = self.servers.get(server);
        let request = self.slots.get(slot);
        let kind = if brings { Kind::Write } else { Kind::Read };
        let message = Header {
            block: (request.block as u64).into(),
            version: if brings { request.version } else { 0 }.into(),
            target: match work {
                Work::Read { target } => target,
                _ => 0,
            }
            .into(),
            ..header(kind, number, entry.session)
        };
        let data = request.page.as_ref().filter(|_| brings);
        Some(Transmit {
            to: entry.address,
            header: message.bytes(),
            target: 0,
            data,
            ticket: brings.then_some(Ticket(u64::from(slot) << 8 | u64::from(leg.1))),
        })
    }
}
