use super::super::segment::ADDRESS_END;
use super::*;
use crate::testing::{export, export_call, mapped, register, running, Fake, PAGE};
use crate::Process;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use qnic_abi::export::{ExportOptions, LISTED};
use qnic_abi::header::SEGMENTS_PER_PROCESS;
use qnic_abi::Secret;

fn status(result: Result<uapi::Export, CallError>) -> Status {
    Status::try_from(result.unwrap().status.get()).unwrap()
}

fn unexport(process: &Process<Fake>, segment: u16) -> Status {
    let mut call = uapi::Unexport {
        segment: segment.into(),
        ..Default::default()
    };
    process.unexport(&mut call).unwrap();
    Status::try_from(call.status.get()).unwrap()
}

#[test]
fn names_over_one_range_share_its_pages() {
    let (fake, _, process) = running();
    fake.kernel.map(16, 4, true);
    let first = export(&process, 1, 16 * PAGE + 8, 3 * PAGE).unwrap();
    let second = export(&process, 2, 16 * PAGE + 8, 3 * PAGE).unwrap();
    assert_ne!(first.key, second.key);
    assert_ne!(first.segment, second.segment);
    assert_eq!(fake.nic().page_keys(process.vni().0).len(), 1);
    assert_eq!(mapped(&process), 4);
    assert_eq!(unexport(&process, first.segment.get()), Status::Ok);
    assert_eq!(mapped(&process), 4);
    assert_eq!(unexport(&process, second.segment.get()), Status::Ok);
    assert_eq!(mapped(&process), 0);
    assert_eq!(
        unexport(&process, second.segment.get()),
        Status::NoSuchSegment
    );
    assert_eq!(unexport(&process, u16::MAX), Status::NoSuchSegment);
}

/// Memory that was added to a guest whose NIC was not told of it (X9).
#[test]
fn memory_beyond_the_page_table_is_refused_and_the_log_says_why() {
    let (fake, _, process) = running();
    fake.kernel.map(16, 2, true);
    fake.kernel.state().pages.insert(17, Some(1 << 20));
    for _ in 0..2 {
        let refused = export(&process, 1, 16 * PAGE, 2 * PAGE);
        assert_eq!(status(refused), Status::SramTooSmall);
    }
    assert_eq!((mapped(&process), fake.nic().segments.len()), (0, 0));
    assert_eq!(fake.log().matches("memory_max").count(), 1);
    assert_eq!(status(export(&process, 1, 16 * PAGE, PAGE)), Status::Ok);
}

#[test]
fn overlaps_and_bad_ranges_are_refused() {
    let (fake, _, process) = running();
    fake.kernel.map(16, 4, false);
    fake.kernel.state().read_only.insert(19);
    let first = export(&process, 1, 16 * PAGE, PAGE + 1);
    assert_eq!(status(first), Status::Ok);
    for (name, address, length, wanted) in [
        (1, 18 * PAGE, 1, Status::NameExists),
        (2, 16 * PAGE, PAGE, Status::Overlapping),
        (2, 17 * PAGE, 1, Status::Overlapping),
        (2, 15 * PAGE, 9 * PAGE, Status::Overlapping),
        (2, 18 * PAGE, 0, Status::BadLength),
        (2, 40 * PAGE, 1, Status::NotMapped),
        (2, u64::MAX - 5, 10, Status::BadAddress),
        (2, ADDRESS_END - 1, 2, Status::BadAddress),
        (2, 19 * PAGE, 1, Status::ReadOnlyMemory),
        (2, 18 * PAGE, PAGE, Status::Ok),
    ] {
        let got = status(export(&process, name, address, length));
        assert_eq!(got, wanted, "{address:#x} + {length}");
    }
    assert_eq!(fake.nic().segments.len(), 2);
}

