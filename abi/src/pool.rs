//! Shared pools of a process (S1 to S5; docs/streams.md): frame buffers in kernel memory, mapped
//! into the process, and the queues by which the two hand them over.
//!
//! An open file asks for pools instead of a VNI: [`OpenPools`]. The process then has no window, no
//! doorbell and no host area. The driver alone drives the NIC; input frames are receive buffers of
//! the process's datagram port, and output frames are sent from where they stand
//! ([`crate::datagram`]).
//!
//! ```text
//!                process                                   driver
//!   fills a frame ──────── output full ──────────────────► sends it
//!   has a frame to fill ◄─ output empty ────────────────── it is sent
//!   reads a frame ◄─────── input full ───────────────────── a packet has come
//!   gives it back ──────── input empty ──────────────────► posts it to the NIC
//! ```
//!
//! # The range
//! One range is mapped, at [`MMAP_POOLS`], readable and writable:
//!
//! ```text
//!      0          ┌────────────────────────────────────────────────────────┐
//!      0          │ BUSY u32 · NEED_FRAMES u32                             │ driver writes
//!      8          │ heads: output full u32 · input empty u32               │
//!     16          │ tails: output empty u32 · input full u32               │
//!     64          ├────────────────────────────────────────────────────────┤
//!     64          │ WANT_WAKE u32 · reserved                               │ process writes
//!     72          │ heads: output empty u32 · input full u32               │
//!     80          │ tails: output full u32 · input empty u32               │
//!   4096          ├────────────────────────────────────────────────────────┤
//!   4096          │ output full    outputs × u64   a slot for each frame   │ producer fills a slot,
//!                 │ output empty   outputs × u64                           │ consumer zeroes it
//!                 │ input full     inputs × u64                            │
//!                 │ input empty    inputs × u64                            │
//!   frames        ├────────────────────────────────────────────────────────┤ whole pages
//!                 │ input frames, then output frames                       │ owner writes
//!                 └────────────────────────────────────────────────────────┘
//! ```
//! Each queue starts at a multiple of 64 bytes ([`Shape::queue`]), the frames at a page. Frames are
//! a stride apart, the power of two from their size up, so one that fits in a page crosses no page
//! border ([`Shape::frame`]). A longer one is a *block* of pages that the NIC reaches with one
//! address ([`Shape::block_pages`]), so it is one packet where the route carries it.
//!
//! # Slots
//! A slot of a queue is zero while it is empty; else it is a [`Slot`]. The consumer loads it with
//! acquire, zeroes it, then advances its head; the producer stores it with release, then advances
//! its tail. There is a slot for each frame, and a frame is in one queue at most, so a producer
//! always finds its slot empty. Heads and tails wrap around at the number of slots. They are shown
//! for people and tests: each side keeps its own, and believes no word of the other's but slots.
//!
//! # Kicks and wake-ups
//! A process that has filled slots executes a full fence and loads the driver's words. If
//! [`BUSY`] is zero and it has filled a slot of output full, or if BUSY is zero and
//! [`NEED_FRAMES`] is not and it has filled one of input empty, it calls [`PoolKick`]. A driver
//! that is about to rest stores [`NEED_FRAMES`] and a zero to BUSY, executes a full fence and looks
//! at both queues once more: so either it finds the slot, or the process finds the zero (S4).
//!
//! A process that is about to block stores what it waits for ([`events`]) to [`WANT_WAKE`],
//! executes a full fence and looks at its queues once more. A driver that has filled slots executes
//! a full fence and loads WANT_WAKE; if it names one of them, it wakes all that wait and poll. An
//! event is there while the slot that the driver filled last is not empty. [`PoolWait`] returns for
//! those that it names; the file is readable (`POLLIN`) while one is there that WANT_WAKE names
//! (S3), and readable and in error (`POLLERR`) when the device is gone.
//!
//! # Rights
//! All of the range is the process's to write, so the driver reads a slot once and checks it: a
//! slot that names no frame, a frame that is not the process's, or a length beyond the frame is
//! counted ([`PoolInfo::malformed_slots`]) and costs that process the slot.

use zerocopy::little_endian::{I64, U16, U32, U64};

use crate::ids::NodeId;
use crate::uapi::ioctl_number;
use crate::PAGE_SIZE;

/// mmap offset of the range.
pub const MMAP_POOLS: u64 = 4 << 24;

