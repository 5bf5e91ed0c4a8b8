//! Messages that are looked for, claimed and discarded before anything receives them (Q4;
//! docs/messages.md, "Probe, claim and discard"): a story for each rule.

use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::message::ProbeCommand;
use qnic_abi::Status;
use qnic_nic::testing::{page, scarce_nets, status, LossyWire, Net, Pair, Party, Posting, PAGE};
use qnic_nic::Limits;

/// Longer than any frame of a short message.
const LONG: u64 = 5 * PAGE + 77;

/// Number of the message that a probe claims.
#[track_caller]
fn claim(party: &Party) -> u64 {
    party.probe(70).claim().run();
    let entry = party.completion();
    assert_eq!((entry.handle.get(), status(&entry)), (70, Status::Ok));
    assert_ne!(entry.offset, 0);
    entry.offset.get()
}

#[test]
fn what_is_probed_is_what_the_next_receive_gets() {
    for net in scarce_nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        b.probe(1).run();
        assert_eq!(b.ends(), [(1, Status::NoMessage)], "it answers at once");
        for length in [0, 100, PAGE, LONG, 40 * PAGE] {
            let bytes = a.fill(17, length, length + 1);
            a.send(1, &b).bytes(17, length).tag(5).immediate(9).run();
            for _ in 0..2 {
                b.probe(2).from(&a).tag(5).run();
                let entry = b.completion();
                assert_eq!((entry.handle.get(), status(&entry)), (2, Status::Ok));
                assert_eq!(entry.kind, CompletionKind::Probe as u8);
                assert_eq!((entry.tag.get(), entry.length.get()), (5, length));
                assert_eq!((entry.immediate.get(), entry.offset.get()), (9, 0));
                assert_eq!((entry.node.get(), entry.port.get()), (0, a.port.0));
            }
            if length > PAGE {
                assert_eq!(a.ends(), [], "its bytes are still at its source");
            }
            b.receive(3).bytes(33, length).run();
            assert_eq!(b.ends(), [(3, Status::Ok)]);
            assert_eq!(a.ends(), [(1, Status::Ok)]);
            assert!(b.holds(33, &bytes));
        }
        net.assert_holds_nothing(1);
    }
}

#[test]
fn probes_tell_sources_tags_spaces_and_endpoints_apart() {
    for net in scarce_nets(3, 4) {
        let c = net.party(2, 4);
        let Pair { net: _, a, b } = Pair::on(net);
        a.send(1, &b).tag(7).immediate(1).run();
        c.send(2, &b).tag(8).immediate(2).run();
        a.send(3, &b).tag(8).immediate(3).run();
        a.send(4, &b).untagged().immediate(4).run();
        a.send(5, &b).tag(7).endpoint(3).immediate(5).run();
        let found = |probe: Posting<'_, ProbeCommand>| {
            probe.run();
            let entry = b.completion();
            let immediate = entry.immediate.get();
            (status(&entry) == Status::Ok).then_some(immediate)
        };
        assert_eq!(found(b.probe(0)), Some(1), "the first that came");
        assert_eq!(found(b.probe(0).tag(8)), Some(2));
        assert_eq!(found(b.probe(0).from(&a).tag(8)), Some(3));
        assert_eq!(found(b.probe(0).from(&c)), Some(2));
        assert_eq!(found(b.probe(0).from(&c).tag(7)), None);
        assert_eq!(found(b.probe(0).untagged()), Some(4));
        assert_eq!(found(b.probe(0).endpoint(3)), Some(5));
        assert_eq!(found(b.probe(0).endpoint(4)), None);
    }
}

