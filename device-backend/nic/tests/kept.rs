//! Frames that the wire keeps: their payloads lie in the sender's locked pages until they arrive,
//! or until the NIC recalls them.

use qnic_abi::control::{Opcode, PathInfo, QueryPath, ReplyHeader, PATH_LOSSLESS};
use qnic_abi::{Status, VniId};
use qnic_nic::testing::{pattern, Net, Pair, PAGE};
use qnic_nic::{Limits, Progress};
use zerocopy::FromBytes;

/// A pair on such a wire, with a session and all pages.
fn pair() -> Pair {
    let net = Net::new(2, 512, 8, &Limits::default());
    net.cluster().keep_frames();
    let pair = Pair::present(net);
    pair.a.write(&pair.b).bytes(8).run();
    pair.b.write(&pair.a).bytes(8).run();
    pair
}

/// No page of node 0 is locked.
fn unlocked(net: &Net) -> bool {
    let node = &net.cluster().nodes[0];
    node.driver.all_unlocked(&node.host)
}

#[test]
fn pages_stay_locked_until_their_frame_arrives() {
    let Pair { net, a, b } = pair();
    let bytes = a.fill(0, 3 * PAGE, 5);
    a.write(&b).bytes(3 * PAGE).issue();
    net.poll(0);
    assert!(!unlocked(&net) && net.cluster().kept_frames() > 0);
    net.poll(0);
    assert!(!unlocked(&net), "another poll changes nothing");
    assert!(!net.cluster().sleeps(0), "there are pages to unlock");
    while net.cluster().arrive() {}
    assert!(b.holds(0, &bytes));
    assert!(!unlocked(&net), "its NIC has not looked");
    net.poll(0);
    assert!(unlocked(&net));
    net.settle();
    assert_eq!((a.done().0, a.errors()), (2, vec![]));
}

/// Locks on the same page end in any order; the count is right after each.
#[test]
fn a_page_may_be_kept_for_several_frames() {
    let Pair { net, a, b } = pair();
    let bytes = a.fill(0, PAGE, 6);
    for number in 0..3 {
        a.write(&b).to(number * 1024).bytes(512).issue();
    }
    net.poll(0);
    for left in (0..3).rev() {
        // The process reads from the page that is kept, and writes to it.
        a.write(&a).to(2048).bytes(512).issue();
        net.poll(0);
        assert!(!unlocked(&net), "{left} frames and one more are left");
        assert!(net.cluster().arrive());
        net.poll(0);
    }
    net.settle();
    assert!(unlocked(&net));
    for number in 0..3 {
        assert!(b.holds(number * 1024, &bytes[..512]));
    }
}

/// N2, N8: nothing is read from a page once the driver has the response to a request.
#[test]
fn a_request_of_the_driver_recalls_what_is_kept() {
    let Pair { net, a, b } = pair();
    let bytes = a.fill(0, 2 * PAGE, 7);
    a.write(&b).bytes(2 * PAGE).issue();
    net.poll(0);
    assert!(!unlocked(&net));
    assert_eq!(a.unexport(a.segment), Status::Ok);
    assert!(unlocked(&net));
    a.store(0, &pattern(8, 2 * PAGE as usize));
    while net.cluster().arrive() {}
    assert!(
        b.holds(0, &bytes),
        "what was sent, not what stands there now"
    );
}

#[test]
fn a_reset_recalls_what_is_kept() {
    let Pair { net, a, b } = pair();
    let bytes = a.fill(0, 2 * PAGE, 9);
    a.write(&b).bytes(2 * PAGE).issue();
    net.poll(0);
    let memory_before = b.memory();
    net.cluster().reset(0);
    assert!(unlocked(&net));
    assert_eq!(b.memory(), memory_before);
    while net.cluster().arrive() {}
    assert!(b.holds(0, &bytes));
}

/// A frame for a NIC that does not run comes back, and ends what runs with it; once.
#[test]
fn a_frame_that_comes_back_ends_its_session_alone() {
    let Pair { net, a, b } = pair();
    let number = a.write(&b).bytes(PAGE).issue();
    net.poll(0);
    net.cluster().reset(1);
    net.run();
    assert_eq!(a.errors(), [(number, Status::PeerGone)]);
    assert!(unlocked(&net));
    let second = a.write(&b).bytes(PAGE).run();
    assert_eq!(a.errors()[1..], [(second, Status::NoSuchNode)]);
    net.cluster().start(1);
    net.advance(20_000_000);
    let b = net.party(1, 2).present();
    a.write(&b).bytes(PAGE).run();
    assert_eq!((a.errors().len(), a.done().0), (2, 4));
    assert_eq!(net.poll(0), Progress::Idle);
}

/// Node 0 knows that the route to node 1 is lossless.
fn knows_the_route(net: &Net) -> bool {
    let query = QueryPath {
        node: 1.into(),
        ..QueryPath::default()
    };
    let mut cluster = net.cluster();
    let (_, reply) = cluster.request(0, Opcode::QueryPath, VniId(0), &query);
    let reply = reply.expect("an answer at once");
    let path = PathInfo::read_from_prefix(&reply[size_of::<ReplyHeader>()..]);
    path.unwrap().0.flags.get() == PATH_LOSSLESS
}

/// Node 1 begins anew while it and node 0 greet each other, and its first write is a span. Node 0
/// takes it, though it has not asked yet what the route of this session is like.
#[test]
fn a_session_that_begins_in_the_middle_of_another_takes_spans() {
    for asks in [false, true] {
        let net = Net::new(2, 512, 8, &Limits::default());
        net.cluster().keep_frames();
        let Pair { a, b, .. } = Pair::present(net.clone());
        b.write(&a).bytes(8).issue();
        net.poll(1);
        a.write(&b).bytes(8).issue();
        net.poll(0);
        assert!(net.cluster().arrive(), "the Hello of node 1");
        net.cluster().reset(1);
        net.cluster().start(1);
        let b = net.party(1, 2).present();
        let bytes = b.fill(0, 6 * PAGE, 5);
        b.write(&a).bytes(6 * PAGE).notify(5).issue();
        if asks {
            net.poll(1);
        }
        // Node 0 has no turn between what begins the session and the write.
        assert!(net.cluster().arrive(), "the Hello of node 0");
        net.poll(1);
        while net.cluster().arrive() {}
        net.settle();
        assert!(a.holds(0, &bytes), "asks: {asks}");
        b.write(&a).bytes(6 * PAGE).notify(5).run();
        assert_eq!((a.signals(5), b.done(), b.errors()), (2, (2, 0), vec![]));
        assert_eq!(net.counters(0).frames_outside, 0);
        assert!(knows_the_route(&net));
    }
}
