//! unmapPage against lockPage (N6; NetVM §4.4, figure 13).

use qnic_abi::page_table::{PageAccess, ROW_ENTRIES};
use qnic_driver::shadow::{Inserted, Unmapped};
use qnic_nic::page_table::{lock_page, release_page, unlock_page};

use crate::world::{
    concurrently, force_out, insert, key, mapped, nic_writes, outcomes, tag, take_out, use_locked,
};

/// At most one side has the page at a time, and each of the three outcomes of
/// figure 13 occurs; so does one side after the other.
#[test]
fn all_outcomes_of_the_exclusion_occur() {
    let seen = outcomes(|| {
        let (world, mut table) = mapped(1, 1);
        let (unmapped, locked) = concurrently(
            &world,
            |world| nic_writes(world, tag(0)).is_some(),
            |world| take_out(world, &mut table, tag(0), 0).is_some(),
        );
        // Still mapped, or out: the NIC finds it again, or it does not.
        assert_eq!(world.entry(0) == 0, unmapped);
        assert_eq!(nic_writes(&world, tag(0)).is_none(), unmapped);
        (unmapped, locked)
    });
    for (outcome, what) in [
        ((true, false), "(i) the host unmaps the page"),
        ((false, true), "(ii) the NIC locks the page"),
        ((false, false), "(iii) neither"),
        ((true, true), "the NIC first, then the host"),
    ] {
        assert!(seen.contains(&outcome), "{what}");
    }
}

/// unmapPage with force: after it the NIC does not touch the page any
/// more, and a page that it wrote to is seen dirty (N7).
#[test]
fn a_forced_unmap_ends_with_the_page_to_itself() {
    let seen = outcomes(|| {
        let (world, mut table) = mapped(1, 1);
        let (removed, wrote) = concurrently(
            &world,
            |world| nic_writes(world, tag(0)).is_some(),
            |world| force_out(world, &mut table, tag(0), 0),
        );
        assert_eq!(removed.dirty, wrote);
        assert_eq!(world.entry(0), 0);
        assert_eq!(nic_writes(&world, tag(0)), None);
        wrote
    });
    assert_eq!(seen.len(), 2, "both ends of the race");
}

/// A NIC that tries a page again at once, with values that it loaded earlier, does not lock the page
/// after it was unmapped, and does not count as its holder.
#[test]
fn a_nic_that_comes_back_is_kept_out() {
    loom::model(|| {
        let (world, mut table) = mapped(1, 1);
        concurrently(
            &world,
            |world| [(); 2].map(|()| nic_writes(world, tag(0))),
            |world| force_out(world, &mut table, tag(0), 0),
        );
    });
}

/// Locks nest: the driver gets the page when the outer lock is released, not earlier.
#[test]
fn a_page_that_is_locked_twice_is_held_until_the_last_unlock() {
    loom::model(|| {
        let (world, mut table) = mapped(1, 1);
        concurrently(
            &world,
            |world| {
                let g = &world.geometry;
                let Some(outer) = lock_page(world, g, tag(0), PageAccess::Read) else {
                    return;
                };
                if let Some(inner) = lock_page(world, g, tag(0), PageAccess::Read) {
                    assert_eq!(use_locked(world, &inner), key(0));
                    unlock_page(world, g, inner);
                }
                assert_eq!(use_locked(world, &outer), key(0));
                unlock_page(world, g, outer);
            },
            |world| {
                let removed = take_out(world, &mut table, tag(0), 0);
                assert!(removed.is_none_or(|removed| !removed.dirty));
            },
        );
    });
}

/// One of two pages that share a frame leaves by force while the NIC uses the other (N2): the driver
/// waits for it, and the kernel then has the frame to itself.
#[test]
fn a_page_that_leaves_by_force_waits_for_those_that_share_its_frame() {
    let seen = outcomes(|| {
        let (world, mut table) = mapped(1, 1);
        let second = table.insert(&*world, tag(1), 0, (key(0), PageAccess::Write));
        assert!(matches!(second, Inserted::Done { replaced: None, .. }));
        let (removed, wrote) = concurrently(
            &world,
            |world| nic_writes(world, tag(1)).is_some(),
            |world| {
                let mut out = |tag| match table.begin_unmap(world, tag, 0) {
                    Unmapped::Done(removed) => removed.mappings,
                    Unmapped::Absent => 0,
                    Unmapped::Locked => loop {
                        loom::thread::yield_now();
                        if let Unmapped::Done(removed) = table.finish_unmap(world, 0) {
                            break removed.mappings;
                        }
                    },
                };
                let first = out(tag(0));
                assert_eq!(first + out(tag(1)), 2);
                world.reuse(0);
                first
            },
        );
        (removed, wrote)
    });
    assert!(seen.contains(&(2, true)) && seen.contains(&(1, false)));
}

