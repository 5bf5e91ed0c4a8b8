//! Transfers and atomic operations that end with a completion of their own (N12).

use std::time::Duration;

use qnic::message::{wait_all, wait_any, Pattern, Source, Tag};
use qnic::{Error, SegmentName, Status};

use crate::cluster::{pair, status, Pair, BOTH, SOON};
use crate::destinations::{silent, Silent};

#[test]
fn each_tells_its_own_end() {
    let pair = pair(65_536);
    let Pair {
        a, b, remote: to_b, ..
    } = &pair;
    let endpoint = &a.endpoint;
    let write = endpoint.write(to_b, 8, b"12345678").begin().unwrap();
    let word = endpoint.atomic::<u64>(to_b, 16).unwrap();
    let add = word.fetch_add(5).begin().unwrap();
    let mut requests = [write, add];
    let ends = wait_all(&mut requests, Some(SOON)).unwrap();
    let of_b = (b.endpoint.node(), b.endpoint.port());
    assert!(ends.iter().all(|end| (end.node, end.port) == of_b));
    assert_eq!((ends[0].length, ends[0].offset), (8, 8));
    assert_eq!((ends[1].length, ends[1].immediate), (8, 0));
    let mut again = word.fetch_add(1).begin().unwrap();
    assert_eq!(again.wait(Some(SOON)).unwrap().immediate, 5);
    assert_eq!(again.test().unwrap().unwrap().immediate, 5, "told again");
    let read = endpoint.read(to_b, 16, a.segment.part(0, 8));
    read.begin().unwrap().wait(Some(SOON)).unwrap();
    assert_eq!(a.word(0), 6);
    // A long one, and one beside messages.
    let long = endpoint.write(to_b, 100, a.segment.part(0, 60_000));
    assert_eq!(
        long.begin().unwrap().wait(Some(SOON)).unwrap().length,
        60_000
    );
    let pattern = Pattern::tagged(Source::Any, Tag(1));
    let letter = endpoint.receive(&pattern, a.segment.part(0, 64));
    let mut both = [
        letter.post().unwrap(),
        endpoint.write(to_b, 0, b"x").begin().unwrap(),
    ];
    assert_eq!(wait_any(&mut both, Some(SOON)).unwrap(), Some(1));
}

#[test]
fn a_failure_is_told_once() {
    let pair = pair(4096);
    let Pair { a, b, .. } = &pair;
    let name = SegmentName(0x60f);
    let exported = b.endpoint.allocate(4096).unwrap();
    let segment = b.endpoint.export(name, &exported, BOTH).unwrap();
    let (node, port) = (b.endpoint.node(), b.endpoint.port());
    let remote = a.endpoint.import(node, port, name, SOON).unwrap();
    drop(segment);
    let write = || a.endpoint.write(&remote, 0, b"x").begin().unwrap();
    for _ in 0..200 {
        let mut request = write();
        let failure = request.wait(Some(SOON));
        assert_eq!(status(failure), Status::NoSuchSegment);
        assert_eq!(
            status(request.test()),
            Status::NoSuchSegment,
            "the same again"
        );
    }
    a.endpoint.flush().wait().expect("nothing is left to tell");
    // What nothing looks at goes to the next flush.
    (0..10).for_each(|_| drop(write()));
    let Error::Transfer(errors) = a.endpoint.flush().wait().unwrap_err() else {
        panic!("it says which transfers failed");
    };
    assert_eq!(errors.failures.len(), 10);
    a.endpoint.flush().wait().expect("nothing is left to tell");
}

#[test]
fn many_are_under_way_and_none_is_lost() {
    let Silent {
        cluster,
        a,
        c,
        to_b,
        to_c,
    } = silent();
    let begin = |to: &qnic::RemoteSegment, number: u64| {
        let bytes = number.to_le_bytes();
        let write = a.endpoint.write(to, number % 8000 * 8, &bytes);
        write.timeout(SOON).begin().unwrap()
    };
    // More than the completion queue has entries, to a process that is silent.
    let mut stuck: Vec<_> = (0..1000).map(|number| begin(&to_b, number)).collect();
    for number in 1..=2000 {
        begin(&to_c, number).wait(Some(SOON)).unwrap();
    }
    assert_eq!(c.word(16_000), 2000);
    assert_eq!(wait_any(&mut stuck, Some(Duration::ZERO)).ok(), None);
    cluster.net([0, 1], r#"{"partition":false}"#);
    assert_eq!(wait_all(&mut stuck, Some(SOON)).unwrap().len(), 1000);
}

#[test]
fn a_reset_ends_them_and_later_ones_are_their_own() {
    let pair = pair(4096);
    let Pair {
        a, remote: to_b, ..
    } = &pair;
    let mut before = a.endpoint.write(to_b, 0, b"x").begin().unwrap();
    before.wait(Some(SOON)).unwrap();
    let ticket = a.endpoint.write(to_b, 0, b"x").post().unwrap();
    let unseen = a.endpoint.write(to_b, 0, b"x").begin().unwrap();
    a.endpoint.reset_queue().unwrap();
    let mut after: Vec<_> = (0..64)
        .map(|_| a.endpoint.write(to_b, 0, b"y").begin().unwrap())
        .collect();
    // A handle of the old queue takes nothing from the new one.
    drop((ticket, unseen));
    wait_all(&mut after, Some(SOON)).unwrap();
    a.endpoint.flush().wait().unwrap();
}

#[test]
fn a_reset_ends_what_is_under_way() {
    let Silent {
        cluster,
        a,
        c,
        to_b,
        to_c,
    } = silent();
    let endpoint = &a.endpoint;
    let word = endpoint.atomic::<u64>(&to_b, 8).unwrap();
    let begin = |number: u64| match number % 3 {
        0 => endpoint.write(&to_b, 0, a.segment.part(0, 4096)).begin(),
        1 => endpoint.read(&to_b, 0, a.segment.part(0, 4096)).begin(),
        _ => word.fetch_add(1).begin(),
    };
    let requests = (0..300).map(begin).collect::<Result<Vec<_>, _>>();
    let mut requests = requests.unwrap();
    let dropped = requests.split_off(200);
    endpoint.reset_queue().unwrap();
    for request in &mut requests {
        assert_error!(request.wait(Some(SOON)), Error::QueueReset);
        assert_error!(request.test(), Error::QueueReset);
    }
    cluster.net([0, 1], r#"{"partition":false}"#);
    // Those have the places of the earlier ones at the NIC, and tell of themselves alone.
    let again = |number: u64| {
        let to = if number % 2 == 0 { &to_b } else { &to_c };
        endpoint
            .write(to, 8 * number, &number.to_le_bytes())
            .begin()
    };
    let again = (16..316).map(again).collect::<Result<Vec<_>, _>>();
    drop((requests, dropped));
    let ends = wait_all(&mut again.unwrap(), Some(SOON)).unwrap();
    for (number, end) in (16..).zip(ends) {
        assert_eq!((end.offset, end.length), (8 * number, 8));
    }
    assert_eq!(c.word(8 * 315), 315);
    endpoint.flush().timeout(SOON).wait().unwrap();
}
