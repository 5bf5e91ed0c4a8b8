//! A full row evicts a page for a new one (N5): never one that the NIC holds.

use std::collections::BTreeSet;
use std::sync::Mutex;

use qnic_abi::page_table::ROW_ENTRIES;
use qnic_driver::shadow::Inserted;

use crate::world::{concurrently, insert, key, mapped, nic_writes, tag};

/// The frame that [`insert`] of a fifth page makes free when the NIC holds no page.
fn first_choice(seed: u64) -> u32 {
    let frame = Mutex::new(None);
    let frame = std::sync::Arc::new(frame);
    let found = frame.clone();
    loom::model(move || {
        let (world, mut table) = mapped(ROW_ENTRIES, seed);
        let inserted = insert(&world, &mut table, tag(ROW_ENTRIES), 4, key(ROW_ENTRIES));
        let Inserted::Done {
            evicted: Some(removed),
            ..
        } = inserted
        else {
            panic!("a full row loses a page: {inserted:?}");
        };
        *found.lock().unwrap() = Some(removed.frame);
    });
    let frame = frame.lock().unwrap().unwrap();
    frame
}

/// The NIC writes to the page that is chosen to leave. It leaves when the NIC does
/// not hold it, with its dirty bit; else another one leaves. The kernel then has
/// the frame to itself, and the new page is found.
#[test]
fn no_page_is_evicted_that_the_nic_holds() {
    static OUTCOMES: Mutex<BTreeSet<bool>> = Mutex::new(BTreeSet::new());
    let seed = 1;
    let victim = first_choice(seed);
    loom::model(move || {
        let (world, mut table) = mapped(ROW_ENTRIES, seed);
        let (removed, wrote) = concurrently(
            &world,
            move |world| nic_writes(world, tag(victim as usize)).is_some(),
            |world| {
                let index = ROW_ENTRIES;
                let inserted = insert(world, &mut table, tag(index), 4, key(index));
                let Inserted::Done {
                    evicted: Some(removed),
                    ..
                } = inserted
                else {
                    panic!("the NIC holds at most one of four: {inserted:?}");
                };
                world.reuse(removed.frame);
                removed
            },
        );
        let chosen = removed.frame == victim;
        assert_eq!(removed.dirty, chosen && wrote);
        OUTCOMES.lock().unwrap().insert(chosen);
        let new = nic_writes(&world, tag(ROW_ENTRIES));
        assert_eq!(new, Some(key(ROW_ENTRIES)));
        let left = nic_writes(&world, tag(removed.frame as usize));
        assert_eq!(left, None);
    });
    assert_eq!(OUTCOMES.lock().unwrap().len(), 2, "it leaves, and it stays");
}
