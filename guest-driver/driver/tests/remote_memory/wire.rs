//! The wire of the virtual cluster: loses, doubles, delays and reorders packets, and can be cut.

use std::collections::BTreeSet;

use fastrand::Rng;
use qnic_abi::remote_memory::HEADER_BYTES;
use qnic_driver::datagram::Address;

/// A microsecond and a millisecond, in nanoseconds.
pub(crate) const US: u64 = 1000;
pub(crate) const MS: u64 = 1000 * US;

/// One packet.
#[derive(Debug, Clone)]
pub(crate) struct Packet {
    pub(crate) from: Address,
    pub(crate) to: Address,
    pub(crate) header: [u8; HEADER_BYTES],
    /// Handle of the steered buffer that it is for.
    pub(crate) target: u64,
    /// The content of its page.
    pub(crate) data: Option<u64>,
}

/// The quality of the wire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quality {
    /// Packets of a thousand that are lost, and that come twice.
    pub(crate) lost: u32,
    pub(crate) doubled: u32,
    /// Shortest and longest time on the way, in nanoseconds.
    pub(crate) delay: (u64, u64),
    /// Packets of a thousand that take up to a hundred times as long.
    pub(crate) late: u32,
}

impl Quality {
    /// No packet is lost, and all take equally long.
    pub(crate) const LOSSLESS: Quality = Quality {
        lost: 0,
        doubled: 0,
        delay: (50 * US, 50 * US),
        late: 0,
    };
}

/// The wire.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) quality: Quality,
    /// Packets that were sent, and those that were lost by chance.
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    /// Pairs (from, to) that are cut.
    cut: BTreeSet<(u16, u16)>,
    /// The node to which pages are lost, and how many more.
    lost_pages: (u16, u64),
}

impl Wire {
    pub(crate) fn new(quality: Quality) -> Self {
        Wire {
            quality,
            sent: 0,
            lost: 0,
            cut: BTreeSet::new(),
            lost_pages: (0, 0),
        }
    }

    /// Cuts two nodes off from each other.
    pub(crate) fn cut(&mut self, one: u16, other: u16) {
        self.cut_one_way(one, other);
        self.cut_one_way(other, one);
    }

    /// Cuts the way from one node to another.
    pub(crate) fn cut_one_way(&mut self, from: u16, to: u16) {
        self.cut.insert((from, to));
    }

    /// The next `count` pages that are sent to a node are lost; all other packets arrive.
    pub(crate) fn lose_pages(&mut self, to: u16, count: u64) {
        self.lost_pages = (to, count);
    }

    /// Joins all nodes.
    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }

    /// The delays after which a packet arrives: none, one or two.
    pub(crate) fn carry(&mut self, rng: &mut Rng, packet: &Packet) -> Vec<u64> {
        let way = (packet.from.node.0, packet.to.node.0);
        self.sent += 1;
        let quality = &self.quality;
        let chance = |rng: &mut Rng, permille| rng.u32(0..1000) < permille;
        if self.cut.contains(&way) {
            return Vec::new();
        }
        let (no_page_to, left) = &mut self.lost_pages;
        if packet.data.is_some() && way.1 == *no_page_to && *left > 0 {
            *left -= 1;
            return Vec::new();
        }
        if chance(rng, quality.lost) {
            self.lost += 1;
            return Vec::new();
        }
        let times = 1 + usize::from(chance(rng, quality.doubled));
        (0..times)
            .map(|_| {
                let delay = rng.u64(quality.delay.0..=quality.delay.1);
                match chance(rng, quality.late) {
                    true => delay * rng.u64(2..100),
                    false => delay,
                }
            })
            .collect()
    }
}
