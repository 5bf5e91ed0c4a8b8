//! The promises of docs/requirements.md beside what a run has measured: what, at the start, goal and
//! now. Those that are missed stand in [`bottleneck`](super::bottleneck), too.

use super::figures::Figure;
use super::goal::Of;
use super::record::Run;
use super::text::{number, ratio_text};

/// What is promised.
struct Promise {
    code: &'static str,
    what: &'static str,
    /// What was known when this table was begun.
    start: &'static str,
    goal: &'static str,
    /// The figures that it is read from, by their ids.
    figures: &'static [&'static str],
}

const PROMISES: &[Promise] = &[
    Promise {
        code: "P1",
        what: "1 MiB writes, of memcpy: host mode; guests",
        start: "0.72 to 1.03; 0.78",
        goal: "≥ 0.9",
        figures: &[
            "host/transfers/write-1048576/stream-mb-s",
            "vm/transfers/write-1048576/stream-mb-s",
        ],
    },
    Promise {
        code: "P2",
        what: "4 KiB writes, of memcpy: host mode",
        start: "-",
        goal: "≥ 0.6",
        figures: &["host/transfers/write-4096/stream-mb-s"],
    },
    Promise {
        code: "P3",
        what: "8-byte write between guests: Soft-RoCE and TCP, of its half round trip",
        start: "55; 34",
        goal: "≥ 100; ≥ 60",
        figures: &[
            "peers/guest-latency/soft-roce-ib-write-lat-8/half-round-trip-us",
            "peers/guest-latency/tcp-qperf-8/half-round-trip-us",
        ],
    },
    Promise {
        code: "P4",
        what: "64 KiB writes between guests, of the host's memcpy",
        start: "0.38 to 0.53",
        goal: "≥ 0.8",
        figures: &["vm/transfers/write-65536/stream-mb-s"],
    },
    Promise {
        code: "P5",
        what: "wake-up of a receiver that sleeps, of ivshmem-doorbell's interrupt: handler; poll",
        start: "-",
        goal: "≤ 1.5",
        figures: &[
            "peers/guest-wakeups/qnic-handler/half-round-trip-us",
            "peers/guest-wakeups/qnic-poll-of-a-descriptor/half-round-trip-us",
        ],
    },
    Promise {
        code: "P6",
        what: "engine, 8-byte inline write, both NICs, instructions",
        start: "2,610",
        goal: "≤ 1,500",
        figures: &["engine/packet/lossless-8/both-nics-instructions"],
    },
    Promise {
        code: "P7",
        what: "messages of 8 bytes in host mode, of libfabric's time: shm; libfabric tcp's, of a write",
        start: "0.34; -",
        goal: "≤ 1; ≥ 1",
        figures: &[
            "message/beside-libfabric/message-8/half-round-trip-mean-us",
            "peers/host-latency/libfabric-tcp-8/half-round-trip-us",
        ],
    },
    Promise {
        code: "P8",
        what: "4-byte write by virtual address, of physical; notifying write, of a write",
        start: "1.02; 0.97",
        goal: "≤ 1.05; ≤ 1.55",
        figures: &[
            "memory/by-virtual-address/write-4-b-writep-4-b/here-ratio",
            "sync/notification/writen-4-b-spun/here-ns",
        ],
    },
    Promise {
        code: "P9",
        what: "write of 8 bytes, of the first: 120 endpoints; 64 NICs; 63 peers; 1,000,000 pages",
        start: "8.7; 2.2; 5.4; -",
        goal: "≤ 1.2; ≤ 1.1; ≤ 1.2; ≤ 1.2",
        figures: &[
            "growth/endpoints/8-bytes-120/fenced-us",
            "growth/idle-nics/8-bytes-64/fenced-us",
            "growth/peers/8-bytes-63/fenced-us",
            "growth/pages/8-bytes-1000000/fenced-us",
        ],
    },
    Promise {
        code: "P10",
        what: "device process while two guests are idle, % of a core",
        start: "-",
        goal: "< 1",
        figures: &["vm/boot/two-guests/device-process-idle-percent-of-a-core"],
    },
    Promise {
        code: "P11",
        what: "64 KiB writes at 1 % loss, of loss-free: calls; shared memory; UDP",
        start: "0.87; 0.72; 1.10",
        goal: "≥ 0.7",
        figures: &[
            "wire/links/20-us-delay-1/64-kib-write-mb-s",
            "wire/links/shm-20-us-1/64-kib-write-mb-s",
            "wire/links/udp-20-us-1/64-kib-write-mb-s",
        ],
    },
    Promise {
        code: "P12",
        what: "two guests to a program that has run, seconds",
        start: "4.8",
        goal: "≤ 5",
        figures: &["vm/boot/two-guests/to-a-program-that-has-run-s"],
    },
    Promise {
        code: "P13",
        what: "8-byte writes of one guest, thousands in a second",
        start: "430",
        goal: "≥ 2,000",
        figures: &["vm/transfers/write-8/rate-1000-s"],
    },
    Promise {
        code: "P14",
        what: "64 KiB writes: shared memory, of two copies; UDP, of iperf3",
        start: "0.12; 1.14 to 1.19",
        goal: "≥ 0.8; ≥ 1",
        figures: &[
            "wire/beside-copies/shared-memory/write-mb-s",
            "wire/beside-iperf3/udp/write-mb-s",
        ],
    },
    Promise {
        code: "P15",
        what: "longest poll beside a hostile neighbour, of beside an honest one",
        start: "0.46",
        goal: "≤ 2",
        figures: &["engine/polls/hostile-neighbour/longest-poll-us"],
    },
];

