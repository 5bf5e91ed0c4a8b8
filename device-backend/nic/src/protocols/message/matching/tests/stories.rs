//! Each rule alone.

use super::*;

const A: u16 = 1;
const B: u16 = 2;

fn matching() -> TestMatching {
    Matching::new(ROOM)
}

/// One in which receives with these patterns are posted, numbered from 1.
fn posted(patterns: &[Pattern<u16>]) -> TestMatching {
    let mut matching = matching();
    for (pattern, handle) in patterns.iter().zip(1..) {
        matching.queue_receive(*pattern, Takes::One, handle);
    }
    matching
}

/// One at which these messages have arrived, numbered from 1.
fn arrived(messages: &[(u16, u64)]) -> TestMatching {
    let mut matching = matching();
    for ((source, tag), handle) in messages.iter().zip(1..) {
        matching.queue_message(*source, *tag, handle);
    }
    matching
}

#[test]
fn a_message_meets_the_receive_that_waits_for_it() {
    let mut matching = posted(&[Pattern::exact(A, 7)]);
    assert_eq!(matching.taker(A, 7), Some(1));
    assert_eq!(matching.taker(A, 7), None, "it takes one");
}

#[test]
fn a_receive_meets_the_message_that_waits_for_it() {
    let mut matching = arrived(&[(A, 7)]);
    assert_eq!(matching.taken(Pattern::exact(A, 7)), Some(1));
    assert_eq!(matching.taken(Pattern::exact(A, 7)), None, "it is gone");
}

#[test]
fn source_and_tag_both_count() {
    let mut matching = posted(&[Pattern::exact(A, 7)]);
    assert_eq!(matching.taker(B, 7), None);
    assert_eq!(matching.taker(A, 8), None);
    assert_eq!(matching.queued(), (vec![1], vec![0, 0]));
}

#[test]
fn bits_that_are_ignored_do_not_count() {
    let pattern = Pattern::new(Some(A), 0x12ab, 0xff);
    assert_eq!(pattern, Pattern::new(Some(A), 0x1200, 0xff));
    let mut matching = posted(&[pattern]);
    assert_eq!(matching.taker(A, 0x13ab), None);
    assert_eq!(matching.taker(A, 0x12cd), Some(1));
    assert_eq!(matching.taken(Pattern::new(None, 0x1300, 0xff)), Some(0));
}

#[test]
fn receives_match_in_posting_order_whatever_they_ignore() {
    let patterns = [
        Pattern::new(Some(A), 7, 2),
        Pattern::any(),
        Pattern::exact(A, 7),
        Pattern::any_tag(A),
        Pattern::exact(A, 7),
        Pattern::any_source(7),
        Pattern::new(None, 7, 2),
    ];
    // Whichever is first, the others in turn behind it.
    for first in 0..patterns.len() {
        let mut turned = patterns;
        turned.rotate_left(first);
        let mut matching = posted(&turned);
        let takers: Vec<_> = (0..8).map_while(|_| matching.taker(A, 7)).collect();
        assert_eq!(takers, [1, 2, 3, 4, 5, 6, 7]);
    }
}

#[test]
fn messages_of_one_sender_do_not_overtake_each_other() {
    let messages = [(A, 7), (B, 7), (A, 8), (A, 7), (B, 8)];
    for (pattern, expected) in [
        (Pattern::exact(A, 7), vec![1, 4]),
        (Pattern::any_source(8), vec![3, 5]),
        (Pattern::any_tag(A), vec![1, 3, 4]),
        (Pattern::new(Some(A), 0, 15), vec![1, 3, 4]),
        (Pattern::new(None, 6, 1), vec![1, 2, 4]),
        (Pattern::any(), vec![1, 2, 3, 4, 5]),
    ] {
        let mut matching = arrived(&messages);
        let taken: Vec<_> = (0..5).map_while(|_| matching.taken(pattern)).collect();
        assert_eq!(taken, expected, "{pattern:?}");
    }
}

#[test]
fn a_receive_that_is_cancelled_takes_nothing() {
    let mut matching = matching();
    let first = matching.queue_receive(Pattern::any(), Takes::One, 1);
    let second = matching.queue_receive(Pattern::any(), Takes::One, 2);
    assert_eq!(matching.cancel(first).map(|it| it.handle), Some(1));
    assert_eq!(matching.cancel(first), None);
    assert_eq!(matching.taker(A, 7), Some(2));
    assert_eq!(matching.cancel(second), None, "it has matched");
}

#[test]
fn an_old_name_does_not_find_what_came_later() {
    let mut matching = matching();
    let old = matching.queue_receive(Pattern::any(), Takes::One, 1);
    matching.cancel(old);
    matching.queue_receive(Pattern::exact(A, 7), Takes::One, 2);
    assert_eq!(matching.cancel(old), None);
    let old = matching.queue_message(B, 7, 3);
    matching.discard(old);
    matching.queue_message(B, 8, 4);
    assert_eq!(matching.discard(old), None);
    assert_eq!(matching.queued(), (vec![2], vec![4]));
}

#[test]
fn a_probe_leaves_the_message() {
    let mut matching = arrived(&[(A, 7), (B, 7)]);
    let found = matching.probe(Pattern::any_source(7)).unwrap();
    assert_eq!((found.source, found.tag, found.handle), (A, 7, 1));
    assert_eq!(matching.probe(Pattern::any_tag(3)), None);
    assert_eq!(matching.taken(Pattern::any_source(7)), Some(1));
}

