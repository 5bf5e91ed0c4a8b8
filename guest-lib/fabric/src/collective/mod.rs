//! Collectives: what each moves, and how the NICs carry it (docs/libfabric.md).
//!
//! ```text
//!   the program's elements ── given ─► array ── parts ─► wire ─► the NICs ─► wire ── taken ─► its elements
//! ```
//! Each is one operation of the NICs on an array that the program sees in parts, or not at all:
//!
//! | collective | the array is | operation of the NICs |
//! |---|---|---|
//! | barrier | empty | barrier |
//! | broadcast, scatter | that of the root | broadcast |
//! | alltoall | that of each member in turn | a broadcast for each |
//! | reduce, allreduce | the reduction of those of all | reduce, allreduce |
//! | reduce_scatter | the same | allreduce |
//! | gather, allgather | those of all, one behind the other | reduce, allreduce by Or: zeros elsewhere |
//!
//! The NICs reduce integers and floats of 32 and 64 bits. Shorter integers travel as 32 bits, truths as 0 and 1.
//!
//! # Invariants
//! - Members that call the same collective with the same count and type make the same parts, in the same order.
//! - Part and length are whole elements.
//! - Members that call anything else have other labels, so their collectives fail.

mod label;

use std::ffi::c_void;
use std::ops::Range;

use qnic::group::{Element, Operator};

use crate::errno::{Errno, Result, INVALID, TOO_LONG};
use crate::info::offer::MESSAGE_MAX;
use crate::memory::Memory;
use crate::pointers::Out;
use crate::sys;

pub(crate) use label::explain;
use label::Label;

/// Longest part in bytes of the program. It is a multiple of each type.
pub(crate) const PART: usize = 512 << 10;

/// There is no such operation here.
pub(crate) const NO_COLLECTIVE: Errno = Errno(libc::EOPNOTSUPP);

/// Bytes of the elements of each type, by number: integers, floats, complex and long ones, integers of 128 bits, short
/// floats.
const SIZES: [usize; 20] = [
    1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16, 16, 32, 16, 16, 2, 2, 1, 1,
];

/// A collective, by its number in libfabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Barrier,
    Broadcast,
    Alltoall,
    Allreduce,
    Allgather,
    ReduceScatter,
    Reduce,
    Scatter,
    Gather,
}

impl Kind {
    /// The one of this number.
    pub(crate) fn new(number: u32) -> Option<Self> {
        const ALL: [Kind; 9] = [
            Kind::Barrier,
            Kind::Broadcast,
            Kind::Alltoall,
            Kind::Allreduce,
            Kind::Allgather,
            Kind::ReduceScatter,
            Kind::Reduce,
            Kind::Scatter,
            Kind::Gather,
        ];
        ALL.into_iter().find(|kind| *kind as u32 == number)
    }

    /// It applies an operation to the elements.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Kind::Allreduce | Kind::ReduceScatter | Kind::Reduce)
    }

    pub(crate) fn has_root(self) -> bool {
        let rooted = [Kind::Broadcast, Kind::Reduce, Kind::Scatter, Kind::Gather];
        rooted.contains(&self)
    }
}

/// How elements travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    /// As they are.
    Bytes,
    /// The same, filled up to words of 32 bits.
    Words,
    /// Integers of so many bytes, with sign or without, as 32 bits.
    Short(usize, bool),
    /// Elements of so many bytes as 0 or 1, in 32 bits: integers or floats.
    Truths(usize, bool),
}

/// What the NICs do with elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reduction {
    pub(crate) element: Element,
    pub(crate) operator: Operator,
    wire: Wire,
}

/// Bytes of an element of a type.
///
/// # Errors
/// [`NO_COLLECTIVE`]: there is no such type here.
pub(crate) fn size_of_type(datatype: u32) -> Result<usize> {
    let size = usize::try_from(datatype).ok();
    let size = size.and_then(|number| SIZES.get(number));
    size.copied().ok_or(NO_COLLECTIVE)
}

