//! Requests of clients.

use qnic_abi::remote_memory::{Attach, Header, Kind, Reason};
use qnic_abi::PAGE_SIZE;
use zerocopy::FromBytes;

use super::answers::Answer;
use super::Server;
use crate::datagram::Address;
use crate::remote_memory::wire::{header, refusal, Arrival};

const NS_IN_MS: u64 = 1_000_000;

impl<P> Server<P> {
    /// Takes a message. Returns a buffer: that of the message if the server has not kept it, or the one
    /// that it has replaced.
    pub fn handle_message(&mut self, now: u64, arrival: Arrival<'_, P>) -> Option<P> {
        let Arrival {
            from,
            header,
            page,
            length,
            ..
        } = arrival;
        match (
            Header::read_from_bytes(header),
            Attach::read_from_bytes(header),
        ) {
            (Ok(header), _) if header.is_valid() => {
                return self.request(now, from, &header, page, length);
            }
            (_, Ok(attach)) if attach.is_valid() => self.attach(now, from, &attach),
            _ => self.counters.malformed += 1,
        }
        Some(page)
    }

    fn attach(&mut self, now: u64, from: Address, attach: &Attach) {
        let (volume, life) = (attach.volume.get(), attach.client.get());
        let request = Header {
            version: life.into(),
            ..header(Kind::Attach, attach.request.get(), 0)
        };
        if !same(&attach.key, &self.config.key.0) {
            return self.refuse(from, &request, Reason::WrongKey);
        }
        let client = match self.clients.of_volume(volume) {
            Some((index, client)) if client.address == from && client.life == life => index,
            // The port has another owner now, or this is a late message of an earlier one.
            _ if self.clients.other_life(from, life) => return self.clients.doubt(now, from),
            Some(_) => return self.refuse(from, &request, Reason::VolumeInUse),
            None if self.leaving => return self.refuse(from, &request, Reason::Leaving),
            None => match self.clients.attach(now, from, volume, life) {
                Some(index) => index,
                None => return self.refuse(from, &request, Reason::TooManyClients),
            },
        };
        self.clients.received_from(now, client);
        let session = self.clients.get(client).session;
        self.answer(
            client,
            Header {
                window: self.config.window.into(),
                block: (self.allowed(client) as u64).into(),
                version: life.into(),
                target: (self.config.lease / NS_IN_MS).into(),
                ..header(Kind::Attached, attach.request.get(), session)
            },
        );
    }

    fn request(
        &mut self,
        now: u64,
        from: Address,
        request: &Header,
        page: P,
        length: usize,
    ) -> Option<P> {
        let kind = Kind::try_from(request.kind);
        let session = request.session.get();
        let Some(client) = self.clients.find(session, from) else {
            match kind {
                Ok(Kind::Read | Kind::Write | Kind::Renew | Kind::Reserve) => {
                    let reason = match self.clients.is_over(session) {
                        true => Reason::Expired,
                        false => Reason::NoSession,
                    };
                    self.refuse(from, request, reason);
                }
                // It is detached.
                Ok(Kind::Detach) => self.say_detached(from, request),
                _ => self.counters.malformed += 1,
            }
            return Some(page);
        };
        self.clients.received_from(now, client);
        match kind {
            Ok(Kind::Write) if length == PAGE_SIZE => {
                return self.write(client, request, page);
            }
            Ok(Kind::Read) => self.read(client, request),
            Ok(Kind::Renew) => {
                let pages = self.allowed(client) as u64;
                self.answer(
                    client,
                    Header {
                        block: pages.into(),
                        ..header(Kind::Renewed, request.request.get(), session)
                    },
                );
            }
            Ok(Kind::Reserve) => self.reserve(client, request),
            Ok(Kind::Detach) => {
                self.clients.end(client);
                self.say_detached(from, request);
            }
            _ => self.counters.malformed += 1,
        }
        Some(page)
    }

