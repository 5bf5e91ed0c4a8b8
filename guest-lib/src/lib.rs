//! The library that applications link to use a qnic NIC: memory of processes on
//! other nodes, written and read without their help, and notifications.
//!
//! ```text
//!   Nic ──register(port)──► Endpoint ──export(name, buffer)──► Segment
//!                              │  └────import(node, port, name)──► RemoteSegment
//!                              ├── write, read (fenced, notifying) ──► Ticket
//!                              ├── atomic_u32, atomic_u64 ──► RemoteWord: swap, fetch_add, …
//!                              ├── notification(id): test, spin, wait, acknowledge
//!                              ├── queue(): the notifications of many senders, one by one
//!                              └── send, receive: tagged messages ──► message::Request
//! ```
//!
//! The same program runs in a guest (kernel module beneath) and in host mode (an
//! ordinary process beside the device process): [`Nic::open`] chooses.
//!
//! ```no_run
//! use std::time::Duration;
//! use qnic::{Access, Nic, NodeId, NotificationId, Port, SegmentName};
//!
//! # fn main() -> qnic::Result<()> {
//! const INBOX: SegmentName = SegmentName(1);
//! const LETTER: NotificationId = NotificationId::new(1).unwrap();
//!
//! let endpoint = Nic::open()?.register(Port(7))?;
//! let inbox = endpoint.allocate(4096)?;
//! let _segment = endpoint.export(INBOX, &inbox, Access::WRITE)?;
//!
//! let theirs = endpoint.import(NodeId(1), Port(7), INBOX, Duration::from_secs(10))?;
//! endpoint.write_fenced_notify(&theirs, 0, b"hello", LETTER)?;
//!
//! endpoint.notification(LETTER).take(Some(Duration::from_secs(10)))?;
//! assert_eq!(inbox.read_vec(0, 5)?, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! Who may import a segment, and which notifications its writers may signal:
//! [`ExportOptions`]. Locks, queues, monitors and semaphores: [`sync`]. Tagged messages: [`message`].
//! Groups and collectives: [`group`]. Names of processes: [`names`].
//! Channels over remote memory: [`channel`]. Through the kernel: reliable streams
//! ([`stream`]), datagrams ([`datagram`]) and remote memory ([`remote_memory`]). Parallel machines, and programs on them: [`machine`],
//! [`parallel`].
//! Ordering, completion and failures: [`Endpoint`]. Memory that peers write to:
//! [`Buffer`]. What a program finds in its environment: [`DEVICE_VARIABLE`],
//! [`HOST_SOCKET_VARIABLE`], [`HOST_MEMORY_VARIABLE`], [`HOST_PHYSICAL_VARIABLE`],
//! [`INLINE_MAX_VARIABLE`].
//!
//! Offsets and lengths in memory of this process are `usize`, as those of a slice. Offsets in memory
//! of another one are `u64`, as those in a file: its memory may be larger than an address here.
//!
//! # The folders of this crate
//!
//! | folder | holds |
//! |---|---|
//! | `nic`, `physical`, `async_endpoint` | entry points: open a NIC, register, wait in tasks |
//! | `parallel` | the ranks of a machine, grids that are distributed over them |
//! | `machine` | which rank of which machine this process is |
//! | `channel` | channels, byte streams, shared queues |
//! | `sync` | locks, wait queues, monitors, semaphores |
//! | `atomic` | atomic operations on remote words |
//! | `message` | tagged messages: Sends, receives, requests, probes and claims |
//! | `group` | groups of processes, that of an application; barrier, broadcast, reduce, allreduce |
//! | `names` | names of processes |
//! | `rdma` | writes, reads, tickets, the library's own writes |
//! | `notification` | counted notifications, queue, handlers, poller |
//! | `memory` | buffers, exported and imported segments |
//! | `endpoint` | the handle of a registered process |
//! | `core` | the registered process: command queue, completion, command tracker, waiting, segment maps, notification ring, requests of messages and their contexts, buffer pool, result records |
//! | `stream`, `datagram` | reliable streams, and datagrams, over them |
//! | `pool` | shared pools of frames |
//! | `provider` | the platform beneath: guest, host mode |
//! | `error` | all errors |
//!
//! A folder imports from those below it only, and adds its own methods to [`Endpoint`]. What
//! a folder has to keep for each process is a field of `core`.

