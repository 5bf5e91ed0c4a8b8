//! What a forked child has of memory, descriptors and values that its parent shares with a NIC (X9).
//!
//! A program of its own: its children have one thread, that of the test.
#![cfg(feature = "region")]
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;

use qnic_abi::shared::Ordering;
use qnic_abi::SharedMemory;
use qnic_shared::region::{Forked, Kept, Own, SharedRegion, FORKED};
use rustix::process::{waitpid, Pid, WaitOptions};

const BYTES: usize = 8192;

/// This process is a child. Relaxed: it has one thread.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

extern "C" {
    fn fork() -> c_int;
    fn _exit(status: c_int) -> !;
}

/// Runs `child` in a child; returns the status with which that has ended: 0 if it returned true.
fn in_child(child: impl FnOnce() -> bool) -> Option<i32> {
    // SAFETY: the child takes no lock that another thread of this process may have.
    match unsafe { fork() } {
        0 => {
            IS_CHILD.store(true, Ordering::Relaxed);
            let status = c_int::from(!child());
            // SAFETY: ends the child at once; destructors are the parent's.
            unsafe { _exit(status) }
        }
        pid => {
            let ended = waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap();
            ended.and_then(|(_, status)| status.exit_status())
        }
    }
}

/// Must not be dropped in a child.
struct Precious;

impl Drop for Precious {
    fn drop(&mut self) {
        assert!(!IS_CHILD.load(Ordering::Relaxed));
    }
}

#[test]
fn a_child_reaches_nothing_of_its_parent() {
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    let sized = File::from(file.try_clone().unwrap());
    sized.set_len(BYTES as u64).unwrap();
    let map = || SharedRegion::map_file(&file, 0, BYTES, true).unwrap();
    let other = map();
    let copied = map().kept_from_children(Some(&file)).unwrap();
    let blank = map().kept_from_children(None).unwrap();
    let marked = copied.part(4096, 4096);
    let _word = Kept::word(&marked, 8);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let kept = Kept::descriptor(&writer);
    let precious = Own::new(Precious);
    copied.store_u64(0, 7, Ordering::Relaxed);
    let load = |region: &SharedRegion, offset| region.load_u64(offset, Ordering::Relaxed);
    let status = in_child(|| {
        let right = load(&copied, 0) == 7
            && load(&blank, 0) == 0
            && load(&marked, 8) == FORKED
            && precious.get().err() == Some(Forked);
        let _nowhere = rustix::io::write(&writer, b"from the child");
        copied.store_u64(0, 8, Ordering::Relaxed);
        blank.store_u64(0, 9, Ordering::Relaxed);
        drop(precious);
        // A child of the child has what that has.
        let own = Own::new(1);
        let grandchild = in_child(|| load(&copied, 0) == 8 && own.get() == Err(Forked));
        right && own.get() == Ok(&1) && grandchild == Some(0)
    });
    assert_eq!(status, Some(0));
    let words = [&copied, &blank, &other].map(|region| load(region, 0));
    assert_eq!(words, [7; 3], "the parent shares its memory as before");
    assert_ne!(load(&marked, 8), FORKED);
    let mut writer = File::from(writer);
    writer.write_all(b"still").unwrap();
    drop((kept, writer));
    let mut said = String::new();
    File::from(reader).read_to_string(&mut said).unwrap();
    assert_eq!(said, "still");
}
