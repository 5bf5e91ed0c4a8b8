//! Operations: what all nodes say of each, put together.
//!
//! ```text
//!   requester  fetched ─► sent ─► last ─► ended ─► published     waits: pages, credit
//!   others        frames: received ─► done (delivered, responded, refused)
//!   everywhere       marks: sent again, refused
//! ```
//! Events come by time. What does not fit together, such as an end without a beginning, is kept as far
//! as it goes: events may be lost, and peers may say what they like.

use std::collections::{BTreeMap, HashMap};

use qnic_nic::trace::{Event, Scope, What};

use crate::trace::collect::Collected;
use crate::trace::names::{self, Nodes};

/// An operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operation {
    /// What it is called.
    pub name: String,
    /// What its name is a name of.
    pub scope: Scope,
    /// Node whose operation it is; of a collective and a group, its home.
    pub requester: u16,
    /// Its name there.
    pub id: u64,
    /// Its length, as its command says.
    pub bytes: u64,
    /// Port of its process; 0 if its fetch was not seen.
    pub port: u16,
    /// Its NIC has read the command.
    pub fetched: Option<u64>,
    /// Its first frame went.
    pub sent: Option<u64>,
    /// Its last frame went.
    pub last: Option<u64>,
    /// It ended.
    pub ended: Option<u64>,
    /// How it ended.
    pub status: u32,
    /// Its process could see that.
    pub published: Option<u64>,
    /// What it waited for at its requester.
    pub waits: Vec<Wait>,
    /// Its frames where they came.
    pub frames: Vec<SeenFrame>,
    /// What happened to frames beyond that.
    pub marks: Vec<Event>,
    /// What processes have called for it, if it is no command.
    pub calls: Vec<Call>,
    /// Its frames where they were sent, if it is no command.
    pub sends: Vec<SentFrame>,
    /// What counts its completion, and its number there.
    counted: (u16, u64),
}

/// A wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// `waits for pages`, `waits for credit`.
    pub name: &'static str,
    /// It began.
    pub from: u64,
    /// It ended.
    pub to: Option<u64>,
}

/// A frame where it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenFrame {
    /// Node where it came.
    pub at: u16,
    /// Node that has sent it.
    pub from: u16,
    /// Its kind.
    pub kind: u32,
    /// Bytes of its payload.
    pub bytes: u64,
    /// It came.
    pub received: u64,
    /// It was in memory, answered or refused.
    pub done: Option<u64>,
    /// The status with which it was refused.
    pub refused: Option<u32>,
    /// Waits for pages.
    pub waits: Vec<Wait>,
}

/// What a process has called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What it is called.
    pub name: String,
    /// Node of the process.
    pub at: u16,
    /// Its port.
    pub port: u16,
    /// Its NIC has read it.
    pub fetched: u64,
    /// It ended.
    pub ended: Option<u64>,
    /// How it ended.
    pub status: u32,
    /// Waits for pages.
    pub waits: Vec<Wait>,
}

/// A frame where it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentFrame {
    /// Node that has sent it.
    pub at: u16,
    /// Node that it is for.
    pub to: u16,
    /// Its kind.
    pub kind: u32,
    /// Bytes of its payload.
    pub bytes: u64,
    /// When it went.
    pub time: u64,
}

/// All operations of a trace.
#[derive(Debug, Clone, Default)]
pub struct Operations {
    /// By the time of their first event.
    pub all: Vec<Operation>,
    /// Time of the first event of all.
    pub begin: u64,
    /// Time of the last.
    pub end: u64,
}

pub(crate) const PAGES: &str = "waits for pages";
const CREDIT: &str = "waits for credit";

impl Operation {
    /// Its stages at the requester, in order, with their beginnings and ends, as far as it has
    /// come; `None` if its fetch was not seen.
    pub fn stages(&self) -> Option<Vec<(&'static str, u64, u64)>> {
        let mut from = self.fetched?;
        let ends = [
            ("queued", self.sent),
            ("sending", self.last.or(self.sent.and(self.ended))),
            ("answered", self.ended),
            ("published", self.published),
        ];
        let mut stages = Vec::new();
        for (name, end) in ends {
            if let Some(end) = end {
                let end = end.max(from);
                stages.push((name, from, end));
                from = end;
            }
        }
        Some(stages)
    }

