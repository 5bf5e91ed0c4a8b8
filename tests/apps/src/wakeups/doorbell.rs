//! The raw interrupt of QEMU's ivshmem-doorbell, for a program that VFIO gives the device to.
//!
//! ```text
//!   store to the doorbell register ──► QEMU: eventfd of the peer ──► the peer's QEMU: MSI-X vector 0
//!                                                                          │
//!            this program ◄── read of an eventfd ◄── vfio-pci's handler ◄──┘ of that guest
//! ```
//! The stock kernels have VFIO as modules, without its mode for machines that have no IOMMU. So the
//! machine needs an IOMMU (`-device intel-iommu`), and its owner binds the device to vfio-pci first.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic_abi::PAGE_SIZE;
use qnic_apps::report::{BenchRow, Latency};
use serde_json::json;
use std::os::fd::AsRawFd;
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_REGION_INFO_FLAG_MMAP,
};
use vfio_ioctls::{VfioContainer, VfioDevice};
use vmm_sys_util::eventfd::EventFd;

use super::{Rally, Side};
use crate::mapping::{Mapping, READ_WRITE};
use qnic_apps::demo::node::say_line;

/// Registers of ivshmem: the number that the server gave this guest, and what rings a peer's bell, by
/// the peer's number and the number of a vector.
const POSITION: usize = 8;
const BELL: usize = 12;
const PEER_SHIFT: u32 = 16;

/// The command register of a PCI device, and its bit without which it raises no MSI-X interrupt.
const COMMAND: u64 = 4;
const BUS_MASTER: u16 = 4;

#[derive(Args)]
pub(crate) struct Options {
    /// The device, a folder in /sys/bus/pci/devices; vfio-pci is its driver
    #[arg(long)]
    device: PathBuf,
    #[command(flatten)]
    side: Side,
}

/// Answers balls until the last one, or measures and says a [`BenchRow`].
pub(crate) fn run(options: &Options) -> Result<()> {
    let doorbell = Doorbell::open(&options.device)?;
    if options.side.echo {
        say_line(&json!({ "serving": true }))?;
    }
    let rally = Rally::begin(&options.side, || {
        doorbell.ring();
        Ok(())
    })?;
    // It blocks without a limit, as a call for one would be part of each ball. The benchmark runs this
    // program under `timeout`.
    let wait = || doorbell.interrupt.read().map(drop);
    let times = rally.play(|| wait().context("wait for an interrupt"))?;
    if options.side.echo {
        return Ok(());
    }
    let mut row = BenchRow::new("ivshmem-doorbell", 0);
    row.latency.extend(Latency::from_ns(times));
    say_line(&row)
}

struct Doorbell {
    registers: Mapping,
    /// Vector 0 of this guest.
    interrupt: EventFd,
    /// What rings vector 0 of the other guest.
    bell: u32,
    /// Lets go of the device when it is dropped.
    _device: VfioDevice,
}

impl Doorbell {
    fn open(path: &Path) -> Result<Self> {
        let container = VfioContainer::new(None)
            .context("open /dev/vfio/vfio: the modules vfio_iommu_type1 and vfio-pci make it")?;
        let device = VfioDevice::new(path, Arc::new(container), false).with_context(|| {
            let path = path.display();
            format!("open {path} by VFIO: vfio-pci must be its driver, behind an IOMMU")
        })?;
        let registers = Self::map(&device)?;
        become_master(&device)?;
        let interrupt = EventFd::new(0).context("make an eventfd")?;
        let vectors = device.enable_msix(vec![&interrupt]);
        vectors.context("take the first MSI-X vector: has the device `vectors=1` or more?")?;
        let bell = bell_of_peer(registers.load_u32(POSITION))?;
        Ok(Doorbell {
            registers,
            interrupt,
            bell,
            _device: device,
        })
    }

    fn map(device: &VfioDevice) -> Result<Mapping> {
        let bar = VFIO_PCI_BAR0_REGION_INDEX;
        let can_be_mapped = device.get_region_flags(bar) & VFIO_REGION_INFO_FLAG_MMAP != 0;
        ensure!(
            can_be_mapped && device.get_region_offset(bar) == 0,
            "VFIO does not let the device's registers be mapped: they share a page with another's"
        );
        let fd = Some(device.as_raw_fd());
        let mapping = Mapping::new(PAGE_SIZE, READ_WRITE, libc::MAP_SHARED, fd);
        mapping.context("map the device's registers")
    }

    fn ring(&self) {
        self.registers.store_u32(BELL, self.bell);
    }
}

/// What rings the other of two guests.
fn bell_of_peer(own: u32) -> Result<u32> {
    let peer = 1_u32.checked_sub(own);
    let peer = peer.with_context(|| {
        format!("this guest is number {own} of the ivshmem server's, which should have two")
    })?;
    Ok(peer << PEER_SHIFT)
}

/// Lets the device write to memory, which an MSI-X interrupt is.
fn become_master(device: &VfioDevice) -> Result<()> {
    let config = VFIO_PCI_CONFIG_REGION_INDEX;
    let read = || {
        let mut bytes = [0; 2];
        device.region_read(config, &mut bytes, COMMAND);
        u16::from_le_bytes(bytes)
    };
    let command = read() | BUS_MASTER;
    device.region_write(config, &command.to_le_bytes(), COMMAND);
    ensure!(
        read() & BUS_MASTER != 0,
        "the device does not become a bus master"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_two_guests_rings_the_other_and_a_third_is_refused() {
        assert_eq!(bell_of_peer(0).unwrap(), 0x1_0000);
        assert_eq!(bell_of_peer(1).unwrap(), 0);
        let error = bell_of_peer(2).unwrap_err().to_string();
        assert!(error.contains("number 2"), "{error}");
    }

    #[test]
    fn a_device_that_vfio_does_not_have_is_refused_with_what_it_takes() {
        let error = Doorbell::open(Path::new("/sys/bus/pci/devices/none")).err();
        let error = format!("{:#}", error.unwrap());
        assert!(error.contains("vfio-pci"), "{error}");
    }
}
