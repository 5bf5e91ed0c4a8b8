//! A table of figures: of each, its ratio and goal before its median and spread.

use maud::{html, Markup};

use super::super::figures::{Figure, Role, Row, Table};
use super::super::text::{number, ratio_text};
use super::at_text;

pub(super) fn of(table: &Table) -> Markup {
    let columns = table.rows.iter().map(|row| row.figures.len()).max();
    let columns = 0..columns.unwrap_or(0);
    html! {
        div.scroll tabindex="0" role="region" aria-label=(table.title) {
            table {
                thead { tr {
                    th {}
                    @for column in columns.clone() { (head(table, column)) }
                } }
                tbody {
                    @for row in &table.rows {
                        tr.peer[is_peer(row)] {
                            th scope="row" { (row.name) @if let Some(at) = &row.at {
                                " " span.at { (at_text(&at.what, at.value)) }
                            } }
                            @for column in columns.clone() {
                                (cells(table, column, row.figures.get(column)))
                            }
                        }
                    }
                }
            }
        }
    }
}

fn is_peer(row: &Row) -> bool {
    row.figures.iter().all(|figure| figure.role == Role::Peer)
}

/// The figures of a column, and whether one has a ratio.
fn column(table: &Table, index: usize) -> impl Iterator<Item = &Figure> {
    table
        .rows
        .iter()
        .filter_map(move |row| row.figures.get(index))
}

fn ratio_head(table: &Table, index: usize) -> Option<&str> {
    column(table, index).find_map(|figure| Some(figure.ratio.as_ref()?.to.as_str()))
}

fn head(table: &Table, index: usize) -> Markup {
    let first = column(table, index).next();
    html! {
        @if let Some(to) = ratio_head(table, index) { th.number.ratio { (to) } }
        @if let Some(figure) = first {
            th.number { (figure.what) br; span.unit { (figure.unit) } }
        }
    }
}

/// The ratio, if the column has any, and the median.
fn cells(table: &Table, index: usize, figure: Option<&Figure>) -> Markup {
    let ratio = figure.and_then(|figure| figure.ratio.as_ref());
    let goal = figure.and_then(|figure| figure.goal.as_ref());
    let class = match goal.and_then(|goal| goal.met) {
        Some(true) => "met",
        Some(false) => "missed",
        None => "",
    };
    let has_ratios = ratio_head(table, index).is_some();
    let goal = html! { @if let Some(goal) = goal {
        span.to class=(class) { (goal) @if goal.is_missed() { " ✕" } @else if goal.met.is_some() { " ✓" } }
    } };
    html! {
        @if has_ratios {
            td.number.ratio {
                @if let Some(ratio) = ratio { strong { (ratio_text(ratio.value)) } (goal) }
            }
        }
        td.number {
            @if let Some((figure, spread)) = figure.and_then(|it| Some((it, it.spread?))) {
                a href={ "#" (figure.id) } { (number(spread.median)) }
                @if figure.main && figure.samples.len() > 1 {
                    span.to { (number(spread.low)) " … " (number(spread.high)) }
                }
                @if !has_ratios { (goal) }
            } @else if let Some(figure) = figure {
                a href={ "#" (figure.id) } { "–" }
            }
        }
    }
}