#[test]
fn what_is_claimed_is_out_of_the_matching() {
    let mut matching = arrived(&[(A, 7), (A, 7)]);
    let claimed = matching.claim(Pattern::exact(A, 7)).unwrap();
    assert_eq!(claimed.handle, 1);
    assert_eq!(matching.discard(claimed.id), None);
    assert_eq!(matching.taken(Pattern::any()), Some(2));
    assert_eq!(matching.claim(Pattern::any()), None);
}

#[test]
fn what_is_discarded_is_gone() {
    let mut matching = matching();
    let id = matching.queue_message(A, 7, 1);
    matching.queue_message(A, 7, 2);
    assert_eq!(matching.discard(id).map(|it| it.handle), Some(1));
    assert_eq!(matching.taken(Pattern::any()), Some(2));
}

#[test]
fn a_multi_receive_stays_where_it_was_posted() {
    let mut matching = matching();
    matching.queue_receive(Pattern::exact(A, 7), Takes::One, 1);
    let many = matching.queue_receive(Pattern::any_tag(A), Takes::Many, 2);
    matching.queue_receive(Pattern::exact(A, 7), Takes::One, 3);
    let takers: Vec<_> = (0..4).map_while(|_| matching.taker(A, 7)).collect();
    assert_eq!(takers, [1, 2, 2, 2]);
    matching.cancel(many);
    assert_eq!(matching.taker(A, 7), Some(3));
}

/// Posted again after each message, it takes all that had arrived, in order, and waits then.
#[test]
fn a_multi_receive_takes_what_had_arrived_first() {
    let mut matching = arrived(&[(A, 7), (B, 7), (A, 8)]);
    let mut taken = Vec::new();
    while let Posted::Matched(it) = matching.post(Pattern::any_tag(A), Takes::Many, 9).unwrap() {
        taken.push(it.handle);
    }
    assert_eq!(taken, [1, 3]);
    assert_eq!(matching.queued(), (vec![9], vec![2]));
    assert_eq!(
        (matching.taker(A, 5), matching.taker(A, 6)),
        (Some(9), Some(9))
    );
}

#[test]
fn receives_from_a_source_that_has_ended_are_returned() {
    let mut matching = posted(&[
        Pattern::exact(A, 7),
        Pattern::any_source(7),
        Pattern::any_tag(A),
        Pattern::exact(B, 7),
        Pattern::new(Some(A), 0, 3),
    ]);
    let failed = matching.forget_receives(|source| source == A);
    let failed: Vec<_> = failed.iter().map(|it| it.handle).collect();
    assert_eq!(failed, [1, 3, 5]);
    assert_eq!(matching.queued().0, [2, 4]);
    assert_eq!(
        matching.taker(A, 7),
        Some(2),
        "any source includes a new one"
    );
}

#[test]
fn messages_that_have_arrived_may_outlive_their_sender() {
    let mut matching = arrived(&[(A, 7), (B, 7), (A, 8)]);
    let whole = |handle| handle == 1;
    let lost = matching.forget_messages(|it| it.source == A && !whole(it.handle));
    assert_eq!(lost.iter().map(|it| it.handle).collect::<Vec<_>>(), [3]);
    assert_eq!(matching.queued().1, [1, 2]);
}

#[test]
fn nothing_changes_when_there_is_no_room() {
    let mut matching = TestMatching::new(Bounds {
        receives: 2,
        masks: 1,
        messages: 1,
    });
    let receive = matching.queue_receive(Pattern::exact(A, 7), Takes::One, 1);
    matching.queue_receive(Pattern::exact(A, 8), Takes::One, 3);
    assert_eq!(matching.post(Pattern::any_tag(A), Takes::One, 2), Err(Full));
    assert_eq!(
        matching.post(Pattern::exact(A, 9), Takes::One, 4),
        Err(Full)
    );
    matching.queue_message(B, 7, 5);
    assert_eq!(matching.arrive(B, 8, 6), Err(Full));
    assert_eq!(matching.queued(), (vec![1, 3], vec![5]));

    // What matches needs no room.
    assert_eq!(matching.taken(Pattern::any_tag(B)), Some(5));
    matching.queue_message(B, 7, 6);
    assert_eq!(matching.taker(A, 8), Some(3));
    matching.cancel(receive);
    matching.queue_receive(Pattern::any_tag(A), Takes::One, 7);
}

#[test]
fn tables_are_in_order() {
    let mut matching = posted(&[
        Pattern::any_tag(A),
        Pattern::exact(A, 7),
        Pattern::any_tag(A),
    ]);
    assert_eq!(matching.taker(A, 7), Some(1));
    matching.queue_receive(Pattern::any_tag(A), Takes::One, 4);
    for handle in 1..4 {
        matching.queue_message(B, u64::from(handle) % 2, handle);
    }
    assert_eq!(matching.taken(Pattern::exact(B, 0)), Some(2));
    matching.queue_message(B, 0, 4);
    assert_eq!(matching.queued(), (vec![2, 3, 4], vec![1, 3, 4]));
    assert_eq!((matching.receive_count(), matching.message_count()), (3, 3));
}
