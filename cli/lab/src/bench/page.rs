//! A run as one HTML file: ratios first, then curves and tables, then all samples.
//!
//! The file needs nothing else, neither a script nor the network. Each figure links to its samples,
//! whose `id` is the path that the figure has in the JSON. `maud` escapes all that is not written
//! here.

mod chart;
mod comparison;
mod dots;
mod goals;
mod parts;
mod samples;
mod scale;
mod tables;

use maud::{html, Markup};

use super::record::{Run, SuiteRun};
pub(super) use comparison::of_comparison;
use parts::{head, layout};

/// The page of a run.
pub(super) fn of_run(run: &Run) -> String {
    let title = format!("qnic, measured {}", day(&run.started));
    let body = html! {
        (head(&title, &run.machine, &run.sources))
        p.time { (run.suites.len()) (if run.suites.len() == 1 { " suite in " } else { " suites in " }) (time(run.seconds)) ", begun " (run.started) }
        (warning(run))
        (contents(run))
        (goals::section(run))
        @for suite in &run.suites { (of_suite(suite)) }
        (samples::section(run))
        (method())
    };
    layout(&title, &body)
}

/// What is wrong with the run as a whole.
fn warning(run: &Run) -> Markup {
    let busy = run.suites.iter().filter(|suite| !suite.busy.is_empty());
    let busy: Vec<_> = busy.collect();
    let failed: Vec<_> = run.suites.iter().filter(|it| it.error.is_some()).collect();
    html! {
        @if !busy.is_empty() {
            div.warning role="note" {
                strong { "A busy machine." }
                " Other programs ran beside " (busy.len()) " of " (run.suites.len())
                " suites. Their absolute figures say little, and their ratios less than usual."
            }
        }
        @if !failed.is_empty() {
            div.warning role="note" {
                strong { "Not all was measured." }
                @for suite in failed { " " a href={ "#" (suite.id) } { (suite.id) } }
                " ended with an error."
            }
        }
    }
}

fn contents(run: &Run) -> Markup {
    html! {
        nav aria-label="Contents" {
            a href="#goals" { "Goals" }
            @for suite in &run.suites { a href={ "#" (suite.id) } { (suite.id) } }
            a href="#samples" { "Samples" }
        }
    }
}

fn of_suite(suite: &SuiteRun) -> Markup {
    html! {
        section.suite id=(suite.id) {
            h2 { (suite.title) " " small { "bench " (suite.id) } }
            p.time {
                (suite.rounds) " rounds in " (time(suite.seconds))
                "; other programs used "
                (format!("{:.2}", suite.load.during.cores)) " cores meanwhile"
            }
            @if !suite.busy.is_empty() {
                div.warning role="note" {
                    strong { "A busy machine:" }
                    ul { @for why in &suite.busy { li { (why) } } }
                }
            }
            @if let Some(error) = &suite.error {
                div.warning role="note" { strong { "It ended with an error:" } pre { (error) } }
            }
            @for table in &suite.tables {
                section.table id={ (suite.id) "/" (table.id) } {
                    h3 { (table.title) }
                    (chart::curves(table))
                    (dots::beside_published(table))
                    (tables::of(table))
                    @for note in &table.notes { p.note { (note) } }
                }
            }
        }
    }
}

fn method() -> Markup {
    html! {
        footer {
            h2 { "How to read it" }
            p {
                "A figure is the median of its rounds; of an even number, the larger of the two in "
                "the middle. Beside it stand the smallest and the largest round, and curves show "
                "the same as a band. What is compared takes turns within each round. A ratio is a "
                "median divided by the median of its floor, which was measured in the same run."
            }
            p {
                "Absolute times depend on the machine, and under TCG on the emulator: compare "
                "ratios. Dashed curves and rows in italics are what qnic is compared with; hollow "
                "marks are what others have published."
            }
            p {
                "Each figure links to its samples. They have the figure's path as their id, and "
                "the JSON of the run has the same figure under that " code { "id" } "."
            }
        }
    }
}

/// A span of time for people.
fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds => format!("{:.0} min", seconds / 60.0),
    }
}

/// The day of a date.
fn day(started: &str) -> &str {
    started.split('T').next().unwrap_or(started)
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::run;
    use super::*;

    #[test]
    fn the_page_stands_alone_and_each_figure_links_to_its_samples() {
        let run = run();
        let page = of_run(&run);
        for foreign in ["<script", "http://", "https://", "@import", "url("] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        for figure in run.suites[0].figures() {
            let (link, target) = (
                format!("href=\"#{}\"", figure.id),
                format!("id=\"{}\"", figure.id),
            );
            assert!(page.contains(&link), "{link}");
            assert_eq!(page.matches(&target).count(), 1, "{target}");
        }
        assert!(page.contains("<svg"), "no curve");
    }

    #[test]
    fn what_was_measured_cannot_write_into_the_page() {
        let mut run = run();
        let evil = "</style><script>alert(1)</script>\"'&";
        run.machine.model = evil.into();
        run.machine.kernel = evil.into();
        run.sources.commit = evil.into();
        run.started = evil.into();
        let suite = &mut run.suites[0];
        suite.id = evil.into();
        suite.title = evil.into();
        suite.busy = vec![evil.into()];
        suite.error = Some(evil.into());
        let table = &mut suite.tables[0];
        table.id = evil.into();
        table.title = evil.into();
        table.notes.push(evil.into());
        for row in &mut table.rows {
            row.name = evil.into();
            if let Some(at) = &mut row.at {
                at.what = evil.into();
            }
            for figure in &mut row.figures {
                figure.id = evil.into();
                figure.what = evil.into();
                figure.unit = evil.into();
                if let Some(ratio) = &mut figure.ratio {
                    ratio.to = evil.into();
                }
                if let Some(goal) = &mut figure.goal {
                    goal.code = Some(evil.into());
                }
            }
        }
        let page = of_run(&run);
        assert!(!page.contains("<script"));
        assert!(!page.contains("\"'"));
        assert_eq!(page.matches("</style>").count(), 1);
    }

    #[test]
    fn a_busy_machine_and_a_failure_are_marked() {
        let mut run = run();
        let quiet = of_run(&run);
        assert!(!quiet.contains("class=\"warning\""));
        run.suites[0].busy.push("others used all of it".into());
        run.suites[0].error = Some("no QEMU".into());
        let page = of_run(&run);
        for text in ["A busy machine", "others used all of it", "no QEMU"] {
            assert!(page.contains(text), "{text}");
        }
    }
}
