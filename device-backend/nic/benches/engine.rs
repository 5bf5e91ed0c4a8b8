//! What the engine costs, without I/O: two NICs in one thread, resident pages.
//!
//! `cargo bench -p qnic-nic` prints nanoseconds beside a memcpy floor measured in
//! the same run. `small N` runs N small writes and nothing else: two runs under
//! `valgrind --tool=callgrind` with different N give instructions per write (P6):
//!
//! ```text
//! B=$(ls -t target/release/deps/engine-* | grep -v '\.d$' | head -1)
//! for n in 1000 2000; do valgrind --tool=callgrind --callgrind-out-file=/dev/null $B small $n; done
//! ```

use std::hint::black_box;
use std::time::Instant;

use qnic_abi::client::Command;
use qnic_abi::PAGE_SIZE;
use qnic_nic::testing::{Net, Party};
use qnic_nic::Limits;

/// Beyond the caches: bulk transfers move through all of it.
const SEGMENT: u64 = 64 << 20;

struct Bench {
    net: Net,
    source: Party,
    target: Party,
}

impl Bench {
    fn new() -> Self {
        let net = Net::new(2, 20_000, 128, &Limits::default());
        let party = |node| net.party_at(node, 1, (0x100_0000, SEGMENT)).present();
        let (source, target) = (party(0), party(1));
        let mut bench = Bench {
            net,
            source,
            target,
        };
        // The first command makes the two NICs known to each other.
        bench.in_batches(&bench.small(), 1, 1);
        bench
    }

    fn small(&self) -> Command {
        Command::inline_write(self.target.segment.to(64), 8).notify(1)
    }

    fn large(&self, length: u64) -> Command {
        Command::write(self.source.segment.at(0), self.target.segment.to(0), length)
    }

    /// One write after the other, through the whole segment.
    fn sweep(&mut self, length: u64, count: u64) {
        for number in 0..count {
            let at = number * length % SEGMENT;
            let command = Command::write(
                self.source.segment.at(at),
                self.target.segment.to(at),
                length,
            );
            self.source.issue(&command, &[]).unwrap();
            self.net.run();
        }
    }

    /// One command at a time, from the issue to its completion.
    fn one_by_one(&mut self, command: &Command, count: u64) {
        let before = self.source.done().0;
        for _ in 0..count {
            self.source.issue(command, &[]).unwrap();
            // Sent, delivered and acknowledged, published.
            let mut cluster = self.net.cluster();
            for node in [0, 1, 0] {
                cluster.poll(node);
            }
            drop(cluster);
            if command.length > PAGE_SIZE as u64 {
                self.net.run();
            }
        }
        assert_eq!(self.source.done().0, before + count);
    }

    /// As many as the queue holds, then all NICs until they are idle.
    fn in_batches(&mut self, command: &Command, batches: u64, batch: u64) {
        let before = self.source.done().0;
        for _ in 0..batches {
            for _ in 0..batch {
                self.source.issue(command, &[]).unwrap();
            }
            self.net.run();
        }
        let done = self.source.done().0;
        assert_eq!(done, before + batches * batch);
    }
}

fn nanoseconds(count: u64, mut run: impl FnMut()) -> f64 {
    run();
    let mut times: Vec<f64> = (0..15)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn memcpy_nanoseconds(length: usize) -> f64 {
    let source = vec![1u8; SEGMENT as usize];
    let mut target = vec![0u8; SEGMENT as usize];
    let rounds = SEGMENT as usize / length;
    nanoseconds(rounds as u64, || {
        for round in 0..rounds {
            let at = round * length;
            let (from, to) = (&source[at..at + length], &mut target[at..at + length]);
            black_box(to).copy_from_slice(black_box(from));
        }
    })
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let mut bench = Bench::new();
    if let [_, what, count, ..] = &arguments[..] {
        let count = count.parse().expect("a number of operations");
        match what.as_str() {
            "small" => return bench.one_by_one(&bench.small(), count),
            "stream" => return bench.in_batches(&bench.small(), count / 32, 32),
            "page" => return bench.one_by_one(&bench.large(4096), count),
            "mebibyte" => return bench.one_by_one(&bench.large(1 << 20), count / 256),
            _ => {}
        }
    }
    let small = bench.small();
    let alone = nanoseconds(1000, || bench.one_by_one(&small, 1000));
    let stream = nanoseconds(3200, || bench.in_batches(&small, 100, 32));
    println!("8-byte inline notifying write: {alone:.0} ns alone, {stream:.0} ns in batches of 32");
    for length in [4096, 65_536, 1 << 20] {
        let count = SEGMENT / length;
        let time = nanoseconds(count, || bench.sweep(length, count));
        let floor = memcpy_nanoseconds(length as usize);
        println!(
            "{length:>8}-byte write: {time:.0} ns, memcpy {floor:.0} ns, ratio {:.2}, {:.0} ns a page above it",
            floor / time,
            (time - floor) / (length / 4096) as f64,
        );
    }
}
