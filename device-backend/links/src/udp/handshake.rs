//! Handshakes with one other process: from key pairs to the keys of a session.
//!
//! ```text
//!   initiator                                         responder
//!   Initiation: stamp, its session, e, es, ss  ─────►
//!                                              ◄─────  Response: e, ee, se, its session
//! ```
//!
//! # The pattern
//! Noise KK (`Noise_KK_25519_ChaChaPoly_BLAKE2s`): each side knows the other's public key
//! before, from the configuration, so no message carries one and no other process is answered.
//! IK would hide the caller's identity, at 48 bytes more; the members of a cluster are no secret, as
//! addresses show them. XX needs a third message, in which a responder that every process can call
//! learns which one did. Both sides' ephemeral keys take part, so each session has keys of its own
//! that the key files do not tell afterwards.
//!
//! The prologue has the header of the initiation (version, whether datagrams are encrypted,
//! both processes, stamp, session) and both names: the keys differ if any of these does.
//!
//! # The tag of a handshake
//! A message of Noise costs its receiver some multiplications on the curve. So every datagram
//! of a handshake also has a tag, whose key is the two processes' static secret (one
//! multiplication, at the start): a sender with neither private key costs one hash.

use blake3::derive_key;
use qnic_config::plan::{PrivateKey, PublicKey};
use snow::params::{CipherChoice, NoiseParams};
use snow::resolvers::{BoxedCryptoResolver, DefaultResolver, FallbackResolver, RingResolver};
use snow::{Builder, HandshakeState};
use zerocopy::IntoBytes;

use super::datagram::{process_number, Handshake, Step};
use super::session::Keys;

/// Bytes of the messages of Noise, at most.
const MAX_MESSAGE: usize = 128;

/// What does the arithmetic: ring where it can, as it is the faster one.
fn resolver() -> BoxedCryptoResolver {
    let fallback = Box::new(DefaultResolver);
    Box::new(FallbackResolver::new(Box::new(RingResolver), fallback))
}

/// Two processes, as one of them sees them.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    pub(super) own: String,
    pub(super) peer: String,
    pub(super) private: PrivateKey,
    pub(super) public: PublicKey,
    pub(super) encrypt: bool,
}

/// What handshakes of a [`Pair`] need.
#[derive(Debug)]
pub(super) struct Handshaker {
    pair: Pair,
    tag_key: [u8; 32],
    /// Of the own process and of the peer.
    numbers: [u64; 2],
}

/// A handshake that waits for its response.
#[derive(Debug)]
pub(super) struct Initiated {
    state: HandshakeState,
    pub(super) datagram: Vec<u8>,
}

/// What both sides have after a handshake.
#[derive(Debug)]
pub(super) struct Agreed {
    pub(super) keys: Keys,
    /// The session of the peer.
    pub(super) session: u32,
}

impl Handshaker {
    pub(super) fn new(pair: Pair) -> Self {
        // With a public key that cannot be used, no tag fits: no other process knows the own key.
        let secret = pair.private.shared_with(&pair.public);
        let secret = secret.unwrap_or(*pair.private.as_bytes());
        Handshaker {
            tag_key: derive_key("qnic udp link 2, tag of handshakes", &secret),
            numbers: [process_number(&pair.own), process_number(&pair.peer)],
            pair,
        }
    }

    pub(super) fn pair(&self) -> &Pair {
        &self.pair
    }

    /// Name of the peer in datagrams.
    pub(super) fn peer_number(&self) -> u64 {
        self.numbers[1]
    }

    /// Returns true on one of the two sides: on the one that initiates if both could.
    pub(super) fn is_first(&self) -> bool {
        self.numbers[0] < self.numbers[1]
    }

