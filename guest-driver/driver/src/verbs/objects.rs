//! Completion queues, shared receive queues and queue pairs: how they are made, changed and destroyed.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use qnic_abi::control::Opcode;
use qnic_abi::verbs::requests::{
    CreateCompletionQueue, CreateQueuePair, CreateSharedReceiveQueue, DestroyObject,
    ModifyQueuePair, ModifySharedReceiveQueue, Object, QueryQueuePair, QueuePairInfo, SIGNAL_ALL,
};
use qnic_abi::verbs::rings::{ReceiveEntry, SendEntry, WorkCompletion, SGE_BYTES};
use qnic_abi::verbs::{PathAddress, Transport, MAX_INLINE, MAX_SGES, QUEUE_PAIRS};
use qnic_abi::{NodeId, Status};
use zerocopy::{Immutable, IntoBytes};

use super::context::Context;
use super::ring::{Ring, Shape};
use crate::error::{CallError, Failure};
use crate::memory::MemoryManager;
use crate::platform::Platform;

/// How many numbers are tried. A NIC has fewer objects of a kind, so one of so many numbers in a row is free.
const NUMBER_TRIES: usize = QUEUE_PAIRS + 1;

/// Most queue pairs of a context: the NIC has so many operations of a process under way, and each of them may be
/// one.
const PAIRS: u32 = 2048;

/// A completion queue.
pub struct CompletionQueue<P: Platform> {
    number: u32,
    token: u64,
    ring: Arc<Ring<P>>,
}

/// A shared receive queue.
pub struct SharedReceiveQueue<P: Platform> {
    number: u32,
    token: u64,
    ring: Arc<Ring<P>>,
    capacity: Capacity,
}

/// Most work requests of a queue, and most pieces of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Work requests.
    pub requests: u32,
    /// Pieces of memory of one.
    pub sges: u32,
}

/// What a queue pair is to be.
#[derive(Debug, Clone, Copy)]
pub struct QueuePairOptions {
    /// How it is connected.
    pub transport: Transport,
    /// Every work request has a completion.
    pub signal_all: bool,
    /// Protection domain.
    pub domain: u32,
    /// The least that its send queue has room for.
    pub sends: Capacity,
    /// The same of its receive queue; not looked at with a shared one.
    pub receives: Capacity,
    /// The same of inline bytes.
    pub inline: u32,
}

/// The queues that a queue pair uses and does not have for itself.
pub struct Queues<'a, P: Platform> {
    /// Takes the completions of its send queue.
    pub sends: &'a CompletionQueue<P>,
    /// Takes those of its receives.
    pub receives: &'a CompletionQueue<P>,
    /// Where its receives are, if it has none of its own.
    pub shared: Option<&'a SharedReceiveQueue<P>>,
}

/// A queue pair.
pub struct QueuePair<P: Platform> {
    number: u32,
    token: u64,
    sends: Arc<Ring<P>>,
    /// `None`: they are in a shared receive queue.
    receives: Option<Arc<Ring<P>>>,
    options: QueuePairOptions,
    /// [`PathAddress`] of its peer; 0: none. Relaxed: a hint for the NIC.
    path: AtomicU32,
}

impl Capacity {
    /// The ring of receives that has room for it; it becomes what that has room for.
    fn fit(&mut self) -> Result<Shape, CallError> {
        if self.sges > MAX_SGES as u32 {
            return Err(CallError::Invalid);
        }
        let room = self.sges as usize * SGE_BYTES;
        let shape = Shape::new(self.requests, size_of::<ReceiveEntry>() + room)?;
        self.sges = shape.receive_sges();
        self.requests = shape.requests();
        Ok(shape)
    }
}

impl QueuePairOptions {
    /// The ring of the send queue that has room for it all; it becomes what that has room for.
    fn fit(&mut self) -> Result<Shape, CallError> {
        let sends = self.sends;
        if sends.sges > MAX_SGES as u32 || self.inline > MAX_INLINE as u32 {
            return Err(CallError::Invalid);
        }
        let room = (sends.sges as usize * SGE_BYTES).max(self.inline as usize);
        let shape = Shape::new(sends.requests, size_of::<SendEntry>() + room)?;
        (self.sends.sges, self.inline) = shape.of_sends();
        self.sends.requests = shape.requests();
        Ok(shape)
    }
}

