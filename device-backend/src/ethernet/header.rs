//! The header in front of each frame in a queue of virtio-net.

use qnic_abi::ethernet::{Ethernet, Segmentation};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_ECN, VIRTIO_NET_HDR_GSO_NONE,
    VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6,
};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// `virtio_net_hdr_v1`, without its union.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Header {
    flags: u8,
    segmentation: u8,
    /// Of the headers that each part of a segment gets: a hint.
    header_bytes: U16,
    segment_bytes: U16,
    checksum_start: U16,
    checksum_offset: U16,
    /// In a receive queue: chains that the frame takes.
    pub(super) chains: U16,
}

/// Its length in bytes.
pub(super) const HEADER_BYTES: usize = size_of::<Header>();

impl Header {
    /// What a driver has left to the device. The fabric checks what it says.
    pub(super) fn left_to_do(&self) -> Ethernet {
        let mut left = Ethernet::new_zeroed();
        if u32::from(self.flags) & VIRTIO_NET_HDR_F_NEEDS_CSUM != 0 {
            left.needs_checksum = 1;
            left.checksum_start = self.checksum_start;
            left.checksum_offset = self.checksum_offset;
        }
        let segmentation = match u32::from(self.segmentation) & !VIRTIO_NET_HDR_GSO_ECN {
            VIRTIO_NET_HDR_GSO_NONE => return left,
            VIRTIO_NET_HDR_GSO_TCPV4 => Segmentation::Tcp4 as u8,
            VIRTIO_NET_HDR_GSO_TCPV6 => Segmentation::Tcp6 as u8,
            // No kind that was offered.
            _ => u8::MAX,
        };
        left.segmentation = segmentation;
        left.segment_bytes = self.segment_bytes;
        left
    }

    /// What is left to a driver, in so many chains.
    pub(super) fn of(left: &Ethernet, chains: u16) -> Self {
        let mut header = Header::new_zeroed();
        header.chains = chains.into();
        if left.needs_checksum != 0 {
            header.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM as u8;
            header.checksum_start = left.checksum_start;
            header.checksum_offset = left.checksum_offset;
        }
        let segmentation = match Segmentation::try_from(left.segmentation) {
            Ok(Segmentation::Tcp4) => VIRTIO_NET_HDR_GSO_TCPV4,
            Ok(Segmentation::Tcp6) => VIRTIO_NET_HDR_GSO_TCPV6,
            _ => VIRTIO_NET_HDR_GSO_NONE,
        };
        header.segmentation = segmentation as u8;
        header.segment_bytes = left.segment_bytes;
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_crosses_a_header() {
        let mut left = Ethernet::new_zeroed();
        assert_eq!(Header::of(&left, 1).left_to_do(), left);
        left.needs_checksum = 1;
        left.checksum_start = 34.into();
        left.checksum_offset = 16.into();
        assert_eq!(Header::of(&left, 1).left_to_do(), left);
        for segmentation in [Segmentation::Tcp4, Segmentation::Tcp6] {
            left.segmentation = segmentation as u8;
            left.segment_bytes = 1_448.into();
            assert_eq!(Header::of(&left, 9).left_to_do(), left);
        }
        let bytes = Header::of(&left, 9).as_bytes().to_vec();
        assert_eq!(bytes, [1, 4, 0, 0, 0xa8, 5, 34, 0, 16, 0, 9, 0]);
    }
}
