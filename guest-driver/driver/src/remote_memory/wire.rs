//! The messages that client and server exchange with the datagram layer.

use qnic_abi::remote_memory::{Header, Kind, Reason, HEADER_BYTES};
use zerocopy::IntoBytes;

use crate::datagram::Address;

/// A message that has arrived, with the buffer that it has come in.
#[derive(Debug)]
pub struct Arrival<'a, P> {
    /// Its sender, according to the NIC, not to the message.
    pub from: Address,
    /// Its header, of any length.
    pub header: &'a [u8],
    /// Handle of the steered buffer that it has taken; zero if it took another buffer.
    pub target: u64,
    /// The buffer, with the data at its start.
    pub page: P,
    /// Bytes of data.
    pub length: usize,
}

/// Names a transmission that has ended ([`Transmit::ticket`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(pub(super) u64);

/// A message to send.
#[derive(Debug)]
pub struct Transmit<'a, P> {
    /// Its destination.
    pub to: Address,
    /// Its header.
    pub header: [u8; HEADER_BYTES],
    /// Handle of the receiver's steered buffer; zero for any buffer.
    pub target: u64,
    /// The page that goes with it.
    pub data: Option<&'a P>,
    /// Present with `data`. The sender hands the ticket back when the NIC does not read the page any
    /// more; the page is not given up before.
    pub ticket: Option<Ticket>,
}

/// A header with zero in all fields that only some kinds have.
pub(super) fn header(kind: Kind, request: u32, session: u64) -> Header {
    Header {
        kind: kind as u8,
        request: request.into(),
        session: session.into(),
        ..Header::default()
    }
}

/// The header of a refusal of the request with this header.
pub(super) fn refusal(request: &Header, reason: Reason) -> Header {
    Header {
        reason: reason as u8,
        block: request.block,
        version: request.version,
        ..header(Kind::Refused, request.request.get(), request.session.get())
    }
}

/// This header as that of the refusal of a session that is over.
pub(super) fn expired(header: Header) -> Header {
    Header {
        reason: Reason::Expired as u8,
        ..header
    }
}

/// A message without data.
pub(super) fn bare<'a, P>(to: Address, header: &impl AsHeader) -> Transmit<'a, P> {
    Transmit {
        to,
        header: header.bytes(),
        target: 0,
        data: None,
        ticket: None,
    }
}

/// A struct with the size of a header.
pub(super) trait AsHeader {
    /// Its bytes.
    fn bytes(&self) -> [u8; HEADER_BYTES];
}

impl<T: IntoBytes + zerocopy::Immutable> AsHeader for T {
    fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        for (to, from) in bytes.iter_mut().zip(self.as_bytes()) {
            *to = *from;
        }
        bytes
    }
}
