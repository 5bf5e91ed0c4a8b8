//! Receive buffers that are posted (H2): those of a port in a row, and each by its handle.
//!
//! ```text
//!   port 5   next ──► 7 ──► 9 ──► 12        taken from the front, one for each packet
//!            steered ──► 8 ──► 11           taken by their handles only
//!   handles  7, 8, 9, 11, 12
//! ```
//! A port is *bound* from its first buffer until all are withdrawn. One that has none posted just now
//! keeps its entry, so a packet to it is not answered as one to a port that no module has.
//!
//! # Invariants
//! - A buffer stands in one list, and in the table of handles. It is taken out once, so it has one
//!   end (H8).
//! - There are as many slots as buffers were ever posted together. To take one out and to post
//!   another one allocates nothing, and looks at no other port.
//! - At most [`PORTS`] ports without buffers keep their entries, whatever the driver posts.

use std::collections::hash_map::Entry;
use std::collections::HashMap;

use ahash::RandomState;

/// A receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Buffer {
    /// Not zero.
    pub(super) handle: u64,
    /// Guest-physical address of its first byte.
    pub(super) address: u64,
    /// Guest-physical address of its record.
    pub(super) record: u64,
    /// Its size in bytes.
    pub(super) length: u16,
    /// The port that it receives for.
    pub(super) port: u16,
    /// For the packet that names its handle.
    pub(super) steered: bool,
}

/// Ports with entries, beyond which one without buffers loses its own: four times as many as a driver
/// has.
const PORTS: usize = 256;

/// The slot of nothing.
const NONE: u32 = u32::MAX;

/// A buffer, and the slots before and behind it in its list. Slots that are free are in a list of
/// their own.
#[derive(Debug, Clone, Copy)]
struct Slot {
    buffer: Buffer,
    before: u32,
    behind: u32,
}

/// The ends of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List {
    first: NONE,
    last: NONE,
};

/// The buffers of a port: those in a row, and those that are steered.
type Lists = [List; 2];

/// All that are posted.
#[derive(Debug)]
pub(super) struct Buffers {
    slots: Vec<Slot>,
    /// The first free slot.
    free: u32,
    handles: HashMap<u64, u32, RandomState>,
    /// Ports that are bound.
    ports: HashMap<u16, Lists, RandomState>,
}

impl Default for Buffers {
    fn default() -> Self {
        Buffers {
            slots: Vec::new(),
            free: NONE,
            handles: HashMap::default(),
            ports: HashMap::default(),
        }
    }
}

