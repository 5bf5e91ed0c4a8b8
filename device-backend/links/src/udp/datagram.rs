//! The layout of a datagram, and its authentication.
//!
//! ```text
//!      0      2    3    4                 8
//!   0  | "qu" |ver |kind| reserved        |
//!   8  | source process                   |  first 8 bytes of the hash of its name
//!  16  | destination process              |
//!  24  | source session                   |
//!  32  | destination session, 0: unknown  |
//!  40  | counter                          |
//!  48  | body                             |
//!   …  | tag, 32 bytes                    |  BLAKE3, keyed, of all before
//! ```
//!
//! The tag shows that a process with the cluster's key made the datagram. The sessions
//! and the counter show that it was made for the present session of the receiver and has
//! not arrived before ([`super::peer`]). Contents are not encrypted.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Bytes before the body.
pub(super) const HEADER_BYTES: usize = 48;
/// Bytes after the body.
pub(super) const TAG_BYTES: usize = 32;
/// Bytes that are not body.
pub(super) const OVERHEAD: usize = HEADER_BYTES + TAG_BYTES;

const MAGIC: [u8; 2] = *b"qu";
const VERSION: u8 = 1;

/// What a datagram is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(u8)]
pub(super) enum Kind {
    /// Announces the sender's session and asks for the receiver's. Body: the receiver's
    /// session, as far as known.
    Hello = 1,
    /// Response with the sender's session. Body: the requester's session, as far as known.
    HelloResponse = 2,
    /// A whole frame.
    Frame = 3,
    /// A fragment of a frame: [`super::fragment`].
    Fragment = 4,
    /// Tests whether a datagram of this size arrives. Body: zeros.
    Probe = 5,
    /// Response to a probe that has arrived. Body: its size, 8 bytes.
    ProbeResponse = 6,
}

/// Name of a process in datagrams.
pub(super) fn process_number(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    let first = hash.as_bytes().first_chunk().copied();
    u64::from_le_bytes(first.unwrap_or_default())
}

/// The cluster's key.
#[derive(Clone)]
pub struct ClusterKey([u8; 32]);

/// A key is too short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the key has {0} bytes, at least 32 are needed: head -c 32 /dev/urandom > FILE")]
pub struct ShortKey(usize);

impl ClusterKey {
    /// The key that is made from `secret`, at least 32 random bytes.
    ///
    /// # Errors
    /// Returns [`ShortKey`] if it is shorter.
    pub fn new(secret: &[u8]) -> Result<Self, ShortKey> {
        match secret.len() {
            0..32 => Err(ShortKey(secret.len())),
            _ => Ok(ClusterKey(blake3::derive_key("qnic udp link 1", secret))),
        }
    }
}

impl std::fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterKey(…)")
    }
}

/// The header of a datagram.
#[derive(Debug, Clone, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Header {
    magic: [u8; 2],
    version: u8,
    pub(super) kind: Kind,
    reserved: U32,
    pub(super) source: U64,
    pub(super) destination: U64,
    pub(super) source_session: U64,
    pub(super) destination_session: U64,
    pub(super) counter: U64,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

impl Header {
    /// A header from process `source` to process `destination`; `sessions` are theirs.
    pub(super) fn new(
        kind: Kind,
        [source, destination]: [u64; 2],
        sessions: [u64; 2],
        counter: u64,
    ) -> Self {
        Header {
            magic: MAGIC,
            version: VERSION,
            kind,
            reserved: 0.into(),
            source: source.into(),
            destination: destination.into(),
            source_session: sessions[0].into(),
            destination_session: sessions[1].into(),
            counter: counter.into(),
        }
    }

    /// Appends a datagram with the body that `fill` appends; nothing if `fill` returns
    /// false.
    pub(super) fn seal(
        &self,
        key: &ClusterKey,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> bool {
        let start = out.len();
        out.extend_from_slice(self.as_bytes());
        if !fill(out) {
            out.truncate(start);
            return false;
        }
        let tag = blake3::keyed_hash(&key.0, &out[start..]);
        out.extend_from_slice(tag.as_bytes());
        true
    }

    /// Header and body of a datagram, if it was made with `key`.
    pub(super) fn open<'a>(key: &ClusterKey, datagram: &'a [u8]) -> Option<(&'a Self, &'a [u8])> {
        let (signed, tag) = datagram.split_last_chunk::<TAG_BYTES>()?;
        let (header, body) = Header::try_ref_from_prefix(signed).ok()?;
        let known = header.magic == MAGIC && header.version == VERSION && header.reserved == 0;
        // `Hash` compares in constant time.
        (known && blake3::keyed_hash(&key.0, signed) == *tag).then_some((header, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::new(&[byte; 32]).unwrap()
    }

    fn header() -> Header {
        Header::new(Kind::Frame, [1, 2], [3, 4], 5)
    }

    fn seal(key: &ClusterKey, body: &[u8]) -> Vec<u8> {
        let mut out = vec![9];
        assert!(header().seal(key, &mut out, |out| {
            out.extend_from_slice(body);
            true
        }));
        out.split_off(1)
    }

    proptest! {
        #[test]
        fn only_the_right_key_opens(body in prop::collection::vec(any::<u8>(), 0..300)) {
            let datagram = seal(&key(1), &body);
            prop_assert_eq!(datagram.len(), body.len() + OVERHEAD);
            prop_assert_eq!(Header::open(&key(1), &datagram), Some((&header(), &body[..])));
            prop_assert_eq!(Header::open(&key(2), &datagram), None);
        }

        #[test]
        fn no_bit_can_be_changed(body in prop::collection::vec(any::<u8>(), 0..100), bit: usize) {
            let mut datagram = seal(&key(1), &body);
            let bit = bit % (datagram.len() * 8);
            datagram[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::open(&key(1), &datagram), None);
        }

        #[test]
        fn any_bytes_are_accepted(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(Header::open(&key(1), &bytes), None);
        }
    }

    #[test]
    fn a_body_that_cannot_be_made_leaves_nothing() {
        let mut out = vec![9];
        assert!(!header().seal(&key(1), &mut out, |out| {
            out.push(1);
            false
        }));
        assert_eq!(out, [9]);
        assert_eq!(ClusterKey::new(&[1; 31]).unwrap_err(), ShortKey(31));
    }
}
