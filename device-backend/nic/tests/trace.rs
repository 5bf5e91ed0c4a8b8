//! What a trace shows of operations, by a clock that the test moves.

use qnic_abi::atomic::Function;
use qnic_abi::control::{FaultDone, Opcode};
use qnic_abi::datagram::kind::DATAGRAM;
use qnic_abi::rdma::kind::{READ_REQUEST, READ_RESPONSE, WRITE};
use qnic_abi::Status;
use qnic_nic::testing::{page, Datagrams, LossyWire, Net, Pair};
use qnic_nic::trace::{Event, Taken, What};
use qnic_nic::Limits;
use zerocopy::FromZeros;

/// Bytes of a page.
const PAGE: u64 = qnic_abi::PAGE_SIZE as u64;

/// Begins a trace with room for so many events at each node.
fn begin(net: &Net, sample: u32, room: usize) {
    for node in &mut net.cluster().nodes {
        assert!(node.nic.begin_trace(sample, Vec::with_capacity(room)));
    }
}

fn events(taken: &Taken) -> Vec<Event> {
    let events = taken.events.iter();
    events
        .map(|event| Event::try_from(*event).unwrap())
        .collect()
}

/// Ends the traces; what each node has seen, in the order in which it was noted.
fn end(net: &Net) -> Vec<Vec<Event>> {
    let nodes = &mut net.cluster().nodes;
    let taken = nodes.iter_mut().map(|node| node.nic.end_trace());
    taken
        .map(|taken| {
            assert_eq!(taken.lost, 0);
            events(&taken)
        })
        .collect()
}

/// A pair whose session stands, and whose first pages are there.
fn warm() -> Pair {
    let pair = Pair::lossless();
    let Pair { a, b, .. } = &pair;
    a.write(b).bytes(5_000).run();
    a.read(b).bytes(8).run();
    a.atomic(Function::FetchAdd, b, [1, 0]).run();
    pair
}

fn whats(events: &[Event]) -> Vec<What> {
    events.iter().map(|event| event.what).collect()
}

#[test]
fn a_write_is_seen_by_both_nodes_under_one_name() {
    let Pair { net, a, b } = &warm();
    begin(net, 1, 100);
    net.advance(1_000);
    a.write(b).bytes(5_000).run();
    let traces = end(net);
    let (own, far) = (&traces[0], &traces[1]);
    assert_eq!(
        whats(own),
        [What::Fetched, What::Sent, What::Ended, What::Published]
    );
    let fetched = own[0];
    assert_eq!((fetched.bytes, fetched.peer, fetched.at), (5_000, 1, 0));
    assert_eq!((own[2].code, own[2].depth), (Status::Ok.code(), 0));
    assert_eq!((own[2].bytes, own[3].bytes), (1, 2), "the second of two");
    assert!(!far.is_empty());
    for event in far {
        assert_eq!((event.what, event.code), (What::Delivered, WRITE.into()));
        assert_eq!((event.at, event.peer, event.requester), (1, 0, 0));
        assert_eq!(event.operation, fetched.operation);
        assert!(event.detail <= event.time);
    }
    let bytes: u64 = far.iter().map(|event| event.bytes).sum();
    assert_eq!(bytes, 5_000);
}

#[test]
fn a_wait_for_pages_shows_at_the_node_that_waits() {
    let Pair { net, a, b } = &warm();
    begin(net, 1, 100);
    net.answer_faults(false);
    a.write(b).from(page(9)).to(page(9)).bytes(8).issue();
    net.run();
    net.advance(10_000);
    net.answer_all(0, 1);
    net.advance(100_000);
    net.answer_all(1, 1);
    net.settle();
    let traces = end(net);
    let expected = [
        What::Fetched,
        What::Waits,
        What::Resumed,
        What::Sent,
        What::Ended,
        What::Published,
    ];
    assert_eq!(whats(&traces[0]), expected);
    assert_eq!(
        whats(&traces[1]),
        [What::Waits, What::Resumed, What::Delivered]
    );
    assert_eq!(traces[0][2].time - traces[0][1].time, 10_000);
    let delivered = traces[1][2];
    assert_eq!(delivered.time - delivered.detail, 100_000);
}

