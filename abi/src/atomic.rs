//! Atomic operations on remote memory (NetVM §8; N20, N22, N24): command, frames, and
//! the structures that they work on.
//!
//! An [`AtomicCommand`] changes one operand in an exported segment that grants reading
//! and writing. The NIC of the responder, which has the memory, executes it once,
//! whatever the wire loses; its result goes to the result record of the requesting
//! process ([`crate::host_area::RESULTS`]), or into its completion.
//!
//! | kind | class | sent by | body |
//! |---|---|---|---|
//! | [`kind::ATOMIC_REQUEST`] | Control | requester | [`AtomicRequest`] |
//! | [`kind::ATOMIC_RESPONSE`] | Control | responder | [`AtomicResponse`] |
//!
//! The operand is a word of 4 or 8 bytes, or a [`WaitQueue`]; it is aligned to its
//! size. Words are changed by atomic accesses, so the responder's processors may change
//! them too; a [`WaitQueue`] is only ever touched by its own NIC.

use zerocopy::little_endian::{U16, U32, U64};

use crate::command::{CommandBody, CommandHeader, DESCRIPTOR_BYTES};
use crate::wire::Body;

/// Opcode of this protocol. An atomic command counts as a read where completions are
/// counted.
pub const OPCODE: u8 = 3;

/// Kinds of frames of this protocol.
pub mod kind {
    /// [`super::AtomicRequest`].
    pub const ATOMIC_REQUEST: u8 = 0xa0;
    /// [`super::AtomicResponse`].
    pub const ATOMIC_RESPONSE: u8 = 0xa1;
}

numbered! {
    /// What an atomic command does. `w` is the word, `x`, `y`, `z` and `t` are the operands of the
    /// command, `Q` is a [`WaitQueue`]; 0 stands for no entry. All arithmetic wraps around.
    ///
    /// | function | effect | value | detail |
    /// |---|---|---|---|
    /// | TestAndSet | if `w` = 0: `w` := 1 | `w` before | 0 |
    /// | Increment | `w` += 1 | `w` before | 0 |
    /// | Decrement | `w` −= 1 | `w` before | 0 |
    /// | Swap | `w` := `x` | `w` before | 0 |
    /// | CompareSwap | if `w` = `y`: `w` := `x` | `w` before | 0 |
    /// | FetchAdd | `w` += `x` | `w` before | 0 |
    /// | Enqueue | `x` becomes the last entry | entry before it, or 0 | entries |
    /// | Dequeue | the first entry leaves | the entry, or 0 | entries that stay, or [`EMPTY_QUEUE`] |
    /// | NewHead | `x` becomes the first entry, or leaves as well | 1 if it leaves | entries that stay |
    /// | SemaphoreP | takes one of `Q.value`, or as Enqueue | entry before it, or 0 | entries, `Q.value` before |
    /// | SemaphoreV | as Dequeue, or adds one to `Q.value` | the entry, or 0 | entries that stay, `Q.value` after |
    /// | Reset | empties `Q`; `Q.value` and `Q.generation` := lower and upper half of `x` | 0 | 0 |
    /// | And, Or, Xor | `w` := `w` and, or, exclusive or `x` | `w` before | 0 |
    /// | Min, Max | `w` := the lesser, the greater of `w` and `x`, unsigned | `w` before | 0 |
    /// | MinSigned, MaxSigned | the same in two's complement | `w` before | 0 |
    /// | AddFloat | `w` += `x` in IEEE 754; NaN becomes the quiet one without sign | `w` before | 0 |
    /// | MinFloat, MaxFloat | as Min, Max in IEEE 754; a number wins against NaN | `w` before | 0 |
    /// | MaskedCompareSwap | if `w` and `y` agree in the bits of `z`: the bits of `t` in `w` := those of `x` | `w` before | 0 |
    ///
    /// `detail` holds two numbers, see [`detail`]. A function on a queue is executed only if
    /// `Q.generation` = `y`. Else nothing changes, the value is `Q.generation`, and the detail
    /// is [`STALE`].
    pub enum Function: u16 {
        /// Sets a word that is zero to one.
        TestAndSet = 1,
        /// Adds one.
        Increment = 2,
        /// Subtracts one.
        Decrement = 3,
        /// Exchanges.
        Swap = 4,
        /// Exchanges if the word is as expected.
        CompareSwap = 5,
        /// Adds.
        FetchAdd = 6,
        /// Adds an entry at the end of a wait queue.
        Enqueue = 7,
        /// Takes the first entry from a wait queue; if it is not known yet, notes a
        /// pending wakeup.
        Dequeue = 8,
        /// Names the successor of the entry that was taken last; if a wakeup is
        /// pending, takes that one too.
        NewHead = 9,
        /// Takes one from a counting semaphore, or adds an entry to its queue.
        SemaphoreP = 10,
        /// Takes the first entry from the queue of a counting semaphore, or adds one
        /// to the semaphore.
        SemaphoreV = 11,
        /// Begins another generation of a wait queue or a counting semaphore.
        Reset = 12,
        /// Keeps the bits that are in the operand.
        And = 13,
        /// Sets the bits of the operand.
        Or = 14,
        /// Flips the bits of the operand.
        Xor = 15,
        /// The lesser of two unsigned integers.
        Min = 16,
        /// The greater of two unsigned integers.
        Max = 17,
        /// The lesser of two signed integers.
        MinSigned = 18,
        /// The greater of two signed integers.
        MaxSigned = 19,
        /// Adds floating-point numbers.
        AddFloat = 20,
        /// The lesser of two floating-point numbers.
        MinFloat = 21,
        /// The greater of two floating-point numbers.
        MaxFloat = 22,
        /// Exchanges some bits if some bits are as expected.
        MaskedCompareSwap = 23,
    }
}

