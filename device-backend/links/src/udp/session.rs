//! A session: the keys that one handshake gave, and what must not outlive them.
//!
//! A datagram is sealed with ChaCha20-Poly1305; the nonce is its counter, which no two
//! datagrams of a key share. Its header is associated data, so it cannot be changed.
//! Without encryption all of it is associated data and nothing is left to encrypt: the tag
//! is the same, and so is what it proves.

use std::fmt;

use qnic_nic::env::Channel;
use qnic_nic::Time;
use snow::types::Cipher;
use zerocopy::{IntoBytes, TryFromBytes};

use super::datagram::{Header, Kind, OVERHEAD, TAG};
use super::fragment::Reassembly;
use super::replay::ReplayWindow;

/// The keys of a session.
pub(super) struct Keys {
    seal: Box<dyn Cipher>,
    open: Box<dyn Cipher>,
    encrypt: bool,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(…)")
    }
}

impl Keys {
    /// Keys for what is sent and what is received.
    pub(super) fn new([seal, open]: [Box<dyn Cipher>; 2], encrypt: bool) -> Self {
        Keys {
            seal,
            open,
            encrypt,
        }
    }

    /// Appends the datagram with `header` and `contents`.
    fn seal(&self, header: &Header, contents: &[u8], out: &mut Vec<u8>) {
        let (start, counter) = (out.len(), header.counter.get());
        out.extend_from_slice(header.as_bytes());
        if self.encrypt {
            let body = out.len();
            out.resize(body + contents.len() + TAG, 0);
            let sealed = &mut out[body..];
            self.seal
                .encrypt(counter, header.as_bytes(), contents, sealed);
        } else {
            out.extend_from_slice(contents);
            let mut tag = [0; TAG];
            self.seal.encrypt(counter, &out[start..], &[], &mut tag);
            out.extend_from_slice(&tag);
        }
    }

    /// The contents of `datagram`, if it was sealed with the peer's key. `scratch` is where
    /// they are decrypted.
    fn open<'a>(
        &self,
        header: &Header,
        datagram: &'a [u8],
        scratch: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        let counter = header.counter.get();
        if self.encrypt {
            let sealed = &datagram[size_of::<Header>()..];
            scratch.resize(sealed.len(), 0);
            let length = self
                .open
                .decrypt(counter, header.as_bytes(), sealed, scratch);
            return scratch.get(..length.ok()?);
        }
        let (signed, tag) = datagram.split_last_chunk::<TAG>()?;
        let opened = self.open.decrypt(counter, signed, tag, &mut [0; TAG]);
        opened.ok()?;
        signed.get(size_of::<Header>()..)
    }
}

/// A session with one other process.
#[derive(Debug)]
pub(super) struct Session {
    /// Its name here: what the peer's datagrams have.
    pub(super) own: u32,
    /// Its name at the peer.
    peer: u32,
    /// When its keys were made.
    pub(super) begun: Time,
    /// The peer has sent a datagram in it.
    pub(super) proved: bool,
    keys: Keys,
    /// Datagrams that were sent.
    pub(super) counter: u64,
    window: ReplayWindow,
    /// Frames whose fragments all came in this session.
    pub(super) reassembly: Reassembly,
    next_frame: u64,
}

/// Why a datagram counts for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unopened {
    /// It was not made with the key of the session.
    Forged,
    /// It came before.
    Replayed,
}

impl Session {
    pub(super) fn new(own: u32, peer: u32, begun: Time, keys: Keys) -> Self {
        Session {
            own,
            peer,
            begun,
            proved: false,
            keys,
            counter: 0,
            window: ReplayWindow::default(),
            reassembly: Reassembly::default(),
            next_frame: 0,
        }
    }

    /// Appends a datagram with the body that `fill` appends to `scratch`; nothing if `fill`
    /// returns false.
    pub(super) fn seal(
        &mut self,
        (channel, kind): (Channel, Kind),
        scratch: &mut Vec<u8>,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> bool {
        scratch.clear();
        scratch.push(kind as u8);
        let filled = fill(scratch);
        if filled {
            let header = Header::new(channel, self.peer, self.counter);
            self.counter += 1;
            self.keys.seal(&header, scratch, out);
        }
        filled
    }

    /// Kind and body of a datagram that the peer made in this session and that has not come
    /// before. `None` if its kind is not known.
    pub(super) fn open<'a>(
        &mut self,
        header: &Header,
        datagram: &'a [u8],
        scratch: &'a mut Vec<u8>,
    ) -> Result<Option<(Kind, &'a [u8])>, Unopened> {
        let long_enough = datagram.len() >= OVERHEAD;
        let contents = long_enough.then(|| self.keys.open(header, datagram, scratch));
        let contents = contents.flatten().ok_or(Unopened::Forged)?;
        if !self.window.take(header.counter.get()) {
            return Err(Unopened::Replayed);
        }
        self.proved = true;
        let split = contents.split_first_chunk::<1>();
        Ok(split.and_then(|(kind, body)| Some((Kind::try_read_from_bytes(kind).ok()?, body))))
    }

    /// Number of the next frame that is sent in fragments.
    pub(super) fn frame_number(&mut self) -> u64 {
        let number = self.next_frame;
        self.next_frame += 1;
        number
    }
}
