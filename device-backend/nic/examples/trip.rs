//! What a trip of 8 bytes costs both NICs together, each for itself: one frame under way, as in
//! a ping-pong, without I/O and without processes that wait.
//!
//! `trip notify COUNT` sends COUNT inline writes with a notification, `trip message COUNT` as
//! many tagged messages whose receives are posted before, with the Send of the other direction.
//! Under callgrind, twice, what is not of a trip drops out. With a third number N, both NICs trace
//! every Nth operation.

use qnic_nic::testing::{Net, Pair};
use qnic_nic::Limits;

/// Events that a traced NIC has room for: all of some thousand trips.
const ROOM: usize = 1 << 17;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match &arguments[..] {
        [what, count] | [what, count, _] => count.parse::<u64>().ok().zip(Some(what.as_str())),
        _ => None,
    };
    let sample = arguments.get(2).map(|sample| sample.parse::<u32>());
    let Pair { net, a, b } = Pair::on(Net::new(2, 256, 8, &Limits::default()));
    // As the wire within an engine has them.
    net.cluster().receipts = true;
    if let Some(Ok(sample)) = sample {
        for node in &mut net.cluster().nodes {
            assert!(node.nic.begin_trace(sample, Vec::with_capacity(ROOM)));
        }
    }
    let late = Limits::default().ack_delay + 1;
    match parsed {
        Some((count, "notify")) => {
            for trip in 0..count {
                let (from, to) = [(&a, &b), (&b, &a)][trip as usize % 2];
                from.inline_write(to, b"8 bytes.").notify(1).run();
                assert_eq!(to.signals(1), trip / 2 + 1);
            }
            net.advance(late);
        }
        Some((count, "message")) => {
            b.receive(1).bytes(0, 8).from(&a).tag(5).run();
            for trip in 0..count {
                let (from, to) = [(&a, &b), (&b, &a)][trip as usize % 2];
                from.receive(1).bytes(0, 8).from(to).tag(5).issue();
                from.send(2, to).inline(b"8 bytes.").tag(5).run();
                assert!(!to.completions().is_empty());
            }
        }
        _ => {
            eprintln!("usage: trip notify|message COUNT [SAMPLE]");
            std::process::exit(2);
        }
    }
    for node in &mut net.cluster().nodes {
        assert_eq!(node.nic.end_trace().lost, 0);
    }
}
