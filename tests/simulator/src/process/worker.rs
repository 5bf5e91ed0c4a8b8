//! The life of a worker, and what those have in common that issue raw commands.
//!
//! ```text
//!   step ──► pause ──► step … ──► begin_to_serve ──► look ──► look … ──► finish
//!     │         until it has done enough                until all end
//!     └──► ends
//! ```
//! [`Worker::live`] is that loop, for every workload; a worker says what one step is. Any call
//! returns [`Ended`](super::Ended) when the process has a signal or its device is gone, and the
//! life is over.
//!
//! A [`Registered`] process has a command queue and a completion queue. A [`QueueWorker`] is one that
//! says what a completion means to it; that it reads them, waits for them, and starts its queue
//! again behind a malformed command stands here once.

use std::ops::DerefMut;

use qnic::queue::Command;
use qnic_abi::command::Descriptor;
use qnic_abi::export::ExportOptions;
use qnic_abi::host_area::{CompletionEntry, QUEUE_STATUS};
use qnic_abi::window::Changes;
use qnic_abi::{uapi, Access, Status};
use qnic_driver::{CallError, Process};

use super::queue::Queue;
use super::{ProcessContext, Result};
use crate::common::{Common, Phase};
use crate::expected_bytes::Range;
use crate::machine::platform::SimPlatform;
use crate::schedule::{trace, Schedule};

/// How long a worker blocks at most while its queue stops, or is full, in nanoseconds.
const MOMENT: u64 = 100_000;

/// What a worker does behind a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    GoOn,
    /// Its process ends, and leaves what it has.
    End,
}

impl Next {
    pub(crate) fn end_if(ends: bool) -> Self {
        match ends {
            true => Next::End,
            false => Next::GoOn,
        }
    }
}

/// A worker: what it does in its life.
pub(crate) trait Worker {
    fn context(&self) -> &ProcessContext;

    /// Does what processes do, in any order.
    fn step(&mut self) -> Result<Next>;

    /// Does nothing for some time.
    fn pause(&mut self) -> Result<()> {
        self.context().think(500)
    }

    /// How many steps it takes.
    fn steps(&self) -> u32 {
        self.context().common.settings.options.operations
    }

    /// It has done enough.
    fn begin_to_serve(&mut self) -> Result<()> {
        Ok(())
    }

    /// One round for the others, which may not be done yet; here it has nothing under way, and
    /// sleeps until all end.
    fn look(&mut self) -> Result<()> {
        self.context().rest()
    }

    /// All end.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// All of it.
    fn live(&mut self) -> Result<()> {
        for _ in 0..self.steps() {
            if self.context().common.phase() != Phase::Work {
                break;
            }
            if self.step()? == Next::End {
                return Ok(());
            }
            self.pause()?;
        }
        self.begin_to_serve()?;
        while self.context().common.phase() != Phase::Exit {
            self.look()?;
        }
        self.finish()
    }
}

/// A segment that is exported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exported {
    pub(crate) segment: u16,
    pub(crate) key: u64,
}

/// A process that is registered, with its queues.
pub(crate) struct Registered<'a> {
    pub(crate) context: &'a ProcessContext,
    pub(crate) common: &'a Common,
    pub(crate) schedule: &'a Schedule,
    pub(crate) slot: usize,
    pub(crate) process: &'a Process<SimPlatform>,
    pub(crate) queue: Queue,
}

impl<'a> Registered<'a> {
    pub(crate) fn new(context: &'a ProcessContext, process: &'a Process<SimPlatform>) -> Self {
        Registered {
            context,
            common: &context.common,
            schedule: &context.common.schedule,
            slot: context.slot,
            process,
            queue: Queue::new(&context.machine, process),
        }
    }

    /// Puts a command into the queue, in which there is room.
    pub(crate) fn put(&mut self, descriptor: &Descriptor, payload: &[u8]) {
        if self.queue.put(&Command::new(descriptor, payload)) {
            self.context.ring_doorbell(self.process);
        }
    }

    /// Puts a receive into the queue, in which there is room, without a doorbell if that may wait.
    pub(crate) fn put_quietly(&mut self, descriptor: &Descriptor, payload: &[u8]) {
        if self.queue.put_quietly(&Command::new(descriptor, payload)) {
            self.context.ring_doorbell(self.process);
        }
    }

    /// Blocks until the wake-up of a generation, or for so many nanoseconds, or for good; returns
    /// false if the time is over.
    pub(crate) fn block(&self, generation: u64, limit: Option<u64>) -> Result<bool> {
        let mut call = uapi::Wait {
            generation: generation.into(),
            timeout_ns: limit.map_or(-1, |limit| limit as i64).into(),
            ..Default::default()
        };
        match self.process.wait(&mut call) {
            Err(CallError::TimedOut) => self.context.check_alive().map(|()| false),
            result => self.context.called("wait", result).map(|()| true),
        }
    }

