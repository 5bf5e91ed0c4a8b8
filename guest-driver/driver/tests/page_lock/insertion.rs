//! Insertion (N5): the NIC finds a page complete, or not at all.

use loom::sync::Arc;
use qnic_abi::page_table::PageAccess;
use qnic_driver::shadow::{Inserted, Table, Unmapped};
use qnic_nic::page_table::{lock_page, page_key, unlock_page_dirty};

use crate::world::{concurrently, geometry, insert, key, mapped, nic_writes, tag, take_out, World};

/// With the entry the NIC finds reverse mapping, key, dirty bit and content: it reports
/// no page absent because the entry is half written.
#[test]
fn no_entry_is_seen_half_written() {
    loom::model(|| {
        let world = Arc::new(World::new());
        let mut table = Table::new(geometry(), 1);
        let (_, (found, locked)) = concurrently(
            &world,
            |world| {
                let found = world.entry(0) != 0;
                (found, nic_writes(world, tag(0)))
            },
            |world| assert!(done(insert(world, &mut table, tag(0), 0, key(0)))),
        );
        assert!(locked.is_some() || !found);
        let unmapped = table.try_unmap(&*world, tag(0), 0);
        assert!(matches!(unmapped, Unmapped::Done(removed) if removed.dirty == locked.is_some()));
    });
}

fn done(inserted: Inserted) -> bool {
    matches!(inserted, Inserted::Done { .. })
}

/// A frame passes from one page to another of the same row. It is never reached
/// under the name of one with the key, the content or the dirty bit of the other, however
/// old the entry is that led the NIC there.
#[test]
fn a_frame_that_changes_hands_keeps_name_and_key_together() {
    loom::model(|| {
        let (world, mut table) = mapped(1, 1);
        let (second, wrote) = concurrently(
            &world,
            |world| {
                let first = nic_writes(world, tag(0));
                let second = nic_writes(world, tag(1));
                assert!(first.is_none_or(|found| found == key(0)));
                assert!(second.is_none_or(|found| found == key(1)));
                second.is_some()
            },
            |world| {
                take_out(world, &mut table, tag(0), 0).is_some()
                    // Busy if a NIC with an old entry has it locked.
                    && done(insert(world, &mut table, tag(1), 0, key(1)))
            },
        );
        assert!(second || !wrote);
        if second {
            let unmapped = table.try_unmap(&*world, tag(1), 0);
            assert!(matches!(unmapped, Unmapped::Done(removed) if removed.dirty == wrote));
        }
    });
}

/// A page that is taken out and inserted again with another key (its segment was
/// exported anew) is never reached with the old key, even if the driver then
/// fails to take it out and leaves it mapped.
#[test]
fn a_page_that_is_inserted_again_has_its_new_key() {
    loom::model(|| {
        let (world, mut table) = mapped(1, 1);
        concurrently(
            &world,
            |world| nic_writes(world, tag(0)),
            |world| {
                if take_out(world, &mut table, tag(0), 0).is_some()
                    && done(insert(world, &mut table, tag(0), 0, 99))
                {
                    take_out(world, &mut table, tag(0), 0);
                }
            },
        );
    });
}

/// Entering a page with another key takes the old one out first: the NIC finds it
/// with one key or the other, and the driver learns of what the NIC wrote under the old key.
#[test]
fn a_page_that_is_replaced_leaves_first() {
    loom::model(|| {
        let (world, mut table) = mapped(1, 1);
        let (inserted, found) = concurrently(
            &world,
            |world| {
                let g = &world.geometry;
                let page = lock_page(world, g, tag(0), PageAccess::Write)?;
                let before = page_key(world, g, &page).0;
                let after = page_key(world, g, &page).0;
                assert_eq!(before, after);
                unlock_page_dirty(world, g, page);
                Some(before)
            },
            |world| table.insert(world, tag(0), 0, (99, PageAccess::Write)),
        );
        let old_is_dirty = match inserted {
            Inserted::Done {
                replaced: Some(removed),
                ..
            }
            | Inserted::Busy {
                replaced: Some(removed),
            } => removed.dirty,
            Inserted::Busy { replaced: None } => found == Some(key(0)),
            _ => panic!("{inserted:?}"),
        };
        assert_eq!(old_is_dirty, found == Some(key(0)));
        let is_out = matches!(inserted, Inserted::Busy { replaced: Some(_) });
        let wrote_to_new = found == Some(if done(inserted) { 99 } else { key(0) });
        match table.try_unmap(&*world, tag(0), 0) {
            Unmapped::Done(removed) => assert_eq!(removed.dirty, wrote_to_new),
            Unmapped::Absent => assert!(is_out),
            Unmapped::Locked => panic!("the NIC does not hold it"),
        }
    });
}
