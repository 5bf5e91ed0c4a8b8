//! What a forked child has of the NIC that its parent uses: nothing that reaches it (unsafe shell).
//!
//! ```text
//!   parent                                     child, before fork() returns there
//!   memory that it shares with a NIC ────────► memory of the child's own, at the same address
//!   a word that is looked at before each
//!   command (host area: WAKE_GENERATION) ────► FORKED
//!   descriptors that hold its place at the NIC ► descriptors that lead nowhere
//!   Own<T> ──────────────────────────────────► Err(Forked), and its drop does nothing
//! ```
//! So a child cannot disturb its parent, whatever it calls or drops, and the parent pays nothing for
//! it: a check that each command has anyway finds another value in the word. If the parent ends, its
//! NIC learns of it at once, although the child lives.
//!
//! # Invariants
//! - The list is whole in the child: the thread that forks has its lock until `fork` returns.
//! - The child waits for nothing here: no other thread lives there that could give a lock back.
//!
//! The C library calls no handler for a bare `clone` system call: where the memory was, its child has
//! a hole. A child of `vfork` or `posix_spawn` is in its parent's memory until it becomes another
//! program, and nothing is done there, as is right.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::vec::Vec;

use rustix::event::{eventfd, EventfdFlags};
use rustix::io::{dup3, DupFlags};
use rustix::mm::{madvise, Advice};

use super::*;

/// What a word of [`Kept::word`] is in a child, and never else.
pub const FORKED: u64 = u64::MAX - 1;

/// This process was forked after the object was made: it is its parent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forked;

/// Something that children do not share.
enum Entry {
    /// Children have this file from its start instead, a page their own when they write to it; or
    /// zeroes.
    Memory {
        base: usize,
        length: usize,
        file: Option<OwnedFd>,
    },
    /// A word of such memory.
    Word(usize),
    Descriptor(RawFd),
}

struct List {
    next: u64,
    /// By number.
    entries: Vec<(u64, Entry)>,
}

static LIST: Mutex<List> = Mutex::new(List {
    next: 0,
    entries: Vec::new(),
});

/// How many forks lie between the first process and this one. Relaxed: it changes only while the
/// process has a single thread.
static FORKS: AtomicU32 = AtomicU32::new(0);

std::thread_local! {
    /// The lock of the list, while this thread forks.
    static HELD: Cell<Option<MutexGuard<'static, List>>> = const { Cell::new(None) };
}

extern "C" {
    fn pthread_atfork(
        before: extern "C" fn(),
        in_parent: extern "C" fn(),
        in_child: extern "C" fn(),
    ) -> c_int;
}

fn list() -> MutexGuard<'static, List> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

// Where a thread ends, and has no such variable any more, it forks without the lock.

extern "C" fn before() {
    let _ = HELD.try_with(|held| held.set(Some(list())));
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(Cell::take);
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Ok(Some(mut list)) = HELD.try_with(Cell::take) {
        // From now on it is the child's own, and children of the child get it as usual.
        let entries: Vec<_> = std::mem::take(&mut list.entries);
        part(&entries);
    }
}

/// Has the C library call the functions above.
fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions live as long as the process.
        let result = unsafe { pthread_atfork(before, in_parent, in_child) };
        assert_eq!(result, 0, "no memory for the handlers of fork");
    });
}