/// ioctl number of [`OpenPools`].
pub const OPEN_POOLS: u32 = ioctl_number(10, size_of::<OpenPools>());
/// ioctl number of [`PoolKick`].
pub const POOL_KICK: u32 = ioctl_number(11, size_of::<PoolKick>());
/// ioctl number of [`PoolWait`].
pub const POOL_WAIT: u32 = ioctl_number(12, size_of::<PoolWait>());
/// ioctl number of [`PoolInfo`].
pub const POOL_INFO: u32 = ioctl_number(13, size_of::<PoolInfo>());

/// First datagram port of processes; those below are of modules of the kernel.
pub const FIRST_POOL_PORT: u16 = 1024;

/// Least bytes of a frame.
pub const MIN_FRAME_BYTES: usize = 256;

/// Most bytes of a frame: those of a packet.
pub const MAX_FRAME_BYTES: usize = crate::datagram::MAX_DATA;

/// Most bytes of the frames of a pool, each as long as its stride.
pub const MAX_POOL_BYTES: usize = 8 << 20;

/// Least frames of a pool.
pub const MIN_FRAMES: usize = 1;

/// Most frames of a pool.
pub const MAX_FRAMES: usize = 1024;

/// Driver's word (u32): not zero while it looks at the queues without being kicked.
pub const BUSY: usize = 0;
/// Driver's word (u32): not zero while the NIC is short of input frames.
pub const NEED_FRAMES: usize = 4;
/// Process's word (u32): the [`events`] that it wants to be woken for.
pub const WANT_WAKE: usize = 64;

/// Where the queues begin.
const QUEUES: usize = PAGE_SIZE;
/// Queues begin at multiples of that.
const LINE: usize = 64;

const _: () = assert!(MAX_FRAMES < u16::MAX as usize);
const _: () = assert!(MAX_FRAME_BYTES <= u16::MAX as usize);
const _: () = assert!(MAX_POOL_BYTES % MAX_FRAME_BYTES == 0);

/// What a process can wait for.
pub mod events {
    /// A frame in input full.
    pub const INPUT: u32 = 1;
    /// A frame in output empty.
    pub const OUTPUT: u32 = 2;
}

/// One of the four queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Queue {
    /// Frames to send: from the process to the driver.
    OutputFull,
    /// Frames that can be filled: from the driver to the process.
    OutputEmpty,
    /// Packets: from the driver to the process.
    InputFull,
    /// Frames that were read: from the process to the driver.
    InputEmpty,
}

impl Queue {
    /// All, in their order in the range.
    pub const ALL: [Queue; 4] = [
        Queue::OutputFull,
        Queue::OutputEmpty,
        Queue::InputFull,
        Queue::InputEmpty,
    ];

    /// Offset of its head (u32), which its consumer writes.
    pub const fn head(self) -> usize {
        match self {
            Queue::OutputFull => 8,
            Queue::InputEmpty => 12,
            Queue::OutputEmpty => 72,
            Queue::InputFull => 76,
        }
    }

    /// Offset of its tail (u32), which its producer writes.
    pub const fn tail(self) -> usize {
        match self {
            Queue::OutputEmpty => 16,
            Queue::InputFull => 20,
            Queue::OutputFull => 80,
            Queue::InputEmpty => 84,
        }
    }
}

/// Which pool a frame is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pool {
    /// Frames that the NIC fills.
    Input,
    /// Frames that the process fills.
    Output,
}

/// Sizes of pools, within limits: where all stands in the range follows from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    frame_bytes: usize,
    inputs: usize,
    outputs: usize,
}

impl Shape {
    /// Pools of `inputs` and `outputs` frames, [`MIN_FRAMES`] to [`MAX_FRAMES`], of
    /// `frame_bytes` each, [`MIN_FRAME_BYTES`] to [`MAX_FRAME_BYTES`]; none if one is outside, or
    /// a pool is longer than [`MAX_POOL_BYTES`].
    pub const fn new(frame_bytes: usize, inputs: usize, outputs: usize) -> Option<Self> {
        let shape = Shape {
            frame_bytes,
            inputs,
            outputs,
        };
        let frame = frame_bytes >= MIN_FRAME_BYTES && frame_bytes <= MAX_FRAME_BYTES;
        let input = inputs >= MIN_FRAMES && inputs <= MAX_FRAMES;
        let output = outputs >= MIN_FRAMES && outputs <= MAX_FRAMES;
        if !(frame && input && output) {
            return None;
        }
        let most = MAX_POOL_BYTES / shape.stride();
        match inputs <= most && outputs <= most {
            true => Some(shape),
            false => None,
        }
    }

    /// Bytes of a frame.
    pub const fn frame_bytes(self) -> usize {
        self.frame_bytes
    }

