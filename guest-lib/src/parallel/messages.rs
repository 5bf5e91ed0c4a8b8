//! The ranks over messages that the NICs match and move: the interface `qnic`.
//!
//! ```text
//!   outgoing ──copy──► staging ──Send, label as immediate data──► receive ──► staging ──copy──► incoming
//! ```
//! The tag is the key of the run, so messages of other runs match nothing. An end is sent twice:
//! where data are waited for, and under the inverse of the key, where it is looked for when a
//! message has failed.

use std::time::{Duration, Instant};

use qnic_abi::{Access, NodeId, Port, SegmentName};

use super::fabric::{Fabric, Fault, Incoming, Label, Outcome, Outgoing};
use crate::endpoint::Endpoint;
use crate::error::{Error, ParallelError, Result};
use crate::group::{Group, Membership};
use crate::machine::Machine;
use crate::memory::{Buffer, Segment};
use crate::message::{wait_any, Completion, Destination, Pattern, Request, Source, Tag};
use crate::nic::Nic;

/// How long an end may take to be told.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Memory that the NIC reads and writes; grows with the exchanges.
#[derive(Debug)]
struct Staging {
    name: SegmentName,
    /// Dropped first: then the NIC is done with the memory.
    segment: Segment,
    buffer: Buffer,
}

impl Staging {
    fn new(endpoint: &Endpoint, name: SegmentName, bytes: usize) -> Result<Self> {
        let buffer = endpoint.allocate(bytes.next_power_of_two())?;
        Ok(Staging {
            name,
            segment: endpoint.export(name, &buffer, Access::READ)?,
            buffer,
        })
    }

    /// Makes sure that there is room for so many bytes.
    fn reserve(&mut self, endpoint: &Endpoint, bytes: usize) -> Result<()> {
        if bytes > self.buffer.len() {
            // Under another name: the old segment lives until it is replaced.
            *self = Staging::new(endpoint, SegmentName(self.name.0 + 2), bytes)?;
        }
        Ok(())
    }
}

/// All ranks, by node and port.
#[derive(Debug)]
pub(super) struct Messages {
    outgoing: Staging,
    incoming: Staging,
    endpoint: Endpoint,
    ranks: Vec<(NodeId, Port)>,
    own: u32,
    key: u64,
}

/// What a request is for.
#[derive(Debug, Clone, Copy)]
struct Purpose {
    rank: u32,
    /// Bytes of a receive; none of a Send.
    receives: Option<u64>,
}

impl Messages {
    /// Registers, and waits until all ranks are there.
    pub(super) fn connect(nic: &Nic, machine: &Machine, limit: Duration) -> Result<Self> {
        let place = |rank| (machine.node_of(rank), Port(machine.port_of(rank)));
        let ranks: Vec<_> = (0..machine.size()).map(place).collect();
        let (own, key) = (machine.rank(), machine.key());
        let endpoint = nic.register(ranks[own as usize].1)?;
        if endpoint.node() != ranks[own as usize].0 {
            let message = "this node is not the one that the machine has for this rank";
            return Err(ParallelError::Unfit(message).into());
        }
        let membership = Membership::new(ranks[0], own, machine.size()).key(key);
        let group = Group::join(&endpoint, &membership, limit)?;
        // The group ends with the first that leaves it: all leave together.
        group.barrier().timeout(limit).wait()?;
        drop(group);
        Ok(Messages {
            outgoing: Staging::new(&endpoint, SegmentName(key), 4096)?,
            incoming: Staging::new(&endpoint, SegmentName(key ^ 1), 4096)?,
            endpoint,
            ranks,
            own,
            key,
        })
    }

    fn peer(&self, rank: u32) -> (NodeId, Port) {
        self.ranks[rank as usize]
    }

    fn pattern(&self, rank: u32, tag: u64) -> Pattern {
        let (node, port) = self.peer(rank);
        Pattern::tagged(Source::Process(node, port), Tag(tag))
    }

    fn destination(&self, rank: u32, tag: u64, label: Label) -> Destination {
        let (node, port) = self.peer(rank);
        Destination::tagged(node, port, Tag(tag)).immediate(label.0)
    }

    /// What has gone wrong with a rank: it, or the one that it has named before it ended.
    fn fault(&self, rank: u32, error: Error) -> Fault {
        if !matches!(error, Error::Message(_)) {
            return Fault::Local(error);
        }
        let told = self.endpoint.probe(&self.pattern(rank, !self.key)).test();
        let reason = told.ok().flatten();
        match reason.and_then(|envelope| Label(envelope.immediate).reason()) {
            Some(reason) => Fault::told(rank, reason),
            None => {
                let cause = error.to_string();
                Fault::Ended { rank, cause }
            }
        }
    }

