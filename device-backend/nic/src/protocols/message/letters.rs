//! Messages to members of a group, which the group's tree has brought here as a whole (Q3, Q15).
//!
//! ```text
//!   group ── letter ──► matched: into the receive      else room: staged      else: it stays with the group
//!         ◄── opening ──── a receive was posted, a staged message has gone, completions were read
//! ```
//! A process has an opening when something has changed that a letter may have waited for. What is
//! staged is bounded as other messages are, but for one letter whose receive has absent pages.

use std::collections::BTreeSet;

use qnic_abi::multicast::MulticastFlags;
use qnic_abi::{Status, VniId};

use super::command::{Name, Space};
use super::data::copy_in;
use super::matching;
use super::staging::{Arrived, Bytes, Header, Landing, Place};
use super::{Context, Messages};
use crate::core::PageError;
use crate::env::{Host, Payload};
use crate::ids::PeerIndex;
use crate::letter::Letter;

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
        if self.is_held_back(cx, vni) {
            self.await_release(vni);
            return false;
        }
        let fields = &letter.fields;
        let header = Header {
            vni,
            // What is here as a whole belongs to no session.
            peer: PeerIndex::default(),
            source: Name {
                node: fields.node.get(),
                port: fields.port.get(),
            },
            sequence: 0,
            operation: 0,
            space: Space {
                endpoint: fields.endpoint.into(),
                untagged: fields.flags & MulticastFlags::UNTAGGED.bits() != 0,
            },
            tag: fields.tag.get(),
            immediate: fields.immediate.get(),
            length: letter.bytes().len() as u64,
            packet_length: 0,
        };
        let limits = &cx.core.limits;
        let has_room = self.staging.has_room(limits, &header, letter.bytes().len());
        let flow = (vni, header.source);
        if !has_room
            && self
                .staging
                .room
                .lacks_of_node(limits, flow, letter.bytes().len())
        {
            // Others can give that back.
            self.staging.openings.await_node(header.source.node, vni);
        }
        if !has_room && !self.staging.room.may_overflow(limits, flow) {
            return false;
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
