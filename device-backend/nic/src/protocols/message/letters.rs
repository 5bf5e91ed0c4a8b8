//! Messages to members of a group, which the group's tree has brought here as a whole or piece by piece
//! (Q3, Q15).
//!
//! ```text
//!   group ── letter ──► matched: into the receive      else room: staged      else: it stays with the group
//!         ◄── opening ──── a receive was posted, a staged message has gone, completions were read
//! ```
//! A process has an opening when something has changed that a letter may have waited for. What is
//! staged is bounded as other messages are, but for one letter whose receive has absent pages.
//!
//! Of a message of several pieces the first one is matched. The others go the same way, each when the one
//! before it has been taken:
//!
//! | the message | a piece is taken when |
//! |---|---|
//! | fits into staging memory, all of it | it comes: staged, or straight to the pages of a receive that has come |
//! | has a receive | it is in the pages of that |
//! | has none, and no room | a receive or a Probe has claimed it, as above |
//! | is discarded, or its receive has ended | it comes: it is dropped |

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::multicast::{Multicast, PartFlags};
use qnic_abi::{Status, VniId};

use super::command::{Name, Space};
use super::data::{copy_in, pages_from};
use super::matching;
use super::staging::{Arrived, Bytes, Header, Landing, Place};
use super::{Context, Messages, Protocol};
use crate::core::{PageError, Waiter};
use crate::env::{Host, Payload};
use crate::ids::PeerIndex;
use crate::letter::Letter;

/// A source, as its group calls it: the group's home and number, and the rank.
type Source = (u16, u64, u32);

fn source_of(fields: &Multicast) -> Source {
    (fields.home.get(), fields.number.get(), fields.rank.get())
}

/// What a message says of itself.
fn header_of(vni: VniId, fields: &Multicast) -> Header {
    Header {
        vni,
        // It belongs to no session.
        peer: PeerIndex::default(),
        source: Name {
            node: fields.node.get(),
            port: fields.port.get(),
        },
        sequence: 0,
        operation: 0,
        space: Space {
            endpoint: fields.endpoint.into(),
            untagged: fields.flags & PartFlags::UNTAGGED.bits() != 0,
        },
        tag: fields.tag.get(),
        immediate: fields.immediate.get(),
        mark: 0,
        incarnation: 0,
        length: fields.length.get().into(),
        packet_length: 0,
        of_group: true,
    }
}

/// Messages of which a process has been offered a piece and has not taken the last one, with their
/// numbers. A source has one at a time, so the members of groups bound them. One that is not staged any
/// more has ended before its pieces.
pub(super) type Begun = BTreeMap<(VniId, Source), u64>;

impl Messages {
    /// Returns true if a process has an opening.
    #[inline]
    pub(in super::super) fn has_openings(&self) -> bool {
        self.staging.openings.has_any()
    }

    /// The processes with openings.
    pub(in super::super) fn take_openings(&mut self) -> BTreeSet<VniId> {
        self.staging.openings.take()
    }