impl Function {
    /// Returns true if the operand is a [`WaitQueue`]; otherwise it is a word.
    pub const fn is_on_queue(self) -> bool {
        let (first, last) = (Function::Enqueue as u16, Function::Reset as u16);
        first <= self as u16 && self as u16 <= last
    }

    /// Length of the inline payload of the command: `z` and `t`, where the function has them.
    pub const fn inline_length(self) -> u8 {
        match self {
            Function::MaskedCompareSwap => 16,
            _ => 0,
        }
    }

    /// Returns true if the operand can have so many bytes.
    pub const fn takes(self, length: u64) -> bool {
        match self.is_on_queue() {
            true => length == size_of::<WaitQueue>() as u64,
            false => length == 4 || length == 8,
        }
    }
}

layouts! {
    /// The central structure of a wait queue or a counting semaphore; zeroed: empty.
    ///
    /// ```text
    ///      0                 8
    ///   0  | head                               |
    ///   8  | tail                               |
    ///  16  | count           | pending          |
    ///  24  | value           | generation       |
    /// ```
    #[bytes(32)]
    pub struct WaitQueue {
        /// First entry; 0: none, or not known yet.
        pub head: U64,
        /// Last entry.
        pub tail: U64,
        /// Entries that wait.
        pub count: U32,
        /// Those of them, from the first on, that leave as soon as they are known.
        pub pending: U32,
        /// Value of the semaphore.
        pub value: U32,
        /// Which queue this is: entries of an earlier one have no effect. Zero in a lock.
        pub generation: U32,
    }
}

const _: () = assert!(core::mem::offset_of!(WaitQueue, count) == 16);
const _: () = assert!(core::mem::offset_of!(WaitQueue, value) == 24);

