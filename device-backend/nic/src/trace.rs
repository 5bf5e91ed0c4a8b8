//! Traces: what happens to single operations, event by event, while a trace is on (X6).
//! [`mod@crate::stages`] counts times always; a trace keeps which operation they belong to, so that
//! the events of two NICs for one operation can be put together.
//!
//! ```text
//!   requester   Fetched ──► Sent ──► … ──► Ended ──► Published
//!                    Waits, Resumed, Blocked, Unblocked, Resent, Nak
//!   responder            Delivered, or: Queued ──► Responded
//!                    Waits, Refused
//!          NIC ──► buffer of the trace (fixed) ──[swapped for an empty one]──► device process ──► tool
//! ```
//!
//! # Which operations
//! What an event belongs to is a [`Scope`], a node and a number ([`Event::operation`]); each protocol says
//! it of its own frames, from what they carry anyway: nothing is added to a frame.
//!
//! | scope | node | number | shown |
//! |---|---|---|---|
//! | command | requester | the name that its frames carry | by its running number |
//! | import | importer | its number there | by it |
//! | collective | home of the group | number of the group, and of the collective in it | by the latter |
//! | join, group, name, spread | | | always: they are rare |
//!
//! What is shown by a number is so if that is a multiple of the trace's sample: every NIC chooses the same.
//!
//! What is no command has `Fetched` and `Ended` of each process that takes part, and `Sent` of each frame.
//!
//! # Invariants
//! - The caller brings the buffer of a trace, and its capacity is the bound: no guest and no peer can
//!   make a NIC keep more. What does not fit is counted ([`Taken::lost`]), and the NIC goes on.
//! - A trace changes nothing that a guest or a peer sees.
//! - A NIC that is not traced tests one flag where it chooses what to sample, and where it is slow anyway.
//! - Numbers in events are what guests and peers have said. Nothing but their form is checked.
//! - A trace survives a reset of the NIC; names of operations do not repeat.

use crate::ids::OperationId;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a [`Record`].
pub const RECORD_BYTES: usize = 48;

/// In `code` of `Fetched` in the scope of a group: the rest is the collective that is called, not an opcode.
pub const CALL: u32 = 1 << 8;

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum What {
    /// The NIC has read the command, or a request. `code`: its opcode, of a collective which one; `bytes`: its length; `detail`: its tag,
    /// function, name of a segment, action about a name, or number in its group; `depth`: operations of the process.
    Fetched = 1,
    /// Its first frame goes to the wire; in other scopes than that of commands: a frame. `code`: its kind then;
    /// `bytes`: its payload.
    Sent,
    /// It is complete. `code`: its status; `detail`: when its last frame went; `bytes`: its number at its
    /// counter; `port`: which counter that is, 0 of writes, 1 of reads, 2 none, and its lane times 256; `depth`: operations of the
    /// process that are left.
    Ended,
    /// Its process can see what is complete of a lane. `operation`: names the process; `port`: the lane;
    /// `bytes`, `detail`: how many of its writes and reads are complete.
    Published,
    /// A frame is in memory, or what it asked for is done. `code`: its kind; `bytes`: its payload;
    /// `detail`: when it came.
    Delivered,
    /// A request has come that is answered when its process has a turn. `code`: its kind.
    Queued,
    /// A frame goes back to the requester. `code`: its kind; `bytes`: its payload.
    Responded,
    /// A page is absent. `code`: the kind of the frame that waits, 0 for a turn of the operation.
    Waits,
    /// The pages are there, or have failed. `code`: as in `Waits`.
    Resumed,
    /// A window is closed: no credit.
    Blocked,
    /// It is open again.
    Unblocked,
    /// A frame was lost and goes to the wire again. `code`: its kind.
    Resent,
    /// A frame is refused, or a datagram dropped. `code`: why, the status that the sender of the frame gets;
    /// `bytes`: its kind.
    Refused,
    /// The peer has refused a frame. `code`: the status.
    Nak,
    /// What the NIC holds. `bytes`: operations; `detail`: credits that peers have; `depth`: processes.
    Load,
    /// Events did not fit. `bytes`: how many.
    Lost,
}

