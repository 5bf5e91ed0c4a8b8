//! The end of a run of tests by a signal: no process stays.
//!
//! ```text
//!   INT, TERM, HUP ─▶ kill all descendants, again and again ─▶ the running case fails and
//!                     removes its files ─▶ no further case ─▶ status 130
//! ```
//! A case waits for its processes, each wait with a limit: when they are gone, it ends by itself,
//! and its objects clean up as after any failure. One that does not is not waited for. A signal
//! that comes second, or one that cannot be caught, ends the run at once; then the kernel ends
//! the device processes and programs of a case ([`qnic_cluster::spawn_bound`]) and its guests.

use std::process::{exit, ExitCode};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use qnic_cluster::{adopt_orphans, end_descendants, Cancel};

/// Exit status of a run that was interrupted.
pub const INTERRUPTED: u8 = 130;

/// Time that the running case has to clean up.
const GRACE: Duration = Duration::from_secs(20);

/// How often it is looked, meanwhile, whether the case has started something else.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Watches for signals, from [`Interrupt::watch`] on.
pub struct Interrupt {
    cancel: Cancel,
    /// Its end tells the watching thread that the run is over.
    _running: Sender<()>,
}

impl Interrupt {
    /// Takes over the signals INT, TERM and HUP. Call it before anything is started.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptors or threads left.
    pub fn watch() -> Result<Self> {
        adopt_orphans().context("adopt what children leave")?;
        let cancel = Cancel::on_signals().context("watch for signals")?;
        let (running, over) = channel();
        let pulled = cancel.clone();
        std::thread::Builder::new()
            .name("interrupt".into())
            .spawn(move || {
                pulled.wait();
                end_run(&over);
            })
            .context("start a thread")?;
        Ok(Interrupt {
            cancel,
            _running: running,
        })
    }

    /// Returns true if a signal has come: nothing more is to be started.
    pub fn is_pulled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// The exit status of the run, `status` unless a signal has come; nothing is left running
    /// then.
    pub fn finish(self, status: ExitCode) -> ExitCode {
        if !self.is_pulled() {
            return status;
        }
        tell_left(end_descendants());
        ExitCode::from(INTERRUPTED)
    }
}

fn end_run(over: &Receiver<()>) {
    eprintln!("qnic: interrupted; ending what the tests have started");
    let start = Instant::now();
    while start.elapsed() < GRACE {
        end_descendants();
        if over.recv_timeout(LOOK_AGAIN) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
    tell_left(end_descendants());
    exit(INTERRUPTED.into());
}

fn tell_left(count: usize) {
    if count > 0 {
        eprintln!("qnic: {count} processes do not end: they are stuck in the kernel");
    }
}
