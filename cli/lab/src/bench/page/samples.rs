//! All samples of a run, each list under the path of its figure.

use maud::{html, Markup};

use super::super::figures::Figure;
use super::super::record::Run;

pub(super) fn section(run: &Run) -> Markup {
    html! {
        section id="samples" {
            h2 { "Samples" }
            p { "One for each round, in their order." }
            @for suite in &run.suites {
                h3 { (suite.id) }
                dl.samples {
                    @for figure in suite.figures() { (of(figure)) }
                }
            }
        }
    }
}

fn of(figure: &Figure) -> Markup {
    let shown: Vec<_> = figure.samples.iter().map(|it| exact(*it)).collect();
    let floor = figure.ratio.as_ref().map(|ratio| &ratio.floor_samples);
    let floor: Vec<_> = floor.into_iter().flatten().map(|it| exact(*it)).collect();
    html! {
        div id=(figure.id) {
            dt { code { (figure.id) } span.unit { (figure.unit) } }
            dd { @if shown.is_empty() { "not measured" } @else { (shown.join("  ")) } }
            @if !floor.is_empty() { dd.floor { "floor: " (floor.join("  ")) } }
        }
    }
}

/// A sample in six digits.
fn exact(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        value => (5 - value.log10().floor() as i32).clamp(0, 9) as usize,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_six_digits() {
        let texts = [0.0, 0.25, 1.0 / 3.0, 123_456.7, 2_000_000.0].map(exact);
        assert_eq!(texts, ["0", "0.25", "0.333333", "123457", "2000000"]);
    }
}