impl<P: Platform> CompletionQueue<P> {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Completions that it has room for.
    pub fn completions(&self) -> u32 {
        self.ring.shape().requests()
    }

    /// Its ring.
    pub fn ring(&self) -> &Arc<Ring<P>> {
        &self.ring
    }
}

impl<P: Platform> SharedReceiveQueue<P> {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What it has room for: at least what was asked for.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Its ring.
    pub fn ring(&self) -> &Arc<Ring<P>> {
        &self.ring
    }
}

impl<P: Platform> QueuePair<P> {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What it is: at least what was asked for.
    pub fn options(&self) -> &QueuePairOptions {
        &self.options
    }

    /// The ring of its send queue.
    pub fn sends(&self) -> &Arc<Ring<P>> {
        &self.sends
    }

    /// That of its receive queue; `None`: it uses a shared one.
    pub fn receives(&self) -> Option<&Arc<Ring<P>>> {
        self.receives.as_ref()
    }

    /// The node that it is connected with.
    pub(super) fn peer(&self) -> Option<NodeId> {
        PathAddress(self.path.load(Ordering::Relaxed)).node()
    }
}

impl<P: MemoryManager> Context<P> {
    /// Makes a completion queue with room for `completions`. `owner` is what the platform gets with its
    /// events.
    ///
    /// # Errors
    /// `Refused` with Exhausted; `Invalid`: it would be too large; `NoDevice`, `NoMemory`, `NotRegistered`.
    pub fn create_completion_queue(
        &self,
        completions: u32,
        owner: u64,
    ) -> Result<CompletionQueue<P>, Failure> {
        let shape = Shape::new(completions, size_of::<WorkCompletion>())?;
        let ring = Arc::new(Ring::new(&self.device.platform, shape)?);
        let next = || self.next_number();
        let body = |number: u32, token: u64| CreateCompletionQueue {
            cq: number.into(),
            reserved: 0.into(),
            token: token.into(),
            ring: ring.place(),
        };
        let (number, token) = self.create(
            (Opcode::CreateCompletionQueue, Object::CompletionQueue),
            owner,
            next,
            body,
        )?;
        Ok(CompletionQueue {
            number,
            token,
            ring,
        })
    }

    /// Makes a shared receive queue with room for at least `capacity`. With fewer receives than `limit` an event
    /// says so, once; zero: never.
    ///
    /// # Errors
    /// As of [`Context::create_completion_queue`].
    pub fn create_shared_receive_queue(
        &self,
        domain: u32,
        mut capacity: Capacity,
        limit: u32,
        owner: u64,
    ) -> Result<SharedReceiveQueue<P>, Failure> {
        let ring = Arc::new(Ring::new(&self.device.platform, capacity.fit()?)?);
        let next = || self.next_number();
        let body = |number: u32, token: u64| CreateSharedReceiveQueue {
            srq: number.into(),
            domain: domain.into(),
            token: token.into(),
            ring: ring.place(),
            limit: limit.into(),
            sges: (capacity.sges as u16).into(),
            reserved: 0.into(),
        };
        let (number, token) = self.create(
            (Opcode::CreateSharedReceiveQueue, Object::SharedReceiveQueue),
            owner,
            next,
            body,
        )?;
        Ok(SharedReceiveQueue {
            number,
            token,
            ring,
            capacity,
        })
    }

    /// Sets the limit of a shared receive queue, as when it was made.
    ///
    /// # Errors
    /// `Refused`, `NoDevice`, `NotRegistered`.
    pub fn set_limit(&self, queue: &SharedReceiveQueue<P>, limit: u32) -> Result<(), Failure> {
        let body = ModifySharedReceiveQueue {
            srq: queue.number.into(),
            limit: limit.into(),
        };
        self.request(Opcode::ModifySharedReceiveQueue, &body)
            .map(drop)
    }