    /// Begins all receives, then all Sends.
    fn post<'a>(
        &'a self,
        label: Label,
        sends: &[Outgoing<'_>],
        receives: &[Incoming<'_>],
    ) -> Result<(Vec<Request<'a>>, Vec<Purpose>)> {
        let mut requests = Vec::with_capacity(sends.len() + receives.len());
        let mut purposes = Vec::with_capacity(requests.capacity());
        let mut offset = 0;
        for receive in receives {
            let (rank, length) = (receive.rank, receive.bytes.len());
            let part = self.incoming.segment.part(offset, length);
            let pattern = self.pattern(rank, self.key);
            requests.push(self.endpoint.receive(&pattern, part).post()?);
            let receives = Some(length as u64);
            purposes.push(Purpose { rank, receives });
            offset += length;
        }
        offset = 0;
        for send in sends {
            let (rank, length) = (send.rank, send.bytes.len());
            let to = self.destination(rank, self.key, label);
            let request = match length {
                0 => self.endpoint.send(&to, b"").post(),
                _ => {
                    self.outgoing.buffer.write(offset, send.bytes)?;
                    let part = self.outgoing.segment.part(offset, length);
                    self.endpoint.send(&to, part).post()
                }
            };
            requests.push(request?);
            let receives = None;
            purposes.push(Purpose { rank, receives });
            offset += length;
        }
        Ok((requests, purposes))
    }

    /// Waits until all requests have ended.
    fn wait(
        &self,
        label: Label,
        mut requests: Vec<Request<'_>>,
        mut purposes: Vec<Purpose>,
        limit: Duration,
    ) -> Outcome {
        let start = Instant::now();
        while !requests.is_empty() {
            let left = limit.saturating_sub(start.elapsed());
            let index = match wait_any(&mut requests, Some(left)) {
                Ok(index) => index.unwrap_or(0),
                Err(Error::TimedOut) => {
                    let rank = purposes[0].rank;
                    return Err(Fault::Silent { rank });
                }
                Err(error) => return Err(Fault::Local(error)),
            };
            let Purpose { rank, receives } = purposes.swap_remove(index);
            let done: Result<Completion> = requests.swap_remove(index).wait(None);
            let done = done.map_err(|error| self.fault(rank, error))?;
            if let Some(length) = receives {
                let found = (Label(done.immediate), done.length);
                Fault::compare(rank, (label, length), found)?;
            }
        }
        Ok(())
    }
}

impl Fabric for Messages {
    fn exchange(
        &mut self,
        label: Label,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
        limit: Duration,
    ) -> Outcome {
        let outgoing = sends.iter().map(|send| send.bytes.len()).sum();
        let incoming = receives.iter().map(|receive| receive.bytes.len()).sum();
        let endpoint = &self.endpoint;
        let reserved = self.outgoing.reserve(endpoint, outgoing);
        let reserved = reserved.and_then(|()| self.incoming.reserve(endpoint, incoming));
        reserved.map_err(Fault::Local)?;
        let posted = self.post(label, sends, receives);
        let (requests, purposes) = posted.map_err(Fault::Local)?;
        self.wait(label, requests, purposes, limit)?;
        let mut offset = 0;
        for receive in receives {
            let read = self.incoming.buffer.read(offset, receive.bytes);
            read.map_err(Fault::Local)?;
            offset += receive.bytes.len();
        }
        Ok(())
    }

    fn end(&mut self, reason: u32) {
        let others = (0..self.ranks.len() as u32).filter(|rank| *rank != self.own);
        let told = others.flat_map(|rank| [(rank, !self.key), (rank, self.key)]);
        let post = |(rank, tag)| {
            let to = self.destination(rank, tag, Label::end(reason));
            // A rank that cannot be told notices it otherwise.
            self.endpoint.send(&to, b"").post().ok()
        };
        let requests: Vec<_> = told.filter_map(post).collect();
        let start = Instant::now();
        for mut request in requests {
            let _ = request.wait(Some(END_LIMIT.saturating_sub(start.elapsed())));
        }
    }

    /// A Send has ended only once its message is at the other NIC.
    fn flush(&mut self, _limit: Duration) -> Outcome {
        Ok(())
    }
}
