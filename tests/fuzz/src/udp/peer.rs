//! A peer of the carrier: its own reading of docs/wire.md, so that the carrier does not only
//! agree with itself.

use std::net::{SocketAddr, UdpSocket};

use qnic_links::{PrivateKey, PublicKey};
use snow::params::{CipherChoice, DHChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver, FallbackResolver, RingResolver};
use snow::types::Cipher;
use snow::{Builder, HandshakeState};

/// Name of the carrier's process.
pub(super) const CARRIER: &str = "b";

/// Datagrams of handshakes.
pub(super) const INITIATION: u8 = 1;
pub(super) const RESPONSE: u8 = 2;

/// Datagrams in a session, of the data channel and of the priority channel.
const SEALED: u8 = 4;
const SEALED_FIRST: u8 = 5;

/// What a datagram in a session is.
pub(super) const FRAME: u8 = 1;
pub(super) const PING: u8 = 3;

/// Bytes of headers and tags.
const HANDSHAKE: usize = 40;
const HANDSHAKE_TAG: usize = 32;
const HEADER: usize = 16;
const TAG: usize = 16;

pub(super) struct Peer {
    pub(super) name: &'static str,
    private: [u8; 32],
    carrier: Vec<u8>,
    tag_key: [u8; 32],
    pub(super) socket: UdpSocket,
    /// Of the newest initiation.
    pub(super) stamp: u64,
    pub(super) session: u32,
    pub(super) peer_session: u32,
    pub(super) counter: u64,
    initiated: Option<HandshakeState>,
    /// For what is sent and what is received.
    ciphers: Option<[Box<dyn Cipher>; 2]>,
    /// What it has sent.
    pub(super) sent: Vec<Vec<u8>>,
}

/// Name of a process in datagrams.
fn number(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    let first = hash.as_bytes().first_chunk().copied();
    u64::from_le_bytes(first.unwrap_or_default())
}

fn cipher(key: &[u8; 32]) -> Box<dyn Cipher> {
    let cipher = DefaultResolver.resolve_cipher(&CipherChoice::ChaChaPoly);
    let mut cipher = cipher.expect("the crate has it");
    cipher.set(key);
    cipher
}