    /// The time from its fetch to its end, or to when its process could see the end, if that is
    /// known.
    pub fn duration(&self) -> Option<u64> {
        let fetched = self.fetched?;
        let end = self.published.or(self.ended)?;
        Some(end.saturating_sub(fetched))
    }

    /// Begins or ends a wait.
    fn wait(&mut self, name: &'static str, event: &Event, begins: bool) {
        wait(&mut self.waits, name, event.time, begins);
    }

    /// Something happens to a frame of it.
    fn arrival(&mut self, event: &Event) {
        let frame = SeenFrame {
            at: event.at,
            from: event.peer,
            kind: match event.what {
                What::Refused => u32::try_from(event.bytes).unwrap_or(u32::MAX),
                _ => event.code,
            },
            bytes: match event.what {
                What::Refused => 0,
                _ => event.bytes,
            },
            received: event.detail.min(event.time),
            done: None,
            refused: None,
            waits: Vec::new(),
        };
        let open = |arrival: &&mut SeenFrame| arrival.at == event.at && arrival.done.is_none();
        let mut frames = self.frames.iter_mut().filter(open);
        match event.what {
            What::Queued => self.frames.push(frame),
            What::Waits => {
                // A frame that has waited before, and is not done, waits again. The parts of a page
                // span come together, and each waits for the first time.
                let same = |it: &&mut SeenFrame| {
                    let comes = (it.kind, it.received) == (frame.kind, frame.received);
                    comes && it.waits.iter().all(|wait| wait.to.is_some())
                };
                let arrival = match frames.find(same) {
                    Some(arrival) => arrival,
                    None => push(&mut self.frames, frame),
                };
                wait(&mut arrival.waits, PAGES, event.time, true);
            }
            What::Resumed => {
                let waits =
                    |arrival: &SeenFrame| arrival.waits.iter().any(|wait| wait.to.is_none());
                let found = frames.find(|it| it.kind == event.code && waits(it));
                if let Some(arrival) = found {
                    wait(&mut arrival.waits, PAGES, event.time, false);
                }
            }
            What::Responded => {
                // With each frame of the answer, the request ends later.
                let mut requests = self.frames.iter_mut().rev();
                let request = requests.find(|it| it.at == event.at && it.from == event.peer);
                if let Some(request) = request {
                    request.done = Some(event.time);
                    request.bytes += event.bytes;
                }
            }
            _ => {
                let refused = (event.what == What::Refused).then_some(event.code);
                let found = frames.find(|it| it.received == frame.received);
                let arrival = match found {
                    Some(arrival) => arrival,
                    None => push(&mut self.frames, frame),
                };
                arrival.done = Some(event.time);
                arrival.refused = refused;
                if refused.is_none() {
                    arrival.bytes = event.bytes;
                }
            }
        }
    }

    fn add(&mut self, event: &Event, nodes: &Nodes) {
        if event.scope != Scope::Command {
            return self.add_shared(event, nodes);
        }
        let own = event.at == event.requester;
        match event.what {
            What::Fetched => {
                self.name = names::operation(event, nodes);
                self.port = event.port;
                self.bytes = event.bytes;
                self.fetched = Some(event.time);
            }
            What::Sent => self.sent = Some(event.time),
            What::Ended => {
                self.ended = Some(event.time);
                self.last = (event.detail > 0).then_some(event.detail);
                self.status = event.code;
                self.counted = (event.port, event.bytes);
            }
            What::Blocked => self.wait(CREDIT, event, true),
            What::Unblocked => self.wait(CREDIT, event, false),
            What::Waits if own && event.code == 0 => self.wait(PAGES, event, true),
            What::Resumed if own && event.code == 0 => self.wait(PAGES, event, false),
            What::Resent | What::Nak => self.marks.push(*event),
            What::Delivered
            | What::Queued
            | What::Responded
            | What::Waits
            | What::Resumed
            | What::Refused => self.arrival(event),
            What::Published | What::Load | What::Lost => {}
        }
    }
}

/// Adds a frame behind the others.
fn push(frames: &mut Vec<SeenFrame>, frame: SeenFrame) -> &mut SeenFrame {
    let last = frames.len();
    frames.push(frame);
    &mut frames[last]
}

/// Begins or ends a wait.
pub(crate) fn wait(waits: &mut Vec<Wait>, name: &'static str, time: u64, begins: bool) {
    if begins {
        return waits.push(Wait {
            name,
            from: time,
            to: None,
        });
    }
    let mut open = waits.iter_mut();
    if let Some(wait) = open.find(|wait| wait.name == name && wait.to.is_none()) {
        wait.to = Some(time);
    }
}

