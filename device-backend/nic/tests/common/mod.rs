//! What several tests start from.
#![allow(dead_code, unreachable_pub)]

use qnic_abi::{Access, Port, VniId};
use qnic_nic::testing::{Cluster, SimProcess, SimSegment};
use qnic_nic::Limits;

/// Readable and writable.
pub const ALL: Access = Access::all();

/// Length of the segment of each process of [`pair`].
pub const SEGMENT: u64 = 64 * 4096;

/// A process with a segment that starts off a page border.
pub fn process(cluster: &mut Cluster, node: usize, vni: u16) -> (SimProcess, SimSegment) {
    let port = Port(100 + vni);
    let process = SimProcess::register(cluster, node, VniId(vni), port).unwrap();
    let address = 0x10_0000 + u64::from(vni) * 0x100_0000 + 0x123;
    let segment = process
        .export(cluster, 0, 7, (address, SEGMENT), ALL)
        .unwrap();
    (process, segment)
}

/// Two nodes with one process each.
pub fn pair() -> (Cluster, (SimProcess, SimSegment), (SimProcess, SimSegment)) {
    let mut cluster = Cluster::new(2, 512, 8, &Limits::default());
    let a = process(&mut cluster, 0, 1);
    let b = process(&mut cluster, 1, 2);
    (cluster, a, b)
}

/// Bytes that differ from place to place.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(byte).collect()
}
