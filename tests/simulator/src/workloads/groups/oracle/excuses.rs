//! What excuses that a join or a call fails.

use qnic_abi::Status;
use qnic_nic::Limits;

use super::plan::{Plan, Seat};
use super::{CollectiveOracle, Member, Name, Purpose};

impl CollectiveOracle {
    /// The segment of a process begins to be revoked.
    pub(crate) fn revoke(&mut self, slot: usize) {
        for seat in self.seats_of(slot) {
            seat.revoked |= !seat.calls.is_empty() || seat.sends;
        }
        for purpose in self.processes[slot].open.values_mut() {
            if let Purpose::Wrong(_, _, revoked) = purpose {
                *revoked = true;
            }
        }
    }

    /// Returns true if a call of a member may fail like that, for that process; `None` is a call
    /// that takes no part.
    pub(super) fn may_fail(
        &self,
        (number, _): Member,
        call: Option<usize>,
        (status, who): (Status, Name),
        now: u64,
    ) -> bool {
        let plan = &self.plans[number];
        let done = |seat: &&Seat| call.is_some_and(|call| seat.has_done(call));
        let mut named = plan.seats.iter().filter(|seat| seat.name == who);
        let named = named.find(|seat| !done(seat));
        let named_may = |may: fn(&Seat) -> bool| named.is_some_and(may);
        match status {
            Status::PeerGone if who.1 == 0 => plan.disturbed.contains(&who.0.into()),
            Status::PeerGone => named_may(|seat| seat.gone),
            // The time of any member's call is over, perhaps of a later one; a member that it waits for is
            // named, or its node.
            Status::TimedOut => {
                let mut late = plan.seats.iter().flat_map(|seat| seat.late_calls(now));
                let joins_late = plan.seats.iter().any(|seat| seat.joins_late(now));
                let is_named = |seat: &Seat| match who.1 {
                    0 => seat.name.0 == who.0,
                    _ => seat.name == who,
                };
                let named: Vec<_> = plan.seats.iter().filter(|seat| is_named(seat)).collect();
                // What the others have done for their part may not have come from there.
                let is_cut_off = who.1 == 0 && plan.disturbed.contains(&who.0.into());
                let waits =
                    |call: usize| is_cut_off || named.iter().any(|seat| !seat.has_done(call));
                // Two workers may each hold the memory that the other needs for its part.
                let starves = named.iter().any(|seat| seat.starves());
                joins_late && !named.is_empty() || late.any(waits) || starves
            }
            Status::PageUnavailable | Status::OwnPageUnavailable => named_may(|seat| seat.lacked),
            Status::BadKey | Status::NoSuchSegment => {
                named_may(|seat| seat.revoked || seat.has(|call| call.wrong))
            }
            Status::BadAddress | Status::Malformed => named_may(|seat| seat.has(|call| call.wrong)),
            Status::Aborted => named_may(|seat| seat.revoked),
            Status::Mismatch => plan.mistaken || plan.seats.iter().any(|seat| seat.revoked),
            Status::Exhausted if named_may(|seat| seat.has(|call| call.crowded)) => true,
            Status::Exhausted => self.limits.group_bytes < Limits::default().group_bytes,
            Status::NoSuchGroup => call.is_none() && named_may(|seat| seat.gone),
            _ => false,
        }
    }

    /// Returns true if a member may fail to join like that.
    pub(super) fn may_not_join(
        &self,
        (number, rank): Member,
        (status, who): (Status, Name),
        now: u64,
    ) -> bool {
        let plan = &self.plans[number];
        let own = &plan.seats[rank as usize];
        let late = |seat: &Seat| seat.is_late(now);
        let mut named = plan.seats.iter().filter(|seat| seat.name == who);
        let out = |seat: &Seat| seat.gone || late(seat) || has_failed(seat);
        match status {
            _ if !plan.disturbed.is_empty() => true,
            Status::TimedOut => {
                let home = who == plan.seats[0].name && late(own);
                home || self.may_fail((number, rank), None, (status, who), now)
            }
            Status::PeerGone if who.1 == 0 => {
                let mut there = plan.seats.iter().filter(|seat| seat.name.0 == who.0);
                there.any(out)
            }
            Status::PeerGone => named.any(out) || self.is_rival_home(number, who),
            Status::GroupRefused => {
                let wrong = |seat: &Seat| seat.join.is_some_and(|join| join.wrong);
                plan.seats.iter().any(wrong) || self.has_rival(number)
            }
            Status::Exhausted if own.join.is_some_and(|join| join.full) => true,
            // The group has formed and ended before this member was told.
            _ => self.may_fail((number, rank), None, (status, who), now),
        }
    }

    fn rivals(&self, number: usize) -> impl Iterator<Item = &Plan> {
        let plan = &self.plans[number];
        let others = self.plans.iter().enumerate();
        others
            .filter(move |(other, it)| {
                let same = it.name == plan.name && it.seats[0].name == plan.seats[0].name;
                same && *other != number
            })
            .map(|(_, plan)| plan)
    }

    /// Returns true if another group of that home has the same name.
    fn has_rival(&self, number: usize) -> bool {
        self.rivals(number).next().is_some()
    }

    /// Returns true if the home of another group of that name was that process, and is gone.
    fn is_rival_home(&self, number: usize, who: Name) -> bool {
        let mut rivals = self.rivals(number);
        rivals.any(|plan| plan.seats[0].name == who && plan.seats[0].gone)
    }
}

fn has_failed(seat: &Seat) -> bool {
    let end = seat.join.and_then(|join| join.end);
    end.is_some_and(|end| end != qnic_abi::Status::Ok)
}
