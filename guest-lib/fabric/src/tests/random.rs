//! Random reads, writes and sums of several peers at once, each result compared with what it has to be.

use super::harness::{at, close, Cluster, Side, BOTH, TAGGED};
use super::regions::{register, ALL};
use crate::pointers::test::{bytes, context, room};
use crate::pointers::Context;
use crate::service::PIECE_MAX;
use crate::sys;

const NODES: usize = 3;
/// Bytes of each peer in the memory of each; the counter stands behind them.
const SHARE: usize = 2 * PIECE_MAX;
const COUNTER: u64 = (NODES * SHARE) as u64;
const STEPS: usize = 400;
/// Operations of a peer under way.
const UNDER_WAY: usize = 24;
const U64: u32 = 7;

/// Numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// A peer, and what its share of the memory of each holds when its operations so far are done.
struct Peer {
    side: Side,
    index: usize,
    expected: Vec<Vec<u8>>,
    sums: [u64; NODES],
    /// Memory of its operations: of reads what was read, and what it has to be.
    pending: Vec<Option<(Vec<u8>, Vec<u8>)>>,
    under_way: usize,
}

impl Peer {
    fn step(&mut self, random: &mut Random) {
        let to = random.below(NODES);
        let from = random.below(SHARE);
        let length = 1 + match random.below(3) {
            0 => random.below(16),
            1 => random.below(5000),
            _ => random.below(SHARE),
        };
        let range = from..(from + length).min(SHARE);
        let offset = (self.index * SHARE + range.start) as u64;
        let (ep, none, number) = (self.side.ep, Context::NULL, context(self.pending.len() + 1));
        let (rma, atomic) = (at(ep).rma, at(ep).atomic);
        let mut moved = vec![random.below(256) as u8; range.len()];
        let begun = match random.below(3) {
            0 => {
                self.expected[to][range].copy_from_slice(&moved);
                (rma.write)(
                    ep,
                    bytes(&moved),
                    moved.len(),
                    none,
                    to as u64,
                    offset,
                    1,
                    number,
                )
            }
            1 => {
                let expected = self.expected[to][range].to_vec();
                let into = room(&mut moved);
                let begun =
                    (rma.read)(ep, into, expected.len(), none, to as u64, offset, 1, number);
                self.pending.push(Some((moved, expected)));
                self.under_way += 1;
                return assert_eq!(begun, 0);
            }
            _ => {
                self.sums[to] += length as u64;
                moved = (length as u64).to_ne_bytes().to_vec();
                let operand = bytes(&moved);
                (atomic.write)(
                    ep,
                    operand,
                    1,
                    none,
                    to as u64,
                    COUNTER,
                    1,
                    U64,
                    sys::SUM,
                    number,
                )
            }
        };
        assert_eq!(begun, 0);
        self.pending.push(Some((moved, Vec::new())));
        self.under_way += 1;
    }

    /// Takes what has ended; waits while more than so many are under way.
    fn settle(&mut self, most: usize) {
        while self.under_way > most {
            let (entry, _) = self.side.next().unwrap();
            let number = (1..=self.pending.len()).find(|it| context(*it) == entry.context);
            let (moved, expected) = self.pending[number.unwrap() - 1].take().unwrap();
            if entry.flags & sys::READ != 0 {
                assert!(
                    moved == expected,
                    "a read has other bytes than those written before it"
                );
            }
            self.under_way -= 1;
        }
    }
}

#[test]
fn random_operations_of_several_peers_do_what_they_do_alone() {
    for seed in 1..4 {
        let cluster = Cluster::new(NODES as u16);
        let sides: Vec<Side> = (0..NODES as u16)
            .map(|node| Side::new(&cluster, node, TAGGED, BOTH))
            .collect();
        let mut memories = vec![vec![0u8; NODES * SHARE + 8]; NODES];
        let memory_of = sides.iter().zip(&mut memories);
        let regions = memory_of.map(|(side, memory)| register(side, memory, ALL, 1));
        let regions: Vec<_> = regions.collect();
        for side in &sides {
            for (number, other) in sides.iter().enumerate() {
                assert_eq!(side.insert(&other.name), number as u64);
            }
        }
        let peers = sides.into_iter().enumerate().map(|(index, side)| Peer {
            side,
            index,
            expected: vec![vec![0; SHARE]; NODES],
            sums: [0; NODES],
            pending: Vec::new(),
            under_way: 0,
        });
        let mut peers: Vec<Peer> = peers.collect();
        let mut random = Random(seed);
        for _ in 0..STEPS {
            let index = random.below(NODES);
            let peer = &mut peers[index];
            peer.step(&mut random);
            peer.settle(UNDER_WAY);
        }
        for peer in &mut peers {
            peer.settle(0);
        }
        for (owner, memory) in memories.iter().enumerate() {
            for peer in &peers {
                let share = &memory[peer.index * SHARE..(peer.index + 1) * SHARE];
                assert!(share == peer.expected[owner], "seed {seed}");
            }
            let sum: u64 = peers.iter().map(|peer| peer.sums[owner]).sum();
            assert_eq!(memory[NODES * SHARE..], sum.to_ne_bytes(), "seed {seed}");
        }
        for (region, peer) in regions.into_iter().zip(peers) {
            assert_eq!(close(region), 0);
            peer.side.close();
        }
    }
}
