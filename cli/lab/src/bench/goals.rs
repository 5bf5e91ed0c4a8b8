//! The goals of a run: all of them, the ones that are missed by most first; what is promised
//! (docs/requirements.md) beside what was measured; and what a goal is missed by: the stage that takes the
//! time, and its floor, both of the same run.

use super::figures::{Figure, Role, Row};
use super::goal::Goal;
use super::numbers::number;
use super::record::{Run, SuiteRun};
use super::spec::{self, Amount};

/// A goal, and where it stands.
pub(super) struct Line<'a> {
    pub(super) suite: &'a SuiteRun,
    pub(super) row: &'a Row,
    pub(super) figure: &'a Figure,
    pub(super) goal: &'a Goal,
}

/// All goals of a run, the ones that are missed by most first.
pub(super) fn lines(run: &Run) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    for suite in &run.suites {
        for row in suite.tables.iter().flat_map(|table| &table.rows) {
            for figure in &row.figures {
                let line = |goal| Line {
                    suite,
                    row,
                    figure,
                    goal,
                };
                lines.extend(figure.goal.as_ref().map(line));
            }
        }
    }
    let order = |line: &Line| match (line.goal.met, line.goal.distance) {
        (Some(_), Some(distance)) => distance,
        (Some(false), None) => f64::INFINITY,
        _ => -1.0,
    };
    lines.sort_by(|one, other| order(other).total_cmp(&order(one)));
    lines
}

