//! Receives that queue pairs share, unreliable connections and datagrams (X18).

use qnic_abi::verbs::requests::Object;
use qnic_abi::verbs::{Event, Outcome, Rights, State};
use qnic_abi::Status;
use qnic_nic::testing::{
    page, receive_entry, token, Net, Pair, ProgramRing, VerbsParty, QP_A as A, QP_B as B, SRQ,
};

const OK: u32 = Outcome::Success as u32;

/// Two pairs of queue pairs, of which those of `b` share the receives that it posts.
fn sharing() -> (Net, VerbsParty, VerbsParty, ProgramRing) {
    let Pair { net, a, b } = Pair::lossless();
    let (a, b) = (VerbsParty::new(a, 64), VerbsParty::new(b, 64));
    let (status, ring) = b.create_shared(16, 0);
    assert_eq!(status, Status::Ok);
    for offset in 0..2 {
        a.create(A + offset, 16);
        assert_eq!(b.create_sharing(B + offset, 16), Status::Ok);
        a.connect(A + offset, (1, B + offset));
        b.connect(B + offset, (0, A + offset));
    }
    (net, a, b, ring)
}

/// They are taken in the order of their posting, by whichever queue pair needs one; one that finds none
/// waits as if they were its own.
#[test]
fn queue_pairs_share_receives() {
    let (net, a, b, ring) = sharing();
    let keys = [&a, &b].map(|it| it.register(Rights::all()).unwrap());
    let bytes = a.party.fill(0, 5 * 6000, 4);
    let at = |id: u64| b.sge(id * 6000, 6000, keys[1]);
    for id in 0..3 {
        assert!(ring.post(&b.party, &receive_entry(id, &[at(id)])));
    }
    for id in 0..5 {
        let qp = A + (id % 2) as u32;
        a.send(qp, id, &[a.sge(id * 6000, 6000, keys[0])]).post();
        net.run();
    }
    let ends = |expected: &[(u64, u32)]| {
        let polled = std::iter::from_fn(|| b.poll());
        let polled: Vec<_> = polled.map(|it| (it.id.get(), it.qp.get())).collect();
        assert_eq!(polled, expected);
    };
    ends(&[(0, B), (1, B + 1), (2, B)]);
    for id in 3..5 {
        assert!(ring.post(&b.party, &receive_entry(id, &[at(id)])));
        net.advance(641_000);
        net.run();
    }
    assert_eq!(a.ends().len(), 5);
    assert!(b.party.holds(0, &bytes[..18_000]));
    assert_eq!(b.poll_all().len(), 2);
    assert_eq!(ring.posted(&b.party), 0);
    net.assert_unlocked();
}

/// Once, when fewer receives are left than the limit; at once, if they are fewer when it is set.
#[test]
fn a_shared_receive_queue_tells_that_few_are_left() {
    let (net, a, b, ring) = sharing();
    let reached = [(token(SRQ), Event::LimitReached as u16)];
    for id in 0..5 {
        assert!(ring.post(&b.party, &receive_entry(id, &[])));
    }
    let send = || {
        a.send(A, 1, &[]).post();
        net.run();
    };
    assert_eq!(b.limit_shared(4), Status::Ok);
    send();
    assert_eq!(b.events(), [], "four are left");
    a.send(A, 1, &[]).post();
    net.run();
    assert_eq!(b.events(), reached);
    send();
    assert_eq!(b.events(), [], "it was told once");
    assert_eq!(b.limit_shared(3), Status::Ok);
    net.run();
    assert_eq!(b.events(), reached, "two are left");
    assert_eq!(b.limit_shared(1), Status::Ok);
    assert_eq!(b.limit_shared(0), Status::Ok);
    send();
    send();
    assert_eq!((b.ends().len(), b.events()), (5, vec![]));
    // It ends, and with it what it would tell; what uses it finds no receive.
    assert_eq!(b.limit_shared(1), Status::Ok);
    assert_eq!(b.destroy(Object::SharedReceiveQueue, SRQ), Status::Ok);
    assert!(ring.post(&b.party, &receive_entry(9, &[])));
    a.send(A, 9, &[]).post();
    net.run();
    assert_eq!((b.ends(), b.events()), (vec![], vec![]));
    assert_eq!(b.limit_shared(1), Status::Malformed);
}

/// A receive that is wrong fails the queue pair whose message has taken it, and what it had taken; the
/// others go on with what is left.
#[test]
fn a_queue_pair_that_fails_leaves_the_shared_receives_of_others() {
    let (net, a, b, ring) = sharing();
    let keys = [&a, &b].map(|it| it.register(Rights::all()).unwrap());
    let wrong = b.sge(0, 100, 1);
    for (id, sge) in [(1, wrong), (2, b.sge(0, 100, keys[1]))] {
        assert!(ring.post(&b.party, &receive_entry(id, &[sge])));
    }
    a.send(A, 5, &[a.sge(0, 100, keys[0])]).post();
    a.send(A + 1, 6, &[a.sge(0, 100, keys[0])]).post();
    net.run();
    let protection = Outcome::LocalProtection as u32;
    assert_eq!(b.ends(), [(1, protection), (2, OK)]);
    let remote = Outcome::RemoteOperation as u32;
    let mut ends = a.ends();
    ends.sort_unstable();
    assert_eq!(ends, [(5, remote), (6, OK)]);
    assert_eq!(b.events(), [(token(B), Event::LastReceive as u16)]);
    // One that has taken a receive and waits for its page flushes that one alone.
    net.answer_faults(false);
    b.party.evict(page(1));
    for id in 3..5 {
        let sge = b.sge(page(1), 100, keys[1]);
        assert!(ring.post(&b.party, &receive_entry(id, &[sge])));
    }
    a.send(A + 1, 7, &[a.sge(0, 100, keys[0])]).post();
    net.run();
    let failed = b.attributes(B + 1, State::Failed, (0, A + 1));
    assert_eq!(b.modify(&failed), Status::Ok);
    net.run();
    assert_eq!(b.ends(), [(3, Outcome::Flushed as u32)]);
    assert_eq!(ring.posted(&b.party), 1);
    // Requests that cannot be.
    assert_eq!(b.create_shared(16, 0).0, Status::NameExists);
    assert_eq!(a.create_sharing(77, 16), Status::Malformed);
    let (mut body, made) = b.queue_pair_request(77, 16);
    body.srq = SRQ.into();
    assert_eq!(
        b.add(&body, made),
        Status::Malformed,
        "it names a ring, too"
    );
    net.answer_all(1, 9);
    net.assert_unlocked();
}
