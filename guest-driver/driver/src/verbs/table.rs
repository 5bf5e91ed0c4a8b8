//! The objects of all contexts of a NIC, by token.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use qnic_abi::verbs::requests::Object;
use qnic_abi::verbs::{Event, FIRST_QUEUE_PAIR, NUMBERS};

use crate::platform::{Lock, NoMemory, Platform};

/// Room that the table has at first, in objects.
const FIRST_ROOM: usize = 64;

/// An object, as events name it.
struct Entry {
    token: u64,
    owner: u64,
    kind: Object,
}

/// What sort of object an event is about. `None`: about none.
fn kind_of(event: Event) -> Option<Object> {
    match event {
        Event::Completion | Event::CompletionQueueError => Some(Object::CompletionQueue),
        Event::Fatal
        | Event::AccessError
        | Event::RequestError
        | Event::Established
        | Event::Drained
        | Event::LastReceive => Some(Object::QueuePair),
        Event::LimitReached => Some(Object::SharedReceiveQueue),
        Event::PortDown | Event::PortUp => None,
    }
}

struct Entries {
    /// In order of their tokens.
    entries: Vec<Entry>,
    last_token: u64,
}

/// The table. Tokens are counted, so none is used again, and a late event names nothing.
pub(crate) struct Table<P: Platform> {
    entries: P::SpinLock<Entries>,
    /// Held while the table gets larger, and while an entry is added.
    growth: P::Mutex<()>,
    /// Relaxed: a count that orders nothing.
    queue_pairs: AtomicU32,
}

impl<P: Platform> Table<P> {
    pub(crate) fn new() -> Result<Self, NoMemory> {
        let entries = Entries {
            entries: Vec::new(),
            last_token: 0,
        };
        Ok(Table {
            entries: P::SpinLock::new(entries)?,
            growth: P::Mutex::new(())?,
            queue_pairs: AtomicU32::new(0),
        })
    }

    /// A number for a queue pair, behind the one that was taken last.
    pub(super) fn next_queue_pair(&self) -> u32 {
        let taken = self.queue_pairs.fetch_add(1, Ordering::Relaxed);
        FIRST_QUEUE_PAIR + taken % (NUMBERS - FIRST_QUEUE_PAIR)
    }

    /// Adds an object, and returns its token.
    pub(super) fn insert(&self, kind: Object, owner: u64) -> Result<u64, NoMemory> {
        self.growth.with(|()| {
            let (used, room) = self
                .entries
                .with(|all| (all.entries.len(), all.entries.capacity()));
            if used == room {
                self.grow((2 * room).max(FIRST_ROOM))?;
            }
            Ok(self.entries.with(|all| {
                all.last_token += 1;
                let token = all.last_token;
                all.entries.push(Entry { token, owner, kind });
                token
            }))
        })
    }

    fn grow(&self, room: usize) -> Result<(), NoMemory> {
        let mut larger = Vec::new();
        larger.try_reserve_exact(room)?;
        let old = self.entries.with(|all| {
            larger.append(&mut all.entries);
            core::mem::replace(&mut all.entries, larger)
        });
        drop(old);
        Ok(())
    }

    /// Takes an object out: when it returns, no event reaches its owner any more.
    pub(super) fn remove(&self, token: u64) {
        self.entries.with(|all| {
            if let Ok(index) = all.find(token) {
                all.entries.remove(index);
            }
        });
    }

    /// Hands an event to the owner of an object, if that is there and is one that has such events. Atomic.
    pub(crate) fn event(&self, platform: &P, token: u64, event: Event) {
        self.entries.with(|all| {
            let found = all.find(token).ok().and_then(|at| all.entries.get(at));
            if let Some(entry) = found.filter(|entry| kind_of(event) == Some(entry.kind)) {
                platform.verbs_event(entry.owner, event);
            }
        });
    }
}

impl Entries {
    fn find(&self, token: u64) -> Result<usize, usize> {
        self.entries
            .binary_search_by_key(&token, |entry| entry.token)
    }
}
