//! Ranks that run together and end together.
//!
//! ```text
//!   thread of a rank:  start ─▶ its killer is known ─▶ events ─▶ exit
//!                                                         │ bounded channel
//!   caller:            shows them ◀───────────────────────┘
//!                      first failure, pull of the cancel, end of the time:
//!                      kill all, wait GRACE for their exits, then abandon what is left
//! ```
//!
//! A rank that is being started when the others are killed is killed as soon as it runs. While
//! the caller does not take events, ranks wait with their output: what is kept is bounded.

use std::io;
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{Cancel, Error, GuestEvent, GuestExit, Result};

/// Time that killed ranks have to end. A guest that is paused or hangs takes longer.
const GRACE: Duration = Duration::from_secs(15);

/// Events that wait for the caller.
const WAITING: usize = 64;

/// A rank that was started.
pub(super) trait Rank {
    /// Ends it at once; from any thread, and any number of times.
    fn killer(&self) -> Killer;
    /// Waits for what it says next.
    fn next(&mut self) -> Result<GuestEvent>;
}

/// What ends a rank.
pub(super) type Killer = Box<dyn Fn() + Send>;

/// How a run ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunEnd {
    /// All ranks returned 0.
    Finished,
    /// This rank failed first.
    Failed {
        /// The rank.
        rank: usize,
        /// How it ended.
        exit: GuestExit,
    },
    /// This rank could not be started, or was lost.
    Lost {
        /// The rank.
        rank: usize,
        /// Why.
        error: Error,
    },
    /// The cancel was pulled.
    Interrupted,
    /// The time was over.
    TimedOut,
    /// What ranks say could not be shown.
    Output(io::Error),
}

/// A message of the thread of a rank, or of the thread that watches the cancel.
enum Note {
    Event(usize, GuestEvent),
    Lost(usize, Error),
    Interrupted,
}

/// The killers of the ranks that run, and whether all are to end.
struct Ranks(Mutex<(bool, Vec<Option<Killer>>)>);

impl Ranks {
    /// From now on the rank runs, or no longer.
    fn set(&self, rank: usize, killer: Option<Killer>) {
        let mut ranks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kill) = killer.as_ref().filter(|_| ranks.0) {
            kill();
        }
        ranks.1[rank] = killer;
    }

    fn kill_all(&self) {
        let mut ranks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ranks.0 = true;
        ranks.1.iter().flatten().for_each(|kill| kill());
    }
}

/// Runs `count` ranks to their end. Returns why the run ended, and the ranks that did not end when
/// they were killed. `abandon` makes [`Rank::next`] return at once, for all.
pub(super) fn supervise<R: Rank>(
    count: usize,
    start: &(impl Fn(usize) -> Result<R> + Sync),
    (cancel, abandon): (&Cancel, &dyn Fn()),
    limit: Option<Duration>,
    show: &mut dyn FnMut(usize, &GuestEvent) -> io::Result<()>,
) -> io::Result<(RunEnd, Vec<usize>)> {
    let over = Cancel::new()?;
    let ranks = Ranks(Mutex::new((false, (0..count).map(|_| None).collect())));
    let (notes, taken) = sync_channel(WAITING);
    std::thread::scope(|scope| {
        for rank in 0..count {
            let (notes, ranks) = (notes.clone(), &ranks);
            scope.spawn(move || {
                if let Err(error) = follow(rank, start, ranks, &notes) {
                    let _ = notes.send(Note::Lost(rank, error));
                }
                ranks.set(rank, None);
            });
        }
        let over = &over;
        scope.spawn(move || {
            if cancel.wait_before(over) {
                let _ = notes.send(Note::Interrupted);
            }
        });
        let ended = collect(count, &ranks, &taken, limit, show);
        over.cancel();
        abandon();
        // A thread that waits to send learns that no more is taken.
        drop(taken);
        Ok(ended)
    })
}

/// Starts a rank and passes on what it says, until it ends or no more is taken.
fn follow<R: Rank>(
    rank: usize,
    start: &impl Fn(usize) -> Result<R>,
    ranks: &Ranks,
    notes: &SyncSender<Note>,
) -> Result<()> {
    let mut process = start(rank)?;
    ranks.set(rank, Some(process.killer()));
    loop {
        let event = process.next()?;
        let last = matches!(event, GuestEvent::Exit(_));
        if notes.send(Note::Event(rank, event)).is_err() || last {
            return Ok(());
        }
    }
}

fn collect(
    count: usize,
    ranks: &Ranks,
    notes: &Receiver<Note>,
    limit: Option<Duration>,
    show: &mut dyn FnMut(usize, &GuestEvent) -> io::Result<()>,
) -> (RunEnd, Vec<usize>) {
    let mut until = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut running: Vec<_> = (0..count).collect();
    let mut end = None;
    while !running.is_empty() {
        let note = match until {
            None => notes.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => notes.recv_timeout(until.saturating_duration_since(Instant::now())),
        };
        let reason = match note {
            Ok(Note::Event(rank, event)) => {
                let shown = show(rank, &event).err().map(RunEnd::Output);
                let failed = match event {
                    GuestEvent::Exit(exit) => {
                        running.retain(|running| *running != rank);
                        (!exit.success()).then_some(RunEnd::Failed { rank, exit })
                    }
                    _ => None,
                };
                shown.or(failed)
            }
            Ok(Note::Lost(rank, error)) => {
                running.retain(|running| *running != rank);
                Some(RunEnd::Lost { rank, error })
            }
            Ok(Note::Interrupted) => Some(RunEnd::Interrupted),
            Err(_) if end.is_some() => break,
            Err(_) => Some(RunEnd::TimedOut),
        };
        if let Some(reason) = reason.filter(|_| end.is_none()) {
            end = Some(reason);
            ranks.kill_all();
            until = Some(Instant::now() + GRACE);
        }
    }
    (end.unwrap_or(RunEnd::Finished), running)
}

#[cfg(test)]
#[path = "supervise_tests.rs"]
mod tests;