/// Two objects in one page have no address in common: each is exported, with access of its own,
/// and stays when the other goes (N2).
#[test]
fn objects_in_one_page_are_exported_each_for_itself() {
    let (fake, _, process) = running();
    fake.kernel.map(16, 2, true);
    let grant = |name, address, length, access: Access| {
        let mut call = export_call(name, address, length);
        call.access = access.bits().into();
        process.export(&mut call).unwrap();
        assert_eq!(call.status.get(), Status::Ok.code());
        call.segment.get()
    };
    let first = grant(1, 16 * PAGE + 8, 100, Access::READ);
    let second = grant(2, 16 * PAGE + 108, 100, Access::WRITE);
    let both_pages = grant(3, 16 * PAGE + 1000, PAGE, Access::all());
    let vni = process.vni().0;
    assert_eq!(fake.nic().page_keys(vni).len(), 1, "one key for a page");
    assert_eq!(mapped(&process), 2);
    assert_eq!(unexport(&process, both_pages), Status::Ok);
    assert_eq!(unexport(&process, first), Status::Ok);
    let served = process
        .state
        .exports
        .fault_in(16 * PAGE, 1, PageAccess::Write);
    assert_eq!((served, mapped(&process)), (Ok(()), 1));
    assert_eq!(unexport(&process, second), Status::Ok);
    assert_eq!(mapped(&process), 0);
}

/// Whatever has come and gone: of the regions that hold a page, the one that reaches furthest is found.
#[test]
fn the_region_that_reaches_furthest_is_found() {
    let (fake, _, process) = running();
    fake.kernel.map(16, 48, true);
    let mut random = fastrand::Rng::with_seed(7);
    let mut held: Vec<(u16, u64, u64)> = Vec::new();
    for name in 1..300 {
        if held.is_empty() || held.len() < 20 && random.bool() {
            let first = random.u64(16..64);
            let end = random.u64(first + 1..=64);
            let mut call = export_call(name, first * PAGE, (end - first) * PAGE);
            call.flags = uapi::OVERLAPPING.into();
            process.export(&mut call).unwrap();
            assert_eq!(call.status.get(), Status::Ok.code());
            held.push((call.segment.get(), first, end));
        } else {
            let (segment, ..) = held.swap_remove(random.usize(..held.len()));
            assert_eq!(unexport(&process, segment), Status::Ok);
        }
        for page in 16..64 {
            let holds = |(_, first, end): &&(u16, u64, u64)| (*first..*end).contains(&page);
            let furthest = held.iter().filter(holds).map(|(.., end)| *end).max();
            let found = process.state.exports.find(page).map(|(exported, index)| {
                let pages = exported.region.page_numbers();
                assert_eq!(pages.start + index as u64, page);
                pages.end
            });
            assert_eq!(found, furthest, "{page} of {held:?}");
        }
    }
}

/// Of regions that share pages each one takes the page out, and the one that reaches furthest
/// serves a fault.
#[test]
fn ranges_overlap_where_that_is_asked_for() {
    let (fake, _, process) = running();
    fake.kernel.map(16, 8, true);
    let grant = |name, first: u64, pages: u64| {
        let mut call = export_call(name, first * PAGE, pages * PAGE);
        call.flags = uapi::OVERLAPPING.into();
        status(process.export(&mut call).map(|()| call))
    };
    let ranges = [(1, 16, 8), (2, 18, 2), (3, 17, 6), (4, 18, 2), (5, 23, 1)];
    for (name, first, pages) in ranges {
        assert_eq!(grant(name, first, pages), Status::Ok, "{name}");
    }
    let refused = export(&process, 6, 18 * PAGE, PAGE);
    assert_eq!(status(refused), Status::Overlapping);
    assert_eq!(mapped(&process), 8);
    assert!(fake.kernel.reclaim(18, 1, false) && fake.kernel.reclaim(19, 3, true));
    assert_eq!(mapped(&process), 4);
    let exports = &process.state.exports;
    assert_eq!(exports.fault_in(19 * PAGE, 4, PageAccess::Read), Ok(()));
    assert_eq!(
        mapped(&process),
        7,
        "one fault brings in all that are wanted"
    );
    assert_eq!(unexport(&process, 0), Status::Ok);
    assert!(exports.find(16).is_none());
    for page in 17..24 {
        let served = exports.fault_in(page * PAGE, 1, PageAccess::Read);
        assert_eq!(served, Ok(()), "{page}");
    }
    assert_eq!(mapped(&process), 7);
    for segment in 1..5 {
        assert_eq!(unexport(&process, segment), Status::Ok);
    }
    assert_eq!(mapped(&process), 0);
}

