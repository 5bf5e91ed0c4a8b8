//! Groups of processes, and collective operations that complete in the NICs (Q14, Q15, N26;
//! docs/collectives.md): commands and frames.
//!
//! | opcode | command | its end |
//! |---|---|---|
//! | [`Opcode::JoinGroup`] | [`JoinGroupCommand`] | a completion of kind Join |
//! | [`Opcode::LeaveGroup`] | [`LeaveGroupCommand`] | a completion of kind Leave |
//! | [`Opcode::Collective`] | [`CollectiveCommand`] | a completion of kind Collective |
//!
//! No counter counts these commands.
//!
//! | kind | class | sent by | body | payload |
//! |---|---|---|---|---|
//! | [`kind::GROUP_JOIN`] | Control | member | [`GroupJoin`] | none |
//! | [`kind::GROUP_REFUSED`] | Control | home | [`GroupRefused`] | none: a join fails |
//! | [`kind::GROUP_FORM`] | Windowed | home | [`GroupForm`] | nodes below in the tree, then the ranks of the node's members, [`U16`] each |
//! | [`kind::GROUP_FORMED`] | Control | member | [`GroupState`] | none |
//! | [`kind::GROUP_START`] | Control | home | [`GroupState`] | none |
//! | [`kind::GROUP_GREET`] | Control | neighbour in the tree | [`GroupState`] | none: from now on silence is noticed |
//! | [`kind::GROUP_END`] | Windowed | any node of the group | [`GroupEnd`] | none |
//! | [`kind::GROUP_SEEK`] | Windowed | neighbour in the tree | [`GroupSeek`] | none: the time of a call is over |
//! | [`kind::COLLECTIVE_UP`] | Windowed | node below | [`CollectivePart`] | what its subtree gives |
//! | [`kind::COLLECTIVE_DOWN`] | Windowed | node above | [`CollectivePart`] | the result |

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::command::{CommandBody, CommandHeader, DESCRIPTOR_BYTES};
use crate::wire::{Body, BODY_BYTES};

/// Most members of a group.
pub const MAX_MEMBERS: u32 = 4096;
/// Most nodes that are below one node in the tree of a group.
pub const MAX_CHILDREN: usize = 256;
/// Most bytes of a collective.
pub const MAX_LENGTH: u64 = 1 << 36;
/// Longest time that a join or a collective may be given, in milliseconds.
pub const MAX_TIMEOUT_MS: u32 = 600_000;
mod called;

pub use called::Called;
pub use qnic_limits::COLLECTIVES;
/// No node: that above the root of a tree.
pub const NO_NODE: u16 = u16::MAX;

numbered! {
    /// Opcodes of this protocol.
    pub enum Opcode: u8 {
        /// Become a member of a group.
        JoinGroup = 7,
        /// Be one no longer.
        LeaveGroup = 8,
        /// Take part in a collective operation.
        Collective = 9,
    }
}

numbered! {
    /// What the members of a group do together.
    pub enum Collective: u8 {
        /// A barrier: no member goes on before all have come.
        Barrier = 1,
        /// All get what the root has.
        Broadcast = 2,
        /// The root gets the reduction of what all have.
        Reduce = 3,
        /// All get it.
        Allreduce = 4,
    }
}

numbered! {
    /// How two elements become one.
    pub enum Operator: u8 {
        /// Their sum; integers wrap.
        Sum = 1,
        /// Their product; integers wrap.
        Product = 2,
        /// The lesser; of floats the number, if one is none.
        Minimum = 3,
        /// The greater; of floats the number, if one is none.
        Maximum = 4,
        /// Bitwise; integers only.
        And = 5,
        /// Bitwise; integers only.
        Or = 6,
        /// Bitwise; integers only.
        Xor = 7,
    }
}

numbered! {
    /// What the elements of a reduction are; all are little-endian.
    pub enum Element: u8 {
        /// Unsigned integers of 32 bits.
        U32 = 1,
        /// Unsigned integers of 64 bits.
        U64 = 2,
        /// Signed integers of 32 bits.
        I32 = 3,
        /// Signed integers of 64 bits.
        I64 = 4,
        /// Floats of 32 bits.
        F32 = 5,
        /// Floats of 64 bits.
        F64 = 6,
    }
}