impl Buffers {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.handles.len()
    }

    /// Returns true if one has that handle.
    pub(super) fn has(&self, handle: u64) -> bool {
        self.handles.contains_key(&handle)
    }

    /// Puts a buffer behind those of its port. Its handle is new.
    pub(super) fn post(&mut self, buffer: Buffer) {
        let Entry::Vacant(entry) = self.handles.entry(buffer.handle) else {
            return;
        };
        let index = match self.free {
            NONE => self.slots.len() as u32,
            free => free,
        };
        entry.insert(index);
        let lists = self.ports.entry(buffer.port).or_insert([EMPTY; 2]);
        let list = &mut lists[usize::from(buffer.steered)];
        let slot = Slot {
            buffer,
            before: list.last,
            behind: NONE,
        };
        match list.last {
            NONE => list.first = index,
            last => self.slots[last as usize].behind = index,
        }
        list.last = index;
        match self.slots.get_mut(index as usize) {
            Some(free) => {
                self.free = free.behind;
                *free = slot;
            }
            None => self.slots.push(slot),
        }
    }

    /// Returns true if a port is bound.
    pub(super) fn is_bound(&self, port: u16) -> bool {
        self.ports.contains_key(&port)
    }

    /// Forgets a port that has no buffers.
    pub(super) fn unbind(&mut self, port: u16) {
        if self.ports.get(&port) == Some(&[EMPTY; 2]) {
            self.ports.remove(&port);
        }
    }

    /// The one of a port whose turn it is.
    pub(super) fn next(&self, port: u16) -> Option<&Buffer> {
        self.first(port, false)
    }

    fn first(&self, port: u16, steered: bool) -> Option<&Buffer> {
        let list = self.ports.get(&port)?[usize::from(steered)];
        let slot = self.slots.get(list.first as usize)?;
        Some(&slot.buffer)
    }

    /// The steered one of a port with that handle.
    pub(super) fn steered(&self, port: u16, handle: u64) -> Option<&Buffer> {
        let index = *self.handles.get(&handle)?;
        let buffer = &self.slots.get(index as usize)?.buffer;
        (buffer.steered && buffer.port == port).then_some(buffer)
    }

    /// Takes the one of a port with that handle out.
    pub(super) fn take(&mut self, port: u16, handle: u64) -> Option<Buffer> {
        let index = *self.handles.get(&handle)?;
        let Slot {
            buffer,
            before,
            behind,
        } = *self.slots.get(index as usize)?;
        if buffer.port != port {
            return None;
        }
        self.handles.remove(&handle);
        let lists = self.ports.get_mut(&port)?;
        let list = &mut lists[usize::from(buffer.steered)];
        match before {
            NONE => list.first = behind,
            before => self.slots[before as usize].behind = behind,
        }
        match behind {
            NONE => list.last = before,
            behind => self.slots[behind as usize].before = before,
        }
        if *lists == [EMPTY; 2] && self.ports.len() > PORTS {
            self.ports.remove(&port);
        }
        self.slots[index as usize].behind = self.free;
        self.free = index;
        Some(buffer)
    }

    /// Takes the first one of a port out: those in a row, then those that are steered.
    pub(super) fn take_first(&mut self, port: u16) -> Option<Buffer> {
        let first = self.first(port, false).or_else(|| self.first(port, true));
        let handle = first?.handle;
        self.take(port, handle)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Post { port: u16, steered: bool },
        Next(u16),
        Steered { port: u16, nth: usize },
        Take { port: u16, nth: usize },
        TakeAll(u16),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let port = || 1..4u16;
        let step = prop_oneof![
            4 => (port(), any::<bool>()).prop_map(|(port, steered)| Step::Post { port, steered }),
            2 => port().prop_map(Step::Next),
            2 => (port(), 0..20usize).prop_map(|(port, nth)| Step::Steered { port, nth }),
            2 => (port(), 0..20usize).prop_map(|(port, nth)| Step::Take { port, nth }),
            1 => port().prop_map(Step::TakeAll),
        ];
        prop::collection::vec(step, 0..100)
    }

    fn buffer(handle: u64, port: u16, steered: bool) -> Buffer {
        Buffer {
            handle,
            address: handle << 12,
            record: handle << 6,
            length: 64,
            port,
            steered,
        }
    }

    /// A handle that is posted, or was, or never will be.
    fn nth(posted: &[Buffer], nth: usize) -> u64 {
        posted.get(nth).map_or(nth as u64, |buffer| buffer.handle)
    }

    proptest! {
        /// They are what a list of all of them, in the order of their posting, says.
        #[test]
        fn they_are_taken_as_from_a_plain_list(steps in steps()) {
            let mut buffers = Buffers::default();
            let mut posted: Vec<Buffer> = Vec::new();
            let mut bound = BTreeSet::new();
            let (mut last, mut most) = (0, 0);
            for step in steps {
                match step {
                    Step::Post { port, steered } => {
                        last += 1;
                        posted.push(buffer(last, port, steered));
                        bound.insert(port);
                        buffers.post(buffer(last, port, steered));
                    }
                    Step::Next(port) => {
                        let expected = posted.iter().find(|it| it.port == port && !it.steered);
                        prop_assert_eq!(buffers.next(port), expected);
                    }
                    Step::Steered { port, nth: at } => {
                        let handle = nth(&posted, at);
                        let named = |it: &&Buffer| it.handle == handle;
                        let expected = posted.iter().find(named);
                        let expected = expected.filter(|it| it.steered && it.port == port);
                        prop_assert_eq!(buffers.steered(port, handle), expected);
                    }
                    Step::Take { port, nth: at } => {
                        let handle = nth(&posted, at);
                        let named = |it: &Buffer| it.handle == handle && it.port == port;
                        let expected = posted.iter().position(named);
                        let expected = expected.map(|index| posted.remove(index));
                        prop_assert_eq!(buffers.take(port, handle), expected);
                    }
                    Step::TakeAll(port) => {
                        let (mut taken, rest): (Vec<_>, _) =
                            posted.iter().partition(|it| it.port == port);
                        posted = rest;
                        taken.sort_by_key(|it| it.steered);
                        let all = std::iter::from_fn(|| buffers.take_first(port));
                        prop_assert_eq!(all.collect::<Vec<_>>(), taken);
                        buffers.unbind(port);
                        bound.remove(&port);
                    }
                }
                most = most.max(posted.len());
                prop_assert_eq!(buffers.count(), posted.len());
                prop_assert_eq!(buffers.slots.len(), most, "slots are used again");
                for port in 1..4 {
                    prop_assert_eq!(buffers.is_bound(port), bound.contains(&port));
                }
            }
        }
    }

    /// A driver that posts for one port after the other fills no table.
    #[test]
    fn ports_without_buffers_lose_their_entries_when_there_are_many() {
        let mut buffers = Buffers::default();
        for port in 1..=1000 {
            buffers.post(buffer(port.into(), port, false));
            buffers.take(port, port.into()).unwrap();
        }
        assert!(buffers.ports.len() <= PORTS);
        assert!(buffers.is_bound(1) && !buffers.is_bound(1000));
    }
}
