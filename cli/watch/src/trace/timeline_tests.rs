//! What is promised of the file, for events of every kind.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::trace::calls::tests::barrier;
use crate::trace::operations::tests::{collected, write as a_write};

fn written(collected: &Collected) -> (Value, u64) {
    let operations = Operations::of(collected);
    let mut out = Vec::new();
    let arrows = write(&mut out, collected, &operations).unwrap();
    (serde_json::from_slice(&out).unwrap(), arrows)
}

fn events(file: &Value) -> impl Iterator<Item = &Value> {
    file["traceEvents"].as_array().unwrap().iter()
}

/// Nanoseconds of a time in the file.
fn nanoseconds(value: &Value) -> u64 {
    (value.as_f64().unwrap() * 1e3).round() as u64
}

/// Begin and end of each slice, by track, in the order in which a reader takes them.
fn by_track(file: &Value) -> BTreeMap<(u64, u64), Vec<(u64, u64)>> {
    let mut tracks: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in events(file).filter(|event| event["ph"] == "X") {
        let track = ["pid", "tid"].map(|key| event[key].as_u64().unwrap());
        let from = nanoseconds(&event["ts"]);
        let span = (from, from + nanoseconds(&event["dur"]));
        tracks.entry((track[0], track[1])).or_default().push(span);
    }
    for slices in tracks.values_mut() {
        slices.sort_by_key(|slice| slice.0);
    }
    tracks
}

/// Checks that slices of each track lie in each other or behind each other.
fn check_nesting(file: &Value) {
    for slices in by_track(file).values() {
        let mut open: Vec<(u64, u64)> = Vec::new();
        for slice in slices {
            while open.last().is_some_and(|outer| outer.1 <= slice.0) {
                open.pop();
            }
            if let Some(outer) = open.last() {
                assert!(slice.1 <= outer.1, "{slice:?} sticks out of {outer:?}");
            }
            open.push(*slice);
        }
    }
}

/// Checks that each arrow has one beginning and one end, each in a slice. Returns their number.
fn check_arrows(file: &Value) -> usize {
    let tracks = by_track(file);
    let mut ends: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    for event in events(file).filter(|event| event["ph"] == "s" || event["ph"] == "f") {
        let track = ["pid", "tid"].map(|key| event[key].as_u64().unwrap());
        let time = nanoseconds(&event["ts"]);
        let slices = &tracks[&(track[0], track[1])];
        let within = |slice: &(u64, u64)| slice.0 <= time && time <= slice.1;
        assert!(slices.iter().any(within), "{event}");
        let id = event["id"].as_u64().unwrap();
        let phase = event["ph"].as_str().unwrap().to_owned();
        assert!(ends.entry(id).or_default().insert(phase), "{event}");
    }
    assert!(ends.values().all(|ends| ends.len() == 2), "{ends:?}");
    ends.len()
}

#[test]
fn a_write_has_its_stages_and_an_arrow() {
    let (file, arrows) = written(&collected(a_write()));
    check_nesting(&file);
    assert_eq!((check_arrows(&file), arrows), (1, 1));
    let slices = events(&file).filter(|event| event["ph"] == "X");
    let shown: Vec<_> = slices
        .map(|event| {
            let name = event["name"].as_str().unwrap();
            let (from, long) = (nanoseconds(&event["ts"]), nanoseconds(&event["dur"]));
            (event["pid"].as_u64().unwrap(), name, from, long)
        })
        .collect();
    let expected = [
        (1, "write 8 B to b", 0, 120),
        (1, "queued", 0, 10),
        (1, "sending", 10, 1),
        (1, "answered", 11, 89),
        (1, "published", 100, 20),
        (2, "Write 8 B", 50, 10),
    ];
    assert_eq!(shown, expected);
    let names = events(&file).filter(|event| event["ph"] == "M");
    let names: Vec<_> = names.filter_map(|it| it["args"]["name"].as_str()).collect();
    assert_eq!(names, ["a (node 0)", "b (node 1)", "port 7", "from a"]);
}

