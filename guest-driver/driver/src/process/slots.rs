//! Which VNI and which port belong to which process (Q1, Q9, N1).
//!
//! ```text
//!   Free ──reserve──► Reserved ──publish──► Live ──retire──► Reserved ──release──► Free
//! ```
//! A slot is Reserved while its process is registered with the NIC or removed from it:
//! faults do not find it, and no other process gets it. The search for a free slot starts behind the
//! one that was taken last (Q9), so a window is reused as late as possible.

use alloc::sync::Arc;
use alloc::vec::Vec;

use qnic_abi::datagram::DRIVER_PORT;
use qnic_abi::{Port, Status, VniId};

use super::state::ProcessState;
use crate::memory::MemoryManager;
use crate::platform::{table, NoMemory};

/// First of the ports that the driver chooses for processes.
const FIRST_DYNAMIC_PORT: u16 = 0x8000;

/// A slot that is not free.
struct Slot<P: MemoryManager> {
    port: Port,
    /// There is one while the slot is Live.
    process: Option<Arc<ProcessState<P>>>,
}

/// The table of processes; lives behind a spin lock.
pub(crate) struct Slots<P: MemoryManager> {
    slots: Vec<Option<Slot<P>>>,
    last_slot: usize,
    last_port: u16,
}

impl<P: MemoryManager> Slots<P> {
    pub(crate) fn new(windows: u32) -> Result<Self, NoMemory> {
        let windows = windows as usize;
        Ok(Slots {
            slots: table(windows)?,
            last_slot: windows.saturating_sub(1),
            last_port: u16::MAX,
        })
    }

    /// Takes a free slot for a process on `wanted`, or on any free port if that is 0.
    ///
    /// # Errors
    /// `PortInUse`, `Exhausted`.
    pub(crate) fn reserve(&mut self, wanted: Port) -> Result<(VniId, Port), Status> {
        let index = self.free_index()?;
        let port = if wanted.0 == 0 {
            self.free_port()?
        } else if self.holds(wanted) {
            return Err(Status::PortInUse);
        } else {
            wanted
        };
        Ok((self.take(index, port), port))
    }

    /// Takes a free slot for the driver itself, on [`DRIVER_PORT`], which no process gets.
    ///
    /// # Errors
    /// `Exhausted`.
    pub(crate) fn reserve_driver(&mut self) -> Result<VniId, Status> {
        let index = self.free_index()?;
        Ok(self.take(index, Port(DRIVER_PORT)))
    }

    fn free_index(&self) -> Result<usize, Status> {
        let count = self.slots.len();
        (1..=count)
            .map(|step| (self.last_slot + step) % count)
            .find(|index| self.slots[*index].is_none())
            .ok_or(Status::Exhausted)
    }

    fn take(&mut self, index: usize, port: Port) -> VniId {
        self.slots[index] = Some(Slot {
            port,
            process: None,
        });
        self.last_slot = index;
        VniId(index as u16)
    }

    /// Makes the process of a reserved slot known to the fault service.
    pub(crate) fn publish(&mut self, process: Arc<ProcessState<P>>) {
        if let Some(slot) = self.slot(process.vni) {
            slot.process = Some(process);
        }
    }

    /// Takes the process out but keeps the slot. The result must be dropped
    /// outside of the lock.
    pub(crate) fn retire(&mut self, vni: VniId) -> Option<Arc<ProcessState<P>>> {
        self.slot(vni)?.process.take()
    }

    /// Frees a reserved slot.
    pub(crate) fn release(&mut self, vni: VniId) {
        if let Some(slot) = self.slots.get_mut(usize::from(vni.0)) {
            *slot = None;
        }
    }

    /// The process on a VNI.
    pub(crate) fn process(&self, vni: VniId) -> Option<&Arc<ProcessState<P>>> {
        let slot = self.slots.get(usize::from(vni.0))?.as_ref()?;
        slot.process.as_ref()
    }

    fn slot(&mut self, vni: VniId) -> Option<&mut Slot<P>> {
        self.slots.get_mut(usize::from(vni.0))?.as_mut()
    }

    fn holds(&self, port: Port) -> bool {
        port.0 == DRIVER_PORT || self.slots.iter().flatten().any(|slot| slot.port == port)
    }

    /// The next free port behind the last one chosen. There are more ports than slots.
    fn free_port(&mut self) -> Result<Port, Status> {
        for _ in FIRST_DYNAMIC_PORT..=u16::MAX {
            self.last_port = self.last_port.checked_add(1).unwrap_or(FIRST_DYNAMIC_PORT);
            if !self.holds(Port(self.last_port)) {
                return Ok(Port(self.last_port));
            }
        }
        Err(Status::Exhausted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fake;

    /// The search begins behind the slot that was taken last, and goes around (Q9): a slot that has
    /// just become free is taken when all others have been.
    #[test]
    fn the_slot_behind_the_last_one_is_taken() {
        let mut slots = Slots::<Fake>::new(4).unwrap();
        let take = |slots: &mut Slots<Fake>| slots.reserve(Port(0)).map(|(vni, _)| vni.0);
        assert_eq!([take(&mut slots), take(&mut slots)], [Ok(0), Ok(1)]);
        slots.release(VniId(0));
        assert_eq!([take(&mut slots), take(&mut slots)], [Ok(2), Ok(3)]);
        slots.release(VniId(2));
        assert_eq!(take(&mut slots), Ok(0), "it goes around");
        slots.release(VniId(1));
        slots.release(VniId(3));
        assert_eq!(take(&mut slots), Ok(1));
        assert_eq!(take(&mut slots), Ok(2));
        assert_eq!(take(&mut slots), Ok(3));
        assert_eq!(take(&mut slots), Err(Status::Exhausted));
    }
}