#[test]
fn a_claimed_message_is_hidden_and_goes_to_the_receive_that_names_it() {
    for net in scarce_nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        for length in [0, 50, LONG] {
            let bytes = a.fill(0, length, 3);
            a.send(1, &b).bytes(0, length).immediate(11).run();
            let first = claim(&b);
            b.probe(2).run();
            assert_eq!(b.ends(), [(2, Status::NoMessage)]);
            b.receive(3).bytes(0, 8).run();
            assert_eq!(b.ends(), [], "no other receive takes it");
            a.send(4, &b).inline(b"for all!").immediate(12).run();
            assert_eq!(b.ends(), [(3, Status::Ok)]);
            assert!(b.holds(0, b"for all!"));
            b.receive_claimed(5, first).bytes(99, length).run();
            let entry = b.completion();
            assert_eq!((entry.handle.get(), status(&entry)), (5, Status::Ok));
            assert_eq!(entry.kind, CompletionKind::Receive as u8);
            assert_eq!(
                (entry.immediate.get(), entry.length.get(), entry.node.get()),
                (11, length, 0)
            );
            assert!(b.holds(99, &bytes));
            let mut sent = a.ends();
            sent.sort_unstable_by_key(|end| end.0);
            assert_eq!(sent, [(1, Status::Ok), (4, Status::Ok)]);
            b.receive_claimed(6, first).bytes(0, 8).run();
            assert_eq!(b.ends(), [(6, Status::NoMessage)], "once");
        }
        net.assert_holds_nothing(0);
        net.assert_holds_nothing(1);
    }
}

#[test]
fn claimed_messages_are_received_in_any_order_and_truncated_as_others() {
    for net in scarce_nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        let bytes = a.fill(0, 4 * LONG, 8);
        for number in 0..4 {
            a.send(number, &b).bytes(number * LONG, LONG).run();
        }
        let claims: Vec<u64> = (0..4).map(|_| claim(&b)).collect();
        for number in [2u64, 0, 3] {
            let receive = b.receive_claimed(number, claims[number as usize]);
            receive.bytes(number * LONG, LONG).run();
            assert_eq!(b.ends(), [(number, Status::Ok)]);
            assert_eq!(a.ends(), [(number, Status::Ok)]);
            let from = (number * LONG) as usize;
            assert!(b.holds(number * LONG, &bytes[from..from + LONG as usize]));
        }
        b.receive_claimed(1, claims[1]).bytes(LONG, 1000).run();
        assert_eq!(b.ends(), [(1, Status::Truncated)]);
        assert_eq!(a.ends(), [(1, Status::Truncated)]);
        net.assert_holds_nothing(1);
    }
}

#[test]
fn what_is_discarded_ends_at_its_source() {
    for net in scarce_nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        for (length, sent) in [(0, Status::Ok), (50, Status::Ok), (LONG, Status::Truncated)] {
            // Found and discarded; claimed and discarded; awaited.
            for way in 0..3 {
                let send = a.send(1, &b).bytes(0, length).immediate(7);
                let discarded = match way {
                    0 => {
                        send.run();
                        b.probe(2).discard().run();
                        b.completion()
                    }
                    1 => {
                        send.run();
                        let claimed = claim(&b);
                        b.receive_claimed(2, claimed).discard().run();
                        b.completion()
                    }
                    _ => {
                        b.probe(2).discard().wait().run();
                        send.run();
                        b.completion()
                    }
                };
                assert_eq!(
                    (discarded.handle.get(), status(&discarded)),
                    (2, Status::Ok)
                );
                assert_eq!(
                    (discarded.immediate.get(), discarded.length.get()),
                    (7, length)
                );
                assert_eq!(a.ends(), [(1, sent)], "{length} {way}");
                b.probe(3).run();
                assert_eq!(b.ends(), [(3, Status::NoMessage)]);
                net.assert_holds_nothing(0);
                net.assert_holds_nothing(1);
            }
        }
    }
}

#[test]
fn probes_that_wait_see_what_no_receive_takes_in_their_order() {
    for net in scarce_nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        b.receive(1).tag(5).run();
        b.probe(2).tag(5).wait().run();
        a.send(1, &b).tag(5).immediate(1).run();
        assert_eq!(
            b.ends(),
            [(1, Status::Ok)],
            "the receive is before the probe"
        );
        b.probe(3).from(&a).wait().run();
        b.probe(4).tag(5).wait().claim().run();
        b.probe(5).wait().run();
        b.probe(6).tag(6).wait().run();
        b.receive(7).tag(6).run();
        a.send(2, &b).tag(5).immediate(2).bytes(0, LONG).run();
        let entries = b.completions();
        let found = |it: &CompletionEntry| (it.handle.get(), it.immediate.get());
        let found: Vec<_> = entries.iter().map(found).collect();
        assert_eq!(found, [(2, 2), (3, 2), (4, 2)], "the claim hides it");
        let claimed = entries[2].offset.get();
        a.send(3, &b).tag(7).immediate(3).run();
        let entry = b.completion();
        assert_eq!((entry.handle.get(), entry.immediate.get()), (5, 3));
        b.receive_claimed(8, claimed).bytes(0, LONG).run();
        assert_eq!(b.ends(), [(8, Status::Ok)]);
        b.cancel(6);
        b.cancel(6);
        assert_eq!(b.ends(), [(6, Status::Cancelled)]);
        b.cancel(7);
        assert_eq!(b.ends(), [(7, Status::Cancelled)]);
        b.receive(9).bytes(0, LONG).run();
        assert_eq!(b.ends(), [(9, Status::Ok)]);
        net.assert_holds_nothing(1);
        assert_eq!(net.budget(1, "probes_of_process"), 0);
    }
}