/// The NIC enforces the options of an export, so all of them reach it; so do the credentials of an
/// import.
#[test]
fn options_reach_the_nic() {
    let (fake, _, process) = running();
    fake.kernel.map(16, 1, false);
    let mut call = export_call(1, 16 * PAGE, PAGE);
    call.options = ExportOptions {
        secret: Secret([7; 16]),
        flags: LISTED.into(),
        count: 1.into(),
        ..ExportOptions::open()
    };
    call.options.importers[0].node = 9.into();
    process.export(&mut call).unwrap();
    let vni = process.vni().0;
    assert_eq!(fake.nic().segments[&(vni, 0)].options, call.options);
    let mut call = uapi::Import {
        name: 1.into(),
        secret: Secret([8; 16]),
        ..Default::default()
    };
    process.import(&mut call).unwrap();
    assert_eq!(fake.nic().presented, Secret([8; 16]));
}

#[test]
fn illegal_arguments_are_refused() {
    let (_, _, process) = running();
    for (access, flags) in [(0, 0), (4, 0), (u32::MAX, 0), (1, 4)] {
        let mut call = uapi::Export {
            access: access.into(),
            flags: flags.into(),
            ..Default::default()
        };
        assert_eq!(process.export(&mut call), Err(CallError::Invalid));
    }
    let mut call = export_call(1, 0, 1);
    call.options.count = 1.into();
    assert_eq!(process.export(&mut call), Err(CallError::Invalid));
    let huge = export(&process, 1, 0, 1 << 56);
    assert!(matches!(huge, Err(CallError::NoMemory)), "{huge:?}");
}

#[test]
fn physical_exports_need_the_privilege_and_pin_while_they_last() {
    let fake = Fake::new();
    let driver = fake.start().unwrap();
    fake.kernel.map(16, 4, true);
    let physical = |process: &Process<Fake>, address, length| {
        let mut call = export_call(address, address, length);
        call.flags = uapi::PHYSICAL.into();
        process.export(&mut call).map(|()| call)
    };
    let ordinary = register(&driver);
    let (address, length) = (16 * PAGE + 8, 2 * PAGE);
    let refused = physical(&ordinary, address, length);
    assert_eq!(status(refused), Status::AccessDenied);
    let wanted = uapi::Register {
        flags: uapi::PHYSICAL.into(),
        ..Default::default()
    };
    let mut call = wanted;
    assert!(driver.register((), 1, &mut call).unwrap().is_none());
    assert_eq!(call.status.get(), Status::AccessDenied.code());
    assert_eq!(fake.kernel.state().pinned, 0);

    fake.physical.store(true, Ordering::Relaxed);
    let mut call = wanted;
    let process = driver.register((), 1, &mut call).unwrap().unwrap();
    let registered = fake.nic().processes[&process.vni().0];
    assert_eq!(registered.flags.get(), control::PROCESS_PHYSICAL);
    let done = physical(&process, address, length).unwrap();
    assert_eq!(done.status.get(), Status::Ok.code());
    let frame = fake.kernel.state().pages[&16].unwrap();
    assert_eq!(done.address.get(), u64::from(frame) * PAGE + 8);
    let segment = fake.nic().segments[&(process.vni().0, done.segment.get())];
    assert_eq!(segment.flags.get(), EXPORT_PHYSICAL);
    assert_eq!((segment.address, segment.page_key.get()), (done.address, 0));
    assert_eq!(mapped(&process), 0, "no page is in the table");
    assert_eq!(fake.kernel.state().pinned, 1);
    // Memory with a hole, refusals of the NIC.
    let hole = physical(&process, 30 * PAGE, length);
    assert_eq!(status(hole), Status::NotMapped);
    fake.nic().next.push_back(Ok(Status::BadAddress.code()));
    let refused = physical(&process, 18 * PAGE, length).unwrap();
    assert_eq!(refused.address.get(), 18 * PAGE);
    assert_eq!(fake.kernel.state().pinned, 1);
    assert_eq!(unexport(&process, done.segment.get()), Status::Ok);
    assert_eq!(fake.kernel.state().pinned, 0);
    let again = physical(&process, address, length);
    assert_eq!(status(again), Status::Ok);
    drop(process);
    assert_eq!(fake.kernel.state().pinned, 0);
}