impl Operations {
    /// Puts events together.
    pub fn of(collected: &Collected) -> Self {
        let nodes = Nodes::new(&collected.nodes);
        let mut all: Vec<Operation> = Vec::new();
        let mut places: HashMap<(Scope, u16, u64), usize> = HashMap::new();
        // Operations that have ended and that their process cannot see, by node and VNI.
        let mut ended: BTreeMap<(u16, u64), Vec<usize>> = BTreeMap::new();
        for event in &collected.events {
            match event.what {
                What::Load | What::Lost => continue,
                What::Published => {
                    let waiting = ended.entry(process(event)).or_default();
                    waiting.retain(|place| !publish(&mut all[*place], event));
                    continue;
                }
                _ => {}
            }
            let name = (event.scope, event.requester, event.operation);
            let place = *places.entry(name).or_insert_with(|| {
                all.push(Operation {
                    name: names::unseen(event, &nodes),
                    scope: event.scope,
                    requester: event.requester,
                    id: event.operation,
                    ..Operation::default()
                });
                all.len() - 1
            });
            all[place].add(event, &nodes);
            if event.what == What::Ended && event.scope == Scope::Command {
                ended.entry(process(event)).or_default().push(place);
            }
        }
        let times = || collected.events.iter().map(|event| event.time);
        // A frame may have come before anything was noted.
        let frames = all.iter().flat_map(|operation| &operation.frames);
        let received = frames.map(|frame| frame.received).min();
        let begin = times().min().into_iter().chain(received).min();
        Operations {
            begin: begin.unwrap_or(0),
            all,
            end: times().max().unwrap_or(0),
        }
    }
}

/// Node and VNI of an event.
fn process(event: &Event) -> (u16, u64) {
    (event.at, event.operation >> 12 & 0xfff)
}