#[test]
fn cancel_takes_back_what_was_posted_first_with_its_handle() {
    let Pair { b, .. } = Pair::scarce();
    b.probe(1).tag(1).wait().run();
    b.receive(1).tag(2).run();
    b.probe(1).tag(3).wait().run();
    for (tag, kind) in [
        (1, CompletionKind::Probe),
        (2, CompletionKind::Receive),
        (3, CompletionKind::Probe),
    ] {
        b.cancel(1);
        let entry = b.completion();
        assert_eq!(status(&entry), Status::Cancelled);
        assert_eq!((entry.tag.get(), entry.kind), (tag, kind as u8));
    }
    b.cancel(1);
    assert_eq!(b.ends(), []);
}

#[test]
fn too_many_probes_fail_one_by_one_and_claims_count_as_messages() {
    let limits = Limits {
        probes: 3,
        staged_bytes: 4 * 256,
        ..Limits::default()
    };
    let Pair { net, a, b } = Pair::on(Net::new(2, 512, 8, &limits));
    for handle in 0..5 {
        b.probe(handle).wait().run();
    }
    let refused = [(3, Status::Exhausted), (4, Status::Exhausted)];
    assert_eq!(b.ends(), refused);
    a.send(0, &b).run();
    assert_eq!(b.ends().len(), 3);
    assert_eq!(net.budget(1, "probes_of_process"), 0);
    let first = claim(&b);
    for number in 1..4 {
        a.send(number, &b).run();
        claim(&b);
    }
    assert_eq!(a.ends().len(), 4);
    assert_eq!(net.budget(1, "messages_of_process"), 4);
    a.send(4, &b).run();
    assert_eq!(a.ends(), [], "it waits for room");
    b.receive_claimed(5, first).discard().run();
    assert_eq!(a.ends(), [(4, Status::Ok)]);
}

#[test]
fn a_claimed_message_stays_staged_and_others_wait_at_their_source() {
    let limits = Limits {
        staged_bytes: 2000,
        ..Limits::default()
    };
    for lossy in [false, true] {
        let net = Net::new(2, 512, 8, &limits);
        if lossy {
            net.cluster().set_lossy_wire(LossyWire::rough(100), 3);
        }
        let Pair { net, a, b } = Pair::on(net);
        let bytes = a.fill(0, 3000, 5);
        for number in 0..3 {
            a.send(number, &b).bytes(number * 1000, 1000).run();
        }
        assert_eq!(a.ends(), [(0, Status::Ok)], "the others are not staged");
        let claims: Vec<u64> = (0..3).map(|_| claim(&b)).collect();
        assert_eq!(net.budget(1, "staged_bytes_of_process"), 1256);
        for number in 0..3u64 {
            let receive = b.receive_claimed(number, claims[number as usize]);
            receive.bytes(number * 1000, 1000).run();
            assert_eq!(b.ends(), [(number, Status::Ok)]);
        }
        assert_eq!(a.ends(), [(1, Status::Ok), (2, Status::Ok)]);
        assert!(b.holds(0, &bytes));
        net.assert_holds_nothing(1);
    }
}

#[test]
fn a_reset_of_the_queue_discards_what_is_claimed_and_drops_probes() {
    for net in scarce_nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        a.send(1, &b).bytes(0, LONG).run();
        a.send(2, &b).bytes(0, 50).run();
        a.send(3, &b).bytes(0, LONG).immediate(3).run();
        let claims = [claim(&b), claim(&b)];
        b.probe(4).tag(9).wait().run();
        assert_eq!(b.reset_queue(), Status::Ok);
        b.clear_queue();
        net.run();
        let mut sent = a.ends();
        sent.sort_unstable_by_key(|end| end.0);
        assert_eq!(sent, [(1, Status::Truncated), (2, Status::Ok)]);
        assert_eq!(net.budget(1, "probes_of_process"), 0);
        assert_eq!(net.budget(1, "messages_of_process"), 1);
        for claimed in claims {
            b.receive_claimed(5, claimed).bytes(0, LONG).run();
            assert_eq!(b.ends(), [(5, Status::NoMessage)]);
        }
        b.receive(6).bytes(0, LONG).run();
        let entry = b.completion();
        assert_eq!((status(&entry), entry.immediate.get()), (Status::Ok, 3));
        net.assert_holds_nothing(0);
        net.assert_holds_nothing(1);
    }
}

