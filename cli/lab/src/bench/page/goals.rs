//! All goals of a run, the ones that are missed by most first.

use maud::{html, Markup};

use super::super::goal::Goal;
use super::super::goals::{bottleneck_of, lines, Line};
use super::super::record::Run;
use super::parts::{row_name, short};

/// How far off a bar can show a goal to be, as a power of two.
const FURTHEST: f64 = 4.0;

pub(super) fn section(run: &Run) -> Markup {
    let lines = lines(run);
    let count = |met: Option<bool>| lines.iter().filter(|line| line.goal.met == met).count();
    let (missed, met, unknown) = (count(Some(false)), count(Some(true)), count(None));
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
    let (measured, to) = match goal.met {
        Some(_) => figure.measured(),
        None => ("–".to_owned(), ""),
    };
    let bottleneck = bottleneck_of(run, &figure.id).filter(|_| goal.is_missed());
    html! {
        tr class=(class) {
            th scope="row" {
                span.where {
                    @if let Some(code) = &goal.code { b { (code) } " " }
                    (suite.id)
                    @if !suite.busy.is_empty() { " " span.busy { "busy" } }
                }
                (row_name(row)) ": " (figure.what)
                @if let Some([stage, floor]) = bottleneck {
                    span.bottleneck { "bottleneck: " (stage) "; its floor: " (floor) }
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
    use super::super::super::document::kept_run;
    use super::super::super::figures::{Figure, Row};
    use super::super::super::goal::Of;
    use super::super::super::record::tests::run;
    use super::*;

    #[test]
    fn what_is_missed_by_most_comes_first() {
        let mut run = run();
        let most = |value: f64| {
            let figure = Figure::new("x", "ns", vec![value]).ratio_to("of floor", &[1.0]);
            figure.goal(&Goal::at_most(Of::Ratio, 1.0))
        };
        let least = |samples: Vec<f64>| {
            Figure::new("x", "MB/s", samples).goal(&Goal::at_least(Of::Median, 1.0))
        };
        let row = |name: &str, figure| Row::new(name, None, [figure]);
        run.suites[0].tables[0].rows = vec![
            row("met", most(0.5)),
            row("far", most(8.0)),
            row("unknown", least(vec![])),
            row("nothing", least(vec![0.0])),
            row("near", least(vec![0.9])),
        ];
        let text = section(&run).into_string();
        let place = |name: &str| text.find(&format!("</span>{name}:")).unwrap();
        let order = ["nothing", "far", "near", "met", "unknown"].map(place);
        assert!(order.is_sorted(), "{order:?}");
        assert!(text.contains("<strong>3</strong> missed"), "{text}");
    }

    #[test]
    fn a_goal_that_is_missed_stands_beside_its_bottleneck() {
        let text = section(&kept_run()).into_string();
        let count = |what: &str| text.matches(what).count();
        assert!(count("bottleneck: ") > 0);
        assert_eq!(count("bottleneck: "), count("✕ missed"));
    }
}
