//! The frames between the host and the helper in the guest.
//!
//! ```text
//!   byte   0       1                4           5 + length
//!          | kind  | length (LE)    | payload … |
//! ```
//!
//! Before its first frame the guest sends a preamble: [`PREAMBLE`] and the nonce
//! it was started with. What an earlier command may have left in the port comes
//! before it and is skipped. Neither side trusts the other's lengths.

/// First bytes of the guest's stream; the last one is the version.
pub const PREAMBLE: [u8; 8] = *b"\0qnicex\x01";

/// Longest payload of a frame in bytes.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// Most bytes of input or output that are sent in one frame.
pub const CHUNK: usize = 32 << 10;

const HEADER: usize = 5;

/// The stream is no stream of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A frame claims to be longer than any is.
    #[error("a frame of {0} bytes is longer than the {MAX_PAYLOAD} allowed")]
    TooLong(usize),
    /// A frame is of no known kind.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A frame's payload is not what its kind says.
    #[error("malformed payload of frame kind {0}")]
    Malformed(u8),
}

/// What to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Program and arguments.
    pub argv: Vec<Vec<u8>>,
    /// Variables to set, each `NAME=value`.
    pub env: Vec<Vec<u8>>,
    /// Working directory; empty for the helper's own.
    pub cwd: Vec<u8>,
    /// Whether input follows; otherwise the command reads nothing.
    pub stdin: bool,
}

/// From host to guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToGuest {
    /// First frame of a connection: the nonce of the helper it is meant for. A
    /// helper of another nonce has been left behind, and ends.
    Open(u64),
    /// Run this; once per helper.
    Start(Start),
    /// Input for the command.
    Stdin(Vec<u8>),
    /// End of the command's input.
    StdinEnd,
    /// Signal for the command's process group.
    Signal(u8),
}

/// From guest to host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHost {
    /// Standard output of the command.
    Stdout(Vec<u8>),
    /// Standard error of the command.
    Stderr(Vec<u8>),
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
pub trait Frame: Sized {
    /// Appends the frame to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Makes the frame of `kind` from its payload.
    ///
    /// # Errors
    /// [`WireError::UnknownKind`] or [`WireError::Malformed`].
    fn decode(kind: u8, payload: &[u8]) -> Result<Self, WireError>;
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
        let [kind, length @ ..] = *header;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_PAYLOAD {
            return Err(WireError::TooLong(length));
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = F::decode(kind, payload)?;
        self.buffer.drain(..HEADER + length);
        Ok(Some(frame))
    }

    /// Skips everything up to and including the preamble with `nonce`; false until
    /// it has arrived.
    pub fn skip_preamble(&mut self, nonce: u64) -> bool {
        let wanted = preamble(nonce);
        match self
            .buffer
            .windows(wanted.len())
            .position(|window| window == wanted)
        {
            Some(at) => {
                self.buffer.drain(..at + wanted.len());
                true
            }
            None => {
                let keep = self.buffer.len().min(wanted.len() - 1);
                self.buffer.drain(..self.buffer.len() - keep);
                false
            }
        }
    }
}

/// The preamble of the helper with `nonce`.
pub fn preamble(nonce: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&PREAMBLE);
    bytes[8..].copy_from_slice(&nonce.to_le_bytes());
    bytes
}

fn put(out: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    out.push(kind);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
}

fn one_byte(kind: u8, payload: &[u8]) -> Result<u8, WireError> {
    match payload {
        [byte] => Ok(*byte),
        _ => Err(WireError::Malformed(kind)),
    }
}

const OPEN: u8 = 1;
const START: u8 = 2;
const STDIN: u8 = 3;
const STDIN_END: u8 = 4;
const SIGNAL: u8 = 5;
const STDOUT: u8 = 17;
const STDERR: u8 = 18;
const EXITED: u8 = 19;
const SIGNALED: u8 = 20;
const NOT_STARTED: u8 = 21;

impl Frame for ToGuest {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Open(nonce) => put(out, OPEN, &nonce.to_le_bytes()),
            Self::Start(start) => put(out, START, &start.encode()),
            Self::Stdin(bytes) => put(out, STDIN, bytes),
            Self::StdinEnd => put(out, STDIN_END, &[]),
            Self::Signal(signal) => put(out, SIGNAL, &[*signal]),
        }
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, WireError> {
        let malformed = WireError::Malformed(kind);
        match kind {
            OPEN => payload
                .try_into()
                .map(|nonce| Self::Open(u64::from_le_bytes(nonce)))
                .map_err(|_| malformed),
            START => Start::decode(payload).map(Self::Start).ok_or(malformed),
            STDIN => Ok(Self::Stdin(payload.to_vec())),
            STDIN_END if payload.is_empty() => Ok(Self::StdinEnd),
            STDIN_END => Err(malformed),
            SIGNAL => one_byte(kind, payload).map(Self::Signal),
            unknown => Err(WireError::UnknownKind(unknown)),
        }
    }
}

