//! Operations that are no commands: calls of processes, and the frames that NICs send for them.
//!
//! ```text
//!   member of a    call ▒▒ gathers ▒▒│▒▒ waits for the result ▒▒│▒ delivers ▒
//!                                    └─ CollectiveUp ─┐      ┌─ CollectiveDown
//!   member of b (root)    call ▒▒▒▒▒▒▒▒▒▒ gathers ▒▒▒▒▒▒▒▒▒▒▒│▒ delivers ▒
//! ```
//! An import, a join and a command about a name have one call; a collective has one of each member; a
//! frame that spreads names has none.
//!
//! # Invariants
//! - A call ends once: with the first end of its process after its beginning.
//! - A frame that was sent is matched with one that came later, between the same nodes and of the same
//!   kind; those of one kind come in their order. Each is matched once.

use std::collections::{HashMap, VecDeque};

use qnic_abi::collective::kind::{COLLECTIVE_DOWN, COLLECTIVE_UP};
use qnic_nic::trace::{Event, Scope, What};

use crate::trace::names::{self, Nodes};
use crate::trace::operations::{wait, Call, Operation, SeenFrame, SentFrame, PAGES};

impl Operation {
    /// Adds an event of an operation that is no command.
    pub(crate) fn add_shared(&mut self, event: &Event, nodes: &Nodes) {
        match event.what {
            What::Fetched => {
                let name = names::operation(event, nodes);
                if event.scope != Scope::Group {
                    self.name.clone_from(&name);
                }
                self.calls.push(Call {
                    name,
                    at: event.at,
                    port: event.port,
                    fetched: event.time,
                    ended: None,
                    status: 0,
                    waits: Vec::new(),
                });
            }
            What::Ended => {
                if let Some(call) = self.open_call(event) {
                    call.ended = Some(event.time);
                    call.status = event.code;
                }
            }
            What::Waits | What::Resumed => {
                if let Some(call) = self.open_call(event) {
                    wait(
                        &mut call.waits,
                        PAGES,
                        event.time,
                        event.what == What::Waits,
                    );
                }
            }
            What::Sent => self.sends.push(SentFrame {
                at: event.at,
                to: event.peer,
                kind: event.code,
                bytes: event.bytes,
                time: event.time,
            }),
            What::Delivered => self.frames.push(SeenFrame {
                at: event.at,
                from: event.peer,
                kind: event.code,
                bytes: event.bytes,
                received: event.detail.min(event.time),
                done: Some(event.time),
                refused: None,
                waits: Vec::new(),
            }),
            What::Resent => self.marks.push(*event),
            _ => {}
        }
    }

    /// The call that the process of an event has open. A process that has ended has no port any
    /// more.
    fn open_call(&mut self, event: &Event) -> Option<&mut Call> {
        let is_of = |call: &&mut Call| {
            let same = call.port == event.port || event.port == 0;
            call.at == event.at && same && call.ended.is_none()
        };
        self.calls.iter_mut().rfind(is_of)
    }

    /// The stages of a call of a collective, each from the end of the one before: its NIC has the
    /// values from below in the tree, has the result, and has given it to its members. Empty for
    /// calls that are not of a collective.
    pub(crate) fn call_stages(&self, call: &Call) -> Vec<(&'static str, u64, u64)> {
        let (up, down) = (u32::from(COLLECTIVE_UP), u32::from(COLLECTIVE_DOWN));
        let went = |kind| {
            let mut sends = self.sends.iter();
            let sent = sends.find(|sent| sent.at == call.at && sent.kind == kind);
            sent.map(|sent| sent.time)
        };
        let mut frames = self.frames.iter();
        let came = frames.find(|frame| frame.at == call.at && frame.kind == down);
        let came = came.map(|frame| frame.received);
        let ends = match (went(up), went(down)) {
            (Some(up), _) => vec![("gathers", Some(up)), ("waits for the result", came)],
            (None, Some(down)) => vec![("gathers", Some(down))],
            (None, None) => return Vec::new(),
        };
        let mut from = call.fetched;
        let last = ("delivers", call.ended);
        let mut stages = Vec::new();
        for (name, end) in ends.into_iter().chain([last]) {
            let Some(end) = end else {
                break;
            };
            let end = end.max(from).min(call.ended.unwrap_or(u64::MAX).max(from));
            stages.push((name, from, end));
            from = end;
        }
        stages
    }