impl Reduction {
    /// An operation on elements of a type, by their numbers in libfabric.
    ///
    /// # Errors
    /// [`NO_COLLECTIVE`]: the operation has no meaning for the type, or the NICs do not know it.
    pub(crate) fn new(datatype: u32, operation: u32) -> Result<Self> {
        let size = size_of_type(datatype)?;
        let (is_float, is_signed) = (datatype >= 8, datatype % 2 == 0);
        if datatype > 9 {
            return Err(NO_COLLECTIVE);
        }
        let operator = match operation {
            sys::SUM => Operator::Sum,
            sys::PROD => Operator::Product,
            sys::MIN => Operator::Minimum,
            sys::MAX => Operator::Maximum,
            sys::LAND | sys::BAND => Operator::And,
            sys::LOR | sys::BOR => Operator::Or,
            sys::LXOR | sys::BXOR => Operator::Xor,
            _ => return Err(NO_COLLECTIVE),
        };
        let (element, wire) = match operation {
            sys::LAND | sys::LOR | sys::LXOR => (Element::U32, Wire::Truths(size, is_float)),
            sys::BAND | sys::BOR | sys::BXOR if is_float => return Err(NO_COLLECTIVE),
            sys::BAND | sys::BOR | sys::BXOR => (Element::U32, Wire::Words),
            _ => match (size, is_float, is_signed) {
                (4, true, _) => (Element::F32, Wire::Bytes),
                (_, true, _) => (Element::F64, Wire::Bytes),
                (8, _, true) => (Element::I64, Wire::Bytes),
                (8, _, false) => (Element::U64, Wire::Bytes),
                (4, _, true) => (Element::I32, Wire::Bytes),
                (4, _, false) => (Element::U32, Wire::Bytes),
                (_, _, true) => (Element::I32, Wire::Short(size, true)),
                (_, _, false) => (Element::U32, Wire::Short(size, false)),
            },
        };
        Ok(Reduction {
            element,
            operator,
            wire,
        })
    }

    /// Puts arrays together that are zero where others are not.
    const JOIN: Self = Reduction {
        element: Element::U32,
        operator: Operator::Or,
        wire: Wire::Words,
    };
}

impl Wire {
    /// Bytes of so many bytes of the program.
    fn length(self, length: usize) -> usize {
        match self {
            Wire::Bytes => length,
            Wire::Words => length.next_multiple_of(4),
            Wire::Short(size, _) | Wire::Truths(size, _) => length / size * 4,
        }
    }

    fn encode(self, mut bytes: Vec<u8>) -> Vec<u8> {
        let word = |element: &[u8]| -> [u8; 4] {
            match self {
                Wire::Truths(_, is_float) => u32::from(is_true(element, is_float)).to_le_bytes(),
                Wire::Short(_, is_signed) => {
                    let is_negative = element.last().is_some_and(|last| last & 0x80 != 0);
                    let mut word = [if is_signed && is_negative { 0xff } else { 0 }; 4];
                    word.iter_mut()
                        .zip(element)
                        .for_each(|(to, from)| *to = *from);
                    word
                }
                Wire::Bytes | Wire::Words => [0; 4],
            }
        };
        match self {
            Wire::Bytes | Wire::Words => {
                bytes.resize(self.length(bytes.len()), 0);
                bytes
            }
            Wire::Short(size, _) | Wire::Truths(size, _) => {
                bytes.chunks_exact(size).flat_map(word).collect()
            }
        }
    }

    /// So many bytes of the program.
    fn decode(self, mut wire: Vec<u8>, length: usize) -> Vec<u8> {
        match self {
            Wire::Bytes | Wire::Words => {
                wire.truncate(length);
                wire
            }
            Wire::Short(size, _) => {
                let elements = wire.chunks_exact(4);
                elements.flat_map(|word| &word[..size]).copied().collect()
            }
            Wire::Truths(size, is_float) => {
                let elements = wire.chunks_exact(4);
                elements
                    .flat_map(|word| truth(size, is_float, word[0] != 0))
                    .collect()
            }
        }
    }
}

/// An element is not zero.
fn is_true(element: &[u8], is_float: bool) -> bool {
    match (is_float, element) {
        (true, [a, b, c, d]) => f32::from_le_bytes([*a, *b, *c, *d]) != 0.0,
        (true, [a, b, c, d, e, f, g, h]) => {
            f64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]) != 0.0
        }
        _ => element.iter().any(|byte| *byte != 0),
    }
}