#[test]
fn a_process_that_ends_leaves_nothing_that_it_has_claimed() {
    for net in scarce_nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        a.send(1, &b).bytes(0, LONG).run();
        a.send(2, &b).bytes(0, 50).run();
        claim(&b);
        claim(&b);
        b.probe(3).wait().run();
        b.end();
        net.run();
        let mut sent = a.ends();
        sent.sort_unstable_by_key(|end| end.0);
        assert_eq!(sent, [(1, Status::PeerGone), (2, Status::Ok)]);
        net.assert_holds_nothing(1);
        assert_eq!(net.budget(1, "messages_of_process"), 0);
    }
}

#[test]
fn a_sender_that_ends_takes_claims_without_bytes_and_probes_for_it() {
    for net in scarce_nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        let bytes = a.fill(0, LONG, 4);
        a.send(1, &b).bytes(0, 50).run();
        a.send(2, &b).bytes(0, LONG).run();
        let (short, long) = (claim(&b), claim(&b));
        b.probe(3).from(&a).wait().run();
        b.probe(4).wait().run();
        a.end();
        net.run();
        assert_eq!(b.ends(), [(3, Status::PeerGone)]);
        b.receive_claimed(5, long).bytes(0, LONG).run();
        assert_eq!(b.ends(), [(5, Status::NoMessage)]);
        b.receive_claimed(6, short).bytes(0, 50).run();
        assert_eq!(b.ends(), [(6, Status::Ok)], "it had arrived");
        assert!(b.holds(0, &bytes[..50]));
        net.assert_holds_nothing(1);
        let again = net.party(0, 1);
        again.send(1, &b).run();
        assert_eq!(b.ends(), [(4, Status::Ok)]);
    }
}

#[test]
fn a_claim_is_of_its_process_and_survives_a_receive_that_fails() {
    let Pair { net, a, b } = Pair::scarce();
    let c = net.party(1, 3);
    a.send(1, &b).inline(b"mine").run();
    let claimed = claim(&b);
    for number in [claimed, 0, claimed + 1, u64::MAX] {
        c.receive_claimed(2, number).bytes(0, 8).run();
        c.receive_claimed(3, number).discard().run();
        let gone = [(2, Status::NoMessage), (3, Status::NoMessage)];
        assert_eq!(c.ends(), gone);
    }
    a.send(2, &b).inline(b"open").run();
    b.receive_claimed(4, claimed + 1).bytes(0, 8).run();
    assert_eq!(b.ends(), [(4, Status::NoMessage)], "it was not claimed");
    let mut wrong = b.receive_claimed(5, claimed).bytes(0, 8);
    wrong.command.local_key = 1.into();
    wrong.run();
    assert_eq!(b.ends(), [(5, Status::BadKey)]);
    b.receive_claimed(6, claimed).bytes(0, 8).run();
    assert_eq!(b.ends(), [(6, Status::Ok)]);
    assert!(b.holds(0, b"mine"));
}

#[test]
fn a_claimed_message_waits_for_absent_pages() {
    for length in [3000, LONG] {
        let Pair { net, a, b } = Pair::absent(&Limits::default(), &[0, 1, 2, 3, 4, 5]);
        let bytes = a.fill(0, length, 6);
        a.send(1, &b).bytes(0, length).run();
        let claimed = claim(&b);
        b.receive_claimed(2, claimed).bytes(page(0), length).run();
        assert_eq!(b.ends(), []);
        assert!(net.faults(1) > 0);
        net.answer_faults(true);
        net.answer_all(1, 8);
        net.run();
        assert_eq!(b.ends(), [(2, Status::Ok)]);
        assert_eq!(a.ends(), [(1, Status::Ok)]);
        assert!(b.holds(page(0), &bytes));
        net.assert_unlocked();
    }
}
