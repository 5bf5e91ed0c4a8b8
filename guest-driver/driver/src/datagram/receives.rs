//! The receive buffers of a port (H2, H8): own ones, which are kept posted, and steered ones.
//!
//! ```text
//!   idle ──post──► with the NIC ──packet──► landed ──message──► upper module
//!    ▲                                        │                     │ dropped, given
//!    └────────────────────────────────────────┴─────────────────────┘
//!
//!   steered:  waiting ──post──► with the NIC ──packet──► landed ──message──► upper module
//!                │  ▲                │                      │ message given up   ▲
//!                │  └────────────────┼──────────────────────┘                    │
//!                └───────────────────┴──── withdrawn ────────────────────────────┘
//! ```
//! A steered buffer outlives messages that lose a part: the parts that came are given up, and the
//! buffer is posted again under the same handle.
//!
//! # Bounds
//! A port has as many slots of each kind as it was bound with. Own memory never exceeds them;
//! memory given beyond that is returned. Nothing is allocated after the port was bound.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use qnic_abi::command::{CommandBody, Descriptor};
use qnic_abi::datagram::{
    Datagram, DatagramPostCommand, DatagramWithdrawCommand, PostFlags, WithdrawFlags, RECORD_BYTES,
};
use qnic_abi::{SharedMemory, PAGE_SIZE};

use super::buffer::{Buffer, Landed, Place, WithNic};
use super::message::{Handle, PAGES};
use crate::platform::{DeviceMemory, NoMemory, Platform};

/// Most slots of a port.
pub(super) const MAX_SLOTS: usize = 1 << SLOT_BITS;

const SLOT_BITS: u32 = 13;
/// Bits of a handle for its port.
pub(super) const PORT_BITS: u32 = 6;
const USE_SHIFT: u32 = 1 + SLOT_BITS + PORT_BITS;

/// Records in a page.
const RECORDS: usize = PAGE_SIZE / RECORD_BYTES;

/// The value of a handle. It differs from that of every other posted buffer: `uses` differs each time,
/// and for steered buffers it is random.
fn handle_of(uses: u64, port: u8, slot: u16) -> u64 {
    // Never zero.
    (uses << USE_SHIFT | 1 << (u64::BITS - 1))
        | u64::from(port) << (1 + SLOT_BITS)
        | u64::from(slot) << 1
}

/// Port of a handle, by its index.
pub(super) fn port_of(handle: u64) -> usize {
    (handle >> (1 + SLOT_BITS)) as usize % (1 << PORT_BITS)
}

fn place_of(handle: u64) -> Place {
    Place {
        slot: (handle >> 1) as u16 % MAX_SLOTS as u16,
        page: (handle & 1) as u8,
    }
}

/// A page of a steered buffer.
enum Page<P: Platform> {
    /// There is no such page, or the upper module has it again.
    Absent,
    /// It is to be posted.
    Waiting(Buffer<P>),
    WithNic(WithNic<Buffer<P>>),
    /// It has a packet, and is among the fragments.
    Away,
    /// It is to be given back.
    Back(Buffer<P>),
}

/// A slot in use.
enum Slot<P: Platform> {
    Own(u64, WithNic<P::Memory>),
    Steered {
        handle: u64,
        pages: [Page<P>; PAGES],
        /// The buffer has ended: its pages go back.
        ends: bool,
    },
}

/// The receive buffers of a port.
pub(super) struct Receives<P: Platform> {
    slots: Vec<Option<Slot<P>>>,
    free_own: Vec<u16>,
    free_steered: Vec<u16>,
    records: Vec<P::Memory>,
    /// Own memory that is not posted.
    idle: Vec<P::Memory>,
    /// Own memory that is not with the upper module.
    own: usize,
    most_own: usize,
    /// Pages of steered buffers that wait to be posted.
    waiting: VecDeque<Place>,
    /// Steered buffers that are to be withdrawn.
    withdrawals: VecDeque<u64>,
    withdraw_all: bool,
    /// Pages that the NIC has.
    with_nic: usize,
    /// Steered buffers that have ended and still have pages.
    ending: usize,
}

/// The buffer of a completion, with the record that the NIC has stored.
pub(super) struct Returned<P: Platform> {
    pub(super) landed: Landed<P>,
    pub(super) record: Datagram,
}