    /// Makes a queue pair, in the state Reset.
    ///
    /// # Errors
    /// As of [`Context::create_completion_queue`].
    pub fn create_queue_pair(
        &self,
        mut options: QueuePairOptions,
        queues: Queues<'_, P>,
        owner: u64,
    ) -> Result<QueuePair<P>, Failure> {
        let platform = &self.device.platform;
        let sends = Arc::new(Ring::new(platform, options.fit()?)?);
        let receives = match queues.shared {
            Some(_) => {
                options.receives = Capacity::default();
                None
            }
            None => Some(Arc::new(Ring::new(platform, options.receives.fit()?)?)),
        };
        let of_receives = receives.as_ref().map(|ring| ring.place());
        let body = |number: u32, token: u64| CreateQueuePair {
            qp: number.into(),
            transport: options.transport as u8,
            flags: if options.signal_all { SIGNAL_ALL } else { 0 },
            inline: (options.inline as u16).into(),
            token: token.into(),
            domain: options.domain.into(),
            srq: queues.shared.map_or(0, |shared| shared.number).into(),
            send_cq: queues.sends.number.into(),
            receive_cq: queues.receives.number.into(),
            send: sends.place(),
            receive: of_receives.unwrap_or_default(),
            send_sges: (options.sends.sges as u16).into(),
            receive_sges: (options.receives.sges as u16).into(),
            reserved: 0.into(),
        };
        if self.pairs.fetch_add(1, Ordering::Relaxed) >= PAIRS {
            self.pairs.fetch_sub(1, Ordering::Relaxed);
            return Err(Status::Exhausted.into());
        }
        let next = || self.table.next_queue_pair();
        let made = self.create(
            (Opcode::CreateQueuePair, Object::QueuePair),
            owner,
            next,
            body,
        );
        if made.is_err() {
            self.pairs.fetch_sub(1, Ordering::Relaxed);
        }
        let (number, token) = made?;
        Ok(QueuePair {
            number,
            token,
            sends,
            receives,
            options,
            path: AtomicU32::new(0),
        })
    }

    /// Sets state and attributes of a queue pair; `change` has all of them but its number.
    ///
    /// # Errors
    /// `Refused`, `NoDevice`, `NotRegistered`.
    pub fn modify(
        &self,
        queue_pair: &QueuePair<P>,
        mut change: ModifyQueuePair,
    ) -> Result<(), Failure> {
        change.qp = queue_pair.number.into();
        self.request(Opcode::ModifyQueuePair, &change)?;
        queue_pair.path.store(change.path.get(), Ordering::Relaxed);
        Ok(())
    }

    /// What the NIC says of a queue pair.
    ///
    /// # Errors
    /// `Refused`, `NoDevice`, `NotRegistered`.
    pub fn query(&self, queue_pair: &QueuePair<P>) -> Result<QueuePairInfo, Failure> {
        let body = QueryQueuePair {
            qp: queue_pair.number.into(),
            reserved: 0.into(),
        };
        let response = self.request(Opcode::QueryQueuePair, &body)?;
        Ok(response.body().unwrap_or_default())
    }

    /// Destroys a queue pair: when it returns, the NIC touches neither its rings nor memory for it, and no
    /// event reaches its owner.
    pub fn destroy_queue_pair(&self, queue_pair: QueuePair<P>) {
        self.destroy(Object::QueuePair, queue_pair.number, queue_pair.token);
        self.pairs.fetch_sub(1, Ordering::Relaxed);
    }

    /// Destroys a completion queue, in the same way.
    pub fn destroy_completion_queue(&self, queue: CompletionQueue<P>) {
        self.destroy(Object::CompletionQueue, queue.number, queue.token);
    }

    /// Destroys a shared receive queue, in the same way.
    pub fn destroy_shared_receive_queue(&self, queue: SharedReceiveQueue<P>) {
        self.destroy(Object::SharedReceiveQueue, queue.number, queue.token);
    }

    fn destroy(&self, object: Object, number: u32, token: u64) {
        let body = DestroyObject {
            object: (object as u32).into(),
            number: number.into(),
        };
        // An error means that the device is gone or stopped: it accesses nothing any more.
        let _ = self.request(Opcode::DestroyObject, &body);
        self.table.remove(token);
    }

    /// Makes an object of the NIC; returns its number and token.
    fn create<B: IntoBytes + Immutable>(
        &self,
        (opcode, kind): (Opcode, Object),
        owner: u64,
        next: impl Fn() -> u32,
        body: impl Fn(u32, u64) -> B,
    ) -> Result<(u32, u64), Failure> {
        let token = self.table.insert(kind, owner)?;
        let mut made = Err(Status::Exhausted.into());
        for _ in 0..NUMBER_TRIES {
            let number = next();
            made = self.request(opcode, &body(number, token)).map(|_| number);
            if !matches!(made, Err(Failure::Refused(Status::NameExists))) {
                break;
            }
        }
        if made.is_err() {
            self.table.remove(token);
        }
        made.map(|number| (number, token))
    }
}
