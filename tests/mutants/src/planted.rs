//! Planted bugs that the simulator must find: each is one edit of the source of NIC or
//! library.
//!
//! The checkout is copied, the edit applied to the copy, and seeds of the simulator
//! are run there with all faults on until one fails.

use anyhow::{ensure, Context, Result};

use crate::report::Report;
use crate::scratch::Scratch;

/// Seeds that are tried for each bug.
const SEEDS: &str = "1000";

/// Longest message of a checker in the table, in characters.
const MESSAGE: usize = 150;

/// One bug.
struct Planted {
    /// What it does wrong.
    name: &'static str,
    /// The file, below the checkout.
    file: &'static str,
    /// Text that occurs once in it, and what replaces it.
    edit: (&'static str, &'static str),
}

const PLANTED: &[Planted] = &[
    Planted {
        name: "a frame is acknowledged as delivered when it has arrived",
        file: "device-backend/nic/src/transport/receive.rs",
        edit: (
            "Some(open) => self.received.min(open - 1)",
            "Some(_) => self.received",
        ),
    },
    Planted {
        name: "a sender takes what has arrived for delivered",
        file: "device-backend/nic/src/transport/send.rs",
        edit: (
            "self.delivered.max(delivered)",
            "self.delivered.max(received)",
        ),
    },
    Planted {
        name: "frames for an earlier session of this side are accepted",
        file: "device-backend/nic/src/transport/session.rs",
        edit: (
            "source == self.peer && destination == self.own &&",
            "source == self.peer && destination <= self.own &&",
        ),
    },
    Planted {
        name: "frames of an earlier session of the peer are accepted",
        file: "device-backend/nic/src/transport/session.rs",
        edit: (
            "source == self.peer && destination == self.own &&",
            "source <= self.peer && destination == self.own &&",
        ),
    },
    Planted {
        name: "a session of the peer that has ended may begin again",
        file: "device-backend/nic/src/transport/session.rs",
        edit: ("if source < self.floor {", "if source == 0 {"),
    },
    Planted {
        name: "the window is one frame too large",
        file: "device-backend/nic/src/transport/send.rs",
        edit: (
            "u64::from(self.window).saturating_sub(",
            "u64::from(self.window + u32::from(self.window > 0)).saturating_sub(",
        ),
    },
    Planted {
        name: "one refused frame in eight never gives its credit back",
        file: "device-backend/nic/src/transport/held.rs",
        edit: (
            "self.frame_delivered(host, held);",
            "if sequence % 8 != 0 { self.frame_delivered(host, held); }",
        ),
    },
    Planted {
        name: "one bounced frame in eight never gives its credit back",
        file: "device-backend/nic/src/bounce.rs",
        edit: (
            "self.frame_delivered(host, bounced.held);",
            "if bounced.frame.sequence.get() % 8 != 0 { \
             self.frame_delivered(host, bounced.held); }",
        ),
    },
    Planted {
        name: "flushW and flushR count what is complete, in whatever order it was issued",
        file: "device-backend/nic/src/order.rs",
        edit: ("self.mask.trailing_ones()", "self.mask.count_ones()"),
    },
    Planted {
        name: "flushW waits until writes are sent, not until they are delivered",
        file: "device-backend/nic/src/operation.rs",
        edit: ("Notice::None if self.in_flight == 0 =>", "Notice::None =>"),
    },
    Planted {
        name: "a notification does not wait for earlier frames that are held",
        file: "device-backend/nic/src/transport/held.rs",
        edit: ("receive.delivered() >= sequence", "sequence > 0"),
    },
    Planted {
        name: "a notification that waits is let go when earlier frames have arrived",
        file: "device-backend/nic/src/transport/receive.rs",
        edit: (
            "?.sequence <= self.delivered()",
            "?.sequence <= self.received",
        ),
    },
    Planted {
        name: "a notification is sent although the write before its own is not",
        file: "device-backend/nic/src/order.rs",
        edit: (
            ".order.ended() >= position.number",
            ".order.ended() + 1 >= position.number",
        ),
    },
    Planted {
        name: "a frame that arrives again is taken again",
        file: "device-backend/nic/src/transport/receive.rs",
        edit: (
            "            _ => Place::Old,",
            "            _ => Place::Next,",
        ),
    },
    Planted {
        name: "a frame that is lost is not sent again",
        file: "device-backend/nic/src/transport/packets.rs",
        edit: ("self.waiting.push_back(sequence);", ""),
    },
    Planted {
        name: "swap returns what was there and stores nothing",
        file: "device-backend/nic/src/atomic.rs",
        edit: ("Some(Change::Swap(first))", "Some(Change::Add(first & 0))"),
    },
    Planted {
        name: "cswap does not compare",
        file: "device-backend/nic/src/atomic.rs",
        edit: ("expected: second,", "expected: second & 0,"),
    },
    Planted {
        name: "an atomic operation whose page was absent is executed twice",
        file: "device-backend/nic/src/atomic.rs",
        edit: (
            "None => self.try_atomic(host, &job),",
            "None => self.try_atomic(host, &job).and_then(|_| self.try_atomic(host, &job)),",
        ),
    },
    Planted {
        name: "dequeue forgets a wake-up for a head that is not known yet",
        file: "device-backend/nic/src/wait_queue.rs",
        edit: ("queue.pending = (queue.pending.get() + 1).into();", ""),
    },
    Planted {
        name: "dequeue leaves a wake-up when nobody waits for one",
        file: "device-backend/nic/src/wait_queue.rs",
        edit: (
            "queue.count.get() > queue.pending.get()",
            "queue.count.get() > 0",
        ),
    },
    Planted {
        name: "newhead does not pass a wake-up on",
        file: "device-backend/nic/src/wait_queue.rs",
        edit: ("if pending == 0 {", "if pending < 9 {"),
    },
    Planted {
        name: "enqueue names the first instead of the last",
        file: "device-backend/nic/src/wait_queue.rs",
        edit: ("        queue.tail.get()\n", "        queue.head.get()\n"),
    },
    Planted {
        name: "semV loses the second unit",
        file: "device-backend/nic/src/wait_queue.rs",
        edit: (
            "queue.value.get().saturating_add(1)",
            "queue.value.get().max(1)",
        ),
    },
    Planted {
        name: "semP takes no unit",
        file: "device-backend/nic/src/wait_queue.rs",
        edit: ("queue.value = (value - 1).into();", ""),
    },
    Planted {
        name: "the library releases a lock although somebody has just joined",
        file: "guest-lib/src/sync/lock.rs",
        edit: (
            "self.tail.compare_swap(me, 0)? == me",
            "self.tail.swap(0)? != 0",
        ),
    },
    Planted {
        name: "the library releases a lock before its holder's writes are there",
        file: "guest-lib/src/sync/lock.rs",
        edit: ("core.wait_program_writes()?;", ""),
    },
    Planted {
        name: "the library does not name the one behind who is woken",
        file: "guest-lib/src/sync/queue.rs",
        edit: ("if count == 0 {", "if count < 2 {"),
    },
    Planted {
        name: "the library forgets between two short waits what it has seen",
        file: "guest-lib/src/sync/queue.rs",
        edit: (
            "self.queue.wait(&slot, &mut self.watch, deadline)",
            "self.queue.wait(&slot, &mut Watch::new(None), deadline)",
        ),
    },
];

