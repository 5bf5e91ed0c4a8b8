//! Ethernet between the ports of nodes (X17): the stock network devices of guests, on the links of
//! their nodes. docs/ethernet.md has it as a whole.
//!
//! ```text
//!   guest ─ virtio-net ─► port ──► [`Fabric::send_ethernet`]             port ─ virtio-net ─► guest
//!                                    │ [switch]: whose address is it?      ▲
//!                                    │ [offload]: divided, if it leaves    │ [offload], if the guest
//!                                    ▼            what is lossless         │            does not
//!                                  links, engines, processes ────────► [inbox]
//! ```
//!
//! # Invariants
//! - The switch knows the address of each port from the configuration and learns none. A frame that a
//!   port sends from the address of another one is dropped, and so is one for an address that no port
//!   has.
//! - A broadcast or multicast is sent to each other port by itself, along the route to that port. So it
//!   reaches exactly the ports that a unicast reaches, and a node that is cut off hides no other.
//! - Programs of the host have addresses of their own, which no port has. They reach the ports of
//!   this process beside the links, and are reached by them only.
//! - Nothing waits for a port: what does not fit into its inbox is dropped and counted.
//! - Headers are checked before they are used: a guest can write anything into a frame, and into
//!   what it says of it.
//!
//! [`Fabric::send_ethernet`]: crate::Fabric::send_ethernet

mod dhcp;
mod host;
mod inbox;
mod offload;
mod switch;

use qnic_abi::ethernet::{Ethernet, Segmentation, ETHERNET_HEADER, MAX_ETHERNET};
use qnic_abi::wire::Frame;
use qnic_abi::NodeId;
use qnic_config::MacAddress;

#[cfg(test)]
pub(crate) use dhcp::tests::discover as dhcp_request;
pub use dhcp::Lease;
pub use host::{HostPort, Hosts};
pub use inbox::Inbox;
pub use offload::{OffloadError, Offloads};
pub(crate) use switch::{Destinations, Port};
pub use switch::{PortCounters, Switch};

/// Most parts that a frame is divided into: what one frame costs those that it passes is bounded. A
/// segment of 64 KiB has so many parts of 256 bytes.
pub const MAX_PARTS: usize = 256;

/// A frame that is no Ethernet frame, or says something of itself that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an Ethernet frame")]
pub struct Malformed;

/// Parts that a frame of so many bytes is divided into, at most.
pub fn parts(left: &Ethernet, length: usize) -> usize {
    match left.segment_bytes.get() {
        0 => 1,
        bytes => length.div_ceil(bytes.into()),
    }
}

/// An Ethernet frame without its check sequence, and what is left to do with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EthernetFrame {
    left: Ethernet,
    bytes: Vec<u8>,
}

impl EthernetFrame {
    /// A frame of a guest.
    ///
    /// # Errors
    /// Returns [`Malformed`] if it has no header, is longer than [`MAX_ETHERNET`], has more than
    /// [`MAX_PARTS`] parts, or goes to a group and is to be divided; or if `left` names places outside
    /// of it.
    pub fn new(left: Ethernet, bytes: Vec<u8>) -> Result<Self, Malformed> {
        let checksum =
            usize::from(left.checksum_start.get()) + usize::from(left.checksum_offset.get());
        let is_inside = left.needs_checksum == 0
            || (usize::from(left.checksum_start.get()) >= ETHERNET_HEADER
                && checksum + 2 <= bytes.len());
        let is_long_enough = (ETHERNET_HEADER..=MAX_ETHERNET).contains(&bytes.len());
        // No TCP goes to a group.
        let divides = left.segment_bytes.get() != 0;
        let is_bounded = parts(&left, bytes.len()) <= MAX_PARTS
            && !(divides && bytes.first().is_some_and(|byte| byte & 1 == 1));
        let is_valid = qnic_abi::wire::Body::is_valid(&left);
        match is_long_enough && is_inside && is_bounded && is_valid {
            true => Ok(EthernetFrame { left, bytes }),
            false => Err(Malformed),
        }
    }

    /// What is left to do.
    pub fn left(&self) -> &Ethernet {
        &self.left
    }

