//! A process that speaks to the NIC by the ABI, without the library's checks: it
//! can issue what no correct program issues.

use std::time::Instant;

use anyhow::{bail, Context, Result};
use qnic::provider::{Process, Registration};
use qnic::{uapi, Nic, Status};
use qnic_abi::command::{CommandFlags, Descriptor, Opcode, DESCRIPTOR_BYTES};
use qnic_abi::host_area::{
    ErrorRecord, ERRORS, ERROR_RECORDS, ERROR_RING, QUEUE_STATUS, READS_DONE, WRITES_DONE,
};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{command_offset, AWAKE};
use zerocopy::{FromZeros, IntoBytes};

use crate::options::ANSWER_LIMIT;

/// A registered process without an endpoint.
pub(crate) struct RawProcess {
    pub(crate) process: Box<dyn Process>,
    issued: u64,
    errors: u64,
}

/// How the NIC answered a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Done.
    Done,
    /// That command failed.
    Failed(Status),
    /// The queue stopped.
    QueueStopped(Status),
}

impl RawProcess {
    /// Registers on any free port.
    pub(crate) fn register(nic: &Nic) -> Result<Self> {
        match nic.provider().register(0, 0).context("register")? {
            Registration::Done(process) => Ok(RawProcess {
                process,
                issued: 0,
                errors: 0,
            }),
            Registration::Refused(status) => bail!("register: {status}"),
        }
    }

    /// A notifying inline write of 8 bytes to a segment of a process.
    pub(crate) fn inline_write(node: u16, port: u16) -> Descriptor {
        let mut descriptor = Descriptor::new_zeroed();
        descriptor.opcode = Opcode::Write as u8;
        descriptor.flags = (CommandFlags::INLINE | CommandFlags::PUBLISH).bits();
        descriptor.length = 8.into();
        descriptor.remote_node = node.into();
        descriptor.remote_port = port.into();
        descriptor
    }

    /// Puts a descriptor into the queue, whatever it says, and waits for what the
    /// NIC makes of it.
    pub(crate) fn issue(&mut self, descriptor: &Descriptor) -> Result<Answer> {
        let window = self.process.window();
        let slot = command_offset(self.issued);
        let mut words = [0; DESCRIPTOR_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(descriptor.as_bytes().chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            *word = u64::from_le_bytes(eight);
        }
        window.write_words(slot + 8, &words[1..]);
        // Pairs with the NIC's acquire load of a slot's first word.
        window.store_u64(slot, words[0], Ordering::Release);
        self.issued += 1;
        self.ring();
        self.answer()
    }

    /// Rings the doorbell if the NIC does not poll.
    pub(crate) fn ring(&self) {
        let window = self.process.window();
        window.fence();
        if window.load_u64(AWAKE, Ordering::Relaxed) == 0 {
            self.process.ring_doorbell();
        }
    }

    fn answer(&mut self) -> Result<Answer> {
        let area = self.process.host_area();
        let start = Instant::now();
        loop {
            let done = area.load_u64(WRITES_DONE, Ordering::Acquire)
                + area.load_u64(READS_DONE, Ordering::Acquire);
            let errors = area.load_u64(ERRORS, Ordering::Acquire);
            let stopped = area.load_u64(QUEUE_STATUS, Ordering::Acquire);
            if stopped != 0 {
                return Ok(Answer::QueueStopped(status(stopped as u32)?));
            }
            if errors > self.errors {
                let place = (errors - 1) as usize % ERROR_RECORDS;
                let record = ERROR_RING + place * size_of::<ErrorRecord>();
                self.errors = errors;
                let code = area.load_u64(record + 8, Ordering::Acquire) as u32;
                return Ok(Answer::Failed(status(code)?));
            }
            if done >= self.issued {
                return Ok(Answer::Done);
            }
            if start.elapsed() > ANSWER_LIMIT {
                bail!(
                    "no answer to command {} in {ANSWER_LIMIT:?}",
                    self.issued - 1
                );
            }
        }
    }

    /// Starts the queue again.
    pub(crate) fn reset(&mut self) -> Result<()> {
        let mut call = uapi::ResetQueue::default();
        self.process
            .reset_queue(&mut call)
            .context("reset the queue")?;
        self.issued = 0;
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
