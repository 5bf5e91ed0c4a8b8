//! The columns of all tables, and the rows as text.

use qnic_cluster::stages::duration;

use crate::top::model::{Row, StageRow};
use crate::top::occupants::{PeerRow, ProcessRow};

pub(super) const HEADS: [&str; 9] = [
    "NODE",
    "STATE",
    "OPS/S",
    "SENT/S",
    "RECEIVED/S",
    "DEPTH",
    "CREDITS",
    "HITS",
    "RESENT/S",
];

pub(super) const STAGE_HEADS: [&str; 4] = ["STAGE", "HALF", "99 %", "SAMPLES"];

fn number(value: Option<u64>) -> String {
    let Some(value) = value else {
        return "-".to_owned();
    };
    let units = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    let unit = units.into_iter().find(|(size, _)| value >= 10 * size);
    match unit {
        Some((size, unit)) => format!("{}{unit}", value / size),
        None => value.to_string(),
    }
}

pub(super) fn cells(row: &Row) -> [String; 9] {
    let credits = row.credits.map(|(used, limit)| format!("{used}/{limit}"));
    let hits = row
        .hits_of_thousand
        .map(|hits| format!("{}.{} %", hits / 10, hits % 10));
    let unknown = || "-".to_owned();
    [
        row.node.clone(),
        row.state.clone(),
        number(row.operations_per_second),
        number(row.sent_per_second),
        number(row.received_per_second),
        row.depth.to_string(),
        credits.unwrap_or_else(unknown),
        hits.unwrap_or_else(unknown),
        number(row.resent_per_second),
    ]
}

pub(super) fn stage_cells(stage: &StageRow) -> [String; 4] {
    let time = |time: Option<u64>| time.map_or_else(|| "> 4 s".to_owned(), duration);
    [
        stage.stage.clone(),
        time(stage.half),
        time(stage.most),
        stage.count.to_string(),
    ]
}

pub(super) const PROCESS_HEADS: [&str; 13] = [
    "VNI",
    "PORT",
    "PID",
    "NAME",
    "QUEUE",
    "OPS/S",
    "SENT/S",
    "RECEIVED/S",
    "DEPTH",
    "POSTED",
    "UNREAD",
    "INBOX",
    "WAITING",
];

pub(super) fn process_cells(row: &ProcessRow) -> [String; 13] {
    [
        row.vni.to_string(),
        row.port.to_string(),
        row.pid.to_string(),
        row.name.clone().unwrap_or_else(|| "-".to_owned()),
        row.queue.clone(),
        number(row.operations_per_second),
        number(row.sent_per_second),
        number(row.received_per_second),
        row.depth.to_string(),
        row.posted.to_string(),
        format!("{}+{}", row.completions, row.notifications),
        format!("{}/{}", row.messages, row.receives),
        row.waiting.to_string(),
    ]
}

pub(super) const PEER_HEADS: [&str; 8] = [
    "PEER", "SESSION", "CREDITS", "GRANTED", "HELD", "ASKED", "WAITING", "RESENT/S",
];

pub(super) fn peer_cells(row: &PeerRow) -> [String; 8] {
    let (used, limit) = row.credits;
    [
        row.peer.clone(),
        row.session.clone(),
        format!("{used}/{limit}"),
        row.granted.to_string(),
        row.held.to_string(),
        row.requests.to_string(),
        row.waiting.to_string(),
        number(row.resent_per_second),
    ]
}

/// The rows as text: a table of nodes, and tables of the stages, the processes and the peers of each.
pub(crate) fn text(rows: &[Row]) -> String {
    let mut text = table(HEADS, rows.iter().map(cells));
    for row in rows {
        let tables = [
            (
                row.stages.is_empty(),
                table(STAGE_HEADS, row.stages.iter().map(stage_cells)),
            ),
            (
                row.by_process.is_empty(),
                table(PROCESS_HEADS, row.by_process.iter().map(process_cells)),
            ),
            (
                row.by_peer.is_empty(),
                table(PEER_HEADS, row.by_peer.iter().map(peer_cells)),
            ),
        ];
        let tables = tables.into_iter().filter(|(empty, _)| !empty);
        for (_, table) in tables {
            text += &format!("\n{}\n{table}", row.node);
        }
    }
    text
}

fn table<const N: usize>(heads: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let heads = std::iter::once(heads.map(str::to_owned));
    aligned(&heads.chain(rows).collect::<Vec<_>>())
}

fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let line = |row: &[String; N]| {
        let cells = row.iter().enumerate();
        let cells: Vec<_> = cells
            .map(|(column, cell)| format!("{cell:width$}", width = width(column)))
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::screen::view::tests::fixed;

    #[test]
    fn text_has_a_table_of_nodes_and_others_for_each() {
        let text = text(&fixed());
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("NODE  STATE"), "{text}");
        assert!(lines[1].starts_with("a     running  12k"), "{text}");
        assert_eq!(lines[3..6].iter().map(|line| line.len()).min(), Some(0));
        for head in ["STAGE", "VNI", "PEER"] {
            assert!(text.contains(&format!("\nb\n{head}")), "{text}");
        }
        assert!(text.contains("\n4    7     40   ring 4 "), "{text}");
        assert!(text.contains("\nnode 9  open     12/256 "), "{text}");
        assert!(super::text(&[]).starts_with("NODE"));
    }
}
