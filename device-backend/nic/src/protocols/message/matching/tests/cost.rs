//! How many entries and bins each operation looks at, and how much memory stays (Q4).

use super::*;

/// Looks of one operation, at most: the lookups for a few masks, and the neighbours in each list
/// that an entry joins or leaves.
const LOOKS: u64 = 24;

/// What is looked at besides by a message that arrives while receives have more masks.
const LOOKS_PER_MASK: u64 = 2;

impl TestMatching {
    fn looks(&self) -> u64 {
        self.receives.looks() + self.messages.looks()
    }

    /// Does something; it looks at no more than a constant number of entries.
    fn cheap<T>(&mut self, what: &str, operation: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.looks();
        let result = operation(self);
        let looks = self.looks() - before;
        assert!(looks <= LOOKS, "{what} looks at {looks} entries");
        result
    }
}

/// Message or receive `number` of many: tags and sources of all are spread.
fn name(number: u32) -> (u16, u64) {
    ((number % 100) as u16, u64::from(number / 100) << 16)
}

/// The four common masks, and one that ignores some bits.
fn patterns(number: u32) -> [Pattern<u16>; 5] {
    let (source, tag) = name(number);
    [
        Pattern::exact(source, tag),
        Pattern::any_source(tag),
        Pattern::any_tag(source),
        Pattern::any(),
        Pattern::new(Some(source), tag, 0xff),
    ]
}

const MANY: u32 = 10_000;

#[test]
fn a_message_looks_at_few_of_ten_thousand_receives() {
    for (kind, of_kind) in ["exact", "any source", "any tag", "any", "partial"]
        .iter()
        .zip(0..)
    {
        let mut matching = TestMatching::new(ROOM);
        let mut ids = Vec::new();
        for number in 0..MANY {
            let post = |it: &mut TestMatching| {
                it.queue_receive(patterns(number)[of_kind], Takes::One, number)
            };
            ids.push(matching.cheap(&format!("post {kind}"), post));
        }
        for number in (0..MANY).step_by(3) {
            matching.cheap("cancel", |it| it.cancel(ids[number as usize]));
        }
        let mut matched = 0;
        for number in (0..MANY).rev() {
            let (source, tag) = name(number);
            let taker = matching.cheap(&format!("arrive {kind}"), |it| it.taker(source, tag));
            matched += u32::from(taker.is_some());
        }
        assert!(matched > MANY / 2, "{kind}: {matched} matched");
    }
}

#[test]
fn a_message_looks_at_few_receives_of_all_masks_together() {
    let mut matching = TestMatching::new(ROOM);
    for number in 0..MANY {
        // Not the one that takes all: the others would never match.
        let pattern = patterns(number)[[0, 1, 2, 4][number as usize % 4]];
        matching.queue_receive(pattern, Takes::One, number);
    }
    for number in 0..MANY {
        let (source, tag) = name(number);
        let taker = matching.cheap("arrive", |it| it.taker(source, tag));
        assert!(taker.is_some());
    }
}

#[test]
fn a_receive_looks_at_few_of_ten_thousand_messages() {
    for (kind, of_kind) in ["exact", "any source", "any tag", "any"].iter().zip(0..) {
        let mut matching = TestMatching::new(ROOM);
        let mut ids = Vec::new();
        for number in 0..MANY {
            let (source, tag) = name(number);
            ids.push(matching.cheap("arrive", |it| it.queue_message(source, tag, number)));
        }
        for number in (0..MANY).step_by(3) {
            matching.cheap("discard", |it| it.discard(ids[number as usize]));
        }
        let mut taken = 0;
        for number in (0..MANY).rev() {
            let pattern = patterns(number)[of_kind];
            matching.cheap(&format!("probe {kind}"), |it| it.probe(pattern));
            let message = match number % 2 {
                0 => matching.cheap(&format!("claim {kind}"), |it| {
                    it.claim(pattern).map(|it| it.handle)
                }),
                _ => matching.cheap(&format!("post {kind}"), |it| it.taken(pattern)),
            };
            taken += u32::from(message.is_some());
        }
        assert!(taken > MANY / 2, "{kind}: {taken} taken");
    }
}

