//! Curves: the main figures of a table whose rows are points over something that grows.

use std::collections::BTreeSet;

use maud::{html, Markup};

use super::super::figures::{Figure, Role, Row, Spread, Table};
use super::super::numbers::number;
use super::parts::{at_text, bytes, short};
use super::scale::{tick_text, Scale};

/// Size of a picture, and of what is around its curves.
const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 42.0;

/// Least distance of two texts below the picture.
const BETWEEN: f64 = 44.0;

/// Colours and marks that are told apart.
const STYLES: usize = 6;

/// A point of a curve.
struct Point<'a> {
    x: f64,
    spread: Spread,
    figure: &'a Figure,
}

/// One curve.
struct Curve<'a> {
    name: &'a str,
    is_peer: bool,
    points: Vec<Point<'a>>,
}

/// All pictures of a table; none if nothing grows in it.
pub(super) fn curves(table: &Table) -> Markup {
    let columns = table.rows.iter().map(|row| row.figures.len()).max();
    let pictures: Vec<_> = (0..columns.unwrap_or(0))
        .filter_map(|column| picture(table, column))
        .collect();
    html! {
        @if !pictures.is_empty() {
            div.charts { @for picture in &pictures { (picture) } }
        }
    }
}

/// The curves of a column: of rows with the same name, in their order.
fn curves_of(table: &Table, column: usize) -> Vec<Curve<'_>> {
    let mut curves: Vec<Curve> = Vec::new();
    for row in &table.rows {
        let Some((point, figure)) = point(row, column) else {
            continue;
        };
        let is_peer = figure.role == Role::Peer;
        match curves.iter_mut().find(|curve| curve.name == row.name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve {
                name: &row.name,
                is_peer,
                points: vec![point],
            }),
        }
    }
    curves.retain(|curve| curve.points.len() > 1);
    for curve in &mut curves {
        curve.points.sort_by(|one, other| one.x.total_cmp(&other.x));
    }
    curves
}

fn point(row: &Row, column: usize) -> Option<(Point<'_>, &Figure)> {
    let figure = row.figures.get(column).filter(|figure| figure.main)?;
    let point = Point {
        x: row.at.as_ref()?.value,
        spread: figure.spread?,
        figure,
    };
    Some((point, figure))
}

fn picture(table: &Table, column: usize) -> Option<Markup> {
    let curves = curves_of(table, column);
    let first = curves.first()?.points.first()?.figure;
    let what = &table.rows.iter().find_map(|row| row.at.as_ref())?.what;
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let xs: BTreeSet<u64> = points().map(|point| point.x.to_bits()).collect();
    let xs: Vec<f64> = xs.into_iter().map(f64::from_bits).collect();
    let x = Scale::of(xs.iter().copied(), 16.0, (LEFT + 8.0, WIDTH - RIGHT - 8.0))?;
    let values = points().flat_map(|it| [it.spread.low, it.spread.high]);
    let y = Scale::of(values, 12.0, (HEIGHT - BOTTOM, TOP))?.with_room();
    let title = format!("{}, {}, over {what}", first.what, first.unit);
    Some(html! {
        figure.chart {
            figcaption { (first.what) " " span.unit { (first.unit) } }
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(title) {
                (grid(&y))
                (below(&xs, &x, what))
                @for (index, curve) in curves.iter().enumerate() {
                    (drawn(curve, index, (&x, &y), what))
                }
            }
            @if curves.len() > 1 || curves[0].name != first.what {
                (legend(&curves))
            }
        }
    })
}

/// Lines across the picture, with their values.
fn grid(y: &Scale) -> Markup {
    html! {
        g.grid {
            @for tick in y.ticks() {
                line x1=(LEFT) x2=(WIDTH - RIGHT) y1=(short(y.place(tick))) y2=(short(y.place(tick))) {}
                text x=(LEFT - 6.0) y=(short(y.place(tick) + 4.0)) text-anchor="end" { (tick_text(tick)) }
            }
        }
    }
}

/// The texts below the picture, as many as have room: the last one always.
fn below(xs: &[f64], x: &Scale, what: &str) -> Markup {
    let text = |value: f64| match what {
        "bytes" => bytes(value)
            .replace(" B", "")
            .replace(" KiB", "K")
            .replace(" MiB", "M"),
        _ => tick_text(value),
    };
    let mut shown: Vec<f64> = Vec::new();
    for value in xs.iter().rev() {
        let before = shown.last().map_or(f64::INFINITY, |it| x.place(*it));
        if before - x.place(*value) >= BETWEEN * 0.7 {
            shown.push(*value);
        }
    }
    html! {
        g.grid {
            @for value in shown {
                text x=(short(x.place(value))) y=(HEIGHT - BOTTOM + 17.0) text-anchor="middle" {
                    (text(value))
                }
            }
            text x=(WIDTH - RIGHT) y=(HEIGHT - 6.0) text-anchor="end" { (what) }
        }
    }
}

