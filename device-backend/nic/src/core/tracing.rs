//! The trace of a NIC ([`mod@crate::trace`]): which operations it shows, and the buffer for their
//! events.
//!
//! ```text
//!   begin ──► the caller's buffer ◄── push ── the NIC, while there is room; else: lost + 1
//!   take ───► the buffer goes, an empty one of the caller takes its place
//! ```
//! The engine's thread does both, so nothing is shared. A NIC that is not traced has no buffer.

use qnic_abi::wire::Frame;

use crate::ids::OperationId;
use crate::trace::{Event, Record, Scope, Taken, What};

/// The trace of a NIC.
#[derive(Debug, Default)]
pub(crate) struct Tracing {
    /// There is one: what tests this flag is looked at, or was slow before.
    pub(crate) on: bool,
    /// Operations whose running number is a multiple of it are shown. Not 0 while it is on.
    sample: u64,
    taken: Taken,
}

impl Tracing {
    /// Begins a trace in `buffer`, whose capacity is its bound. Returns false if there is one.
    pub(crate) fn begin(&mut self, sample: u32, buffer: Vec<Record>) -> bool {
        let begins = !self.on;
        if begins {
            self.on = true;
            self.sample = u64::from(sample.max(1));
            self.replace(buffer);
        }
        begins
    }

    /// What was kept since the last look; `buffer` is for what comes.
    pub(crate) fn take(&mut self, buffer: Vec<Record>) -> Taken {
        match self.on {
            true => self.replace(buffer),
            false => Taken::default(),
        }
    }

    /// Ends the trace, and returns what is left.
    pub(crate) fn end(&mut self) -> Taken {
        self.on = false;
        std::mem::take(&mut self.taken)
    }

    fn replace(&mut self, mut events: Vec<Record>) -> Taken {
        events.clear();
        std::mem::replace(&mut self.taken, Taken { events, lost: 0 })
    }

    /// Returns true if an operation is shown. What has no running number is none.
    pub(crate) fn shows(&self, id: OperationId) -> bool {
        self.on && id.running() != 0 && id.running() % self.sample == 0
    }

    /// Returns true if what belongs to a subject is shown.
    pub(crate) fn shows_subject(&self, subject: &Subject) -> bool {
        match subject.scope {
            Scope::Command => self.shows(OperationId(subject.number)),
            _ => self.on && subject.chosen % self.sample == 0,
        }
    }

    /// Keeps an event, if there is room.
    pub(crate) fn push(&mut self, event: Event) {
        let Taken { events, lost } = &mut self.taken;
        match events.len() < events.capacity() {
            true => events.push(event.into()),
            false => *lost += 1,
        }
    }
}

/// What a frame or a call belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) scope: Scope,
    /// Node that has given it its number.
    pub(crate) owner: u16,
    pub(crate) number: u64,
    /// What it is chosen by; 0 always is. A command is chosen by its running number.
    chosen: u64,
}

impl Subject {
    /// The command that a frame names.
    pub(crate) fn command(frame: &Frame, owner: u16) -> Self {
        Subject::always(Scope::Command, owner, frame.envelope.operation.get())
    }

    /// What is shown by its number.
    pub(crate) fn numbered(scope: Scope, owner: u16, number: u64) -> Self {
        Subject {
            chosen: number,
            ..Subject::always(scope, owner, number)
        }
    }

    /// What is shown whatever the sample.
    pub(crate) fn always(scope: Scope, owner: u16, number: u64) -> Self {
        Subject {
            scope,
            owner,
            number,
            chosen: 0,
        }
    }

    /// A collective, by its number in a group. Its number here is that of no other, unless the home forms
    /// two groups a multiple of 2^32 ns apart.
    pub(crate) fn collective(home: u16, group: u64, sequence: u32) -> Self {
        Subject {
            chosen: sequence.into(),
            ..Subject::always(
                Scope::Collective,
                home,
                group.rotate_left(32) ^ u64::from(sequence),
            )
        }
    }
}

