//! The frames between the host and the helper in the guest.
//!
//! ```text
//!   byte   0             4                    4 + length
//!          | length (LE) | payload: postcard … |
//! ```
//!
//! Before its first frame the guest sends a preamble: [`PREAMBLE`] and the nonce
//! it was started with. What an earlier command may have left in the port comes
//! before it and is skipped. Neither side trusts the other's lengths.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// First bytes of the guest's stream; the last one is the version.
pub const PREAMBLE: [u8; 8] = *b"\0qnicex\x02";

/// Longest payload of a frame in bytes.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// Most bytes of input or output that are sent in one frame.
pub const CHUNK: usize = 32 << 10;

const HEADER: usize = 4;

/// The stream is no stream of frames.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A frame claims to be longer than [`MAX_PAYLOAD`].
    #[error("a frame of {0} bytes is longer than the {MAX_PAYLOAD} allowed")]
    TooLong(usize),
    /// The first byte of a frame is no known kind, or the rest does not fit its kind.
    #[error("malformed frame of kind {0:?}: {1}")]
    Malformed(Option<u8>, postcard::Error),
}

/// What to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Program and arguments.
    pub argv: Vec<Vec<u8>>,
    /// Names and values of variables to set.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory; empty for the helper's own.
    pub cwd: Vec<u8>,
    /// Whether input follows; otherwise the command reads nothing.
    pub stdin: bool,
}

impl Start {
    /// Bytes that this takes in a frame; at most [`MAX_PAYLOAD`] can be sent.
    pub fn encoded_len(&self) -> usize {
        1 + encoded(self).len()
    }
}

/// From host to guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// First frame of a connection: the nonce of the helper it is meant for. A
    /// helper of another nonce has been left behind, and ends.
    Open(u64),
    /// Run this; once per helper.
    Start(Start),
    /// Input for the command.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// End of the command's input.
    StdinEnd,
    /// Signal for the command's process group.
    Signal(u8),
}

/// From guest to host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHost {
    /// Standard output of the command.
    Stdout(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Standard error of the command.
    Stderr(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The command ended with this code; last frame.
    Exited(u8),
    /// A signal ended the command; last frame.
    Signaled(u8),
    /// The command could not be started; last frame.
    NotStarted {
        /// The system's error number.
        errno: i32,
        /// What was tried, for people.
        message: String,
    },
}

/// A frame of one direction.
pub trait Frame: Serialize + DeserializeOwned {
    /// Appends the frame to `out`.
    fn encode(&self, out: &mut Vec<u8>) {
        let payload = encoded(self);
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&payload);
    }
}

impl Frame for ToGuest {}
impl Frame for ToHost {}

fn encoded(value: &impl Serialize) -> Vec<u8> {
    // Memory grows, and all lengths are known: encoding into it cannot fail.
    postcard::to_stdvec(value).unwrap_or_default()
}

/// Collects bytes and gives back whole frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
}

