//! Remote memory in a virtual cluster (H9): clients and servers of the real logic, a bad wire,
//! kills, and an oracle.
//!
//! | module | what |
//! |---|---|
//! | [`stories`] | single events, one by one |
//! | [`silence`] | clients and servers that stand still or are cut off, and memory that is taken back |
//! | [`room`] | reservations, and servers that are full |
//! | [`load`] | retransmissions, with slow servers and lossy wires |
//! | [`hostile`] | messages that no client or server sends |
//! | [`campaign`] | seeds in which everything happens |
//! | [`cluster`], [`world`], [`nodes`], [`wire`], [`page`] | the cluster |
//! | [`oracle`], [`copies`] | what reads may return, and when a write may be complete |
//!
//! `FIRST=17 SEEDS=1 cargo test -p qnic-driver --test remote_memory seeds` repeats one seed.

mod campaign;
mod cluster;
mod copies;
mod hostile;
mod load;
mod nodes;
mod oracle;
mod page;
mod room;
mod silence;
mod stories;
mod wire;
mod world;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

/// In all seeds no read is wrong, no request hangs, no page is lost unnecessarily, no buffer leaks, no call
/// allocates (H9).
#[test]
fn seeds() {
    let (first, count) = (number("FIRST", 0), number("SEEDS", 300));
    for seed in first..first + count {
        let result = std::panic::catch_unwind(|| campaign::run(seed));
        if let Err(panic) = result {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref().copied());
            // `qnic-mutants` reads this line.
            println!("\nseed {seed}: {}", message.unwrap_or("a panic"));
            std::panic::resume_unwind(panic);
        }
    }
}