    /// For each frame that was sent, the one that came.
    pub(crate) fn received(&self) -> Vec<Option<usize>> {
        let mut came: HashMap<_, VecDeque<usize>> = HashMap::new();
        for (place, frame) in self.frames.iter().enumerate() {
            let ends = (frame.from, frame.at, frame.kind);
            came.entry(ends).or_default().push_back(place);
        }
        let sends = self.sends.iter();
        sends
            .map(|sent| {
                let frames = came.get_mut(&(sent.at, sent.to, sent.kind))?;
                while let Some(place) = frames.pop_front() {
                    if self.frames[place].received >= sent.time {
                        return Some(place);
                    }
                }
                None
            })
            .collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::trace::collect::Collected;
    use crate::trace::operations::tests::{collected, event};
    use crate::trace::operations::Operations;
    use qnic_abi::collective::Collective;
    use qnic_abi::Status;
    use qnic_nic::trace::CALL;

    fn shared(scope: Scope, event: Event) -> Event {
        Event { scope, ..event }
    }

    /// A barrier of a process of each of two nodes; the second one is the root.
    pub(crate) fn barrier() -> Collected {
        let of = |time, at, what| Event {
            requester: 1,
            ..shared(Scope::Collective, event(time, at, what))
        };
        let fetched = |time, at| Event {
            code: CALL | Collective::Barrier as u32,
            ..of(time, at, What::Fetched)
        };
        let frame = |time, at, what, kind: u8, detail| Event {
            code: kind.into(),
            detail,
            ..of(time, at, what)
        };
        collected(vec![
            fetched(100, 0),
            frame(110, 0, What::Sent, COLLECTIVE_UP, 0),
            frame(131, 1, What::Delivered, COLLECTIVE_UP, 130),
            fetched(200, 1),
            of(205, 1, What::Ended),
            frame(210, 1, What::Sent, COLLECTIVE_DOWN, 0),
            frame(231, 0, What::Delivered, COLLECTIVE_DOWN, 230),
            of(240, 0, What::Ended),
        ])
    }

    #[test]
    fn what_members_call_becomes_one_collective_with_stages() {
        let operations = Operations::of(&barrier());
        let [operation] = &operations.all[..] else {
            panic!("{operations:?}");
        };
        assert_eq!(operation.name, "Barrier 0");
        let [first, root] = &operation.calls[..] else {
            panic!("{operation:?}");
        };
        let stages = [
            ("gathers", 100, 110),
            ("waits for the result", 110, 230),
            ("delivers", 230, 240),
        ];
        assert_eq!(operation.call_stages(first), stages);
        assert_eq!((first.at, first.ended), (0, Some(240)));
        // Its call ended before its frame went.
        let stages = [("gathers", 200, 205), ("delivers", 205, 205)];
        assert_eq!(operation.call_stages(root), stages);
        assert_eq!(operation.received(), [Some(0), Some(1)]);
    }

    #[test]
    fn names_of_one_scope_are_none_of_another() {
        let scopes = Scope::ALL.map(|scope| shared(scope, event(100, 0, What::Fetched)));
        let operations = Operations::of(&collected(scopes.to_vec()));
        assert_eq!(operations.all.len(), Scope::ALL.len());
    }

    #[test]
    fn a_frame_that_is_lost_matches_none_that_came_before() {
        let frame = |time, at, what, detail| Event {
            code: COLLECTIVE_UP.into(),
            detail,
            ..shared(Scope::Collective, event(time, at, what))
        };
        let operations = Operations::of(&collected(vec![
            frame(101, 1, What::Delivered, 100),
            frame(110, 0, What::Sent, 0),
            frame(111, 0, What::Sent, 0),
            frame(121, 1, What::Delivered, 120),
        ]));
        assert_eq!(operations.all[0].received(), [Some(1), None]);
    }

    #[test]
    fn the_end_of_a_call_is_that_of_its_process_and_says_why() {
        let of = |time, port, what, code| Event {
            port,
            code,
            ..shared(Scope::Import, event(time, 0, what))
        };
        let refused = Status::ImportRefused.code();
        let operations = Operations::of(&collected(vec![
            of(1, 7, What::Fetched, 0),
            of(2, 8, What::Ended, 0),
            of(3, 7, What::Ended, refused),
            of(4, 7, What::Ended, 0),
            of(5, 9, What::Fetched, 0),
            // Of a process that is gone.
            of(6, 0, What::Ended, Status::Aborted.code()),
        ]));
        let calls = &operations.all[0].calls;
        let ends: Vec<_> = calls.iter().map(|it| (it.ended, it.status)).collect();
        assert_eq!(
            ends,
            [(Some(3), refused), (Some(6), Status::Aborted.code())]
        );
    }
}