    /// Frames of a pool, and slots of each of its queues.
    pub const fn frames(self, pool: Pool) -> usize {
        match pool {
            Pool::Input => self.inputs,
            Pool::Output => self.outputs,
        }
    }

    /// Offset of the first slot of a queue.
    pub const fn queue(self, queue: Queue) -> usize {
        let output = (self.outputs * 8).next_multiple_of(LINE);
        let input = (self.inputs * 8).next_multiple_of(LINE);
        match queue {
            Queue::OutputFull => QUEUES,
            Queue::OutputEmpty => QUEUES + output,
            Queue::InputFull => QUEUES + 2 * output,
            Queue::InputEmpty => QUEUES + 2 * output + input,
        }
    }

    /// Offset of a frame; `index` is less than [`Shape::frames`].
    pub const fn frame(self, pool: Pool, index: usize) -> usize {
        let start = match pool {
            Pool::Input => self.first_frame(),
            Pool::Output => self.first_frame() + self.pool_bytes(self.inputs),
        };
        start + index * self.stride()
    }

    /// Length of the range in bytes, which are whole pages.
    pub const fn bytes(self) -> usize {
        self.frame(Pool::Output, 0) + self.pool_bytes(self.outputs)
    }

    /// Offset of the first frame, which is at the start of a page.
    pub const fn first_frame(self) -> usize {
        let input = (self.inputs * 8).next_multiple_of(LINE);
        (self.queue(Queue::InputEmpty) + input).next_multiple_of(PAGE_SIZE)
    }

    /// Bytes from a frame to the next one of its pool.
    pub const fn stride(self) -> usize {
        self.frame_bytes.next_power_of_two()
    }

    /// Pages from [`Shape::first_frame`] on that are contiguous for the NIC, from each multiple of
    /// so many on: those of a frame, or one.
    pub const fn block_pages(self) -> usize {
        self.stride().div_ceil(PAGE_SIZE)
    }

    const fn pool_bytes(self, frames: usize) -> usize {
        (frames * self.stride()).next_multiple_of(PAGE_SIZE)
    }
}

/// What a slot that is not empty says.
///
/// ```text
///    63          48 47          32 31          16 15           0
///   ┌──────────────┬──────────────┬──────────────┬──────────────┐
///   │ port         │ node         │ length       │ index + 1    │
///   └──────────────┴──────────────┴──────────────┴──────────────┘
/// ```
/// In the two full queues, `node` and `port` say where a frame goes to or comes from, and `length`
/// how many of its bytes count. A frame of input full without bytes says that no process and no module of
/// `node` has bound `port`, to which this process has sent something. In the two empty queues all three are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// Number of the frame in its pool.
    pub index: u16,
    /// Bytes.
    pub length: u16,
    /// The other node.
    pub node: NodeId,
    /// Datagram port there.
    pub port: u16,
}

impl Slot {
    /// As a queue holds it; never zero. `index` is less than [`MAX_FRAMES`].
    pub const fn encode(self) -> u64 {
        let low = (self.index as u64 + 1) | (self.length as u64) << 16;
        low | (self.node.0 as u64) << 32 | (self.port as u64) << 48
    }

    /// From a word that is not empty. Nothing of it has been checked against the pool; none if its
    /// index is that of no slot.
    pub const fn decode(word: u64) -> Option<Self> {
        match word as u16 {
            0 => None,
            number => Some(Slot {
                index: number - 1,
                length: (word >> 16) as u16,
                node: NodeId((word >> 32) as u16),
                port: (word >> 48) as u16,
            }),
        }
    }
}

/// Longest message of a datagram socket in bytes ([`DatagramPart`]).
pub const MAX_DATAGRAM: usize = 64 << 10;

