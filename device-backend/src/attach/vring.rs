//! The settings of one virtqueue, as far as the front end has sent them.

use crate::engine::QueueSetup;
use crate::memory::table::MappedTable;
use crate::notifier::Notifier;

#[derive(Debug, Default)]
pub(crate) struct Vring {
    /// Number of entries.
    pub(crate) size: u32,
    /// Available index to start from.
    pub(crate) base: u32,
    /// Addresses in the front end's process: descriptors, available, used.
    pub(crate) addresses: Option<[u64; 3]>,
    pub(crate) kick: Option<Notifier>,
    pub(crate) call: Option<Notifier>,
    pub(crate) error: Option<Notifier>,
    pub(crate) enabled: bool,
}

impl Vring {
    /// What the engine needs to run the queue; `None` if the driver has not set it
    /// up at all. A doorbell needs no rings. An error says why the queue cannot run.
    pub(crate) fn setup(
        &self,
        table: &MappedTable,
        doorbell: bool,
    ) -> Result<Option<QueueSetup>, String> {
        let Some(kick) = &self.kick else {
            return Ok(None);
        };
        let clone = |notifier: &Notifier| notifier.try_clone().map_err(|error| error.to_string());
        let rings = match self.addresses {
            Some(addresses) if !doorbell => translate(addresses, table)?,
            None if !doorbell => return Err("the front end gave no ring addresses".to_owned()),
            _ => [0; 3],
        };
        Ok(Some(QueueSetup {
            size: u16::try_from(self.size).unwrap_or(0),
            rings,
            next_available: self.base as u16,
            kick: clone(kick)?,
            call: self.call.as_ref().map(clone).transpose()?,
            error: self.error.as_ref().map(clone).transpose()?,
        }))
    }
}

fn translate(addresses: [u64; 3], table: &MappedTable) -> Result<[u64; 3], String> {
    match addresses.map(|address| table.guest_address(address)) {
        [Some(descriptors), Some(available), Some(used)] => Ok([descriptors, available, used]),
        _ => Err("a ring is outside of the guest's memory table".to_owned()),
    }
}
