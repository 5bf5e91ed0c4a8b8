//! Groups as their founders plan them: which processes are members, and what they call.
//!
//! The n-th collective of a group, and what each member gives to it, follow from the group's
//! seed. So members agree without a word, and the oracle knows each result beforehand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use qnic_abi::collective::{Called, Collective, Element, Operator};
use qnic_abi::Status;

use super::reduction::combine;
use crate::expected_bytes::Range;

const OPERATORS: [Operator; 7] = [
    Operator::Sum,
    Operator::Product,
    Operator::Minimum,
    Operator::Maximum,
    Operator::And,
    Operator::Or,
    Operator::Xor,
];

const ELEMENTS: [Element; 6] = [
    Element::U32,
    Element::U64,
    Element::I32,
    Element::I64,
    Element::F32,
    Element::F64,
];

/// Time limit of calls that is never reached: whatever breaks is noticed before, in nanoseconds.
pub(crate) const CALL_TIMEOUT: u64 = 8_000_000_000;

/// A process, as frames and completions name it; port zero: a node as a whole.
pub(crate) type Name = (u16, u16);

/// What a member calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) collective: Collective,
    pub(crate) reduction: Option<(Operator, Element)>,
    pub(crate) length: u64,
    pub(crate) root: u32,
    pub(crate) label: u16,
}

impl From<Shape> for Called {
    fn from(shape: Shape) -> Self {
        Called {
            collective: shape.collective,
            reduction: shape.reduction,
            length: shape.length,
            root: shape.root,
            label: shape.label,
        }
    }
}

/// Which member gives and which wants is written here again, and not taken from the NIC: it is what the NIC
/// is held against.
impl Shape {
    /// Returns true if a member has bytes to give.
    pub(crate) fn gives(&self, rank: u32) -> bool {
        match self.collective {
            Collective::Barrier => false,
            Collective::Broadcast => rank == self.root,
            Collective::Reduce | Collective::Allreduce => true,
        }
    }

    /// Returns true if a member gets bytes.
    pub(super) fn wants(&self, rank: u32) -> bool {
        match self.collective {
            Collective::Barrier => false,
            Collective::Broadcast => rank != self.root,
            Collective::Reduce => rank == self.root,
            Collective::Allreduce => true,
        }
    }
}

/// The join of a member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Join {
    pub(super) issued: u64,
    /// In nanoseconds.
    pub(super) timeout: u64,
    /// It presents another key or size.
    pub(super) wrong: bool,
    /// Its process may be in as many groups as it can be.
    pub(super) full: bool,
    pub(super) end: Option<Status>,
}

impl Join {
    /// `timeout` in nanoseconds.
    pub(crate) fn new(issued: u64, timeout: u64, wrong: bool) -> Self {
        Join {
            issued,
            timeout,
            wrong,
            full: false,
            end: None,
        }
    }
}

/// A call of a member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(super) issued: u64,
    /// In nanoseconds.
    pub(super) timeout: u64,
    pub(super) shape: Shape,
    /// Start and length in the memory of the process.
    pub(super) range: Range,
    /// As many of the member may be under way as there can be.
    pub(super) crowded: bool,
    /// It must be refused.
    pub(super) wrong: bool,
    pub(super) end: Option<Status>,
    /// It has ended well when its time was over: a NIC may have asked before what it waits for, and
    /// ends the group.
    pub(super) ended_late: bool,
}

impl Call {
    /// `timeout` in nanoseconds; its memory begins at `start`.
    pub(crate) fn new(issued: u64, timeout: u64, shape: Shape, start: u64) -> Self {
        Call {
            issued,
            timeout,
            shape,
            range: (start, shape.length),
            crowded: false,
            wrong: false,
            end: None,
            ended_late: false,
        }
    }

    /// Returns true if its time is over.
    pub(super) fn is_over(&self, now: u64) -> bool {
        self.issued + self.timeout <= now
    }

    /// Whether as many calls of its member may be under way as there can be.
    pub(crate) fn crowded(self, crowded: bool) -> Self {
        Call { crowded, ..self }
    }
}

