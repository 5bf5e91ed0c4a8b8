//! What a trip of 8 bytes costs both NICs together, each for itself: one frame under way, as in
//! a ping-pong, without I/O and without processes that wait.
//!
//! `trip notify COUNT` sends COUNT inline writes with a notification, `trip message COUNT` as
//! many tagged messages whose receives are posted before, with the Send of the other direction.
//! Under callgrind, twice, what is not of a trip drops out.

use qnic_nic::testing::{Net, Pair};
use qnic_nic::Limits;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match &arguments[..] {
        [what, count] => count.parse::<u64>().ok().zip(Some(what.as_str())),
        _ => None,
    };
    let Pair { net, a, b } = Pair::on(Net::new(2, 256, 8, &Limits::default()));
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
            eprintln!("usage: trip notify|message COUNT");
            std::process::exit(2);
        }
    }
}
