//! The ranks of a machine, connected: what they reduce, scan, gather and broadcast.

use std::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::fabric::{Call, Fabric, Fault, Incoming, Label, Outgoing};
use super::messages::Messages;
use super::streams::StreamFabric;
use crate::error::{Error, ParallelError, Result};
use crate::machine::{Interface, Machine};
use crate::nic::Nic;

/// What ranks exchange: plain data, any bytes of which are valid. They travel as they stand in
/// memory.
pub trait Element: FromBytes + IntoBytes + Immutable + Copy {}

impl<T: FromBytes + IntoBytes + Immutable + Copy> Element for T {}

/// Time limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// How long all ranks may take to start.
    pub start: Duration,
    /// How long a call waits for other ranks: longer than any of them computes between two calls.
    pub timeout: Duration,
}

impl Options {
    /// These limits.
    pub const fn new(start: Duration, timeout: Duration) -> Self {
        Options { start, timeout }
    }
}

impl Default for Options {
    /// A minute for each.
    fn default() -> Self {
        Options::new(Duration::from_secs(60), Duration::from_secs(60))
    }
}

/// All ranks of a machine, as one of them sees them.
///
/// All ranks make the same calls in the same order. A rank that drops this without
/// [`Ranks::finish`] ends the work of all.
#[derive(Debug)]
pub struct Ranks {
    machine: Machine,
    timeout: Duration,
    fabric: Box<dyn Fabric>,
    /// Calls so far.
    calls: u64,
    /// Why no call can be made any more.
    failed: Option<ParallelError>,
    is_finished: bool,
}

impl Ranks {
    /// Connects with all other ranks, by the interface of the machine. They start in any order.
    ///
    /// # Errors
    /// [`ParallelError::Missing`], or [`Error::Group`]: not all ranks were there in time. Those of
    /// [`Nic::register`], [`Nic::open_pools`].
    pub fn connect(nic: &Nic, machine: &Machine, options: Options) -> Result<Self> {
        let fabric: Box<dyn Fabric> = match machine.interface() {
            Interface::Qnic => Box::new(Messages::connect(nic, machine, options.start)?),
            Interface::Pool => Box::new(StreamFabric::connect(nic, machine, options.start)?),
        };
        Ok(Self::over(fabric, machine.clone(), options.timeout))
    }

