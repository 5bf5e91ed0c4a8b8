//! All goals of a run, the ones that are missed by most first.

use maud::{html, Markup};

use super::super::bottleneck::bottleneck_of;
use super::super::figures::{Figure, Row};
use super::super::goal::{Goal, Of};
use super::super::record::{Run, SuiteRun};
use super::super::text::{number, ratio_text};
use super::chart::short;
use super::row_name;

/// How far off a bar can show a goal to be, as a power of two.
const FURTHEST: f64 = 4.0;

/// A goal, and where it stands.
struct Line<'a> {
    suite: &'a SuiteRun,
    row: &'a Row,
    figure: &'a Figure,
    goal: &'a Goal,
}

pub(super) fn section(run: &Run) -> Markup {
    let mut lines = lines(run);
    let count = |met: Option<bool>| lines.iter().filter(|line| line.goal.met == met).count();
    let (missed, met, unknown) = (count(Some(false)), count(Some(true)), count(None));
    lines.sort_by(|one, other| order(other).total_cmp(&order(one)));
    html! {
        section id="goals" {
            h2 { "Goals" }
            @if lines.is_empty() {
                p { "No goal is among what was measured." }
            } @else {
                p.summary {
                    span.missed { strong { (missed) } " missed" }
                    span.met { strong { (met) } " met" }
                    @if unknown > 0 { span { strong { (unknown) } " not measured" } }
                }
                table.goals {
                    thead { tr { th { "Goal" } th.number { "Measured" } th.number { "Wanted" } th.bar {} } }
                    tbody { @for line in &lines { (of_line(run, line)) } }
                }
            }
        }
    }
}

fn lines(run: &Run) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    for suite in &run.suites {
        for row in suite.tables.iter().flat_map(|table| &table.rows) {
            for figure in &row.figures {
                let goal = figure.goal.as_ref();
                lines.extend(goal.map(|goal| Line {
                    suite,
                    row,
                    figure,
                    goal,
                }));
            }
        }
    }
    lines
}

/// Greater for what comes first.
fn order(line: &Line) -> f64 {
    match (line.goal.met, line.goal.distance) {
        (Some(_), Some(distance)) => distance,
        (Some(false), None) => f64::INFINITY,
        _ => -1.0,
    }
}

fn of_line(run: &Run, line: &Line) -> Markup {
    let Line {
        suite,
        row,
        figure,
        goal,
    } = line;
    let class = match goal.met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "unknown",
    };
    let (measured, to) = match (goal.of, &figure.ratio, figure.spread) {
        (Of::Ratio, Some(ratio), _) => (ratio_text(ratio.value), ratio.to.as_str()),
        (Of::Median, _, Some(spread)) => (number(spread.median), figure.unit.as_str()),
        _ => ("–".to_owned(), ""),
    };
    let bottleneck = match goal.is_missed() {
        true => bottleneck_of(run, &figure.id),
        false => None,
    };
    html! {
        tr class=(class) {
            th scope="row" {
                span.where {
                    @if let Some(code) = &goal.code { b { (code) } " " }
                    (suite.id)
                    @if !suite.busy.is_empty() { " " span.busy { "busy" } }
                }
                (row_name(row)) ": " (figure.what)
                @if let Some(bottleneck) = bottleneck {
                    span.bottleneck { "bottleneck: " (bottleneck.stage) "; its floor: " (bottleneck.floor) }
                }
            }
            td.number { a href={ "#" (figure.id) } { strong { (measured) } } span.to { (to) } }
            td.number { (goal) span.to { @match goal.met {
                Some(true) => "✓ met",
                Some(false) => "✕ missed",
                None => "not measured",
            } } }
            td.bar { (bar(goal)) }
        }
    }
}

/// How far off the goal is: to the right it is missed, to the left it is met.
fn bar(goal: &Goal) -> Markup {
    let middle = 80.0;
    let powers = goal.distance.filter(|it| *it > 0.0).map(f64::log2);
    html! {
        svg viewBox="0 0 160 16" aria-hidden="true" {
            @if let Some(powers) = powers {
                @let length = (powers.abs() / FURTHEST).min(1.0) * (middle - 2.0);
                rect x=(short(if powers > 0.0 { middle } else { middle - length })) y="3" height="10"
                    width=(short(length)) rx="1.5" {}
            }
            line x1=(middle) x2=(middle) y1="0" y2="16" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::document::default_document;
    use super::super::super::record::tests::run;
    use super::*;

    #[test]
    fn what_is_missed_by_most_comes_first() {
        let mut run = run();
        let of = |value: f64, goal: Goal| {
            Figure::new("x", "ns", vec![value])
                .ratio_to("of floor", &[1.0])
                .ratio_goal(goal)
        };
        let row = |name: &str, figure| Row::new(name, [figure]);
        run.suites[0].tables[0].rows = vec![
            row("met", of(0.5, Goal::at_most(1.0))),
            row("far", of(8.0, Goal::at_most(1.0))),
            row(
                "unknown",
                Figure::new("x", "ns", vec![]).goal(Goal::at_most(1.0)),
            ),
            row(
                "nothing",
                Figure::new("x", "MB/s", vec![0.0]).goal(Goal::at_least(1.0)),
            ),
            row("near", of(0.9, Goal::at_least(1.0))),
        ];
        let text = section(&run).into_string();
        let place = |name: &str| text.find(&format!("</span>{name}:")).unwrap();
        let order = ["nothing", "far", "near", "met", "unknown"].map(place);
        assert!(order.is_sorted(), "{order:?}");
        assert!(text.contains("<strong>3</strong> missed"), "{text}");
    }

    #[test]
    fn a_goal_that_is_missed_stands_beside_its_bottleneck() {
        let document = default_document().unwrap();
        let run = Run::read(&document.with_extension("json")).unwrap();
        let text = section(&run).into_string();
        let count = |what: &str| text.matches(what).count();
        assert!(count("bottleneck: ") > 0);
        assert_eq!(count("bottleneck: "), count("✕ missed"));
    }
}