impl Planted {
    /// The source, with the bug in it.
    fn plant(&self, source: &str) -> Result<String> {
        let (text, replacement) = self.edit;
        let count = source.matches(text).count();
        ensure!(
            count == 1,
            "{}: {text:?} occurs {count} times in {}",
            self.name,
            self.file
        );
        Ok(source.replacen(text, replacement, 1))
    }
}

/// Plants each bug whose name contains `filter`, and reports which seed finds it.
/// Returns true if all were found.
///
/// # Errors
/// A bug does not fit the source any more, the sources as they are fail, or
/// something that the campaign needs cannot be done.
pub(crate) fn campaign(filter: &str) -> Result<bool> {
    let scratch = Scratch::new("simulator");
    scratch.copy_checkout()?;
    let sound = simulate(&scratch).context("without any planted bug")?;
    ensure!(sound.is_none(), "without any planted bug: {sound:?}");
    let columns = ["planted bug", "seed", "what the simulator says"];
    let mut report = Report::new("simulator", "Planted bugs", &columns);
    let (mut found, mut missed) = (0, 0);
    for bug in PLANTED.iter().filter(|bug| bug.name.contains(filter)) {
        let source = scratch.read(bug.file)?;
        scratch.write(bug.file, &bug.plant(&source)?)?;
        let failure = simulate(&scratch).with_context(|| bug.name)?;
        scratch.write(bug.file, &source)?;
        let (seed, message) = match failure {
            Some((seed, message)) => {
                found += 1;
                (seed.to_string(), message)
            }
            None => {
                missed += 1;
                ("-".into(), format!("**NOT FOUND** in {SEEDS} seeds"))
            }
        };
        report.row(&[bug.name, &seed, &message]);
    }
    let summary = format!("{found} bugs are found, {missed} are not.");
    report.finish(&summary, filter.is_empty())?;
    Ok(missed == 0)
}