/// The ids of all figures that it shows.
#[cfg(test)]
pub(super) fn figures() -> impl Iterator<Item = &'static str> {
    PROMISES.iter().flat_map(|promise| promise.figures).copied()
}

/// The table.
pub(super) fn table(run: &Run) -> String {
    let mut text = String::from("| | what | at the start | goal | now |\n|---|---|---|---|---|\n");
    for promise in PROMISES {
        let now = promise.figures.iter().map(|id| now(run, id));
        let now: Vec<_> = now.collect();
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} |\n",
            promise.code,
            promise.what,
            promise.start,
            promise.goal,
            now.join("; ")
        ));
    }
    text
}

fn find<'a>(run: &'a Run, id: &str) -> Option<&'a Figure> {
    let mut figures = run.suites.iter().flat_map(|suite| suite.figures());
    figures.find(|figure| figure.id == id)
}

/// What the goal of a figure is compared with, and whether it is met.
fn now(run: &Run, id: &str) -> String {
    let Some(figure) = find(run, id).filter(|figure| figure.spread.is_some()) else {
        return "-".to_owned();
    };
    let of = figure.goal.as_ref().map(|goal| goal.of);
    let value = match (of, &figure.ratio) {
        (Some(Of::Ratio), Some(ratio)) | (None, Some(ratio)) => ratio_text(ratio.value),
        _ => number(figure.median()),
    };
    match figure.goal.as_ref().and_then(|goal| goal.met) {
        Some(false) => format!("**{value}**"),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::{identify, Row, Table};
    use super::super::goal::Goal;
    use super::super::record::tests::run;
    use super::*;

    #[test]
    fn each_promise_stands_beside_its_figure() {
        let mut run = run();
        let stream = Figure::with_spread("stream", "MB/s", vec![500.0]);
        let stream = stream
            .ratio_to("of memcpy", &[1000.0])
            .ratio_goal(Goal::at_least(0.8).code("P4"));
        let rows = vec![Row::new("write", [stream]).size(65_536)];
        run.suites[0].tables = vec![Table::new("transfers", "T", rows)];
        run.suites[0].id = "vm".into();
        identify("vm", &mut run.suites[0].tables);
        let text = table(&run);
        let line = text.lines().find(|line| line.starts_with("| P4 ")).unwrap();
        assert!(line.ends_with("| ≥ 0.8 | **0.50** |"), "{line}");
        let line = text.lines().find(|line| line.starts_with("| P6 ")).unwrap();
        assert!(line.ends_with("| - |"), "{line}");
    }
}