/// A page that a wire has kept is locked beyond the call that locked it, and others lock it meanwhile: the
/// kernel has its frame to itself when it is released.
#[test]
fn a_page_that_is_kept_is_held_until_it_is_released() {
    let seen = outcomes(|| {
        let (world, mut table) = mapped(1, 1);
        let kept = lock_page(&*world, &world.geometry, tag(0), PageAccess::Read);
        let kept = kept.expect("it is mapped");
        let (wrote, waited) = concurrently(
            &world,
            |world| {
                let wrote = nic_writes(world, tag(0)).is_some();
                use_locked(world, &kept);
                release_page(world, &world.geometry, kept);
                wrote
            },
            |world| {
                let waits = table.begin_unmap(world, tag(0), 0) == Unmapped::Locked;
                while waits && !matches!(table.finish_unmap(world, 0), Unmapped::Done(_)) {
                    loom::thread::yield_now();
                }
                world.reuse(0);
                waits
            },
        );
        (wrote, waited)
    });
    assert!(seen.contains(&(true, true)) && seen.contains(&(false, true)));
    assert!(seen.contains(&(true, false)));
}

/// A page that the NIC holds leaves by force, and with it the other page of its frame (N2): a NIC that has
/// let go of the first finds the frame by the second before the driver is done, or not at all.
#[test]
fn a_frame_that_leaves_by_force_leaves_under_all_its_tags() {
    let seen = outcomes(|| {
        let (world, mut table) = mapped(1, 1);
        let second = table.insert(&*world, tag(1), 0, (key(0), PageAccess::Write));
        assert!(matches!(second, Inserted::Done { replaced: None, .. }));
        let held = lock_page(&*world, &world.geometry, tag(0), PageAccess::Write);
        let held = held.expect("it is mapped");
        let (together, wrote) = concurrently(
            &world,
            |world| {
                unlock_page(world, &world.geometry, held);
                nic_writes(world, tag(1)).is_some()
            },
            |world| {
                if table.begin_unmap(world, tag(0), 0) != Unmapped::Locked {
                    return false;
                }
                while !matches!(table.finish_unmap(world, 0), Unmapped::Done(_)) {
                    loom::thread::yield_now();
                }
                world.reuse(0);
                assert!((0..ROW_ENTRIES).all(|entry| world.entry(entry) == 0));
                true
            },
        );
        (together, wrote)
    });
    assert!(seen.contains(&(true, true)) && seen.contains(&(true, false)));
}

/// The frame of a page that leaves by force is wanted for another page: the other page
/// does not get it while the NIC holds it, nor before the driver knows whether the NIC
/// wrote to it.
#[test]
fn a_frame_that_leaves_by_force_is_not_mapped_elsewhere() {
    let seen = outcomes(|| {
        let (world, mut table) = mapped(1, 1);
        let (found, wrote) = concurrently(
            &world,
            |world| nic_writes(world, tag(0)).is_some(),
            |world| match table.begin_unmap(world, tag(0), 0) {
                Unmapped::Done(removed) => Some(removed),
                Unmapped::Locked => {
                    let other = table.insert(world, tag(1), 0, (key(1), PageAccess::Write));
                    assert_eq!(other, Inserted::Busy { replaced: None });
                    None
                }
                Unmapped::Absent => panic!("no other side unmaps it"),
            },
        );
        let at_once = found.is_some();
        let removed = found.unwrap_or_else(|| match table.finish_unmap(&*world, 0) {
            Unmapped::Done(removed) => removed,
            other => panic!("{other:?}"),
        });
        assert_eq!(removed.dirty, wrote);
        let other = insert(&world, &mut table, tag(1), 0, key(1));
        assert!(matches!(other, Inserted::Done { replaced: None, .. }));
        assert_eq!(nic_writes(&world, tag(1)), Some(key(1)));
        (at_once, wrote)
    });
    assert!(seen.contains(&(false, true)));
}
