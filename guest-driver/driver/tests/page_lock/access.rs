//! Access bits: a page that is mapped for reading is never written to, a page that becomes
//! writable in place keeps its dirty state, and write access is taken away only from a
//! NIC that has unlocked the page.

use qnic_abi::page_table::PageAccess::{self, Read, Write};
use qnic_driver::shadow::{Inserted, Table, Unmapped};
use qnic_nic::page_table::{lock_page, page_key, unlock_page};

use crate::world::{
    concurrently, frame, key, mapped, mapped_for, nic_writes, outcomes, tag, take_out, World,
};

fn insert(world: &World, table: &mut Table, access: PageAccess) -> Inserted {
    table.insert(world, tag(0), 0, (key(0), access))
}

/// The NIC reads a page: its content belongs to its key.
fn nic_reads(world: &World) -> bool {
    let Some(page) = lock_page(world, &world.geometry, tag(0), Read) else {
        return false;
    };
    let key = page_key(world, &world.geometry, &page).0;
    world.look(frame(&page), |content| assert_eq!(content, key));
    unlock_page(world, &world.geometry, page);
    true
}

/// The process reads its page while the NIC is asked to write to it: the NIC finds no page,
/// and the page stays clean.
#[test]
fn a_page_for_reading_is_never_written_to() {
    loom::model(|| {
        let (world, mut table) = mapped_for(Read, 1, 1);
        let ((), wrote) = concurrently(
            &world,
            |world| nic_writes(world, tag(0)).is_some(),
            |world| world.look(0, |content| assert_eq!(content, key(0))),
        );
        assert!(!wrote);
        assert!(nic_reads(&world));
        let unmapped = table.try_unmap(&*world, tag(0), 0);
        assert!(matches!(unmapped, Unmapped::Done(removed) if !removed.dirty));
    });
}

/// A page becomes writable while the NIC tries to write to it: the NIC may find it writable. The NIC sees
/// what the process did before; the driver learns of what the NIC wrote.
#[test]
fn a_page_becomes_writable_in_place() {
    let seen = outcomes(|| {
        let (world, mut table) = mapped_for(Read, 1, 1);
        let ((), wrote) = concurrently(
            &world,
            |world| nic_writes(world, tag(0)).is_some(),
            |world| {
                // The process has the page to itself until now.
                world.look(0, |content| assert_eq!(content, key(0)));
                assert_eq!(insert(world, &mut table, Write), Inserted::Already);
            },
        );
        assert_eq!(nic_writes(&world, tag(0)), Some(key(0)));
        let unmapped = table.try_unmap(&*world, tag(0), 0);
        assert!(matches!(unmapped, Unmapped::Done(removed) if removed.dirty));
        wrote
    });
    assert_eq!(seen.len(), 2, "too early, and in time");
}

/// Write-back: the page leaves, its content is saved, and it comes back for reading. Either the NIC
/// writes before that, and the driver knows; or it does not write at all.
#[test]
fn the_right_to_write_is_taken_from_a_nic_that_has_let_go() {
    let seen = outcomes(|| {
        let (world, mut table) = mapped(1, 1);
        let (left, wrote) = concurrently(
            &world,
            |world| nic_writes(world, tag(0)).is_some(),
            |world| {
                let Unmapped::Done(removed) = table.try_unmap(world, tag(0), 0) else {
                    return None;
                };
                // Saved, while it is not mapped.
                world.look(0, |content| assert_eq!(content, key(0)));
                let inserted = insert(world, &mut table, Read);
                Some((removed.dirty, matches!(inserted, Inserted::Done { .. })))
            },
        );
        if let Some((dirty, back)) = left {
            assert_eq!(dirty, wrote);
            assert_eq!(nic_reads(&world), back);
            assert_eq!(nic_writes(&world, tag(0)), None);
        } else {
            assert!(take_out(&world, &mut table, tag(0), 0).is_some());
        }
        (left, wrote)
    });
    assert!(
        seen.contains(&(Some((false, true)), false)),
        "never written"
    );
    assert!(seen.contains(&(Some((true, true)), true)), "written before");
}

/// A page that the driver fails to unmap keeps its access.
#[test]
fn an_unmap_that_fails_leaves_the_access() {
    let seen = outcomes(|| {
        let (world, mut table) = mapped_for(Read, 1, 1);
        let (unmapped, _) = concurrently(&world, nic_reads, |world| {
            table.try_unmap(world, tag(0), 0) != Unmapped::Locked
        });
        assert_eq!(nic_reads(&world), !unmapped);
        assert_eq!(nic_writes(&world, tag(0)), None);
        unmapped
    });
    assert_eq!(seen.len(), 2, "it leaves, and it stays");
}
