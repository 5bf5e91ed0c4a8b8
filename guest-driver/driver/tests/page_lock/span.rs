//! Several pages that are locked behind one fence (`lock_pages`): the promises of
//! [`crate::exclusion`] and [`crate::insertion`] for each of them.

use loom::sync::Arc;
use qnic_abi::page_table::PageAccess;
use qnic_driver::shadow::{Inserted, Table, Unmapped};
use qnic_nic::page_table::{lock_pages, unlock_page_dirty, LockedPage};

use crate::world::{
    concurrently, force_out, geometry, insert, key, mapped, nic_writes, outcomes, tag, take_out,
    use_locked, World,
};

/// The NIC locks the first `pages` pages, writes to those that it got, and unlocks them.
/// Returns the keys under which they were mapped.
fn nic_writes_span(world: &World, pages: usize) -> Vec<u64> {
    let mut locked: [Option<LockedPage>; 2] = Default::default();
    let tags = (0..pages).map(tag);
    let span = &mut locked[..pages];
    let count = lock_pages(world, &world.geometry, tags, PageAccess::Write, span);
    assert!(locked[count..].iter().all(Option::is_none));
    let keys = locked.iter().flatten();
    let keys = keys.map(|page| use_locked(world, page)).collect();
    // Last locked, first unlocked.
    for page in locked.into_iter().rev().flatten() {
        unlock_page_dirty(world, &world.geometry, page);
    }
    keys
}

/// The driver unmaps one page of a span, with force or without. The span ends before
/// the page or contains it, and the kernel owns the frame alone.
fn one_page_leaves(leaving: usize, forced: bool) {
    let seen = outcomes(move || {
        let (world, mut table) = mapped(2, 1);
        let frame = leaving as u32;
        let (removed, keys) = concurrently(
            &world,
            |world| nic_writes_span(world, 2),
            |world| {
                let page = tag(leaving);
                if forced {
                    Some(force_out(world, &mut table, page, frame))
                } else {
                    take_out(world, &mut table, page, frame)
                }
            },
        );
        let had = keys.len() > leaving;
        if let Some(removed) = removed {
            assert_eq!(removed.dirty, had);
            assert_eq!(nic_writes(&world, tag(leaving)), None);
        }
        // The span holds no lock any more.
        let expected = if removed.is_some() { leaving } else { 2 };
        assert_eq!(nic_writes_span(&world, 2).len(), expected);
        for frame in 0..2 {
            assert_ne!(
                table.try_unmap(&*world, tag(frame), frame as u32),
                Unmapped::Locked
            );
        }
        (removed.is_some(), keys.len())
    });
    let outcome = |unmapped, locked| seen.contains(&(unmapped, locked));
    assert!(outcome(true, leaving), "the host unmaps it");
    assert!(outcome(true, 2), "one after the other");
    assert!(forced || outcome(false, 2), "the NIC has it");
    assert!(forced || outcome(false, leaving), "neither has it");
}

#[test]
fn the_first_page_of_a_span_leaves() {
    one_page_leaves(0, false);
}

#[test]
fn the_last_page_of_a_span_leaves() {
    one_page_leaves(1, false);
}

#[test]
fn the_first_page_of_a_span_is_forced_out() {
    one_page_leaves(0, true);
}

#[test]
fn the_last_page_of_a_span_is_forced_out() {
    one_page_leaves(1, true);
}

/// As for a single page: the entry leads to a complete page.
#[test]
fn no_entry_of_a_span_is_seen_half_written() {
    loom::model(|| {
        let world = Arc::new(World::new());
        let mut table = Table::new(geometry(), 1);
        let (_, (found, keys)) = concurrently(
            &world,
            |world| (world.entry(0) != 0, nic_writes_span(world, 1)),
            |world| {
                let inserted = insert(world, &mut table, tag(0), 0, key(0));
                assert!(matches!(inserted, Inserted::Done { .. }));
            },
        );
        assert!(!keys.is_empty() || !found);
    });
}

/// As for a single page: an entry that was loaded earlier does not lead to an old key.
#[test]
fn a_page_of_a_span_that_is_inserted_again_has_its_new_key() {
    loom::model(|| {
        let (world, mut table) = mapped(1, 1);
        concurrently(
            &world,
            |world| nic_writes_span(world, 1),
            |world| {
                if take_out(world, &mut table, tag(0), 0).is_some() {
                    let _ = insert(world, &mut table, tag(0), 0, 99);
                }
            },
        );
    });
}