/// The first seed that fails, and why.
fn simulate(scratch: &Scratch) -> Result<Option<(u64, String)>> {
    const RUNNER: [&str; 4] = ["-p", "qnic-sim", "--example", "first_failure"];
    let build = scratch.cargo(&[&["build"][..], &RUNNER].concat())?;
    ensure!(
        build.status.success(),
        "it does not compile: {}",
        String::from_utf8_lossy(&build.stderr)
    );
    let run = scratch.cargo(&[&["run"][..], &RUNNER, &["--", SEEDS]].concat())?;
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    if run.status.success() {
        return Ok(None);
    }
    let found = verdict(&said).with_context(|| {
        let error = String::from_utf8_lossy(&run.stderr).into_owned();
        format!("the simulator ended without a result: {said}{error}")
    })?;
    Ok(Some(found))
}

/// Seed and message in `seed N: message (file:line)`, fit for a table: without the
/// place, what assertions add, and the details of a transfer.
fn verdict(said: &str) -> Option<(u64, String)> {
    let (seed, message) = said.strip_prefix("seed ")?.split_once(": ")?;
    let message = message.trim_end();
    let message = message.rsplit_once(" (").map_or(message, |(text, _)| text);
    let message = match message.strip_prefix("assertion ") {
        Some(assertion) => assertion.split_once(" failed: ")?.1,
        None => message,
    };
    let message = [": Op {", "\n"].iter().fold(message, |text, end| {
        text.split_once(end).map_or(text, |(first, _)| first)
    });
    let mut short: String = message.replace('|', "\\|").chars().take(MESSAGE).collect();
    if message.chars().count() > MESSAGE {
        short.push('…');
    }
    Some((seed.parse().ok()?, short))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::checkout;

    #[test]
    fn every_planted_bug_fits_the_source_and_changes_it() {
        for bug in PLANTED {
            let source = std::fs::read_to_string(checkout().join(bug.file)).unwrap();
            assert_ne!(bug.plant(&source).unwrap(), source, "{}", bug.name);
        }
    }

    #[test]
    fn a_verdict_is_cut_to_what_fits_a_table() {
        let said =
            "seed 17: assertion `left == right` failed: process 3: a | b: Op { failed: 3 }\n\
                     left: 1 (oracle.rs:7)\n";
        let (seed, message) = verdict(said).unwrap();
        assert_eq!(seed, 17);
        assert_eq!(message, "process 3: a \\| b");
        let long = format!("seed 1: {} (x.rs:1)", "e".repeat(500));
        let (_, message) = verdict(&long).unwrap();
        assert_eq!(message.chars().count(), MESSAGE + 1);
        assert!(verdict("1000 seeds pass").is_none());
    }
}