impl Peer {
    pub(super) fn new(name: &'static str, private: [u8; 32], carrier: &PrivateKey) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = UdpSocket::bind(any).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        let dh = DefaultResolver.resolve_dh(&DHChoice::Curve25519);
        let mut dh = dh.expect("the crate has it");
        dh.set(&super::CARRIER_KEY);
        let public = dh.pubkey().to_vec();
        assert_eq!(
            carrier.public(),
            PrivateKey::from_bytes(super::CARRIER_KEY).public()
        );
        dh.set(&private);
        let mut secret = [0; 32];
        dh.dh(&public, &mut secret).expect("a key");
        Peer {
            name,
            private,
            carrier: public,
            tag_key: blake3::derive_key("qnic udp link 2, tag of handshakes", &secret),
            socket,
            stamp: 5000,
            session: 0,
            peer_session: 0,
            counter: 0,
            initiated: None,
            ciphers: None,
            sent: Vec::new(),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("a bound socket")
    }

    pub(super) fn public_key(&self) -> PublicKey {
        PrivateKey::from_bytes(self.private).public()
    }

    fn header(&self, step: u8, stamp: u64, session: u32) -> Vec<u8> {
        let mut bytes = vec![b'q', b'u', 3, step, 1, 0, 0, 0];
        let words = [number(self.name), number(CARRIER), stamp, session.into()];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    /// A datagram of a handshake.
    pub(super) fn tagged(&self, step: u8, stamp: u64, session: u32, message: &[u8]) -> Vec<u8> {
        let mut bytes = self.header(step, stamp, session);
        bytes.extend_from_slice(message);
        let tag = blake3::keyed_hash(&self.tag_key, &bytes);
        bytes.extend_from_slice(tag.as_bytes());
        bytes
    }

    /// The initiation of a new handshake.
    pub(super) fn initiate(&mut self) -> Vec<u8> {
        self.stamp = self.stamp.wrapping_add(1);
        self.session = self.session.wrapping_add(1);
        let mut prologue = self.header(INITIATION, self.stamp, self.session);
        prologue.extend((self.name.len() as u64).to_le_bytes());
        prologue.extend([self.name.as_bytes(), CARRIER.as_bytes()].concat());
        let params = "Noise_KK_25519_ChaChaPoly_BLAKE2s".parse();
        let params = params.expect("the name of a protocol");
        // Of ring only the random numbers, which the other one has not.
        let resolver = FallbackResolver::new(Box::new(DefaultResolver), Box::new(RingResolver));
        let mut state = Builder::with_resolver(params, Box::new(resolver))
            .local_private_key(&self.private)
            .and_then(|builder| builder.remote_public_key(&self.carrier))
            .and_then(|builder| builder.prologue(&prologue))
            .and_then(Builder::build_initiator)
            .expect("keys");
        let mut message = [0; 128];
        let length = state.write_message(&[], &mut message).expect("room");
        self.initiated = Some(state);
        self.tagged(INITIATION, self.stamp, self.session, &message[..length])
    }

    /// Takes what has arrived: the number of handshakes that it ends, and the frames.
    pub(super) fn listen(&mut self) -> (usize, Vec<Vec<u8>>) {
        let (mut ended, mut frames) = (0, Vec::new());
        let mut bytes = [0; 1 << 16];
        while let Ok(length) = self.socket.recv(&mut bytes) {
            let datagram = &bytes[..length];
            assert_eq!(datagram[..3], *b"qu\x03", "what the carrier sends");
            match datagram[3] {
                SEALED | SEALED_FIRST => frames.extend(self.open(datagram)),
                _ => ended += usize::from(self.finish(datagram)),
            }
        }
        (ended, frames)
    }

    /// The frame in a datagram of the session of now.
    fn open(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        let (header, sealed) = datagram.split_at(HEADER);
        let [_, open] = self.ciphers.as_ref()?;
        if header[4..8] != self.session.to_le_bytes() {
            return None;
        }
        let counter = header[8..].first_chunk().copied();
        let counter = u64::from_le_bytes(counter.unwrap_or_default());
        let mut contents = vec![0; sealed.len()];
        let length = open.decrypt(counter, header, sealed, &mut contents);
        contents.truncate(length.expect("the tag of the carrier"));
        (contents[0] == FRAME).then(|| contents[1..].to_vec())
    }

    /// Ends the handshake that a datagram answers, if it is the last one.
    fn finish(&mut self, datagram: &[u8]) -> bool {
        let (signed, tag) = datagram.split_at(datagram.len() - HANDSHAKE_TAG);
        let expected = blake3::keyed_hash(&self.tag_key, signed);
        assert_eq!(tag, expected.as_bytes(), "the tag of the carrier");
        let right = signed[3] == RESPONSE && signed[24..32] == self.stamp.to_le_bytes();
        let Some(mut state) = self.initiated.take_if(|_| right) else {
            return false;
        };
        let mut session = [0; 128];
        let length = state.read_message(&signed[HANDSHAKE..], &mut session);
        assert_eq!(length.expect("the carrier's message"), 4);
        self.peer_session = u32::from_le_bytes(session.first_chunk().copied().unwrap_or_default());
        self.counter = 0;
        let (seal, open) = state.dangerously_get_raw_split();
        self.ciphers = Some([cipher(&seal), cipher(&open)]);
        true
    }

    /// A datagram in the session of now; one that cannot be opened if there is none.
    pub(super) fn seal(&mut self, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![b'q', b'u', 3, SEALED];
        bytes.extend(self.peer_session.to_le_bytes());
        bytes.extend(self.counter.to_le_bytes());
        let contents = [&[kind], body].concat();
        let mut sealed = vec![0; contents.len() + TAG];
        if let Some([seal, _]) = &self.ciphers {
            seal.encrypt(self.counter, &bytes, &contents, &mut sealed);
        }
        self.counter = self.counter.wrapping_add(1);
        bytes.extend(sealed);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The carrier waits for no peer that begins a handshake before it.
    #[test]
    fn both_peers_come_first() {
        assert!(["a", "c"]
            .map(number)
            .iter()
            .all(|one| *one < number(CARRIER)));
    }
}
