//! All rules together: a matching agrees with two lists that are searched from the front (Q4).
//! Sources, tags and ignored bits are few, so that nearly everything matches something.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Post(Pattern<u16>, Takes),
    Arrive(u16, u64),
    Cancel(Index),
    Probe(Pattern<u16>),
    Claim(Pattern<u16>),
    Discard(Index),
    ForgetReceives(u16),
    /// Of one source, every other.
    ForgetMessages(u16),
}

fn tag() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..4, 1 => Just(1 << 63), 1 => Just(1 << 63 | 1)]
}

/// Three in general form, and two others of each.
fn source() -> impl Strategy<Value = u16> {
    (0u16..3, 0u16..3).prop_map(|(general, special)| special << 8 | general)
}

fn pattern() -> impl Strategy<Value = Pattern<u16>> {
    let source = prop_oneof![2 => source().prop_map(Some), 1 => Just(None)];
    let ignore = prop_oneof![
        4 => Just(0),
        2 => Just(u64::MAX),
        2 => 1u64..4,
        1 => Just(1 << 63),
        1 => Just(u64::MAX << 1),
    ];
    (source, tag(), ignore).prop_map(|(source, tag, ignore)| Pattern::new(source, tag, ignore))
}

fn step() -> impl Strategy<Value = Step> {
    let takes = prop_oneof![6 => Just(Takes::One), 1 => Just(Takes::Many)];
    prop_oneof![
        12 => (pattern(), takes).prop_map(|(pattern, takes)| Step::Post(pattern, takes)),
        12 => (source(), tag()).prop_map(|(source, tag)| Step::Arrive(source, tag)),
        2 => any::<Index>().prop_map(Step::Cancel),
        2 => pattern().prop_map(Step::Probe),
        2 => pattern().prop_map(Step::Claim),
        1 => any::<Index>().prop_map(Step::Discard),
        1 => source().prop_map(Step::ForgetReceives),
        1 => source().prop_map(Step::ForgetMessages),
    ]
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let tight = (0u32..6, 0u32..5, 0u32..6);
    let wide = Just((1000, 1000, 1000));
    prop_oneof![tight, wide].prop_map(|(receives, masks, messages)| Bounds {
        receives,
        masks,
        messages,
    })
}

/// A receive, as the oracle keeps it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Waiting {
    pattern: Pattern<u16>,
    takes: Takes,
    handle: u32,
}

/// Source, tag and handle of a message.
type Staged = (u16, u64, u32);

/// What is expected of a step: the handle of what matches, nothing, or no room.
type Outcome = Result<Option<u32>, Full>;

/// The rules, as simple as can be.
struct Oracle {
    receives: Vec<Waiting>,
    messages: Vec<Staged>,
    bounds: Bounds,
}

fn takes(pattern: Pattern<u16>, source: u16, tag: u64) -> bool {
    let differ = (tag ^ pattern.tag()) & !pattern.ignore();
    let is_of = |own: u16| own == source || own < 0x100 && own == source % 0x100;
    pattern.source().is_none_or(is_of) && differ == 0
}

impl Oracle {
    fn post(&mut self, receive: Waiting) -> Outcome {
        if let Some(handle) = self.find(receive.pattern) {
            self.messages.retain(|it| it.2 != handle);
            return Ok(Some(handle));
        }
        if self.receives.len() >= self.bounds.receives as usize {
            return Err(Full);
        }
        self.receives.push(receive);
        Ok(None)
    }

    fn arrive(&mut self, message: Staged) -> Outcome {
        let is_first = |it: &Waiting| takes(it.pattern, message.0, message.1);
        if let Some(index) = self.receives.iter().position(is_first) {
            let receive = self.receives[index];
            if receive.takes == Takes::One {
                self.receives.remove(index);
            }
            return Ok(Some(receive.handle));
        }
        if self.messages.len() >= self.bounds.messages as usize {
            return Err(Full);
        }
        self.messages.push(message);
        Ok(None)
    }

    /// The handle of the first message that a pattern takes.
    fn find(&self, pattern: Pattern<u16>) -> Option<u32> {
        let found = self.messages.iter().find(|it| takes(pattern, it.0, it.1));
        found.map(|it| it.2)
    }

    fn cancel(&mut self, handle: u32) -> Option<u32> {
        let index = self.receives.iter().position(|it| it.handle == handle)?;
        Some(self.receives.remove(index).handle)
    }

    fn discard(&mut self, handle: u32) -> Option<u32> {
        let index = self.messages.iter().position(|it| it.2 == handle)?;
        Some(self.messages.remove(index).2)
    }

    fn forget_receives(&mut self, source: u16) -> Vec<u32> {
        let is_dead = |it: &Waiting| it.pattern.source() == Some(source);
        let (dead, rest): (Vec<_>, _) = self.receives.iter().partition(|it| is_dead(it));
        self.receives = rest;
        dead.iter().map(|it| it.handle).collect()
    }

