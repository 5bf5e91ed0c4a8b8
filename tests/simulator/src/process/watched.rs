//! A process as an oracle sees it: where its memory and its host area can be looked at, and
//! whether its pages can be brought in.

use std::sync::Arc;

use qnic_abi::context::{DoorbellState, CONTEXTS};
use qnic_abi::host_area::{
    completion_offset, CompletionEntry, COMPLETION_TAIL, DOORBELL_STATE, HOST_PAGES, POOL,
    SEND_DOORBELLS,
};
use qnic_abi::{PAGE_SHIFT, PAGE_SIZE};

use crate::machine::platform::Machine;
use crate::settings::port;

/// How long the answer to a page fault takes at most that found the page unavailable, in
/// nanoseconds.
const ANSWERED: u64 = 200_000;

/// Where a living process can be looked at.
struct View {
    machine: Arc<Machine>,
    space: u64,
    host_area: Option<[u32; HOST_PAGES]>,
}

/// The process in a slot, or what is left of it.
#[derive(Default)]
pub(crate) struct Watched {
    slot: usize,
    pub(crate) node: usize,
    pub(crate) incarnation: u32,
    view: Option<View>,
    /// Completions that were read.
    completions: u64,
    /// Pages of it that cannot be brought in, and until when that may show.
    unavailable: u32,
    unavailable_until: u64,
}

/// A page of a process, which cannot be brought in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnavailablePage {
    pub(crate) slot: usize,
    incarnation: u32,
    space: u64,
    page: u64,
}

impl Watched {
    /// An empty slot of a node.
    pub(crate) fn new(slot: usize, node: usize) -> Self {
        Watched {
            slot,
            node,
            ..Watched::default()
        }
    }

    /// The next process of the slot, with an address space.
    pub(crate) fn next(&self, machine: &Arc<Machine>, space: u64) -> Self {
        Watched {
            incarnation: self.incarnation + 1,
            view: Some(View {
                machine: machine.clone(),
                space,
                host_area: None,
            }),
            ..Watched::new(self.slot, self.node)
        }
    }

    /// It is registered, with a host area in these frames.
    pub(crate) fn registered(&mut self, frames: [u32; HOST_PAGES]) {
        if let Some(view) = &mut self.view {
            view.host_area = Some(frames);
        }
    }

    /// It begins to die.
    pub(crate) fn end(&mut self) {
        self.view = None;
    }

    /// Node and port.
    pub(crate) fn name(&self) -> (u16, u16) {
        (self.node as u16, port(self.slot))
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.view.is_some()
    }

    pub(crate) fn is_registered(&self) -> bool {
        let view = self.view.as_ref();
        view.is_some_and(|view| view.host_area.is_some())
    }

    /// What stands in its memory; `None` if it is dead.
    pub(crate) fn peek(&self, address: u64, length: u64) -> Option<Vec<u8>> {
        let view = self.view.as_ref()?;
        let kernel = &view.machine.kernel;
        kernel.peek(view.space, address, length as usize)
    }

    /// What stands in its host area, within one page.
    ///
    /// # Panics
    /// If it is not registered.
    pub(crate) fn load<const LENGTH: usize>(&self, offset: usize) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let loaded = self.load_into(offset, &mut bytes);
        let slot = self.slot;
        loaded.unwrap_or_else(|| panic!("process {slot}: its host area before it has one"));
        bytes
    }

    fn load_into(&self, offset: usize, bytes: &mut [u8]) -> Option<()> {
        let view = self.view.as_ref()?;
        let frame = view.host_area?[offset / PAGE_SIZE];
        let memory = &view.machine.memory;
        memory.load(frame, offset % PAGE_SIZE, bytes);
        Some(())
    }

    /// What stands in its buffer pool; `None` if it is dead.
    pub(crate) fn peek_pool(&self, start: u64, length: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        let mut done = 0;
        while done < bytes.len() {
            let offset = POOL + start as usize + done;
            let end = bytes.len().min(done + PAGE_SIZE - offset % PAGE_SIZE);
            self.load_into(offset, &mut bytes[done..end])?;
            done = end;
        }
        Some(bytes)
    }

    /// The completions that a NIC's store into the host area adds, with their numbers.
    pub(crate) fn completions(&mut self, offset: usize, value: u64) -> Vec<CompletionEntry> {
        if offset != COMPLETION_TAIL || !self.is_registered() {
            return Vec::new();
        }
        let first = self.completions;
        self.completions = first.max(value);
        let entries = (first..value).map(completion_offset);
        entries.map(|offset| self.load_entry(offset)).collect()
    }

    /// The context, and the entry, if the NIC has stored the state of a doorbell. True: it is a
    /// context for receives.
    pub(crate) fn doorbell(
        &self,
        offset: usize,
        value: u64,
    ) -> Option<((bool, usize), CompletionEntry)> {
        let bytes = size_of::<CompletionEntry>();
        let entry = offset.checked_sub(SEND_DOORBELLS + DOORBELL_STATE)? / bytes;
        let start = SEND_DOORBELLS + entry * bytes;
        let state = start + DOORBELL_STATE == offset && entry < 2 * CONTEXTS;
        if !state || !self.is_registered() {
            return None;
        }
        let used = value >> 32 == u64::from(DoorbellState::Used as u32);
        assert!(!used, "process {}: a NIC takes a context", self.slot);
        Some((
            (entry >= CONTEXTS, entry % CONTEXTS),
            self.load_entry(start),
        ))
    }

    fn load_entry(&self, offset: usize) -> CompletionEntry {
        let bytes: [u8; size_of::<CompletionEntry>()] = self.load(offset);
        zerocopy::transmute!(bytes)
    }

    /// Returns true if an operation from or to it may find a page unavailable.
    pub(crate) fn lacks_pages(&self, now: u64) -> bool {
        self.unavailable > 0 || now < self.unavailable_until
    }

    /// Makes the page of an address unavailable to its NIC; `None` if it is dead.
    pub(crate) fn make_unavailable(
        &mut self,
        address: impl FnOnce() -> u64,
    ) -> Option<UnavailablePage> {
        let view = self.view.as_ref()?;
        let page = UnavailablePage {
            slot: self.slot,
            incarnation: self.incarnation,
            space: view.space,
            page: address() >> PAGE_SHIFT,
        };
        let kernel = &view.machine.kernel;
        kernel.set_available(page.space, page.page, false);
        self.unavailable += 1;
        Some(page)
    }

    /// The page can be brought in again.
    pub(crate) fn make_available(&mut self, page: UnavailablePage, now: u64) {
        let same = self.incarnation == page.incarnation;
        if let Some(view) = self.view.as_ref().filter(|_| same) {
            let kernel = &view.machine.kernel;
            kernel.set_available(page.space, page.page, true);
            self.unavailable -= 1;
            self.unavailable_until = now + ANSWERED;
        }
    }
}
