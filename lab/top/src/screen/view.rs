//! The rows on a screen, and as text.

use qnic_cluster::stages::duration;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Row as Cells, Table};
use ratatui::Frame;

use crate::model::{Row, StageRow};

/// By what nodes are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Order {
    /// Their names.
    #[default]
    Name,
    /// Operations per second, most first.
    Operations,
    /// Bytes per second, sent and received, most first.
    Bytes,
    /// Operations that are not complete, most first.
    Depth,
}

impl Order {
    /// The order behind it, or the one before it.
    pub(crate) fn next(self, forward: bool) -> Order {
        use Order::{Bytes, Depth, Name, Operations};
        match (self, forward) {
            (Name, true) | (Bytes, false) => Operations,
            (Operations, true) | (Depth, false) => Bytes,
            (Bytes, true) | (Name, false) => Depth,
            (Depth, true) | (Operations, false) => Name,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Order::Name => "name",
            Order::Operations => "operations",
            Order::Bytes => "bytes",
            Order::Depth => "depth",
        }
    }

    /// Sorts rows; equal ones by name.
    pub(crate) fn sort(self, rows: &mut [Row]) {
        let key = |row: &Row| match self {
            Order::Name => 0,
            Order::Operations => row.operations_per_second.unwrap_or(0),
            Order::Bytes => {
                let [sent, received] = [row.sent_per_second, row.received_per_second];
                sent.unwrap_or(0).saturating_add(received.unwrap_or(0))
            }
            Order::Depth => row.depth,
        };
        rows.sort_by(|one, other| key(other).cmp(&key(one)).then(one.node.cmp(&other.node)));
    }
}

/// What the screen shows.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    pub(crate) rows: Vec<Row>,
    pub(crate) order: Order,
    /// Name of the node whose stages are shown; the first one without it.
    pub(crate) selected: Option<String>,
    /// Why the last snapshot failed, or which device processes are silent.
    pub(crate) note: Option<String>,
}

impl Screen {
    /// Index of the node whose stages are shown.
    fn index(&self) -> usize {
        let selected = self.selected.as_deref();
        let found = self
            .rows
            .iter()
            .position(|row| Some(&row.node[..]) == selected);
        found.unwrap_or(0)
    }

    /// Selects the next node, or the one before.
    pub(crate) fn select(&mut self, forward: bool) {
        let last = self.rows.len().saturating_sub(1);
        let index = match forward {
            true => (self.index() + 1).min(last),
            false => self.index().saturating_sub(1),
        };
        self.selected = self.rows.get(index).map(|row| row.node.clone());
    }
}