impl Event {
    /// An event of a subject, without more.
    pub(crate) fn of(time: u64, node: u16, what: What, subject: &Subject) -> Self {
        Event {
            scope: subject.scope,
            requester: subject.owner,
            ..Event::own(time, node, what, OperationId(subject.number))
        }
    }

    /// An event of an operation at its requester, without more.
    pub(crate) fn own(time: u64, node: u16, what: What, id: OperationId) -> Self {
        Event {
            time,
            scope: Scope::Command,
            operation: id.0,
            what,
            at: node,
            requester: node,
            peer: node,
            port: 0,
            code: 0,
            depth: 0,
            bytes: 0,
            detail: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_abi::VniId;

    fn id(running: u64) -> OperationId {
        OperationId::new(running, VniId(3), 5)
    }

    fn event(time: u64) -> Event {
        Event::own(time, 1, What::Sent, id(1))
    }

    fn times(taken: &Taken) -> Vec<u64> {
        let times = taken
            .events
            .iter()
            .map(|event| Event::try_from(*event).unwrap().time);
        times.collect()
    }

    #[test]
    fn what_does_not_fit_is_counted_and_the_buffer_stays_as_large_as_it_was() {
        let mut tracing = Tracing::default();
        assert!(tracing.begin(1, Vec::with_capacity(2)));
        (0..5).for_each(|time| tracing.push(event(time)));
        let first = tracing.take(Vec::with_capacity(1));
        assert_eq!((times(&first), first.lost), (vec![0, 1], 3));
        assert_eq!(first.events.capacity(), 2);
        (5..7).for_each(|time| tracing.push(event(time)));
        // What the first had stays behind.
        let second = tracing.take(first.events);
        assert_eq!((times(&second), second.lost), (vec![5], 1));
        tracing.push(event(7));
        let last = tracing.end();
        assert_eq!((times(&last), last.lost), (vec![7], 0));
        assert_eq!(tracing.take(Vec::with_capacity(9)).events.capacity(), 0);
    }

    #[test]
    fn there_is_one_trace_at_a_time() {
        let mut tracing = Tracing::default();
        assert!(!tracing.on);
        assert!(tracing.begin(2, Vec::with_capacity(1)));
        assert!(!tracing.begin(1, Vec::with_capacity(1)));
        assert!(!tracing.shows(id(3)), "the first goes on");
        tracing.end();
        assert!(tracing.begin(1, Vec::new()));
        assert!(tracing.shows(id(3)));
    }

    #[test]
    fn every_nth_operation_is_shown_by_its_running_number() {
        let mut tracing = Tracing::default();
        assert!(!tracing.shows(id(3)), "there is no trace");
        tracing.begin(3, Vec::new());
        let shown: Vec<_> = (0..10)
            .filter(|number| tracing.shows(id(*number)))
            .collect();
        assert_eq!(shown, [3, 6, 9], "0 names no operation");
        tracing.end();
        assert!(!tracing.shows(id(3)));
        tracing.begin(0, Vec::new());
        assert!(tracing.shows(id(1)), "0 is taken for 1");
    }

    #[test]
    fn imports_and_collectives_are_shown_by_their_numbers_and_the_rest_always() {
        let mut tracing = Tracing::default();
        let spread = Subject::always(Scope::Spread, 1, 7);
        assert!(!tracing.shows_subject(&spread), "there is no trace");
        tracing.begin(3, Vec::new());
        let import = |number| Subject::numbered(Scope::Import, 1, number);
        let collective = |sequence| Subject::collective(1, 1 << 40 | 5, sequence);
        for number in 0..9 {
            let chosen = number % 3 == 0;
            assert_eq!(tracing.shows_subject(&import(number.into())), chosen);
            assert_eq!(tracing.shows_subject(&collective(number)), chosen);
        }
        assert!(tracing.shows_subject(&spread));
        assert_ne!(collective(1).number, collective(2).number);
        let other = Subject::collective(1, 1 << 40 | 6, 1);
        assert_ne!(collective(1).number, other.number);
    }
}
