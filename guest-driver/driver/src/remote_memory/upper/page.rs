//! Pages of a client, as the state machine moves them.

use qnic_abi::{SharedMemory, PAGE_SIZE};

use crate::datagram::{Address, Buffer, Data, Handle, Header, Outgoing, Port};
use crate::platform::{DeviceMemory, Platform};
use crate::remote_memory::wire::{Ticket, Transmit};

/// Bytes that are copied at a time.
const PIECE: usize = 256;

/// A page of a client: one of a user's request, or one of its port.
pub(super) struct Page<P: Platform> {
    pub(super) buffer: Buffer<P>,
    /// It was posted as a steered buffer, so it belongs to the user.
    pub(super) steered: bool,
}

/// Another handle on all of a page.
pub(super) fn lend<M: DeviceMemory>(memory: &M) -> M {
    memory.part(0, memory.size())
}

/// Fills a page with zeros.
pub(super) fn clear<M: DeviceMemory>(page: &M) {
    for offset in (0..page.size()).step_by(PIECE) {
        let length = PIECE.min(page.size() - offset);
        page.write_bytes(offset, &[0; PIECE][..length]);
    }
}

/// Copies a page.
pub(super) fn copy<M: DeviceMemory>(from: &M, to: &M) {
    let mut piece = [0; PIECE];
    let size = from.size().min(to.size());
    for offset in (0..size).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min(size - offset)];
        from.read_bytes(offset, piece);
        to.write_bytes(offset, piece);
    }
}

/// A message to be sent.
pub(super) struct Sending<P: Platform> {
    to: Address,
    message: Outgoing<P>,
}

/// Token of messages without a page.
const NO_TICKET: u64 = u64::MAX;

impl<P: Platform> Sending<P> {
    /// A message of the state machine. `memory` finds the memory in its page.
    pub(super) fn new<T>(
        transmit: Transmit<'_, T>,
        memory: impl Fn(&T) -> Option<&P::Memory>,
    ) -> Option<Self> {
        let page = transmit.data.and_then(memory).map(lend);
        let data = page.map_or_else(Data::none, |page| Data::whole(Buffer::new(page)));
        Some(Sending {
            to: transmit.to,
            message: Outgoing {
                header: Header::new(&transmit.header)?,
                data,
                target: (transmit.target != 0).then_some(Handle(transmit.target)),
                token: transmit.ticket.map_or(NO_TICKET, |ticket| ticket.0),
            },
        })
    }

    /// Sends it. Returns the ticket if the port does not take it; then it counts as lost.
    pub(super) fn send(self, port: &Port<P>) -> Option<Ticket> {
        let (_, refused) = port.send(&[self.to], self.message).err()?;
        ticket(refused.token)
    }
}

/// The ticket that is the token of a message.
pub(super) fn ticket(token: u64) -> Option<Ticket> {
    (token != NO_TICKET).then_some(Ticket(token))
}

/// Returns true for a page that can be read in or written: the memory of a block.
pub(super) fn is_whole<P: Platform>(buffer: &Buffer<P>) -> bool {
    buffer.memory().size() == PAGE_SIZE
}
