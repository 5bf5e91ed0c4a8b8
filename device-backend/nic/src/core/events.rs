//! Events that wait for a buffer of the driver ([`qnic_abi::event`]), and the page faults that
//! become events.
//!
//! Their number is bounded: one wake and one failed queue for each VNI, one event for each
//! fault in the table of a process, of each object of verbs one of each number, and one of the port.

use std::collections::{BTreeSet, VecDeque};

use qnic_abi::event::{Event, Kind, FAULT_WRITE};
use qnic_abi::verbs::Event as Happened;
use qnic_abi::{Status, VniId};

use super::fault::{Fault, PageRange, Waiter};
use super::lookup_side::LookupSide;
use super::Core;
use crate::env::Time;
use crate::ids::FaultNumber;

/// An event that was not given to the driver yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pending {
    Wake(VniId),
    PageFault(VniId, FaultNumber, PageRange),
    QueueFailed(VniId, Status),
    /// Of an object of verbs, by its token.
    Verbs(VniId, u64, Happened),
    /// Of the port: PortDown or PortUp.
    Port(Happened),
}

impl Pending {
    /// The VNI that it is about; `None`: the port.
    pub(crate) fn vni(&self) -> Option<VniId> {
        match self {
            Pending::Wake(vni)
            | Pending::PageFault(vni, ..)
            | Pending::QueueFailed(vni, _)
            | Pending::Verbs(vni, ..) => Some(*vni),
            Pending::Port(_) => None,
        }
    }

    fn encode(self) -> Event {
        let mut event = Event {
            kind: (Kind::Wake as u32).into(),
            vni: self.vni().map_or(0, |vni| vni.0).into(),
            flags: 0.into(),
            address: 0.into(),
            pages: 0.into(),
            status: 0.into(),
            fault: 0.into(),
        };
        match self {
            Pending::Wake(_) => {}
            Pending::PageFault(_, number, range) => {
                event.fault = number.0.into();
                event.kind = (Kind::PageFault as u32).into();
                event.flags = match range.side {
                    LookupSide::Source => 0,
                    LookupSide::Destination => FAULT_WRITE,
                }
                .into();
                event.address = range.page.into();
                event.pages = range.pages.into();
            }
            Pending::QueueFailed(_, status) => {
                event.kind = (Kind::QueueFailed as u32).into();
                event.status = status.code().into();
            }
            Pending::Verbs(_, token, happened) => {
                event.kind = (Kind::Verbs as u32).into();
                event.flags = (happened as u16).into();
                event.address = token.into();
            }
            Pending::Port(happened) => {
                event.kind = (Kind::Verbs as u32).into();
                event.flags = (happened as u16).into();
            }
        }
        event
    }
}

/// The events of a NIC, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    pending: VecDeque<Pending>,
    /// Token and number of each of these that is of verbs.
    of_verbs: BTreeSet<(u64, u16)>,
}

impl EventQueue {
    /// Adds an event; one of verbs only if it does not wait already.
    pub(crate) fn push(&mut self, event: Pending) {
        let is_new = match event {
            Pending::Verbs(_, token, happened) => self.of_verbs.insert((token, happened as u16)),
            _ => true,
        };
        if is_new {
            self.pending.push_back(event);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<(Pending, Event)> {
        let event = self.pending.pop_front()?;
        self.dropped(&event);
        Some((event, event.encode()))
    }

    fn dropped(&mut self, event: &Pending) {
        if let Pending::Verbs(_, token, happened) = event {
            self.of_verbs.remove(&(*token, *happened as u16));
        }
    }

    /// Drops the events of an object of verbs.
    pub(crate) fn forget_token(&mut self, token: u64) {
        let mut waiting = self.of_verbs.range((token, 0)..=(token, u16::MAX));
        if waiting.next().is_some() {
            self.retain(|event| !matches!(event, Pending::Verbs(_, other, _) if *other == token));
        }
    }

    /// Says how the port is now, instead of what was not told yet.
    pub(crate) fn tell_port(&mut self, is_up: bool) {
        self.pending
            .retain(|event| !matches!(event, Pending::Port(_)));
        self.pending.push_back(Pending::Port(match is_up {
            true => Happened::PortUp,
            false => Happened::PortDown,
        }));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Drops events that have lost their meaning.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Pending) -> bool) {
        let of_verbs = &mut self.of_verbs;
        self.pending.retain(|event| {
            let kept = keep(event);
            if let (false, Pending::Verbs(_, token, happened)) = (kept, event) {
                of_verbs.remove(&(*token, *happened as u16));
            }
            kept
        });
    }
}

impl Core {
    /// Puts something behind a page fault; tells the driver unless it knows.
    pub(crate) fn wait_for_pages(&mut self, vni: VniId, range: PageRange, waiter: Waiter) {
        let limit = self.limits.faults;
        let number = FaultNumber(self.faults_made + 1);
        let Some(process) = self.process_mut(vni) else {
            return;
        };
        if process.faults.wait(number, range, waiter, limit) {
            self.faults_made = number.0;
            self.fault_deadline = Some(Time::default());
            self.events.push(Pending::PageFault(vni, number, range));
        }
    }