/// Band, line and marks of a curve.
fn drawn(curve: &Curve, index: usize, (x, y): (&Scale, &Scale), what: &str) -> Markup {
    let at = |point: &Point, value: f64| {
        format!("{},{}", short(x.place(point.x)), short(y.place(value)))
    };
    let line: Vec<_> = curve
        .points
        .iter()
        .map(|it| at(it, it.spread.median))
        .collect();
    let low = curve.points.iter().map(|it| at(it, it.spread.low));
    let high = curve.points.iter().rev().map(|it| at(it, it.spread.high));
    let band: Vec<_> = low.chain(high).collect();
    let class = format!(
        "curve s{}{}",
        index % STYLES,
        if curve.is_peer { " peer" } else { "" }
    );
    html! {
        g class=(class) {
            polygon.band points=(band.join(" ")) {}
            polyline points=(line.join(" ")) {}
            @for point in &curve.points {
                a href={ "#" (point.figure.id) } {
                    (mark(index, x.place(point.x), y.place(point.spread.median), &tip(curve, point, what)))
                }
            }
        }
    }
}

/// What a point says.
fn tip(curve: &Curve, point: &Point, what: &str) -> String {
    let Spread { median, low, high } = point.spread;
    format!(
        "{}, {}: {} {} ({} … {})",
        curve.name,
        at_text(what, point.x),
        number(median),
        point.figure.unit,
        number(low),
        number(high)
    )
}

/// A mark, told apart without colour.
fn mark(index: usize, x: f64, y: f64, tip: &str) -> Markup {
    let place = |dx: f64, dy: f64| format!("{},{}", short(x + dx), short(y + dy));
    let shape = |corners: &[(f64, f64)]| {
        let corners: Vec<_> = corners.iter().map(|(dx, dy)| place(*dx, *dy)).collect();
        corners.join(" ")
    };
    html! {
        @match index % STYLES {
            0 => circle cx=(short(x)) cy=(short(y)) r="3.6" { title { (tip) } },
            1 => polygon points=(shape(&[(-3.4, -3.4), (3.4, -3.4), (3.4, 3.4), (-3.4, 3.4)])) { title { (tip) } },
            2 => polygon points=(shape(&[(0.0, -4.6), (4.4, 3.2), (-4.4, 3.2)])) { title { (tip) } },
            3 => polygon points=(shape(&[(0.0, -4.8), (4.8, 0.0), (0.0, 4.8), (-4.8, 0.0)])) { title { (tip) } },
            4 => polygon points=(shape(&[(0.0, 4.6), (4.4, -3.2), (-4.4, -3.2)])) { title { (tip) } },
            _ => polygon points=(shape(&[(-4.0, -1.6), (4.0, -1.6), (4.0, 1.6), (-4.0, 1.6)])) { title { (tip) } },
        }
    }
}

fn legend(curves: &[Curve]) -> Markup {
    html! {
        ul.legend {
            @for (index, curve) in curves.iter().enumerate() {
                @let class = format!("curve s{}{}", index % STYLES, if curve.is_peer { " peer" } else { "" });
                li {
                    svg.key viewBox="0 0 28 12" aria-hidden="true" {
                        g class=(class) {
                            polyline points="1,6 27,6" {}
                            (mark(index, 14.0, 6.0, curve.name))
                        }
                    }
                    (curve.name)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::figures::at;
    use super::*;

    fn row(name: &str, bytes: usize, ns: f64) -> Row {
        let mut time = Figure::new("time", "ns", vec![ns, 2.0 * ns]);
        time.main = true;
        Row::new(
            name,
            at("bytes", bytes as f64),
            [time, Figure::new("least", "ns", vec![1.0])],
        )
    }

    #[test]
    fn rows_of_one_name_make_a_curve_over_what_grows() {
        let rows = vec![
            row("write", 64, 2.0),
            row("write", 8, 1.0),
            row("read", 8, 3.0),
            row("alone", 8, 9.0),
            row("read", 64, 4.0),
        ];
        let table = Table::new("t", "T", rows);
        let found = curves_of(&table, 0);
        let names: Vec<_> = found.iter().map(|curve| curve.name).collect();
        assert_eq!(names, ["write", "read"]);
        let xs: Vec<_> = found[0].points.iter().map(|point| point.x).collect();
        assert_eq!(xs, [8.0, 64.0]);
        // The column that is no main figure has none.
        assert!(curves_of(&table, 1).is_empty());
        let text = curves(&table).into_string();
        assert_eq!(text.matches("<svg viewBox").count(), 1, "{text}");
        assert_eq!(text.matches("class=\"band\"").count(), 2);
        assert!(text.contains("write, 8 B: 2.00 ns (1.00 … 2.00)"), "{text}");
    }

    #[test]
    fn a_table_in_which_nothing_grows_has_no_picture() {
        let mut row = row("write", 8, 1.0);
        row.at = None;
        let table = Table::new("t", "T", vec![row.clone(), row]);
        assert_eq!(curves(&table).into_string(), "");
    }
}