impl What {
    /// All of them.
    pub const ALL: [What; 16] = [
        What::Fetched,
        What::Sent,
        What::Ended,
        What::Published,
        What::Delivered,
        What::Queued,
        What::Responded,
        What::Waits,
        What::Resumed,
        What::Blocked,
        What::Unblocked,
        What::Resent,
        What::Refused,
        What::Nak,
        What::Load,
        What::Lost,
    ];
}

/// What the name of an operation is a name of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Scope {
    /// A command of a process.
    #[default]
    Command,
    /// An import.
    Import,
    /// A collective of a group: its members have calls.
    Collective,
    /// A join of a process; a call or leave that names no group.
    Join,
    /// A group: how it begins and ends, and what leaves it.
    Group,
    /// A command about a name.
    Name,
    /// A frame that spreads names.
    Spread,
}

impl Scope {
    /// All of them.
    pub const ALL: [Scope; 7] = [
        Scope::Command,
        Scope::Import,
        Scope::Collective,
        Scope::Join,
        Scope::Group,
        Scope::Name,
        Scope::Spread,
    ];
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// [`crate::Host::clock`] of the NIC where it happened.
    pub time: u64,
    /// What `operation` is a name of.
    pub scope: Scope,
    /// Name of the operation at its requester.
    pub operation: u64,
    /// What has happened.
    pub what: What,
    /// Node where it happened.
    pub at: u16,
    /// Node whose operation it is; of a collective and a group: the group's home.
    pub requester: u16,
    /// The other node.
    pub peer: u16,
    /// Port of the process.
    pub port: u16,
    /// See [`What`].
    pub code: u32,
    /// See [`What`].
    pub depth: u16,
    /// See [`What`].
    pub bytes: u64,
    /// See [`What`].
    pub detail: u64,
}

/// An event as it stands in buffers and streams.
///
/// ```text
///    0          8            16       24        32  34         36    38    40    44     46    47
///   ┌──────────┬────────────┬────────┬─────────┬───┬──────────┬─────┬─────┬─────┬──────┬─────┬─────┐
///   │ time     │ operation  │ bytes  │ detail  │at │requester │peer │port │code │depth │what │scope│
///   └──────────┴────────────┴────────┴─────────┴───┴──────────┴─────┴─────┴─────┴──────┴─────┴─────┘
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Record {
    time: U64,
    operation: U64,
    bytes: U64,
    detail: U64,
    at: U16,
    requester: U16,
    peer: U16,
    port: U16,
    code: U32,
    depth: U16,
    what: u8,
    scope: u8,
}

const _: () = assert!(size_of::<Record>() == RECORD_BYTES);

/// Bytes that are no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoEvent;

impl From<Event> for Record {
    fn from(event: Event) -> Self {
        Record {
            time: event.time.into(),
            operation: event.operation.into(),
            bytes: event.bytes.into(),
            detail: event.detail.into(),
            at: event.at.into(),
            requester: event.requester.into(),
            peer: event.peer.into(),
            port: event.port.into(),
            code: event.code.into(),
            depth: event.depth.into(),
            what: event.what as u8,
            scope: event.scope as u8,
        }
    }
}

impl Record {
    /// Its bytes.
    pub fn to_bytes(self) -> [u8; RECORD_BYTES] {
        zerocopy::transmute!(self)
    }
}

impl TryFrom<Record> for Event {
    type Error = NoEvent;

