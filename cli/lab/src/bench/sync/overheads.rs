//! What an operation takes of the NIC that owns the memory: from the frame that asks to the one that
//! answers (NetVM table 30, "NI overhead"). Two NICs without I/O in this process, so that the time of
//! one is apart from the other's.

use std::time::Instant;

use anyhow::{ensure, Result};
use qnic_abi::atomic::Function;
use qnic_nic::testing::{page, Net, Pair};
use qnic_nic::{Limits, Progress};

use crate::bench::tables::{Tables, HERE};

/// Operations under way together; the mean is a value. Each has a result record of its own.
const TOGETHER: u16 = 32;

/// Repetitions of each function in a round.
const RUNS: u32 = 50;

/// Functions, and bytes of the operand. A dequeue finds what was put in before, and a P the units of
/// the Vs.
const FUNCTIONS: [(&str, Function, u64); 10] = [
    ("testandset", Function::TestAndSet, 8),
    ("incr", Function::Increment, 8),
    ("decr", Function::Decrement, 8),
    ("swap", Function::Swap, 8),
    ("cswap", Function::CompareSwap, 8),
    ("enqueue", Function::Enqueue, 32),
    ("newhead", Function::NewHead, 32),
    ("dequeue", Function::Dequeue, 32),
    ("semV", Function::SemaphoreV, 32),
    ("semP", Function::SemaphoreP, 32),
];

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    tables.rounds(rounds, ", the owner's NIC", true, |round| {
        let Pair { net, a, b } = Pair::on(Net::new(2, 256, 8, &Limits::default()));
        let mut executed = 0;
        for _ in 0..RUNS {
            b.store(page(0), &[0; 32]);
            let read = owner(&net, || {
                a.read(&b).bytes(4).issue();
            })?;
            round.add("overheads", "read 4 B", HERE, read);
            for (name, function, bytes) in FUNCTIONS {
                let mut record = 0;
                let each = owner(&net, || {
                    // Words lie behind the queue.
                    let offset = page(0) + u64::from(bytes == 8) * 64;
                    let operation = a.atomic(function, &b, [7, 0]).to(offset).bytes(bytes);
                    operation.record(record).issue();
                    record += 1;
                })?;
                executed += u64::from(TOGETHER);
                let found = net.counters(1).atomics;
                ensure!(
                    found == executed,
                    "{name}: {found} of {executed} were executed"
                );
                round.add("overheads", name, HERE, each);
            }
        }
        Ok(())
    })
}

/// Issues operations at node 0, and returns how long node 1 works for each, in nanoseconds.
fn owner(net: &Net, mut issue: impl FnMut()) -> Result<f64> {
    (0..TOGETHER).for_each(|_| issue());
    while net.poll(0) == Progress::Busy {}
    let start = Instant::now();
    while net.poll(1) == Progress::Busy {}
    let elapsed = start.elapsed();
    net.run();
    ensure!(
        net.counters(0).operations == 0,
        "an operation has not ended"
    );
    Ok(elapsed.as_nanos() as f64 / f64::from(TOGETHER))
}
