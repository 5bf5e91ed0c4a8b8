//! How the device presents itself on the virtio bus.
//!
//! | virtqueue | use |
//! |---|---|
//! | [`CONTROL_QUEUE`] | requests of the driver: [`crate::control`] |
//! | [`EVENT_QUEUE`] | buffers for events: [`crate::event`] |
//! | [`FIRST_DOORBELL`] … | doorbells: no descriptors, only notifications |
//!
//! Doorbell *d* is virtqueue `FIRST_DOORBELL + d`. VNI *v* rings doorbell
//! `v % doorbells`; a doorbell only says "look", so ringing another's is
//! harmless (architecture, "Attachment").
//!
//! Features offered: `VIRTIO_F_VERSION_1`, and `VIRTIO_F_ORDER_PLATFORM`, for an
//! emulated guest's fences between its own processors may be none to the device. [`YIELDING`] is
//! for processes without a virtual machine.

pub use qnic_limits::{CONFIG_SIZE, DEFAULT_DOORBELLS, FIRST_DOORBELL, MAX_DOORBELLS, VIRTIO_ID};
use zerocopy::little_endian::{U16, U32, U64};

/// Feature: what spins behind this device gives up its processor to others every few
/// microseconds, so the device process may do so as well, and comes back soon. Host mode accepts
/// it. The driver of a guest does not: a virtual processor that got the device's processor would
/// keep it for a whole slice of the scheduler. Where one device process serves several, all have
/// to accept it: a front end that accepts it wrongly slows down none that does not.
pub const YIELDING: u64 = 1;

/// Virtqueue of driver requests.
pub const CONTROL_QUEUE: usize = 0;

/// Virtqueue of device events.
pub const EVENT_QUEUE: usize = 1;

/// Id of the virtio shared-memory region that is the SRAM.
pub const SRAM_REGION: u8 = 0;

/// Value of [`DeviceConfig::magic`]: "qnicconf".
pub const CONFIG_MAGIC: u64 = u64::from_le_bytes(*b"qnicconf");

layouts! {
    /// The virtio configuration space: what a driver can read before it touches
    /// anything else.
    ///
    /// ```text
    ///      0        2        4                 8
    ///   0  | magic "qnicconf"                  |
    ///   8  | abi_version     | node   | res.   |
    ///  16  | sram_bytes                        |
    ///  24  | doorbells       | windows         |
    ///  32  | reserved                          | … 64
    /// ```
    #[bytes(CONFIG_SIZE)]
    pub struct DeviceConfig {
        /// [`CONFIG_MAGIC`].
        pub magic: U64,
        /// [`crate::ABI_VERSION`] of the device.
        pub abi_version: U32,
        /// Node number of this NIC.
        pub node: U16,
        /// Zero.
        pub reserved0: U16,
        /// Size of the SRAM region in bytes.
        pub sram_bytes: U64,
        /// Number of doorbells.
        pub doorbells: U32,
        /// Number of windows, which is the number of processes that can register.
        pub windows: U32,
        /// Zero.
        pub reserved1: [U64; 4],
    }
}

const _: () = assert!(core::mem::offset_of!(DeviceConfig, sram_bytes) == 16);
const _: () = assert!(core::mem::offset_of!(DeviceConfig, doorbells) == 24);