    /// Takes out a fault of any process whose deadline has passed; if there is none, notes
    /// when that will be.
    #[cold]
    pub(crate) fn expire_fault(&mut self, now: Time) -> Option<(VniId, Fault)> {
        let timeout = self.limits.fault_timeout;
        let mut next = None;
        for (vni, process) in (0u16..).zip(&mut self.processes) {
            let Some(process) = process else {
                continue;
            };
            if let Some(fault) = process.faults.expire(now, timeout) {
                return Some((VniId(vni), fault));
            }
            next = next.into_iter().chain(process.faults.deadline()).min();
        }
        self.fault_deadline = next;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_encoded_as_the_abi_says() {
        let mut queue = EventQueue::default();
        queue.push(Pending::Wake(VniId(3)));
        let sides = [LookupSide::Destination, LookupSide::Source];
        for side in sides {
            let range = PageRange::new(0x5123, 4096, side);
            queue.push(Pending::PageFault(VniId(4), FaultNumber(7), range));
        }
        queue.push(Pending::QueueFailed(VniId(5), Status::Malformed));
        queue.push(Pending::Wake(VniId(6)));
        queue.retain(|event| event.vni() != Some(VniId(6)));
        for happened in [Happened::Fatal, Happened::Completion, Happened::Fatal] {
            queue.push(Pending::Verbs(VniId(7), 9, happened));
        }
        let wake = queue.pop().unwrap().1;
        assert_eq!((wake.kind.get(), wake.vni.get()), (1, 3));
        let fault = queue.pop().unwrap().1;
        assert_eq!((fault.kind.get(), fault.flags.get()), (2, FAULT_WRITE));
        assert_eq!((fault.address.get(), fault.pages.get()), (0x5000, 2));
        assert_eq!((wake.fault.get(), fault.fault.get()), (0, 7));
        let fault = queue.pop().unwrap().1;
        assert_eq!((fault.kind.get(), fault.flags.get()), (2, 0));
        let failed = queue.pop().unwrap().1;
        assert_eq!((failed.kind.get(), failed.status.get()), (3, 1));
        for number in [3, 1] {
            let verbs = queue.pop().unwrap().1;
            assert_eq!((verbs.kind.get(), verbs.vni.get()), (4, 7));
            assert_eq!((verbs.address.get(), verbs.flags.get()), (9, number));
        }
        // Once it is told, it may wait again, until its object ends.
        queue.push(Pending::Verbs(VniId(7), 9, Happened::Fatal));
        queue.push(Pending::Wake(VniId(3)));
        queue.forget_token(9);
        queue.tell_port(false);
        queue.retain(|event| event.vni() != Some(VniId(0)));
        queue.tell_port(true);
        assert_eq!(queue.pop().unwrap().0, Pending::Wake(VniId(3)));
        let port = queue.pop().unwrap().1;
        assert_eq!((port.kind.get(), port.address.get()), (4, 0));
        assert_eq!(port.flags.get(), Happened::PortUp as u16);
        assert!(queue.is_empty() && queue.pop().is_none());
    }
}