layouts! {
    /// An atomic command. Operands `z` and `t` stand behind it, in its inline payload, where the
    /// function has them ([`Function::inline_length`]).
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | remote_address                    |
    ///  16  | remote_key                        |
    ///  24  | operands[0], x                    |
    ///  32  | operands[1], y                    |
    ///  40  | length          |function| record |
    ///  48  |r_segm. | reserved                 |
    ///  56  | handle                            |
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct AtomicCommand {
        /// With [`OPCODE`].
        pub header: CommandHeader,
        /// Virtual address of the operand in the remote process.
        pub remote_address: U64,
        /// Key of the remote segment.
        pub remote_key: U64,
        /// `x` and `y`.
        pub operands: [U64; 2],
        /// Size of the operand in bytes.
        pub length: U32,
        /// A [`Function`].
        pub function: U16,
        /// Number of the result record, below [`crate::host_area::RESULT_RECORDS`].
        pub record: U16,
        /// Index of the remote segment.
        pub remote_segment: U16,
        /// Zero.
        pub reserved: [U16; 3],
        /// Zero, or the handle of its entry in the completion queue (N12). That has the result then,
        /// and `record` is zero.
        pub handle: U64,
    }
}

const _: () = assert!(core::mem::offset_of!(AtomicCommand, length) == 40);

impl CommandBody for AtomicCommand {
    const OPCODE: u8 = OPCODE;
}

layouts! {
    /// Body of [`kind::ATOMIC_REQUEST`].
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | address                           |
    ///   8  | key                               |
    ///  16  | operands[0], x                    |
    ///  24  | operands[1], y                    |
    ///  32  | operands[2], z                    |
    ///  40  | operands[3], t                    |
    ///  48  | length          |function|segment |
    /// ```
    #[bytes(56)]
    pub struct AtomicRequest {
        /// Virtual address of the operand in the process at the destination port.
        pub address: U64,
        /// Key of the segment.
        pub key: U64,
        /// `x`, `y`, `z` and `t`.
        pub operands: [U64; 4],
        /// Size of the operand in bytes.
        pub length: U32,
        /// A [`Function`].
        pub function: U16,
        /// Segment in the process at the destination port.
        pub segment: U16,
    }

    /// Body of [`kind::ATOMIC_RESPONSE`].
    ///
    /// ```text
    ///      0                                   8
    ///   0  | value                             |
    ///   8  | detail                            |
    /// ```
    #[bytes(16)]
    pub struct AtomicResponse {
        /// The value, as [`Function`] says.
        pub value: U64,
        /// Two numbers: [`detail`].
        pub detail: U64,
    }
}

const _: () = assert!(core::mem::offset_of!(AtomicRequest, length) == 48);

impl Body for AtomicRequest {
    const KIND: u8 = kind::ATOMIC_REQUEST;
}

impl Body for AtomicResponse {
    const KIND: u8 = kind::ATOMIC_RESPONSE;
}

/// First number of the detail of a Dequeue that found an empty queue.
pub const EMPTY_QUEUE: u32 = u32::MAX;

/// Detail of a function on a queue of another generation, which was not executed.
pub const STALE: u64 = u64::MAX;

/// The two numbers of a detail as one word: the first in the lower half.
pub const fn detail(first: u32, second: u32) -> u64 {
    first as u64 | (second as u64) << 32
}

/// The two numbers of a detail.
pub const fn split_detail(detail: u64) -> (u32, u32) {
    (detail as u32, (detail >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Unknown;

    #[test]
    fn numbers_are_places_in_the_list_from_one() {
        for (number, function) in (1..).zip(Function::ALL) {
            assert_eq!(function as u16, number);
            assert_eq!(Function::try_from(number), Ok(function));
        }
        for number in [0, 24, u16::MAX] {
            assert_eq!(Function::try_from(number), Err(Unknown(number)));
        }
    }

    #[test]
    fn operands_are_words_or_queues() {
        for function in Function::ALL {
            let lengths: [u64; 5] = [0, 4, 8, 16, 32];
            let taken = lengths.map(|length| function.takes(length));
            let expected = match function.is_on_queue() {
                true => [false, false, false, false, true],
                false => [false, true, true, false, false],
            };
            assert_eq!(taken, expected, "{function:?}");
        }
    }

    #[test]
    fn details_are_two_numbers() {
        assert_eq!(split_detail(detail(7, u32::MAX)), (7, u32::MAX));
        assert_eq!(detail(1, 2), 0x2_0000_0001);
    }
}