    fn forget_messages(&mut self, is_lost: impl Fn(u16, u32) -> bool) -> Vec<u32> {
        let (lost, rest): (Vec<_>, _) = self.messages.iter().partition(|it| is_lost(it.0, it.2));
        self.messages = rest;
        lost.iter().map(|it| it.2).collect()
    }
}

/// A matching and its oracle, side by side.
struct Pair {
    matching: TestMatching,
    oracle: Oracle,
    /// All ids that were ever given, with their handles.
    receives: Vec<(ReceiveId, u32)>,
    messages: Vec<(MessageId, u32)>,
}

impl Pair {
    fn new(bounds: Bounds) -> Self {
        Pair {
            matching: Matching::new(bounds),
            oracle: Oracle {
                receives: Vec::new(),
                messages: Vec::new(),
                bounds,
            },
            receives: Vec::new(),
            messages: Vec::new(),
        }
    }

    fn post(&mut self, pattern: Pattern<u16>, takes: Takes, handle: u32) {
        let posted = self
            .matching
            .post(pattern, takes, handle)
            .map(|it| match it {
                Posted::Matched(message) => Some(message.handle),
                Posted::Queued(id) => {
                    self.receives.push((id, handle));
                    None
                }
            });
        let receive = Waiting {
            pattern,
            takes,
            handle,
        };
        assert_eq!(posted, self.oracle.post(receive));
    }

    fn arrive(&mut self, source: u16, tag: u64, handle: u32) {
        let arrived = self
            .matching
            .arrive(source, tag, handle)
            .map(|it| match it {
                Arrived::Matched(receive) => Some(receive.handle),
                Arrived::Queued(id) => {
                    self.messages.push((id, handle));
                    None
                }
            });
        assert_eq!(arrived, self.oracle.arrive((source, tag, handle)));
    }

    fn step(&mut self, step: &Step, handle: u32) {
        let Pair {
            matching, oracle, ..
        } = self;
        match *step {
            Step::Post(pattern, takes) => self.post(pattern, takes, handle),
            Step::Arrive(source, tag) => self.arrive(source, tag, handle),
            Step::Cancel(index) if !self.receives.is_empty() => {
                let (id, handle) = *index.get(&self.receives);
                let cancelled = matching.cancel(id).map(|it| it.handle);
                assert_eq!(cancelled, oracle.cancel(handle));
            }
            Step::Discard(index) if !self.messages.is_empty() => {
                let (id, handle) = *index.get(&self.messages);
                let discarded = matching.discard(id).map(|it| it.handle);
                assert_eq!(discarded, oracle.discard(handle));
            }
            Step::Cancel(_) | Step::Discard(_) => {}
            Step::Probe(pattern) => {
                let found = matching.probe(pattern).map(|it| it.handle);
                assert_eq!(found, oracle.find(pattern));
            }
            Step::Claim(pattern) => {
                let claimed = matching.claim(pattern).map(|it| it.handle);
                let expected = oracle.find(pattern);
                expected.map(|handle| oracle.discard(handle));
                assert_eq!(claimed, expected);
            }
            Step::ForgetReceives(source) => {
                let dead = matching.forget_receives(|it| it == source);
                let dead: Vec<_> = dead.iter().map(|it| it.handle).collect();
                assert_eq!(dead, oracle.forget_receives(source));
            }
            Step::ForgetMessages(source) => {
                let is_lost = |from: u16, handle: u32| from == source && handle % 2 == 0;
                let lost = matching.forget_messages(|it| is_lost(it.source, it.handle));
                let lost: Vec<_> = lost.iter().map(|it| it.handle).collect();
                assert_eq!(lost, oracle.forget_messages(is_lost));
            }
        }
    }

    /// Both have the same queued, in the same order.
    fn check(&self) {
        let receives = self.matching.receives().map(|it| Waiting {
            pattern: it.pattern,
            takes: it.takes,
            handle: it.handle,
        });
        assert_eq!(receives.collect::<Vec<_>>(), self.oracle.receives);
        let messages = self.matching.messages();
        let messages: Vec<_> = messages.map(|it| (it.source, it.tag, it.handle)).collect();
        assert_eq!(messages, self.oracle.messages);
        assert_eq!(self.matching.receive_count(), self.oracle.receives.len());
        assert_eq!(self.matching.message_count(), self.oracle.messages.len());
        self.matching.receives.check();
        self.matching.messages.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_matching_agrees_with_two_lists(
        bounds in bounds(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut pair = Pair::new(bounds);
        for (step, handle) in steps.iter().zip(1..) {
            pair.step(step, handle);
            pair.check();
        }
    }
}
