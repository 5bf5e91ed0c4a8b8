//! From a device that was just found to a NIC that serves this guest.
//!
//! ```text
//!   configuration space ─► magic, ABI version, counts      check_config
//!   Hello               ─► versions and memory agree       send_hello
//!   SRAM header         ─► version, state, Geometry        read_geometry
//! ```
//!
//! The SRAM appears a little after the device is ready. The device answers no request
//! before that, so once the response to Hello is there the header can be read. A reset
//! during this wait would kill the device process; so the timeout is generous.

use core::sync::atomic::Ordering;

use qnic_abi::attach::{DeviceConfig, CONFIG_MAGIC, CONFIG_SIZE, MAX_DOORBELLS};
use qnic_abi::control::{self, Opcode};
use qnic_abi::header::{Geometry, SramHeader, MAGIC, MAX_WINDOWS, SRAM_MAGIC};
use qnic_abi::{NodeId, SharedMemory, Status, VniId, ABI_VERSION};

use super::control_queue::Request;
use crate::error::StartError;
use crate::platform::{Platform, Timeout};

/// How long the driver waits for the SRAM, in milliseconds.
const SRAM_MS: u32 = 30_000;

/// The contents of the configuration space, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Node number of the NIC.
    pub node: NodeId,
    /// Number of doorbells: virtqueues beyond the first two.
    pub doorbells: u32,
    /// Number of windows.
    pub windows: u32,
    /// Size of the SRAM region in bytes.
    pub sram_bytes: u64,
}

/// Checks the configuration space of a device, before anything else is done with it.
///
/// # Errors
/// [`StartError::NotQnic`], [`StartError::VersionMismatch`], [`StartError::BadConfig`].
pub fn check_config(bytes: &[u8; CONFIG_SIZE]) -> Result<Config, StartError> {
    let raw: DeviceConfig = zerocopy::transmute!(*bytes);
    if raw.magic.get() != CONFIG_MAGIC {
        return Err(StartError::NotQnic {
            magic: raw.magic.get(),
        });
    }
    check_version(raw.abi_version.get())?;
    let config = Config {
        node: NodeId(raw.node.get()),
        doorbells: raw.doorbells.get(),
        windows: raw.windows.get(),
        sram_bytes: raw.sram_bytes.get(),
    };
    let doorbells = (1..=MAX_DOORBELLS).contains(&config.doorbells);
    check_field(doorbells, "the number of doorbells")?;
    let windows = (1..=MAX_WINDOWS).contains(&config.windows);
    check_field(windows, "the number of windows")?;
    let sram = config.sram_bytes >= size_of::<SramHeader>() as u64;
    check_field(sram, "the size of the SRAM")?;
    Ok(config)
}

fn check_field(is_legal: bool, name: &'static str) -> Result<(), StartError> {
    is_legal.then_some(()).ok_or(StartError::BadConfig(name))
}

fn check_version(device: u32) -> Result<(), StartError> {
    let driver = ABI_VERSION;
    let mismatch = StartError::VersionMismatch { device, driver };
    (device == driver).then_some(()).ok_or(mismatch)
}

/// What a NIC says of itself beside its geometry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Announced {
    /// Longest inline payload in bytes (N10).
    pub(crate) inline_max: u32,
    /// After how many milliseconds of silence it gives up another NIC.
    pub(crate) peer_timeout_ms: u32,
}

/// Reads and checks the header.
pub(super) fn read_geometry<P: Platform>(
    platform: &P,
    config: &Config,
) -> Result<(Geometry, Announced), StartError> {
    let sram = platform.sram();
    let fits = sram.size() >= size_of::<SramHeader>();
    check_field(fits, "the size of the SRAM")?;
    // Acquire; partner: the NIC's release store of the magic word, after all else.
    if sram.load_u64(MAGIC, Ordering::Acquire) != SRAM_MAGIC {
        return Err(StartError::NoSram);
    }
    let mut words = [0u64; size_of::<SramHeader>() / 8];
    sram.read_words(0, &mut words);
    let header: SramHeader = zerocopy::transmute!(words);
    check_version(header.abi_version.get())?;
    check_status(Status::try_from(header.state.get()).ok())?;
    let geometry =
        Geometry::from_header(&header, sram.size() as u64).map_err(StartError::Geometry)?;
    check_field(geometry.windows == config.windows, "the number of windows")?;
    let (covered, needed) = (geometry.frames, platform.frames());
    if covered < needed {
        return Err(StartError::SramTooSmall { covered, needed });
    }
    let announced = Announced {
        inline_max: header.inline_max.get(),
        peer_timeout_ms: header.peer_timeout_ms.get(),
    };
    Ok((geometry, announced))
}

fn check_status(status: Option<Status>) -> Result<(), StartError> {
    match status {
        Some(Status::Ok) => Ok(()),
        Some(status) => Err(StartError::Refused(status)),
        None => Err(StartError::BadResponse),
    }
}

