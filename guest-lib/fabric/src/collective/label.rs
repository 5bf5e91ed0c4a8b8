//! What members call, as the NICs compare it.
//!
//! ```text
//!   bit 15 | 14    | 9 … 13    | 4 … 8    | 0 … 3
//!     last | first | operation | datatype | 1 + kind; 15: a member leaves
//! ```
//! `first` and `last` are set on the first and the last part of a collective: so parts of one with many are not taken
//! for those of several. Operation and datatype are zero unless elements are reduced: of the others, only bytes count.

use qnic::group::{Called, Difference};

use super::{Ask, Kind};

const FIRST: u16 = 1 << 14;
const LAST: u16 = 1 << 15;
const LEAVE: u16 = 15;

/// What one member calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(u16);

impl Label {
    /// The last barrier of a member that leaves.
    pub(super) const LEAVE: Label = Label(LEAVE);
    /// A barrier of the program.
    pub(super) const BARRIER: Label = Label(1 + Kind::Barrier as u16);

    /// Of what a program asks for, which is known here: numbers of types and operations are below 32.
    pub(super) fn new(ask: &Ask) -> Self {
        let (datatype, operation) = match ask.kind.reduces() {
            true => (ask.datatype as u16, ask.operation as u16),
            false => (0, 0),
        };
        let kind = 1 + ask.kind as u16;
        Label(kind | (datatype & 31) << 4 | (operation & 31) << 9)
    }

    /// That of a part.
    pub(super) fn of_part(self, part: usize, parts: usize) -> u16 {
        let Label(label) = self;
        let first = if part == 0 { FIRST } else { 0 };
        let last = if part + 1 == parts { LAST } else { 0 };
        label | first | last
    }
}

/// What two members have called, in words of libfabric.
pub(crate) fn explain(difference: &Difference) -> String {
    let say = |called: &Called| {
        let label = called.label;
        let kind = u32::from(label & 15);
        let name = match kind {
            15 => "a last barrier, as its group was closed".to_owned(),
            0 => "nothing of libfabric".to_owned(),
            kind => Kind::new(kind - 1).map_or("?".to_owned(), |kind| format!("{kind:?}")),
        };
        let (datatype, operation) = (label >> 4 & 31, label >> 9 & 31);
        let part = match label & (FIRST | LAST) {
            FIRST => ", the first part",
            LAST => ", the last part",
            0 => ", a part",
            _ => "",
        };
        let length = called.length;
        format!("{name} ({length} bytes{part}, datatype {datatype}, operation {operation})")
    };
    let (reason, others) = (say(&difference.reason), say(&difference.others));
    format!("members call different collectives: one {reason}, others {others}; call the same in the same order")
}

#[cfg(test)]
mod tests {
    use super::super::{Out, Reduction};
    use super::*;
    use std::collections::HashSet;

    /// Whatever is carried by one operation of the NICs; parts, too.
    #[test]
    fn no_two_collectives_have_one_label() {
        let ask = |number, datatype, operation| Ask {
            kind: Kind::new(number).unwrap(),
            datatype,
            operation,
            count: 1,
            given: Out::NULL,
            taken: Out::NULL,
        };
        let kinds = (0..9).flat_map(|kind| (0..10).map(move |datatype| (kind, datatype)));
        let asks = kinds.flat_map(|(kind, datatype)| (0..32).map(move |it| (kind, datatype, it)));
        let asks = asks.filter(|(_, datatype, it)| Reduction::new(*datatype, *it).is_ok());
        let asks = asks.map(|(kind, datatype, operation)| ask(kind, datatype, operation));
        let mut seen = HashSet::from([Label::LEAVE.of_part(0, 1)]);
        let mut known = HashSet::new();
        for ask in asks {
            let what = match ask.kind.reduces() {
                true => (ask.kind as u32, ask.datatype, ask.operation),
                false => (ask.kind as u32, 0, 0),
            };
            let label = Label::new(&ask);
            let of_parts =
                [(0, 1), (0, 3), (1, 3), (2, 3)].map(|(part, parts)| label.of_part(part, parts));
            let is_new = known.insert(what);
            let fresh = of_parts.map(|label| seen.insert(label));
            assert_eq!(fresh, [is_new; 4], "{what:?}");
        }
        assert!(seen.contains(&Label::BARRIER.of_part(0, 1)));
    }
}
