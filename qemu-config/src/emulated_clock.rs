//! How fast the time stamp counter of an emulated guest counts.
//!
//! QEMU's emulator shows its guests the counter of the host's processor. A kernel that does not know
//! its frequency measures it while it boots, by counting what happens between two ticks of another
//! clock: on a busy machine the guest stands still meanwhile, and its clock is wrong from then on, by
//! a tenth or many times over. So the guest is told.

use std::sync::OnceLock;

/// Ticks by which the frequency is asked for.
const TICKS: u64 = 1_000_000_000;

/// The frequency in kHz, measured once, which takes up to 0.2 s. `None` where the host's counter
/// does not count evenly, or guests have a counter of another kind.
pub(crate) fn tsc_khz() -> Option<u64> {
    static KHZ: OnceLock<Option<u64>> = OnceLock::new();
    *KHZ.get_or_init(|| {
        let clock = quanta::Clock::new();
        khz(clock.delta_as_nanos(0, TICKS)).filter(|_| cfg!(target_arch = "x86_64"))
    })
}

/// The frequency of a counter that took so many nanoseconds for [`TICKS`]. `None` if it counts
/// nanoseconds: `quanta` has fallen back to a clock of the host's kernel.
fn khz(nanoseconds: u64) -> Option<u64> {
    match nanoseconds {
        0 | TICKS => None,
        nanoseconds => (TICKS * 1_000_000).checked_div(nanoseconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frequency_follows_from_the_time() {
        assert_eq!(khz(500_000_000), Some(2_000_000));
        assert_eq!(khz(384_615_385), Some(2_599_999));
    }

    #[test]
    fn a_clock_of_the_kernel_is_not_the_counter() {
        assert_eq!(khz(TICKS), None);
        assert_eq!(khz(0), None);
    }

    #[test]
    fn it_is_measured_once() {
        assert_eq!(tsc_khz(), tsc_khz());
        if let Some(khz) = tsc_khz() {
            assert!((100_000..20_000_000).contains(&khz), "{khz} kHz");
        }
    }
}
