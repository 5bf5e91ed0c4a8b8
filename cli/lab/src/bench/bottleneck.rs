//! The bottleneck of a goal that is missed: the stage that takes the time, and its floor, both from the
//! same run.

use super::figures::{Figure, Role, Row};
use super::goal::Of;
use super::record::{Run, SuiteRun};
use super::text::{number, ratio_text};

/// Time, or instructions, of one operation.
enum Amount {
    /// The longest row of a table of stages: of those with so many bytes, if any are given.
    Longest(&'static str, Option<f64>),
    /// What a figure says of one operation.
    Of(&'static str),
    /// The same of a rate of bytes, for so many of them.
    Bytes(&'static str, f64),
    /// What is left of the figure of the goal when the floor of its ratio is taken away.
    BeyondFloor,
    /// What is left of a figure when these are taken away.
    Beyond(&'static str, &'static [&'static str]),
}

use Amount::{Beyond, BeyondFloor, Bytes, Longest, Of as One};

/// The bottleneck of some goals.
struct Rule {
    /// How the ids of their figures begin.
    goals: &'static [&'static str],
    /// The name of the stage; that of the row for [`Longest`].
    stage: &'static str,
    takes: Amount,
    /// What the stage cannot do without.
    floor: (&'static str, Amount),
}

const READ: &str = "sync/operations/read-4-b/here-ns";
const INTERRUPT: &str = "peers/guest-wakeups/ivshmem-doorbell-interrupt/half-round-trip-us";
const COLD: &str = "growth/cold/a-word-that-no-cache-holds/time-ns";
const BETWEEN_GUESTS: &str = "peers/guest-latency/ivshmem-8/half-round-trip-us";
const OF_GUESTS: &str = "peers/guest-streams/ivshmem-65536/stream-mb-s";

const RULES: &[Rule] = &[
    Rule {
        goals: &["engine/packet/"],
        stage: "",
        takes: Longest("engine/modules", None),
        floor: (
            "a frame filled in, copied and checked",
            One("engine/modules/a-frame-filled-in-copied-and-checked/both-nics-instructions"),
        ),
    },
    Rule {
        goals: &["host/transfers/write-4096/"],
        stage: "",
        takes: Longest("host/stages", Some(4096.0)),
        floor: (
            "memcpy",
            Bytes("host/transfers/write-4096/memcpy-mb-s", 4096.0),
        ),
    },
    Rule {
        goals: &["host/transfers/write-1048576/"],
        stage: "",
        takes: Longest("host/stages", Some(1_048_576.0)),
        floor: (
            "memcpy",
            Bytes("host/transfers/write-1048576/memcpy-mb-s", 1_048_576.0),
        ),
    },
    Rule {
        goals: &["vm/transfers/write-65536/"],
        stage: "",
        takes: Longest("vm/stages", Some(65_536.0)),
        floor: (
            "memcpy",
            Bytes("vm/transfers/write-65536/memcpy-mb-s", 65_536.0),
        ),
    },
    Rule {
        goals: &["vm/transfers/write-1048576/"],
        stage: "",
        takes: Longest("vm/stages", Some(1_048_576.0)),
        floor: (
            "memcpy",
            Bytes("vm/transfers/write-1048576/memcpy-mb-s", 1_048_576.0),
        ),
    },
    Rule {
        goals: &["vm/transfers/write-8/rate"],
        stage: "a post by the program in the guest",
        takes: One("vm/transfers/write-8/rate-1000-s"),
        floor: (
            "a store that another guest sees (ivshmem)",
            One(BETWEEN_GUESTS),
        ),
    },
    Rule {
        goals: &["peers/guest-latency/"],
        stage: "programs of the guests, and turns on the processors",
        takes: Beyond(
            "peers/guest-latency/qnic-write-8/half-round-trip-us",
            &[
                "vm/stages/queued-8/half-within-ns",
                "vm/stages/sending-8/half-within-ns",
                "vm/stages/delivered-8/half-within-ns",
            ],
        ),
        floor: (
            "a store that another guest sees (ivshmem)",
            One(BETWEEN_GUESTS),
        ),
    },
    Rule {
        goals: &["peers/guest-wakeups/"],
        stage: "what comes beyond the bare interrupt",
        takes: BeyondFloor,
        floor: (
            "a thread of the host woken by an eventfd",
            One("peers/guest-wakeups/host-eventfd/half-round-trip-us"),
        ),
    },
    Rule {
        goals: &[
            "collective/",
            "message/",
            "peers/host-latency/",
            "memory/by-virtual-address/",
            "sync/notification/",
        ],
        stage: "a write of 8 bytes between two processes, as each step is",
        takes: One("host/transfers/write-8/half-round-trip-us"),
        floor: (
            "both NICs of it, without I/O",
            One("engine/packet/lossless-8/both-nics-ns"),
        ),
    },
    Rule {
        goals: &["sync/operations/try-wait/"],
        stage: "the second of its two round trips",
        takes: BeyondFloor,
        floor: ("a read of 4 bytes", One(READ)),
    },
    Rule {
        goals: &["sync/operations/"],
        stage: "the operation itself, beyond a read",
        takes: BeyondFloor,
        floor: (
            "fetch-add, beyond a read",
            Beyond("sync/operations/fetch-add/here-ns", &[READ]),
        ),
    },
    Rule {
        goals: &["growth/"],
        stage: "what comes beyond the first count",
        takes: BeyondFloor,
        floor: ("one word that no cache holds", One(COLD)),
    },
    Rule {
        goals: &["wire/beside-iperf3/"],
        stage: "",
        takes: Longest("wire/stages-udp", None),
        floor: (
            "iperf3, 64 KiB",
            Bytes("wire/beside-iperf3/iperf3/write-mb-s", 65_536.0),
        ),
    },
    Rule {
        goals: &["wire/beside-copies/"],
        stage: "",
        takes: Longest("wire/stages-shared-memory", None),
        floor: (
            "two copies of 64 KiB",
            Bytes("wire/beside-copies/shared-memory/two-copies-mb-s", 65_536.0),
        ),
    },
    Rule {
        goals: &["wire/links/"],
        stage: "64 KiB on the same link without loss",
        takes: Bytes("wire/links/20-us-delay-0/64-kib-write-mb-s", 65_536.0),
        floor: (
            "two copies of 64 KiB",
            Bytes("wire/beside-copies/shared-memory/two-copies-mb-s", 65_536.0),
        ),
    },
    Rule {
        goals: &["kernel/latency/"],
        stage: "an interrupt that wakes a program of a guest",
        takes: One(INTERRUPT),
        floor: (
            "the same, at its fastest",
            One("peers/guest-wakeups/ivshmem-doorbell-interrupt/least-us"),
        ),
    },
    Rule {
        goals: &["kernel/bandwidth/"],
        stage: "64 KiB through both programs and both kernels",
        takes: Bytes("kernel/bandwidth/stream-65536/writes-mb-s", 65_536.0),
        floor: (
            "one copy by a guest's processor (ivshmem)",
            Bytes(OF_GUESTS, 65_536.0),
        ),
    },
    Rule {
        goals: &["kernel/page/", "kernel/pages/"],
        stage: "block layer and program of the guest, with a disk of QEMU's",
        takes: One("kernel/pages/virtio-blk-reads/pages-s"),
        floor: (
            "an interrupt that wakes a program of a guest, at its fastest",
            One("peers/guest-wakeups/ivshmem-doorbell-interrupt/least-us"),
        ),
    },
];

/// The stage that a goal is missed by, and the floor of that stage, each with its time.
pub(super) struct Bottleneck {
    pub(super) stage: String,
    pub(super) floor: String,
}

/// The bottleneck of the figure `id`, as far as the run has it.
pub(super) fn bottleneck_of(run: &Run, id: &str) -> Option<Bottleneck> {
    let begins = |rule: &&Rule| rule.goals.iter().any(|goal| id.starts_with(goal));
    let rule = RULES.iter().find(begins)?;
    let (name, amount) = rule.takes.of(run, id)?;
    let name = match rule.stage {
        "" => name,
        stage => stage.to_owned(),
    };
    let (floor_name, floor) = &rule.floor;
    let (_, floor) = floor.of(run, id)?;
    Some(Bottleneck {
        stage: format!("{name}: {amount}"),
        floor: format!("{floor_name}: {floor}"),
    })
}

/// An amount for people.
fn said(value: f64, is_time: bool) -> String {
    match is_time {
        false => format!("{} instructions", number(value)),
        true if value >= 1000.0 => format!("{} µs", number(value / 1e3)),
        true => format!("{} ns", number(value)),
    }
}

impl Amount {
    /// What it is of, if a row says so, and how much it is, for the goal of the figure `goal`.
    fn of(&self, run: &Run, goal: &str) -> Option<(String, String)> {
        let (name, value, is_time) = match self {
            Longest(table, bytes) => {
                let row = longest(run, table, *bytes)?;
                let (value, is_time) = each(row.figures.first()?, None)?;
                (row.name.clone(), value, is_time)
            }
            One(id) => {
                let (value, is_time) = each(find(run, id)?, None)?;
                (String::new(), value, is_time)
            }
            Bytes(id, bytes) => {
                let (value, is_time) = each(find(run, id)?, Some(*bytes))?;
                (String::new(), value, is_time)
            }
            BeyondFloor => {
                let figure = find(run, goal)?;
                let (value, is_time) = each(figure, None)?;
                let part = 1.0 - 1.0 / figure.ratio.as_ref()?.value;
                (String::new(), (value * part).max(0.0), is_time)
            }
            Beyond(id, others) => {
                let (mut value, is_time) = each(find(run, id)?, None)?;
                for other in *others {
                    value -= each(find(run, other)?, None)?.0;
                }
                (String::new(), value.max(0.0), is_time)
            }
        };
        Some((name, said(value, is_time)))
    }
}

fn find<'a>(run: &'a Run, id: &str) -> Option<&'a Figure> {
    let mut figures = run.suites.iter().flat_map(SuiteRun::figures);
    figures.find(|figure| figure.id == id)
}

/// Nanoseconds or instructions of one operation, of so many bytes if the figure is a rate of bytes;
/// and whether it is a time.
fn each(figure: &Figure, bytes: Option<f64>) -> Option<(f64, bool)> {
    let median = figure.spread?.median;
    let value = match (figure.unit.as_str(), bytes) {
        ("ns", _) => median,
        ("µs", _) => median * 1e3,
        ("1000/s", _) => 1e6 / median,
        ("/s", _) => 1e9 / median,
        ("MB/s", Some(bytes)) => bytes * 1e3 / median,
        ("instructions", _) => return Some((median, false)),
        _ => return None,
    };
    Some((value, true))
}

/// The row of a table whose first figure is the largest: of this project's rows, with so many bytes.
fn longest<'a>(run: &'a Run, table: &str, bytes: Option<f64>) -> Option<&'a Row> {
    let (suite, table) = table.split_once('/')?;
    let mut tables = run.suite(suite)?.tables.iter();
    let table = tables.find(|it| it.id == table)?;
    let value = |row: &Row| row.figures.first().map_or(f64::NAN, Figure::median);
    let ours = table.rows.iter().filter(|row| {
        let at = row.at.as_ref().map(|at| at.value);
        let own = row.figures.iter().all(|figure| figure.role == Role::Own);
        own && value(row).is_finite() && bytes.is_none_or(|bytes| at == Some(bytes))
    });
    ours.max_by(|one, other| value(one).total_cmp(&value(other)))
}

/// All goals of a run that are missed, the ones that are missed by most first.
pub(super) fn table(run: &Run) -> String {
    let mut missed = Vec::new();
    for suite in &run.suites {
        for table in &suite.tables {
            for row in &table.rows {
                let figures = row.figures.iter();
                let figures =
                    figures.filter(|it| it.goal.as_ref().is_some_and(|it| it.is_missed()));
                missed.extend(figures.map(|figure| (suite, row, figure)));
            }
        }
    }
    let distance = |figure: &Figure| {
        let distance = figure.goal.as_ref().and_then(|goal| goal.distance);
        distance.unwrap_or(f64::INFINITY)
    };
    missed.sort_by(|one, other| distance(other.2).total_cmp(&distance(one.2)));
    let mut text = String::from(
        "| | what | goal | now | bottleneck | its floor |\n|---|---|---|---|---|---|\n",
    );
    for (suite, row, figure) in missed {
        let Some(goal) = &figure.goal else { continue };
        let at = row
            .at
            .as_ref()
            .map(|at| format!(", {} {}", at.value, at.what));
        let (value, of) = match (goal.of, &figure.ratio) {
            (Of::Ratio, Some(ratio)) => (ratio_text(ratio.value), ratio.to.as_str()),
            _ => (number(figure.median()), figure.unit.as_str()),
        };
        let (stage, floor) = match bottleneck_of(run, &figure.id) {
            Some(found) => (found.stage, found.floor),
            None => ("no stage of it was measured".to_owned(), "-".to_owned()),
        };
        text.push_str(&format!(
            "| {} | {}: {}{}, {} | {goal} | {value} {of} | {stage} | {floor} |\n",
            goal.code.as_deref().unwrap_or(""),
            suite.id,
            row.name.replace('_', "\\_"),
            at.unwrap_or_default(),
            figure.what,
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::document::default_document;
    use super::super::figures::{identify, Table};
    use super::super::goal::Goal;
    use super::super::record::tests::run;
    use super::*;

    #[test]
    fn each_goal_that_the_kept_run_misses_has_a_bottleneck() {
        let document = default_document().unwrap();
        let run = Run::read(&document.with_extension("json")).unwrap();
        let figures = run.suites.iter().flat_map(SuiteRun::figures);
        let missed = figures.filter(|it| it.goal.as_ref().is_some_and(Goal::is_missed));
        let without = missed.filter(|it| bottleneck_of(&run, &it.id).is_none());
        let without: Vec<_> = without.map(|it| it.id.as_str()).collect();
        assert_eq!(without, [""; 0]);
    }

    #[test]
    fn the_longest_stage_and_its_floor_stand_beside_the_goal() {
        let mut run = run();
        let stream = Figure::with_spread("stream", "MB/s", vec![500.0]);
        let stream = stream
            .ratio_to("of memcpy", &[1000.0])
            .ratio_goal(Goal::at_least(0.8).code("P4"));
        let memcpy = Figure::new("memcpy", "MB/s", vec![1000.0]);
        let stage = |name: &str, bytes, ns: f64| {
            Row::new(name, [Figure::with_spread("half within", "ns", vec![ns])]).size(bytes)
        };
        run.suites[0].tables = vec![
            Table::new(
                "transfers",
                "T",
                vec![Row::new("write", [stream, memcpy]).size(65_536)],
            ),
            Table::new(
                "stages",
                "S",
                vec![
                    stage("queued", 65_536, 80.0),
                    stage("delivered", 65_536, 640.0),
                    stage("sending", 8, 9000.0),
                ],
            ),
        ];
        run.suites[0].id = "vm".into();
        identify("vm", &mut run.suites[0].tables);
        let text = table(&run);
        let wanted = "| P4 | vm: write, 65536 bytes, stream | ≥ 0.8 | 0.50 of memcpy | \
                      delivered: 640.0 ns | memcpy: 65.54 µs |";
        assert!(text.lines().any(|line| line == wanted), "{text}");
        // What the run does not have is said to be missing, and hides nothing.
        run.suites[0].tables.pop();
        assert!(table(&run).contains("no stage of it was measured"));
    }

    #[test]
    fn what_is_left_of_a_time_is_never_less_than_nothing() {
        let mut run = run();
        let row = |name: &str, ns| {
            let figure = Figure::with_spread("here", "ns", vec![ns]);
            Row::new(name, [figure.ratio_to("of a read", &[50.0])])
        };
        run.suites[0].tables = vec![Table::new(
            "operations",
            "O",
            vec![
                row("read 4 B", 50.0),
                row("incr", 70.0),
                row("testandset", 40.0),
            ],
        )];
        run.suites[0].id = "sync".into();
        identify("sync", &mut run.suites[0].tables);
        let of = |id| Beyond(id, &[READ]).of(&run, id).unwrap().1;
        assert_eq!(of("sync/operations/incr/here-ns"), "20.00 ns");
        assert_eq!(of("sync/operations/testandset/here-ns"), "0.00 ns");
        let of_goal = |id| BeyondFloor.of(&run, id).unwrap().1;
        assert_eq!(of_goal("sync/operations/incr/here-ns"), "20.00 ns");
        assert_eq!(of_goal("sync/operations/testandset/here-ns"), "0.00 ns");
    }
}