#[cfg(feature = "tokio")]
mod async_endpoint;
mod atomic;
pub mod channel;
mod core;
#[cfg(feature = "stream")]
pub mod datagram;
mod endpoint;
mod error;
pub mod group;
pub mod machine;
mod memory;
pub mod message;
#[cfg(test)]
mod model;
pub mod names;
mod nic;
mod notification;
#[cfg(feature = "parallel")]
pub mod parallel;
mod path;
pub mod physical;
#[cfg(feature = "stream")]
pub mod pool;
pub mod provider;
pub mod rdma;
#[cfg(feature = "remote-memory")]
pub mod remote_memory;
#[cfg(feature = "stream")]
pub mod stream;
pub mod stream_protocol;
pub mod sync;
#[cfg(test)]
mod tests;

pub use self::core::queue;
#[cfg(feature = "tokio")]
pub use async_endpoint::AsyncEndpoint;
pub use atomic::{AtomicOperation, RemoteU32, RemoteU64, RemoteWord, Word};
pub use channel::{ChannelOptions, Message, Receiver, Sender, SharedReceiver, SharedSender};
pub use endpoint::{Endpoint, Statistics};
pub use error::{
    Error, GroupError, GroupOperation, MessageError, MessageOperation, NameError, Operation,
    ParallelError, Result, TransferError, TransferErrors,
};
pub use memory::{
    Buffer, ExportOptions, ExportedSegment, ImportOptions, Importer, Importers, NoSecret,
    Notifications, Part, RemoteSegment, Secret, Segment,
};
pub use nic::{
    Nic, DEVICE_VARIABLE, HOST_MEMORY_VARIABLE, HOST_PHYSICAL_VARIABLE, HOST_SOCKET_VARIABLE,
    INLINE_MAX_VARIABLE,
};
pub use notification::{
    Armed, Notification, NotificationId, NotificationQueue, OneShot, Poller, Signal,
};
pub use path::Path;
pub use qnic_abi::command::INLINE_CAPACITY;
pub use qnic_abi::counters::CounterSource;
pub use qnic_abi::{uapi, Access, NodeId, Port, SegmentName, Status};
pub use rdma::{Source, Ticket};

/// Fails to compile unless several threads may use a type at once (U9).
const fn shared<T: Send + Sync>() {}

const _: () = {
    shared::<Nic>();
    shared::<Endpoint>();
    shared::<Buffer>();
    shared::<Segment>();
    shared::<ExportedSegment>();
    shared::<RemoteSegment>();
    shared::<Ticket<'_>>();
    shared::<Notification<'_>>();
    shared::<NotificationQueue<'_>>();
    shared::<Armed>();
    shared::<Poller>();
    shared::<Sender>();
    shared::<Receiver>();
    shared::<Message<'_>>();
    shared::<Error>();
    shared::<message::Request<'_>>();
    shared::<message::MultiReceive<'_>>();
    shared::<message::Pool<'_>>();
    shared::<message::PoolBuffer<'_>>();
    shared::<message::Pooled<'_>>();
    shared::<message::Claim<'_>>();
    shared::<message::Claimed<'_>>();
    shared::<group::Group<'_>>();
    shared::<group::Call<'_>>();
    shared::<group::Application<'_>>();
    shared::<names::Name<'_>>();
    shared::<RemoteU32>();
    shared::<RemoteU64>();
    shared::<sync::Participant>();
    shared::<sync::Lock>();
    shared::<sync::LockGuard<'_>>();
    shared::<sync::LockWaiting<'_>>();
    shared::<sync::WaitQueue>();
    shared::<sync::Waiting<'_>>();
    shared::<sync::Semaphore>();
    shared::<sync::Permit<'_>>();
    shared::<sync::SemaphoreWaiting<'_>>();
    shared::<sync::Monitor>();
    shared::<sync::MonitorGuard<'_>>();
    shared::<sync::MonitorWaiting<'_>>();
    shared::<sync::Condition>();
    shared::<machine::Machine>();
};

#[cfg(feature = "stream")]
const _: () = {
    shared::<pool::Pools>();
    shared::<pool::OutputFrame>();
    shared::<pool::InputFrame>();
    shared::<datagram::Socket>();
    shared::<stream::Streams>();
    shared::<stream::Listener>();
    shared::<stream::Stream>();
};