impl Element {
    /// Its size in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Element::U32 | Element::I32 | Element::F32 => 4,
            Element::U64 | Element::I64 | Element::F64 => 8,
        }
    }
}

/// Kinds of frames of this protocol.
pub mod kind {
    /// [`super::CollectivePart`], towards the root.
    pub const COLLECTIVE_UP: u8 = 0x50;
    /// [`super::CollectivePart`], away from it.
    pub const COLLECTIVE_DOWN: u8 = 0x51;
    /// [`super::GroupForm`].
    pub const GROUP_FORM: u8 = 0x52;
    /// [`super::GroupEnd`].
    pub const GROUP_END: u8 = 0x53;
    /// [`super::GroupSeek`].
    pub const GROUP_SEEK: u8 = 0x54;
    /// [`super::GroupJoin`].
    pub const GROUP_JOIN: u8 = 0xa8;
    /// [`super::GroupRefused`].
    pub const GROUP_REFUSED: u8 = 0xa9;
    /// [`super::GroupState`]: a node knows of the group.
    pub const GROUP_FORMED: u8 = 0xaa;
    /// [`super::GroupState`]: all nodes do.
    pub const GROUP_START: u8 = 0xab;
    /// [`super::GroupState`]: a neighbour is there.
    pub const GROUP_GREET: u8 = 0xac;
}

/// In [`PartFields::flags`]: the sender's subtree wants the result.
pub const WANTS_RESULT: u8 = 1;
/// In [`PartFields::flags`]: the payload is a contribution, or a result. Without it there
/// is none, even if the collective has bytes.
pub const HAS_BYTES: u8 = 2;

