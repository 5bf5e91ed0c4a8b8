//! What programs hold of the streams of a port, and the thread that answers peers while they do
//! something else.

use std::sync::Arc;
use std::time::Duration;

use qnic_shared::region::Own;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::stream_protocol::Config;

use super::machine::{Awaited, Machine, SLACK_NS};
use crate::error::{Error, Result};
use crate::pool::Pools;

/// Longest sleep, as poll has a limit.
const LONGEST: Duration = Duration::from_secs(60);

/// What programs hold: when the last one is dropped, the streams end.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) machine: Arc<Machine>,
    /// A forked child has no service thread, which may have had the machine's lock.
    own: Own<()>,
}

impl Handle {
    /// Starts the service thread.
    pub(super) fn start(pools: &Pools, config: Config) -> Result<Arc<Self>> {
        let machine = Machine::new(pools, config)?;
        let service = machine.clone();
        let thread = std::thread::Builder::new().name("qnic-streams".into());
        let thread = thread.spawn(move || run(&service));
        thread.map_err(|error| Error::system("start a thread", error))?;
        let own = Own::new(());
        Ok(Arc::new(Handle { machine, own }))
    }
}

impl Drop for Handle {
    /// Lingers: the process may end right after that, and with it what was written and not sent.
    fn drop(&mut self) {
        if self.own.get().is_ok() {
            let machine = &self.machine;
            machine.lock().closing = Some(machine.now());
            machine.nudge();
            let limit = Duration::from_nanos(machine.config.peer_timeout);
            // A peer that has not got it by then is not waited for: `close` says so.
            let _ = machine.wait(Awaited::Anything, Some(limit), |state| {
                Ok((!state.endpoint.owes_data()).then_some(()))
            });
        }
    }
}

/// Serves until the last handle is gone and the streams have ended, or the device is gone.
fn run(machine: &Arc<Machine>) {
    if serve(machine).is_err() {
        machine.device_is_gone();
    }
}

fn serve(machine: &Machine) -> Result<()> {
    let mut received = 0;
    let mut was_woken = false;
    loop {
        let mut state = machine.lock();
        state.asleep = None;
        machine.pump(&mut state)?;
        let before = received;
        received = machine.pools.statistics().frames_received;
        if was_woken && received == before && machine.pools.ready() == 0 {
            machine.pools.check()?;
        }
        let now = machine.now();
        if let Some(since) = state.closing {
            // Streams that end need their peers, but not for longer than a peer may be silent.
            let is_over = since.after(machine.config.peer_timeout) <= now;
            if is_over || state.endpoint.connections() == 0 {
                return Ok(());
            }
        }
        let earliest = now.after(SLACK_NS);
        let soon = earliest.after(machine.config.retransmission.ack_delay);
        let deadline = state.endpoint.deadline().map(|time| time.max(earliest));
        // While frames come, each that is to be acknowledged would have this thread nudged if it slept
        // for long.
        let deadline = match received != before {
            true => Some(deadline.map_or(soon, |deadline| deadline.min(soon))),
            false => deadline,
        };
        // Threads that look themselves ask to be relieved when they end.
        let event = match state.spinners {
            0 => machine.pools.poll(machine.wanted(&state))?,
            _ => Some(machine.pools.poll_descriptor()?),
        };
        let Some(event) = event else {
            was_woken = false;
            continue;
        };
        state.asleep = Some(deadline);
        drop(state);
        let wait = deadline.map_or(LONGEST, |deadline| machine.until(deadline));
        let wait = Timespec::try_from(wait.min(LONGEST)).unwrap_or_default();
        let mut descriptors = [
            PollFd::new(&event, PollFlags::IN),
            PollFd::new(&machine.nudge, PollFlags::IN),
        ];
        machine.pools.count_wait();
        // An interrupted sleep is a short one.
        let _ = poll(&mut descriptors, Some(&wait));
        was_woken = !descriptors[0].revents().is_empty();
        if descriptors[1].revents().contains(PollFlags::IN) {
            machine.pools.count_nudge();
            let _ = rustix::io::read(&machine.nudge, &mut [0; 8]);
        }
    }
}
