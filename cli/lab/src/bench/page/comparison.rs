//! Two runs compared, as a page.

use maud::{html, Markup};

use super::super::comparison::text::{cells, Comparison, HEADS};
use super::super::comparison::verdict::Verdict;
use super::parts::{about, layout};

/// The page of a comparison.
pub(in crate::bench) fn of_comparison(comparison: &Comparison) -> String {
    let count = |verdict| comparison.with(verdict).count();
    let body = html! {
        header { h1 { "qnic, two runs compared" } }
        @for warning in comparison.warnings() { div.warning role="note" { (warning) } }
        @for (name, side) in [("Old", &comparison.old), ("New", &comparison.new)] {
            h3 { (name) " " span.unit { (side.file) ", begun " (side.started) } }
            (about(&side.machine, &side.sources))
        }
        p.summary {
            span.missed { strong { (count(Verdict::Regressed)) } " regressed" }
            span.met { strong { (count(Verdict::Improved)) } " improved" }
            span { strong { (comparison.figures.len()) } " compared" }
        }
        p.note {
            "Compared by " (comparison.by) ". A figure regresses if it is worse by more than "
            (format!("{:.1} %", comparison.threshold * 100.0))
            " and the rank test of Mann and Whitney gives p ≤ " (comparison.alpha)
            ". By chance alone " (format!("{:.1}", comparison.by_chance())) " would differ."
        }
        @for (verdict, head) in HEADS { (section(comparison, verdict, head)) }
        (names("Suites that only the new run has", &comparison.added_suites))
        (names("Figures that only the old run has", &comparison.gone))
        (names("Figures that only the new run has", &comparison.added))
    };
    layout("qnic, two runs compared", &body)
}

fn section(comparison: &Comparison, verdict: Verdict, head: &str) -> Markup {
    let figures: Vec<_> = comparison.with(verdict).collect();
    let class = match verdict {
        Verdict::Regressed => "missed",
        Verdict::Improved => "met",
        _ => "",
    };
    html! {
        @if !figures.is_empty() {
            section {
                h2 { (head) " " small { (figures.len()) } }
                div.scroll tabindex="0" role="region" aria-label=(head) {
                    table {
                        thead { tr {
                            th { "Figure" } th.number { "New, of old" } th.number { "Old" }
                            th.number { "New" } th.number { "By chance" } th {}
                        } }
                        tbody { @for figure in figures {
                            @let [id, old, new, ratio, probability, notes] = cells(figure);
                            tr {
                                th scope="row" { code { (id) } }
                                td.number { strong class=(class) { (ratio) } }
                                td.number { (old) } td.number { (new) } td.number { (probability) }
                                td { (notes) }
                            }
                        } }
                    }
                }
            }
        }
    }
}

fn names(head: &str, names: &[String]) -> Markup {
    html! {
        @if !names.is_empty() {
            section { h2 { (head) } ul { @for name in names { li { code { (name) } } } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::compare::compare;
    use super::super::super::compare::tests::{of, options};
    use super::*;

    #[test]
    fn the_page_says_what_the_terminal_says_and_escapes_it() {
        let (mut old, mut new) = (of(10.0), of(12.0));
        for run in [&mut old, &mut new] {
            run.suites[0].tables[0].rows[1].figures[0].id = "<script>".into();
        }
        new.machine.cores = 64;
        let comparison = compare(&old, &new, &options()).unwrap();
        let page = of_comparison(&comparison);
        assert!(page.contains("TWO MACHINES"));
        assert!(page.contains("host/transfers/write-8/time-ns"));
        assert!(page.contains("<strong>1</strong> regressed"), "{page}");
        assert!(!page.contains("<script"));
    }
}
