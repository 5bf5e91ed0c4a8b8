//! A look at the next message before `vhost` takes it from the socket.
//!
//! ```text
//!   header (12): request, flags, size   body
//!   SET_VRING_ADDR:                     index, flags, descriptors, used, available, log
//!   SET_BACKEND_REQ_FD:                 none; the descriptor of a socket beside it
//! ```
//! Numbers are of the machine's own byte order. Whatever is not as expected is left to `vhost`.

use std::io::{IoSliceMut, Read, Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

const HEADER_BYTES: usize = 12;
const SET_VRING_ADDR: u32 = 9;
const SET_BACKEND_REQ_FD: u32 = 21;

/// Flags of a header: the version, that it is a reply, that it wants one.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Bytes of a SET_VRING_ADDR, the longest message that is looked at.
const ADDRESSES_BYTES: usize = HEADER_BYTES + 40;

/// Bits of addresses of descriptors, available and used ring that have to be zero.
const ALIGNMENT: [u64; 3] = [0xf, 0x1, 0x3];

/// A message that needs more than `vhost` does.
pub(super) enum Preview {
    /// SET_BACKEND_REQ_FD, with a copy of the descriptor that it brings.
    Channel(UnixStream),
    /// SET_VRING_ADDR with a ring that is not aligned, at which `vhost` ends the connection.
    Misaligned(Addresses),
}

/// A SET_VRING_ADDR.
pub(super) struct Addresses {
    pub(super) index: u32,
    /// Addresses of descriptors, available and used ring.
    pub(super) rings: [u64; 3],
    wants_reply: bool,
}

impl Preview {
    /// Looks at the next message, which stays where it is.
    pub(super) fn of(stream: &UnixStream) -> Option<Self> {
        let mut message = [0; ADDRESSES_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut message)];
        let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = rustix::net::recvmsg(stream, &mut parts, &mut control, flags).ok()?;
        let mut descriptors = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<OwnedFd>>(),
            _ => Vec::new(),
        });
        let descriptor = descriptors.next();
        let message = message.get(..received.bytes)?;
        match (word(message, 0)?, descriptor) {
            (SET_BACKEND_REQ_FD, Some(socket)) if message.len() == HEADER_BYTES => {
                Some(Preview::Channel(socket.into()))
            }
            // A descriptor is that of the message behind it: the kernel looks that far.
            (SET_VRING_ADDR, _) => Addresses::parse(message).map(Preview::Misaligned),
            _ => None,
        }
    }
}

impl Addresses {
    /// The message, if nothing is wrong with it but the alignment.
    fn parse(message: &[u8]) -> Option<Self> {
        let flags = word(message, 4)?;
        let size = word(message, 8)? as usize;
        let well_formed = message.len() == ADDRESSES_BYTES
            && flags & !NEED_REPLY == VERSION
            && size == ADDRESSES_BYTES - HEADER_BYTES
            // It is not asked to log.
            && word(message, 16)? == 0;
        let rings = [long(message, 20)?, long(message, 36)?, long(message, 28)?];
        let aligned = rings
            .iter()
            .zip(ALIGNMENT)
            .all(|(ring, bits)| ring & bits == 0);
        (well_formed && !aligned).then_some(Addresses {
            index: word(message, HEADER_BYTES)?,
            rings,
            wants_reply: flags & NEED_REPLY != 0,
        })
    }

    /// Takes the message from the socket. Says that it was handled if it wants to know, and the
    /// connection `acknowledges` at all.
    pub(super) fn take(&self, mut stream: &UnixStream, acknowledges: bool) -> Result<()> {
        stream.read_exact(&mut [0; ADDRESSES_BYTES])?;
        if !self.wants_reply || !acknowledges {
            return Ok(());
        }
        let words = [SET_VRING_ADDR, VERSION | REPLY, 8, 0, 0];
        stream.write_all(&words.map(u32::to_ne_bytes).concat())
    }
}

fn word(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(at..at + 4)?;
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

fn long(message: &[u8], at: usize) -> Option<u64> {
    let bytes = message.get(at..at + 8)?;
    bytes.try_into().ok().map(u64::from_ne_bytes)
}