fn list(range: core::ops::Range<u16>) -> Result<Vec<u16>, NoMemory> {
    let mut list = Vec::new();
    list.try_reserve_exact(range.len())?;
    list.extend(range.rev());
    Ok(list)
}

impl<P: Platform> Receives<P> {
    /// Slots for `own` and `steered` buffers, together at most [`MAX_SLOTS`].
    pub(super) fn new(platform: &P, own: u16, steered: u16) -> Result<Self, NoMemory> {
        let count = own.saturating_add(steered);
        let mut records = Vec::new();
        let pages = (usize::from(count) * PAGES).div_ceil(RECORDS);
        records.try_reserve_exact(pages)?;
        for _ in 0..pages {
            records.push(platform.new_page()?);
        }
        let (mut idle, mut waiting, mut withdrawals) =
            (Vec::new(), VecDeque::new(), VecDeque::new());
        idle.try_reserve_exact(own.into())?;
        waiting.try_reserve_exact(usize::from(steered) * PAGES)?;
        withdrawals.try_reserve_exact(usize::from(steered) * PAGES)?;
        Ok(Receives {
            slots: crate::platform::table(count.into())?,
            free_own: list(0..own)?,
            free_steered: list(own..count)?,
            records,
            idle,
            own: 0,
            most_own: own.into(),
            waiting,
            withdrawals,
            withdraw_all: false,
            with_nic: 0,
            ending: 0,
        })
    }

    /// Takes own memory; gives it back if the port has enough.
    pub(super) fn give(&mut self, memory: P::Memory) -> Result<(), P::Memory> {
        if self.own >= self.most_own {
            return Err(memory);
        }
        self.own += 1;
        self.idle.push(memory);
        Ok(())
    }

    /// Own memory that the port could take.
    pub(super) fn lacks(&self) -> usize {
        self.most_own - self.own
    }

    /// Returns true if own memory waits to be posted.
    pub(super) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Takes a steered buffer of one or two pages.
    pub(super) fn expect(
        &mut self,
        uses: u64,
        port: u8,
        first: Buffer<P>,
        second: Option<Buffer<P>>,
    ) -> Result<Handle, (Buffer<P>, Option<Buffer<P>>)> {
        let Some(index) = self.free_steered.pop() else {
            return Err((first, second));
        };
        let count = 1 + u8::from(second.is_some());
        let handle = handle_of(uses, port, index);
        if let Some(slot) = self.slots.get_mut(usize::from(index)) {
            *slot = Some(Slot::Steered {
                handle,
                pages: [
                    Page::Waiting(first),
                    second.map_or(Page::Absent, Page::Waiting),
                ],
                ends: false,
            });
        }
        let places = (0..count).map(|page| Place { slot: index, page });
        self.waiting.extend(places);
        Ok(Handle(handle))
    }

    /// Ends a steered buffer: pages that the NIC has are withdrawn. `None` if there is no such buffer.
    pub(super) fn end(&mut self, handle: Handle) -> Option<u16> {
        let index = place_of(handle.0).slot;
        let Some(Slot::Steered {
            handle: known,
            pages,
            ends,
        }) = self.slots.get_mut(usize::from(index))?
        else {
            return None;
        };
        if *known != handle.0 {
            return None;
        }
        if !core::mem::replace(ends, true) {
            self.ending += 1;
            for (page, state) in pages.iter_mut().enumerate() {
                match core::mem::replace(state, Page::Absent) {
                    Page::Waiting(buffer) => {
                        *state = Page::Back(buffer);
                        let place = (index, page as u8);
                        self.waiting.retain(|it| (it.slot, it.page) != place);
                    }
                    other => *state = other,
                }
                if matches!(state, Page::WithNic(_)) {
                    self.withdrawals.push_back(handle.0 + page as u64);
                }
            }
        }
        Some(index)
    }

    /// Ends all buffers: nothing is posted any more, and pages that the NIC has are withdrawn.
    pub(super) fn close(&mut self) {
        for index in 0..self.slots.len() {
            if let Some(Some(Slot::Steered { handle, .. })) = self.slots.get(index) {
                let handle = Handle(*handle);
                self.end(handle);
            }
        }
        self.withdrawals.clear();
        // Also if the NIC has none just now: it forgets the port.
        self.withdraw_all = true;
    }

