//! A PCI function that VFIO hands to this process, as the device of a node.
//!
//! ```text
//!   Function::open   container, group, device; capabilities
//!     config         reset, features; the device's configuration
//!     reach          MAP_DMA, frames
//!     transport      notification registers are mapped
//!     start          bus master, MSI-X, queues, DRIVER_OK; SRAM is mapped
//!   Link::stop       reset: queues and DMA have ended when it returns
//! ```
//!
//! # Invariants
//! - The function is not reset between DRIVER_OK and the answer to Hello: QEMU would end while the SRAM
//!   is on its way. Nothing here prevents the kernel from doing so when the process is killed in that
//!   time.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use qnic_abi::attach::{CONFIG_SIZE, EVENT_QUEUE, FIRST_DOORBELL};
use qnic_host::{Addresses, Attachment, Config, ConnectError, Transport, Virtqueue};
use qnic_shared::region::{map_shared, Kept, SharedRegion};
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_REGION_INFO_FLAG_MMAP,
};
use vfio_ioctls::{VfioContainer, VfioDevice};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::{EventFd, EFD_CLOEXEC, EFD_NONBLOCK};

use crate::capabilities::{Place, Places, CONFIG_BYTES};
use crate::error::VfioError;
use crate::pinned::{kept, kept_group, may_pin, pin};
use crate::registers::{Common, Registers};

/// The command register, and its bits for registers in memory and for accesses by the device.
const COMMAND: u64 = 4;
const MEMORY_AND_MASTER: u16 = 6;

/// A function that this process has.
pub(crate) struct Function {
    device: Arc<Device>,
    link: Option<Arc<Link>>,
}

/// The open files of a function. Forked children have none of them.
struct Device {
    _kept: [Option<Kept>; 3],
    vfio: VfioDevice,
    container: Arc<VfioContainer>,
    places: Places,
}

impl Function {
    /// Takes the function with this folder, of which up to `memory` bytes are to be pinned.
    ///
    /// # Errors
    /// [`VfioError`]
    pub(crate) fn open(folder: &Path, memory: usize) -> Result<Self, VfioError> {
        may_pin(memory)?;
        let path = std::fs::canonicalize(folder);
        let path = path.map_err(VfioError::system("look at the PCI function"))?;
        let refused = |error| VfioError::Open {
            function: path.clone(),
            error,
        };
        let container = Arc::new(VfioContainer::new(None).map_err(refused)?);
        let vfio = VfioDevice::new(&path, container.clone(), false).map_err(refused)?;
        let group = std::fs::read_link(path.join("iommu_group")).ok();
        let group = group.as_ref().and_then(|link| link.file_name()?.to_str());
        let mut config = [0xff; CONFIG_BYTES];
        vfio.region_read(VFIO_PCI_CONFIG_REGION_INDEX, &mut config, 0);
        let device = Device {
            _kept: [
                Some(kept(&vfio)),
                Some(kept(container.as_ref())),
                group.and_then(kept_group),
            ],
            places: Places::of(&config)?,
            vfio,
            container,
        };
        device.become_master()?;
        Ok(Function {
            device: Arc::new(device),
            link: None,
        })
    }
}

impl Device {
    fn common(&self) -> Result<Common<'_>, VfioError> {
        Common::at(self, self.places.common)
    }

    /// Lets the device access memory, which an interrupt is, too.
    fn become_master(&self) -> Result<(), VfioError> {
        let command = || {
            let mut bytes = [0; 2];
            self.vfio
                .region_read(VFIO_PCI_CONFIG_REGION_INDEX, &mut bytes, COMMAND);
            u16::from_le_bytes(bytes)
        };
        let bytes = (command() | MEMORY_AND_MASTER).to_le_bytes();
        self.vfio
            .region_write(VFIO_PCI_CONFIG_REGION_INDEX, &bytes, COMMAND);
        match command() & MEMORY_AND_MASTER {
            MEMORY_AND_MASTER => Ok(()),
            _ => Err(VfioError::Device("does not become a bus master")),
        }
    }

    /// Maps `length` bytes at a place.
    fn map(
        &self,
        place: &Place,
        length: usize,
        what: &'static str,
    ) -> Result<SharedRegion, VfioError> {
        let end = place.offset.checked_add(length as u64);
        let flags = self.vfio.get_region_flags(place.bar);
        let fits = end.is_some_and(|end| end <= self.vfio.get_region_size(place.bar))
            && length as u64 <= place.length
            && flags & VFIO_REGION_INFO_FLAG_MMAP != 0;
        if !fits {
            return Err(VfioError::Missing(what));
        }
        let offset = self.vfio.get_region_offset(place.bar) + place.offset;
        let mapped = map_shared(&self.vfio, offset, length);
        let mapped = mapped.and_then(|region| region.kept_from_children(None));
        mapped.map_err(VfioError::system("map registers of the NIC"))
    }
}

