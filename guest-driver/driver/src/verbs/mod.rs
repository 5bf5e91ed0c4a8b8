//! Verbs (X18): the objects of contexts of libibverbs, their rings and their numbers. The layouts and what
//! they mean are [`qnic_abi::verbs`].
//!
//! ```text
//!   commands ─┬─► objects ─┬─► context ─┬─► command_queue
//!   memory ───┼────────────┘            └─► table
//!             └─► ring ◄── objects
//! ```
//! [`management`] stands for itself: messages by which kernels connect queue pairs.
//!
//! A context is a process of its NIC. All that a call names was checked by the platform's core of verbs: an
//! object is destroyed once, after what uses it, and with it all its calls are over.

mod command_queue;
mod commands;
mod context;
pub mod management;
mod memory;
mod objects;
mod ring;
mod table;
#[cfg(test)]
mod tests;

pub use context::Context;
pub use objects::{
    Capacity, CompletionQueue, QueuePair, QueuePairOptions, Queues, SharedReceiveQueue,
};
pub use ring::Ring;
pub(crate) use table::Table;