    /// Takes a letter for a process, if there is a receive or room. Otherwise it is to be offered
    /// again when the process has an opening.
    pub(in super::super) fn take<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        letter: &Letter,
    ) -> bool {
        let is_taken = self.try_take(cx, vni, letter);
        if !is_taken {
            self.staging.openings.await_one(vni);
        }
        is_taken
    }

    fn try_take<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId, letter: &Letter) -> bool {
        let begun = (vni, source_of(&letter.fields));
        if let Some(number) = self.begun.get(&begun).copied() {
            let is_taken = self.go_on(cx, number, letter);
            if is_taken && letter.is_last() {
                self.begun.remove(&begun);
            }
            return is_taken;
        }
        if !letter.is_first() {
            // The process has forgotten it.
            return true;
        }
        if self.is_held_back(cx, vni) {
            self.await_release(vni);
            return false;
        }
        let header = header_of(vni, &letter.fields);
        let bytes = match letter.is_last() {
            true => letter.bytes().len(),
            false => 0,
        };
        let limits = &cx.core.limits;
        let has_room = self.staging.has_room(limits, &header, bytes);
        let flow = (vni, header.source);
        if !has_room && self.staging.room.lacks_of_node(limits, flow, bytes) {
            // Others can give that back.
            self.staging.openings.await_node(header.source.node, vni);
        }
        if !has_room && !self.staging.room.may_overflow(limits, flow) {
            return false;
        }
        if !letter.is_last() {
            return self.begin(cx, header, has_room).is_some_and(|number| {
                self.begun.insert(begun, number);
                self.go_on(cx, number, letter)
            });
        }
        let number = self.staging.next_number();
        let inbox = self.inboxes.get_or_insert(vni);
        match inbox.arrive(limits, &header, number) {
            Ok(matching::Arrived::Matched(receive)) => {
                if let Some(landing) = inbox.land(receive.handle, header.length) {
                    self.land_letter(cx, (number, header), landing, letter.bytes());
                }
                true
            }
            Ok(matching::Arrived::Queued(id)) if has_room => {
                let place = Place::Unexpected(id);
                self.keep_letter(cx, (number, header), place, letter.bytes());
                self.offer(cx, &header, (number, id));
                true
            }
            Ok(matching::Arrived::Queued(id)) => {
                let space = inbox.space(header.space, limits);
                space.discard(id);
                false
            }
            Err(matching::Full) => false,
        }
    }

    /// Matches a message of several pieces. Returns its number; none: no receive takes it, and it may not
    /// wait for one.
    fn begin<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        header: Header,
        may_wait: bool,
    ) -> Option<u64> {
        let limits = &cx.core.limits;
        let length = header.length as usize;
        let fits = self.staging.has_room(limits, &header, length);
        let number = self.staging.next_number();
        let inbox = self.inboxes.get_or_insert(header.vni);
        let (place, bytes) = match inbox.arrive(limits, &header, number) {
            Ok(matching::Arrived::Matched(receive)) => {
                let landing = inbox.land(receive.handle, header.length)?;
                (Place::Landing(landing), Bytes::AtGroup)
            }
            Ok(matching::Arrived::Queued(id)) if may_wait => {
                let bytes = match fits {
                    true => Bytes::Coming(vec![0; length].into(), length),
                    false => Bytes::AtGroup,
                };
                (Place::Unexpected(id), bytes)
            }
            Ok(matching::Arrived::Queued(id)) => {
                inbox.space(header.space, limits).discard(id);
                return None;
            }
            Err(matching::Full) => return None,
        };
        let message = Arrived::new(header, place, bytes);
        let kept = self.staging.insert(limits, number, message);
        debug_assert_eq!(kept, Ok(()), "a message of a group is bounded by its room");
        if let Place::Unexpected(id) = place {
            self.offer(cx, &header, (number, id));
        }
        Some(number)
    }

    /// Takes the next piece of a message, if it can be taken.
    fn go_on<H: Host>(&mut self, cx: &mut Context<'_, H>, number: u64, letter: &Letter) -> bool {
        let Some(message) = self.staging.get(number) else {
            return true;
        };
        if letter.is_given_up() {
            self.drop_message(cx, number, Status::Aborted);
            return true;
        }
        let begin = letter.begin();
        let payload = match letter.bytes() {
            [] => Payload::None,
            bytes => Payload::Bytes(bytes),
        };
        match (&message.bytes, message.place) {
            (Bytes::Coming(..), _) => {
                if self.bytes_come(cx, number, begin, &payload) {
                    self.staged(cx, number);
                }
                true
            }
            (_, Place::Landing(landing)) => self.land_piece(cx, number, landing, letter),
            (_, Place::Discarded) => {
                if letter.is_last() {
                    self.staging.remove(number);
                }
                true
            }
            (_, Place::Early(_) | Place::Held | Place::Unexpected(_) | Place::Claimed) => false,
        }
    }

    /// Copies a piece into the memory of its receive. Returns false if that has absent pages.
    fn land_piece<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        number: u64,
        landing: Landing,
        letter: &Letter,
    ) -> bool {
        let (begin, bytes) = (letter.begin(), letter.bytes());
        let Some(message) = self.staging.get(number) else {
            return true;
        };
        let vni = message.header.vni;
        let end = begin + bytes.len() as u64;
        let mut part = Landing {
            offset: landing.offset + begin,
            allowed: landing.allowed.min(end).saturating_sub(begin),
            arrived: landing.arrived.saturating_sub(begin),
            ..landing
        };
        let inbox = self.inboxes.get_or_insert(vni);
        let copied = copy_in(cx, inbox, vni, &mut part, &Payload::Bytes(bytes));
        let landing = Landing {
            arrived: landing.allowed.min(begin + part.arrived),
            ..landing
        };
        message.place = Place::Landing(landing);
        match copied {
            Ok(()) if letter.is_last() => self.end_landing(cx, number, Status::Ok),
            Ok(()) => {}
            Err(PageError::Refused(status)) => self.end_landing(cx, number, status),
            Err(PageError::Absent) => {
                // It may be offered again before the pages have come.
                if !std::mem::replace(&mut message.asked, true) {
                    let range = pages_from(inbox, &landing, landing.arrived);
                    let job = Waiter::Job(<Self as Protocol>::ID, number);
                    cx.core.wait_for_pages(vni, range, job);
                }
                return false;
            }
        }
        true
    }

    /// A group has ended: what has not come of its messages will not.
    pub(in super::super) fn group_ended<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        (home, group): (u16, u64),
    ) {
        let mut numbers = Vec::new();
        self.begun.retain(|(_, source), number| {
            let is_its = (source.0, source.1) == (home, group);
            numbers.extend(is_its.then_some(*number));
            !is_its
        });
        for number in numbers {
            self.drop_message(cx, number, Status::Aborted);
        }
    }

    /// Copies a letter into the memory of its receive, or keeps it until the pages of that are there.
    fn land_letter<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        (number, header): (u64, Header),
        mut landing: Landing,
        bytes: &[u8],
    ) {
        let inbox = self.inboxes.get_or_insert(header.vni);
        let payload = match bytes.is_empty() {
            true => Payload::None,
            false => Payload::Bytes(bytes),
        };
        match copy_in(cx, inbox, header.vni, &mut landing, &payload) {
            Ok(()) => self.finish(cx, &header, &landing, Status::Ok),
            Err(PageError::Refused(status)) => self.finish(cx, &header, &landing, status),
            Err(PageError::Absent) => {
                self.keep_letter(cx, (number, header), Place::Landing(landing), bytes);
                self.proceed(cx, number);
            }
        }
    }

    fn keep_letter<H: Host>(
        &mut self,
        cx: &Context<'_, H>,
        (number, header): (u64, Header),
        place: Place,
        bytes: &[u8],
    ) {
        let message = Arrived::new(header, place, Bytes::Staged(bytes.into()));
        let kept = self.staging.insert(&cx.core.limits, number, message);
        debug_assert_eq!(kept, Ok(()), "a staged message in order is always kept");
    }
}