layouts! {
    /// What stands in front of each part of a message of a datagram socket; the bytes of the part
    /// follow, up to the end of the frame. All parts but the last have `part_bytes` bytes, so
    /// number and length of each follow from the message's length, and none can overlap another.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | message         | length          |
    ///   8  | part   | part_b | reserved        |
    /// ```
    #[bytes(16)]
    pub struct DatagramPart {
        /// Number of the message, of its sender.
        pub message: U32,
        /// Bytes of the whole message, up to [`MAX_DATAGRAM`].
        pub length: U32,
        /// Number of the part, from 0.
        pub part: U16,
        /// Bytes of each part but the last; not zero.
        pub part_bytes: U16,
        /// Zero.
        pub reserved: U32,
    }

    /// Opens the pools of a file that is neither registered nor has pools (S1): then
    /// [`MMAP_POOLS`] can be mapped. [`crate::uapi::Path`] and [`crate::uapi::Info`] are allowed,
    /// too; every other call of [`crate::uapi`] fails with `EBADFD`.
    ///
    /// Fails with `PortInUse`, `AccessDenied` (a port below [`FIRST_POOL_PORT`]), `BadLength` (no
    /// [`Shape`]) and `Exhausted`.
    #[bytes(24)]
    pub struct OpenPools {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: wanted datagram port, or 0 for any free one. Out: the port.
        pub port: U16,
        /// Out: node number.
        pub node: U16,
        /// In: bytes of a frame.
        pub frame_bytes: U32,
        /// In: frames of the input pool.
        pub inputs: U16,
        /// In: frames of the output pool.
        pub outputs: U16,
        /// Out: length of the range in bytes, which is [`Shape::bytes`].
        pub bytes: U64,
    }

    /// Makes the driver look at output full and input empty (S4).
    #[bytes(8)]
    pub struct PoolKick {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// Zero.
        pub reserved: U32,
    }

    /// Blocks until one of `events` is there; it fails with `ETIMEDOUT` if none comes in time.
    #[bytes(16)]
    pub struct PoolWait {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: [`events`] to wait for, at least one. Out: those that are there.
        pub events: U32,
        /// In: longest time to block, in nanoseconds; negative: no limit. Zero: it does not sleep,
        /// but the driver looks at the NIC for a fraction of a millisecond, while no other thread
        /// wants the processor.
        pub timeout_ns: I64,
    }

    /// What the driver has counted for these pools.
    #[bytes(88)]
    pub struct PoolInfo {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// Zero.
        pub reserved: U32,
        /// Out: frames taken from output full to be sent.
        pub frames_sent: U64,
        /// Out: of those, frames that the NIC has refused: no such node, no route that carries
        /// so much, the peer is gone.
        pub frames_refused: U64,
        /// Out: frames put into input full.
        pub frames_received: U64,
        /// Out: packets that came with what no pool takes: a header, or a part of a message.
        pub packets_dropped: U64,
        /// Out: slots that name no frame of the process, or more bytes than it has.
        pub malformed_slots: U64,
        /// Out: times that the driver found a slot that it had to fill not empty.
        pub occupied_slots: U64,
        /// Out: calls of [`PoolKick`].
        pub kicks: U64,
        /// Out: calls of [`PoolWait`].
        pub waits: U64,
        /// Out: wake-ups that the process has asked for.
        pub wakes: U64,
        /// Out: times that the NIC had no input frame of the pool.
        pub starved: U64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_frame_crosses_a_block_or_overlaps() {
        for (frame_bytes, inputs, outputs) in [
            (256, 4, 4),
            (257, 5, 9),
            (1500, 1024, 7),
            (4096, 1024, 1024),
            (4097, 3, 1024),
            (16_384, 512, 5),
            (32_768, 7, 256),
        ] {
            let shape = Shape::new(frame_bytes, inputs, outputs).unwrap();
            let block = shape.block_pages() * PAGE_SIZE;
            let first = shape.first_frame();
            assert_eq!(first % PAGE_SIZE, 0);
            assert!(block == PAGE_SIZE || block == shape.stride());
            let mut end = shape.queue(Queue::InputEmpty) + inputs * 8;
            for (pool, frames) in [(Pool::Input, inputs), (Pool::Output, outputs)] {
                for index in 0..frames {
                    let start = shape.frame(pool, index);
                    assert!(start >= end);
                    end = start + frame_bytes;
                    assert_eq!((start - first) / block, (end - 1 - first) / block);
                }
            }
            assert!(end <= shape.bytes() && (shape.bytes() - first) % block == 0);
        }
    }

    #[test]
    fn sizes_have_limits() {
        assert!(Shape::new(255, 4, 4).is_none() && Shape::new(32_769, 4, 4).is_none());
        assert!(Shape::new(256, 0, 4).is_none() && Shape::new(256, 4, 0).is_none());
        assert!(Shape::new(256, 1025, 4).is_none() && Shape::new(256, 4, 1025).is_none());
        assert!(Shape::new(32_768, 257, 4).is_none() && Shape::new(8193, 4, 513).is_none());
        assert!(Shape::new(32_768, 256, 256).is_some() && Shape::new(8192, 1024, 1024).is_some());
    }

    #[test]
    fn ioctl_numbers_are_linux_iowr() {
        // _IOWR('Q', 10, 24 bytes) of <asm-generic/ioctl.h>
        assert_eq!(OPEN_POOLS, 0xc018_510a);
        assert_eq!(POOL_INFO, 0xc058_510d);
    }
}
