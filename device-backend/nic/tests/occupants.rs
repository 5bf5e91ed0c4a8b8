//! Reports of a NIC: its processes and its peers.

use qnic_abi::host_area::{COMPLETION_ENTRIES, NOTIFICATION_ENTRIES, SIGNAL_COUNTERS};
use qnic_abi::window::{COMPLETION_HEAD, NOTIFICATION_HEAD};
use qnic_nic::testing::{page, LossyWire, Net, Pair, Party};
use qnic_nic::{Limits, PeerReport, VniReport};

fn report(party: &Party) -> VniReport {
    let cluster = party.net.cluster();
    let node = &cluster.nodes[party.node];
    let mut reports = node.nic.vnis(&node.host).into_iter();
    let found = reports.find(|report| report.vni == party.vni.0);
    found.expect("a process of that VNI")
}

fn peer(net: &Net, node: usize, other: u16) -> PeerReport {
    let peers = net.cluster().nodes[node].nic.peers();
    let mut found = peers.into_iter().filter(|report| report.node == other);
    found.next().expect("a peer of that node")
}

#[test]
fn bytes_are_those_of_the_process_that_moves_them() {
    let Pair { net, a, b } = &Pair::lossless();
    let idle = net.party(0, 3);
    a.write(b).bytes(5_000).run();
    a.read(b).bytes(300).run();
    let (own, far) = (report(a), report(b));
    assert_eq!((own.port, own.pid), (a.port.0, 1));
    assert_eq!((own.commands, own.operations, own.posted), (2, 0, 0));
    assert_eq!((own.bytes_sent, own.bytes_received), (5_000, 300));
    assert_eq!((far.bytes_sent, far.bytes_received), (300, 5_000));
    let none = report(&idle);
    assert_eq!(
        (none.commands, none.bytes_sent, none.queue),
        (0, 0, "asleep")
    );
    let all = net.counters(0);
    assert_eq!(all.bytes_sent, own.bytes_sent);
    assert_eq!(all.bytes_received, own.bytes_received);
}

#[test]
fn bytes_of_messages_count_for_both_processes() {
    let Pair { a, b, .. } = &Pair::lossless();
    b.receive(1).bytes(0, 2_000).run();
    a.send(2, b).bytes(0, 2_000).run();
    assert_eq!(report(a).bytes_sent, 2_000);
    assert_eq!(report(b).bytes_received, 2_000);
}

#[test]
fn what_waits_shows_where_it_waits() {
    let Pair { net, a, b } = &Pair::lossless();
    net.answer_faults(false);
    a.write(b).from(page(1)).bytes(8).issue();
    assert_eq!(report(a).posted, 1, "the NIC has had no turn");
    net.run();
    let waits = report(a);
    assert_eq!((waits.posted, waits.operations, waits.faults), (0, 1, 1));
    // The destination is absent, too.
    net.answer_all(0, 1);
    net.run();
    assert_eq!(report(b).faults, 1);
    assert_eq!((peer(net, 0, 1).under_way, peer(net, 1, 0).held), (1, 1));
    net.answer_all(1, 1);
    net.settle();
    let done = report(a);
    assert_eq!((done.operations, done.faults, done.queue), (0, 0, "asleep"));
    assert_eq!((peer(net, 0, 1).under_way, peer(net, 1, 0).held), (0, 0));
}

#[test]
fn unread_notifications_and_completions_are_counted() {
    let Pair { net, a, b } = &Pair::lossless();
    for number in 0..3 {
        a.signal(b, SIGNAL_COUNTERS + number).run();
    }
    b.register_name(1, ("ring", 4));
    b.register_name(2, ("bell\u{1b}", 4));
    net.run();
    let has = report(b);
    assert_eq!((has.notifications, has.completions), (3, 2));
    assert_eq!(
        has.name.as_deref(),
        Some("bell? 4"),
        "the first, and no control character"
    );
    assert_eq!(report(a).name, None);
    assert_eq!(b.name_ends().len(), 2);
    assert_eq!(report(b).completions, 0, "it has read them");
}

#[test]
fn heads_that_are_none_cost_nothing_but_a_true_number() {
    let Pair { net, b, .. } = &Pair::lossless();
    for head in [u64::MAX, 1 << 40] {
        for word in [COMPLETION_HEAD, NOTIFICATION_HEAD] {
            net.store(1, b.window() + word, head);
        }
        let said = report(b);
        assert!(said.completions <= COMPLETION_ENTRIES);
        assert!(said.notifications <= NOTIFICATION_ENTRIES);
    }
}

#[test]
fn each_process_is_there_as_long_as_it_is_registered() {
    let net = Net::new(1, 512, 8, &Limits::default());
    let parties: Vec<_> = (1..7).map(|vni| net.party(0, vni)).collect();
    parties[2].end();
    let cluster = net.cluster();
    let node = &cluster.nodes[0];
    let vnis: Vec<_> = node.nic.vnis(&node.host).iter().map(|it| it.vni).collect();
    assert_eq!(vnis, [1, 2, 4, 5, 6]);
}

#[test]
fn a_peer_has_its_session_its_credits_and_what_was_sent_again() {
    let wire = LossyWire {
        loss: 30,
        ..LossyWire::steady(1_000)
    };
    let Pair { net, a, b } = &Pair::on(Net::lossy(3, wire, 3));
    for _ in 0..40 {
        a.inline_write(b, b"8 bytes.").run();
    }
    let (own, far) = (peer(net, 0, 0), peer(net, 0, 1));
    assert_eq!((own.session, far.session), ("own", "open"));
    assert_eq!(far.window, peer(net, 1, 0).granted);
    assert!(far.window > 0 && far.resent > 0);
    let all = net.counters(0).frames_resent;
    assert_eq!(far.resent, all, "there is no other peer");
    // It begins anew with the same peer: what was counted stays.
    net.cluster().reset(1);
    net.cluster().start(1);
    net.settle();
    assert!(peer(net, 0, 1).resent >= far.resent);
}

#[test]
fn a_session_that_does_not_come_about_is_opening_and_what_waits_for_it_counts() {
    let Pair { net, a, b } = &Pair::on(Net::lossy(2, LossyWire::steady(1_000), 3));
    net.cut(1);
    a.inline_write(b, b"8 bytes.").issue();
    net.poll(0);
    net.poll(0);
    let far = peer(net, 0, 1);
    assert_eq!((far.session, far.window, far.waiting), ("opening", 0, 1));
    assert_eq!(report(a).operations, 1);
}
