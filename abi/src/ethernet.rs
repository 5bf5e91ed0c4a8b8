//! Ethernet frames between the ports of nodes (X17; docs/ethernet.md): the one frame of the wire
//! that carries them.
//!
//! No NIC sends or receives it. The device process takes Ethernet frames from the stock network
//! device of a guest and gives them to another; between these, they take the links of the two
//! nodes. So they are lost, delayed and captured like any frame, and are there as soon as the guest
//! is, whatever its NIC does: they belong to no session.
//!
//! | kind | class | sent by | body | payload |
//! |---|---|---|---|---|
//! | [`kind::ETHERNET`] | Unreliable | port of a node | [`Ethernet`] | an Ethernet frame without its check sequence |
//!
//! All of the envelope that is not magic, version, kind, lengths and nodes is zero.
//!
//! # What is left to do
//! A guest may leave work to its network device: a checksum, and the division of a long TCP segment.
//! While a frame stays in this process and no link of its route is impaired, nothing of that is
//! done, and the body says what is left. It is done before the frame takes an impaired link or leaves
//! the process, where a frame has [`MAX_PAYLOAD`] bytes at most; and before it reaches a guest that
//! has not offered to do it.

use zerocopy::little_endian::U16;

use crate::wire::Body;
#[cfg(doc)]
use crate::wire::MAX_PAYLOAD;

/// Most bytes of an Ethernet frame that waits to be divided.
pub const MAX_ETHERNET: usize = u16::MAX as usize;

/// Bytes in front of what an Ethernet frame carries: two addresses and a type.
pub const ETHERNET_HEADER: usize = 14;

/// Kinds of frames between ports.
pub mod kind {
    /// [`super::Ethernet`].
    pub const ETHERNET: u8 = 0xc1;
}

numbered! {
    /// How a frame is to be divided.
    pub enum Segmentation: u8 {
        /// Not at all.
        None = 0,
        /// TCP over IPv4.
        Tcp4 = 1,
        /// TCP over IPv6.
        Tcp6 = 4,
    }
}

layouts! {
    /// Body of [`kind::ETHERNET`]: what is left to do with the frame, in the terms of virtio-net's
    /// header.
    ///
    /// ```text
    ///      0        2        4        6        8
    ///   0  |flg|seg | size   | start  | offset |
    ///   8  | reserved                          |
    /// ```
    #[bytes(16)]
    pub struct Ethernet {
        /// 1: a checksum is missing. 0: all are there.
        pub needs_checksum: u8,
        /// [`Segmentation`].
        pub segmentation: u8,
        /// Bytes of TCP data in each frame that it is divided into; zero if it is not.
        pub segment_bytes: U16,
        /// Where in the frame the bytes begin that a missing checksum covers.
        pub checksum_start: U16,
        /// Where behind that it belongs. The sum of the pseudo header is there already.
        pub checksum_offset: U16,
        /// Zero.
        pub reserved: [u8; 8],
    }
}

impl Body for Ethernet {
    const KIND: u8 = kind::ETHERNET;

    fn is_valid(&self) -> bool {
        let divided = match Segmentation::try_from(self.segmentation) {
            Ok(Segmentation::None) => false,
            Ok(Segmentation::Tcp4 | Segmentation::Tcp6) => true,
            Err(_) => return false,
        };
        let places = (self.checksum_start.get(), self.checksum_offset.get());
        self.reserved == [0; 8]
            && (self.segment_bytes.get() != 0) == divided
            && match self.needs_checksum {
                0 => !divided && places == (0, 0),
                1 => true,
                _ => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;

    #[test]
    fn what_is_left_has_one_form() {
        let mut left = Ethernet {
            needs_checksum: 1,
            segmentation: Segmentation::Tcp4 as u8,
            segment_bytes: 1_448.into(),
            checksum_start: 34.into(),
            checksum_offset: 16.into(),
            ..Ethernet::new_zeroed()
        };
        let golden = [1, 1, 0xa8, 5, 34, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(left.as_bytes(), golden);
        assert!(left.is_valid());
        left.segmentation = Segmentation::None as u8;
        assert!(!left.is_valid(), "parts of a length, and none");
        left.segmentation = 2;
        assert!(!left.is_valid(), "no kind of division");
        left = Ethernet::new_zeroed();
        assert!(left.is_valid());
        left.checksum_start = 1.into();
        assert!(!left.is_valid(), "a place of no checksum");
    }
}
