//! A full row evicts a page for a new one (N5), but never a page that the NIC holds.

use qnic_abi::page_table::ROW_ENTRIES;
use qnic_driver::shadow::{Inserted, Removed, Table};

use crate::world::{concurrently, insert, key, mapped, nic_writes, outcomes, tag, World};

/// Inserts a fifth page into a full row. Returns the page that leaves.
fn insert_fifth(world: &World, table: &mut Table) -> Removed {
    match insert(world, table, tag(ROW_ENTRIES), 4, key(ROW_ENTRIES)) {
        Inserted::Done {
            evicted: Some(removed),
            ..
        } => removed,
        other => panic!("the NIC holds at most one of four: {other:?}"),
    }
}

/// The frame that [`insert_fifth`] makes free when the NIC holds no page.
fn first_choice(seed: u64) -> u32 {
    let frames = outcomes(move || {
        let (world, mut table) = mapped(ROW_ENTRIES, seed);
        insert_fifth(&world, &mut table).frame
    });
    *frames.first().unwrap()
}

/// The NIC writes to the page that is chosen to leave. If the NIC does not hold it, it leaves
/// with its dirty bit; else another page leaves. The kernel then has
/// the frame to itself, and the new page is found.
#[test]
fn no_page_is_evicted_that_the_nic_holds() {
    let seed = 1;
    let victim = first_choice(seed);
    let seen = outcomes(move || {
        let (world, mut table) = mapped(ROW_ENTRIES, seed);
        let (removed, wrote) = concurrently(
            &world,
            move |world| nic_writes(world, tag(victim as usize)).is_some(),
            |world| {
                let removed = insert_fifth(world, &mut table);
                world.reuse(removed.frame);
                removed
            },
        );
        let chosen = removed.frame == victim;
        assert_eq!(removed.dirty, chosen && wrote);
        let new = nic_writes(&world, tag(ROW_ENTRIES));
        assert_eq!(new, Some(key(ROW_ENTRIES)));
        let left = nic_writes(&world, tag(removed.frame as usize));
        assert_eq!(left, None);
        chosen
    });
    assert_eq!(seen.len(), 2, "it leaves, and it stays");
}