    /// The next command of the port, if there is one. With `own`, own memory is posted as well.
    pub(super) fn next_command(
        &mut self,
        uses: &mut u64,
        (index, port): (u8, u16),
        own: bool,
    ) -> Option<Descriptor> {
        if let Some(handle) = self.withdrawals.pop_front() {
            return Some(withdraw(port, handle));
        }
        while let Some(place) = self.waiting.pop_front() {
            if let Some(command) = self.post_steered(port, place) {
                return Some(command);
            }
        }
        if core::mem::take(&mut self.withdraw_all) {
            return Some(withdraw(port, 0));
        }
        if !own || self.idle.is_empty() {
            return None;
        }
        let slot = self.free_own.pop()?;
        let memory = self.idle.pop()?;
        *uses += 1;
        let handle = handle_of(*uses, index, slot);
        let command = self.post(port, handle, &memory, PostFlags::empty());
        let entry = self.slots.get_mut(usize::from(slot))?;
        *entry = Some(Slot::Own(handle, WithNic::lend(memory)));
        self.with_nic += 1;
        Some(command)
    }

    fn post_steered(&mut self, port: u16, place: Place) -> Option<Descriptor> {
        let slot = self.slots.get_mut(usize::from(place.slot))?.as_mut()?;
        let Slot::Steered { handle, pages, .. } = slot else {
            return None;
        };
        let handle = *handle + u64::from(place.page);
        let page = pages.get_mut(usize::from(place.page))?;
        let buffer = match core::mem::replace(page, Page::Absent) {
            Page::Waiting(buffer) => buffer,
            // It was withdrawn meanwhile.
            other => {
                *page = other;
                return None;
            }
        };
        let memory = buffer.memory().part(0, buffer.memory().size());
        *page = Page::WithNic(WithNic::lend(buffer));
        self.with_nic += 1;
        Some(self.post(port, handle, &memory, PostFlags::STEERED))
    }

    fn post(&self, port: u16, handle: u64, memory: &P::Memory, flags: PostFlags) -> Descriptor {
        let record = self.record(place_of(handle));
        let record = record.map_or(0, |(page, offset)| page.address() + offset as u64);
        let command = DatagramPostCommand {
            handle: handle.into(),
            address: memory.address().into(),
            record: record.into(),
            length: (memory.size() as u16).into(),
            port: port.into(),
            flags: flags.bits().into(),
            ..DatagramPostCommand::command()
        };
        command.descriptor()
    }

    fn record(&self, place: Place) -> Option<(&P::Memory, usize)> {
        let index = usize::from(place.slot) * PAGES + usize::from(place.page);
        let page = self.records.get(index / RECORDS)?;
        Some((page, index % RECORDS * RECORD_BYTES))
    }

    /// Takes back a buffer that the NIC has returned; `None` if the NIC does not have it.
    pub(super) fn returned(&mut self, handle: u64) -> Option<Returned<P>> {
        let place = place_of(handle);
        let record = self.read_record(place)?;
        let entry = self.slots.get_mut(usize::from(place.slot))?;
        let landed = match entry {
            Some(Slot::Own(known, _)) if *known == handle => {
                let Some(Slot::Own(_, memory)) = entry.take() else {
                    return None;
                };
                self.free_own.push(place.slot);
                Landed::Own(memory.returned())
            }
            Some(Slot::Steered {
                handle: known,
                pages,
                ..
            }) if *known + u64::from(place.page) == handle => {
                let page = pages.get_mut(usize::from(place.page))?;
                match core::mem::replace(page, Page::Away) {
                    Page::WithNic(buffer) => Landed::Steered(buffer.returned(), place),
                    other => {
                        *page = other;
                        return None;
                    }
                }
            }
            _ => return None,
        };
        self.with_nic = self.with_nic.saturating_sub(1);
        Some(Returned { landed, record })
    }

    fn read_record(&self, place: Place) -> Option<Datagram> {
        let (page, offset) = self.record(place)?;
        let mut words = [0u64; size_of::<Datagram>() / 8];
        for (index, word) in words.iter_mut().enumerate() {
            *word = page.load_u64(offset + index * 8, Ordering::Relaxed).to_le();
        }
        Some(zerocopy::transmute!(words))
    }

