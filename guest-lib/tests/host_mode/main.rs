//! Host mode, whole: library, driver core, device process, without a VM (X2).
//!
//! Each test has a device of its own, in this process, and nodes that are parts
//! of this process or processes of their own.

/// Engines of each device.
const ENGINES: u32 = 1;

/// Checks that a result is an error of this kind.
macro_rules! assert_error {
    ($result:expr, $error:pat) => {
        match $result {
            Err($error) => {}
            other => panic!("{:?}", other.map(drop)),
        }
    };
}

mod atomics;
mod channels;
mod cluster;
mod completions;
mod contexts;
mod destinations;
mod errors;
mod export_options;
mod exports;
mod groups;
mod lifecycle;
mod logging;
mod messages;
mod names;
mod notifications;
mod paging;
mod parallel;
mod physical;
mod places;
mod pools;
mod probes;
mod processes;
mod progress;
mod raw;
mod shared_queue;
mod sync;
mod sync_slots;
#[cfg(feature = "tokio")]
mod tasks;
mod threads;
mod transfers;
mod waiting;
