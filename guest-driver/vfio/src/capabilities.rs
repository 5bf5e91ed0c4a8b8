//! Where a virtio PCI function says that its registers are (virtio 1.2, 4.1.4).
//!
//! ```text
//!   configuration space     0x34 ─► capability ─► capability ─► … ─► 0
//!   virtio capability       id  next  length  kind  BAR  region  -  -  offset:4  length:4
//!      notify:  … step:4                              shared memory:  … offset:4  length:4 (upper halves)
//! ```
//!
//! # Invariants
//! - Each place is within 2^63 bytes; whether it is within its BAR, its user checks.
//! - A list of capabilities that does not end is read up to its [`MOST`].

use qnic_abi::attach::SRAM_REGION;

use crate::error::VfioError;

/// Bytes of the configuration space in which capabilities are.
pub(crate) const CONFIG_BYTES: usize = 256;

/// Where the list begins, and its first possible entry.
const LIST: usize = 0x34;
const HEADER_BYTES: usize = 0x40;
/// Most entries that fit.
const MOST: usize = (CONFIG_BYTES - HEADER_BYTES) / 4;

/// Id of capabilities of the vendor.
const OF_VENDOR: u8 = 9;

/// Kinds of virtio capabilities.
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const DEVICE: u8 = 4;
const SHARED_MEMORY: u8 = 8;

/// BARs of a function.
const BARS: u8 = 6;

/// A range of a BAR, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) bar: u32,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Where all that the driver uses is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) common: Place,
    pub(crate) notify: Place,
    /// Distance of two notification registers, in bytes.
    pub(crate) notify_step: u32,
    pub(crate) device: Place,
    pub(crate) sram: Place,
}

impl Places {
    /// Reads the capabilities.
    ///
    /// # Errors
    /// [`VfioError::Missing`]
    pub(crate) fn of(config: &[u8; CONFIG_BYTES]) -> Result<Self, VfioError> {
        let missing = |name| move || VfioError::Missing(name);
        let first = |kind| {
            let mut found = virtio(config);
            found.find(move |(_, there)| *there == kind)
        };
        let part = |kind, name| {
            let (at, _) = first(kind).ok_or_else(missing(name))?;
            place(config, at).ok_or_else(missing(name))
        };
        let common = part(COMMON, "common configuration")?;
        let notify = part(NOTIFY, "notification registers")?;
        let step = first(NOTIFY).and_then(|(at, _)| word(config, at + 16));
        let mut memory = virtio(config).filter(|(_, kind)| *kind == SHARED_MEMORY);
        let region = memory.find(|(at, _)| config.get(at + 5) == Some(&SRAM_REGION));
        let sram = region.and_then(|(at, _)| {
            let low = place(config, at)?;
            let upper = |at| Some(u64::from(word(config, at)?) << 32);
            let (offset, length) = (upper(at + 16)? | low.offset, upper(at + 20)? | low.length);
            let fits = offset.checked_add(length)? <= i64::MAX as u64;
            fits.then_some(Place {
                offset,
                length,
                ..low
            })
        });
        Ok(Places {
            common,
            notify,
            notify_step: step.ok_or_else(missing("notification registers"))?,
            device: part(DEVICE, "configuration of its device")?,
            sram: sram.ok_or_else(missing("shared-memory region for the SRAM"))?,
        })
    }
}

/// Where virtio capabilities are, and their kinds.
fn virtio(config: &[u8; CONFIG_BYTES]) -> impl Iterator<Item = (usize, u8)> + '_ {
    let next = |at: usize| -> Option<usize> {
        let next = usize::from(*config.get(at)? & !3);
        (next >= HEADER_BYTES).then_some(next)
    };
    let all = std::iter::successors(next(LIST), move |at| next(at + 1)).take(MOST);
    let kind = |at: usize| Some((at, *config.get(at + 3)?));
    all.filter(|at| config.get(*at) == Some(&OF_VENDOR))
        .filter_map(kind)
}

/// The place that the capability at `at` describes.
fn place(config: &[u8; CONFIG_BYTES], at: usize) -> Option<Place> {
    let bar = *config.get(at + 4)?;
    let place = Place {
        bar: bar.into(),
        offset: word(config, at + 8)?.into(),
        length: word(config, at + 12)?.into(),
    };
    (bar < BARS).then_some(place)
}

fn word(config: &[u8; CONFIG_BYTES], at: usize) -> Option<u32> {
    let bytes = config.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A function as QEMU's is: capabilities in its order, MSI-X and one without a place among them.
    pub(crate) fn config() -> [u8; CONFIG_BYTES] {
        let mut config = [0; CONFIG_BYTES];
        config[LIST] = 0xe4;
        let mut put = |at: usize, next: u8, kind: u8, bar: u8, words: &[u32]| {
            config[at..at + 5].copy_from_slice(&[OF_VENDOR, next, 24, kind, bar]);
            for (index, word) in words.iter().enumerate() {
                let at = at + 8 + index * 4;
                config[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
        };
        put(0xe4, 0xdc, SHARED_MEMORY, 4, &[0, 0x0100_0000, 0, 1]);
        put(0xc8, 0xb4, 5, 0, &[]);
        put(0xb4, 0xa4, NOTIFY, 2, &[0x3000, 0x40_0000, 0x1000]);
        put(0xa4, 0x84, DEVICE, 2, &[0x2000, 0x1000]);
        put(0x84, 0x40, COMMON, 2, &[0, 0x1000]);
        config[0xdc..0xde].copy_from_slice(&[0x11, 0xc8]);
        config[0x40..0x42].copy_from_slice(&[0x10, 0]);
        config
    }

    fn at(bar: u32, offset: u64, length: u64) -> Place {
        Place {
            bar,
            offset,
            length,
        }
    }

    #[test]
    fn capabilities_are_read() {
        let places = Places::of(&config()).unwrap();
        let expected = Places {
            common: at(2, 0, 0x1000),
            notify: at(2, 0x3000, 0x40_0000),
            notify_step: 0x1000,
            device: at(2, 0x2000, 0x1000),
            sram: at(4, 0, 0x1_0100_0000),
        };
        assert_eq!(places, expected);
    }

    #[test]
    fn what_is_missing_is_named() {
        for (place, name) in [
            (0xe4, "shared-memory"),
            (0xb4, "notification"),
            (0xa4, "configuration of its device"),
            (0x84, "common"),
        ] {
            let mut config = config();
            config[place + 3] = 99;
            let error = Places::of(&config).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        let mut other = config();
        other[0xe4 + 5] = 1;
        assert!(Places::of(&other).is_err(), "another region is no SRAM");
        let mut beyond = config();
        beyond[0x84 + 4] = BARS;
        assert!(Places::of(&beyond).is_err());
    }

    proptest! {
        /// Any configuration space is read to an end.
        #[test]
        fn nonsense_is_survived(
            bytes in proptest::collection::vec(any::<u8>(), CONFIG_BYTES),
            changes in proptest::collection::vec((0..CONFIG_BYTES, any::<u8>()), 0..8),
        ) {
            let _ = Places::of(bytes.as_slice().try_into().unwrap());
            let mut config = config();
            for (at, byte) in changes {
                config[at] = byte;
            }
            if let Ok(places) = Places::of(&config) {
                prop_assert!(places.sram.offset + places.sram.length <= i64::MAX as u64);
                prop_assert!(places.common.bar < 6 && places.notify.bar < 6);
            }
        }
    }
}