impl Registers for Device {
    fn read(&self, bar: u32, offset: u64, bytes: &mut [u8]) {
        self.vfio.region_read(bar, bytes, offset);
    }

    fn write(&self, bar: u32, offset: u64, bytes: &[u8]) {
        self.vfio.region_write(bar, bytes, offset);
    }
}

impl Attachment for Function {
    fn config(&mut self) -> Result<[u8; CONFIG_SIZE], ConnectError> {
        self.device.common()?.begin()?;
        let place = self.device.places.device;
        let mut config = [0xff; CONFIG_SIZE];
        for (word, offset) in config.chunks_exact_mut(4).zip((place.offset..).step_by(4)) {
            self.device.read(place.bar, offset, word);
        }
        Ok(config)
    }

    fn queue_size_max(&mut self) -> Result<u16, ConnectError> {
        let common = self.device.common()?;
        let size = (0..FIRST_DOORBELL as u16).map(|queue| common.queue_size_max(queue));
        // The next smaller power of two.
        let size = size.min().and_then(|size| size.checked_ilog2());
        let few = VfioError::Device("has no room for descriptors");
        let size = size.filter(|size| *size > 0).ok_or(few)?;
        Ok(1 << size)
    }

    fn reach(&mut self, arena: &SharedRegion, _: &OwnedFd) -> Result<Addresses, ConnectError> {
        let frames = pin(&self.device.container, arena)?;
        log::info!(
            "the NIC is driven through VFIO: {} KiB of this guest's memory are pinned for it",
            arena.len() / 1024
        );
        Ok(Addresses::Frames(frames))
    }

    fn transport(&mut self, config: &Config) -> Result<Arc<dyn Transport>, ConnectError> {
        let queues = FIRST_DOORBELL + config.doorbells as usize;
        let link = Arc::new(Link::new(self.device.clone(), queues)?);
        self.link = Some(link.clone());
        Ok(link)
    }

    fn start(
        &mut self,
        queues: &[Virtqueue],
        interrupt: &EventFd,
    ) -> Result<SharedRegion, ConnectError> {
        let device = &self.device;
        let vectors = device.vfio.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX);
        if vectors.is_none_or(|info| info.count == 0) {
            return Err(VfioError::Missing("MSI-X interrupt").into());
        }
        let taken = device.vfio.enable_msix(vec![interrupt]);
        taken.map_err(VfioError::vfio("take the interrupt"))?;
        let sram = device.places.sram;
        let length =
            usize::try_from(sram.length).map_err(|_| VfioError::Missing("SRAM that fits"))?;
        let sram = device.map(&sram, length, "SRAM that can be mapped")?;
        let common = device.common()?;
        for (index, queue) in (0..).zip(queues) {
            let own = common.set_queue(index, queue)?;
            if own != index {
                return Err(VfioError::Missing("notification register for each queue").into());
            }
        }
        common.go();
        if let Some(link) = &self.link {
            link.notify(EVENT_QUEUE);
        }
        Ok(sram)
    }
}

/// What the threads of a node use of a function.
struct Link {
    /// One register for each queue, at its number times the step.
    registers: SharedRegion,
    step: usize,
    queues: usize,
    /// Readable once the device was stopped.
    stopped: EventFd,
    is_stopped: Mutex<bool>,
    device: Arc<Device>,
}

impl Link {
    fn new(device: Arc<Device>, queues: usize) -> Result<Self, VfioError> {
        let (place, step) = (device.places.notify, device.places.notify_step as usize);
        let what = "notification register on a page for each queue";
        let length = queues.checked_mul(step).filter(|length| *length > 0);
        let registers = device.map(&place, length.ok_or(VfioError::Missing(what))?, what)?;
        if usize::from(device.common()?.queues()) < queues || step < 2 {
            return Err(VfioError::Device("has too few queues for its doorbells"));
        }
        let stopped = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC);
        Ok(Link {
            registers,
            step,
            queues,
            stopped: stopped.map_err(VfioError::system("make an eventfd"))?,
            is_stopped: Mutex::new(false),
            device,
        })
    }
}

impl Transport for Link {
    fn notify(&self, queue: usize) {
        if queue < self.queues {
            // Relaxed: the ring has fenced what the device is to see (partner: its load of the index).
            let offset = queue * self.step;
            let order = Ordering::Relaxed;
            self.registers.store_u16(offset, queue as u16, order);
        }
    }

    fn stop(&self) {
        // Held during the reset: a second call returns when the device has stopped, too.
        let mut is_stopped = self
            .is_stopped
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *is_stopped, true) {
            return;
        }
        let reset = self.device.common().and_then(|common| common.reset());
        if let Err(error) = reset {
            log::error!("{error}");
        }
        let _ = self.stopped.write(1);
    }

    fn sources(&self) -> Vec<(RawFd, EventSet)> {
        vec![(self.stopped.as_raw_fd(), EventSet::IN)]
    }

    fn serve(&self, _: usize) -> bool {
        false
    }

    fn is_silent(&self) -> bool {
        true
    }
}
