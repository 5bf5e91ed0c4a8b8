//! What flows through the queues of a NIC: kicks, requests, responses, events.

use qnic_abi::attach::{CONTROL_QUEUE, EVENT_QUEUE, FIRST_DOORBELL};
use qnic_abi::control::{REPLY_BYTES, REQUEST_BYTES};
use qnic_abi::event::EVENT_BYTES;
use qnic_links::Fabric;
use qnic_nic::env::{Host, HostMemory};
use qnic_nic::Time;
use zerocopy::IntoBytes;

use super::nic_port::{NicPort, Pending, Phase};
use super::node::Node;
use super::report::NicCounters;
use super::ring::{Chain, Ring, RingError};
use crate::memory::GuestMemory;
use crate::throttle::throttled;

/// Requests or event buffers taken in one turn: what one guest makes the others wait
/// (`nic/benches/polls.rs` does the same).
const BATCH: usize = 32;

impl NicPort {
    /// A queue was kicked.
    pub(crate) fn kick(&mut self, fabric: &mut Fabric<Node>, queue: usize) {
        match queue {
            CONTROL_QUEUE => {
                self.requests_due = true;
                fabric.make_due(self.slot);
            }
            EVENT_QUEUE => fabric.make_due(self.slot),
            _ if !matches!(self.phase, Phase::Running) => {}
            doorbell => {
                self.counters.doorbells += 1;
                let doorbell = (doorbell - FIRST_DOORBELL) as u32;
                fabric.nic_mut(self.slot).handle_doorbell(doorbell);
            }
        }
    }

    /// Moves requests, responses and events. Returns true if there were any.
    pub(crate) fn serve(&mut self, fabric: &mut Fabric<Node>, now: Time) -> bool {
        if !matches!(self.phase, Phase::Running) {
            return false;
        }
        let moved = |counters: &NicCounters| counters.control_requests + counters.events;
        let moved_before = moved(&self.counters);
        if self.requests_due {
            let served = self.serve_control(fabric, now);
            self.report_failure(CONTROL_QUEUE, served);
        }
        let responded = self.serve_responses(fabric);
        self.report_failure(CONTROL_QUEUE, responded);
        let delivered = self.serve_events(fabric);
        self.report_failure(EVENT_QUEUE, delivered);
        let memory = fabric.host(self.slot).memory();
        for ring in self.rings.iter_mut().flatten() {
            self.counters.interrupts += u64::from(ring.signal(memory));
        }
        self.requests_due || moved(&self.counters) != moved_before
    }

    fn serve_control(&mut self, fabric: &mut Fabric<Node>, now: Time) -> Result<(), RingError> {
        for _ in 0..BATCH {
            let memory = fabric.host(self.slot).memory();
            let room = |ring: &&mut Ring| self.pending.len() < ring.size();
            let chain = match self.rings[CONTROL_QUEUE].as_mut().filter(room) {
                Some(ring) => ring.pop(memory)?,
                None => None,
            };
            let Some(chain) = chain else {
                self.requests_due = false;
                break;
            };
            self.serve_request(fabric, now, chain)?;
        }
        Ok(())
    }

    fn serve_request(
        &mut self,
        fabric: &mut Fabric<Node>,
        now: Time,
        chain: Chain,
    ) -> Result<(), RingError> {
        let mut bytes = [0; REQUEST_BYTES];
        let memory = fabric.host(self.slot).memory();
        let request = chain.request().filter(|(request, response)| {
            request.length as usize == REQUEST_BYTES
                && response.length as usize >= REPLY_BYTES
                && memory.read(request.address, &mut bytes).is_ok()
        });
        let Some((_, response)) = request else {
            return self.refuse(fabric, chain.head, CONTROL_QUEUE);
        };
        self.counters.control_requests += 1;
        let token = self.next_token;
        self.next_token += 1;
        let pending = Pending {
            head: chain.head,
            response,
        };
        let response = fabric.with(self.slot, now, |now, nic, host, wire| {
            nic.handle_control(now, host, wire, &bytes, token)
        });
        match response {
            Some(response) => self.respond(fabric.host(self.slot).memory(), pending, &response),
            None => {
                self.pending.insert(token, pending);
                Ok(())
            }
        }
    }

    fn serve_responses(&mut self, fabric: &mut Fabric<Node>) -> Result<(), RingError> {
        while let Some((token, response)) = fabric.nic_mut(self.slot).poll_reply() {
            if let Some(pending) = self.pending.remove(&token) {
                self.respond(fabric.host(self.slot).memory(), pending, &response)?;
                self.requests_due = true;
            }
        }
        Ok(())
    }

    fn respond(
        &mut self,
        memory: &GuestMemory,
        pending: Pending,
        response: &[u8; REPLY_BYTES],
    ) -> Result<(), RingError> {
        let Some(ring) = &mut self.rings[CONTROL_QUEUE] else {
            return Ok(());
        };
        let written = memory.write(pending.response.address, response);
        let length = if written.is_ok() { REPLY_BYTES } else { 0 };
        ring.return_chain(memory, pending.head, length)
    }

    fn serve_events(&mut self, fabric: &mut Fabric<Node>) -> Result<(), RingError> {
        for _ in 0..BATCH {
            if !fabric.nic(self.slot).has_event() {
                break;
            }
            let memory = fabric.host(self.slot).memory();
            let Some(ring) = &mut self.rings[EVENT_QUEUE] else {
                break;
            };
            let Some(chain) = ring.pop(memory)? else {
                if ring.want_kicks(memory, true)? {
                    continue;
                }
                break;
            };
            ring.want_kicks(memory, false)?;
            let buffer = chain
                .writable()
                .filter(|buffer| buffer.length as usize >= EVENT_BYTES)
                .filter(|buffer| memory.contains(buffer.address, EVENT_BYTES as u64));
            let Some(buffer) = buffer else {
                self.refuse(fabric, chain.head, EVENT_QUEUE)?;
                continue;
            };
            let event = fabric.nic_mut(self.slot).poll_event();
            let memory = fabric.host(self.slot).memory();
            let Some((event, ring)) = event.zip(self.rings[EVENT_QUEUE].as_mut()) else {
                break;
            };
            let written = memory.write(buffer.address, event.as_bytes());
            let length = if written.is_ok() { EVENT_BYTES } else { 0 };
            ring.return_chain(memory, chain.head, length)?;
            self.counters.events += 1;
        }
        Ok(())
    }

    /// Returns a malformed chain to the driver.
    fn refuse(&mut self, fabric: &Fabric<Node>, head: u16, queue: usize) -> Result<(), RingError> {
        self.counters.malformed_chains += 1;
        throttled!(
            self,
            warn,
            queue,
            "the guest posted a descriptor chain that is no request and no event buffer"
        );
        match &mut self.rings[queue] {
            Some(ring) => ring.return_chain(fabric.host(self.slot).memory(), head, 0),
            None => Ok(()),
        }
    }

    /// Counts and reports a queue that has just failed.
    pub(super) fn report_failure(&mut self, queue: usize, result: Result<(), RingError>) {
        if let Err(error) = result {
            self.counters.failed_queues += 1;
            self.requests_due = false;
            throttled!(
                self,
                warn,
                queue,
                "the queue is stopped until the guest starts it again: {error}"
            );
        }
    }
}
