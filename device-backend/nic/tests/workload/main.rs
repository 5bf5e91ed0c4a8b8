//! Random workloads against an oracle: processes on several nodes write, read and
//! notify each other while pages are evicted and faults answered in any order,
//! while segments are revoked, processes die and nodes are reset.
//!
//! What must hold at every step: a notification comes after all data that its
//! sender wrote to that node before; a complete transfer has every byte right; a
//! transfer that nothing has disturbed does not fail. At the end: everything is
//! complete, no byte was touched that should not be, no notification is lost or
//! doubled, and all tables and bounce memory are empty.
//!
//! A failure names its seed: `QNIC_SEED=n cargo test -p qnic-nic --test workload`
//! repeats it; `QNIC_SEEDS=n` runs so many.

mod mix;
mod oracle;
mod world;

use mix::Mix;
use world::World;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn seeds(count: u64) -> Vec<u64> {
    match number("QNIC_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("QNIC_SEEDS").unwrap_or(count)).collect(),
    }
}

fn campaign(count: u64, steps: u32, mix: &Mix) {
    let mut bounces = 0;
    for seed in seeds(count) {
        let run = std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(seed, mix.clone());
            for _ in 0..steps {
                world.step();
            }
            world.finish()
        });
        bounces += std::panic::catch_unwind(run).unwrap_or_else(|cause| {
            eprintln!("failed with QNIC_SEED={seed}");
            std::panic::resume_unwind(cause)
        });
    }
    assert!(bounces > 0, "no frame waited for its page");
}

#[test]
fn transfers_under_memory_pressure_are_right() {
    campaign(60, 1500, &Mix::memory_pressure());
}

#[test]
fn transfers_under_memory_pressure_are_right_on_any_wire() {
    for loss in [0, 10, 50, 200] {
        campaign(8, 1500, &Mix::memory_pressure().lossy(loss));
    }
}

#[test]
fn transfers_among_dying_processes_and_nodes_are_right_on_any_wire() {
    for loss in [0, 10, 50, 200] {
        campaign(8, 1500, &Mix::disturbances().lossy(loss));
    }
}

#[test]
fn transfers_among_dying_processes_and_nodes_are_right() {
    campaign(60, 1500, &Mix::disturbances());
}
