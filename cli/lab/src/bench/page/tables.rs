//! A table of figures, as on a terminal; a median links to its samples.

use maud::{html, Markup};

use super::super::figures::{Role, Row, Table};

pub(super) fn of(table: &Table) -> Markup {
    let is_peer = |row: &Row| row.figures.iter().all(|figure| figure.role == Role::Peer);
    let lines = table.cells();
    html! {
        div.scroll tabindex="0" role="region" aria-label=(table.title) {
            table {
                thead { tr { @for (text, _) in &lines[0] { th.number { (text) } } } }
                tbody {
                    @for (row, line) in table.rows.iter().zip(&lines[1..]) {
                        tr.peer[is_peer(row)] {
                            th scope="row" { (line[0].0) }
                            @for (text, id) in &line[1..] {
                                td.number.missed[text.ends_with("missed")] {
                                    @if let Some(id) = id { a href={ "#" (id) } { (text) } } @else { (text) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
