//! What other threads ask of the engine.

use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::Arc;

use qnic_links::{ImpairmentChange, LinkError, LinkSet, Tap, TapId};
use qnic_nic::Time;

use super::report::Report;
use crate::memory::GuestMemory;
use crate::notifier::Notifier;

/// The engine thread has ended.
#[derive(Debug, thiserror::Error)]
#[error("the engine has stopped")]
pub(crate) struct EngineGone;

/// Where an answer goes.
pub(crate) type Answer<T> = SyncSender<T>;

/// A request to the engine.
#[derive(Debug)]
pub(crate) enum Command {
    /// Something about one NIC.
    Nic {
        /// Its slot.
        slot: usize,
        /// What.
        action: Action,
    },
    /// What is there and what was counted?
    Report {
        /// The answer.
        answer: Answer<Report>,
    },
    /// The machine of a node is about to be paused. The answer says whether its NIC
    /// runs.
    ExpectPause {
        /// Which.
        node: u16,
        /// The answer.
        answer: Answer<bool>,
    },
    /// Change what links do; without a change, clear them. The answer says how many.
    SetLinks {
        /// Which.
        links: LinkSet,
        /// How.
        change: Option<ImpairmentChange>,
        /// The answer.
        answer: Answer<Result<usize, LinkError>>,
    },
    /// Show frames on these links to a tap. The answer names it, with the time now.
    Tap {
        /// Which.
        links: LinkSet,
        /// To whom.
        tap: Box<dyn Tap>,
        /// The answer.
        answer: Answer<Result<(TapId, Time), LinkError>>,
    },
    /// End a tap. No answer.
    Untap {
        /// Which.
        tap: TapId,
    },
    /// End the engine thread.
    Stop,
}

/// What is asked about one NIC. An answer says that it is done.
#[derive(Debug)]
pub(crate) enum Action {
    /// A front end has connected.
    Connect { answer: Answer<()> },
    /// It is gone: forget everything it gave.
    Disconnect { answer: Answer<()> },
    /// The guest's memory is this from now on.
    SetMemory {
        memory: GuestMemory,
        answer: Answer<()>,
    },
    /// The driver has started the device, or the machine goes on after a pause: then
    /// `places` are those at which the control and event queues were stopped, and the
    /// answer is `true`. Otherwise the SRAM is about to be mapped.
    Start {
        epoch: u64,
        places: [u16; 2],
        answer: Answer<bool>,
    },
    /// The SRAM is mapped in start number `epoch`. No answer.
    Mapped { epoch: u64 },
    /// A queue is ready and enabled. The answer says why it is not, if so.
    StartQueue {
        queue: usize,
        setup: QueueSetup,
        answer: Answer<Result<(), String>>,
    },
    /// The interrupt of a queue that runs.
    SetCall {
        queue: usize,
        call: Option<Notifier>,
        answer: Answer<()>,
    },
    /// A queue stops, and with it the device, or it is paused if that was announced.
    /// The answer is the queue's place in the available ring, if it ran.
    StopQueue {
        queue: usize,
        answer: Answer<Option<u16>>,
    },
    /// Virtio reset.
    Reset { answer: Answer<()> },
}

/// A virtqueue that is ready to run. Addresses are guest-physical.
#[derive(Debug)]
pub(crate) struct QueueSetup {
    /// Number of entries.
    pub(crate) size: u16,
    /// Descriptor table.
    pub(crate) descriptors: u64,
    /// Available ring.
    pub(crate) available: u64,
    /// Used ring.
    pub(crate) used: u64,
    /// Place in the available ring to go on from.
    pub(crate) next_available: u16,
    /// Doorbell of the queue.
    pub(crate) kick: Notifier,
    /// Interrupt of the queue.
    pub(crate) call: Option<Notifier>,
    /// Raised when the queue fails.
    pub(crate) error: Option<Notifier>,
}

/// The way to the engine thread.
#[derive(Debug, Clone)]
pub(crate) struct EngineHandle {
    commands: Sender<Command>,
    wake: Arc<Notifier>,
}

/// Makes the way to an engine: the handle, and the two ends that the engine takes.
pub(crate) fn channel() -> std::io::Result<(EngineHandle, Receiver<Command>, Arc<Notifier>)> {
    let (commands, receiver) = mpsc::channel();
    let wake = Arc::new(Notifier::new()?);
    let handle = EngineHandle {
        commands,
        wake: wake.clone(),
    };
    Ok((handle, receiver, wake))
}

impl EngineHandle {
    /// Sends without waiting.
    pub(crate) fn send(&self, command: Command) -> Result<(), EngineGone> {
        self.commands.send(command).map_err(|_| EngineGone)?;
        self.wake.signal();
        Ok(())
    }

    /// Sends and waits for the answer, so that one thread has at most one command
    /// under way.
    pub(crate) fn ask<T>(&self, make: impl FnOnce(Answer<T>) -> Command) -> Result<T, EngineGone> {
        let (answer, result) = mpsc::sync_channel(1);
        self.send(make(answer))?;
        result.recv().map_err(|_| EngineGone)
    }
}
