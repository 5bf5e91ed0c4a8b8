//! Commands of a collective worker: right ones and wrong ones.

use qnic_abi::collective::{
    Collective, CollectiveCommand, Element, JoinGroupCommand, LeaveGroupCommand, Operator,
};
use qnic_abi::command::{CommandBody, Descriptor};

use super::oracle::{Call, CollectiveOracle, Join, Member, Shape, CALLS, CALL_TIMEOUT, MEMORY};
use super::{CollectiveWorker, Seat, State, LOOK};
use crate::process::worker::{mistakes, QueueWorker};
use crate::process::{Ended, Result};
use crate::schedule::{lock, trace};

/// No group has this name.
const NO_GROUP: u64 = 1 << 60;

/// Nanoseconds in a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// How long joins may take, in milliseconds, unless they have less time.
const JOIN_TIMEOUT: u32 = 3000;

/// How long calls may take, in milliseconds, unless they have less time.
const LONG: u32 = (CALL_TIMEOUT / MILLISECOND) as u32;

mistakes! {
    Key => BadKey,
    Address => BadAddress,
    Segment => NoSuchSegment,
    Root => Malformed,
    Group => NoSuchGroup,
}

impl CollectiveWorker<'_> {
    /// Puts a command into the queue. `issue` tells the oracle at that moment.
    fn put(
        &mut self,
        command: &Descriptor,
        handle: u64,
        about: Option<Member>,
        issue: impl FnOnce(&mut CollectiveOracle, u64),
    ) -> Result<()> {
        self.make_room(LOOK)?;
        issue(&mut lock(self.oracle), self.schedule.now());
        self.open.insert(handle, about);
        self.registered.put(command, &[]);
        Ok(())
    }

    /// A time limit in milliseconds: mostly a long one.
    fn timeout(&self, long: u32) -> u32 {
        match self.schedule.chance(40) {
            true => self.schedule.range(1..30) as u32,
            false => long,
        }
    }

    /// Joins the next group that it is to join.
    pub(super) fn join_next(&mut self) -> Result<()> {
        let schedule = self.schedule;
        let invitation = lock(self.oracle).invitation(self.slot);
        let Some(member) = invitation.filter(|_| !schedule.chance(30)) else {
            return Ok(());
        };
        let wrong = schedule.chance(20);
        let (handle, command, timeout) = self.join_command(member, wrong);
        self.seats.push(Seat {
            member,
            state: State::Joining,
            called: 0,
            pending: 0,
            sends: 0,
            failed: false,
        });
        let slot = self.slot;
        self.put(
            &command.descriptor(),
            handle,
            Some(member),
            |oracle, now| {
                trace!(
                    schedule,
                    "collective worker {slot}: joins {member:?}, {handle}, {wrong}"
                );
                let timeout = u64::from(timeout) * MILLISECOND;
                oracle.join(member, handle, Join::new(now, timeout, wrong));
            },
        )
    }

    fn join_command(&self, member: Member, wrong: bool) -> (u64, JoinGroupCommand, u32) {
        let mut oracle = lock(self.oracle);
        let (home, name, key, size) = oracle.terms(member);
        let (handle, timeout) = (oracle.next(), self.timeout(JOIN_TIMEOUT));
        let mut command = JoinGroupCommand::command();
        command.header.remote_node = home.0.into();
        command.header.remote_port = home.1.into();
        command.handle = handle.into();
        command.name = name.into();
        command.key = (key ^ u64::from(wrong)).into();
        command.size = size.into();
        command.rank = member.1.into();
        command.timeout_ms = timeout.into();
        (handle, command, timeout)
    }

    /// Tries to get into a group of others, without its key.
    pub(super) fn intrude(&mut self) -> Result<()> {
        let choice = self.schedule.below(3);
        let found = lock(self.oracle).strange(self.slot, choice);
        let Some((plan, _)) = found else {
            return Ok(());
        };
        let (handle, mut command, _) = self.join_command((plan, 0), false);
        command.key = (command.key.get() ^ 2).into();
        let size = u64::from(command.size.get());
        command.rank = (self.schedule.range(0..size) as u32).into();
        command.timeout_ms = (self.schedule.range(1..30) as u32).into();
        let (slot, schedule) = (self.slot, self.schedule);
        self.put(&command.descriptor(), handle, None, |oracle, _| {
            trace!(
                schedule,
                "collective worker {slot}: intrudes into {plan}, {handle}"
            );
            oracle.intrude(slot, handle);
        })
    }

    /// Calls the next collective of some group.
    pub(super) fn call_some(&mut self) -> Result<()> {
        match self.seats.len() {
            0 => Ok(()),
            count => self.call_next(self.schedule.below(count)),
        }
    }

    /// Calls the next collective of a group, if there is one.
    pub(super) fn call_next(&mut self, index: usize) -> Result<()> {
        let Some(seat) = self.seats.get(index).copied() else {
            return Ok(());
        };
        let State::In(name) = seat.state else {
            return Ok(());
        };
        // One call more than may be under way is refused.
        let crowded = seat.pending - seat.sends >= self.common.settings.limits.collectives;
        let may = !seat.failed && (!crowded || self.schedule.chance(20));
        let next = lock(self.oracle).script(seat.member, seat.called);
        let Some((mut shape, bytes)) = next.filter(|_| may) else {
            return Ok(());
        };
        if self.schedule.chance(3) {
            shape = mistaken(shape);
        }
        let Some((handle, start)) = self.place(&shape, &bytes)? else {
            lock(self.oracle).finds_no_room(seat.member);
            return Ok(());
        };
        let timeout = self.timeout(LONG);
        let command = self.call_command((name, handle), &shape, start, timeout);
        self.seats[index].called += 1;
        self.seats[index].pending += 1;
        let (slot, schedule, member) = (self.slot, self.schedule, seat.member);
        self.put(&command.descriptor(), handle, Some(member), |oracle, now| {
            trace!(
                schedule,
                "collective worker {slot}: call {} of {member:?}, {handle}: {shape:?}, {timeout} ms",
                seat.called
            );
            let timeout = u64::from(timeout) * MILLISECOND;
            let call = Call::new(now, timeout, shape, start).crowded(crowded);
            oracle.call(member, handle, call);
        })
    }

    /// Finds memory for a call, and puts there what it gives. Returns a handle, and where it
    /// stands; `None` if there is no room.
    fn place(&mut self, shape: &Shape, bytes: &[u8]) -> Result<Option<(u64, u64)>> {
        let start = self.schedule.range(0..CALLS - shape.length + 1);
        let mut oracle = lock(self.oracle);
        let handle = oracle.next();
        if !oracle.reserve(self.slot, handle, (start, shape.length)) {
            return Ok(None);
        }
        drop(oracle);
        let bytes = &bytes[..bytes.len().min(shape.length as usize)];
        let (kernel, space) = (&self.context.machine.kernel, *self.process.space());
        if kernel.write(space, self.address + start, bytes).is_err() {
            return Err(Ended);
        }
        self.context.check_alive()?;
        lock(self.oracle).wrote(self.slot, start, bytes);
        Ok(Some((handle, start)))
    }

    fn call_command(
        &self,
        (name, handle): (u64, u64),
        shape: &Shape,
        start: u64,
        timeout: u32,
    ) -> CollectiveCommand {
        let mut command = CollectiveCommand::command();
        command.handle = handle.into();
        command.group = name.into();
        command.length = shape.length.into();
        command.root = shape.root.into();
        command.label = shape.label.into();
        command.timeout_ms = timeout.into();
        command.collective = shape.collective as u8;
        if let Some((operator, element)) = shape.reduction {
            command.operator = operator as u8;
            command.element = element as u8;
        }
        if let Some(exported) = self.exported.filter(|_| shape.length > 0) {
            command.local_address = (self.address + start).into();
            command.local_key = exported.key.into();
            command.local_segment = exported.segment.into();
        }
        command
    }

    /// Calls something in a group that must be refused at once. The worker goes on all the same, as a
    /// program that does not look: its next call is the next of its script.
    pub(super) fn call_wrongly(&mut self) -> Result<()> {
        let schedule = self.schedule;
        let mut seats = self.seats.iter_mut();
        let joined = seats.find_map(|seat| match seat.state {
            State::In(name) => Some((name, seat)),
            State::Joining => None,
        });
        let Some((name, seat)) = joined else {
            return Ok(());
        };
        let (member, wrong) = (seat.member, Wrong::ALL[schedule.below(5)]);
        let takes_number = wrong != Wrong::Group;
        if takes_number {
            if lock(self.oracle).script(member, seat.called).is_none() {
                return Ok(());
            }
            seat.called += 1;
        }
        let shape = Shape {
            collective: Collective::Broadcast,
            reduction: None,
            length: 100,
            root: 0,
            label: 0,
        };
        let handle = lock(self.oracle).next();
        let mut command = self.call_command((name, handle), &shape, 0, LONG);
        match wrong {
            Wrong::Key => command.local_key = (command.local_key.get() ^ 1 << 40).into(),
            Wrong::Address => command.local_address = (self.address + MEMORY - 1).into(),
            Wrong::Segment => command.local_segment = 60.into(),
            Wrong::Root => command.root = 4000.into(),
            Wrong::Group => command.group = NO_GROUP.into(),
        }
        let slot = self.slot;
        self.put(&command.descriptor(), handle, None, |oracle, now| {
            trace!(
                schedule,
                "collective worker {slot}: {handle}: wrong {wrong:?}, {member:?}"
            );
            oracle.call_wrongly(member, handle, wrong.status(), takes_number.then_some(now));
        })
    }

    /// Leaves some group, whatever is under way in it.
    pub(super) fn leave_some(&mut self) -> Result<()> {
        let mut joined = self
            .seats
            .iter()
            .filter(|seat| seat.state != State::Joining);
        match joined.next().copied() {
            Some(seat) => self.leave(seat),
            None => Ok(()),
        }
    }

    pub(super) fn leave(&mut self, seat: Seat) -> Result<()> {
        let State::In(name) = seat.state else {
            return Ok(());
        };
        let member = seat.member;
        self.seats.retain(|seat| seat.member != member);
        let handle = lock(self.oracle).next();
        let mut command = LeaveGroupCommand::command();
        command.handle = handle.into();
        command.group = name.into();
        let (slot, schedule) = (self.slot, self.schedule);
        self.put(&command.descriptor(), handle, Some(member), |oracle, _| {
            trace!(
                schedule,
                "collective worker {slot}: leaves {member:?}, {handle}"
            );
            oracle.leave(member, handle);
        })
    }
}

/// Something else than the script has.
fn mistaken(shape: Shape) -> Shape {
    match shape.collective {
        _ if shape.label % 2 == 1 => Shape {
            label: shape.label + 1,
            ..shape
        },
        Collective::Barrier => Shape {
            collective: Collective::Broadcast,
            ..shape
        },
        Collective::Broadcast | Collective::Reduce | Collective::Allreduce => Shape {
            collective: Collective::Allreduce,
            reduction: Some((Operator::Sum, Element::U64)),
            length: (shape.length / 2)
                .next_multiple_of(8)
                .min(shape.length / 8 * 8),
            root: 0,
            ..shape
        },
    }
}