    /// Exports memory for such access.
    pub(crate) fn export(
        &self,
        (name, access): (u64, Access),
        (address, length): Range,
    ) -> Result<Exported> {
        let mut call = uapi::Export {
            access: access.bits().into(),
            name: name.into(),
            address: address.into(),
            length: length.into(),
            options: ExportOptions::open(),
            ..Default::default()
        };
        let result = self.process.export(&mut call);
        self.context.called("export", result)?;
        assert_eq!(call.status.get(), Status::Ok.code(), "an export is refused");
        Ok(Exported {
            segment: call.segment.get(),
            key: call.key.get(),
        })
    }

    /// Revokes a segment.
    pub(crate) fn unexport(&self, exported: Exported) -> Result<()> {
        let mut call = uapi::Unexport {
            segment: exported.segment.into(),
            ..Default::default()
        };
        let result = self.process.unexport(&mut call);
        self.context.called("unexport", result)?;
        assert_eq!(call.status.get(), Status::Ok.code(), "it is refused");
        Ok(())
    }
}

/// Makes a worker with a field `registered` one of what stands there.
macro_rules! is_registered {
    ($worker:ident) => {
        impl<'a> std::ops::Deref for $worker<'a> {
            type Target = $crate::process::worker::Registered<'a>;

            fn deref(&self) -> &Self::Target {
                &self.registered
            }
        }

        impl std::ops::DerefMut for $worker<'_> {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.registered
            }
        }
    };
}
pub(crate) use is_registered;

/// Declares what may be wrong with a command of a workload, and what such a command must end with.
macro_rules! mistakes {
    ($($name:ident => $status:ident),* $(,)?) => {
        /// What may be wrong with a command.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Wrong {
            $($name),*
        }

        impl Wrong {
            pub(super) const ALL: &[Wrong] = &[$(Wrong::$name),*];

            pub(super) fn status(self) -> qnic_abi::Status {
                match self {
                    $(Wrong::$name => qnic_abi::Status::$status),*
                }
            }
        }
    };
}
pub(crate) use mistakes;

/// A worker that issues commands and reads their completions.
pub(crate) trait QueueWorker<'a>: DerefMut<Target = Registered<'a>> {
    /// What it is, for the trace.
    const NAME: &'static str;

    /// A command has completed.
    fn complete(&mut self, entry: &CompletionEntry);

    /// The completions that have come are read.
    fn collected(&mut self) {}

    /// Something has ended without a completion.
    fn has_ended(&self) -> bool {
        false
    }

    /// Reads the completions that have come.
    fn collect(&mut self) -> Result<()> {
        let (entries, rings) = self.queue.completions();
        if rings {
            self.context.ring_doorbell(self.process);
        }
        for entry in entries {
            self.complete(&entry);
        }
        self.collected();
        self.context.check_alive()
    }

    /// Reads completions, or waits for some so many nanoseconds.
    fn wait(&mut self, limit: u64) -> Result<()> {
        // Room for commands; entries of the completion queue and stopped queues wake in any case.
        let generation = self.queue.request_wake(Changes::HEAD);
        if !self.queue.has_completions() && !self.has_ended() {
            if self.queue.end_quiet() {
                self.context.ring_doorbell(self.process);
            }
            self.block(generation, Some(limit))?;
        }
        self.collect()
    }

    /// The same, for some time up to a millisecond.
    fn wait_a_little(&mut self) -> Result<()> {
        let limit = self.schedule.range(1000..1_000_000);
        self.wait(limit)
    }

    /// Waits until there is room for a command; looks again after so many nanoseconds.
    fn make_room(&mut self, limit: u64) -> Result<()> {
        while !self.queue.has_room() {
            self.wait(limit)?;
        }
        Ok(())
    }

    /// Waits until a malformed command has stopped the queue with that status, and starts it
    /// again. `forget` tells the oracle. What was under way is the worker's own again.
    fn restart_queue(&mut self, expected: Status, forget: impl FnOnce()) -> Result<()> {
        while self.queue.word(QUEUE_STATUS) == 0 {
            self.wait(MOMENT)?;
        }
        let status = self.queue.word(QUEUE_STATUS);
        let (expected, slot) = (u64::from(expected.code()), self.slot);
        assert_eq!(status, expected, "process {slot}: why its queue stops");
        self.context.think(500)?;
        let mut call = uapi::ResetQueue::default();
        let result = self.process.reset_queue(&mut call);
        self.context.called("reset of the queue", result)?;
        assert_eq!(call.status.get(), Status::Ok.code(), "it is refused");
        forget();
        self.queue.restart();
        self.collect()
    }

    /// Writes a line to the trace.
    fn trace(&self, what: std::fmt::Arguments<'_>) {
        trace!(self.schedule, "{} {}: {what}", Self::NAME, self.slot);
    }
}
