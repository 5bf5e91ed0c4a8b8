//! Locks, wait queues, monitors and semaphores between processes of all nodes
//! (NetVM §8; N21 to N24).
//!
//! ```text
//!   home: OBJECT_BYTES in any       each Participant: an area of slots
//!   exported segment, zeroed        ┌──────┬──────┬──────┬───
//!   ┌──────────────────────┐        │ next │ next │      │
//!   │ tail / queue │ life  │        │ grant│ grant│      │
//!   └──────────────────────┘        └──────┴──────┴──────┴───
//!        ▲ atomic operations              ▲ notifying writes of the
//!        │ of the home's NIC              │ one before, or of who wakes
//! ```
//! Who has to wait joins a queue by one atomic operation at the object's home,
//! chains himself to the one before him, and watches his own slot: he spins, then
//! sleeps. So waiting costs the network nothing, first come is first served, and
//! the home's processors do nothing at all.
//!
//! | | common case | with others |
//! |---|---|---|
//! | [`Lock::acquire`] | one atomic operation | and a write to the one before |
//! | [`LockGuard::release`] | one atomic operation | or a write and a notifying write |
//! | [`WaitQueue::insert`] | one atomic operation | and a write to the one before |
//! | [`WaitQueue::remove`] | one atomic operation and a notifying write | |
//! | [`Semaphore::wait`], [`Semaphore::signal`] | one atomic operation | and a notifying write |
//!
//! # Memory
//! What a process wrote through the same endpoint before it released a lock,
//! signalled a semaphore or removed an entry is in the memory of its destination
//! before the other one goes on.
//!
//! # Deaths
//! A process that dies while it holds a lock or stands in a queue breaks the object.
//! Those who wait look after the one before them and the object every 50 to 500 ms;
//! they get [`crate::Error::Broken`] within a second after the NIC knows that the
//! process is gone (at once if it was killed; after the peer timeout, 5 s, if its
//! node is), three seconds later if they never had to do with that process. A process that dies between its atomic operation and its chaining
//! itself up is noticed after [`LINK_LIMIT`]. The object stays broken until
//! somebody calls `recover`; who gets [`crate::Error::Broken`] is in no queue any
//! more. A semaphore does not know who holds its units: those of a process that
//! died outside of the queue are lost until `recover` or [`Semaphore::initialize`].
//!
//! # Timeouts
//! Who stands in a queue of these algorithms cannot leave it before his turn. So
//! [`Lock::acquire`], [`Semaphore::wait`] and [`MonitorGuard::wait`] take no
//! timeout; [`Lock::try_acquire`] and [`Semaphore::try_wait`] do not queue;
//! [`Waiting::wait`] takes one and leaves the entry in its place.
//!
//! # Names
//! A participant uses the notification [`NOTIFICATION`] of its process and exports
//! an area under a name whose upper half is [`AREA_NAME`].

mod lock;
mod monitor;
mod object;
mod participant;
mod queue;
mod semaphore;
mod slot;

pub use lock::{Lock, LockGuard};
pub use monitor::{Condition, Monitor, MonitorGuard};
pub use object::{LINK_LIMIT, OBJECT_BYTES};
pub use participant::{Participant, AREA_NAME, NOTIFICATION};
pub use queue::{WaitQueue, Waiting};
pub use semaphore::{Permit, Semaphore};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_can_be_used_by_many_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Participant>();
        shared::<Lock>();
        shared::<LockGuard<'_>>();
        shared::<WaitQueue>();
        shared::<Waiting<'_>>();
        shared::<Semaphore>();
        shared::<Permit<'_>>();
        shared::<Monitor>();
        shared::<MonitorGuard<'_>>();
        shared::<Condition>();
    }
}
