//! Short messages, which a Send stores in the NIC's memory (Q4, Q8).

use qnic_abi::context::{region_bytes, ContextFlags, REGION_BYTES};

use super::pattern::Fields;
use super::{context, Destination, Request};
use crate::core::contexts::{Contents, Direction};
use crate::core::Core;
use crate::error::{Error, MessageOperation, Result};

/// Longest message of [`Endpoint::send_short`](crate::Endpoint::send_short), in bytes; of a NIC
/// with smaller regions 16 for each of its [`context_pages`](crate::message::Pool::counts).
pub const SHORT_MAX: usize = REGION_BYTES;

/// A Send of a short message, which has not begun
/// ([`Endpoint::send_short`](crate::Endpoint::send_short)). It needs a context, and does not wait
/// for one.
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is sent before `post` or `forget`"]
pub struct SendShort<'e, 's> {
    pub(super) core: &'e Core,
    pub(super) to: &'s Destination,
    pub(super) bytes: &'s [u8],
}

impl<'e> SendShort<'e, '_> {
    /// Begins to send. The source is reusable at once.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]: the bytes are too many. [`Error::NoContext`],
    /// [`Error::DeviceGone`], [`Error::QueueFailed`]
    pub fn post(self) -> Result<Request<'e>> {
        let contents = self.contents(ContextFlags::NOTIFY)?;
        let length = self.bytes.len() as u64;
        let what = Fields::from(self.to).what(MessageOperation::Send, length);
        context::begin(self.core, Direction::Send, &contents, what)
    }

    /// Begins to send, and tells nothing of its end (Q8): a failure is counted
    /// ([`Statistics::failed_sends`](crate::Statistics::failed_sends)).
    ///
    /// # Errors
    /// Those of [`SendShort::post`]
    pub fn forget(self) -> Result<()> {
        let contents = self.contents(ContextFlags::empty())?;
        self.core.post_unnoticed(&contents)
    }

    fn contents(self, flags: ContextFlags) -> Result<Contents> {
        let length = self.bytes.len() as u64;
        Error::check_range(
            "region of a context",
            region_bytes(self.core.counts) as u64,
            0,
            length,
        )?;
        let context = Fields::from(self.to).context(ContextFlags::REGION | flags, length);
        Ok(Contents::with_bytes(context, self.bytes))
    }
}
