//! The library that programs link to use a qnic NIC. A program writes, reads and changes memory of
//! processes on other nodes, without the help of these processes; it signals notifications,
//! exchanges messages and forms groups.
//!
//! ```text
//!   Nic ──register(port)──► Endpoint ──export(name, buffer)──► Segment
//!                              │  └────import(node, port, name)──► RemoteSegment
//!                              ├── write, read, flush ──► Write, Read, Flush ──► Ticket, Request
//!                              ├── atomic ──► RemoteWord: swap, fetch_add, … ──► AtomicOperation
//!                              ├── notification(id): test, spin, wait, acknowledge, arm
//!                              ├── queue(): the notifications of many senders, one by one
//!                              └── send, receive, probe ──► Send, Receive, Probe ──► Request
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
//! endpoint.write(&theirs, 0, b"hello").notify(LETTER).fenced()?;
//!
//! endpoint.notification(LETTER).take(Some(Duration::from_secs(10)))?;
//! assert_eq!(inbox.read_vec(0, 5)?, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Concepts
//! | | |
//! |---|---|
//! | [`Nic`] | the NIC of this node |
//! | [`Endpoint`] | this process on a port of its node; (node, port) names it in the network. Its docs have the rules of order, completion, failures and timeouts |
//! | [`Buffer`], [`Segment`] | memory that peers may write to; a range of it that is exported under a name. [`ExportOptions`] say which processes may import it, and what its writers may signal |
//! | [`RemoteSegment`] | a segment of another process, imported |
//! | [`rdma`] | writes, reads and flushes; a [`Ticket`] stands for one transfer |
//! | [`Notification`], [`NotificationQueue`] | signals that arrive behind the data that was written before them |
//! | [`message`] | tagged messages, matched by the NIC that receives them |
//! | [`group`], [`names`] | groups of processes and their collectives; names by which processes find each other |
//! | [`sync`], [`channel`] | locks, queues, semaphores and monitors; streams of messages, all over remote memory |
//! | `stream`, `datagram`, `pool` | through the kernel: reliable streams, datagrams, and the frames beneath |
//! | [`machine`], `parallel` | parallel machines, and programs on them |
//! | `remote_memory` | volumes in the memory of other nodes |
//!
//! # One line for each operation
//! A method of [`Endpoint`] returns a value that describes an operation. Methods of that value set
//! its options, and the last one begins the operation: `post` returns a handle, `wait` waits for
//! the operation, `fenced` waits also for all earlier ones of its kind to the same process.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use qnic::group::{Group, Membership, Operator};
//! # use qnic::message::{Destination, Pattern, Source, Tag};
//! # use qnic::{Endpoint, NodeId, NotificationId, Port, RemoteSegment, Segment};
//! # fn f(endpoint: &Endpoint, theirs: &RemoteSegment, own: &Segment) -> qnic::Result<()> {
//! # const LETTER: NotificationId = NotificationId::new(1).unwrap();
//! # let limit = Duration::from_secs(10);
//! # let to = Destination::tagged(NodeId(1), Port(7), Tag(5));
//! # let from = Pattern::tagged(Source::Any, Tag(5));
//! # let membership = Membership::new((NodeId(0), Port(7)), 0, 4);
//! let ticket = endpoint.write(theirs, 0, b"bytes").post()?;
//! ticket.wait()?;
//! endpoint.write(theirs, 0, own.part(0, 4096)).notify(LETTER).timeout(limit).fenced()?;
//! endpoint.read(theirs, 0, own.part(0, 4096)).fenced()?;
//! endpoint.flush().writes().wait()?;
//!
//! let before = endpoint.atomic::<u64>(theirs, 8)?.fetch_add(1).wait()?;
//!
//! let signals = endpoint.notification(LETTER).wait(Some(limit))?;
//! let armed = endpoint.notification(LETTER).arm(|id| println!("{id:?}"))?;
//!
//! endpoint.send(&to, b"bytes").timeout(limit).wait()?;
//! let mut request = endpoint.receive(&from, own.part(0, 4096)).post()?;
//! let envelope = endpoint.probe(&from).test()?;
//! let claimed = endpoint.probe(&from).timeout(limit).claim()?;
//!
//! let (node, port) = endpoint.names().find("solver", 0, limit)?;
//! let group = Group::join(endpoint, &membership, limit)?;
//! group.allreduce::<f64>(own.part(0, 8), Operator::Sum).timeout(limit).wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//! | feature | default | without it |
//! |---|---|---|
//! | `host` | on | no host mode: [`Nic::open`] opens device files only, and the program links neither the driver core nor vhost |
//! | `vfio` | on, with `host` | no `Nic::open_vfio`, for a process that drives the NIC of a guest without the module |
//! | `stream` | on | no `stream`, `datagram`, `pool` |
//! | `parallel` | on, with `stream` | no `parallel` |
//! | `remote-memory` | on | no `remote_memory` |
//! | `tokio` | off | no waits in tasks of a tokio runtime: `AsyncEndpoint`, `AsyncStream`, … |
//!
//! A program for guests takes `default-features = false` and what it uses.
//!
//! # The environment
//! [`NIC_VARIABLE`], [`DEVICE_VARIABLE`], [`HOST_SOCKET_VARIABLE`], [`VFIO_VARIABLE`],
//! [`HOST_MEMORY_VARIABLE`], [`HOST_PHYSICAL_VARIABLE`], [`INLINE_MAX_VARIABLE`], [`OPERATIONS_VARIABLE`].
//!
//! # The log
//! What happens seldom, and an administrator may want to know, goes to the logger of the application (crate
//! `log`): a NIC that was opened or is gone, a registration or an export that was refused, a queue that was
//! reset, memory that is pinned; in host mode also what the driver logs. No transfer logs anything.
//!
//! # Units
//! Lengths and offsets are in bytes. In memory of this process they are `usize`, as in a slice. In
//! memory of another process they are `u64`, as in a file, because it may be larger than this
//! process can address.
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
//! A folder imports only from folders below it in this table, and adds its own methods to
//! [`Endpoint`]. The state that a folder keeps for each process is a field of `core`.

