//! Command descriptors and SRAM windows: what a process or a guest's kernel writes there.
//!
//! After any input: honest nodes exchange data and keep their bytes; if only one process is
//! hostile, its neighbour on the same node does, too; all lists of all NICs are within their
//! limits; after a reset nothing is held, and the NIC serves again.

use crate::guest::Guest;
use crate::input::Input;

/// Most steps of one input.
const STEPS: usize = 96;

/// Runs one input.
///
/// # Panics
/// If a promise is broken.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kernel = input.chance(96);
    let mut guest = Guest::new(&mut input, kernel);
    for _ in 0..STEPS {
        if guest.input.is_empty() {
            break;
        }
        step(&mut guest);
        guest.check();
    }
    guest.end();
}

fn step(guest: &mut Guest<'_, '_>) {
    match guest.input.byte() {
        0..=79 => guest.command(),
        80..=119 => guest.scribble_window(),
        120..=139 => guest.ring(),
        140..=199 => guest.time(),
        200..=209 => guest.reset_queue(),
        210..=219 => guest.friend.evict(u64::from(guest.input.short())),
        _ if guest.kernel => guest.scribble_sram(),
        _ => guest.paging(),
    }
}
