//! One message at its source ([`super::sends`]).

use qnic_abi::PAGE_SIZE;

use super::command::{Name, Send};
use super::context::Pages;
use crate::core::{PageKey, INLINE_WORDS};

/// Where a message of this node stands; with the number of the frame that has told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Unsent,
    Eager(u64),
    Requested(u64),
    Permitted,
    Failed,
}

/// A message that is sent.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) command: Send,
    pub(super) destination: Name,
    pub(super) page_key: PageKey,
    /// Those of its context, if it has one.
    pub(super) pages: Option<Box<Pages>>,
    pub(super) state: State,
    /// From the permit.
    pub(super) receive: u64,
    pub(super) page_offset: u64,
    pub(super) allowed: u64,
    /// Bytes sent with permission.
    pub(super) sent: u64,
    /// Most bytes of a frame with permission, as the request has told (Q11).
    pub(super) packet_length: u32,
    /// Fragments that are not delivered.
    pub(super) in_flight: u32,
    /// Most of them.
    pub(super) limit: u32,
    /// The number of a frame of its destination: its permit, or one that had arrived when it was issued.
    pub(super) newest: u64,
    pub(super) inline: [u64; INLINE_WORDS],
}

impl Sending {
    /// A message of which nothing is sent.
    pub(super) fn new(
        command: Send,
        destination: Name,
        (page_key, pages): (PageKey, Option<Box<Pages>>),
        inline: [u64; INLINE_WORDS],
    ) -> Self {
        Sending {
            command,
            destination,
            page_key,
            pages,
            state: State::Unsent,
            receive: 0,
            page_offset: 0,
            allowed: command.length,
            sent: 0,
            packet_length: PAGE_SIZE as u32,
            in_flight: 0,
            limit: 1,
            newest: 0,
            inline,
        }
    }

    /// Where a byte of the message is, and how many follow it there in one piece; none: it stands
    /// in the command.
    pub(super) fn at(&self, offset: u64) -> Option<(u64, u64)> {
        let local = &self.command.local;
        match &self.pages {
            Some(pages) => Some(pages.at(offset)),
            None => (!self.command.inline)
                .then(|| (local.address + offset, local.length.saturating_sub(offset))),
        }
    }
}