/// Sends Hello, which the NIC answers once its SRAM is there.
pub(super) fn send_hello<P: Platform>(platform: &P) -> Result<(), StartError> {
    let body = control::Hello {
        abi_version: ABI_VERSION.into(),
        reserved: 0.into(),
        frames: platform.frames().into(),
    };
    let response = Request::new(Opcode::Hello, VniId(0), &body)
        .send(platform, Timeout::Uninterruptible(SRAM_MS))
        .map_err(StartError::NoResponse)?;
    check_status(response.status())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::RequestError;
    use crate::testing::{config_bytes, geometry, Fake};
    use qnic_abi::header::{Counts, GeometryError, STATE};
    use qnic_abi::uapi;

    fn config_with(offset: usize, bytes: &[u8]) -> Result<Config, StartError> {
        let mut config = config_bytes();
        config[offset..offset + bytes.len()].copy_from_slice(bytes);
        check_config(&config)
    }

    #[test]
    fn only_a_qnic_of_this_version_is_driven() {
        let config = check_config(&config_bytes()).unwrap();
        assert_eq!(config.node, NodeId(7));
        assert_eq!((config.doorbells, config.windows), (2, 4));
        let zeroes = config_with(0, &[0; 8]);
        assert_eq!(zeroes, Err(StartError::NotQnic { magic: 0 }));
        // Earlier versions, whose configuration has the same layout, and the next one.
        for device in [10, 11, 12, 13, 14, 15, 16, ABI_VERSION + 1] {
            let driver = ABI_VERSION;
            let error = config_with(8, &device.to_le_bytes()).unwrap_err();
            assert_eq!(error, StartError::VersionMismatch { device, driver });
            let wanted = std::format!("ABI version {device}");
            assert!(std::format!("{error}").contains(&wanted));
        }
    }

    #[test]
    fn counts_out_of_range_are_refused() {
        let counts = [0, MAX_DOORBELLS + 1].map(|count| (24, count));
        let windows = [0, MAX_WINDOWS + 1].map(|count| (28, count));
        for (offset, value) in counts.into_iter().chain(windows) {
            let result = config_with(offset, &value.to_le_bytes());
            let refused = matches!(result, Err(StartError::BadConfig(_)));
            assert!(refused, "{result:?}");
        }
        assert!(config_with(16, &[0; 8]).is_err());
    }

    #[test]
    fn a_nic_that_answers_without_sram_is_not_driven() {
        let fake = Fake::new();
        fake.sram.store_u64(MAGIC, 0, Ordering::Relaxed);
        assert_eq!(fake.start().err(), Some(StartError::NoSram));
    }

    #[test]
    fn the_header_says_more_than_the_refusal() {
        let fake = Fake::new();
        let covered = geometry().frames - 1;
        let frames = core::mem::offset_of!(SramHeader, frames);
        fake.sram.store_u64(frames, covered, Ordering::Relaxed);
        fake.nic().next.push_back(Ok(Status::SramTooSmall.code()));
        let error = fake.start().err();
        assert!(matches!(error, Some(StartError::SramTooSmall { .. })));
    }

    #[test]
    fn a_header_that_does_not_fit_is_refused() {
        let fake = Fake::new();
        let status = Status::SramTooSmall;
        fake.sram.store_u32(STATE, status.code(), Ordering::Relaxed);
        assert_eq!(fake.start().err(), Some(StartError::Refused(status)));
        fake.sram.store_u32(STATE, 999, Ordering::Relaxed);
        assert_eq!(fake.start().err(), Some(StartError::BadResponse));
        let fake = Fake::new();
        fake.sram.store_u64(72, 0x1234_5000, Ordering::Relaxed);
        assert!(matches!(fake.start().err(), Some(StartError::Geometry(_))));
    }

    /// What a header says of a NIC is taken over, unless it is impossible (Q1).
    #[test]
    fn counts_are_those_of_the_header_and_impossible_ones_are_named() {
        let counts = Counts {
            command_entries: 16,
            contexts: 5,
            context_pages: 3,
            pool_pages: 2,
        };
        let with = |header: SramHeader| {
            let fake = Fake::new();
            let words: [u64; size_of::<SramHeader>() / 8] = zerocopy::transmute!(header);
            fake.sram.write_words(0, &words);
            fake.start()
        };
        let header = geometry().with_counts(counts).unwrap().header();
        let driver = with(header).unwrap();
        let mut call = uapi::Register::default();
        let process = driver.register((), 1, &mut call).unwrap();
        assert!(process.is_some());
        assert_eq!(call.counts(), counts);
        for impossible in [0, 33, u32::MAX] {
            let error = with(SramHeader {
                contexts: impossible.into(),
                ..header
            });
            let error = error.err().unwrap();
            let named = StartError::Geometry(GeometryError::Count("contexts"));
            assert_eq!(error, named);
            let said = std::format!("{error}");
            assert!(said.contains("contexts is out of range; install"), "{said}");
        }
    }

    #[test]
    fn a_nic_that_refuses_or_is_silent_is_not_driven() {
        let (refusal, silence) = (Status::VersionMismatch, RequestError::TimedOut);
        for (answer, error) in [
            (Ok(refusal.code()), StartError::Refused(refusal)),
            (Ok(4711), StartError::BadResponse),
            (Err(silence), StartError::NoResponse(silence)),
        ] {
            let fake = Fake::new();
            fake.nic().next.push_back(answer);
            assert_eq!(fake.start().err(), Some(error));
        }
    }
}
