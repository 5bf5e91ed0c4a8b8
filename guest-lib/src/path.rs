//! What the NICs have found out about the route to a node (U8).

use std::time::Duration;

use qnic_abi::control::{PathInfo, PATH_LOSSLESS};

/// The route to another node, as it is now ([`Endpoint::path`](crate::Endpoint::path)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Path {
    /// Most bytes of a transfer that one frame carries (U5): 32 KiB within a device process,
    /// otherwise up to 4 KiB, and less where datagrams of the network are shorter. Longer
    /// transfers take several frames.
    pub max_payload: u32,
    /// Fragments, of a page each at most, that may be under way to the node or wait there for
    /// their pages (N15).
    pub window: u32,
    /// Smoothed time from a frame to its acknowledgement. `None` if none was measured yet, or
    /// the route is lossless. From [`Nic::check_path`](crate::Nic::check_path), the least time from a probe
    /// to its answer, on any route.
    pub round_trip: Option<Duration>,
    /// Each frame arrives once and at once: the two nodes are in one device process, and no
    /// link between them is emulated.
    pub lossless: bool,
}

impl Path {
    pub(crate) fn new(info: &PathInfo) -> Self {
        let round_trip = info.round_trip.get();
        Path {
            max_payload: info.max_payload.get(),
            window: info.window.get(),
            round_trip: (round_trip > 0).then(|| Duration::from_nanos(round_trip)),
            lossless: info.flags.get() & PATH_LOSSLESS != 0,
        }
    }
}