/// Parts this process, a child, from what its parent shares.
fn part(entries: &[(u64, Entry)]) {
    let entries = || entries.iter().map(|(_, entry)| entry);
    let mapped = entries().all(|entry| match entry {
        Entry::Memory { base, length, file } => fill(*base, *length, file.as_ref()),
        _ => true,
    });
    for entry in entries() {
        match *entry {
            Entry::Word(address) if mapped => {
                let word = address as *const AtomicU64;
                // SAFETY: the word is an aligned one of memory (`Kept::word`) that is mapped again
                // by now, for writing.
                unsafe { &*word }.store(FORKED.to_le(), Ordering::Relaxed);
            }
            _ => (),
        }
    }
    // An event that never comes: descriptors that are polled stay valid.
    let Ok(nowhere) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
        return;
    };
    for entry in entries() {
        if let Entry::Descriptor(descriptor) = *entry {
            // SAFETY: `Kept::descriptor` was given its owner, which still has it; nothing is closed
            // here, as `dup3` replaces what the number stands for.
            let mut owned = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(descriptor) });
            // Without it, the child holds its parent's place until it ends.
            let _ = dup3(&nowhere, &mut owned, DupFlags::CLOEXEC);
        }
    }
}

/// Fills the hole that memory of the parent has left. Returns false if that fails.
fn fill(base: usize, length: usize, file: Option<&OwnedFd>) -> bool {
    let at = base as *mut core::ffi::c_void;
    let (access, flags) = (
        protection(true),
        MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE,
    );
    // SAFETY: nothing is mapped there, or the call fails: no reference leads there, but regions of
    // this module, which are to have this memory.
    let filled = unsafe {
        match file {
            Some(file) => mmap(at, length, access, flags, file, 0),
            None => mmap_anonymous(at, length, access, flags),
        }
    };
    filled.is_ok()
}

/// Children do not share something, for as long as this lives.
#[derive(Debug)]
pub struct Kept(u64);

impl Kept {
    fn add(entry: Entry) -> Self {
        watch();
        let mut list = list();
        let number = list.next;
        list.next += 1;
        list.entries.push((number, entry));
        Kept(number)
    }

    /// The open descriptor of `owner` stands for nothing in children. `owner` has to outlive this.
    pub fn descriptor(owner: &impl AsFd) -> Self {
        Self::add(Entry::Descriptor(owner.as_fd().as_raw_fd()))
    }

    /// The aligned word of `region` at `offset` is [`FORKED`] in children. The region, or one that it
    /// is a part of, is [kept from them](SharedRegion::kept_from_children), and outlives this.
    ///
    /// # Panics
    /// If the word is not an aligned one of the region.
    pub fn word(region: &SharedRegion, offset: usize) -> Self {
        let word: *const AtomicU64 = region.word_u64(offset);
        Self::add(Entry::Word(word as usize))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        list().entries.retain(|(number, _)| *number != self.0);
    }
}

impl SharedRegion {
    /// The same region, a whole mapping, which children do not have: where it is, they have the
    /// first bytes of `file` as they are when a child looks at them, until it writes; or zeroes.
    ///
    /// # Errors
    /// The error of madvise, or that there is no descriptor left.
    pub fn kept_from_children(self, file: Option<&OwnedFd>) -> std::io::Result<Self> {
        let (base, length) = (self.as_ptr(), self.length);
        let file = file.map(OwnedFd::try_clone).transpose()?;
        // SAFETY: it changes what children have, and nothing here.
        unsafe { madvise(base.cast(), length, Advice::LinuxDontFork) }?;
        let kept = Kept::add(Entry::Memory {
            base: base as usize,
            length,
            file,
        });
        Ok(self.guarded(kept))
    }
}

/// A value of the process that has made it. In a child it cannot be reached and is never dropped:
/// what would happen there happens to the parent, or waits for threads that the child does not have.
pub struct Own<T> {
    value: ManuallyDrop<T>,
    forks: u32,
}

impl<T> Own<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        watch();
        Own {
            value: ManuallyDrop::new(value),
            forks: FORKS.load(Ordering::Relaxed),
        }
    }

    /// The value.
    ///
    /// # Errors
    /// [`Forked`]
    pub fn get(&self) -> Result<&T, Forked> {
        match self.forks == FORKS.load(Ordering::Relaxed) {
            true => Ok(&self.value),
            false => Err(Forked),
        }
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Own<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Own").field(&self.get()).finish()
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.get().is_ok() {
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