    /// Ranks that are connected already.
    pub(super) fn over(fabric: Box<dyn Fabric>, machine: Machine, timeout: Duration) -> Self {
        Ranks {
            machine,
            timeout,
            fabric,
            calls: 0,
            failed: None,
            is_finished: false,
        }
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The rank of this process.
    pub fn rank(&self) -> u32 {
        self.machine.rank()
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.machine.size()
    }

    /// Waits until all ranks have called it.
    ///
    /// # Errors
    /// [`Error::Parallel`], [`Error::DeviceGone`]
    pub fn barrier(&mut self) -> Result<()> {
        self.all_reduce(0_u8, |_, _| 0).map(drop)
    }

    /// Ends in order: returns once all ranks have called it.
    ///
    /// # Errors
    /// Those of [`Ranks::barrier`]
    pub fn finish(mut self) -> Result<()> {
        self.barrier()?;
        let flushed = self.fabric.flush(self.timeout);
        flushed.map_err(|fault| self.fail(fault))?;
        self.is_finished = true;
        Ok(())
    }

    /// Gives the values of all ranks to rank 0, in the order of ranks; the others get none. All
    /// give equally many.
    ///
    /// # Errors
    /// Those of [`Ranks::barrier`]
    pub fn gather<T: Element>(&mut self, values: &[T]) -> Result<Option<Vec<T>>> {
        let lengths = vec![values.len(); self.size() as usize];
        self.gather_lengths(values, &lengths)
    }

    /// The same, with the length that each rank gives.
    pub(super) fn gather_lengths<T: Element>(
        &mut self,
        values: &[T],
        lengths: &[usize],
    ) -> Result<Option<Vec<T>>> {
        if self.rank() != 0 {
            let bytes = values.as_bytes();
            self.exchange(Call::Gather, &[Outgoing { rank: 0, bytes }], &mut [])?;
            return Ok(None);
        }
        let mut all = zeroed::<T>(lengths.iter().sum());
        let (own, mut rest) = all.split_at_mut(values.len());
        own.copy_from_slice(values);
        let mut receives = Vec::new();
        for (rank, length) in (0..).zip(lengths).skip(1) {
            let (part, others) = rest.split_at_mut(*length);
            let bytes = part.as_mut_bytes();
            receives.push(Incoming { rank, bytes });
            rest = others;
        }
        self.exchange(Call::Gather, &[], &mut receives)?;
        Ok(Some(all))
    }

    /// Replaces the values of all ranks by those of rank 0. All have equally many.
    ///
    /// # Errors
    /// Those of [`Ranks::barrier`]
    pub fn broadcast<T: Element>(&mut self, values: &mut [T]) -> Result<()> {
        if self.rank() != 0 {
            let bytes = values.as_mut_bytes();
            return self.exchange(Call::Broadcast, &[], &mut [Incoming { rank: 0, bytes }]);
        }
        let bytes = values.as_bytes();
        let sends: Vec<_> = (1..self.size())
            .map(|rank| Outgoing { rank, bytes })
            .collect();
        self.exchange(Call::Broadcast, &sends, &mut [])
    }

    /// Gives each rank its value of those that rank 0 has.
    fn scatter<T: Element>(&mut self, all: Option<&[T]>, own: T) -> Result<T> {
        let mut own = [own];
        match all {
            None => {
                let bytes = own.as_mut_bytes();
                self.exchange(Call::Broadcast, &[], &mut [Incoming { rank: 0, bytes }])?;
            }
            Some(all) => {
                let values = (0..).zip(all.chunks(1)).skip(1);
                let sends: Vec<_> = values
                    .map(|(rank, value)| Outgoing {
                        rank,
                        bytes: value.as_bytes(),
                    })
                    .collect();
                self.exchange(Call::Broadcast, &sends, &mut [])?;
                own[0] = all[0];
            }
        }
        Ok(own[0])
    }

    /// The reduction of the values of all ranks, at rank 0; the others get none. Values are folded
    /// in the order of ranks, so that the result is the same in each run and by each interface, to
    /// the last bit.
    ///
    /// # Errors
    /// Those of [`Ranks::barrier`]
    pub fn reduce<T: Element>(
        &mut self,
        value: T,
        fold: impl FnMut(T, T) -> T,
    ) -> Result<Option<T>> {
        let all = self.gather(&[value])?;
        Ok(all.and_then(|all| all.into_iter().reduce(fold)))
    }

    /// The reduction of the values of all ranks, at all ranks; folded as by [`Ranks::reduce`].
    ///
    /// # Errors
    /// Those of [`Ranks::barrier`]
    pub fn all_reduce<T: Element>(&mut self, value: T, fold: impl FnMut(T, T) -> T) -> Result<T> {
        let mut result = [self.reduce(value, fold)?.unwrap_or(value)];
        self.broadcast(&mut result)?;
        Ok(result[0])
    }

    /// Replaces each of some values by its reduction over all ranks; all have equally many.
    ///
    /// # Errors
    /// Those of [`Ranks::barrier`]
    pub fn all_reduce_each<T: Element>(
        &mut self,
        values: &mut [T],
        mut fold: impl FnMut(T, T) -> T,
    ) -> Result<()> {
        if let Some(all) = self.gather(values)? {
            for part in all.chunks(values.len().max(1)).skip(1) {
                for (value, other) in values.iter_mut().zip(part) {
                    *value = fold(*value, *other);
                }
            }
        }
        self.broadcast(values)
    }

    /// Inclusive prefix: the values of the ranks up to this one, folded in their order.
    ///
    /// # Errors
    /// Those of [`Ranks::barrier`]
    pub fn scan<T: Element>(&mut self, value: T, mut fold: impl FnMut(T, T) -> T) -> Result<T> {
        let below = self.exclusive_scan(value, &mut fold)?;
        Ok(below.map_or(value, |below| fold(below, value)))
    }

    /// Exclusive prefix: the values of the ranks below this one, folded in their order; none at
    /// rank 0.
    ///
    /// # Errors
    /// Those of [`Ranks::barrier`]
    pub fn exclusive_scan<T: Element>(
        &mut self,
        value: T,
        fold: impl FnMut(T, T) -> T,
    ) -> Result<Option<T>> {
        self.fold_below(value, self.size() as usize, fold)
    }

    /// The same, where only the values of the first ranks count; what the others get is of no use.
    pub(super) fn fold_below<T: Element>(
        &mut self,
        value: T,
        counted: usize,
        mut fold: impl FnMut(T, T) -> T,
    ) -> Result<Option<T>> {
        let mut all = self.gather(&[value])?;
        if let Some(all) = &mut all {
            let mut below = all[0];
            for value in all.iter_mut().take(counted).skip(1) {
                let next = fold(below, *value);
                *value = std::mem::replace(&mut below, next);
            }
        }
        let below = self.scatter(all.as_deref(), value)?;
        Ok((self.rank() > 0).then_some(below))
    }

    /// One step of a call.
    pub(super) fn exchange(
        &mut self,
        call: Call,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<()> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone().into());
        }
        self.calls += 1;
        if sends.is_empty() && receives.is_empty() {
            return Ok(());
        }
        let label = Label::new(call, self.calls);
        let exchanged = self.fabric.exchange(label, sends, receives, self.timeout);
        exchanged.map_err(|fault| self.fail(fault))
    }

    /// Ends the work of all ranks.
    fn fail(&mut self, fault: Fault) -> Error {
        let (own, limit) = (self.rank(), self.timeout);
        // What a peer names may be no rank.
        let known = |rank: u32| rank.min(self.size() - 1);
        let (failed, reason, local) = match fault {
            Fault::Ended { rank, cause } => {
                let (rank, node) = (known(rank), self.machine.node_of(known(rank)));
                (ParallelError::RankEnded { rank, node, cause }, rank, None)
            }
            Fault::Silent { rank } => {
                let (rank, node) = (known(rank), self.machine.node_of(known(rank)));
                (ParallelError::Silent { rank, node, limit }, rank, None)
            }
            Fault::Differs { rank, what } => {
                let (rank, node) = (known(rank), self.machine.node_of(known(rank)));
                (ParallelError::Differs { rank, node, what }, own, None)
            }
            Fault::Local(error) => {
                let (rank, node, cause) = (own, self.machine.node_of(own), error.to_string());
                let failed = ParallelError::RankEnded { rank, node, cause };
                (failed, own, Some(error))
            }
        };
        self.failed = Some(failed.clone());
        self.fabric.end(reason);
        local.unwrap_or_else(|| failed.into())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        if !self.is_finished && self.failed.is_none() {
            self.fabric.end(self.rank());
        }
    }
}

/// Elements of zero bytes.
pub(super) fn zeroed<T: Element>(count: usize) -> Vec<T> {
    std::iter::repeat_with(T::new_zeroed).take(count).collect()
}
