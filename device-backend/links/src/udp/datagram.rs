//! The layouts of datagrams. A datagram of a handshake:
//!
//! ```text
//!      0      2    3    4         5        8
//!   0  | "qu" |ver |kind|encrypted| reserved |
//!   8  | source process                      |  first 8 bytes of the hash of its name
//!  16  | destination process                 |
//!  24  | stamp of the initiation             |
//!  32  | initiator's session | reserved      |
//!  40  | message                             |  Noise; of Stale: a stamp, 8 bytes
//!   …  | tag, 32 bytes                       |  BLAKE3, keyed, of all before
//! ```
//!
//! A datagram within a session:
//!
//! ```text
//!   0  | "qu" |ver |kind| receiver's session |  kind: 4, of the data channel; 5, of the priority
//!   8  | counter                             |  channel (U4)
//!  16  | what it is, 1 byte | body …         |  encrypted if that is on
//!   …  | tag, 16 bytes                       |  Poly1305, of all before
//! ```
//!
//! [`super::handshake`] says how the tags and keys come about.

use qnic_nic::env::Channel;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Bytes of the tag of a handshake.
pub(super) const HANDSHAKE_TAG: usize = 32;

/// Bytes of a datagram of a handshake, at most: a stranger costs no longer hash.
const LONGEST_HANDSHAKE: usize = 256;

/// Bytes of the tag of a datagram within a session.
pub(super) const TAG: usize = 16;

/// Bytes of a datagram within a session that are not body.
pub(super) const OVERHEAD: usize = size_of::<Header>() + 1 + TAG;

const MAGIC: [u8; 2] = *b"qu";
const VERSION: u8 = 3;

/// The kinds of datagrams within a session.
const DATA: u8 = 4;
const PRIORITY: u8 = 5;

/// What a datagram of a handshake is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(u8)]
pub(super) enum Step {
    /// Begins a handshake: the first message of Noise.
    Initiation = 1,
    /// Ends it: the second message, in which the responder's session is.
    Response = 2,
    /// The stamp of an initiation is old; the message is the newest that is known.
    Stale = 3,
}

/// What a datagram within a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(u8)]
pub(super) enum Kind {
    /// A whole frame.
    Frame = 1,
    /// A fragment of a frame: [`super::fragment`].
    Fragment = 2,
    /// Asks for a sign of life.
    Ping = 3,
    /// Gives it.
    Pong = 4,
    /// Tests whether a datagram of this size arrives. Body: zeros.
    Probe = 5,
    /// Response to a probe that has arrived. Body: its size, 8 bytes.
    ProbeResponse = 6,
}

/// The header of a datagram of a handshake.
#[derive(Debug, Clone, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Handshake {
    magic: [u8; 2],
    version: u8,
    pub(super) step: Step,
    encrypted: u8,
    reserved: [u8; 3],
    pub(super) source: U64,
    pub(super) destination: U64,
    pub(super) stamp: U64,
    pub(super) session: U32,
    reserved2: U32,
}

const _: () = assert!(size_of::<Handshake>() == 40);

/// The header of a datagram within a session.
#[derive(Debug, Clone, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Header {
    magic: [u8; 2],
    version: u8,
    kind: u8,
    pub(super) session: U32,
    pub(super) counter: U64,
}

const _: () = assert!(size_of::<Header>() == 16);

/// Name of a process in datagrams.
pub(super) fn process_number(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    let first = hash.as_bytes().first_chunk().copied();
    u64::from_le_bytes(first.unwrap_or_default())
}

impl Handshake {
    /// A header from process `source` to process `destination`.
    pub(super) fn new(
        step: Step,
        encrypted: bool,
        [source, destination]: [u64; 2],
        stamp: u64,
        session: u32,
    ) -> Self {
        Handshake {
            magic: MAGIC,
            version: VERSION,
            step,
            encrypted: encrypted.into(),
            reserved: [0; 3],
            source: source.into(),
            destination: destination.into(),
            stamp: stamp.into(),
            session: session.into(),
            reserved2: 0.into(),
        }
    }

    /// Whether the sender says that it encrypts.
    pub(super) fn encrypted(&self) -> bool {
        self.encrypted != 0
    }

    /// Whether the sender speaks this version.
    pub(super) fn is_of_this_version(&self) -> bool {
        self.version == VERSION
    }

