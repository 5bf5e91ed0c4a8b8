//! Guest RAM: how much, and up to which physical frame.
//!
//! A q35 machine puts RAM below the PCI hole as far as it fits and the rest at
//! 4 GiB. The hole starts at 2.75 GiB, or at 2 GiB when RAM is 2.75 GiB or more.
//!
//! ```text
//!  RAM < 2.75 GiB:   | RAM          |  hole  |4 GiB
//!  RAM ≥ 2.75 GiB:   | RAM, 2 GiB |   hole   |4 GiB  rest of RAM |
//! ```

use qnic_abi::PAGE_SHIFT;
use qnic_config::ByteSize;

/// RAM of this size or more leaves a hole from 2 GiB to 4 GiB.
const LARGE_RAM: u64 = 0xb000_0000;
/// RAM below the hole of a machine with a lot of it.
const LOW_RAM: u64 = 2 << 30;
/// Where the rest continues.
const HIGH_RAM: u64 = 4 << 30;

/// One more than the highest physical frame number of a q35 machine with this much RAM.
pub(crate) const fn frames(ram: ByteSize) -> u64 {
    let end = if ram.0 < LARGE_RAM {
        ram.0
    } else {
        HIGH_RAM + (ram.0 - LOW_RAM)
    };
    end >> PAGE_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The borders of QEMU's q35 memory layout.
    #[test]
    fn frames_account_for_the_pci_hole() {
        assert_eq!(frames(ByteSize::mib(256)), 1 << 16);
        assert_eq!(frames(ByteSize::mib(2815)), 2815 << 8);
        assert_eq!(frames(ByteSize::mib(2816)), (4096 + 2816 - 2048) << 8);
        assert_eq!(frames(ByteSize::mib(8192)), (4096 + 6144) << 8);
    }
}
