//! A process that speaks to the NIC by the ABI, without the library's checks: it
//! can issue what no correct program issues.

use std::time::Instant;

use anyhow::{bail, Context, Result};
use qnic::provider::{Process, Registration};
use qnic::{uapi, Nic, Status};
use qnic_abi::client::{Command, CommandQueue, Entry, HostArea};
use qnic_abi::command::Descriptor;
use qnic_abi::host_area::{ERRORS, QUEUE_STATUS};
use qnic_abi::shared::Ordering;

use qnic_apps::demo::options::ANSWER_LIMIT;

/// A registered process without an endpoint.
pub(crate) struct RawProcess {
    pub(crate) process: Box<dyn Process>,
    queue: CommandQueue,
    errors: u64,
}

/// How the NIC answered a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Failed(Status),
    QueueStopped(Status),
}

impl RawProcess {
    /// Registers on any free port.
    pub(crate) fn register(nic: &Nic) -> Result<Self> {
        match nic.provider().register(0, 0).context("register")? {
            Registration::Done(process) => Ok(RawProcess {
                process,
                queue: CommandQueue::at(0, 0),
                errors: 0,
            }),
            Registration::Refused(status) => bail!("register: {status}"),
        }
    }

    /// Puts a command into the queue, whatever it says, and waits for what the NIC makes
    /// of it.
    pub(crate) fn issue(&mut self, command: &Command) -> Result<Answer> {
        self.issue_raw(&command.descriptor())
    }

    /// The same with a descriptor.
    pub(crate) fn issue_raw(&mut self, descriptor: &Descriptor) -> Result<Answer> {
        let window = self.process.window();
        let (_, ring) = self
            .queue
            .post_words(&window, Entry::new(descriptor, &[]).words());
        if ring {
            self.process.ring_doorbell();
        }
        self.answer()
    }

    fn answer(&mut self) -> Result<Answer> {
        let memory = self.process.host_area();
        let area = HostArea(|offset| memory.load_u64(offset, Ordering::Acquire));
        let issued = self.queue.tail();
        let start = Instant::now();
        loop {
            let (writes, reads) = area.done();
            let errors = area.0(ERRORS);
            let stopped = area.0(QUEUE_STATUS);
            if stopped != 0 {
                return Ok(Answer::QueueStopped(status(stopped as u32)?));
            }
            if errors > self.errors {
                self.errors = errors;
                let (_, status) = area.errors().pop().context("an error record")?;
                return Ok(Answer::Failed(status));
            }
            if writes + reads >= issued {
                return Ok(Answer::Done);
            }
            if start.elapsed() > ANSWER_LIMIT {
                bail!("no answer to command {} in {ANSWER_LIMIT:?}", issued - 1);
            }
        }
    }

    /// Starts the queue again.
    pub(crate) fn reset(&mut self) -> Result<()> {
        let mut call = uapi::ResetQueue::default();
        self.process
            .reset_queue(&mut call)
            .context("reset the queue")?;
        self.queue = CommandQueue::at(0, 0);
        self.errors = 0;
        match status(call.status.get())? {
            Status::Ok => Ok(()),
            refused => bail!("reset the queue: {refused}"),
        }
    }
}

fn status(code: u32) -> Result<Status> {
    Status::try_from(code).map_err(|unknown| anyhow::anyhow!("unknown status {}", unknown.0))
}