/// Notes that an operation can be seen, if it can. Returns true if it need not be looked at again.
fn publish(operation: &mut Operation, event: &Event) -> bool {
    let (counter, lane) = (operation.counted.0 & 0xff, operation.counted.0 >> 8);
    let done = match counter {
        0 | 1 if lane != event.port => return false,
        0 => event.bytes,
        1 => event.detail,
        // What ends with an entry of the completion queue is seen there.
        _ => return true,
    };
    let seen = operation.counted.1 < done;
    if seen {
        operation.published = Some(event.time);
    }
    seen
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::trace::collect::TracedNode;

    pub(crate) const ID: u64 = 5 << 24 | 3 << 12;

    /// An event of an operation of node 0, at another node if `at` is not 0.
    pub(crate) fn event(time: u64, at: u16, what: What) -> Event {
        Event {
            time,
            scope: Scope::Command,
            operation: ID,
            what,
            at,
            requester: 0,
            peer: 1 - at.min(1),
            port: 7,
            code: 0,
            depth: 1,
            bytes: 0,
            detail: 0,
        }
    }

    pub(crate) fn collected(events: Vec<Event>) -> Collected {
        let node = |node, name: &str| TracedNode {
            node,
            name: name.to_owned(),
        };
        Collected {
            nodes: vec![node(0, "a"), node(1, "b")],
            events,
            ..Collected::default()
        }
    }

    /// A write of 8 bytes, and the frame of it at the other node.
    pub(crate) fn write() -> Vec<Event> {
        vec![
            Event {
                code: 1,
                bytes: 8,
                ..event(100, 0, What::Fetched)
            },
            event(110, 0, What::Sent),
            Event {
                code: u32::from(qnic_abi::rdma::kind::WRITE),
                bytes: 8,
                detail: 150,
                ..event(160, 1, What::Delivered)
            },
            Event {
                port: 9 << 8,
                bytes: 4,
                detail: 111,
                ..event(200, 0, What::Ended)
            },
            Event {
                port: 9,
                bytes: 4,
                ..event(210, 0, What::Published)
            },
            Event {
                port: 8,
                bytes: 7,
                ..event(215, 0, What::Published)
            },
            Event {
                port: 9,
                bytes: 5,
                ..event(220, 0, What::Published)
            },
        ]
    }

    #[test]
    fn what_two_nodes_say_becomes_one_operation() {
        let operations = Operations::of(&collected(write()));
        let [operation] = &operations.all[..] else {
            panic!("{operations:?}");
        };
        assert_eq!(operation.name, "write 8 B to b");
        let stages = [
            ("queued", 100, 110),
            ("sending", 110, 111),
            ("answered", 111, 200),
            ("published", 200, 220),
        ];
        assert_eq!(operation.stages().unwrap(), stages);
        assert_eq!(operation.duration(), Some(120));
        let [arrival] = &operation.frames[..] else {
            panic!("{operation:?}");
        };
        assert_eq!((arrival.at, arrival.from, arrival.bytes), (1, 0, 8));
        assert_eq!((arrival.received, arrival.done), (150, Some(160)));
        assert_eq!((operations.begin, operations.end), (100, 220));
    }

    #[test]
    fn waits_have_a_beginning_and_an_end() {
        let kind = u32::from(qnic_abi::rdma::kind::WRITE);
        let mut events = write();
        events.truncate(1);
        events.extend([
            event(101, 0, What::Waits),
            event(105, 0, What::Resumed),
            event(106, 0, What::Blocked),
            Event {
                code: kind,
                detail: 150,
                ..event(151, 1, What::Waits)
            },
            Event {
                code: kind,
                ..event(190, 1, What::Resumed)
            },
            Event {
                code: kind,
                bytes: 8,
                detail: 150,
                ..event(191, 1, What::Delivered)
            },
        ]);
        let operations = Operations::of(&collected(events));
        let operation = &operations.all[0];
        let wait = |name, from, to| Wait { name, from, to };
        let expected = [wait(PAGES, 101, Some(105)), wait(CREDIT, 106, None)];
        assert_eq!(operation.waits, expected);
        let [arrival] = &operation.frames[..] else {
            panic!("{operation:?}");
        };
        assert_eq!(arrival.waits, [wait(PAGES, 151, Some(190))]);
        assert_eq!((arrival.received, arrival.done), (150, Some(191)));
        assert_eq!((operation.ended, operation.duration()), (None, None));
    }

    #[test]
    fn a_frame_that_waits_again_is_one_frame_with_two_waits() {
        let kind = u32::from(qnic_abi::rdma::kind::WRITE);
        let frame = |time, what| Event {
            code: kind,
            detail: 150,
            ..event(time, 1, what)
        };
        let events = vec![
            write()[0],
            frame(151, What::Waits),
            // Another part of the same page span.
            frame(152, What::Waits),
            frame(160, What::Resumed),
            frame(161, What::Waits),
            frame(170, What::Resumed),
            frame(171, What::Delivered),
        ];
        let operations = Operations::of(&collected(events));
        let waits: Vec<Vec<_>> = operations.all[0]
            .frames
            .iter()
            .map(|frame| frame.waits.iter().map(|it| (it.from, it.to)).collect())
            .collect();
        let expected = [vec![(151, Some(160)), (161, Some(170))], vec![(152, None)]];
        assert_eq!(waits, expected);
    }

    #[test]
    fn a_request_lasts_until_its_last_answer_and_a_refusal_has_its_reason() {
        let mut events = write();
        events.truncate(2);
        events.extend([
            Event {
                code: 9,
                detail: 120,
                ..event(121, 1, What::Queued)
            },
            Event {
                bytes: 30,
                ..event(130, 1, What::Responded)
            },
            Event {
                bytes: 3,
                ..event(131, 1, What::Responded)
            },
            Event {
                code: 4,
                detail: 140,
                ..event(141, 1, What::Refused)
            },
            Event {
                code: 4,
                ..event(150, 0, What::Nak)
            },
        ]);
        let operations = Operations::of(&collected(events));
        let operation = &operations.all[0];
        let [request, refused] = &operation.frames[..] else {
            panic!("{operation:?}");
        };
        assert_eq!((request.done, request.bytes), (Some(131), 33));
        assert_eq!(refused.refused, Some(4));
        assert_eq!((refused.received, refused.done), (140, Some(141)));
        assert_eq!(operation.marks.len(), 1);
    }

    #[test]
    fn what_has_lost_its_beginning_is_kept() {
        let events = write().split_off(2);
        let operations = Operations::of(&collected(events));
        let operation = &operations.all[0];
        assert_eq!(operation.stages(), None);
        assert_eq!(operation.name, "operation of a");
        assert_eq!(operation.frames.len(), 1);
    }
}
