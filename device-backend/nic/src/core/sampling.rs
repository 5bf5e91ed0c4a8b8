//! Samples: when the commands and frames that were chosen passed from stage to stage
//! ([`crate::stages`]).
//!
//! ```text
//!   fetch ── every 61st ──► sample ──► attach ──► sent … sent ──► ended ──► published
//!                             │ command  │ slot     first, last     │          │
//!                             └──────────┴──────────────────────────┴──────────┴──► histograms
//! ```
//! What is not chosen pays for a countdown at its fetch, and for a flag where it is sent and
//! where it ends. A process has one sample at a time that waits to be published; those that
//! end meanwhile are published with it or later, and count for the other stages only.

use qnic_abi::VniId;
use qnic_timing::Countdown;

use super::order::Counter;
use super::sample::{Sample, Unpublished};
use super::Core;
use crate::env::{Host, Time};
use crate::ids::OperationId;
use crate::stages::{Histograms, Kind, Stage, StageReport};

/// Chooses what is sampled, and keeps what comes of it.
#[derive(Debug)]
pub(crate) struct Sampler {
    histograms: Histograms,
    /// The command that was fetched last, if it was chosen.
    fetched: Option<Sample>,
    /// Chooses frames.
    frames: Countdown,
}

impl Sampler {
    pub(super) fn new() -> Self {
        Sampler {
            histograms: Histograms::new(),
            fetched: None,
            frames: Countdown::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.histograms.clear();
        self.fetched = None;
        self.frames = Countdown::new();
    }

    /// Returns true if the frame that has arrived is chosen.
    #[inline]
    pub(crate) fn choose_frame(&mut self) -> bool {
        self.frames.count()
    }

    /// A frame that was chosen is in memory.
    #[cold]
    pub(crate) fn delivered<H: Host>(&mut self, host: &H, kind: Kind, received: Time) {
        self.record(kind, Stage::Delivered, received, host.clock());
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
    /// The command that was fetched last is sampled.
    #[cold]
    pub(crate) fn sample<H: Host>(&mut self, host: &H, kind: Kind) {
        self.sampler.fetched = host.clock().map(|fetched| Sample {
            kind,
            fetched,
            sent: None,
        });
    }

    /// The command that was fetched last has become this operation.
    #[cold]
    pub(super) fn attach_sample(&mut self, id: OperationId) {
        let fetched = self.sampler.fetched.take();
        if let Some(process) = self.process_mut(id.vni()) {
            process.operations.set_sample(id, fetched);
        }
    }

    /// A frame of a sampled operation goes to the wire.
    #[cold]
    pub(crate) fn sample_sent<H: Host>(&mut self, host: &H, id: OperationId) {
        let process = self.process_mut(id.vni());
        let sample = process.and_then(|process| process.operations.sample(id));
        let Some((sample, now)) = sample.zip(host.clock()) else {
            return;
        };
        let (kind, fetched) = (sample.kind, sample.fetched);
        match &mut sample.sent {
            Some((_, last)) => *last = now,
            sent => {
                *sent = Some((now, now));
                self.sampler.record(kind, Stage::Queued, fetched, Some(now));
            }
        }
    }

    /// A sampled operation has succeeded.
    #[cold]
    pub(super) fn sample_ended<H: Host>(
        &mut self,
        host: &H,
        id: OperationId,
        (counter, order): (Counter, u64),
    ) {
        let Some(process) = self.process_mut(id.vni()) else {
            return;
        };
        let Some(sample) = process.operations.take_sample(id) else {
            return;
        };
        let Some((ended, (first, last))) = host.clock().zip(sample.sent) else {
            return;
        };
        let kind = sample.kind;
        if counter != Counter::Own {
            process.unpublished.get_or_insert(Unpublished {
                kind,
                ended,
                counter,
                order,
            });
        }
        self.sampler.record(kind, Stage::Sending, first, Some(last));
        self.sampler
            .record(kind, Stage::Answered, last, Some(ended));
    }

    /// The counters of a process are in its host area.
    #[cold]
    pub(super) fn sample_published<H: Host>(&mut self, host: &H, vni: VniId) {
        let process = self.process_mut(vni);
        let published = process.and_then(|process| process.take_published());
        if let Some(Unpublished { kind, ended, .. }) = published {
            self.sampler
                .record(kind, Stage::Published, ended, host.clock());
        }
    }
}