#[test]
fn a_collective_has_the_calls_of_its_members_and_an_arrow_for_each_frame() {
    let (file, arrows) = written(&barrier());
    check_nesting(&file);
    assert_eq!((check_arrows(&file), arrows), (2, 2));
    let slices = events(&file).filter(|event| event["ph"] == "X");
    let names: Vec<_> = slices
        .map(|it| (it["pid"].as_u64().unwrap(), it["name"].as_str().unwrap()))
        .collect();
    let expected = [
        (1, "Barrier 0"),
        (1, "gathers"),
        (1, "waits for the result"),
        (1, "delivers"),
        (1, "CollectiveUp"),
        (2, "CollectiveUp"),
        (2, "Barrier 0"),
        (2, "gathers"),
        (2, "delivers"),
        (2, "CollectiveDown"),
        (1, "CollectiveDown"),
    ];
    assert_eq!(names, expected);
}

#[test]
fn what_overlaps_has_lanes_of_its_own_and_what_follows_has_not() {
    let mut all = Vec::new();
    for (number, later) in [(1, 0), (2, 50), (3, 1_000)] {
        all.extend(a_write().into_iter().map(|event| Event {
            operation: number << 24,
            time: event.time + later,
            detail: event.detail + if event.detail > 0 { later } else { 0 },
            ..event
        }));
    }
    all.sort_by_key(|event| event.time);
    let (file, arrows) = written(&collected(all));
    check_nesting(&file);
    assert_eq!((check_arrows(&file), arrows), (3, 3));
    let tracks: Vec<_> = by_track(&file).into_keys().collect();
    assert_eq!(
        tracks,
        [(1, 1), (1, 2), (2, 1)],
        "the frames do not overlap"
    );
}

#[test]
fn lost_events_are_shown_and_counted() {
    let mut lost = a_write();
    lost.push(Event {
        what: What::Lost,
        bytes: 77,
        time: 300,
        ..lost[0]
    });
    let mut collected = collected(lost);
    collected.lost.insert(0, 77);
    collected.beyond = 5;
    let (file, _) = written(&collected);
    assert_eq!(file["otherData"]["events lost at"]["a"], 77);
    assert_eq!(file["otherData"]["events beyond the limit"], 5);
    let name = "77 events lost up to here: the buffer was full";
    assert!(events(&file).any(|event| event["ph"] == "i" && event["name"] == name));
}

#[test]
fn a_trace_of_nothing_is_a_file() {
    let (file, arrows) = written(&Collected::default());
    assert_eq!((events(&file).count(), arrows), (0, 0));
}

fn any_event() -> impl Strategy<Value = Event> {
    let times = (0u64..300, 0u64..300, 0u64..4);
    let nodes = (0u16..3, 0u16..3, 0u16..3);
    let what = prop::sample::select(&What::ALL[..]);
    let what = (what, prop::sample::select(&Scope::ALL[..]));
    (times, nodes, 0u64..4, 0u32..300, 0u16..3, what).prop_map(
        |((time, detail, bytes), (at, requester, peer), number, code, port, (what, scope))| Event {
            time: 1_000 + time,
            scope,
            operation: number << 24,
            what,
            at,
            requester,
            peer,
            port,
            code,
            depth: 1,
            bytes,
            detail: if detail == 0 { 0 } else { 1_000 + detail },
        },
    )
}

proptest! {
    /// Whatever NICs say: events may be lost, and peers lie.
    #[test]
    fn any_events_become_a_file_whose_slices_nest_and_whose_arrows_have_two_ends(
        mut all in prop::collection::vec(any_event(), 0..60),
    ) {
        all.sort_by_key(|event| event.time);
        let (file, arrows) = written(&collected(all));
        check_nesting(&file);
        prop_assert_eq!(check_arrows(&file) as u64, arrows);
    }
}

#[test]
fn a_frame_that_is_not_taken_says_what_it_was_and_why() {
    let kinds = [qnic_abi::rdma::kind::WRITE, DATAGRAM];
    let refused = kinds.map(|kind| Event {
        what: What::Refused,
        code: qnic_abi::Status::Exhausted.code(),
        bytes: kind.into(),
        detail: 150 + u64::from(kind),
        time: 500,
        ..a_write()[2]
    });
    let events = a_write().into_iter().take(2).chain(refused);
    let (file, _) = written(&collected(events.collect()));
    for name in ["Write refused: Exhausted", "Datagram dropped: Exhausted"] {
        assert_eq!(
            self::events(&file).filter(|it| it["name"] == name).count(),
            1,
            "{file}"
        );
    }
}
