//! What the NIC's store of a completion says, checked at that instant.

use qnic_abi::collective::Called;
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::Status;

use super::{CollectiveOracle, Member, Name, Purpose};

impl CollectiveOracle {
    /// A command of a process has ended.
    pub(super) fn ended(&mut self, slot: usize, entry: &CompletionEntry, now: u64) {
        let handle = entry.handle.get();
        let status = Status::try_from(entry.status.get()).expect("a known status");
        if let Some(start) = self.processes[slot].receives.remove(&handle) {
            return self.received(slot, start, entry);
        }
        let Some(purpose) = self.processes[slot].open.remove(&handle) else {
            panic!("process {slot}: a command ends that is not under way: {entry:?}");
        };
        let kind = match purpose {
            Purpose::Join(_) | Purpose::Stranger => CompletionKind::Join,
            Purpose::Leave(_) => CompletionKind::Leave,
            Purpose::Call(..) | Purpose::Wrong(..) | Purpose::Multicast(_) => {
                CompletionKind::Collective
            }
        };
        assert_eq!(
            entry.kind, kind as u8,
            "process {slot}: the kind of the completion of {purpose:?}"
        );
        let who = (entry.node.get(), entry.port.get());
        if status == Status::Ok {
            assert_eq!(who, (0, 0), "process {slot}: {purpose:?} blames a process");
        }
        if let (Purpose::Call((plan, _), _), Status::Mismatch) = (purpose, status) {
            self.differ(plan, entry);
        }
        match purpose {
            Purpose::Join(member) => self.joined(member, entry, (status, who), now),
            Purpose::Stranger => assert_ne!(
                status,
                Status::Ok,
                "process {slot} is in a group of which it knows no key"
            ),
            Purpose::Leave(_) => assert_eq!(status, Status::Ok, "process {slot} cannot leave"),
            Purpose::Multicast(member) => self.sent(member, entry, (status, who), now),
            Purpose::Call(member, number) if status == Status::Ok => {
                self.done(slot, member, number, (entry, now));
            }
            Purpose::Call(member, number) => {
                self.failed(slot, member, number, (status, who), now);
            }
            Purpose::Wrong(_, _, true)
                if matches!(status, Status::BadKey | Status::NoSuchSegment) => {}
            Purpose::Wrong(member, expected, _) => assert!(
                status == expected || self.may_fail(member, None, (status, who), now),
                "process {slot}: a call that must end with {expected} does so with {status}"
            ),
        }
    }

    /// A call has failed as members have called different collectives: it says which.
    fn differ(&self, plan: usize, entry: &CompletionEntry) {
        let labels = entry.mark.get();
        let reason = Called::of_word(entry.tag.get(), labels as u16);
        let others = Called::of_word(entry.immediate.get(), (labels >> 16) as u16);
        let both = reason.zip(others);
        let plan = &self.plans[plan];
        let are_there = both.is_some_and(|(reason, others)| plan.has_both(reason, others));
        assert!(are_there, "no members have called {both:?}: {plan:?}");
    }

    /// A join has ended.
    fn joined(
        &mut self,
        (plan, rank): Member,
        entry: &CompletionEntry,
        (status, who): (Status, Name),
        now: u64,
    ) {
        if status == Status::Ok {
            let seats = &self.plans[plan].seats;
            assert_eq!(entry.length.get(), seats.len() as u64, "group {plan}: size");
            // Which key is right, the home says.
            let key = seats[0].join.map(|join| join.wrong);
            for (other, seat) in seats.iter().enumerate() {
                let right = key.is_some() && seat.join.map(|join| join.wrong) == key;
                assert!(
                    right,
                    "group {plan} starts at member {rank}, and {other} has not joined it"
                );
            }
        } else {
            assert!(
                self.may_not_join((plan, rank), (status, who), now),
                "group {plan}: member {rank} cannot join for no reason: {status}, {who:?}; {:?}",
                self.plans[plan]
            );
        }
        if let Some(join) = &mut self.plans[plan].seats[rank as usize].join {
            join.end = Some(status);
        }
    }

    /// A call has ended well: all have called, and all bytes are right.
    fn done(
        &mut self,
        slot: usize,
        (plan, rank): Member,
        number: usize,
        (entry, now): (&CompletionEntry, u64),
    ) {
        let call = self.plans[plan].seats[rank as usize].calls[number];
        let shape = call.shape;
        let what = format!("group {plan}, call {number} of member {rank}, {shape:?}");
        assert_eq!(entry.length.get(), shape.length, "{what}: length");
        for (other, seat) in self.plans[plan].seats.iter().enumerate() {
            let Some(theirs) = seat.calls.get(number) else {
                panic!("{what}: it is done before member {other} has called");
            };
            assert!(
                !theirs.wrong,
                "{what}: it is done, but that of member {other} was refused"
            );
            assert_eq!(
                theirs.shape, shape,
                "{what}: it is done, but member {other} has called something else"
            );
        }
        self.completed += 1;
        let ended = &mut self.plans[plan].seats[rank as usize].calls[number];
        ended.end = Some(Status::Ok);
        ended.ended_late = call.is_over(now);
        if shape != self.plans[plan].shape(number as u32) {
            // All members have made the same mistake: it is none.
            let memory = self.processes[slot].peek((call.range.0, shape.length));
            let memory = memory.expect("it is alive");
            return self.processes[slot].memory.set(call.range.0, &memory);
        }
        let bytes = match shape.wants(rank) {
            true => self.plans[plan].result(number as u32).to_vec(),
            false => self.plans[plan].given(number as u32, rank),
        };
        let memory = self.processes[slot].peek((call.range.0, shape.length));
        let memory = memory.expect("it is alive");
        if shape.wants(rank) || shape.gives(rank) {
            let wrong = memory.iter().zip(&bytes).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "{what}: wrong byte");
        }
        if shape.wants(rank) {
            self.processes[slot].memory.set(call.range.0, &bytes);
            self.bytes += shape.length;
        }
    }

    /// A call has failed: there is a reason, and its memory changes no more.
    fn failed(
        &mut self,
        slot: usize,
        member: Member,
        number: usize,
        (status, who): (Status, Name),
        now: u64,
    ) {
        let (plan, rank) = member;
        assert!(
            self.may_fail(member, Some(number), (status, who), now),
            "group {plan}: call {number} of member {rank} fails for no reason: {status}, {who:?}; \
             {:?}",
            self.plans[plan]
        );
        let call = &mut self.plans[plan].seats[rank as usize].calls[number];
        call.end = Some(status);
        let (start, length) = call.range;
        let process = &mut self.processes[slot];
        let memory = process.peek((start, length)).expect("it is alive");
        if process.memory.get(start, length).contains(&None) {
            process.memory.set(start, &memory);
        }
    }
}