/// A member.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub(super) slot: usize,
    pub(super) name: Name,
    pub(super) join: Option<Join>,
    pub(super) calls: Vec<Call>,
    /// It leaves, or has, or its process has ended.
    pub(super) gone: bool,
    /// Its process has ended.
    pub(super) dead: bool,
    /// It has sent multicasts.
    pub(super) sends: bool,
    /// Memory of its calls was revoked, or a page of it could not be brought in.
    pub(super) revoked: bool,
    pub(super) lacked: bool,
    /// The last call for which its worker had no memory at first, as calls of other groups held it.
    pub(super) without_room: Option<usize>,
}

impl Seat {
    /// Returns true if it has completed that call, and ended it well.
    pub(super) fn has_done(&self, number: usize) -> bool {
        let call = self.calls.get(number);
        call.is_some_and(|call| call.end == Some(Status::Ok))
    }

    /// Returns true if it does not do its part for want of memory, or did not in time.
    pub(super) fn starves(&self) -> bool {
        self.without_room.is_some_and(|call| !self.has_done(call))
    }

    /// Returns true if a call of it may be refused.
    pub(super) fn has(&self, refused: impl Fn(&Call) -> bool) -> bool {
        self.calls.iter().any(refused)
    }

    /// Returns true if the time of something that it waits for is over. A call that may take
    /// longer than anything stays broken has no such excuse.
    pub(super) fn is_late(&self, now: u64) -> bool {
        self.joins_late(now) || self.late_calls(now).next().is_some()
    }

    /// Returns true if the time of its join is over.
    pub(super) fn joins_late(&self, now: u64) -> bool {
        let join = self.join.filter(|join| join.end != Some(Status::Ok));
        join.is_some_and(|join| join.issued + join.timeout <= now)
    }

    /// The numbers of its calls whose time is over.
    pub(super) fn late_calls(&self, now: u64) -> impl Iterator<Item = usize> + '_ {
        let open = self.calls.iter().enumerate();
        let open = open.filter(|(_, call)| call.end != Some(Status::Ok) || call.ended_late);
        let short = open.filter(|(_, call)| call.timeout < CALL_TIMEOUT);
        let late = short.filter(move |(_, call)| call.is_over(now));
        late.map(|(number, _)| number)
    }
}

/// What members get, by number of the call, once it is known.
#[derive(Default)]
struct Results(BTreeMap<u32, Arc<[u8]>>);

impl fmt::Debug for Results {
    /// Without the bytes: the message of a failure is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lengths = self.0.iter().map(|(number, bytes)| (number, bytes.len()));
        f.debug_map().entries(lengths).finish()
    }
}

/// A group.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: u64,
    pub(super) key: u64,
    seed: u64,
    /// Calls of each member.
    pub(super) calls: u32,
    /// By rank; the first is the home.
    pub(super) seats: Vec<Seat>,
    /// A member has called something else than its script has.
    pub(super) mistaken: bool,
    /// Nodes of members between which a route was disturbed.
    pub(super) disturbed: BTreeSet<usize>,
    results: Results,
}

