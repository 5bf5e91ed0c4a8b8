//! What is in a datagram, and how it is authenticated.
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
//! The tag says that somebody with the cluster's key made the datagram; the sessions
//! and the counter say that it was made for this life of the receiver and has not
//! come before ([`super::peer`]). Contents are not hidden.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes before the body.
pub(super) const HEAD_BYTES: usize = 48;
/// Bytes behind it.
pub(super) const TAG_BYTES: usize = 32;
/// Bytes that are not body.
pub(super) const OVERHEAD: usize = HEAD_BYTES + TAG_BYTES;

const MAGIC: [u8; 2] = *b"qu";
const VERSION: u8 = 1;

/// What a datagram is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// "This is my session; who are you?" Body: the receiver's session, as known.
    Hello = 1,
    /// Answer: "this is mine". Body: the session of the one who asked, as known.
    HelloReply = 2,
    /// A whole frame.
    Frame = 3,
    /// A piece of a frame: [`super::chunk`].
    Chunk = 4,
    /// "Does a datagram of this size arrive?" Body: zeros.
    Probe = 5,
    /// "It did." Body: the size, 8 bytes.
    ProbeReply = 6,
}

impl Kind {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Kind::Hello,
            2 => Kind::HelloReply,
            3 => Kind::Frame,
            4 => Kind::Chunk,
            5 => Kind::Probe,
            6 => Kind::ProbeReply,
            _ => return None,
        })
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Head {
    magic: [u8; 2],
    version: u8,
    kind: u8,
    reserved: U32,
    source: U64,
    destination: U64,
    source_session: U64,
    destination_session: U64,
    counter: U64,
}

const _: () = assert!(size_of::<Head>() == HEAD_BYTES);

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
    /// [`ShortKey`].
    pub fn new(secret: &[u8]) -> Result<Self, ShortKey> {
        match secret.len() {
            0..32 => Err(ShortKey(secret.len())),
            _ => Ok(ClusterKey(blake3::derive_key("qnic udp link 1", secret))),
        }
    }
}

impl std::fmt::Debug for ClusterKey {
    /// Keys are not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterKey(…)")
    }
}

/// What stands before the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) kind: Kind,
    pub(super) source: u64,
    pub(super) destination: u64,
    pub(super) source_session: u64,
    pub(super) destination_session: u64,
    pub(super) counter: u64,
}

impl Address {
    /// Appends a datagram with the body that `fill` appends; nothing if it says
    /// `false`.
    pub(super) fn seal(
        &self,
        key: &ClusterKey,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> bool {
        let start = out.len();
        let head = Head {
            magic: MAGIC,
            version: VERSION,
            kind: self.kind as u8,
            reserved: 0.into(),
            source: self.source.into(),
            destination: self.destination.into(),
            source_session: self.source_session.into(),
            destination_session: self.destination_session.into(),
            counter: self.counter.into(),
        };
        out.extend_from_slice(head.as_bytes());
        if !fill(out) {
            out.truncate(start);
            return false;
        }
        let tag = blake3::keyed_hash(&key.0, &out[start..]);
        out.extend_from_slice(tag.as_bytes());
        true
    }

    /// Address and body of a datagram, if it was made with `key`.
    pub(super) fn open<'a>(key: &ClusterKey, datagram: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (signed, tag) = datagram.split_last_chunk::<TAG_BYTES>()?;
        let (head, body) = Head::read_from_prefix(signed).ok()?;
        if head.magic != MAGIC || head.version != VERSION || head.reserved.get() != 0 {
            return None;
        }
        // `Hash` compares in constant time.
        if blake3::keyed_hash(&key.0, signed) != *tag {
            return None;
        }
        let address = Address {
            kind: Kind::from_number(head.kind)?,
            source: head.source.get(),
            destination: head.destination.get(),
            source_session: head.source_session.get(),
            destination_session: head.destination_session.get(),
            counter: head.counter.get(),
        };
        Some((address, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::new(&[byte; 32]).unwrap()
    }

    const ADDRESS: Address = Address {
        kind: Kind::Frame,
        source: 1,
        destination: 2,
        source_session: 3,
        destination_session: 4,
        counter: 5,
    };

    fn seal(key: &ClusterKey, body: &[u8]) -> Vec<u8> {
        let mut out = vec![9];
        assert!(ADDRESS.seal(key, &mut out, |out| {
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
            prop_assert_eq!(Address::open(&key(1), &datagram), Some((ADDRESS, &body[..])));
            prop_assert_eq!(Address::open(&key(2), &datagram), None);
        }

        #[test]
        fn no_bit_can_be_changed(body in prop::collection::vec(any::<u8>(), 0..100), bit: usize) {
            let mut datagram = seal(&key(1), &body);
            let bit = bit % (datagram.len() * 8);
            datagram[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Address::open(&key(1), &datagram), None);
        }

        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(Address::open(&key(1), &bytes), None);
        }
    }

    #[test]
    fn a_body_that_cannot_be_made_leaves_nothing() {
        let mut out = vec![9];
        assert!(!ADDRESS.seal(&key(1), &mut out, |out| {
            out.push(1);
            false
        }));
        assert_eq!(out, [9]);
        assert_eq!(ClusterKey::new(&[1; 31]).unwrap_err(), ShortKey(31));
    }
}