layouts! {
    /// Joins the group of a name, which the process of rank 0 forms: the header names that.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | handle                            |
    ///  16  | name                              |
    ///  24  | key                               |
    ///  32  | size            | rank            |
    ///  40  | timeout_ms      | reserved0       |
    ///  48  | reserved1                         | … 64
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct JoinGroupCommand {
        /// With [`Opcode::JoinGroup`].
        pub header: CommandHeader,
        /// Of the process: the completion carries it.
        pub handle: U64,
        /// Tells the groups of one home process apart.
        pub name: U64,
        /// All members present the same: strangers do not know it.
        pub key: U64,
        /// Members, 1 to [`MAX_MEMBERS`].
        pub size: U32,
        /// Which of them this one is, below `size`.
        pub rank: U32,
        /// How long it waits for the others, 1 to [`MAX_TIMEOUT_MS`] milliseconds.
        pub timeout_ms: U32,
        /// Zero.
        pub reserved0: U32,
        /// Zero.
        pub reserved1: [U64; 2],
    }

    /// Leaves a group, which ends for all.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | handle                            |
    ///  16  | group                             |
    ///  24  | reserved                          | … 64
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct LeaveGroupCommand {
        /// With [`Opcode::LeaveGroup`].
        pub header: CommandHeader,
        /// Of the process: the completion carries it.
        pub handle: U64,
        /// From the completion of the join.
        pub group: U64,
        /// Zero.
        pub reserved: [U64; 5],
    }

    /// Takes part in the next collective of a group. The memory has what the process gives, and
    /// gets what it receives.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | handle                            |
    ///  16  | group                             |
    ///  24  | length                            |
    ///  32  | local_address                     |
    ///  40  | local_key                         |
    ///  48  | root            | timeout_ms      |
    ///  56  |l_segm. |coll|oper|elem|rsvd| label |
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct CollectiveCommand {
        /// With [`Opcode::Collective`].
        pub header: CommandHeader,
        /// Of the process: the completion carries it.
        pub handle: U64,
        /// From the completion of the join.
        pub group: U64,
        /// Bytes, up to [`MAX_LENGTH`]; the same at all members. Of a
        /// reduction whole elements; of a barrier zero.
        pub length: U64,
        /// Virtual address, in an exported segment of this process, whatever access that grants;
        /// zero if there is no byte.
        pub local_address: U64,
        /// Key of that segment.
        pub local_key: U64,
        /// Rank of the process that gives, or gets; zero if it is all.
        pub root: U32,
        /// How long it may take, 1 to [`MAX_TIMEOUT_MS`] milliseconds.
        pub timeout_ms: U32,
        /// Index of that segment.
        pub local_segment: U16,
        /// A [`Collective`].
        pub collective: u8,
        /// An [`Operator`]; zero if nothing is reduced.
        pub operator: u8,
        /// An [`Element`]; zero if nothing is reduced.
        pub element: u8,
        /// Zero.
        pub reserved: u8,
        /// What the process itself calls it, any number; the same at all members. So a library that
        /// has more collectives than NICs tells those apart that NICs carry alike.
        pub label: U16,
    }

    /// Body of [`kind::GROUP_JOIN`]; the ports are those of the two processes.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | name                              |
    ///   8  | key                               |
    ///  16  | ticket                            |
    ///  24  | size            | rank            |
    /// ```
    #[bytes(32)]
    pub struct GroupJoin {
        /// As in the command.
        pub name: U64,
        /// As in the command.
        pub key: U64,
        /// Names the join at its NIC.
        pub ticket: U64,
        /// As in the command.
        pub size: U32,
        /// As in the command.
        pub rank: U32,
    }

    /// Body of [`kind::GROUP_REFUSED`].
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | ticket                            |
    ///   8  | status          | node   | port   |
    /// ```
    #[bytes(16)]
    pub struct GroupRefused {
        /// From the join.
        pub ticket: U64,
        /// A [`crate::Status`] code: why.
        pub status: U32,
        /// Node of the process that is the reason, or that of the home.
        pub node: U16,
        /// Its port.
        pub port: U16,
    }

    /// Body of [`kind::GROUP_FORM`]: all members have come.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | name                              |
    ///   8  | key                               |
    ///  16  | number                            |
    ///  24  | size            | members         |
    ///  32  | parent | port   | reserved        |
    /// ```
    #[bytes(40)]
    pub struct GroupForm {
        /// From the joins.
        pub name: U64,
        /// From the joins: those with another one are none of its members.
        pub key: U64,
        /// The group's, among those of this home; never used again.
        pub number: U64,
        /// Members of the group.
        pub size: U32,
        /// Those of them that are on the node.
        pub members: U32,
        /// The node above it in the tree, or [`NO_NODE`].
        pub parent: U16,
        /// Port of the home process.
        pub port: U16,
        /// Zero.
        pub reserved: U32,
    }

    /// Body of [`kind::GROUP_END`]: no collective of the group begins any more, and those that
    /// need a frame that comes after this one fail.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | number                            |
    ///   8  | status          | home   | node   |
    ///  16  | port   |r_label |o_label | rsvd   |
    ///  24  | reason_called                     |
    ///  32  | others_called                     |
    /// ```
    #[bytes(40)]
    pub struct GroupEnd {
        /// The group's.
        pub number: U64,
        /// A [`crate::Status`] code: why.
        pub status: U32,
        /// Node of the group's home.
        pub home: U16,
        /// Node of the process that is the reason.
        pub node: U16,
        /// Its port; zero if it is the node as a whole.
        pub port: U16,
        /// Label of what the reason has called.
        pub reason_label: U16,
        /// Label of what others have called.
        pub others_label: U16,
        /// Zero.
        pub reserved: U16,
        /// If members have called different collectives: what the reason has called, a word of
        /// [`Called`]; otherwise zero.
        pub reason_called: U64,
        /// What others have called.
        pub others_called: U64,
    }

    /// Body of [`kind::GROUP_SEEK`]: what does a collective wait for? The time of a call of it is over.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | number                            |
    ///   8  | collective_nr   | wait_us         |
    ///  16  | home   | reserved                 |
    /// ```
    #[bytes(24)]
    pub struct GroupSeek {
        /// The group's.
        pub number: U64,
        /// Number of the collective in the group, from 0.
        pub sequence: U32,
        /// How long the receiver may wait for a neighbour that it asks in turn, in microseconds.
        pub wait_us: U32,
        /// Node of the group's home.
        pub home: U16,
        /// Zero.
        pub reserved: [U16; 3],
    }

    /// Body of [`kind::COLLECTIVE_UP`] and [`kind::COLLECTIVE_DOWN`]: one part of one collective.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | number                            |
    ///   8  | length                            |
    ///  16  | collective_nr   | part            |
    ///  24  | root            | home   | label  |
    ///  32  |coll|oper|elem|flags| part_bytes    |
    /// ```
    #[bytes(40)]
    pub struct PartFields {
        /// The group's.
        pub number: U64,
        /// Bytes of the whole collective.
        pub length: U64,
        /// Number of the collective in the group, from 0.
        pub sequence: U32,
        /// Number of the part, from 0.
        pub part: U32,
        /// As in the command.
        pub root: U32,
        /// Node of the group's home.
        pub home: U16,
        /// As in the command.
        pub label: U16,
        /// As in the command.
        pub collective: u8,
        /// As in the command.
        pub operator: u8,
        /// As in the command.
        pub element: u8,
        /// [`WANTS_RESULT`], [`HAS_BYTES`].
        pub flags: u8,
        /// Bytes of all parts but the last: [`is_part_length`].
        pub part_bytes: U32,
    }

    /// What [`GroupState`] has.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | number                            |
    ///   8  | part_bytes      | home   | rsvd   |
    /// ```
    #[bytes(16)]
    pub struct StateFields {
        /// The group's.
        pub number: U64,
        /// Bytes of a part: of FORMED at most, of START for all, of GREET zero.
        pub part_bytes: U32,
        /// Node of the group's home.
        pub home: U16,
        /// Zero.
        pub reserved: U16,
    }
}

