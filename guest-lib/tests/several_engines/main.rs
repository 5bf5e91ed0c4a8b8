//! Tests of host mode with two engines in the device process: what two nodes do with each other
//! passes between them.

/// Engines of each device.
const ENGINES: u32 = 2;

/// Checks that a result is an error of this kind.
macro_rules! assert_error {
    ($result:expr, $error:pat) => {
        match $result {
            Err($error) => {}
            other => panic!("{:?}", other.map(drop)),
        }
    };
}

#[path = "../host_mode/atomics.rs"]
mod atomics;
#[path = "../host_mode/cluster.rs"]
mod cluster;
#[path = "../host_mode/contexts.rs"]
mod contexts;
#[path = "../host_mode/destinations.rs"]
mod destinations;
#[path = "../host_mode/exports.rs"]
mod exports;
#[path = "../host_mode/groups.rs"]
mod groups;
#[path = "../host_mode/lifecycle.rs"]
mod lifecycle;
#[path = "../host_mode/messages.rs"]
mod messages;
#[path = "../host_mode/names.rs"]
mod names;
#[path = "../host_mode/notifications.rs"]
mod notifications;
#[path = "../host_mode/paging.rs"]
mod paging;
#[path = "../host_mode/parallel.rs"]
mod parallel;
#[path = "../host_mode/pools.rs"]
mod pools;
#[path = "../host_mode/processes.rs"]
mod processes;
#[path = "../host_mode/raw.rs"]
mod raw;
#[path = "../host_mode/shared_queue.rs"]
mod shared_queue;
#[path = "../host_mode/sync.rs"]
mod sync;
#[path = "../host_mode/threads.rs"]
mod threads;
#[path = "../host_mode/transfers.rs"]
mod transfers;
#[path = "../host_mode/waiting.rs"]
mod waiting;