impl Decoder {
    /// Adds what arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, or `None` until more has arrived.
    ///
    /// # Errors
    /// Any [`WireError`]; the stream cannot be used after one.
    pub fn next_frame<F: Frame>(&mut self) -> Result<Option<F>, WireError> {
        let Some((header, rest)) = self.buffer.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length > MAX_PAYLOAD {
            return Err(WireError::TooLong(length));
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let malformed = |error| WireError::Malformed(payload.first().copied(), error);
        let (frame, excess) = postcard::take_from_bytes(payload).map_err(malformed)?;
        if !excess.is_empty() {
            return Err(malformed(postcard::Error::DeserializeBadEncoding));
        }
        self.buffer.drain(..HEADER + length);
        Ok(Some(frame))
    }

    /// Skips everything up to and including the preamble with `nonce`; returns
    /// false until it has arrived.
    pub fn skip_preamble(&mut self, nonce: u64) -> bool {
        let wanted = preamble(nonce);
        let mut windows = self.buffer.windows(wanted.len());
        let found = windows.position(|window| window == wanted);
        // Without it, the end of what has arrived may be its beginning.
        let skipped = match found {
            Some(index) => index + wanted.len(),
            None => self.buffer.len().saturating_sub(wanted.len() - 1),
        };
        self.buffer.drain(..skipped);
        found.is_some()
    }
}

/// The preamble of the helper with `nonce`.
pub fn preamble(nonce: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&PREAMBLE);
    bytes[8..].copy_from_slice(&nonce.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 0..200)
    }

    fn to_guest() -> impl Strategy<Value = ToGuest> {
        let argv = proptest::collection::vec(bytes(), 0..5);
        let env = proptest::collection::vec((bytes(), bytes()), 0..5);
        let start = (argv, env, bytes(), any::<bool>());
        prop_oneof![
            any::<u64>().prop_map(ToGuest::Open),
            start.prop_map(|(argv, env, cwd, stdin)| ToGuest::Start(Start {
                argv,
                env,
                cwd,
                stdin
            })),
            bytes().prop_map(ToGuest::Stdin),
            Just(ToGuest::StdinEnd),
            any::<u8>().prop_map(ToGuest::Signal),
        ]
    }

    fn to_host() -> impl Strategy<Value = ToHost> {
        prop_oneof![
            bytes().prop_map(ToHost::Stdout),
            bytes().prop_map(ToHost::Stderr),
            any::<u8>().prop_map(ToHost::Exited),
            any::<u8>().prop_map(ToHost::Signaled),
            (any::<i32>(), ".*").prop_map(|(errno, message)| ToHost::NotStarted { errno, message }),
        ]
    }

    fn through_wire<F: Frame>(frames: &[F], cut: usize) -> Vec<F> {
        let mut stream = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut stream));
        let mut decoder = Decoder::default();
        let mut found = Vec::new();
        for part in stream.chunks(cut) {
            decoder.push(part);
            while let Some(frame) = decoder.next_frame().unwrap() {
                found.push(frame);
            }
        }
        found
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(
            down in proptest::collection::vec(to_guest(), 0..6),
            up in proptest::collection::vec(to_host(), 0..6),
            cut in 1usize..40,
        ) {
            prop_assert_eq!(&through_wire(&down, cut), &down);
            prop_assert_eq!(&through_wire(&up, cut), &up);
        }

        #[test]
        fn encoded_len_is_exact(frame in to_guest()) {
            if let ToGuest::Start(start) = frame {
                let len = start.encoded_len();
                let mut out = Vec::new();
                ToGuest::Start(start).encode(&mut out);
                prop_assert_eq!(out.len(), HEADER + len);
            }
        }

        #[test]
        fn garbage_never_panics(garbage in proptest::collection::vec(any::<u8>(), 0..300)) {
            let (mut to_guest, mut to_host) = (Decoder::default(), Decoder::default());
            to_guest.push(&garbage);
            while let Ok(Some(_)) = to_guest.next_frame::<ToGuest>() {}
            to_host.push(&garbage);
            while let Ok(Some(_)) = to_host.next_frame::<ToHost>() {}
        }

        #[test]
        fn what_precedes_the_preamble_is_skipped(before in bytes(), cut in 1usize..20) {
            let mut stream = before;
            stream.extend_from_slice(&preamble(7));
            ToHost::Exited(3).encode(&mut stream);
            let mut decoder = Decoder::default();
            let mut open = false;
            for part in stream.chunks(cut) {
                decoder.push(part);
                open = open || decoder.skip_preamble(7);
            }
            prop_assert!(open);
            prop_assert_eq!(decoder.next_frame::<ToHost>(), Ok(Some(ToHost::Exited(3))));
        }
    }

    #[test]
    fn the_version_stands_for_these_bytes() {
        let mut bytes = Vec::new();
        ToHost::Stdout(b"ab".to_vec()).encode(&mut bytes);
        ToHost::Exited(3).encode(&mut bytes);
        ToGuest::Open(300).encode(&mut bytes);
        let expected = [
            4, 0, 0, 0, 0, 2, 97, 98, 2, 0, 0, 0, 2, 3, 3, 0, 0, 0, 0, 172, 2,
        ];
        assert_eq!((bytes.as_slice(), PREAMBLE[7]), (expected.as_slice(), 2));
    }

    #[test]
    fn a_frame_that_claims_too_much_or_says_nonsense_is_refused() {
        let decode = |bytes: &[u8]| {
            let mut decoder = Decoder::default();
            decoder.push(bytes);
            decoder.next_frame::<ToHost>().unwrap_err()
        };
        assert_eq!(decode(&[1, 0, 16, 0]), WireError::TooLong((1 << 20) + 1));
        // An unknown kind, a payload that is too short, and one that is too long.
        for bytes in [
            &[1, 0, 0, 0, 99][..],
            &[1, 0, 0, 0, 2],
            &[3, 0, 0, 0, 2, 0, 0],
        ] {
            let kind = bytes.get(4).copied();
            assert!(matches!(decode(bytes), WireError::Malformed(k, _) if k == kind));
        }
    }

    #[test]
    fn the_preamble_of_another_helper_is_not_ours() {
        let mut decoder = Decoder::default();
        decoder.push(&preamble(8));
        assert!(!decoder.skip_preamble(7));
    }
}
