//! The rows on a screen: nodes, and below them the stages, the processes or the peers of one.

use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Row as Cells, Table};
use ratatui::Frame;

use super::tables::{
    cells, peer_cells, process_cells, stage_cells, HEADS, PEER_HEADS, PROCESS_HEADS, STAGE_HEADS,
};
use crate::top::model::Row;

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

/// What is shown of the node that is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Pane {
    /// The times of its stages.
    #[default]
    Stages,
    /// Its processes.
    Processes,
    /// The NICs that it talks to.
    Peers,
}

impl Pane {
    fn next(self) -> Pane {
        match self {
            Pane::Stages => Pane::Processes,
            Pane::Processes => Pane::Peers,
            Pane::Peers => Pane::Stages,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Pane::Stages => "stages",
            Pane::Processes => "processes",
            Pane::Peers => "peers",
        }
    }

    /// Lines that it has of a node.
    fn count(self, row: &Row) -> usize {
        match self {
            Pane::Stages => row.stages.len(),
            Pane::Processes => row.by_process.len(),
            Pane::Peers => row.by_peer.len(),
        }
    }
}

/// Lines that one key scrolls.
const PAGE: usize = 10;

/// What the screen shows.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    pub(crate) rows: Vec<Row>,
    pub(crate) order: Order,
    /// What is shown below the nodes.
    pub(crate) pane: Pane,
    /// The first of its lines that is shown, if it has so many.
    pub(crate) scrolled: usize,
    /// Name of the node that is chosen; the first one without it.
    pub(crate) selected: Option<String>,
    /// Why the last snapshot failed, or which device processes are silent.
    pub(crate) note: Option<String>,
}

impl Screen {
    /// Index of the node that is chosen.
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
        self.scrolled = 0;
    }

    /// Shows something else of the node.
    pub(crate) fn turn(&mut self) {
        self.pane = self.pane.next();
        self.scrolled = 0;
    }

    /// Shows the lines further down, or further up.
    pub(crate) fn scroll(&mut self, down: bool) {
        let lines = self.rows.get(self.index());
        let last = lines.map_or(0, |row| self.pane.count(row).saturating_sub(1));
        self.scrolled = match down {
            true => (self.scrolled + PAGE).min(last),
            false => self.scrolled.min(last).saturating_sub(PAGE),
        };
    }

    /// The first line that is shown where so many fit: there is no room below the last.
    fn first(&self, height: u16) -> usize {
        let lines = self.rows.get(self.index());
        let lines = lines.map_or(0, |row| self.pane.count(row));
        let room = usize::from(height).min(lines);
        self.scrolled.min(lines - room)
    }
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

    if let Some(row) = screen.rows.get(selected) {
        let area = middle.height.saturating_sub(3);
        frame.render_widget(pane(row, screen.pane, screen.first(area)), middle);
    }

    let keys = "q quit   ↑ ↓ node   ← → sort   tab stages, processes, peers   PgUp PgDn scroll";
    let line = screen.note.as_deref().unwrap_or(keys);
    frame.render_widget(Line::from(line), bottom);
}

/// What the pane shows of a node, from its line `first` on.
fn pane(row: &Row, pane: Pane, first: usize) -> Table<'static> {
    match pane {
        Pane::Stages => {
            let cells = row.stages.iter().map(stage_cells);
            lines(row, pane, STAGE_HEADS, [24, 10, 10, 10], cells.skip(first))
        }
        Pane::Processes => {
            let cells = row.by_process.iter().map(process_cells);
            let widths = [4, 6, 7, 18, 8, 7, 7, 10, 6, 6, 8, 10, 8];
            lines(row, pane, PROCESS_HEADS, widths, cells.skip(first))
        }
        Pane::Peers => {
            let cells = row.by_peer.iter().map(peer_cells);
            let widths = [14, 8, 12, 8, 7, 7, 8, 8];
            lines(row, pane, PEER_HEADS, widths, cells.skip(first))
        }
    }
}

fn lines<const N: usize>(
    row: &Row,
    pane: Pane,
    heads: [&'static str; N],
    widths: [u16; N],
    cells: impl Iterator<Item = [String; N]>,
) -> Table<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let title = match pane.count(row) {
        0 => format!(" {} of {} ", pane.name(), row.node),
        count => format!(" {} of {}: {count} ", pane.name(), row.node),
    };
    Table::new(cells.map(Cells::new), widths.map(Constraint::Length))
        .header(Cells::new(heads).style(bold))
        .block(Block::bordered().title(title))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Instant;

    use ratatui::backend::TestBackend;
    use ratatui::Terminal;

    use super::*;
    use crate::top::model::{rows, tests::snapshot};

    pub(crate) fn fixed() -> Vec<Row> {
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
    fn the_pane_has_processes_and_peers_after_the_key() {
        let mut screen = Screen {
            rows: fixed(),
            ..Screen::default()
        };
        screen.turn();
        let lines = drawn(&screen, 130, 12);
        for (line, parts) in [
            (5, &["processes of a: 30"][..]),
            (6, &["VNI", "PID", "QUEUE", "POSTED", "UNREAD"]),
            (7, &["4  ", "ring 4", "active", "4+5"]),
        ] {
            for part in parts {
                assert!(lines[line].contains(part), "{line}: {part}: {lines:#?}");
            }
        }
        let first = |screen: &Screen| drawn(screen, 130, 12)[7].clone();
        let before = first(&screen);
        screen.scroll(true);
        assert_ne!(first(&screen), before);
        (0..9).for_each(|_| screen.scroll(true));
        let last = drawn(&screen, 130, 12);
        assert!(last[9].contains("ring 3"), "no empty line: {last:#?}");
        (0..9).for_each(|_| screen.scroll(false));
        assert_eq!(first(&screen), before);
        screen.turn();
        let lines = drawn(&screen, 130, 12);
        assert!(lines[5].contains("peers of a: 1"), "{lines:#?}");
        assert!(
            lines[7].contains("open") && lines[7].contains("12/256"),
            "{lines:#?}"
        );
        screen.turn();
        assert!(drawn(&screen, 130, 12)[5].contains("stages of a"));
    }

    #[test]
    fn no_size_and_no_rows_are_too_few() {
        for (width, height) in [(1, 1), (20, 2), (200, 60)] {
            let panes = [Pane::Stages, Pane::Processes, Pane::Peers];
            let rows = [Vec::new(), fixed()].into_iter();
            for (rows, pane) in rows.flat_map(|rows| panes.map(|pane| (rows.clone(), pane))) {
                let screen = Screen {
                    rows,
                    pane,
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
}