impl Plan {
    pub(super) fn new(name: u64, seed: u64, members: impl Iterator<Item = (usize, Name)>) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let seat = |(slot, name)| Seat {
            slot,
            name,
            join: None,
            calls: Vec::new(),
            gone: false,
            dead: false,
            sends: false,
            revoked: false,
            lacked: false,
            without_room: None,
        };
        Plan {
            name,
            key: random.u64(..),
            seed,
            calls: random.u32(1..=10),
            seats: members.map(seat).collect(),
            mistaken: false,
            disturbed: BTreeSet::new(),
            results: Results::default(),
        }
    }

    /// Whether members have called these two as the same collective.
    pub(super) fn has_both(&self, reason: Called, others: Called) -> bool {
        let has = |number: usize, called: Called| {
            let calls = self.seats.iter().filter_map(|seat| seat.calls.get(number));
            calls
                .map(|call| Called::from(call.shape))
                .any(|it| it == called)
        };
        let mut numbers = 0..self.calls as usize;
        reason != others && numbers.any(|number| has(number, reason) && has(number, others))
    }

    pub(super) fn has_node(&self, node: usize) -> bool {
        let mut seats = self.seats.iter();
        seats.any(|seat| usize::from(seat.name.0) == node)
    }

    /// Random numbers of a call: the same each time.
    fn random(&self, number: u32, what: u64) -> fastrand::Rng {
        let mixed =
            self.seed ^ (u64::from(number) << 20 | what).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        fastrand::Rng::with_seed(mixed)
    }

    /// What all members call as the n-th, from zero. The last is a barrier mostly.
    pub(super) fn shape(&self, number: u32) -> Shape {
        let mut random = self.random(number, 0);
        let last = number + 1 == self.calls && random.u8(..) < 200;
        let collective = match random.u8(0..8) {
            _ if last => Collective::Barrier,
            0 | 1 => Collective::Barrier,
            2 | 3 => Collective::Broadcast,
            4 => Collective::Reduce,
            _ => Collective::Allreduce,
        };
        let size = self.seats.len() as u32;
        let root = match collective {
            Collective::Broadcast | Collective::Reduce => random.u32(0..size),
            Collective::Barrier | Collective::Allreduce => 0,
        };
        let length = match random.u8(0..20) {
            0 => 0,
            1..=8 => random.u64(1..300),
            9..=14 => random.u64(1..9000),
            15..=18 => random.u64(4000..30_000),
            _ => random.u64(30_000..90_000),
        };
        let (reduction, length) = match collective {
            Collective::Barrier => (None, 0),
            Collective::Broadcast => (None, length),
            Collective::Reduce | Collective::Allreduce => {
                let element = ELEMENTS[random.usize(0..ELEMENTS.len())];
                let float = matches!(element, Element::F32 | Element::F64);
                let operators = if float { 4 } else { OPERATORS.len() };
                let operator = OPERATORS[random.usize(0..operators)];
                let length = length.next_multiple_of(element.bytes());
                (Some((operator, element)), length)
            }
        };
        Shape {
            collective,
            reduction,
            length,
            root,
            label: random.u16(0..4),
        }
    }

    /// What a member gives.
    pub(super) fn given(&self, number: u32, rank: u32) -> Vec<u8> {
        let shape = self.shape(number);
        let mut random = self.random(number, 1 + u64::from(rank));
        let mut bytes = vec![0; shape.length as usize];
        // Numbers of which no product is too large, and no sum depends on nothing but its order.
        let mut float = |product: bool| {
            let sign = if random.bool() { 1.0 } else { -1.0 };
            let scale = if product { 0 } else { random.i32(-18..18) };
            sign * (0.75 + random.f64() / 2.0) * 2f64.powi(scale)
        };
        match shape.reduction {
            Some((operator, Element::F32)) => {
                for bytes in bytes.chunks_exact_mut(4) {
                    let value = float(operator == Operator::Product) as f32;
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
            }
            Some((operator, Element::F64)) => {
                for bytes in bytes.chunks_exact_mut(8) {
                    let value = float(operator == Operator::Product);
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
            }
            _ => random.fill(&mut bytes),
        }
        bytes
    }

    /// What a member that gets something gets, bit by bit: floats are reduced in the order of
    /// the tree.
    pub(super) fn result(&mut self, number: u32) -> Arc<[u8]> {
        if let Some(known) = self.results.0.get(&number) {
            return known.clone();
        }
        let shape = self.shape(number);
        let bytes: Arc<[u8]> = match shape.reduction {
            None => self.given(number, shape.root).into(),
            Some(reduction) => {
                let mut nodes = Vec::new();
                for seat in &self.seats {
                    if !nodes.contains(&seat.name.0) {
                        nodes.push(seat.name.0);
                    }
                }
                self.reduce(number, reduction, &nodes, 0).into()
            }
        };
        self.results.0.insert(number, bytes.clone());
        bytes
    }

    /// Reduces what a node and those below it give: its members by rank, then the nodes below. A
    /// node is below the one whose place has one bit less, the lowest.
    fn reduce(
        &self,
        number: u32,
        (operator, element): (Operator, Element),
        nodes: &[u16],
        place: usize,
    ) -> Vec<u8> {
        let ranks = self.seats.iter().zip(0..);
        let here = ranks.filter(|(seat, _)| seat.name.0 == nodes[place]);
        let members = here.map(|(_, rank)| self.given(number, rank));
        let below = (place + 1..nodes.len()).filter(|other| other & (other - 1) == place);
        let below = below.map(|other| self.reduce(number, (operator, element), nodes, other));
        let all = members.chain(below);
        let reduced = all.reduce(|left, right| combine(operator, element, &left, &right));
        reduced.expect("a node has members")
    }
}
