use std::sync::mpsc::{channel, Sender};
use std::sync::{Barrier, Condvar};

use super::*;

/// A rank that says what its test sends it, and ends by signal 9 when it is killed.
struct Fake {
    events: Receiver<Result<GuestEvent>>,
    to_itself: Sender<Result<GuestEvent>>,
}

const KILLED: GuestEvent = GuestEvent::Exit(GuestExit::Signal(9));

fn exit(code: u8) -> GuestEvent {
    GuestEvent::Exit(GuestExit::Code(code))
}

impl Fake {
    /// One that says `words` and goes on until it is killed, unless the last is its exit.
    fn saying(words: Vec<GuestEvent>) -> Self {
        let (to_itself, events) = channel();
        for word in words {
            to_itself.send(Ok(word)).unwrap();
        }
        Self { events, to_itself }
    }
}

impl Rank for Fake {
    fn killer(&self) -> Killer {
        let to_itself = self.to_itself.clone();
        Box::new(move || drop(to_itself.send(Ok(KILLED))))
    }

    fn next(&mut self) -> Result<GuestEvent> {
        self.events.recv().unwrap()
    }
}

type Shown = Vec<(usize, GuestEvent)>;

fn run(
    count: usize,
    start: impl Fn(usize) -> Result<Fake> + Sync,
    cancel: &Cancel,
    limit: Option<Duration>,
) -> (RunEnd, Shown) {
    let mut shown = Vec::new();
    let mut show = |rank, event: &GuestEvent| {
        shown.push((rank, event.clone()));
        Ok(())
    };
    let ended = supervise(count, &start, (cancel, &|| {}), limit, &mut show);
    let (end, left) = ended.unwrap();
    assert_eq!(left, [0; 0]);
    (end, shown)
}

#[test]
fn ranks_that_succeed_are_heard_to_their_ends() {
    let said = |rank: usize| GuestEvent::Stdout(vec![rank as u8]);
    let start = |rank| Ok(Fake::saying(vec![said(rank), exit(0)]));
    let (end, mut shown) = run(3, start, &Cancel::new().unwrap(), None);
    assert!(matches!(end, RunEnd::Finished), "{end:?}");
    // Of one rank they come in their order.
    shown.sort_by_key(|(rank, _)| *rank);
    let expected = (0..3).flat_map(|rank| [(rank, said(rank)), (rank, exit(0))]);
    assert_eq!(shown, expected.collect::<Vec<_>>());
}

#[test]
fn the_first_failure_ends_the_others_and_is_the_one_that_is_named() {
    let start = |rank| {
        let words = if rank == 2 { vec![exit(7)] } else { vec![] };
        Ok(Fake::saying(words))
    };
    let (end, shown) = run(4, start, &Cancel::new().unwrap(), None);
    let RunEnd::Failed { rank: 2, exit: how } = end else {
        panic!("{end:?}");
    };
    assert_eq!(how, GuestExit::Code(7));
    let killed = shown.iter().filter(|(_, event)| *event == KILLED).count();
    assert_eq!((shown[0].clone(), killed), ((2, exit(7)), 3));
}

/// Rank 1 comes up after rank 0 has failed and its exit has been shown.
#[test]
fn a_rank_that_starts_late_is_ended_too() {
    let failed = (Mutex::new(false), Condvar::new());
    let start = |rank| {
        if rank == 0 {
            return Ok(Fake::saying(vec![exit(1)]));
        }
        let seen = failed.0.lock().unwrap();
        drop(failed.1.wait_while(seen, |seen| !*seen).unwrap());
        Ok(Fake::saying(Vec::new()))
    };
    let mut show = |rank, _: &GuestEvent| {
        if rank == 0 {
            *failed.0.lock().unwrap() = true;
            failed.1.notify_all();
        }
        Ok(())
    };
    let ends = (&Cancel::new().unwrap(), &(|| {}) as &dyn Fn());
    let (end, left) = supervise(2, &start, ends, None, &mut show).unwrap();
    assert!(matches!(end, RunEnd::Failed { rank: 0, .. }), "{end:?}");
    assert_eq!(left, [0; 0]);
}

#[test]
fn a_rank_that_cannot_be_started_ends_the_others() {
    let start = |rank| match rank {
        1 => Err(Error::guest("a", "no")),
        _ => Ok(Fake::saying(Vec::new())),
    };
    let (end, shown) = run(2, start, &Cancel::new().unwrap(), None);
    assert!(matches!(end, RunEnd::Lost { rank: 1, .. }), "{end:?}");
    assert_eq!(shown, [(0, KILLED)]);
}

#[test]
fn a_pulled_cancel_and_the_end_of_the_time_end_all() {
    let silent = |_| Ok(Fake::saying(Vec::new()));
    let cancel = Cancel::new().unwrap();
    let started = Barrier::new(3);
    let start = |rank| {
        started.wait();
        silent(rank)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            started.wait();
            cancel.cancel();
        });
        let (end, shown) = run(2, start, &cancel, None);
        assert!(matches!(end, RunEnd::Interrupted), "{end:?}");
        assert_eq!(shown.len(), 2);
    });
    let short = Some(Duration::from_millis(10));
    let (end, shown) = run(2, silent, &Cancel::new().unwrap(), short);
    assert!(matches!(end, RunEnd::TimedOut), "{end:?}");
    assert_eq!(shown.len(), 2);
}

/// A reader that has gone, as of a pipe, ends the run; more than fits into the channel waits.
#[test]
fn output_that_cannot_be_shown_ends_all() {
    let start = |_| {
        let line = GuestEvent::Stdout(b"x\n".to_vec());
        Ok(Fake::saying(vec![line; 3 * WAITING]))
    };
    let mut show = |_, event: &GuestEvent| match event {
        GuestEvent::Exit(_) => Ok(()),
        _ => Err(io::ErrorKind::BrokenPipe.into()),
    };
    let ends = (&Cancel::new().unwrap(), &(|| {}) as &dyn Fn());
    let (end, left) = supervise(2, &start, ends, None, &mut show).unwrap();
    assert!(matches!(end, RunEnd::Output(_)), "{end:?}");
    assert_eq!(left, [0; 0]);
}