    fn write(&mut self, client: u8, request: &Header, page: P) -> Option<P> {
        if !self.has_room(client) {
            return Some(page);
        }
        let (block, version) = (request.block.get(), request.version.get());
        let (kept, back) = match self.store.find(client, block) {
            Some((_, kept)) if kept >= version => {
                self.counters.stale_writes += 1;
                (kept, Some(page))
            }
            Some((entry, _)) => match self.store.replace(entry, version, page) {
                Ok(old) => (version, old),
                Err(page) => {
                    self.refuse_client(client, request, Reason::Full);
                    return Some(page);
                }
            },
            None => {
                let pages = self.clients.get(client).pages as usize;
                let stored = match pages < self.allowed(client) {
                    true => self.store.insert(client, block, version, page),
                    false => Err(page),
                };
                if let Err(page) = stored {
                    self.refuse_client(client, request, Reason::Full);
                    return Some(page);
                }
                self.clients.get_mut(client).pages += 1;
                (version, None)
            }
        };
        self.counters.writes += u64::from(kept == version);
        let answer = Header {
            block: request.block,
            version: kept.into(),
            ..header(Kind::Written, request.request.get(), request.session.get())
        };
        self.answer(client, answer);
        back
    }

    fn read(&mut self, client: u8, request: &Header) {
        let Some((entry, version)) = self.store.find(client, request.block.get()) else {
            return self.refuse_client(client, request, Reason::NoPage);
        };
        if !self.has_room(client) {
            return;
        }
        self.store.begin_read(entry);
        self.counters.reads += 1;
        let page = Header {
            block: request.block,
            version: version.into(),
            ..header(Kind::Page, request.request.get(), request.session.get())
        };
        self.answers.push(Answer {
            to: self.clients.get(client).address,
            header: page,
            target: request.target.get(),
            entry: Some(entry),
            client: Some(client),
        });
    }

    /// Pages that a client may have here: those that are reserved for it or that it has, and more while
    /// there are some that no client has or has reserved.
    fn allowed(&self, client: u8) -> usize {
        let pages = self.clients.get(client).pages as usize;
        let others = self.store.used() + self.clients.promised(Some(client));
        let free = self.store.room().saturating_sub(others);
        pages.saturating_add(free).min(self.config.quota)
    }

    /// Reserves as many of the pages that a client wants as there are.
    fn reserve(&mut self, client: u8, request: &Header) {
        let wanted = usize::try_from(request.block.get()).unwrap_or(usize::MAX);
        let allowed = self.allowed(client);
        let entry = self.clients.get_mut(client);
        entry.reserved = wanted.min(allowed) as u32;
        let reserved = u64::from(entry.reserved);
        let answer = Header {
            block: reserved.into(),
            ..header(Kind::Reserved, request.request.get(), request.session.get())
        };
        self.answer(client, answer);
    }

    fn say_detached(&mut self, to: Address, request: &Header) {
        let session = request.session.get();
        let detached = header(Kind::Detached, request.request.get(), session);
        self.answer_stranger(to, detached);
    }

    fn refuse(&mut self, to: Address, request: &Header, reason: Reason) {
        self.counters.refused += 1;
        self.answer_stranger(to, refusal(request, reason));
    }

    fn refuse_client(&mut self, client: u8, request: &Header, reason: Reason) {
        self.counters.refused += 1;
        self.answer(client, refusal(request, reason));
    }

    /// Returns true if the client may have one more answer under way; if not, counts the dropped
    /// request.
    fn has_room(&mut self, client: u8) -> bool {
        let room = self.answers.has_room(Some(client));
        self.counters.dropped += u64::from(!room);
        room
    }

    fn answer(&mut self, client: u8, header: Header) {
        if self.has_room(client) {
            self.push(self.clients.get(client).address, header, Some(client));
        }
    }

    fn answer_stranger(&mut self, to: Address, header: Header) {
        match self.answers.has_room(None) {
            true => self.push(to, header, None),
            false => self.counters.dropped += 1,
        }
    }

    pub(super) fn push(&mut self, to: Address, header: Header, client: Option<u8>) {
        self.answers.push(Answer {
            to,
            header,
            target: 0,
            entry: None,
            client,
        });
    }
}

/// Compares two keys in a time that does not depend on them.
fn same(one: &[u8; 16], other: &[u8; 16]) -> bool {
    let differences = one.iter().zip(other).map(|(one, other)| one ^ other);
    core::hint::black_box(differences.fold(0, |all, difference| all | difference)) == 0
}