/// A receive that ignores some bits of the tag and names a source looks at messages of that source only.
#[test]
fn a_partial_tag_costs_a_walk_over_the_messages_of_its_source() {
    let mut matching = TestMatching::new(ROOM);
    for number in 0..MANY {
        let (source, tag) = name(number);
        matching.queue_message(source, tag, number);
    }
    let before = matching.looks();
    assert_eq!(matching.probe(Pattern::new(Some(5), 1, 0xff00)), None);
    let looks = matching.looks() - before;
    assert!((100..=100 + LOOKS).contains(&looks), "{looks}");
}

/// A guest that posts receives with all masks that have bins makes each message cost so much, however
/// many receives it posts.
#[test]
fn a_hostile_guest_cannot_make_a_message_cost_more_than_its_masks() {
    let bounds = Bounds { masks: 64, ..ROOM };
    let mut matching = TestMatching::new(bounds);
    for number in 0..MANY {
        let ignore = 1 << (number % 64);
        let pattern = Pattern::new(None, u64::MAX, ignore);
        matching.queue_receive(pattern, Takes::One, number);
    }
    let before = matching.looks();
    assert_eq!(matching.taker(1, u64::MAX), Some(0));
    let looks = matching.looks() - before;
    assert!(looks <= LOOKS + 64 * LOOKS_PER_MASK, "{looks}");
}

/// Receives with further masks are walked over, as far as need be, and the caller learns how far.
#[test]
fn receives_with_rare_masks_are_walked_over_in_the_order_of_posting() {
    let bounds = Bounds { masks: 2, ..ROOM };
    let mut matching = TestMatching::new(bounds);
    for number in 0..10_u32 {
        let pattern = Pattern::new(None, u64::MAX, 1 << number);
        matching.queue_receive(pattern, Takes::One, number);
    }
    assert_eq!(matching.taker(1, u64::MAX), Some(0));
    assert_eq!(matching.take_walked(), 1, "the first rare one is later");
    assert_eq!(matching.taker(1, !(1 << 1)), Some(1));
    assert_eq!(matching.taker(1, !(1 << 5)), Some(5));
    assert_eq!(matching.take_walked(), 1 + 4);
    matching.queue_receive(Pattern::any(), Takes::One, 10);
    assert_eq!(matching.taker(1, 0), Some(10), "its mask has a bin again");
    assert_eq!(matching.take_walked(), 7);
    let left = [2, 3, 4, 6, 7, 8, 9].map(|number| (number, matching.taker(1, u64::MAX)));
    assert!(left.iter().all(|(number, taker)| *taker == Some(*number)));
    assert_eq!(matching.taker(1, u64::MAX), None);
    assert_eq!((matching.take_walked(), matching.rare), (7, 0));
}

/// Queues a receive and a message that do not match.
fn queue_both(matching: &mut TestMatching, number: u32) -> (ReceiveId, MessageId) {
    let (source, tag) = name(number);
    let receive = matching.queue_receive(Pattern::exact(source, tag), Takes::One, number);
    (receive, matching.queue_message(source, tag + 1, number))
}

#[test]
fn memory_is_that_of_what_was_queued_at_once() {
    let mut matching = TestMatching::new(ROOM);
    // These stay, so that the tables are never empty.
    queue_both(&mut matching, 0);
    for round in 0..MANY {
        let ids: Vec<_> = (1..9)
            .map(|number| queue_both(&mut matching, round * 8 + number))
            .collect();
        for (receive, message) in ids {
            assert!(matching.cancel(receive).is_some() && matching.discard(message).is_some());
        }
    }
    assert_eq!(matching.queued(), (vec![0], vec![0]));
    assert_eq!(
        (matching.receives.slots(), matching.messages.slots()),
        (9, 9)
    );
    assert!(matching.receives.capacity() <= 64 && matching.messages.capacity() <= 64);
}

#[test]
fn an_empty_matching_gives_its_memory_back() {
    let mut matching = TestMatching::new(ROOM);
    (0..MANY).for_each(|number| _ = queue_both(&mut matching, number));
    assert!(matching.receives.capacity() >= MANY as usize);
    matching.forget_receives(|_| true);
    matching.forget_messages(|_| true);
    assert!(matching.receives.capacity() <= 128 && matching.messages.capacity() <= 128);
}
