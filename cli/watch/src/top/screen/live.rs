//! The terminal: it is taken, drawn on, and given back however the program ends.
//!
//! | end | what gives it back |
//! |---|---|
//! | `q`, an error | the drop of [`Taken`] |
//! | INT, TERM, HUP | the same: they pull the cancel, which the loop looks at ten times a second |
//! | a panic | ratatui's hook, before the message is printed |

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use qnic_cluster::Cancel;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::DefaultTerminal;

use super::view::{draw, Screen};
use crate::top::model::rows;
use crate::top::snapshot::Snapshot;
use crate::top::Source;

/// Longest time until a signal is seen.
const LOOK: Duration = Duration::from_millis(100);

/// The terminal, which is given back when this is dropped.
struct Taken(DefaultTerminal);

impl Drop for Taken {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// What a key does.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    Quit,
    Select(bool),
    Sort(bool),
    Turn,
    Scroll(bool),
}

fn action(key: &KeyEvent) -> Option<Action> {
    let interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        _ if key.kind == KeyEventKind::Release => None,
        KeyCode::Char('c') if interrupt => Some(Action::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Action::Quit),
        KeyCode::Up => Some(Action::Select(false)),
        KeyCode::Down => Some(Action::Select(true)),
        KeyCode::Left => Some(Action::Sort(false)),
        KeyCode::Right => Some(Action::Sort(true)),
        KeyCode::Tab => Some(Action::Turn),
        KeyCode::PageUp => Some(Action::Scroll(false)),
        KeyCode::PageDown => Some(Action::Scroll(true)),
        _ => None,
    }
}

pub(crate) fn run(source: &Source, interval: Duration, cancel: &Cancel) -> Result<()> {
    ensure!(
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        "no terminal to draw on: --once prints the figures of one interval, --once --json as JSON"
    );
    // An error at the start is printed on the ordinary screen.
    let mut last = Snapshot::take(source)?;
    let mut terminal = Taken(ratatui::try_init()?);
    let mut screen = Screen {
        rows: rows(None, &last),
        ..Screen::default()
    };
    let mut due = Instant::now() + interval;
    while !cancel.is_cancelled() {
        screen.order.sort(&mut screen.rows);
        terminal.0.draw(|frame| draw(frame, &screen))?;
        let left = due.saturating_duration_since(Instant::now());
        if event::poll(left.min(LOOK))? {
            if let Event::Key(key) = event::read()? {
                match action(&key) {
                    Some(Action::Quit) => return Ok(()),
                    Some(Action::Select(forward)) => screen.select(forward),
                    Some(Action::Sort(forward)) => screen.order = screen.order.next(forward),
                    Some(Action::Turn) => screen.turn(),
                    Some(Action::Scroll(down)) => screen.scroll(down),
                    None => {}
                }
            }
        }
        if Instant::now() >= due {
            refresh(source, &mut last, &mut screen);
            due = Instant::now() + interval;
        }
    }
    Err(qnic_cluster::Error::Interrupted.into())
}

/// Takes a snapshot; if that fails, the rows stay, and the screen says why.
fn refresh(source: &Source, last: &mut Snapshot, screen: &mut Screen) {
    match Snapshot::take(source) {
        Ok(now) => {
            screen.rows = rows(Some(last), &now);
            screen.note = match now.silent.is_empty() {
                true => None,
                false => Some(format!("silent: {}", now.silent.join(", "))),
            };
            *last = now;
        }
        Err(error) => screen.note = Some(format!("{error:#}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_what_the_screen_says() {
        let key = |code, modifiers| action(&KeyEvent::new(code, modifiers));
        let plain = |code| key(code, KeyModifiers::NONE);
        assert_eq!(plain(KeyCode::Char('q')), Some(Action::Quit));
        assert_eq!(
            key(KeyCode::Char('c'), KeyModifiers::CONTROL),
            Some(Action::Quit)
        );
        assert_eq!(plain(KeyCode::Char('c')), None);
        assert_eq!(plain(KeyCode::Down), Some(Action::Select(true)));
        assert_eq!(plain(KeyCode::Left), Some(Action::Sort(false)));
        assert_eq!(plain(KeyCode::Tab), Some(Action::Turn));
        assert_eq!(plain(KeyCode::PageDown), Some(Action::Scroll(true)));
    }
}
