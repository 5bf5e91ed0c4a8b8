//! A frame as bytes: what crosses any wire but a function call.
//!
//! ```text
//!   0        96                    96 + n     100 + n
//!   | header | payload (n bytes)   | CRC-32   |
//! ```
//!
//! `n` is the header's `payload_length`; the checksum is the CRC-32 of Ethernet over
//! header and payload, little-endian. [`decode`] takes any bytes: what it returns is
//! a whole frame that was not damaged by chance. Who may have *meant* to damage it
//! must be kept out by other means ([`crate::udp`] authenticates).

use qnic_abi::wire::{FrameHeader, HEADER_BYTES, MAX_PAYLOAD};
use qnic_nic::env::{HostMemory, Payload};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes behind the payload.
pub const CHECKSUM_BYTES: usize = 4;

/// Length of the longest image.
pub const MAX_IMAGE: usize = HEADER_BYTES + MAX_PAYLOAD + CHECKSUM_BYTES;

/// Why bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Shorter or longer than header and payload, as the header says.
    #[error("the length is not that of a frame")]
    Length,
    /// The checksum is another one.
    #[error("the checksum is wrong")]
    Checksum,
}

/// Appends header and payload to `image`, without a checksum. `None`, and `image` as
/// it was, if the payload is longer than a frame can carry or cannot be read.
pub fn put_frame<M: HostMemory>(
    image: &mut Vec<u8>,
    frame: &FrameHeader,
    payload: &Payload<'_, M>,
) -> Option<()> {
    let length = payload.len();
    if length > MAX_PAYLOAD || length != usize::from(frame.payload_length.get()) {
        return None;
    }
    let start = image.len();
    image.extend_from_slice(frame.as_bytes());
    match *payload {
        Payload::None => {}
        Payload::Bytes(bytes) => image.extend_from_slice(bytes),
        Payload::Memory { .. } => {
            let place = image.len();
            image.resize(place + length, 0);
            if payload.read(&mut image[place..]).is_err() {
                image.truncate(start);
                return None;
            }
        }
    }
    Some(())
}

/// The image of a frame; `None` if its payload is longer than a frame can carry or
/// cannot be read.
pub fn encode<M: HostMemory>(frame: &FrameHeader, payload: &Payload<'_, M>) -> Option<Vec<u8>> {
    let mut image = Vec::with_capacity(HEADER_BYTES + payload.len() + CHECKSUM_BYTES);
    put_frame(&mut image, frame, payload)?;
    let checksum = crc32fast::hash(&image);
    image.extend_from_slice(&checksum.to_le_bytes());
    Some(image)
}

/// Header and payload of bytes without a checksum.
///
/// # Errors
/// [`Damage::Length`].
pub fn split_frame(bytes: &[u8]) -> Result<(FrameHeader, &[u8]), Damage> {
    let (header, payload) = FrameHeader::read_from_prefix(bytes).map_err(|_| Damage::Length)?;
    let good = usize::from(header.payload_length.get()) == payload.len();
    let good = good && payload.len() <= MAX_PAYLOAD;
    good.then_some((header, payload)).ok_or(Damage::Length)
}

/// Header and payload of an image.
///
/// # Errors
/// [`Damage`].
pub fn decode(image: &[u8]) -> Result<(FrameHeader, &[u8]), Damage> {
    let (bytes, checksum) = image
        .split_last_chunk::<CHECKSUM_BYTES>()
        .ok_or(Damage::Length)?;
    if crc32fast::hash(bytes) != u32::from_le_bytes(*checksum) {
        return Err(Damage::Checksum);
    }
    split_frame(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qnic_nic::testing::Memory;
    use zerocopy::FromZeros;

    fn frame(header: &[u8], payload: &[u8]) -> FrameHeader {
        let mut frame = FrameHeader::new_zeroed();
        frame.as_mut_bytes().copy_from_slice(header);
        frame.payload_length = (payload.len() as u16).into();
        frame
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(
            header in prop::collection::vec(any::<u8>(), HEADER_BYTES),
            payload in prop::collection::vec(any::<u8>(), 0..=MAX_PAYLOAD),
        ) {
            let frame = frame(&header, &payload);
            let image = encode::<Memory>(&frame, &Payload::Bytes(&payload)).unwrap();
            prop_assert!(image.len() <= MAX_IMAGE);
            prop_assert_eq!(decode(&image), Ok((frame, &payload[..])));
        }

        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..2 * MAX_IMAGE)) {
            prop_assert!(decode(&bytes).is_err());
            let _ = split_frame(&bytes);
        }

        /// A burst of up to 32 bits is caught for certain.
        #[test]
        fn damage_is_found(
            payload in prop::collection::vec(any::<u8>(), 0..200), place: usize, mask in 1u32..,
        ) {
            let frame = frame(&[0; HEADER_BYTES], &payload);
            let mut image = encode::<Memory>(&frame, &Payload::Bytes(&payload)).unwrap();
            let place = place % (image.len() - 3);
            for (byte, flip) in image[place..].iter_mut().zip(mask.to_le_bytes()) {
                *byte ^= flip;
            }
            prop_assert_eq!(decode(&image), Err(Damage::Checksum));
        }

        #[test]
        fn shortened_images_are_found(length in 0usize..200, cut in 1usize..300) {
            let payload = vec![7; length];
            let frame = frame(&[0; HEADER_BYTES], &payload);
            let image = encode::<Memory>(&frame, &Payload::Bytes(&payload)).unwrap();
            let cut = cut.min(image.len());
            prop_assert!(decode(&image[..image.len() - cut]).is_err());
        }
    }

    #[test]
    fn payload_comes_from_memory_or_not_at_all() {
        let memory = Memory::new(4096);
        memory.write(100, b"from memory").unwrap();
        let payload = |offset, length| Payload::Memory {
            memory: &memory,
            pages: &[0],
            offset,
            length,
        };
        let header = frame(&[0; HEADER_BYTES], b"from memory");
        let image = encode(&header, &payload(100, 11)).unwrap();
        assert_eq!(decode(&image), Ok((header, &b"from memory"[..])));
        assert_eq!(encode(&header, &payload(4090, 11)), None);
        assert_eq!(encode(&header, &payload(100, 12)), None);
        assert_eq!(
            encode::<Memory>(&header, &Payload::Bytes(&[0; MAX_PAYLOAD + 1])),
            None
        );
    }
}