#[test]
fn an_export_that_the_nic_refuses_leaves_nothing() {
    let (fake, _, process) = running();
    fake.kernel.map(16, 4, true);
    fake.nic().next.push_back(Ok(Status::Exhausted.code()));
    let refused = export(&process, 1, 16 * PAGE, PAGE);
    assert_eq!(status(refused), Status::Exhausted);
    assert_eq!(mapped(&process), 0);
    assert!(process.state.exports.find(16).is_none());
    assert_eq!(status(export(&process, 1, 16 * PAGE, PAGE)), Status::Ok);
}

#[test]
fn a_process_exports_so_many_segments_and_no_more() {
    let (fake, _, process) = running();
    fake.kernel.map(0, 5000, false);
    for page in 0..u64::from(SEGMENTS_PER_PROCESS) {
        assert_eq!(status(export(&process, page, page * PAGE, 1)), Status::Ok);
    }
    let more = export(&process, 5000, 4999 * PAGE, 1);
    assert_eq!(status(more), Status::Exhausted);
    assert_eq!(unexport(&process, 17), Status::Ok);
    let more = export(&process, 5000, 4999 * PAGE, 1).unwrap();
    assert_eq!(more.segment.get(), 17);
}

#[test]
fn the_end_of_a_process_empties_the_table() {
    let (fake, driver, process) = running();
    let other = register(&driver);
    fake.kernel.map(16, 8, true);
    fake.kernel.map(32, 2, true);
    export(&process, 1, 16 * PAGE, 4 * PAGE).unwrap();
    export(&process, 2, 20 * PAGE, 4 * PAGE).unwrap();
    export(&other, 1, 32 * PAGE, 2 * PAGE).unwrap();
    assert_eq!(mapped(&other), 10);
    drop(process);
    assert_eq!(mapped(&other), 2);
    assert_eq!(fake.nic().segments.len(), 1);
    // Pages that are not exported any more may be unmapped and mapped again.
    fake.kernel.unmap(16, 8);
    assert_eq!(driver.device.counters.pages_invalidated.get(), 8);
}

/// A range that the process can only read is exported for reading, and refused for writing, also
/// if it is exported already.
#[test]
fn a_segment_grants_what_the_process_itself_may_do() {
    let (fake, _, process) = running();
    fake.kernel.map(16, 4, true);
    fake.kernel.state().read_only.insert(17);
    let grant = |name, access: Access| {
        let mut call = export_call(name, 16 * PAGE, 3 * PAGE);
        call.access = access.bits().into();
        status(process.export(&mut call).map(|()| call))
    };
    assert_eq!(grant(1, Access::WRITE), Status::ReadOnlyMemory);
    assert_eq!(grant(1, Access::READ), Status::Ok);
    assert_eq!(grant(2, Access::all()), Status::ReadOnlyMemory);
    assert_eq!(grant(2, Access::READ), Status::Ok);
    fake.kernel.state().read_only.clear();
    assert_eq!(grant(3, Access::WRITE), Status::Ok);
    assert_eq!(mapped(&process), 3);
}
