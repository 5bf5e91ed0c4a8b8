//! Events that wait for a buffer of the driver ([`qnic_abi::event`]), and the page faults that
//! become events.
//!
//! Their number is bounded: one wake and one failed queue for each VNI, and one event for each
//! fault in the table of a process.

use std::collections::VecDeque;

use qnic_abi::event::{Event, Kind, FAULT_WRITE};
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
}

impl Pending {
    /// The VNI that it is about.
    pub(crate) fn vni(&self) -> VniId {
        match self {
            Pending::Wake(vni) | Pending::PageFault(vni, ..) | Pending::QueueFailed(vni, _) => *vni,
        }
    }

    fn encode(self) -> Event {
        let mut event = Event {
            kind: (Kind::Wake as u32).into(),
            vni: self.vni().0.into(),
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
        }
        event
    }
}

/// The events of a NIC, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    pending: VecDeque<Pending>,
}

impl EventQueue {
    pub(crate) fn push(&mut self, event: Pending) {
        self.pending.push_back(event);
    }

    pub(crate) fn pop(&mut self) -> Option<(Pending, Event)> {
        let event = self.pending.pop_front()?;
        Some((event, event.encode()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Drops events that have lost their meaning.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&Pending) -> bool) {
        self.pending.retain(keep);
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
        queue.retain(|event| event.vni() != VniId(6));
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
        assert!(queue.is_empty() && queue.pop().is_none());
    }
}