    /// The datagram with this header and `message`.
    pub(super) fn tagged(&self, key: &[u8; 32], message: &[u8]) -> Vec<u8> {
        let mut datagram = [self.as_bytes(), message].concat();
        let tag = blake3::keyed_hash(key, &datagram);
        datagram.extend_from_slice(tag.as_bytes());
        datagram
    }

    /// The header of a datagram that may be one of a handshake, of any version.
    pub(super) fn of(datagram: &[u8]) -> Option<&Self> {
        let (header, _) = Handshake::try_ref_from_prefix(datagram).ok()?;
        (header.magic == MAGIC).then_some(header)
    }

    /// The message of a datagram, if its tag was made with `key`.
    pub(super) fn message<'a>(key: &[u8; 32], datagram: &'a [u8]) -> Option<&'a [u8]> {
        if datagram.len() > LONGEST_HANDSHAKE {
            return None;
        }
        let (signed, tag) = datagram.split_last_chunk::<HANDSHAKE_TAG>()?;
        // `Hash` compares in constant time.
        let right = blake3::keyed_hash(key, signed) == *tag;
        signed.get(size_of::<Self>()..).filter(|_| right)
    }
}

impl Header {
    /// A header to the receiver's `session`.
    pub(super) fn new(channel: Channel, session: u32, counter: u64) -> Self {
        Header {
            magic: MAGIC,
            version: VERSION,
            kind: match channel {
                Channel::Priority => PRIORITY,
                Channel::Data => DATA,
            },
            session: session.into(),
            counter: counter.into(),
        }
    }

    /// Header and the rest of a datagram, if it says that it is one within a session.
    pub(super) fn of(datagram: &[u8]) -> Option<(&Self, &[u8])> {
        let (header, sealed) = Header::try_ref_from_prefix(datagram).ok()?;
        let known = header.magic == MAGIC && header.version == VERSION;
        let sealed_kind = matches!(header.kind, DATA | PRIORITY);
        (known && sealed_kind).then_some((header, sealed))
    }

    /// How a datagram travels, if it says that it is one within a session.
    pub(super) fn channel_of(datagram: &[u8]) -> Option<Channel> {
        let (header, _) = Header::of(datagram)?;
        Some(match header.kind {
            PRIORITY => Channel::Priority,
            _ => Channel::Data,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: [u8; 32] = [1; 32];

    fn datagram(message: &[u8]) -> Vec<u8> {
        Handshake::new(Step::Initiation, true, [1, 2], 3, 4).tagged(&KEY, message)
    }

    proptest! {
        #[test]
        fn only_the_right_key_opens(message in prop::collection::vec(any::<u8>(), 0..300)) {
            let datagram = datagram(&message);
            let short = datagram.len() <= LONGEST_HANDSHAKE;
            let expected = short.then_some(&message[..]);
            prop_assert_eq!(Handshake::message(&KEY, &datagram), expected);
            prop_assert_eq!(Handshake::message(&[2; 32], &datagram), None);
        }

        #[test]
        fn no_bit_can_be_changed(message in prop::collection::vec(any::<u8>(), 0..100), bit: usize) {
            let mut datagram = datagram(&message);
            let bit = bit % (datagram.len() * 8);
            datagram[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Handshake::message(&KEY, &datagram), None);
        }

        #[test]
        fn any_bytes_are_accepted(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(Handshake::message(&KEY, &bytes), None);
            let _ = (Handshake::of(&bytes), Header::of(&bytes));
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_picture() {
        let handshake = datagram(&[9]);
        let expected = [
            &b"qu\x03\x01\x01\0\0\0"[..],
            &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 9],
        ];
        assert_eq!(handshake[..41], expected.concat());
        assert_eq!(handshake.len(), 41 + HANDSHAKE_TAG);
        for (channel, kind) in [(Channel::Data, 4), (Channel::Priority, 5)] {
            let header = Header::new(channel, 5, 6);
            let expected = [b'q', b'u', 3, kind, 5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(header.as_bytes(), expected);
            assert_eq!(Header::of(header.as_bytes()), Some((&header, &[][..])));
            assert_eq!(Header::channel_of(header.as_bytes()), Some(channel));
            assert!(Handshake::of(header.as_bytes()).is_none());
        }
    }
}