const HEADS: [&str; 9] = [
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

const STAGE_HEADS: [&str; 4] = ["STAGE", "HALF", "99 %", "SAMPLES"];

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

fn cells(row: &Row) -> [String; 9] {
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

fn stage_cells(stage: &StageRow) -> [String; 4] {
    let time = |time: Option<u64>| time.map_or_else(|| "> 4 s".to_owned(), duration);
    [
        stage.stage.clone(),
        time(stage.half),
        time(stage.most),
        stage.count.to_string(),
    ]
}

/// Draws the screen.
pub(crate) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let nodes = screen.rows.len() as u16 + 3;
    let parts = [
        Constraint::Max(nodes),
        Constraint::Min(3),
        Constraint::Length(1),
    ];
    let [top, middle, bottom] = Layout::vertical(parts).areas(frame.area());
    let selected = screen.index();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let lines = screen.rows.iter().enumerate().map(|(index, row)| {
        let line = Cells::new(cells(row));
        match index == selected {
            true => line.style(Style::new().add_modifier(Modifier::REVERSED)),
            false => line,
        }
    });
    let widths = [14, 10, 8, 8, 10, 7, 12, 8, 8].map(Constraint::Length);
    let title = format!(" qnic top, by {} ", screen.order.name());
    let table = Table::new(lines, widths)
        .header(Cells::new(HEADS).style(bold))
        .block(Block::bordered().title(title));
    frame.render_widget(table, top);

    let row = screen.rows.get(selected);
    let stages = row.into_iter().flat_map(|row| &row.stages);
    let stages = stages.map(|stage| Cells::new(stage_cells(stage)));
    let title = row.map_or_else(String::new, |row| format!(" stages of {} ", row.node));
    let table = Table::new(stages, [24, 10, 10, 10].map(Constraint::Length))
        .header(Cells::new(STAGE_HEADS).style(bold))
        .block(Block::bordered().title(title));
    frame.render_widget(table, middle);

    let keys = "q quit   ↑ ↓ node   ← → sort";
    let line = screen.note.as_deref().unwrap_or(keys);
    frame.render_widget(Line::from(line), bottom);
}

/// The rows as text.
pub(crate) fn text(rows: &[Row]) -> String {
    let mut nodes = vec![HEADS.map(str::to_owned)];
    nodes.extend(rows.iter().map(cells));
    let mut text = aligned(&nodes);
    for row in rows.iter().filter(|row| !row.stages.is_empty()) {
        let mut stages = vec![STAGE_HEADS.map(str::to_owned)];
        stages.extend(row.stages.iter().map(stage_cells));
        text += &format!("\n{}\n{}", row.node, aligned(&stages));
    }
    text
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
    use std::time::Instant;

    use ratatui::backend::TestBackend;
    use ratatui::Terminal;

    use super::*;
    use crate::model::{rows, tests::snapshot};

    fn fixed() -> Vec<Row> {
        let start = Instant::now();
        let before = snapshot(start, 0, &[("a", 0, 0), ("b", 0, 0)]);
        let after = snapshot(start, 1, &[("a", 12_345, 3), ("b", 200_000, 3)]);
        rows(Some(&before), &after)
    }

    fn drawn(screen: &Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y: u16| -> String {
            let cells = (0..width).map(|x| buffer[(x, y)].symbol());
            cells.collect::<String>().trim_end().to_owned()
        };
        (0..height).map(line).collect()
    }

    #[test]
    fn a_screen_has_nodes_stages_and_keys() {
        let screen = Screen {
            rows: fixed(),
            selected: Some("b".to_owned()),
            ..Screen::default()
        };
        let lines = drawn(&screen, 110, 12);
        assert!(lines[0].contains("qnic top, by name"), "{lines:#?}");
        for (line, parts) in [
            (1, &["NODE", "CREDITS", "RESENT/S"][..]),
            (2, &["a ", "running", "12k", "98k", "256/4096", "100.0 %"]),
            (3, &["b ", "200k", "1600k"]),
            (5, &["stages of b"]),
            (7, &["write queued", "64 ns", "200000"]),
            (11, &["q quit"]),
        ] {
            for part in parts {
                assert!(lines[line].contains(part), "{line}: {part}: {lines:#?}");
            }
        }
    }

    #[test]
    fn no_size_and_no_rows_are_too_few() {
        for (width, height) in [(1, 1), (20, 2), (200, 60)] {
            for rows in [Vec::new(), fixed()] {
                let screen = Screen {
                    rows,
                    note: Some("silent: device".to_owned()),
                    ..Screen::default()
                };
                let lines = drawn(&screen, width, height);
                assert_eq!(lines.len(), usize::from(height));
            }
        }
    }

    #[test]
    fn arrows_select_and_sort() {
        let mut screen = Screen {
            rows: fixed(),
            ..Screen::default()
        };
        let mut select = |forward, expected: &str| {
            screen.select(forward);
            assert_eq!(screen.selected.as_deref(), Some(expected));
        };
        select(false, "a");
        select(true, "b");
        select(true, "b");
        select(false, "a");
        let mut orders = vec![Order::default()];
        for _ in 0..4 {
            let next = orders.last().unwrap().next(true);
            assert_eq!(next.next(false), *orders.last().unwrap());
            orders.push(next);
        }
        assert_eq!(orders.last(), Some(&Order::Name));
        for (order, first) in orders.into_iter().zip(["a", "b", "b", "a"]) {
            order.sort(&mut screen.rows);
            assert_eq!(screen.rows[0].node, first, "{order:?}");
        }
    }

    #[test]
    fn text_has_a_table_of_nodes_and_one_of_stages_for_each() {
        let text = text(&fixed());
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("NODE  STATE"), "{text}");
        assert!(lines[1].starts_with("a     running  12k"), "{text}");
        assert_eq!(lines[3..6].iter().map(|line| line.len()).min(), Some(0));
        assert!(text.contains("\nb\nSTAGE"), "{text}");
        assert!(super::text(&[]).starts_with("NODE"));
    }
}
