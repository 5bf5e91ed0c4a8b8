//! The handshake of two processes on a socket, before they share rings.
//!
//! ```text
//!   0       8         12     16             20    24           32       96            160     288
//!   | magic | version | kind | wire version | res | ring bytes | source | destination | text  |
//! ```
//!
//! A Hello carries two descriptors: the memory of the rings from which its sender reads,
//! and the eventfd that wakes the sender. A Refusal carries the reason as text. Magic,
//! version and kind are the same in every version, and the length never changes, so
//! processes of different versions understand each other's refusals.
//!
//! The directory of the socket decides which processes can connect at all. In addition,
//! both must run as the same user.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use qnic_abi::wire::WIRE_VERSION;
use qnic_config::plan::MAX_NAME;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::mapping::{BadMemory, PairMemory, BYTES};
use crate::notifier::{Notifier, NotifierError};

const MAGIC: [u8; 8] = *b"qnic-shm";

/// Version of the handshake and of the rings' layout.
const VERSION: u32 = 2;

const HELLO: u32 = 1;
const REFUSAL: u32 = 2;

const TEXT: usize = 128;

#[derive(Debug, Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Message {
    magic: [u8; 8],
    version: U32,
    kind: U32,
    wire_version: U32,
    reserved: U32,
    ring_bytes: U64,
    source: [u8; MAX_NAME],
    destination: [u8; MAX_NAME],
    text: [u8; TEXT],
}

const MESSAGE: usize = size_of::<Message>();
const _: () = assert!(MESSAGE == 288);
const _: () = assert!(std::mem::offset_of!(Message, text) == 160);

/// Why two processes are not connected.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("it refuses: {0}")]
    ByPeer(String),
    #[error("its message is not a qnic hello")]
    Malformed,
    #[error("its {what} is {found}, that of this process {own}: use the same build")]
    Build {
        what: &'static str,
        found: u64,
        own: u64,
    },
    #[error("it runs as user {found}, this process as user {own}")]
    User { found: u32, own: u32 },
    /// It is another process, or wants to connect to another process.
    #[error("it is process \"{source_name}\" and connects to process \"{destination}\"")]
    Names {
        source_name: String,
        destination: String,
    },
    #[error("its hello comes without rings and an eventfd")]
    NoDescriptors,
    #[error(transparent)]
    Memory(#[from] BadMemory),
    #[error(transparent)]
    Notifier(#[from] NotifierError),
    /// The connection ended, or the system refused something.
    #[error(transparent)]
    System(#[from] std::io::Error),
}

impl From<Errno> for Refused {
    fn from(error: Errno) -> Self {
        Refused::System(error.into())
    }
}

/// A Hello that was received, and what came with it.
#[derive(Debug)]
pub(super) struct Hello {
    pub(super) source: String,
    /// Name of the process that it wants to connect to.
    pub(super) destination: String,
    /// The rings from which the sender reads.
    pub(super) memory: PairMemory,
    /// Wakes the sender.
    pub(super) notifier: Notifier,
}

/// Connects without blocking: a listener whose queue is full counts as absent.
pub(super) fn connect(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Checks that the other end belongs to the same user.
pub(super) fn check_user(socket: &UnixStream) -> Result<(), Refused> {
    let found = rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw();
    let own = rustix::process::getuid().as_raw();
    match found == own {
        true => Ok(()),
        false => Err(Refused::User { found, own }),
    }
}

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let text = text.as_bytes();
    std::array::from_fn(|index| text.get(index).copied().unwrap_or(0))
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]);
    // It goes into logs.
    text.chars().filter(|char| !char.is_control()).collect()
}

fn message(kind: u32, source: &str, destination: &str, reason: &str) -> Message {
    Message {
        magic: MAGIC,
        version: VERSION.into(),
        kind: kind.into(),
        wire_version: u32::from(WIRE_VERSION).into(),
        reserved: 0.into(),
        ring_bytes: (BYTES as u64).into(),
        source: padded(source),
        destination: padded(destination),
        text: padded(reason),
    }
}

/// Sends a Hello with the rings from which this process reads and the eventfd that wakes it.
pub(super) fn send_hello(
    socket: &UnixStream,
    source: &str,
    destination: &str,
    memory: &OwnedFd,
    notifier: &Notifier,
) -> Result<(), Errno> {
    let hello = message(HELLO, source, destination, "");
    let descriptors = [memory.as_fd(), notifier.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // There is room for both.
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    send(socket, &hello, &mut control)
}

pub(super) fn send_refusal(
    socket: &UnixStream,
    source: &str,
    destination: &str,
    reason: &str,
) -> Result<(), Errno> {
    let refusal = message(REFUSAL, source, destination, reason);
    send(socket, &refusal, &mut SendAncillaryBuffer::default())
}

/// A message is far shorter than the buffer of a fresh socket, so it is never split.
fn send(
    socket: &UnixStream,
    message: &Message,
    control: &mut SendAncillaryBuffer<'_, '_, '_>,
) -> Result<(), Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let bytes = [IoSlice::new(message.as_bytes())];
    match rustix::net::sendmsg(socket, &bytes, control, flags)? {
        MESSAGE => Ok(()),
        _ => Err(Errno::MSGSIZE),
    }
}

/// The Hello of the other process; `None` if it has not sent one yet.
pub(super) fn receive_hello(socket: &UnixStream) -> Result<Option<Hello>, Refused> {
    let mut message = Message::new_zeroed();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(message.as_mut_bytes())];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let count = match rustix::net::recvmsg(socket, &mut bytes, &mut control, flags) {
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        result => result?.bytes,
    };
    let descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let descriptors: Vec<OwnedFd> = descriptors.collect();
    match count {
        0 => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
        MESSAGE => parse(&message, descriptors).map(Some),
        _ => Err(Refused::Malformed),
    }
}

fn same(what: &'static str, found: impl Into<u64>, own: impl Into<u64>) -> Result<(), Refused> {
    let (found, own) = (found.into(), own.into());
    match found == own {
        true => Ok(()),
        false => Err(Refused::Build { what, found, own }),
    }
}

fn parse(message: &Message, descriptors: Vec<OwnedFd>) -> Result<Hello, Refused> {
    if message.magic != MAGIC {
        return Err(Refused::Malformed);
    }
    let version = message.version.get();
    same("version of the shared-memory link", version, VERSION)?;
    match message.kind.get() {
        HELLO => {}
        REFUSAL => return Err(Refused::ByPeer(text(&message.text))),
        _ => return Err(Refused::Malformed),
    }
    let wire_version = message.wire_version.get();
    same("frame version", wire_version, u32::from(WIRE_VERSION))?;
    same("ring size in bytes", message.ring_bytes.get(), BYTES as u64)?;
    let [memory, notifier] =
        <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| Refused::NoDescriptors)?;
    Ok(Hello {
        source: text(&message.source),
        destination: text(&message.destination),
        memory: PairMemory::adopt(memory)?,
        notifier: Notifier::adopt(notifier)?,
    })
}