    /// Handle and slot of the first buffer that the NIC has, from slot `start` on.
    pub(super) fn next_with_nic(&self, start: usize) -> Option<(u64, usize)> {
        let slots = self.slots.iter().enumerate().skip(start);
        let mut found = slots.filter_map(|(index, slot)| match slot.as_ref()? {
            Slot::Own(handle, _) => Some((*handle, index)),
            Slot::Steered { handle, pages, .. } => {
                let is_lent = |page: &Page<P>| matches!(page, Page::WithNic(_));
                let page = pages.iter().position(is_lent)?;
                Some((*handle + page as u64, index))
            }
        });
        found.next()
    }

    /// Takes back memory that no message needs. A steered buffer that has not ended is posted again.
    pub(super) fn put_back(&mut self, landed: Landed<P>) {
        let (buffer, place) = match landed {
            Landed::Own(memory) => return self.idle.push(memory),
            Landed::Steered(buffer, place) => (buffer, place),
        };
        let slot = self.slots.get_mut(usize::from(place.slot));
        let Some(Some(Slot::Steered { pages, ends, .. })) = slot else {
            return;
        };
        let Some(page) = pages.get_mut(usize::from(place.page)) else {
            return;
        };
        if *ends {
            *page = Page::Back(buffer);
            return;
        }
        *page = Page::Waiting(buffer);
        // There is room: a page that was posted is not in the list.
        self.waiting.push_back(place);
    }

    /// Gives the memory of a message to the upper module. Ends a steered buffer and returns its
    /// handle.
    pub(super) fn hand_over(&mut self, landed: &Landed<P>) -> Option<Handle> {
        let Landed::Steered(_, place) = landed else {
            self.own = self.own.saturating_sub(1);
            return None;
        };
        *self.steered_page(*place)? = Page::Absent;
        let Some(Slot::Steered { handle, .. }) = self.slots.get(usize::from(place.slot))? else {
            return None;
        };
        let handle = Handle(*handle);
        self.end(handle);
        self.free_if_ended(place.slot);
        Some(handle)
    }

    /// Frees the slot of a steered buffer that has ended, once no page of it is here.
    fn free_if_ended(&mut self, index: u16) {
        let Some(entry) = self.slots.get_mut(usize::from(index)) else {
            return;
        };
        let over = |slot: &mut Slot<P>| match slot {
            Slot::Steered { pages, ends, .. } => {
                *ends && pages.iter().all(|page| matches!(page, Page::Absent))
            }
            Slot::Own(..) => false,
        };
        if entry.take_if(over).is_some() {
            self.free_steered.push(index);
            self.ending -= 1;
        }
    }

    fn steered_page(&mut self, place: Place) -> Option<&mut Page<P>> {
        let slot = self.slots.get_mut(usize::from(place.slot))?.as_mut()?;
        let Slot::Steered { pages, .. } = slot else {
            return None;
        };
        pages.get_mut(usize::from(place.page))
    }

    /// The next page that goes back to the upper module without a message.
    pub(super) fn next_withdrawn(&mut self) -> Option<(Handle, Buffer<P>)> {
        if self.ending == 0 {
            return None;
        }
        for index in self.most_own..self.slots.len() {
            let Some(Some(Slot::Steered {
                handle,
                pages,
                ends: true,
            })) = self.slots.get_mut(index)
            else {
                continue;
            };
            let handle = Handle(*handle);
            let is_back = |page: &&mut Page<P>| matches!(page, Page::Back(_));
            let Some(page) = pages.iter_mut().find(is_back) else {
                continue;
            };
            if let Page::Back(buffer) = core::mem::replace(page, Page::Absent) {
                // The upper module may need the slot as soon as it is called.
                self.free_if_ended(index as u16);
                return Some((handle, buffer));
            }
        }
        None
    }

    /// Returns true if nothing of the port is with the NIC or on its way to the upper module.
    pub(super) fn is_quiet(&self) -> bool {
        self.with_nic == 0 && self.ending == 0
    }
}

fn withdraw(port: u16, handle: u64) -> Descriptor {
    let flags = match handle {
        0 => WithdrawFlags::ALL,
        _ => WithdrawFlags::empty(),
    };
    let command = DatagramWithdrawCommand {
        handle: handle.into(),
        port: port.into(),
        flags: flags.bits().into(),
        ..DatagramWithdrawCommand::command()
    };
    command.descriptor()
}
