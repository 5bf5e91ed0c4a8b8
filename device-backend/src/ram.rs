//! Guest RAM: how much, and up to which physical frame.
//!
//! A q35 machine puts RAM below the PCI hole as far as it fits and the rest at
//! 4 GiB. The hole starts at 2.75 GiB, or at 2 GiB when RAM is 2.75 GiB or more.
//!
//! ```text
//!  RAM < 2.75 GiB:   | RAM          |  hole  |4 GiB
//!  RAM ≥ 2.75 GiB:   | RAM, 2 GiB |   hole   |4 GiB  rest of RAM |
//! ```
//!
//! RAM that is added while the machine runs begins at the next GiB after all of this, at 4 GiB at least.

use qnic_abi::PAGE_SHIFT;
use qnic_config::ByteSize;

/// RAM of this size or more leaves a hole from 2 GiB to 4 GiB.
const LARGE_RAM: u64 = 0xb000_0000;
/// RAM below the hole of a machine with a lot of it.
const LOW_RAM: u64 = 2 << 30;
/// Where the rest continues.
const HIGH_RAM: u64 = 4 << 30;

/// Alignment of the place where RAM is added.
const ADDED_ALIGN: u64 = 1 << 30;

/// One more than the highest physical frame number of a q35 machine with this much RAM, to which some is
/// added up to `max`.
pub(crate) const fn frames(ram: ByteSize, max: Option<ByteSize>) -> u64 {
    let end = if ram.0 < LARGE_RAM {
        ram.0
    } else {
        HIGH_RAM + (ram.0 - LOW_RAM)
    };
    let end = match max {
        Some(max) if max.0 > ram.0 => {
            let high = if end > HIGH_RAM { end } else { HIGH_RAM };
            high.next_multiple_of(ADDED_ALIGN) + (max.0 - ram.0)
        }
        _ => end,
    };
    end >> PAGE_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The borders of QEMU's q35 memory layout.
    #[test]
    fn frames_account_for_the_pci_hole() {
        let frames = |mib| frames(ByteSize::mib(mib), None);
        assert_eq!(frames(256), 1 << 16);
        assert_eq!(frames(2815), 2815 << 8);
        assert_eq!(frames(2816), (4096 + 2816 - 2048) << 8);
        assert_eq!(frames(8192), (4096 + 6144) << 8);
    }

    #[test]
    fn added_memory_is_above_the_rest() {
        let frames = |mib, max| frames(ByteSize::mib(mib), Some(ByteSize::mib(max)));
        assert_eq!(frames(256, 256), 1 << 16);
        assert_eq!(frames(256, 512), (4096 + 256) << 8);
        assert_eq!(frames(3000, 4000), (5120 + 1000) << 8);
    }
}
