//! Frames as bytes. This is the only module of the crate that knows the layout of a
//! frame; everything else uses [`Packet`].
//!
//! ```text
//!   | envelope | body | payload | CRC-32 |     an image: what crosses an emulated link
//!   | envelope | body | payload |              what a carrier moves and a capture shows
//! ```
//!
//! The envelope says how long body and payload are. The checksum is the CRC-32 of
//! Ethernet over all that, little-endian. [`Packet::parse`] and [`Packet::decode`] accept
//! any bytes. A checksum detects damage by chance, not by intent: [`crate::udp`]
//! authenticates its datagrams.

use std::borrow::Cow;

use qnic_abi::wire::{Frame, HEADER_BYTES, MAX_PAYLOAD};
use qnic_abi::NodeId;
use qnic_nic::env::{HostMemory, Payload};

/// Length of the checksum in bytes.
const CHECKSUM_BYTES: usize = 4;

/// Length of the longest frame, with its payload, that leaves a process.
pub const MAX_FRAME: usize = HEADER_BYTES + MAX_PAYLOAD;

/// Why bytes are not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Shorter or longer than the header says.
    #[error("the length is not that of a frame")]
    Length,
    /// The checksum does not match.
    #[error("the checksum is wrong")]
    Checksum,
}

/// A frame, and its payload where that lies.
#[derive(Debug)]
pub struct Packet<'a, M> {
    frame: Cow<'a, Frame>,
    payload: Payload<'a, M>,
}

impl<'a, M: HostMemory> Packet<'a, M> {
    /// A frame that a NIC sends.
    pub fn new(frame: &'a Frame, payload: Payload<'a, M>) -> Self {
        let frame = Cow::Borrowed(frame);
        Packet { frame, payload }
    }

    /// The frame that `bytes` hold, without a checksum.
    ///
    /// # Errors
    /// Returns [`Damage::Length`] if the envelope does not match the length of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Damage> {
        let (frame, payload) = split(bytes)?;
        let payload = match payload {
            [] => Payload::None,
            bytes => Payload::Bytes(bytes),
        };
        let frame = Cow::Owned(frame);
        Ok(Packet { frame, payload })
    }

    /// The frame of an image.
    ///
    /// # Errors
    /// Returns [`Damage`] if the image is not an intact frame.
    pub fn decode(image: &'a [u8]) -> Result<Self, Damage> {
        Packet::parse(strip_checksum(image)?)
    }

    /// The frame without its payload.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The payload.
    pub fn payload(&self) -> Payload<'a, M> {
        self.payload
    }

    /// Node that sends it.
    pub fn source(&self) -> NodeId {
        NodeId(self.frame.envelope.source_node.get())
    }

    /// Node that it is for.
    pub fn destination(&self) -> NodeId {
        NodeId(self.frame.envelope.destination_node.get())
    }

    /// Length of frame and payload in bytes.
    pub fn length(&self) -> usize {
        self.frame.header().len() + self.payload.len()
    }

    /// Appends frame and payload to `buffer`. Returns `false`, and leaves `buffer` as it
    /// was, if the payload is longer than a frame can carry or cannot be read.
    pub fn append_to(&self, buffer: &mut Vec<u8>) -> bool {
        let (start, length) = (buffer.len(), self.payload.len());
        if length > MAX_PAYLOAD || length != usize::from(self.frame.envelope.payload_length.get()) {
            return false;
        }
        let header = self.frame.header();
        buffer.extend_from_slice(header);
        if let Payload::Bytes(bytes) = self.payload {
            buffer.extend_from_slice(bytes);
            return true;
        }
        buffer.resize(start + self.length(), 0);
        let read = self.payload.read(&mut buffer[start + header.len()..]);
        if read.is_err() {
            buffer.truncate(start);
        }
        read.is_ok()
    }

    /// Frame, payload and checksum; `None` where [`Packet::append_to`] returns `false`.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut image = Vec::with_capacity(self.length() + CHECKSUM_BYTES);
        self.append_to(&mut image).then(|| {
            let checksum = crc32fast::hash(&image);
            image.extend_from_slice(&checksum.to_le_bytes());
            image
        })
    }

    /// Frame and payload for a capture, however long; the frame alone if the payload
    /// cannot be read.
    #[cold]
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        let header = self.frame.header();
        let mut bytes = header.to_vec();
        bytes.resize(self.length(), 0);
        if self.payload.read(&mut bytes[header.len()..]).is_err() {
            bytes.truncate(header.len());
        }
        bytes
    }
}

/// Frame and payload, without a checksum.
fn split(bytes: &[u8]) -> Result<(Frame, &[u8]), Damage> {
    let (frame, payload) = Frame::from_wire(bytes).ok_or(Damage::Length)?;
    match payload.len() <= MAX_PAYLOAD {
        true => Ok((frame, payload)),
        false => Err(Damage::Length),
    }
}

