//! Which channel's turn it is on a link: that of priority or of data (U4).
//!
//! ```text
//!   priority ─► p p p p p p … ─┐
//!                              ├─► p … p d p … p d      at most [`RUN`] p in a row
//!   data ─────► d d d d d d … ─┘
//! ```
//! A small frame waits for the frame that is on the line, and for other small ones. After
//! [`RUN`] of them the data channel has a turn, so that retransmissions, which take that channel, do
//! not wait without end.

use qnic_nic::env::Channel;

/// Most frames of the priority channel in a row while one of the data channel waits: together
/// they are not longer than three of the others.
pub(crate) const RUN: u32 = 16;

/// How many frames of the priority channel had their turn since the last of the data channel.
#[derive(Debug, Default)]
pub(crate) struct Turns(u32);

impl Turns {
    /// The channel to look at first; the other one if nothing waits there.
    #[inline]
    pub(crate) fn first(&self) -> Channel {
        match self.0 < RUN {
            true => Channel::Priority,
            false => Channel::Data,
        }
    }

    /// A frame of this channel has had its turn.
    #[inline]
    pub(crate) fn taken(&mut self, channel: Channel) {
        self.0 = match channel {
            Channel::Priority => (self.0 + 1).min(RUN),
            Channel::Data => 0,
        };
    }
}
