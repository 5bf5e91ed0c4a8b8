//! Multicasts of a collective worker, and its receives.

use qnic_abi::command::{CommandBody, INLINE_CAPACITY};
use qnic_abi::message::{ReceiveCommand, ReceiveFlags};
use qnic_abi::multicast::{MulticastCommand, MulticastFlags};

use super::oracle::{CollectiveOracle, CALLS, LETTER, PLACE, RECEIVES};
use super::{CollectiveWorker, State, LOOK};
use crate::process::worker::QueueWorker;
use crate::process::{Ended, Result};
use crate::schedule::{lock, trace};

impl CollectiveWorker<'_> {
    /// Posts a receive of any multicast, if there are too few.
    pub(super) fn receive_some(&mut self) -> Result<()> {
        let few = self.receives.len() < RECEIVES as usize;
        let Some(exported) = self.exported.filter(|_| few) else {
            return Ok(());
        };
        self.make_room(LOOK)?;
        let within = self.schedule.range(0..PLACE - LETTER + 1);
        let mut oracle = lock(self.oracle);
        let handle = oracle.next();
        let starts = (0..RECEIVES).map(|place| CALLS + place * PLACE + within);
        let mut starts = starts.filter(|start| oracle.reserve(self.slot, handle, (*start, LETTER)));
        let Some(start) = starts.next() else {
            return Ok(());
        };
        let mut command = ReceiveCommand::command();
        command.handle = handle.into();
        command.ignore = u64::MAX.into();
        command.flags = ReceiveFlags::ANY_PROC.bits().into();
        command.length = LETTER.into();
        command.local_address = (self.address + start).into();
        command.local_key = exported.key.into();
        command.local_segment = exported.segment.into();
        oracle.receive(self.slot, handle, start);
        drop(oracle);
        let slot = self.slot;
        trace!(
            self.schedule,
            "collective worker {slot}: receives, {handle}"
        );
        self.receives.insert(handle);
        self.registered.put(&command.descriptor(), &[]);
        Ok(())
    }

    /// Sends a multicast in some group.
    pub(super) fn send_some(&mut self) -> Result<()> {
        let schedule = self.schedule;
        let Some(index) = self.seats.len().checked_sub(1) else {
            return Ok(());
        };
        let index = index.min(schedule.below(self.seats.len()));
        let seat = self.seats[index];
        let (State::In(name), false) = (seat.state, seat.failed) else {
            return Ok(());
        };
        // One more than may be under way is refused.
        let crowded = seat.sends >= self.common.settings.limits.collectives;
        if crowded && !schedule.chance(20) {
            return Ok(());
        }
        let length = match schedule.range(0..16) {
            0 | 1 => 0,
            2..=8 => schedule.range(1..100),
            9..=12 => schedule.range(1..6000),
            13 => schedule.range(6000..20_000),
            // Most of them have several pieces.
            _ => schedule.range(60_000..LETTER),
        };
        let size = u64::from(lock(self.oracle).terms(seat.member).3);
        let count = if schedule.chance(400) {
            schedule.range(1..4)
        } else {
            0
        };
        let ranks: Vec<u16> = (0..count).map(|_| schedule.range(0..size) as u16).collect();
        self.make_room(LOOK)?;
        let start = schedule.range(0..CALLS - length + 1);
        let mut oracle = lock(self.oracle);
        let tag = oracle.next();
        let bytes = CollectiveOracle::letter(tag, length);
        let (command, payload) = self.multicast(name, (tag, start), &bytes, &ranks);
        let is_short = command.flags & MulticastFlags::SHORT.bits() != 0;
        if !is_short {
            let Some(_) = self
                .exported
                .filter(|_| oracle.reserve(self.slot, tag, (start, length)))
            else {
                return Ok(());
            };
            drop(oracle);
            let (kernel, space) = (&self.context.machine.kernel, *self.process.space());
            if kernel.write(space, self.address + start, &bytes).is_err() {
                return Err(Ended);
            }
            self.context.check_alive()?;
            oracle = lock(self.oracle);
            oracle.wrote(self.slot, start, &bytes);
        }
        oracle.send(seat.member, (tag, length), &ranks, schedule.now());
        if crowded {
            oracle.crowd(tag);
        }
        drop(oracle);
        let (slot, member) = (self.slot, seat.member);
        trace!(
            schedule,
            "collective worker {slot}: multicast {tag} in {member:?} to {ranks:?}, {length} bytes"
        );
        self.seats[index].pending += 1;
        self.seats[index].sends += 1;
        self.open.insert(tag, Some(member));
        self.sends.insert(tag);
        self.registered.put(&command.descriptor(), &payload);
        Ok(())
    }

    fn multicast(
        &self,
        name: u64,
        (tag, start): (u64, u64),
        bytes: &[u8],
        ranks: &[u16],
    ) -> (MulticastCommand, Vec<u8>) {
        let mut command = MulticastCommand::command();
        let mut payload = Vec::new();
        command.handle = tag.into();
        command.group = name.into();
        command.tag = tag.into();
        command.immediate = (!tag).into();
        command.length = (bytes.len() as u32).into();
        if !ranks.is_empty() {
            command.flags |= MulticastFlags::RANKS.bits();
            payload.extend((ranks.len() as u16).to_le_bytes());
            payload.extend(ranks.iter().flat_map(|rank| rank.to_le_bytes()));
        }
        if payload.len() + bytes.len() <= INLINE_CAPACITY {
            command.flags |= MulticastFlags::SHORT.bits();
            payload.extend(bytes);
        } else if let Some(exported) = self.exported {
            command.local_address = (self.address + start).into();
            command.local_key = exported.key.into();
            command.local_segment = exported.segment.into();
        }
        command.header.inline_length = payload.len() as u8;
        (command, payload)
    }
}