#[test]
fn a_stored_frame_that_waits_again_shows_both_waits() {
    let Pair { net, a, b } = &warm();
    a.write(b).from(page(9)).to(page(20)).bytes(8).run();
    begin(net, 1, 100);
    net.answer_faults(false);
    a.write(b).from(page(9)).to(page(9)).bytes(8).issue();
    net.run();
    // The driver says that the page is there, but it has been taken away meanwhile.
    let fault = net.cluster().nodes[1].faults.remove(0);
    let answer = FaultDone {
        fault: fault.fault,
        status: Status::Ok.code().into(),
        ..FaultDone::new_zeroed()
    };
    let answered = net.cluster().control(1, Opcode::FaultDone, b.vni, &answer);
    assert_eq!(answered, Status::Ok);
    net.run();
    net.advance(1_000);
    net.answer_all(1, 1);
    net.settle();
    let traces = end(net);
    let expected = [
        What::Waits,
        What::Resumed,
        What::Waits,
        What::Resumed,
        What::Delivered,
    ];
    assert_eq!(whats(&traces[1]), expected);
    let came = traces[1][4].detail;
    assert_eq!([traces[1][0].detail, traces[1][2].detail], [came; 2]);
}

#[test]
fn each_part_of_a_page_span_is_seen_once_and_those_that_wait_later() {
    let Pair { net, a, b } = &warm();
    // The source, and the first page of the destination, are there; two pages behind it are not.
    a.write(b).bytes(3 * PAGE).to(page(20)).run();
    a.write(b).bytes(PAGE).to(page(30)).run();
    begin(net, 1, 100);
    a.write(b).bytes(3 * PAGE).to(page(30)).run();
    let traces = end(net);
    let bytes = |what| {
        let found = traces[1].iter().filter(|event| event.what == what);
        found.map(|event| event.bytes).collect::<Vec<_>>()
    };
    assert_eq!(bytes(What::Waits).len(), 2, "{:?}", traces[1]);
    assert_eq!(bytes(What::Resumed).len(), 2);
    let delivered: u64 = bytes(What::Delivered).iter().sum();
    assert_eq!(delivered, 3 * PAGE);
    assert_eq!(bytes(What::Delivered).len(), 3);
}

#[test]
fn requests_are_queued_and_answered_by_the_other_node() {
    let Pair { net, a, b } = &warm();
    begin(net, 1, 100);
    a.read(b).bytes(8).run();
    a.atomic(Function::FetchAdd, b, [1, 0]).run();
    let traces = end(net);
    assert_eq!(
        whats(&traces[1]),
        [What::Queued, What::Responded, What::Delivered]
    );
    let [queued, responded, _] = traces[1][..] else {
        panic!("{traces:?}");
    };
    assert_eq!(
        (queued.code, responded.code),
        (READ_REQUEST.into(), READ_RESPONSE.into())
    );
    assert_eq!((queued.requester, responded.requester), (0, 0));
    let home: Vec<_> = traces[0]
        .iter()
        .filter(|event| event.what == What::Delivered)
        .collect();
    assert_eq!(home.len(), 2, "{:?}", traces[0]);
    for event in home {
        assert_eq!((event.requester, event.at, event.peer), (0, 0, 1));
    }
    let fetched = traces[0].iter().filter(|event| event.what == What::Fetched);
    let described: Vec<_> = fetched.map(|event| (event.bytes, event.detail)).collect();
    assert_eq!(described[1].1, Function::FetchAdd as u64);
}

#[test]
fn a_refusal_shows_at_both_ends() {
    let Pair { net, a, b } = &Pair::lossless();
    begin(net, 1, 100);
    let mut wrong = b.segment;
    wrong.key ^= 1;
    a.write(wrong).bytes(8).run();
    let traces = end(net);
    let [refused] = traces[1][..] else {
        panic!("{traces:?}");
    };
    assert_eq!(refused.what, What::Refused);
    let find = |what| traces[0].iter().find(|event| event.what == what);
    let (nak, ended) = (find(What::Nak).unwrap(), find(What::Ended).unwrap());
    assert_eq!((nak.code, ended.code), (refused.code, refused.code));
    assert_ne!(refused.code, Status::Ok.code());
    assert_eq!(refused.operation, ended.operation);
}

