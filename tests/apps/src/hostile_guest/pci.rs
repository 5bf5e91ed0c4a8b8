//! The device on the PCI bus, by files of sysfs.

use std::fs::{read_dir, read_link, read_to_string, write, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use qnic_abi::attach::VIRTIO_ID;
use qnic_host::SharedRegion;

const DEVICES: &str = "/sys/bus/pci/devices";
const DRIVER: &str = "/sys/bus/pci/drivers/virtio-pci";
const VENDOR: u16 = 0x1af4;
/// Number of the first device of virtio 1.
const FIRST: u16 = 0x1040;

/// The command register, and its bits for memory and for bus mastering.
const COMMAND: usize = 4;
const MEMORY_AND_MASTER: u16 = 6;
/// The first address register.
const BARS: usize = 0x10;

/// Bytes of the configuration space.
pub(super) const CONFIG_BYTES: usize = 256;
/// First of those that are no header.
pub(super) const HEADER_BYTES: usize = 64;

/// Which registers a capability of virtio describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Common = 1,
    Notify = 2,
    Device = 4,
    /// A shared-memory region: the SRAM.
    Memory = 8,
}

/// Where such registers are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) bar: usize,
    pub(super) offset: usize,
    pub(super) length: usize,
    /// Distance of two doorbells.
    pub(super) step: usize,
}

pub(super) struct Pci {
    path: PathBuf,
    name: String,
    config: File,
}

impl Pci {
    /// Finds the NIC.
    pub(super) fn find() -> Result<Self> {
        for entry in read_dir(DEVICES)? {
            let path = entry?.path();
            let number = |name: &str| -> Result<u16> {
                let text = read_to_string(path.join(name))?;
                Ok(u16::from_str_radix(
                    text.trim().trim_start_matches("0x"),
                    16,
                )?)
            };
            if (number("vendor")?, number("device")?) == (VENDOR, FIRST + VIRTIO_ID) {
                let name = path.file_name().context("a name")?;
                let name = name.to_str().context("a name")?.to_owned();
                let mut options = File::options();
                let config = options.read(true).write(true).open(path.join("config"))?;
                return Ok(Pci { path, name, config });
            }
        }
        anyhow::bail!("this machine has no qnic")
    }

    /// Takes the device from its drivers.
    pub(super) fn unbind(&self) -> Result<()> {
        if self.path.join("driver").exists() {
            write(Path::new(DRIVER).join("unbind"), &self.name).context("unbind")?;
        }
        write(self.path.join("enable"), "1").context("enable the device")?;
        self.switch_on();
        Ok(())
    }

    /// Gives the device back to its drivers: that of virtio, and ours where it is loaded.
    pub(super) fn bind(&self) -> Result<()> {
        write(self.path.join("enable"), "0").context("disable the device")?;
        write(Path::new(DRIVER).join("bind"), &self.name).context("bind")?;
        ensure!(read_link(self.path.join("driver")).is_ok(), "no driver");
        Ok(())
    }

    /// The device may answer, and access memory.
    pub(super) fn switch_on(&self) {
        self.write_config(COMMAND, &MEMORY_AND_MASTER.to_le_bytes());
    }

    /// It may do neither, and its registers go; then they come back.
    pub(super) fn switch_off(&self) {
        self.write_config(COMMAND, &[0; 2]);
        self.switch_on();
    }

    /// Moves a BAR of 64 bits to an address, and back.
    pub(super) fn move_bar(&self, bar: usize, place: u64) {
        let register = BARS + 4 * bar;
        let mut before = [0; 8];
        self.read_config(register, &mut before);
        let [low, high] = [place as u32, (place >> 32) as u32].map(u32::to_le_bytes);
        self.write_config(register + 4, &high);
        self.write_config(register, &low);
        self.write_config(register, &before[..4]);
        self.write_config(register + 4, &before[4..]);
    }

    /// Maps a BAR.
    pub(super) fn map(&self, bar: usize) -> Result<SharedRegion> {
        let path = self.path.join(format!("resource{bar}"));
        let file = File::options().read(true).write(true).open(&path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        let length = file.metadata()?.len() as usize;
        SharedRegion::map_file(&file, 0, length, true)
            .with_context(|| format!("map {}", path.display()))
    }

    pub(super) fn read_config(&self, offset: usize, bytes: &mut [u8]) {
        let _refused = self.config.read_at(bytes, offset as u64);
    }

    pub(super) fn write_config(&self, offset: usize, bytes: &[u8]) {
        let _refused = self.config.write_at(bytes, offset as u64);
    }

    /// Finds registers by the list of capabilities.
    pub(super) fn place(&self, part: Part) -> Result<Place> {
        let mut config = [0; CONFIG_BYTES];
        self.read_config(0, &mut config);
        let word = |at: usize| {
            let bytes: [u8; 4] = std::array::from_fn(|byte| config[(at + byte) % CONFIG_BYTES]);
            u32::from_le_bytes(bytes) as usize
        };
        let mut at = usize::from(config[0x34]);
        for _ in 0..48 {
            let [id, next, _, kind, bar] = std::array::from_fn(|byte| config[(at + byte) % 256]);
            if id == 9 && kind == part as u8 {
                return Ok(Place {
                    bar: bar.into(),
                    offset: word(at + 8),
                    length: word(at + 12),
                    step: word(at + 16),
                });
            }
            at = next.into();
        }
        anyhow::bail!("the device has no {part:?} registers")
    }
}
