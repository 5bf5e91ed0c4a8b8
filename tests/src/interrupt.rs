//! The end of a run of tests by a signal: no process stays.
//!
//! ```text
//!   INT, TERM, HUP ─▶ TERM to each job, which does the same ─▶ no job is left
//!                  ─▶ kill all descendants, again and again ─▶ the running case fails and
//!                     removes its files ─▶ no further case ─▶ status 130
//! ```
//! A run of several cases has a process for each, a job; the run of one case has none.
//! A case waits for its processes, each wait with a limit: when they are gone, it ends by itself,
//! and its objects clean up as after any failure. One that does not is not waited for. A signal
//! that comes second, or one that cannot be caught, ends the run at once; then the kernel ends
//! the device processes and programs of a case ([`qnic_cluster::spawn_bound`]) and its guests.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::process::{exit, Child, ExitCode};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use qnic_cluster::{adopt_orphans, end_descendants, Cancel};
use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};

/// Exit status of a run that was interrupted.
pub(crate) const INTERRUPTED: u8 = 130;

/// Time that the running case has to clean up.
const GRACE: Duration = Duration::from_secs(20);

/// Time that jobs have to end, which clean up themselves.
const JOBS_GRACE: Duration = Duration::from_secs(30);

/// How often it is looked, meanwhile, whether the case has started something else.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Watches for signals, from [`Interrupt::watch`] on.
pub(crate) struct Interrupt {
    cancel: Cancel,
    jobs: Jobs,
    /// Its end tells the watching thread that the run is over.
    _running: Sender<()>,
}

impl Interrupt {
    /// Takes over the signals INT, TERM and HUP. Call it before anything is started.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptors or threads left.
    pub(crate) fn watch() -> Result<Self> {
        adopt_orphans().context("adopt what children leave")?;
        let cancel = Cancel::on_signals().context("watch for signals")?;
        let (running, over) = channel();
        let jobs = Jobs::default();
        let (pulled, to_end) = (cancel.clone(), jobs.clone());
        std::thread::Builder::new()
            .name("interrupt".into())
            .spawn(move || {
                pulled.wait();
                end_run(&over, &to_end);
            })
            .context("start a thread")?;
        Ok(Interrupt {
            cancel,
            jobs,
            _running: running,
        })
    }

    /// Returns true if a signal has come: nothing more is to be started.
    pub(crate) fn is_pulled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// A job was started: a signal ends it from now on, and did so if it has come.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptors left.
    pub(crate) fn started(&self, job: &Child) -> Result<()> {
        self.jobs.add(job)?;
        if self.is_pulled() {
            self.jobs.terminate();
        }
        Ok(())
    }

    /// A job has ended.
    pub(crate) fn ended(&self, job: u32) {
        self.jobs.with(|jobs| jobs.remove(&job));
    }

    /// The exit status of the run, `status` unless a signal has come; nothing is left running
    /// then.
    pub(crate) fn finish(self, status: ExitCode) -> ExitCode {
        if !self.is_pulled() {
            return status;
        }
        tell_left(end_descendants());
        ExitCode::from(INTERRUPTED)
    }
}

/// The jobs that run, by their numbers.
#[derive(Clone, Default)]
struct Jobs(Arc<Mutex<HashMap<u32, OwnedFd>>>);

impl Jobs {
    fn with<T>(&self, action: impl FnOnce(&mut HashMap<u32, OwnedFd>) -> T) -> T {
        action(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Its number is still its own, as no process has waited for it.
    fn add(&self, job: &Child) -> Result<()> {
        let pid = Pid::from_raw(job.id() as i32).context("a job without a number")?;
        let open = pidfd_open(pid, PidfdFlags::empty()).context("open a job")?;
        self.with(|jobs| jobs.insert(job.id(), open));
        Ok(())
    }

    /// Asks all to end; returns how many run.
    fn terminate(&self) -> usize {
        self.with(|jobs| {
            for job in jobs.values() {
                // One that has ended needs none.
                let _ = pidfd_send_signal(job, Signal::TERM);
            }
            jobs.len()
        })
    }
}

fn end_run(over: &Receiver<()>, jobs: &Jobs) {
    eprintln!("qnic: interrupted; ending what the tests have started");
    let ended = Err(RecvTimeoutError::Disconnected);
    if jobs.terminate() > 0 && over.recv_timeout(JOBS_GRACE) == ended {
        return;
    }
    let start = Instant::now();
    while start.elapsed() < GRACE {
        end_descendants();
        if over.recv_timeout(LOOK_AGAIN) == ended {
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