#[cfg(feature = "tokio")]
mod async_endpoint;
mod atomic;
pub mod channel;
mod core;
#[cfg(feature = "stream")]
pub mod datagram;
mod endpoint;
mod ends;
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
#[cfg(feature = "stream")]
mod reach;
#[cfg(feature = "remote-memory")]
pub mod remote_memory;
pub mod request;
#[cfg(feature = "stream")]
pub mod stream;
pub mod stream_protocol;
pub mod sync;
#[cfg(test)]
mod tests;

pub use self::core::queue;
#[cfg(feature = "tokio")]
pub use async_endpoint::AsyncEndpoint;
pub use atomic::{AtomicOperation, Integer, RemoteU32, RemoteU64, RemoteWord, Word};
pub use channel::{ChannelOptions, Message, Receiver, Sender, SharedReceiver, SharedSender};
pub use endpoint::{Endpoint, Statistics};
pub use error::{
    Error, GroupError, GroupOperation, MessageError, MessageOperation, MoreFailures, NameError,
    NoPath, Operation, ParallelError, Result, TransferError, TransferErrors,
};
pub use memory::{
    Buffer, ExportOptions, ExportedSegment, ImportOptions, Importer, Importers, NoSecret,
    Notifications, Part, RemoteSegment, Secret, Segment,
};
pub use nic::{
    Nic, DEVICE_VARIABLE, HOST_MEMORY_VARIABLE, HOST_PHYSICAL_VARIABLE, HOST_SOCKET_VARIABLE,
    INLINE_MAX_VARIABLE, NIC_VARIABLE, OPERATIONS_VARIABLE, VFIO_VARIABLE,
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
