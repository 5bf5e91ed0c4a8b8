//! All engines of the process, as other threads see them.
//!
//! ```text
//!   request ─► [Engines] ─► engine 0: its NICs, links, taps ─┐
//!                        ─► engine 1: …                      ├─► one answer
//!                        ─► …                               ─┘
//! ```
//! NIC *n* of the configuration belongs to engine *n* modulo their number. A request about all NICs
//! goes to one engine after the other, so the parts of its answer are of slightly different times. All
//! engines have the same clock.

use std::collections::BTreeSet;
use std::sync::Arc;

use qnic_links::ethernet::EthernetFrame;
use qnic_links::{LinkChange, LinkError, LinkSet, Tap, TapId};
use qnic_nic::trace::{Record, Taken};
use qnic_nic::{QueuePairFaults, Table, TableKind, Time};

use super::{Engine, EngineGone, EngineHandle, Report, Traced};

/// Reaches all engines.
#[derive(Debug, Clone)]
pub(crate) struct Engines(Arc<[EngineHandle]>);

impl Engines {
    /// There is at least one.
    pub(crate) fn new(handles: Vec<EngineHandle>) -> Self {
        Engines(handles.into())
    }

    /// The engine of the NIC at that place of the configuration.
    pub(crate) fn of_nic(&self, index: usize) -> &EngineHandle {
        &self.0[index % self.0.len()]
    }

    /// Ends them all.
    pub(crate) fn stop(&self) {
        for engine in &*self.0 {
            let _ = engine.send(Engine::stop);
        }
    }

    /// Runs `work` on each engine, and returns what it returns.
    fn ask_each<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Engine) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, EngineGone> {
        let engines = self.0.iter();
        let answers = engines.map(|engine| engine.ask(work.clone()));
        answers.collect()
    }

    /// As [`Engine::receive_from_host`].
    pub(crate) fn receive_from_host(&self, frames: Vec<EthernetFrame>) -> Result<(), EngineGone> {
        let frames = Arc::new(frames);
        self.ask_each(move |engine| engine.receive_from_host(&frames))?;
        Ok(())
    }

    /// As [`Engine::expect_pause`].
    pub(crate) fn expect_pause(&self, node: u16) -> Result<bool, EngineGone> {
        let expected = self.ask_each(move |engine| engine.expect_pause(node))?;
        Ok(expected.contains(&true))
    }

    /// As [`Engine::table`].
    pub(crate) fn table(&self, node: u16, kind: TableKind) -> Result<Option<Table>, EngineGone> {
        let tables = self.ask_each(move |engine| engine.table(node, kind))?;
        Ok(tables.into_iter().flatten().next())
    }

    /// As [`Engine::inject`].
    pub(crate) fn inject(
        &self,
        queue_pair: (u16, u32),
        faults: QueuePairFaults,
    ) -> Result<Option<bool>, EngineGone> {
        let injected = self.ask_each(move |engine| engine.inject(queue_pair, faults))?;
        Ok(injected.into_iter().flatten().next())
    }

    /// The counters of all of them.
    pub(crate) fn report(&self) -> Result<Report, EngineGone> {
        let reports = self.ask_each(|engine| engine.report())?;
        Ok(Report::merged(reports))
    }

    /// Changes the impairments of links ([`Engine::set_links`]). Returns the number of links.
    pub(crate) fn set_links(
        &self,
        links: LinkSet,
        seed: Option<u64>,
        change: LinkChange,
    ) -> Result<Result<usize, LinkError>, EngineGone> {
        let changed = self.ask_each(move |engine| engine.set_links(links, seed, change))?;
        // Several engines may have a part of the frames of a link.
        Ok(found(changed).map(|links| links.into_iter().flatten().collect::<BTreeSet<_>>().len()))
    }

    /// Gives the frames on links to a tap of each engine. Returns their names, and the present time.
    pub(crate) fn tap(
        &self,
        links: LinkSet,
        tap: impl Tap + Clone + 'static,
    ) -> Result<Result<(Tapped, Time), LinkError>, EngineGone> {
        let (mut tapped, mut answers) = (Vec::new(), Vec::new());
        for (number, engine) in self.0.iter().enumerate() {
            let tap = Box::new(tap.clone());
            let answer = engine.ask(move |engine| engine.tap(links, tap))?;
            tapped.extend(answer.as_ref().ok().map(|(id, _)| (number, *id)));
            answers.push(answer);
        }
        let times = found(answers);
        Ok(times.map(|times| {
            let now = times.into_iter().map(|(_, now)| now).max();
            (Tapped(tapped), now.unwrap_or_default())
        }))
    }

    /// Ends taps. An engine that has ended has none.
    pub(crate) fn untap(&self, tapped: &Tapped) {
        for (number, tap) in tapped.0.iter().copied() {
            let _ = self.0[number].send(move |engine| engine.untap(tap));
        }
    }

    /// Begins to trace NICs ([`Engine::begin_traces`]).
    pub(crate) fn begin_traces(
        &self,
        nodes: Option<Vec<String>>,
        sample: u32,
    ) -> Result<Result<Vec<Traced>, String>, EngineGone> {
        let nodes: Option<Arc<[String]>> = nodes.map(Into::into);
        let mut begun = Vec::new();
        for (number, engine) in self.0.iter().enumerate() {
            let nodes = nodes.clone();
            let traced =
                engine.ask(move |engine| engine.begin_traces(nodes.as_deref(), sample, number))?;
            match traced {
                Ok(traced) => begun.extend(traced),
                Err(error) => {
                    self.end_traces(&begun);
                    return Ok(Err(error));
                }
            }
        }
        Ok(Ok(begun))
    }

    /// What these NICs have noted since the last look, in their order; each gets an empty buffer
    /// of `spare`.
    pub(crate) fn take_traces(
        &self,
        traced: &[Traced],
        spare: &mut Vec<Vec<Record>>,
    ) -> Result<Vec<Taken>, EngineGone> {
        let mut taken = Vec::with_capacity(traced.len());
        // Each engine has begun its own in one go.
        for of_engine in traced.chunk_by(|one, next| one.engine == next.engine) {
            let slots = of_engine.iter().map(|traced| traced.slot);
            let work: Vec<_> = slots.zip(spare.drain(..of_engine.len())).collect();
            let engine = &self.0[of_engine[0].engine];
            taken.extend(engine.ask(move |engine| engine.take_traces(work))?);
        }
        Ok(taken)
    }

    /// These NICs are not traced any more. An engine that has ended traces nothing.
    pub(crate) fn end_traces(&self, traced: &[Traced]) {
        for of_engine in traced.chunk_by(|one, next| one.engine == next.engine) {
            let slots: Vec<_> = of_engine.iter().map(|traced| traced.slot).collect();
            let _ = self.0[of_engine[0].engine].send(move |engine| engine.end_traces(&slots));
        }
    }
}

/// The taps of one capture, each with the number of its engine.
#[derive(Debug)]
pub(crate) struct Tapped(Vec<(usize, TapId)>);

/// What those engines have answered that have such links; an error if none has.
fn found<T>(answers: Vec<Result<T, LinkError>>) -> Result<Vec<T>, LinkError> {
    let (known, unknown): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    match unknown.into_iter().find_map(Result::err) {
        Some(error) if known.is_empty() => Err(error),
        _ => Ok(known.into_iter().filter_map(Result::ok).collect()),
    }
}
