//! Locks, wait queues, monitors and semaphores between processes of all nodes
//! (NetVM §8; N21 to N24).
//!
//! ```text
//!   owner: OBJECT_BYTES in any      each Participant: an area of slots
//!   exported segment, zeroed        ┌──────┬──────┬──────┬───
//!   ┌───────────────────────┐       │ next │ next │      │
//!   │ queue        │ epoch  │       │ grant│ grant│      │
//!   └───────────────────────┘       └──────┴──────┴──────┴───
//!        ▲ atomic operations             ▲ notifying writes of the
//!        │ by the owner's NIC            │ predecessor, or of the waker
//! ```
//! An *object* is a lock, a wait queue or a semaphore; its *owner* is the process that
//! exports its memory. A process that has to wait joins the object's queue by one atomic
//! operation, which returns its predecessor. The process writes its name into the
//! predecessor's slot: it *links* itself. Then it watches its own slot: it spins, then
//! sleeps. So waiting loads neither the network nor the owner's processors, and processes
//! are served in the order in which they joined.
//!
//! | | common case | with others |
//! |---|---|---|
//! | [`Lock::acquire`] | one atomic operation | and a write to the predecessor |
//! | [`LockGuard::release`] | one atomic operation | and a notifying write |
//! | [`WaitQueue::insert`] | one atomic operation | and a write to the predecessor |
//! | [`WaitQueue::remove`] | one atomic operation and a notifying write | |
//! | [`Semaphore::wait`], [`Semaphore::signal`] | one atomic operation | and a notifying write |
//!
//! # Memory
//! An object lies in an imported segment that grants reading and writing. It is
//! [`OBJECT_BYTES`] long, and aligned to that: else `new` returns
//! [`OutOfRange`](crate::Error::OutOfRange) or [`Misaligned`](crate::Error::Misaligned).
//!
//! Before a process releases a lock, signals a semaphore or removes an entry, all that it
//! wrote through the same endpoint is in the memory of its destinations. So the next
//! process sees it.
//!
//! # Deaths
//! A process that dies while it holds a lock or is in a queue breaks the object.
//!
//! - Every waiting process checks its predecessor and the object every 50 to 500 ms. It
//!   gets [`crate::Error::Broken`] within a second after the NIC knows that the dead
//!   process is gone, or three seconds later if it never communicated with that process.
//! - The NIC knows at once of a process that was killed. It knows of a dead node after the
//!   peer timeout.
//! - A process that dies between its atomic operation and its link is noticed in the same times, by
//!   the process that waits for the link; one that lives may take any time for it.
//! - A process that dies after it has taken another one from a queue and before it has woken it, or
//!   while it recovers an object, is noticed after twice the peer timeout
//!   ([`crate::Endpoint::peer_timeout`]).
//! - A process that gets [`crate::Error::Broken`] is in no queue any more. The object stays
//!   broken until a process calls `recover`.
//! - A semaphore does not know which processes hold its units. The units of a process that
//!   dies outside of the queue are lost until `recover` or [`Semaphore::initialize`].
//!
//! # Timeouts
//! A process in the queue of these algorithms cannot leave it before its turn. So a timeout
//! ends the wait and leaves the place in the queue, as a value that the program waits with
//! again:
//!
//! | without limit | with a timeout | the place in the queue |
//! |---|---|---|
//! | [`WaitQueue::insert`], [`Waiting::wait`]`(None)` | [`Waiting::wait`] | [`Waiting`] |
//! | [`Lock::acquire`] | [`LockWaiting::wait`] | [`Lock::waiting`] |
//! | [`Semaphore::wait`], [`Semaphore::acquire`] | [`SemaphoreWaiting::wait`] | [`Semaphore::waiting`] |
//! | [`Monitor::enter`] | [`MonitorWaiting::wait`] | [`Monitor::waiting`] |
//! | [`MonitorGuard::wait`] | [`Waiting::wait`], then [`Monitor::enter`] | [`MonitorGuard::leave_to_wait`] |
//!
//! After [`TimedOut`](crate::Error::TimedOut) the process is still in the queue, and may be
//! given its turn at any time: then the others wait for this process. Dropping the place passes a
//! turn on that has come; if none has come, it breaks the object, like a death.
//! [`Lock::try_acquire`] and [`Semaphore::try_wait`] do not queue. A timeout limits only the wait
//! for the turn; the operations before and after it take the time of a few messages
//! ([`crate::Endpoint`], "Timeouts").
//!
//! # Errors
//! All methods that reach the owner return the errors of [`crate::AtomicOperation::wait`], beside those
//! that they name.
//!
//! # Which processes may wake
//! A process that may write a participant's area can grant it any lock, and one that may write an
//! object can take it from its holder. So the participants of an object trust each other. To keep
//! other processes out, participants share a secret or are listed ([`crate::Importers`]):
//!
//! - each participant is made by [`Participant::among`], so that only the other participants can
//!   import its area;
//! - the owner exports the object's memory with the same [`crate::Importers`] and with
//!   [`crate::Notifications::None`], and the others import it with the secret.
//!
//! In any case, the area of a participant lets others signal [`NOTIFICATION`] only.
//!
//! # Names
//! A participant uses the notification [`NOTIFICATION`] of its process and exports
//! an area under a name whose upper half is [`AREA_NAME`].

mod area;
mod entry;
mod lock;
mod monitor;
mod object;
mod participant;
mod queue;
mod semaphore;
mod slot;
mod turns;

pub use area::{AREA_NAME, NOTIFICATION};
pub use lock::{Lock, LockGuard, LockWaiting};
pub use monitor::{Condition, Monitor, MonitorGuard, MonitorWaiting};
pub use object::OBJECT_BYTES;
pub use participant::Participant;
pub use queue::{WaitQueue, Waiting};
pub use semaphore::{Permit, Semaphore, SemaphoreWaiting};

pub(crate) use queue::Place;
