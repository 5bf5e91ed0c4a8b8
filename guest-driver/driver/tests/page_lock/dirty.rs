//! The dirty-bit race (N7; NetVM §4.3.2.1): the driver learns of everything that the NIC
//! has written, however often it cleans the page meanwhile.

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::Arc;
use qnic_abi::page_table::{PageAccess, Tag};
use qnic_driver::shadow::{Dirty, Inserted, Unmapped};
use qnic_nic::page_table::{lock_page, unlock_page_dirty};

use crate::world::{concurrently, key, mapped, nic_writes, outcomes, tag, World};

/// The NIC writes `value` into a page by DMA. The kernel may read the page at the
/// same time, so its content is an atomic here.
fn dma(world: &World, content: &AtomicU32, value: u32) -> bool {
    dma_under(tag(0), world, content, value)
}

/// The same, by the page with that tag.
fn dma_under(tag: Tag, world: &World, content: &AtomicU32, value: u32) -> bool {
    let Some(page) = lock_page(world, &world.geometry, tag, PageAccess::Write) else {
        return false;
    };
    content.store(value, Ordering::Relaxed);
    unlock_page_dirty(world, &world.geometry, page);
    true
}

/// The driver cleans a page while the NIC writes to it twice. The kernel saves the page each time that
/// it was dirty; in the end the saved content is that of the page.
#[test]
fn a_modified_page_never_counts_as_clean() {
    let seen = outcomes(|| {
        let (world, mut table) = mapped(1, 1);
        let content = Arc::new(AtomicU32::new(0));
        // It is dirty from the start.
        assert!(dma(&world, &content, 1));
        let memory = content.clone();
        let ((dirty, mut saved), _) = concurrently(
            &world,
            move |world| dma(world, &memory, 2),
            |world| {
                let dirty = table.is_page_dirty(world, tag(0), 0);
                match dirty {
                    Dirty::Cleaned => (dirty, content.load(Ordering::Relaxed)),
                    Dirty::Locked => (dirty, 0),
                    Dirty::Clean | Dirty::Absent => panic!("{dirty:?}"),
                }
            },
        );
        if table.is_page_dirty(&*world, tag(0), 0) == Dirty::Cleaned {
            saved = content.load(Ordering::Relaxed);
        }
        assert_eq!(saved, content.load(Ordering::Relaxed));
        assert_eq!(table.is_page_dirty(&*world, tag(0), 0), Dirty::Clean);
        dirty == Dirty::Cleaned
    });
    assert_eq!(seen.len(), 2, "cleaned, and held");
}

/// The same with two pages that share the frame: the driver cleans one, and the NIC writes by the other
/// (N2).
#[test]
fn a_modified_page_never_counts_as_clean_under_another_tag() {
    let seen = outcomes(|| {
        let (world, mut table) = mapped(1, 1);
        let second = table.insert(&*world, tag(1), 0, (key(1), PageAccess::Write));
        assert!(matches!(second, Inserted::Done { replaced: None, .. }));
        let content = Arc::new(AtomicU32::new(0));
        assert!(dma(&world, &content, 1));
        let memory = content.clone();
        let ((dirty, mut saved), _) = concurrently(
            &world,
            move |world| dma_under(tag(1), world, &memory, 2),
            |world| {
                let dirty = table.is_page_dirty(world, tag(0), 0);
                (dirty, content.load(Ordering::Relaxed))
            },
        );
        if table.is_page_dirty(&*world, tag(0), 0) == Dirty::Cleaned {
            saved = content.load(Ordering::Relaxed);
        }
        assert_eq!(saved, content.load(Ordering::Relaxed));
        dirty == Dirty::Cleaned
    });
    assert_eq!(seen.len(), 2, "cleaned, and held");
}

/// The NIC writes to a clean page while the driver asks: the page is dirty then, or at the next
/// question.
#[test]
fn a_write_is_seen_now_or_later() {
    loom::model(|| {
        let (world, mut table) = mapped(1, 1);
        let content = Arc::new(AtomicU32::new(0));
        let memory = content.clone();
        let (now, wrote) = concurrently(
            &world,
            move |world| dma(world, &memory, 1),
            |world| match table.is_page_dirty(world, tag(0), 0) {
                Dirty::Cleaned => {
                    assert_eq!(content.load(Ordering::Relaxed), 1);
                    true
                }
                Dirty::Clean | Dirty::Locked => false,
                Dirty::Absent => panic!("no other side unmaps it"),
            },
        );
        let later = table.is_page_dirty(&*world, tag(0), 0) == Dirty::Cleaned;
        assert_eq!(now || later, wrote);
        assert!(!(now && later));
    });
}

/// Two frames whose bits share a word: marking one and cleaning the other lose
/// neither, because each word has one writer.
#[test]
fn bits_of_one_word_are_independent() {
    loom::model(|| {
        let (world, mut table) = mapped(2, 1);
        assert!(nic_writes(&world, tag(1)).is_some());
        let (cleaned, wrote) = concurrently(
            &world,
            |world| nic_writes(world, tag(0)).is_some(),
            |world| table.is_page_dirty(world, tag(1), 1),
        );
        assert_eq!(cleaned, Dirty::Cleaned);
        assert!(wrote);
        assert_eq!(table.is_page_dirty(&*world, tag(1), 1), Dirty::Clean);
        let unmapped = table.try_unmap(&*world, tag(0), 0);
        assert!(matches!(unmapped, Unmapped::Done(removed) if removed.dirty));
    });
}
