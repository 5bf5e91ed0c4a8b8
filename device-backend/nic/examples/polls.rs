//! The longest poll: how long one NIC of a device process makes the others wait (X8).
//!
//! ```text
//!   node 0 ── 8-byte writes ──►  node 1  ◄── a neighbour on node 2: honest or hostile
//! ```
//! Prints the longest poll of any NIC beside an honest neighbour that writes in bulk, and beside a
//! hostile one, in nanoseconds; `cargo qnic bench engine` runs it. The hostile one's writes to absent
//! pages fill the bounce memory, whole queues of them are reset and issued anew, its imports of
//! names that no process exports take all places, and more of them are refused. Between two rounds
//! it makes as many requests as the device takes from a control queue.

use std::iter;
use std::time::Instant;

use qnic_abi::client::Command;
use qnic_abi::Status;
use qnic_nic::testing::{Net, Party};
use qnic_nic::Limits;

const ROUNDS: usize = 31;
const POLLS_A_ROUND: usize = 400;

/// Bytes of a write of the neighbour.
const BULK: u64 = 256 << 10;

/// Requests that the device takes from a control queue between two polls.
const REQUESTS_A_POLL: usize = 32;

/// Names that each process of the hostile neighbour imports in a round.
const NAMES: u64 = 64;

/// How long imports may wait, in milliseconds: beyond the end.
const IMPORT_WAIT_MS: u32 = 3_600_000;

struct Scene {
    net: Net,
    source: Party,
    target: Party,
    /// Processes of the neighbour.
    neighbours: Vec<Party>,
    /// Where they write to, on the node of the target.
    victim: Party,
}

impl Scene {
    fn new(hostile: bool) -> Self {
        let net = Net::new(3, 40_000, 64, &Limits::default());
        let range = (0x100_0000, 8 << 20);
        let source = net.party_at(0, 1, range).present();
        let target = net.party_at(1, 1, range).present();
        let victim = net.party_at(1, 2, range);
        let victim = match hostile {
            true => victim,
            false => victim.present(),
        };
        let neighbours: Vec<_> = (1..9)
            .map(|vni| net.party_at(2, vni, range).present())
            .collect();
        net.answer_faults(!hostile);
        Scene {
            net,
            source,
            target,
            neighbours,
            victim,
        }
    }

    fn honest(&self) {
        for neighbour in &self.neighbours {
            self.bulk(neighbour);
        }
    }

    fn hostile(&self) {
        for neighbour in &self.neighbours {
            assert_eq!(neighbour.reset_queue(), Status::Ok);
            neighbour.clear_queue();
            self.bulk(neighbour);
        }
    }

    /// What the hostile neighbour imports in a round.
    fn imports(&self) -> impl Iterator<Item = (&Party, u64)> {
        let numbered = (100..).zip(&self.neighbours);
        numbered.flat_map(|(number, neighbour)| {
            (number..number + NAMES).map(move |name| (neighbour, name))
        })
    }

    fn bulk(&self, neighbour: &Party) {
        let mut at = 0;
        loop {
            let (from, to) = (neighbour.segment.at(at), self.victim.segment.to(at));
            if neighbour
                .issue(&Command::write(from, to, BULK), &[])
                .is_none()
            {
                return;
            }
            at = (at + BULK) % (4 << 20);
        }
    }

    /// The longest poll of a round, in nanoseconds.
    fn longest<'a>(&'a self, mut imports: impl Iterator<Item = (&'a Party, u64)>) -> u128 {
        let small = Command::inline_write(self.target.segment.to(64), 8).notify(1);
        let mut longest = 0;
        for _ in 0..POLLS_A_ROUND {
            for (neighbour, name) in imports.by_ref().take(REQUESTS_A_POLL) {
                // Beyond its quota it is refused.
                let _ = neighbour.import(1, self.target.port, name, IMPORT_WAIT_MS);
            }
            self.source.issue(&small, &[]);
            for node in 0..3 {
                let start = Instant::now();
                self.net.poll(node);
                longest = longest.max(start.elapsed().as_nanos());
            }
        }
        longest
    }
}

/// The median of the longest polls of all rounds, in nanoseconds.
fn measure(hostile: bool) -> u128 {
    let scene = Scene::new(hostile);
    let mut longest: Vec<u128> = (0..ROUNDS)
        .map(|_| match hostile {
            true => {
                scene.hostile();
                scene.longest(scene.imports())
            }
            false => {
                scene.honest();
                scene.longest(iter::empty())
            }
        })
        .collect();
    let waiting = scene.net.counters(1).parked_imports;
    assert_eq!(waiting > 0, hostile, "{waiting} imports wait");
    longest.sort_unstable();
    longest[ROUNDS / 2]
}

fn main() {
    println!("{} {}", measure(false), measure(true));
}
