//! What ranks say, on this terminal: lines with their rank, or events as JSON.
//!
//! Events, one a line: `start` (machine, interface, the node of each rank), `output` (rank, node,
//! stream, line), `exit` (rank, node, code or signal), `end` (the exit status, and why).

use std::io::{self, IsTerminal, Write};

use qnic_cluster::{GuestEvent, GuestExit, Machine};
use qnic_trials::Lines;
use serde_json::{json, Value};

/// Colours of ranks on a terminal, one after the other: numbers of ANSI foregrounds.
const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];

/// What shows the events of a run.
pub(super) struct Output {
    json: bool,
    nodes: Vec<String>,
    /// Standard output and standard error of each rank.
    lines: Vec<[Lines; 2]>,
}

impl Output {
    /// For ranks on these nodes.
    pub(super) fn new(nodes: &[&str], json: bool) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colours = [io::stdout().is_terminal(), io::stderr().is_terminal()];
        let colours = colours.map(|terminal| terminal && !plain);
        let lines = |rank| colours.map(|colour| Lines::new(prefix(rank, nodes.len(), colour)));
        Self {
            json,
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            lines: (0..nodes.len()).map(lines).collect(),
        }
    }

    /// Says, as an event, which machine runs.
    pub(super) fn start(&self, machine: &Machine) -> io::Result<()> {
        let (name, interface) = (&machine.name, machine.interface);
        self.event(&json!({
            "event": "start", "machine": name, "interface": interface, "nodes": self.nodes
        }))
    }

    /// Says, as an event, how the run ended.
    pub(super) fn end(&self, status: u8, reason: Option<&str>) -> io::Result<()> {
        self.event(&json!({ "event": "end", "status": status, "reason": reason }))
    }

    /// Shows what a rank says.
    pub(super) fn show(&mut self, rank: usize, event: &GuestEvent) -> io::Result<()> {
        match event {
            GuestEvent::Stdout(bytes) => self.write(rank, 0, bytes),
            GuestEvent::Stderr(bytes) => self.write(rank, 1, bytes),
            GuestEvent::Exit(exit) => {
                self.finish(rank)?;
                let (key, number) = match exit {
                    GuestExit::Code(code) => ("code", code),
                    GuestExit::Signal(signal) => ("signal", signal),
                };
                let node = &self.nodes[rank];
                self.event(&json!({ "event": "exit", "rank": rank, "node": node, key: number }))
            }
        }
    }

    fn write(&mut self, rank: usize, stream: usize, bytes: &[u8]) -> io::Result<()> {
        let lines = &mut self.lines[rank][stream];
        if !self.json {
            return match stream {
                0 => lines.write(bytes, &mut io::stdout()),
                _ => lines.write(bytes, &mut io::stderr()),
            };
        }
        let mut whole = Vec::new();
        lines.each(bytes, &mut |line| whole.push(text(line)));
        let node = &self.nodes[rank];
        let stream = ["stdout", "stderr"][stream];
        whole.iter().try_for_each(|line| {
            self.event(&json!({
                "event": "output", "rank": rank, "node": node, "stream": stream, "line": line
            }))
        })
    }

    /// Shows last lines that have no end.
    fn finish(&mut self, rank: usize) -> io::Result<()> {
        for stream in [0, 1] {
            if self.lines[rank][stream].is_partial() {
                self.write(rank, stream, b"\n")?;
            }
        }
        Ok(())
    }

    fn event(&self, event: &Value) -> io::Result<()> {
        match self.json {
            true => writeln!(io::stdout(), "{event}"),
            false => Ok(()),
        }
    }
}

/// The prefix of lines of a rank, as wide for all ranks of the run.
fn prefix(rank: usize, ranks: usize, colour: bool) -> String {
    let width = ranks.saturating_sub(1).to_string().len();
    match colour {
        true => {
            let colour = COLOURS[rank % COLOURS.len()];
            format!("\x1b[{colour}m{rank:width$} |\x1b[0m ")
        }
        false => format!("{rank:width$} | "),
    }
}

/// A line without its end.
fn text(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    String::from_utf8_lossy(line).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_as_wide_for_all_ranks() {
        assert_eq!(prefix(3, 12, false), " 3 | ");
        assert_eq!(prefix(11, 12, false), "11 | ");
        assert_eq!(prefix(0, 1, false), "0 | ");
        assert_eq!(prefix(7, 8, true), "\x1b[33m7 |\x1b[0m ");
    }

    #[test]
    fn lines_lose_their_end_and_nothing_else() {
        assert_eq!(text(b" a \n"), " a ");
        assert_eq!(text(b"\xffa"), "\u{fffd}a");
        assert_eq!(text(b"\n"), "");
    }
}