    /// The message of a datagram, if the peer made it for this process.
    pub(super) fn message<'a>(&self, header: &Handshake, datagram: &'a [u8]) -> Option<&'a [u8]> {
        let numbers = [header.destination.get(), header.source.get()];
        let message = Handshake::message(&self.tag_key, datagram);
        message.filter(|_| numbers == self.numbers)
    }

    fn header(&self, step: Step, stamp: u64, session: u32) -> Handshake {
        Handshake::new(step, self.pair.encrypt, self.numbers, stamp, session)
    }

    /// A state of Noise for the handshake that `initiation` begins.
    fn noise(
        &self,
        initiation: &Handshake,
        initiates: bool,
    ) -> Result<HandshakeState, snow::Error> {
        let Pair { own, peer, .. } = &self.pair;
        let [first, second] = if initiates { [own, peer] } else { [peer, own] };
        let length = (first.len() as u64).to_le_bytes();
        let names = [first.as_bytes(), second.as_bytes()].concat();
        let prologue = [initiation.as_bytes(), &length, &names].concat();
        let params: NoiseParams = "Noise_KK_25519_ChaChaPoly_BLAKE2s".parse()?;
        let builder = Builder::with_resolver(params, resolver())
            .local_private_key(self.pair.private.as_bytes())?
            .remote_public_key(self.pair.public.as_bytes())?
            .prologue(&prologue)?;
        match initiates {
            true => builder.build_initiator(),
            false => builder.build_responder(),
        }
    }

    /// Begins a handshake. Fails only without random numbers.
    pub(super) fn initiate(&self, stamp: u64, session: u32) -> Result<Initiated, snow::Error> {
        let header = self.header(Step::Initiation, stamp, session);
        let mut state = self.noise(&header, true)?;
        let mut message = [0; MAX_MESSAGE];
        let length = state.write_message(&[], &mut message)?;
        let datagram = header.tagged(&self.tag_key, &message[..length]);
        Ok(Initiated { state, datagram })
    }

    /// Answers an initiation: what was agreed on, and the response. `session` is the own one.
    pub(super) fn respond(
        &self,
        initiation: &Handshake,
        message: &[u8],
        session: u32,
    ) -> Result<(Agreed, Vec<u8>), snow::Error> {
        let mut state = self.noise(initiation, false)?;
        state.read_message(message, &mut [0; MAX_MESSAGE])?;
        let mut response = [0; MAX_MESSAGE];
        let length = state.write_message(&session.to_le_bytes(), &mut response)?;
        let peer_session = initiation.session.get();
        let header = self.header(Step::Response, initiation.stamp.get(), peer_session);
        let datagram = header.tagged(&self.tag_key, &response[..length]);
        let agreed = self.agreed(&mut state, peer_session)?;
        Ok((agreed, datagram))
    }

    /// Ends a handshake with the message of its response.
    pub(super) fn finish(
        &self,
        mut initiated: Initiated,
        message: &[u8],
    ) -> Result<Agreed, snow::Error> {
        let mut session = [0; MAX_MESSAGE];
        let length = initiated.state.read_message(message, &mut session)?;
        let session = session[..length].try_into();
        let session = session.map_err(|_| snow::Error::Input)?;
        self.agreed(&mut initiated.state, u32::from_le_bytes(session))
    }

    /// The answer to an initiation whose stamp is not above `known`.
    pub(super) fn stale(&self, initiation: &Handshake, known: u64) -> Vec<u8> {
        let (stamp, session) = (initiation.stamp.get(), initiation.session.get());
        let header = self.header(Step::Stale, stamp, session);
        header.tagged(&self.tag_key, &known.to_le_bytes())
    }

    /// The two keys that Noise ends with, one for each direction.
    fn agreed(&self, state: &mut HandshakeState, session: u32) -> Result<Agreed, snow::Error> {
        let (first, second) = state.dangerously_get_raw_split();
        let [seal, open] = match state.is_initiator() {
            true => [first, second],
            false => [second, first],
        };
        let cipher = |key: &[u8; 32]| {
            let mut cipher = resolver().resolve_cipher(&CipherChoice::ChaChaPoly);
            cipher.iter_mut().for_each(|cipher| cipher.set(key));
            let missing = snow::error::InitStage::GetCipherImpl;
            cipher.ok_or(snow::Error::Init(missing))
        };
        let keys = Keys::new([cipher(&seal)?, cipher(&open)?], self.pair.encrypt);
        Ok(Agreed { keys, session })
    }
}
