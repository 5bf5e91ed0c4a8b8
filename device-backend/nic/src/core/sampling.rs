//! Samples: when the commands and frames that were chosen passed from stage to stage
//! ([`crate::stages`]).
//!
//! ```text
//!   fetch ── every 61st ──► sample ──► attach ──► sent … sent ──► ended ──► published
//!                             │ command  │ slot     first, last     │          │
//!                             └──────────┴──────────────────────────┴──────────┴──► histograms
//! ```
//! A command that is not chosen pays for a countdown at its fetch, and for a flag when it is sent
//! and when it ends. A trace ([`mod@crate::trace`]) shows other operations by the same marks. Of each
//! process one sample at a time waits to be published; those that end meanwhile are published with
//! it or later, and count for the other stages only.

use qnic_abi::host_area::CompletionEntry;
use qnic_abi::{Status, VniId};
use qnic_shared::timing::Countdown;

use super::order::Counter;
use super::Core;
use crate::env::{Host, Time};
use crate::ids::OperationId;
use crate::stages::{Histograms, Kind, Stage, StageReport};
use crate::trace::{Event, What};

/// Chooses what is sampled, and keeps what comes of it.
#[derive(Debug)]
pub(crate) struct Sampler {
    histograms: Histograms,
    /// The command that was fetched last, if it was chosen.
    fetched: Option<Sample>,
    /// The same command, if it is part of a trace.
    command: Option<Described>,
    /// What the process of the same command watched before.
    displaced: Option<Watched>,
    /// Chooses frames.
    frames: Countdown,
}

impl Sampler {
    pub(super) fn new() -> Self {
        Sampler {
            histograms: Histograms::new(),
            fetched: None,
            command: None,
            displaced: None,
            frames: Countdown::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.histograms.clear();
        self.fetched = None;
        self.command = None;
        self.displaced = None;
        self.frames = Countdown::new();
    }

    /// Returns true if the frame that has arrived is chosen.
    #[inline]
    pub(crate) fn choose_frame(&mut self) -> bool {
        self.frames.count()
    }

    /// Returns true if the last frame is chosen.
    pub(crate) fn is_frame_chosen(&self) -> bool {
        self.frames.is_chosen()
    }

    /// A frame that was chosen is in memory.
    #[cold]
    pub(crate) fn delivered(&mut self, kind: Kind, received: Time, now: Option<Time>) {
        self.record(kind, Stage::Delivered, received, now);
    }

    pub(crate) fn report(&self) -> Vec<StageReport> {
        self.histograms.report()
    }

    fn record(&mut self, kind: Kind, stage: Stage, begun: Time, ended: Option<Time>) {
        if let Some(ended) = ended {
            let time = ended.0.saturating_sub(begun.0);
            self.histograms.record(kind, stage, time);
        }
    }
}

impl Core {
    /// The command that was fetched last is sampled, or there is a trace, which may show it.
    #[cold]
    pub(crate) fn sample<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        (kind, handle): (Kind, u64),
        command: Described,
    ) {
        let process = self.process(vni);
        let counted = process.is_some_and(|process| process.queue.countdown.is_chosen());
        let next = OperationId::new(self.running_number + 1, vni, 0);
        let traced = self.tracing.shows(next);
        let time = (counted || traced).then(|| host.clock()).flatten();
        self.sampler.command = traced.then_some(command);
        self.sampler.fetched = time.map(|fetched| Sample {
            kind,
            fetched,
            sent: None,
            counted,
            traced,
        });
        // The others have no handle there, and all begin operations.
        let is_watched = counted && !matches!(kind, Kind::Write | Kind::Read | Kind::Atomic);
        if let (true, Some(fetched), Some(process)) = (is_watched, time, self.process_mut(vni)) {
            let watched = Watched {
                kind,
                handle,
                fetched,
            };
            self.sampler.displaced = process.watched.replace(watched);
        }
    }