/// The element that is 1 or 0.
fn truth(size: usize, is_float: bool, is_true: bool) -> Vec<u8> {
    let one = match (is_float, size) {
        (true, 4) => 1f32.to_le_bytes().to_vec(),
        (true, _) => 1f64.to_le_bytes().to_vec(),
        _ => 1u64.to_le_bytes()[..size].to_vec(),
    };
    if is_true {
        one
    } else {
        vec![0; size]
    }
}

/// What the NICs do with each part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carried {
    Barrier,
    /// The bytes of this rank go to all.
    Broadcast(u32),
    /// The reduction goes to this rank, or to all.
    Reduce(Reduction, Option<u32>),
}

/// What a program calls for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) kind: Kind,
    pub(crate) datatype: u32,
    /// Of those that reduce.
    pub(crate) operation: u32,
    /// Elements: of alltoall, scatter, gather, allgather and reduce_scatter, for each member.
    pub(crate) count: usize,
    pub(crate) given: Out<c_void>,
    pub(crate) taken: Out<c_void>,
}

/// Place of a process among the members of a group; and the rank of the root, if there is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) root: Option<u32>,
}

/// Memory of the program that is a range of the array.
#[derive(Debug)]
struct Share {
    memory: Memory,
    range: Range<usize>,
}

/// A collective of one member.
#[derive(Debug)]
pub(crate) struct Plan {
    kind: Kind,
    label: Label,
    standing: Standing,
    reduction: Option<Reduction>,
    /// Bytes of the array, and of what it has for each member.
    length: usize,
    slice: usize,
    given: Option<Share>,
    taken: Option<Share>,
}

impl Plan {
    /// What a member does that leaves: a barrier that is no other one's.
    pub(crate) fn last(standing: Standing) -> Self {
        Self::barrier(standing, Label::LEAVE)
    }

    fn barrier(standing: Standing, label: Label) -> Self {
        Plan {
            kind: Kind::Barrier,
            label,
            standing,
            reduction: None,
            length: 0,
            slice: 0,
            given: None,
            taken: None,
        }
    }

    /// What a member does.
    ///
    /// # Errors
    /// [`NO_COLLECTIVE`]; [`TOO_LONG`]; [`INVALID`]: memory at null, or no root.
    pub(crate) fn new(ask: &Ask, standing: Standing) -> Result<Self> {
        let Standing { rank, size, root } = standing;
        if ask.kind == Kind::Barrier {
            return Ok(Self::barrier(standing, Label::BARRIER));
        }
        if ask.kind.has_root() && root.is_none() {
            return Err(INVALID);
        }
        let reduction = match ask.kind {
            Kind::Allgather | Kind::Gather => Some(Reduction::JOIN),
            kind if kind.reduces() => Some(Reduction::new(ask.datatype, ask.operation)?),
            _ => None,
        };
        let slice = ask.count.checked_mul(size_of_type(ask.datatype)?);
        let slice = slice.filter(|it| *it <= MESSAGE_MAX).ok_or(TOO_LONG)?;
        let has_slices = !matches!(
            ask.kind,
            Kind::Broadcast | Kind::Reduce | Kind::Allreduce | Kind::Barrier
        );
        let length = if has_slices {
            slice.checked_mul(size as usize)
        } else {
            Some(slice)
        };
        let length = length.ok_or(TOO_LONG)?;
        let own = rank as usize * slice..(rank as usize + 1) * slice;
        let (all, is_root) = (0..length, root == Some(rank));
        let (given, taken) = match ask.kind {
            Kind::Barrier => (None, None),
            Kind::Broadcast if is_root => (Some(all), None),
            Kind::Broadcast => (None, Some(all)),
            Kind::Scatter => (is_root.then_some(all), Some(own)),
            Kind::Alltoall | Kind::ReduceScatter => (Some(all), Some(own)),
            Kind::Allreduce => (Some(all.clone()), Some(all)),
            Kind::Reduce => (Some(all.clone()), is_root.then_some(all)),
            Kind::Allgather => (Some(own), Some(all)),
            Kind::Gather => (Some(own), is_root.then_some(all)),
        };
        let into = if ask.kind == Kind::Broadcast {
            ask.given
        } else {
            ask.taken
        };
        // What each member has for this one stands behind the other.
        let room = if ask.kind == Kind::Alltoall {
            length
        } else {
            0
        };
        let share = |base, range: Range<usize>, room: usize| -> Result<Share> {
            let memory = Memory::one(base, range.len().max(room))?;
            Ok(Share { memory, range })
        };
        Ok(Plan {
            kind: ask.kind,
            label: Label::new(ask),
            standing,
            reduction,
            length,
            slice,
            given: given.map(|range| share(ask.given, range, 0)).transpose()?,
            taken: taken.map(|range| share(into, range, room)).transpose()?,
        })
    }