impl Frame for ToHost {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Stdout(bytes) => put(out, STDOUT, bytes),
            Self::Stderr(bytes) => put(out, STDERR, bytes),
            Self::Exited(code) => put(out, EXITED, &[*code]),
            Self::Signaled(signal) => put(out, SIGNALED, &[*signal]),
            Self::NotStarted { errno, message } => {
                put(
                    out,
                    NOT_STARTED,
                    &[&errno.to_le_bytes()[..], message.as_bytes()].concat(),
                );
            }
        }
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, WireError> {
        match kind {
            STDOUT => Ok(Self::Stdout(payload.to_vec())),
            STDERR => Ok(Self::Stderr(payload.to_vec())),
            EXITED => one_byte(kind, payload).map(Self::Exited),
            SIGNALED => one_byte(kind, payload).map(Self::Signaled),
            NOT_STARTED => {
                let (errno, message) = payload
                    .split_first_chunk()
                    .ok_or(WireError::Malformed(kind))?;
                let message = String::from_utf8_lossy(message).into_owned();
                Ok(Self::NotStarted {
                    errno: i32::from_le_bytes(*errno),
                    message,
                })
            }
            unknown => Err(WireError::UnknownKind(unknown)),
        }
    }
}

impl Start {
    /// Bytes that this takes in a frame; at most [`MAX_PAYLOAD`] can be sent.
    pub fn encoded_len(&self) -> usize {
        let list = |items: &[Vec<u8>]| 4 + items.iter().map(|item| 4 + item.len()).sum::<usize>();
        1 + list(&self.argv) + list(&self.env) + 4 + self.cwd.len()
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_len());
        out.push(u8::from(self.stdin));
        let string = |out: &mut Vec<u8>, bytes: &[u8]| {
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        };
        for list in [&self.argv, &self.env] {
            out.extend_from_slice(&(list.len() as u32).to_le_bytes());
            list.iter().for_each(|item| string(&mut out, item));
        }
        string(&mut out, &self.cwd);
        out
    }

    fn decode(payload: &[u8]) -> Option<Self> {
        let (stdin, mut rest) = payload.split_first()?;
        let argv = take_list(&mut rest)?;
        let env = take_list(&mut rest)?;
        let cwd = take_string(&mut rest)?;
        let whole = rest.is_empty() && *stdin <= 1;
        whole.then_some(Self {
            argv,
            env,
            cwd,
            stdin: *stdin == 1,
        })
    }
}

fn take_u32(rest: &mut &[u8]) -> Option<usize> {
    let (value, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u32::from_le_bytes(*value) as usize)
}

fn take_string(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let length = take_u32(rest)?;
    let (string, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(string.to_vec())
}

fn take_list(rest: &mut &[u8]) -> Option<Vec<Vec<u8>>> {
    let count = take_u32(rest)?;
    // Each item takes four bytes at least, so a false count ends soon.
    (0..count).map(|_| take_string(rest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 0..200)
    }

    fn to_guest() -> impl Strategy<Value = ToGuest> {
        let list = || proptest::collection::vec(bytes(), 0..5);
        let start = (list(), list(), bytes(), any::<bool>());
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
                prop_assert_eq!(start.encode().len(), start.encoded_len());
            }
        }

        #[test]
        fn garbage_never_panics(garbage in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut decoder = Decoder::default();
            decoder.push(&garbage);
            while let Ok(Some(_)) = decoder.next_frame::<ToGuest>() {}
            let mut decoder = Decoder::default();
            decoder.push(&garbage);
            while let Ok(Some(_)) = decoder.next_frame::<ToHost>() {}
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
    fn a_frame_that_claims_too_much_is_refused() {
        let mut decoder = Decoder::default();
        decoder.push(&[STDOUT, 1, 0, 16, 0]);
        assert_eq!(
            decoder.next_frame::<ToHost>(),
            Err(WireError::TooLong((1 << 20) + 1))
        );
    }

    #[test]
    fn the_preamble_of_another_helper_is_not_ours() {
        let mut decoder = Decoder::default();
        decoder.push(&preamble(8));
        assert!(!decoder.skip_preamble(7));
    }
}