/// Body of [`kind::COLLECTIVE_UP`] and [`kind::COLLECTIVE_DOWN`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct CollectivePart<const KIND: u8>(pub PartFields);

/// Body of [`kind::GROUP_FORMED`], [`kind::GROUP_START`] and [`kind::GROUP_GREET`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct GroupState<const KIND: u8>(pub StateFields);

const _: () = assert!(size_of::<PartFields>() <= BODY_BYTES);
const _: () = assert!(core::mem::offset_of!(CollectiveCommand, local_segment) == 56);
const _: () = assert!(core::mem::offset_of!(CollectiveCommand, label) == 62);

impl CommandBody for JoinGroupCommand {
    const OPCODE: u8 = Opcode::JoinGroup as u8;
}

impl CommandBody for LeaveGroupCommand {
    const OPCODE: u8 = Opcode::LeaveGroup as u8;
}

impl CommandBody for CollectiveCommand {
    const OPCODE: u8 = Opcode::Collective as u8;
}

/// Returns true if parts can have that length: a power of two from 64 bytes to a page, so whole
/// elements.
pub const fn is_part_length(bytes: u32) -> bool {
    bytes.is_power_of_two() && bytes >= 64 && bytes as usize <= crate::PAGE_SIZE
}

/// Returns true if a group can have that size, and that rank is in it.
const fn is_rank(rank: u32, size: u32) -> bool {
    size <= MAX_MEMBERS && rank < size
}

impl Body for GroupJoin {
    const KIND: u8 = kind::GROUP_JOIN;

    fn is_valid(&self) -> bool {
        is_rank(self.rank.get(), self.size.get())
    }
}

impl Body for GroupRefused {
    const KIND: u8 = kind::GROUP_REFUSED;
}

impl Body for GroupForm {
    const KIND: u8 = kind::GROUP_FORM;

    fn is_valid(&self) -> bool {
        let (size, members) = (self.size.get(), self.members.get());
        self.reserved.get() == 0 && size <= MAX_MEMBERS && members > 0 && members <= size
    }
}

impl Body for GroupEnd {
    const KIND: u8 = kind::GROUP_END;

    fn is_valid(&self) -> bool {
        self.reserved.get() == 0
    }
}

impl Body for GroupSeek {
    const KIND: u8 = kind::GROUP_SEEK;

    fn is_valid(&self) -> bool {
        self.reserved.iter().all(|word| word.get() == 0)
    }
}

impl<const KIND: u8> Body for CollectivePart<KIND> {
    const KIND: u8 = KIND;

    fn is_valid(&self) -> bool {
        let fields = &self.0;
        is_part_length(fields.part_bytes.get())
            && fields.flags & !(WANTS_RESULT | HAS_BYTES) == 0
            && fields.length.get() <= MAX_LENGTH
            && Collective::try_from(fields.collective).is_ok()
    }
}

impl<const KIND: u8> Body for GroupState<KIND> {
    const KIND: u8 = KIND;

    fn is_valid(&self) -> bool {
        self.0.reserved.get() == 0
    }
}
