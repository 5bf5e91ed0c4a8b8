//! How long the stages of operations are, by a clock that the test moves; what tables show of a NIC.

use qnic_abi::atomic::Function;
use qnic_nic::stages::PERIOD;
use qnic_nic::testing::{page, LossyWire, Net, Pair, Party};
use qnic_nic::{Limits, TableKind};

/// The times of a kind and a stage at a node: bound of the bucket, number.
fn times(net: &Net, node: usize, kind: &str, stage: &str) -> Vec<(u64, u64)> {
    let stages = net.cluster().nodes[node].nic.stages();
    let mut found = stages
        .iter()
        .filter(|report| report.kind == kind && report.stage == stage);
    let report = found.next();
    assert!(found.next().is_none(), "{stages:?}");
    let buckets = report.iter().flat_map(|report| &report.buckets);
    let buckets = buckets.map(|(bound, count)| (bound.unwrap_or(u64::MAX), *count));
    buckets.collect()
}

fn count(net: &Net, node: usize, kind: &str, stage: &str) -> u64 {
    let times = times(net, node, kind, stage);
    times.iter().map(|(_, count)| count).sum()
}

/// Times of no length.
const AT_ONCE: u64 = 64;

#[test]
fn a_wait_for_a_page_shows_in_the_stage_that_waits() {
    let Pair { net, a, b } = &Pair::lossless();
    net.answer_faults(false);

    // The source is absent: the command waits before its first frame.
    a.write(b).from(page(1)).to(page(1)).bytes(8).issue();
    net.run();
    net.advance(10_000);
    net.answer_all(0, 1);
    // Then the destination is, at the other node.
    net.advance(100_000);
    net.answer_all(1, 1);
    net.settle();

    assert_eq!(times(net, 0, "write", "queued"), [(10_240, 1)]);
    assert_eq!(times(net, 0, "write", "sending"), [(AT_ONCE, 1)]);
    assert_eq!(times(net, 0, "write", "answered"), [(114_688, 1)]);
    assert_eq!(times(net, 1, "write", "delivered"), [(114_688, 1)]);
    assert_eq!(count(net, 0, "write", "published"), 1);
    assert_eq!(count(net, 0, "write", "delivered"), 0, "nothing came here");
    assert_eq!(count(net, 1, "write", "queued"), 0, "nothing began there");
}

#[test]
fn a_slow_wire_shows_as_the_time_to_the_answer() {
    const DELAY: u64 = 100_000;
    let net = Net::lossy(2, LossyWire::steady(DELAY), 1);
    let Pair { net, a, b } = &Pair::on(net);
    b.atomic(Function::FetchAdd, a, [1, 0]).run();
    b.read(a).bytes(8).run();
    let round_trip = 2 * DELAY..=2 * DELAY * 5 / 4;
    let times = times(net, 1, "atomic", "answered");
    let [(bound, 1)] = times[..] else {
        panic!("{times:?}");
    };
    assert!(round_trip.contains(&bound), "{times:?}");
    assert_eq!(
        count(net, 1, "read", "answered"),
        0,
        "the first command only"
    );
}

#[test]
fn one_of_many_is_sampled_whatever_alternates() {
    let Pair { net, a, b } = &Pair::lossless();
    let periods = 4;
    for _ in 0..u64::from(PERIOD) * periods {
        a.inline_write(b, b"8 bytes.").run();
        a.read(b).bytes(8).run();
    }
    for kind in ["write", "read"] {
        for stage in ["queued", "sending", "answered"] {
            assert_eq!(count(net, 0, kind, stage), periods, "{kind} {stage}");
        }
    }
    // Frames to a node are chosen among all that come. A read's request has a turn, which is no
    // delivery; its response is delivered at home.
    assert_eq!(count(net, 1, "write", "delivered"), periods);
    assert_eq!(count(net, 1, "read", "delivered"), 0);
    assert_eq!(count(net, 0, "read", "delivered"), periods);
}

#[test]
fn what_fails_counts_only_for_what_it_has_passed() {
    let Pair { net, a, b } = &Pair::lossless();
    let mut wrong = b.segment;
    wrong.key ^= 1;
    a.write(wrong).bytes(8).run();
    assert_eq!(a.errors().len(), 1);
    assert_eq!(count(net, 0, "write", "queued"), 1);
    assert_eq!(count(net, 0, "write", "answered"), 0);
    assert_eq!(count(net, 1, "write", "delivered"), 0);
}

