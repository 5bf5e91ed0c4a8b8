//! Frames of pools as the protocol sees them.

use crate::stream_protocol::{ReceivedFrame, SendFrame};
use qnic_abi::stream::HEADER_BYTES;

use crate::pool::{InputFrame, OutputFrame};

/// An output frame: a header, and bytes behind it.
#[derive(Debug)]
pub(super) struct Sending(pub(super) OutputFrame);

impl SendFrame for Sending {
    fn put(&mut self, offset: usize, bytes: &[u8]) {
        // The protocol writes only frames that were not sent, and within them.
        let written = self.0.write(HEADER_BYTES + offset, bytes);
        debug_assert!(written.is_ok(), "{written:?}");
    }

    fn is_in_use(&self) -> bool {
        self.0.is_in_use()
    }
}

/// An input frame.
#[derive(Debug)]
pub(super) struct Received(pub(super) InputFrame);

impl ReceivedFrame for Received {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        // The protocol reads within the length.
        let read = self.0.read(offset, bytes);
        debug_assert!(read.is_ok(), "{read:?}");
    }
}