    fn try_from(record: Record) -> Result<Self, NoEvent> {
        let index = record.what.checked_sub(1).ok_or(NoEvent)?;
        let what = *What::ALL.get(usize::from(index)).ok_or(NoEvent)?;
        let scope = *Scope::ALL.get(usize::from(record.scope)).ok_or(NoEvent)?;
        Ok(Event {
            time: record.time.get(),
            scope,
            operation: record.operation.get(),
            what,
            at: record.at.get(),
            requester: record.requester.get(),
            peer: record.peer.get(),
            port: record.port.get(),
            code: record.code.get(),
            depth: record.depth.get(),
            bytes: record.bytes.get(),
            detail: record.detail.get(),
        })
    }
}

impl Event {
    /// An event of a node and of no operation: so many events of it did not fit up to then.
    pub fn lost(time: u64, node: u16, count: u64) -> Self {
        Event {
            bytes: count,
            ..Event::own(time, node, What::Lost, OperationId(0))
        }
    }

    /// Reads an event.
    ///
    /// # Errors
    /// [`NoEvent`] if these bytes are none.
    pub fn read(bytes: &[u8; RECORD_BYTES]) -> Result<Self, NoEvent> {
        let record: Record = zerocopy::transmute!(*bytes);
        record.try_into()
    }
}

/// What a trace has kept since it was looked at last.
#[derive(Debug, Default)]
pub struct Taken {
    /// The events, in the order in which they were noted.
    pub events: Vec<Record>,
    /// Events that did not fit.
    pub lost: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event() -> impl Strategy<Value = Event> {
        let long = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        let short = (any::<u16>(), any::<u16>(), any::<u16>(), any::<u16>());
        let what = prop::sample::select(&What::ALL[..]);
        let scope = prop::sample::select(&Scope::ALL[..]);
        let what = (what, scope);
        (long, short, any::<u32>(), any::<u16>(), what).prop_map(
            |(long, (at, requester, peer, port), code, depth, (what, scope))| {
                let (time, operation, bytes, detail) = long;
                Event {
                    time,
                    scope,
                    operation,
                    what,
                    at,
                    requester,
                    peer,
                    port,
                    code,
                    depth,
                    bytes,
                    detail,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn events_are_read_as_they_were_written(event in event()) {
            let record = Record::from(event);
            let bytes: [u8; RECORD_BYTES] = record.as_bytes().try_into().unwrap();
            prop_assert_eq!(Event::read(&bytes), Ok(event));
        }

        #[test]
        fn any_bytes_are_an_event_that_is_written_as_they_are_or_none(
            bytes in prop::array::uniform32(any::<u8>()),
            rest in prop::array::uniform16(any::<u8>()),
            what in 0u8..20,
            scope in 0u8..9,
        ) {
            let mut all = [0; RECORD_BYTES];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&rest);
            all[46] = what;
            all[47] = scope;
            let valid = (1..=16).contains(&what) && scope < 7;
            match Event::read(&all) {
                Ok(event) => {
                    prop_assert!(valid);
                    let record = Record::from(event);
                    prop_assert_eq!(record.as_bytes(), &all[..]);
                }
                Err(NoEvent) => prop_assert!(!valid),
            }
        }
    }

    #[test]
    fn what_happens_stands_at_its_number() {
        let numbers = What::ALL.map(|what| what as u8);
        assert!(numbers.into_iter().eq(1..=16));
        let numbers = Scope::ALL.map(|scope| scope as u8);
        assert!(numbers.into_iter().eq(0..7));
    }

    #[test]
    fn the_layout_is_the_picture() {
        let event = Event {
            time: 1,
            scope: Scope::Group,
            operation: 2,
            what: What::Lost,
            at: 5,
            requester: 6,
            peer: 7,
            port: 8,
            code: 9,
            depth: 10,
            bytes: 3,
            detail: 4,
        };
        let mut expected = [0; RECORD_BYTES];
        let places = [0, 8, 16, 24, 32, 34, 36, 38, 40, 44, 46, 47];
        for (number, place) in (1..=10).chain([16, 4]).zip(places) {
            expected[place] = number;
        }
        assert_eq!(Record::from(event).as_bytes(), expected);
    }
}