    /// The end of a command is told to a process; `by_context`: of the receive of a context.
    #[inline]
    pub(super) fn sample_end<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        entry: &CompletionEntry,
        by_context: bool,
    ) {
        if self.process(vni).is_some_and(|it| it.watched.is_some()) {
            self.sample_completed(host, vni, entry, by_context);
        }
    }

    #[cold]
    fn sample_completed<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        entry: &CompletionEntry,
        by_context: bool,
    ) {
        let Some(process) = self.process_mut(vni) else {
            return;
        };
        let is_it = |watched: &mut Watched| {
            let is_context = watched.kind == Kind::ReceiveContext;
            watched.handle == entry.handle.get() && is_context == by_context
        };
        let watched = process.watched.take_if(is_it);
        let well = entry.status.get() == Status::Ok.code();
        if let Some(watched) = watched.filter(|_| well) {
            let (kind, fetched) = (watched.kind, watched.fetched);
            self.sampler
                .record(kind, Stage::Completed, fetched, host.clock());
        }
    }

    /// The command that was fetched last has become this operation.
    #[cold]
    pub(super) fn attach_sample(&mut self, id: OperationId) {
        let fetched = self.sampler.fetched.take();
        let command = self.sampler.command.take();
        let displaced = self.sampler.displaced.take();
        let node = self.geometry.node.0;
        let Some(process) = self.process_mut(id.vni()) else {
            return;
        };
        process.operations.set_sample(id, fetched);
        let is_watched = |watched: &Watched| {
            fetched.is_some_and(|sample| sample.counted && sample.kind == watched.kind)
        };
        if process.watched.as_ref().is_some_and(is_watched) {
            process.watched = displaced;
        }
        let (port, depth) = (process.port.0, process.operations.count());
        if let Some((sample, command)) = fetched.zip(command) {
            self.tracing.push(Event {
                peer: command.node,
                port,
                code: command.opcode.into(),
                depth: saturated(depth),
                bytes: command.bytes,
                detail: command.detail,
                ..Event::own(sample.fetched.0, node, What::Fetched, id)
            });
        }
    }

    /// A frame of a sampled operation goes to the wire.
    #[cold]
    pub(crate) fn sample_sent<H: Host>(&mut self, host: &H, id: OperationId) {
        let node = self.geometry.node.0;
        let process = self.process_mut(id.vni());
        let sample = process.and_then(|process| process.operations.sample(id));
        let Some((sample, now)) = sample.zip(host.clock()) else {
            return;
        };
        if let Some((_, last)) = &mut sample.sent {
            *last = now;
            return;
        }
        sample.sent = Some((now, now));
        let Sample { kind, fetched, .. } = *sample;
        let (counted, traced) = (sample.counted, sample.traced);
        if counted {
            self.sampler.record(kind, Stage::Queued, fetched, Some(now));
        }
        if traced {
            self.tracing.push(Event::own(now.0, node, What::Sent, id));
        }
    }

    /// A sampled operation has ended.
    #[cold]
    pub(super) fn sample_ended<H: Host>(
        &mut self,
        host: &H,
        id: OperationId,
        (lane, counter, order): (u8, Counter, u64),
        status: Status,
    ) {
        let node = self.geometry.node.0;
        let Some(process) = self.process_mut(id.vni()) else {
            return;
        };
        let sample = process.operations.take_sample(id);
        let Some((sample, ended)) = sample.zip(host.clock()) else {
            return;
        };
        let depth = process.operations.count();
        let kind = sample.kind;
        let counts = sample.counted && status == Status::Ok;
        if sample.traced {
            process.lanes.trace_waits(lane, counter, order);
        }
        if counts && sample.sent.is_some() && counter != Counter::Own {
            process.unpublished.get_or_insert(Unpublished {
                kind,
                ended,
                lane,
                counter,
                order,
            });
        }
        if let (true, Some((first, last))) = (counts, sample.sent) {
            self.sampler.record(kind, Stage::Sending, first, Some(last));
            self.sampler
                .record(kind, Stage::Answered, last, Some(ended));
        }
        if counts {
            self.sampler
                .record(kind, Stage::Completed, sample.fetched, Some(ended));
        }
        if sample.traced {
            self.tracing.push(Event {
                code: status.code(),
                depth: saturated(depth),
                port: counter as u16 | u16::from(lane) << 8,
                bytes: order,
                detail: sample.sent.map_or(0, |(_, last)| last.0),
                ..Event::own(ended.0, node, What::Ended, id)
            });
        }
    }

    /// The counters of a process are in its host area.
    #[cold]
    pub(super) fn sample_published<H: Host>(&mut self, host: &H, vni: VniId) {
        let node = self.geometry.node.0;
        let now = host.clock();
        let Some(process) = self.process_mut(vni) else {
            return;
        };
        let published = process.take_published();
        let traced = process.lanes.take_traced();
        if let Some(Unpublished { kind, ended, .. }) = published {
            self.sampler.record(kind, Stage::Published, ended, now);
        }
        let Some(now) = now else {
            return;
        };
        for (lane, [writes, reads]) in traced {
            let id = OperationId::new(0, vni, 0);
            self.tracing.push(Event {
                port: lane.into(),
                bytes: writes,
                detail: reads,
                ..Event::own(now.0, node, What::Published, id)
            });
        }
    }
}

fn saturated(number: u32) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// When an operation that was chosen passed from stage to stage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(super) kind: Kind,
    pub(super) fetched: Time,
    /// The first and the last frame.
    pub(super) sent: Option<(Time, Time)>,
    /// Its times go into histograms.
    pub(super) counted: bool,
    /// It is part of a trace.
    pub(super) traced: bool,
}

/// A command that begins no operation, and has not ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watched {
    kind: Kind,
    /// The handle of its completion; of a context its number.
    handle: u64,
    fetched: Time,
}

/// What a trace says of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Described {
    pub(crate) opcode: u8,
    /// The node that it names.
    pub(crate) node: u16,
    /// Its length.
    pub(crate) bytes: u64,
    /// Its tag or function.
    pub(crate) detail: u64,
}

/// A complete operation that its process cannot see yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unpublished {
    pub(super) kind: Kind,
    pub(super) ended: Time,
    pub(super) lane: u8,
    pub(super) counter: Counter,
    pub(super) order: u64,
}