/// Frame and payload of an image, as one slice, if it is an intact frame.
pub(crate) fn strip_checksum(image: &[u8]) -> Result<&[u8], Damage> {
    let (bytes, checksum) = image.split_last_chunk().ok_or(Damage::Length)?;
    if crc32fast::hash(bytes) != u32::from_le_bytes(*checksum) {
        return Err(Damage::Checksum);
    }
    split(bytes).map(|_| bytes)
}

/// Frame and payload of an image that may be damaged.
pub(crate) fn without_checksum(image: &[u8]) -> &[u8] {
    &image[..image.len().saturating_sub(CHECKSUM_BYTES)]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use qnic_abi::wire::BODY_BYTES;
    use qnic_nic::testing::Memory;
    use zerocopy::{FromBytes, FromZeros};

    /// A frame that any NIC refuses and counts.
    pub(crate) fn header(source: u16, destination: u16, payload: usize) -> Frame {
        let mut frame = Frame::new_zeroed();
        let envelope = &mut frame.envelope;
        envelope.kind = 255;
        envelope.source_node = source.into();
        envelope.destination_node = destination.into();
        envelope.payload_length = (payload as u16).into();
        frame
    }

    fn encode(frame: &Frame, payload: &[u8]) -> Option<Vec<u8>> {
        Packet::<Memory>::new(frame, Payload::Bytes(payload)).encode()
    }

    /// An image of a frame from `source` to `destination`.
    pub(crate) fn image(source: u16, destination: u16) -> Vec<u8> {
        encode(&header(source, destination, 0), &[]).unwrap()
    }

    fn decode(image: &[u8]) -> Result<(Frame, &[u8]), Damage> {
        split(strip_checksum(image)?)
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(
            bytes in prop::collection::vec(any::<u8>(), HEADER_BYTES),
            payload in prop::collection::vec(any::<u8>(), 0..=MAX_PAYLOAD),
        ) {
            let mut header = Frame::read_from_bytes(&bytes).unwrap();
            header.envelope.payload_length = (payload.len() as u16).into();
            header.envelope.body_length %= BODY_BYTES as u8 + 1;
            header.body[usize::from(header.envelope.body_length)..].fill(0);
            let image = encode(&header, &payload).unwrap();
            prop_assert!(image.len() <= MAX_FRAME + CHECKSUM_BYTES);
            prop_assert_eq!(decode(&image), Ok((header, &payload[..])));
            let frame = Packet::<Memory>::decode(&image).unwrap();
            prop_assert_eq!(frame.length(), image.len() - CHECKSUM_BYTES);
            prop_assert_eq!(frame.snapshot(), without_checksum(&image));
        }

        #[test]
        fn any_bytes_are_accepted(bytes in prop::collection::vec(any::<u8>(), 0..2 * MAX_FRAME)) {
            prop_assert!(decode(&bytes).is_err());
            let _ = Packet::<Memory>::parse(&bytes);
        }

        /// A CRC-32 detects every error burst of up to 32 bits.
        #[test]
        fn damage_is_detected(
            payload in prop::collection::vec(any::<u8>(), 0..200), offset: usize, mask in 1u32..,
        ) {
            let mut image = encode(&header(0, 0, payload.len()), &payload).unwrap();
            let offset = offset % (image.len() - 3);
            for (byte, flip) in image[offset..].iter_mut().zip(mask.to_le_bytes()) {
                *byte ^= flip;
            }
            prop_assert_eq!(decode(&image), Err(Damage::Checksum));
        }

        #[test]
        fn truncation_is_detected(length in 0usize..200, cut in 1usize..300) {
            let image = encode(&header(0, 0, length), &vec![7; length]).unwrap();
            let cut = cut.min(image.len());
            prop_assert!(decode(&image[..image.len() - cut]).is_err());
        }
    }

    #[test]
    fn an_unreadable_payload_leaves_nothing() {
        let memory = Memory::new(4096);
        memory.write(100, b"from memory").unwrap();
        let header = header(0, 0, 11);
        let encode_from = |offset, length| {
            let (memory, pages) = (&memory, &[0][..]);
            let payload = Payload::Memory {
                memory,
                pages,
                offset,
                length,
            };
            Packet::new(&header, payload).encode()
        };
        let image = encode_from(100, 11).unwrap();
        assert_eq!(decode(&image), Ok((header, &b"from memory"[..])));
        assert_eq!(encode_from(4090, 11), None);
        assert_eq!(encode_from(100, 12), None);
        assert_eq!(encode(&header, &[0; MAX_PAYLOAD + 1]), None);
    }
}