    /// The frame.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn address(&self, from: usize) -> MacAddress {
        let mut address = [0; 6];
        address.copy_from_slice(&self.bytes[from..from + 6]);
        MacAddress(address)
    }

    pub(crate) fn destination(&self) -> MacAddress {
        self.address(0)
    }

    fn source(&self) -> MacAddress {
        self.address(6)
    }

    fn segmentation(&self) -> Segmentation {
        Segmentation::try_from(self.left.segmentation).unwrap_or(Segmentation::None)
    }

    /// The frame of the wire that carries it.
    pub(crate) fn wire_frame(&self, from: NodeId, to: NodeId) -> Frame {
        let mut frame = Frame::new(&self.left);
        let envelope = &mut frame.envelope;
        envelope.source_node = from.0.into();
        envelope.destination_node = to.0.into();
        envelope.payload_length = (self.bytes.len() as u16).into();
        frame
    }

    /// What a frame of the wire carries.
    pub(crate) fn from_wire(frame: &Frame, bytes: Vec<u8>) -> Result<Self, Malformed> {
        match frame.is::<Ethernet>() {
            true => EthernetFrame::new(frame.body(), bytes),
            false => Err(Malformed),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use zerocopy::FromZeros;

    use super::*;

    pub(crate) fn mac(last: u8) -> MacAddress {
        MacAddress([2, 0, 0, 0, 0, last])
    }

    /// A frame of which nothing is left to do, from the port with the address `from`.
    pub(crate) fn plain(from: u8, to: u8, data: &[u8]) -> EthernetFrame {
        let mut bytes = [mac(to).0, mac(from).0].concat();
        bytes.extend([0x88, 0xb5]);
        bytes.extend(data);
        EthernetFrame::new(Ethernet::new_zeroed(), bytes).unwrap()
    }

    #[test]
    fn what_cannot_be_a_frame_is_refused() {
        let nothing = Ethernet::new_zeroed();
        assert_eq!(EthernetFrame::new(nothing, vec![0; 13]), Err(Malformed));
        assert!(EthernetFrame::new(nothing, vec![0; MAX_ETHERNET]).is_ok());
        assert_eq!(
            EthernetFrame::new(nothing, vec![0; MAX_ETHERNET + 1]),
            Err(Malformed)
        );
        let missing = |start: u16, offset: u16| {
            let mut left = nothing;
            left.needs_checksum = 1;
            left.checksum_start = start.into();
            left.checksum_offset = offset.into();
            EthernetFrame::new(left, vec![0; 60]).is_ok()
        };
        let divided = |bytes: u16, first: u8| {
            let mut left = nothing;
            left.needs_checksum = 1;
            left.checksum_start = 14.into();
            left.segmentation = Segmentation::Tcp4 as u8;
            left.segment_bytes = bytes.into();
            let mut frame = vec![0; 60_000];
            frame[0] = first;
            EthernetFrame::new(left, frame).is_ok()
        };
        assert!(divided(235, 0));
        assert!(!divided(234, 0), "257 parts");
        assert!(!divided(1_000, 1), "to a group");
        assert!(missing(14, 44), "the last two bytes");
        assert!(!missing(14, 45));
        assert!(!missing(13, 10), "in the header");
        assert!(!missing(u16::MAX, u16::MAX));
    }

    #[test]
    fn a_frame_crosses_a_wire_as_it_is() {
        let mut left = Ethernet::new_zeroed();
        left.needs_checksum = 1;
        left.checksum_start = 20.into();
        left.segmentation = Segmentation::Tcp6 as u8;
        left.segment_bytes = 1_000.into();
        let frame = EthernetFrame::new(left, vec![6; 100]).unwrap();
        let wire = frame.wire_frame(NodeId(3), NodeId(4));
        assert_eq!(
            EthernetFrame::from_wire(&wire, frame.bytes.clone()),
            Ok(frame.clone())
        );
        assert_eq!(
            EthernetFrame::from_wire(&Frame::new_zeroed(), frame.bytes),
            Err(Malformed)
        );
    }
}
