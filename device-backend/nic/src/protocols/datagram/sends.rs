//! Packets that wait for their turn: those of the driver, by slot of their operation.

use super::command::Packet;
use crate::core::OPERATION_SLOTS;
use crate::ids::OperationId;

/// The packets, from the first slot of a message on, as many as were needed.
#[derive(Debug, Default)]
pub(super) struct Sends(Vec<Option<Packet>>);

impl Sends {
    /// Keeps a packet until its operation ends.
    pub(super) fn put(&mut self, id: OperationId, packet: Packet) {
        let index = usize::from(id.slot()).saturating_sub(OPERATION_SLOTS);
        if index >= self.0.len() {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(packet);
    }

    fn slot(&mut self, id: OperationId) -> Option<&mut Option<Packet>> {
        let index = usize::from(id.slot()).checked_sub(OPERATION_SLOTS)?;
        self.0.get_mut(index)
    }

    /// The packet of an operation.
    pub(super) fn get(&mut self, id: OperationId) -> Option<&Packet> {
        self.slot(id)?.as_ref()
    }

    /// Takes the packet of an operation out, which ends.
    pub(super) fn take(&mut self, id: OperationId) -> Option<Packet> {
        self.slot(id)?.take()
    }
}
