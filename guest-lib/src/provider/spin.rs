//! How long a thread spins before it sleeps.

use std::sync::OnceLock;
use std::time::Duration;

/// Time worth spinning: five times what an interrupt and a wake-up cost. Shorter budgets
/// expire on both sides of a ping-pong, which then stays slow.
const SPIN: Duration = Duration::from_millis(1);

/// The budget of a thread when `spinners` other threads of this process spin already.
/// `needed` processors must be there for any thread to spin.
pub(super) fn budget(spinners: usize, needed: usize) -> Duration {
    static CORES: OnceLock<usize> = OnceLock::new();
    // Asked for once: it reads files.
    let cores = *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    match cores >= needed && spinners < cores {
        true => SPIN,
        false => Duration::ZERO,
    }
}
