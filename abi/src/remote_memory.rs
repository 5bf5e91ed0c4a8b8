//! Remote memory (H9; docs/remote-memory.md): the one header that clients and servers send each
//! other over datagrams ([`crate::datagram`]), with a page of data or none.
//!
//! ```text
//!   client                                       server
//!   Attach, with a key ────────────────────────► has a page of its memory for each
//!   ◄──────────────────────── Attached: a session   block that a client has written
//!   Reserve, so many pages ────────────────────►
//!   ◄──────────────────────── Reserved: those pages no other client gets
//!   Write, the page ───────────────────────────►
//!   ◄──────────────────────── Written: the version that is kept
//!   Read, a steered buffer ────────────────────►
//!   ◄──────────────────────── Page, into that buffer
//! ```
//!
//! | kind | sent by | data | block | version | target |
//! |---|---|---|---|---|---|
//! | [`Kind::Attach`] | client | | its layout is [`Attach`] | | |
//! | [`Kind::Attached`] | server | | pages that the client may have | [`Attach::client`] | the lease in milliseconds |
//! | [`Kind::Reserve`] | client | | pages that are to be the client's | | |
//! | [`Kind::Reserved`] | server | | pages that are | | |
//! | [`Kind::Renew`] | client | | | | |
//! | [`Kind::Renewed`] | server | | pages that the client may have | | |
//! | [`Kind::Ask`] | server | | | | |
//! | [`Kind::Read`] | client | | block | | the buffer for the page, or zero |
//! | [`Kind::Page`] | server | the page | block | that of the page | |
//! | [`Kind::Write`] | client | the page | block | that of the page | |
//! | [`Kind::Written`] | server | | block | that which is kept | |
//! | [`Kind::Refused`] | server | | block | that of the request | |
//! | [`Kind::Leave`] | server | | pages that the client has | | |
//! | [`Kind::Detach`] | client | | | | |
//! | [`Kind::Detached`] | server | | | | |
//!
//! What the table leaves empty is zero. An answer carries the request number of what it answers;
//! a Leave, an Ask, and a Refused that tells of the end of a session carry zero.

use zerocopy::little_endian::{U16, U32, U64};

use crate::datagram::HEADER_CAPACITY;
use crate::Secret;

/// Size of a header in bytes.
pub const HEADER_BYTES: usize = 40;

/// Datagram port of a node's server.
pub const SERVER_PORT: u16 = 64;

/// Datagram port of the first volume that a node attaches; the others have the ports behind it.
pub const FIRST_CLIENT_PORT: u16 = 65;

/// Highest block of a volume.
pub const MAX_BLOCK: u64 = (1 << 40) - 1;

const _: () = assert!(HEADER_BYTES <= HEADER_CAPACITY);

numbered! {
    /// What a message is.
    pub enum Kind: u8 {
        /// A client asks for memory.
        Attach = 1,
        /// It has some.
        Attached = 2,
        /// A client is still there, and asks whether its session is.
        Renew = 3,
        /// It is.
        Renewed = 4,
        /// A client asks for a page.
        Read = 5,
        /// The page.
        Page = 6,
        /// A client brings a page.
        Write = 7,
        /// The server has it, or a newer one.
        Written = 8,
        /// A request is not carried out; for which [`Reason`].
        Refused = 9,
        /// The server wants to leave: move the pages.
        Leave = 10,
        /// A client needs its pages no more.
        Detach = 11,
        /// The session is no more.
        Detached = 12,
        /// A client wants so many pages to be its own, whatever others write.
        Reserve = 13,
        /// So many are: fewer if there are no more.
        Reserved = 14,
        /// The server has not heard of the client for a while: is the session still its own? The answer
        /// is a Renew, or a Detach of a client that has no such session.
        Ask = 15,
    }
}

