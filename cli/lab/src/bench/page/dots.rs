//! Ratios of this run beside published ones: a line of dots for each row of a table.

use maud::{html, Markup};

use super::super::figures::{Figure, Role, Row, Table};
use super::parts::short;
use super::scale::{tick_text, Scale};

const WIDTH: f64 = 440.0;
const LEFT: f64 = 172.0;
const RIGHT: f64 = 16.0;
/// Height of a line, and of what is above all of them and below.
const LINE: f64 = 22.0;
const TOP: f64 = 6.0;
const BOTTOM: f64 = 24.0;

/// Most letters of a name.
const NAME: usize = 28;

/// A row with both ratios: here, and published.
type Pair<'a> = (&'a Row, &'a Figure, f64, f64);

/// The picture of a table; none if it has not two rows with such pairs.
pub(super) fn beside_published(table: &Table) -> Markup {
    let pairs: Vec<Pair> = table.rows.iter().filter_map(pair).collect();
    let height = TOP + LINE * pairs.len() as f64 + BOTTOM;
    let values = pairs
        .iter()
        .flat_map(|(.., here, there)| [*here, *there, 1.0]);
    let scale = Scale::of(values, 4.0, (LEFT + 8.0, WIDTH - RIGHT));
    let Some(scale) = scale.filter(|_| pairs.len() > 1) else {
        return html! {};
    };
    let scale = scale.with_room();
    html! {
        div.charts { figure.chart {
            figcaption { "Ratio " span.unit { "here ● and published ○" } }
            svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label="Ratios here and published" {
                g.grid {
                    @for tick in scale.ticks() {
                        @let x = short(scale.place(tick));
                        line x1=(x) x2=(x) y1=(TOP) y2=(height - BOTTOM) {}
                        text x=(x) y=(height - 8.0) text-anchor="middle" { (tick_text(tick)) }
                    }
                }
                @for (index, pair) in pairs.iter().enumerate() {
                    (line(pair, &scale, TOP + LINE * (index as f64 + 0.5)))
                }
            }
        } }
    }
}

fn pair(row: &Row) -> Option<Pair<'_>> {
    let ratio = |role: Role| {
        let mut of_role = row.figures.iter().filter(move |it| it.role == role);
        of_role.find_map(|figure| Some((figure, figure.ratio.as_ref()?.value)))
    };
    let (figure, here) = ratio(Role::Own)?;
    let (_, there) = ratio(Role::Published)?;
    Some((row, figure, here, there))
}

fn line((row, figure, here, there): &Pair, scale: &Scale, y: f64) -> Markup {
    let (x, other) = (short(scale.place(*here)), short(scale.place(*there)));
    let mut name: String = row.name.chars().take(NAME).collect();
    if name.len() < row.name.len() {
        name.push('…');
    }
    let tip = format!("{}: {here:.2}, published {there:.2}", row.name);
    html! {
        g.pair {
            text x=(LEFT - 8.0) y=(short(y + 4.0)) text-anchor="end" { (name) }
            line x1=(x) x2=(other) y1=(short(y)) y2=(short(y)) {}
            circle.published cx=(other) cy=(short(y)) r="4.2" { title { (tip) } }
            a href={ "#" (figure.id) } {
                circle.own cx=(x) cy=(short(y)) r="4.2" { title { (tip) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_both_ratios_have_two_dots() {
        let row = |name: &str, published: Option<f64>| {
            let here = Figure::new("here", "ns", vec![20.0]).ratio_to("ratio", &[10.0]);
            let there = Figure::new("NetVM", "µs", published.into_iter().collect());
            let mut there = there.ratio_to("ratio", &[1.0]);
            there.role = Role::Published;
            Row::new(name, None, [here, there])
        };
        let rows = vec![
            row("one", Some(1.5)),
            row("two", Some(0.1)),
            row("alone", None),
        ];
        let text = beside_published(&Table::new("t", "T", rows.clone())).into_string();
        assert_eq!(text.matches("<circle").count(), 4, "{text}");
        assert!(text.contains("two: 2.00, published 0.10"), "{text}");
        let text = beside_published(&Table::new("t", "T", rows[1..].to_vec())).into_string();
        assert_eq!(text, "");
    }
}
