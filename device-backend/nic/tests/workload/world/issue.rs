//! Transfers that processes start.

use qnic_abi::command::{CommandFlags, Descriptor, Opcode, INLINE_CAPACITY};
use qnic_abi::Status;
use qnic_nic::testing::SimProcess;

use super::{World, HALF};
use crate::oracle::{Kind, Op, LANE};

impl World {
    pub(super) fn issue(&mut self) {
        let count = self.players.len() as u64;
        let place = self.random.below(count) as usize;
        let target = self.random.below(count) as usize;
        let length = match self.random.below(4) {
            0 => self.random.below(20),
            1 => self.random.below(97),
            2 => self.random.below(4097),
            _ => self.random.below(LANE / 2),
        };
        let start = self.random.below(LANE - length + 1);
        let id = self.next_op;
        if !self.players[target].lanes[place].reserve(start, length, id) {
            return;
        }
        let issued = match self.random.below(3) {
            0 => self.read(place, target, (start, length)),
            _ => self.write(place, target, (start, length)),
        };
        match issued {
            true => self.next_op += 1,
            false => self.players[target].lanes[place].release(id),
        }
    }

    fn write(&mut self, place: usize, target: usize, (start, length): (u64, u64)) -> bool {
        let inline = length <= INLINE_CAPACITY as u64 && self.random.one_in(2);
        let from = self.random.below(HALF - length);
        let notification = self.random.one_in(3).then(|| {
            let kind = self.random.below(2);
            1 + place as u32 * 2 + kind as u32
        });
        let remote = (&self.players[target].target, place as u64 * LANE + start);
        let mut payload = vec![0; length as usize];
        let mut command = if inline {
            for byte in &mut payload {
                *byte = self.random.below(256) as u8;
            }
            SimProcess::inline_descriptor(remote, length)
        } else {
            let player = &self.players[place];
            let source = player.local.address + from;
            payload = player.sim.read(&self.cluster, source, length as usize);
            SimProcess::descriptor(Opcode::Write, (&player.local, from), remote, length)
        };
        if let Some(notification) = notification {
            command.flags |= CommandFlags::NOTIFY.bits();
            command.notification = notification.into();
        }
        let inline_bytes = if inline { &payload[..] } else { &[] };
        let kind = Kind::Write {
            data: payload.clone(),
            notification,
        };
        if !self.start(place, target, (start, length), command, inline_bytes, kind) {
            return false;
        }
        self.players[target].lanes[place].open(start, length);
        true
    }

    fn read(&mut self, place: usize, target: usize, (start, length): (u64, u64)) -> bool {
        let local = self.random.below(LANE - length + 1);
        let expected = self.players[target].lanes[place].get(start, length);
        let id = self.next_op;
        let player = &mut self.players[place];
        if !player.reading.reserve(local, length, id) {
            return false;
        }
        let remote = (&self.players[target].target, place as u64 * LANE + start);
        let own = (&self.players[place].local, HALF + local);
        let command = SimProcess::descriptor(Opcode::Read, own, remote, length);
        let kind = Kind::Read { expected, local };
        let issued = self.start(place, target, (start, length), command, &[], kind);
        if !issued {
            self.players[place].reading.release(id);
        }
        issued
    }

    fn start(
        &mut self,
        place: usize,
        target: usize,
        (start, length): (u64, u64),
        mut command: Descriptor,
        inline: &[u8],
        kind: Kind,
    ) -> bool {
        if self.random.one_in(4) {
            command.flags |= CommandFlags::PUBLISH.bits();
        }
        let wrong = self.random.one_in(40).then_some(Status::BadKey);
        if wrong.is_some() {
            command.remote_key = (command.remote_key.get() ^ 1 << 60).into();
        }
        let aimed = (target, self.players[target].life);
        let node = self.players[target].sim.node;
        let unavailable = !self.unavailable.is_empty();
        let player = &mut self.players[place];
        let Some(number) = player.sim.issue(&mut self.cluster, &command, inline) else {
            return false;
        };
        let is_write = matches!(kind, Kind::Write { .. });
        let counter = if is_write {
            &mut player.writes
        } else {
            &mut player.reads
        };
        let op = Op {
            id: self.next_op,
            command: number,
            number: *counter,
            target: aimed,
            node,
            start,
            length,
            kind,
            wrong,
            disturbed: unavailable,
            failed: None,
        };
        *counter += 1;
        if let Some(notification) = op.notification() {
            let key = (aimed.0, aimed.1, notification);
            let notices = player.notices.entry(key).or_default();
            notices.push((op.id, wrong.is_none()));
        }
        player.ops.push(op);
        true
    }
}