    /// How many operations of the NICs it takes.
    pub(crate) fn parts(&self) -> usize {
        self.parts_of_round() * self.rounds()
    }

    /// What the NICs do with a part.
    pub(crate) fn way(&self, part: usize) -> Carried {
        let root = self.standing.root;
        match self.reduction {
            None if self.kind == Kind::Barrier => Carried::Barrier,
            None if self.kind == Kind::Alltoall => Carried::Broadcast(self.round(part) as u32),
            None => Carried::Broadcast(root.unwrap_or(0)),
            Some(reduction) => Carried::Reduce(reduction, root.filter(|_| self.kind.has_root())),
        }
    }

    /// What the NICs compare of it, beside the way.
    pub(crate) fn label(&self, part: usize) -> u16 {
        self.label.of_part(part, self.parts())
    }

    /// Bytes of a part on the wire.
    pub(crate) fn wire_length(&self, part: usize) -> usize {
        self.wire().length(self.range(part).len())
    }

    /// What this member gives of a part; `None`: nothing.
    ///
    /// # Errors
    /// Those of [`Memory::read`]
    pub(crate) fn give(&self, part: usize) -> Result<Option<Vec<u8>>> {
        let range = self.range(part);
        if matches!(self.way(part), Carried::Broadcast(root) if root != self.standing.rank) {
            return Ok(None);
        }
        let mut bytes = vec![0; range.len()];
        if let Some(given) = &self.given {
            if let Some((at, place)) = common(&range, &given.range) {
                given.memory.read(at, &mut bytes[place])?;
            }
        }
        Ok(Some(self.wire().encode(bytes)))
    }

    /// Whether this member looks at the result of a part.
    pub(crate) fn takes(&self, part: usize) -> bool {
        let range = self.range(part);
        let taken = self.taken.as_ref();
        taken.is_some_and(|taken| common(&range, &taken.range).is_some())
    }

    /// Puts the result of a part into the program's memory.
    ///
    /// # Errors
    /// Those of [`Memory::write`]
    pub(crate) fn take(&self, part: usize, wire: Vec<u8>) -> Result<()> {
        let range = self.range(part);
        let Some(taken) = &self.taken else {
            return Ok(());
        };
        let Some((at, place)) = common(&range, &taken.range) else {
            return Ok(());
        };
        let bytes = self.wire().decode(wire, range.len());
        let bytes = bytes.get(place).ok_or(INVALID)?;
        taken
            .memory
            .write(self.round(part) * self.slice + at, bytes)
    }

    fn wire(&self) -> Wire {
        self.reduction.map_or(Wire::Bytes, |it| it.wire)
    }

    /// How often the array goes: once, or once for each member.
    fn rounds(&self) -> usize {
        match self.kind {
            Kind::Alltoall => self.standing.size as usize,
            _ => 1,
        }
    }

    fn parts_of_round(&self) -> usize {
        self.length.div_ceil(PART).max(1)
    }

    fn round(&self, part: usize) -> usize {
        part / self.parts_of_round()
    }

    /// Where a part stands in the array.
    fn range(&self, part: usize) -> Range<usize> {
        let begin = part % self.parts_of_round() * PART;
        begin..(begin + PART).min(self.length)
    }
}

/// What two ranges have in common: where it begins in the second one, and its place in the first one.
fn common(part: &Range<usize>, share: &Range<usize>) -> Option<(usize, Range<usize>)> {
    let (begin, end) = (part.start.max(share.start), part.end.min(share.end));
    (begin < end).then(|| (begin - share.start, begin - part.start..end - part.start))
}

#[cfg(test)]
mod tests;