numbered! {
    /// Why a request is refused.
    pub enum Reason: u8 {
        /// The key is another.
        WrongKey = 1,
        /// Another client has attached the volume.
        VolumeInUse = 2,
        /// The server has as many clients as it can.
        TooManyClients = 3,
        /// The client has as many pages as it may, or the server as many as it can.
        Full = 4,
        /// The server does not know the session: it has started anew, or has not heard of the
        /// client for too long.
        NoSession = 5,
        /// The client has not written the block.
        NoPage = 6,
        /// The server leaves and takes no client.
        Leaving = 7,
        /// The server has taken back what it gave in this session: it has not heard of the client for
        /// the lease, or ends at once.
        Expired = 8,
        /// The servers cannot hold the volume: not sent, but what an attaching client says.
        NoRoom = 9,
    }
}

layouts! {
    /// All messages but [`Attach`].
    ///
    /// ```text
    ///      0        2        4                 8
    ///   0  |knd|rsn | window | request         |
    ///   8  | session                           |
    ///  16  | block                             |
    ///  24  | version                           |
    ///  32  | target                            |
    /// ```
    #[bytes(HEADER_BYTES)]
    pub struct Header {
        /// A [`Kind`].
        pub kind: u8,
        /// A [`Reason`] in a Refused; else zero.
        pub reason: u8,
        /// In an Attached: how many requests the client may have under way. Else zero.
        pub window: U16,
        /// Number of the request, of the client.
        pub request: U32,
        /// What server and client have agreed on; zero in a Refused that answers an Attach.
        pub session: U64,
        /// See the table.
        pub block: U64,
        /// See the table.
        pub version: U64,
        /// Handle of the steered buffer that waits for the page; in an Attached the lease.
        pub target: U64,
    }

    /// [`Kind::Attach`]: a client asks for memory for a volume.
    ///
    /// ```text
    ///      0        2        4                 8
    ///   0  |knd|res.| res.   | request         |
    ///   8  | client                            |
    ///  16  | volume                            |
    ///  24  | key                               | … 40
    /// ```
    #[bytes(HEADER_BYTES)]
    pub struct Attach {
        /// [`Kind::Attach`].
        pub kind: u8,
        /// Zero.
        pub reserved0: u8,
        /// Zero.
        pub reserved1: U16,
        /// Number of the request, of the client.
        pub request: U32,
        /// Random number of this life of the client.
        pub client: U64,
        /// Which volume.
        pub volume: U64,
        /// What the server asks of its clients.
        pub key: [u8; 16],
    }
}

const _: () = assert!(core::mem::offset_of!(Header, session) == 8);
const _: () = assert!(core::mem::offset_of!(Attach, key) == 24);
const _: () = assert!(size_of::<Secret>() == 16);

impl Header {
    /// Returns true if everything that the kind leaves empty is zero, and whether kind and reason
    /// are numbers of the list.
    pub fn is_valid(&self) -> bool {
        let Ok(kind) = Kind::try_from(self.kind) else {
            return false;
        };
        let (window, reason) = (self.window.get(), self.reason);
        let (block, version) = (self.block.get(), self.version.get());
        let no_target = self.target.get() == 0;
        let plain = reason == 0 && window == 0;
        match kind {
            Kind::Attach => false,
            Kind::Attached => reason == 0,
            Kind::Renew | Kind::Detach | Kind::Detached => {
                plain && block == 0 && version == 0 && no_target
            }
            Kind::Renewed | Kind::Reserve | Kind::Reserved => plain && version == 0 && no_target,
            Kind::Leave => plain && version == 0 && no_target && self.request.get() == 0,
            Kind::Ask => {
                plain && block == 0 && version == 0 && no_target && self.request.get() == 0
            }
            Kind::Read => plain && version == 0 && block <= MAX_BLOCK,
            Kind::Page | Kind::Write | Kind::Written => {
                plain && version != 0 && no_target && block <= MAX_BLOCK
            }
            Kind::Refused => Reason::try_from(reason).is_ok() && window == 0 && no_target,
        }
    }
}

impl Attach {
    /// Returns true if it is one, with zeros where it has to have them.
    pub fn is_valid(&self) -> bool {
        self.kind == Kind::Attach as u8
            && self.reserved0 == 0
            && self.reserved1.get() == 0
            && self.client.get() != 0
    }
}