/// The promises, beside what a run has measured.
pub(super) fn promises(run: &Run) -> String {
    let mut text = String::from("| | what | at the start | goal | now |\n|---|---|---|---|---|\n");
    for promise in &spec::goals().promises {
        let now = promise.figures.iter().map(|id| {
            let figure = find(run, id).map(|(_, figure)| figure);
            match figure.filter(|it| it.spread.is_some()) {
                None => "-".to_owned(),
                Some(figure) if figure.is_missed() => format!("**{}**", figure.measured().0),
                Some(figure) => figure.measured().0,
            }
        });
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

/// All goals of a run that are missed.
pub(super) fn missed(run: &Run) -> String {
    let mut text = String::from(
        "| | what | goal | now | bottleneck | its floor |\n|---|---|---|---|---|---|\n",
    );
    for Line {
        suite,
        row,
        figure,
        goal,
    } in lines(run)
    {
        if !goal.is_missed() {
            continue;
        }
        let at = row.at.as_ref();
        let at = at.map(|at| format!(", {} {}", at.value, at.what));
        let (value, of) = figure.measured();
        let [stage, floor] = bottleneck_of(run, &figure.id)
            .unwrap_or_else(|| ["no stage of it was measured".to_owned(), "-".to_owned()]);
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

/// The stage that the goal of the figure `id` is missed by, and the floor of that stage, each with its
/// time, as far as the run has it.
pub(super) fn bottleneck_of(run: &Run, id: &str) -> Option<[String; 2]> {
    let begins = |rule: &&spec::Rule| rule.goals.iter().any(|goal| id.starts_with(goal));
    let rule = spec::goals().bottlenecks.iter().find(begins)?;
    let (row, stage) = rule.takes.of(run, id)?;
    let name = rule.stage.as_ref().unwrap_or(&row);
    let (_, floor) = rule.needs.of(run, id)?;
    Some([
        format!("{name}: {stage}"),
        format!("{}: {floor}", rule.floor),
    ])
}

impl Amount {
    /// The row that it is of, and how much it is, for the goal of the figure `goal`.
    fn of(&self, run: &Run, goal: &str) -> Option<(String, String)> {
        let (row, figure) = match (&self.longest, &self.of) {
            (Some(table), _) => longest(run, table, find(run, goal)?.0)?,
            (None, Some(id)) => find(run, &id.replace("{row}", goal.split('/').nth(2)?))?,
            (None, None) => find(run, goal)?,
        };
        let (mut value, is_time) = each(row, figure)?;
        for other in &self.less {
            let (row, figure) = find(run, other)?;
            value -= each(row, figure)?.0;
        }
        if self.beyond_floor {
            value *= 1.0 - 1.0 / figure.ratio.as_ref()?.value;
        }
        Some((row.name.clone(), said(value.max(0.0), is_time)))
    }
}

/// An amount for people.
fn said(value: f64, is_time: bool) -> String {
    match is_time {
        false => format!("{} instructions", number(value)),
        true if value >= 1000.0 => format!("{} µs", number(value / 1e3)),
        true => format!("{} ns", number(value)),
    }
}

fn find<'a>(run: &'a Run, id: &str) -> Option<(&'a Row, &'a Figure)> {
    let tables = run.suites.iter().flat_map(|suite| &suite.tables);
    let mut rows = tables.flat_map(|table| &table.rows);
    rows.find_map(|row| Some((row, row.figures.iter().find(|it| it.id == id)?)))
}

/// Nanoseconds or instructions of one operation, and whether it is a time. A rate of bytes is that of as
/// many as the row is at, or of 64 KiB.
fn each(row: &Row, figure: &Figure) -> Option<(f64, bool)> {
    let median = figure.spread?.median;
    let bytes = row.at.as_ref().filter(|at| at.what == "bytes");
    let bytes = bytes.map_or(65_536.0, |at| at.value);
    let value = match figure.unit.as_str() {
        "ns" => median,
        "µs" => median * 1e3,
        "1000/s" => 1e6 / median,
        "/s" => 1e9 / median,
        "MB/s" => bytes * 1e3 / median,
        "instructions" => return Some((median, false)),
        _ => return None,
    };
    Some((value, true))
}

/// The row of a table whose first figure is the largest: of this project's rows, where they have sizes
/// of those with the size of `goal`.
fn longest<'a>(run: &'a Run, table: &str, goal: &Row) -> Option<(&'a Row, &'a Figure)> {
    let (suite, table) = table.split_once('/')?;
    let mut tables = run.suite(suite)?.tables.iter();
    let rows = tables.find(|it| it.id == table)?.rows.iter();
    let ours = rows.filter(|row| {
        let own = row.figures.iter().all(|figure| figure.role == Role::Own);
        own && (row.at == goal.at || row.at.is_none() || goal.at.is_none())
    });
    let figures = ours.filter_map(|row| Some((row, row.figures.first()?)));
    let known = figures.filter(|(_, figure)| figure.spread.is_some());
    known.max_by(|one, other| one.1.median().total_cmp(&other.1.median()))
}

#[cfg(test)]
mod tests {
    use super::super::document::kept_run;
    use super::super::figures::{bytes, identify, Table};
    use super::super::goal::Of;
    use super::super::record::tests::run;
    use super::*;

    /// A run of one suite with these tables.
    fn run_of(suite: &str, tables: Vec<Table>) -> Run {
        let mut run = run();
        run.suites[0].id = suite.into();
        run.suites[0].tables = tables;
        identify(suite, &mut run.suites[0].tables);
        run
    }

    /// 64 KiB writes beside memcpy, and their stages.
    fn transfers() -> Run {
        let stream = Figure::new("stream", "MB/s", vec![500.0]).ratio_to("of memcpy", &[1000.0]);
        let stream = stream.goal(&Goal::at_least(Of::Ratio, 0.8).code(Some("P4")));
        let memcpy = Figure::new("memcpy", "MB/s", vec![1000.0]);
        let stage = |name: &str, size, ns: f64| {
            Row::new(
                name,
                bytes(size),
                [Figure::new("half within", "ns", vec![ns])],
            )
        };
        let stages = vec![
            stage("queued", 65_536, 80.0),
            stage("delivered", 65_536, 640.0),
            stage("sending", 8, 9000.0),
        ];
        let rows = vec![Row::new("write", bytes(65_536), [stream, memcpy])];
        run_of(
            "vm",
            vec![
                Table::new("transfers", "T", rows),
                Table::new("stages", "S", stages),
            ],
        )
    }

    #[test]
    fn each_promise_stands_beside_its_figure() {
        let text = promises(&transfers());
        let line = |code: &str| text.lines().find(|line| line.starts_with(code)).unwrap();
        assert!(line("| P4 ").ends_with("| ≥ 0.8 | **0.50** |"), "{text}");
        assert!(line("| P6 ").ends_with("| - |"), "{text}");
    }

    #[test]
    fn each_goal_that_the_kept_run_misses_has_a_bottleneck() {
        let run = kept_run();
        let missed = lines(&run);
        let missed = missed.iter().filter(|line| line.goal.is_missed());
        let ids = missed.map(|line| line.figure.id.as_str());
        let without: Vec<_> = ids.filter(|id| bottleneck_of(&run, id).is_none()).collect();
        assert_eq!(without, [""; 0]);
    }

    #[test]
    fn the_longest_stage_and_its_floor_stand_beside_the_goal() {
        let mut run = transfers();
        let text = missed(&run);
        let wanted = "| P4 | vm: write, 65536 bytes, stream | ≥ 0.8 | 0.50 of memcpy | \
                      delivered: 640.0 ns | memcpy: 65.54 µs |";
        assert!(text.lines().any(|line| line == wanted), "{text}");
        // What the run does not have is said to be missing, and hides nothing.
        run.suites[0].tables.pop();
        assert!(missed(&run).contains("no stage of it was measured"));
    }

    #[test]
    fn what_is_left_of_a_time_is_never_less_than_nothing() {
        let row = |name: &str, ns| {
            let figure = Figure::new("here", "ns", vec![ns]);
            Row::new(name, None, [figure.ratio_to("of a read", &[50.0])])
        };
        let rows = vec![
            row("read 4 B", 50.0),
            row("incr", 70.0),
            row("testandset", 40.0),
        ];
        let run = run_of("sync", vec![Table::new("operations", "O", rows)]);
        for (name, left) in [("incr", "20.00 ns"), ("testandset", "0.00 ns")] {
            let id = format!("sync/operations/{name}/here-ns");
            let less = Amount {
                of: Some(id.clone()),
                less: vec!["sync/operations/read-4-b/here-ns".into()],
                ..Amount::default()
            };
            let beyond = Amount {
                beyond_floor: true,
                ..Amount::default()
            };
            assert_eq!(less.of(&run, &id).unwrap().1, left);
            assert_eq!(beyond.of(&run, &id).unwrap().1, left);
        }
    }
}