#[test]
fn a_reset_forgets_all_times() {
    let Pair { net, a, b } = &Pair::lossless();
    a.write(b).run();
    assert_eq!(count(net, 0, "write", "answered"), 1);
    net.cluster().reset(0);
    net.cluster().start(0);
    assert_eq!(net.cluster().nodes[0].nic.stages(), []);
}

#[test]
fn a_message_has_stages_of_its_own() {
    let Pair { net, a, b } = &Pair::lossless();
    b.receive(1).bytes(0, 8).from(a).tag(5).run();
    net.advance(1_000);
    a.send(2, b).inline(b"8 bytes.").tag(5).run();
    for stage in ["queued", "sending", "answered"] {
        assert_eq!(times(net, 0, "send", stage), [(AT_ONCE, 1)], "{stage}");
    }
    assert_eq!(times(net, 1, "message", "delivered"), [(AT_ONCE, 1)]);
}

/// Each command has a histogram of its own, also one that no frame answers (X6).
#[test]
fn commands_have_histograms_of_their_own() {
    let net = Net::new(2, 256, 8, &Limits::default());
    let groups: Vec<_> = {
        let (a, b) = (net.party(0, 1), net.party(1, 2));
        a.join(1, &a, 9, (0, 2));
        b.join(1, &a, 9, (1, 2));
        net.run();
        assert_eq!(count(&net, 1, "join_group", "completed"), 1);
        let parties = [a, b];
        let group = |party: &Party| party.completions()[0].immediate.get();
        parties.iter().map(group).collect()
    };
    assert!(groups.iter().all(|group| *group != 0));
    let Pair { net, a, b } = &Pair::lossless();
    b.receive(7).bytes(0, 8).from(a).tag(5).run();
    assert_eq!(count(net, 1, "receive", "completed"), 0, "it waits");
    net.advance(1_000);
    a.send(2, b).inline(b"8 bytes.").tag(5).run();
    assert_eq!(times(net, 1, "receive", "completed"), [(1_024, 1)]);
    assert_eq!(times(net, 0, "send", "completed"), [(AT_ONCE, 1)]);
    // The first command of each queue is sampled: here a context, and a probe.
    let Pair { net, a, b } = &Pair::lossless();
    b.receive_context(7).notify().pages(&[3], 0, 8).run();
    a.send_context(4, b).short(b"8 bytes.").run();
    assert_eq!(count(net, 1, "receive_context", "completed"), 1);
    assert_eq!(count(net, 0, "send_context", "completed"), 1);
    let Pair { net, a, .. } = &Pair::lossless();
    a.probe(9).run();
    assert_eq!(
        count(net, 0, "probe", "completed"),
        0,
        "it has found nothing"
    );
}

/// What people see of a NIC (Q9, Q17).
#[test]
fn tables_show_what_a_nic_holds() {
    let net = Net::new(2, 256, 8, &Limits::default());
    let (a, b) = (net.party(0, 1), net.party(1, 2));
    b.register_name(1, ("solver", 3));
    a.join(2, &a, 9, (0, 1));
    a.join(3, &a, 10, (0, 2));
    net.run();
    let table = |kind| net.cluster().nodes[0].nic.table(kind);
    let names = table(TableKind::Names);
    assert_eq!(names.columns, ["application", "process", "node", "port"]);
    assert_eq!(names.rows, [["solver", "3", "1", "102"]]);
    let groups = table(TableKind::Groups).rows;
    assert_eq!(groups[0][2..], ["1", "1", "0", "0", "runs"]);
    assert_eq!(groups[1][2..], ["2", "1", "0", "0", "waits for members"]);
    let queues = table(TableKind::Queues);
    assert_eq!(queues.rows.len(), 1);
    assert_eq!(queues.rows[0][..4], ["1", "101", "active", "2"]);
    let map = table(TableKind::Map).rows;
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let mut end = 0;
    for part in &map {
        assert_eq!(number(&part[1]), end, "{part:?}: no gap, nothing twice");
        end += part[2].parse::<u64>().unwrap();
    }
    assert!(end <= net.cluster().nodes[0].nic.geometry().sram_bytes);
    assert!(!names.truncated);
}
