//! Guest RAM: how much, and up to which physical frame.
//!
//! A q35 machine puts RAM below the PCI hole as far as it fits and the rest at
//! 4 GiB. The hole starts at 2.75 GiB, or at 2 GiB when RAM is 2.75 GiB or more.
//!
//! ```text
//!  RAM < 2.75 GiB:   | RAM          |  hole  |4 GiB
//!  RAM ≥ 2.75 GiB:   | RAM, 2 GiB |   hole   |4 GiB  rest of RAM |
//! ```

use std::fmt;
use std::str::FromStr;

use qnic_abi::{PAGE_SHIFT, PAGE_SIZE};
use serde::{Serialize, Serializer};

/// RAM of this size or more leaves a hole from 2 GiB to 4 GiB.
const LARGE_RAM: u64 = 0xb000_0000;
/// RAM below the hole of a machine with a lot of it.
const LOW_RAM: u64 = 2 << 30;
/// Where the rest continues.
const HIGH_RAM: u64 = 4 << 30;

/// Most RAM of a guest.
pub const MAX_RAM: u64 = 1 << 40;

const UNITS: [(&str, u64); 4] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
];

/// Size of a guest's RAM in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RamSize(pub u64);

impl RamSize {
    /// RAM of `count` MiB.
    pub const fn mib(count: u64) -> Self {
        RamSize(count << 20)
    }

    /// One more than the highest physical frame number of a q35 machine with
    /// this much RAM.
    pub const fn frames(self) -> u64 {
        let end = if self.0 < LARGE_RAM {
            self.0
        } else {
            HIGH_RAM + (self.0 - LOW_RAM)
        };
        end >> PAGE_SHIFT
    }

    /// Says what is wrong with the size, if anything.
    pub(crate) fn check(self) -> Result<(), String> {
        if self.0 == 0 || self.0 % PAGE_SIZE as u64 != 0 || self.0 > MAX_RAM {
            return Err(format!(
                "expected a multiple of {PAGE_SIZE} bytes up to {}, found {self}",
                RamSize(MAX_RAM)
            ));
        }
        Ok(())
    }
}

impl FromStr for RamSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = UNITS.iter().find_map(|(unit, factor)| {
            let digits = text.strip_suffix(unit)?;
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| digits.parse::<u64>().ok()?.checked_mul(*factor))?
        });
        parsed
            .map(RamSize)
            .ok_or_else(|| format!("expected a size such as \"256MiB\", found \"{text}\""))
    }
}

impl fmt::Display for RamSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |factor: u64| self.0 >= factor && self.0 % factor == 0;
        match UNITS.iter().find(|(_, factor)| whole(*factor)) {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl Serialize for RamSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The borders of QEMU's q35 memory layout.
    #[test]
    fn frames_account_for_the_pci_hole() {
        assert_eq!(RamSize::mib(256).frames(), 1 << 16);
        assert_eq!(RamSize::mib(2815).frames(), 2815 << 8);
        assert_eq!(RamSize::mib(2816).frames(), (4096 + 2816 - 2048) << 8);
        assert_eq!(RamSize::mib(8192).frames(), (4096 + 6144) << 8);
    }

    #[test]
    fn text_round_trips() {
        for text in ["4KiB", "256MiB", "3GiB", "1TiB", "1536MiB"] {
            assert_eq!(text.parse::<RamSize>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "MiB",
            "256",
            "1.5GiB",
            "-1MiB",
            "256MB",
            "99999999999TiB",
        ] {
            assert!(text.parse::<RamSize>().is_err(), "{text}");
        }
    }
}