#[test]
fn a_datagram_shows_where_it_was_received_and_why_it_was_dropped() {
    let net = &Net::new(2, 512, 8, &Limits::default());
    let [a, b] = [0, 1].map(|node| Datagrams::of(net, node));
    a.send(1, 9, b"opens");
    net.run();
    b.post(5, 1);
    begin(net, 1, 100);
    // The first one finds a buffer, the second one none.
    for _ in 0..2 {
        a.send(1, 5, b"8 bytes.");
        net.run();
    }
    let traces = end(net);
    let names: Vec<_> = traces[0]
        .iter()
        .filter(|event| event.what == What::Fetched)
        .map(|event| event.operation)
        .collect();
    let [got, dropped] = traces[1][..] else {
        panic!("{traces:?}");
    };
    assert_eq!([got.operation, dropped.operation], names[..]);
    assert_eq!((got.what, got.bytes, got.port), (What::Delivered, 8, 5));
    assert_eq!((got.at, got.requester, got.peer), (1, 0, 0));
    assert_eq!(dropped.what, What::Refused);
    let why = (dropped.code, dropped.bytes);
    assert_eq!(why, (Status::Exhausted.code(), DATAGRAM.into()));
}

#[test]
fn lost_frames_show_when_they_go_again() {
    let net = Net::lossy(
        2,
        LossyWire {
            loss: 30,
            ..LossyWire::steady(1_000)
        },
        3,
    );
    let Pair { net, a, b } = &Pair::on(net);
    begin(net, 1, 10_000);
    for _ in 0..40 {
        a.inline_write(b, b"8 bytes.").run();
    }
    let traces = end(net);
    let resent = traces[0].iter().filter(|event| event.what == What::Resent);
    let of_writes: Vec<_> = resent.filter(|event| event.code == WRITE.into()).collect();
    assert!(!of_writes.is_empty());
    for event in of_writes {
        assert_eq!((event.requester, event.peer), (0, 1));
    }
}

#[test]
fn both_nodes_choose_the_same_operations() {
    let Pair { net, a, b } = &Pair::lossless();
    begin(net, 5, 1_000);
    for _ in 0..50 {
        a.inline_write(b, b"8 bytes.").run();
    }
    let traces = end(net);
    let names = |node: usize, what| {
        let chosen = traces[node].iter().filter(move |event| event.what == what);
        chosen.map(|event| event.operation).collect::<Vec<_>>()
    };
    let fetched = names(0, What::Fetched);
    assert_eq!(fetched.len(), 10);
    assert_eq!(names(1, What::Delivered), fetched);
    assert_eq!(names(0, What::Ended), fetched);
}

#[test]
fn a_full_buffer_loses_events_and_nothing_else() {
    let Pair { net, a, b } = &warm();
    begin(net, 1, 3);
    for _ in 0..10 {
        a.inline_write(b, b"8 bytes.").run();
    }
    assert!(a.errors().is_empty());
    let nodes = &mut net.cluster().nodes;
    let first = nodes[0].nic.take_trace(Vec::with_capacity(2));
    assert_eq!((first.events.len(), first.events.capacity()), (3, 3));
    let all = 10 * 4;
    assert_eq!(first.lost, all - 3);
    let second = nodes[0].nic.end_trace();
    assert_eq!((second.events.len(), second.lost), (0, 0));
}

#[test]
fn a_trace_survives_a_reset_and_nothing_is_noted_without_one() {
    let Pair { net, a, b } = &Pair::lossless();
    a.write(b).run();
    begin(net, 1, 10);
    net.cluster().reset(0);
    net.cluster().start(0);
    let nodes = &mut net.cluster().nodes;
    assert!(!nodes[0].nic.begin_trace(1, Vec::new()), "it goes on");
    assert_eq!(nodes[0].nic.end_trace().events.len(), 0);
    let Pair { net, a, b } = &Pair::lossless();
    a.write(b).run();
    assert_eq!(net.cluster().nodes[0].nic.end_trace().events.len(), 0);
    begin(net, 1, 100);
    assert_eq!(end(net), [vec![], vec![]]);
}

#[test]
fn the_load_is_what_the_nic_holds() {
    let Pair { net, a, b } = &Pair::lossless();
    net.answer_faults(false);
    begin(net, 1, 100);
    a.write(b).from(page(1)).bytes(8).issue();
    net.run();
    {
        let node = &mut net.cluster().nodes[0];
        node.nic.trace_load(&node.host);
    }
    let traces = end(net);
    let load = traces[0].last().unwrap();
    assert_eq!((load.what, load.bytes, load.depth), (What::Load, 1, 1));
}
