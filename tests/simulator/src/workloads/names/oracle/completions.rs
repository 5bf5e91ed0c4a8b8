//! What the NIC's store of a completion says, checked at that instant.

use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::Status;

use super::claims::Claim;
use super::{Command, NameOracle, Place, What};

/// No process.
const NO_PROCESS: Place = (0, 0);

/// How long a NIC takes at most until it has done what it can do, in nanoseconds.
const LATE: u64 = 20_000_000;

/// A command that has ended.
struct End {
    slot: usize,
    command: Command,
    /// The process, and what the completion says.
    own: Place,
    status: Status,
    place: Place,
    now: u64,
}

impl NameOracle {
    /// A command of a process has ended.
    pub(super) fn ended(&mut self, slot: usize, entry: &CompletionEntry, now: u64) {
        let handle = entry.handle.get();
        let Some(command) = self.processes[slot].open.remove(&handle) else {
            panic!("process {slot}: a command ends that is not under way: {entry:?}");
        };
        assert_eq!(
            entry.kind,
            CompletionKind::Name as u8,
            "process {slot}: the kind of the completion of {command:?}"
        );
        let end = End {
            slot,
            command,
            own: self.processes[slot].watched.name(),
            status: Status::try_from(entry.status.get()).expect("a known status"),
            place: (entry.node.get(), entry.port.get()),
            now,
        };
        match command.what {
            What::Register(wait) => self.register_ended(&end, handle, wait),
            What::Withdraw => self.withdraw_ended(&end),
            What::LookUp(timeout) => self.lookup_ended(&end, timeout),
        }
    }

    fn register_ended(&mut self, end: &End, handle: u64, wait: u64) {
        let Command { name, issued, .. } = end.command;
        let what = format!("process {}: Register of name {name}", end.slot);
        let deadline = issued + wait;
        let free_from = self.free_from(name, end.own);
        let latest = deadline.min(issued.max(free_from)) + LATE;
        let now = end.now;
        assert!(
            now <= latest,
            "{what}: issued at {issued}, it ends at {now}, later than at {latest}"
        );
        let has = self.claims[name].iter().any(|claim| claim.is_in(end.slot));
        let own_node = end.own.0;
        match end.status {
            Status::Ok => {
                assert_eq!(end.place, NO_PROCESS, "{what}: it names a process");
                // A process that has a name has it although others have it too.
                let known = self.claims[name].iter().find(|claim| {
                    let other = claim.slot != end.slot && !has;
                    other && self.known_from(claim, own_node) <= issued
                });
                assert!(known.is_none(), "{what}: it is taken: {known:?}");
                let most = self.most_names(end);
                assert!(has || !most, "{what}: there are as many as there may be");
            }
            Status::NameTaken => {
                assert_ne!(end.place, end.own, "{what}: it has taken it itself");
                assert!(deadline <= end.now, "{what}: it ends too early");
                self.assert_found(end, &what);
                let since = end.now.saturating_sub(LATE).max(issued);
                assert!(
                    self.may_find(name, end.place, own_node, (since, end.now)),
                    "{what}: it is free"
                );
            }
            Status::Exhausted => {
                let many = end.command.waiting >= self.limits.lookups as usize;
                let waits = many && wait > 0 && end.place != end.own;
                assert!(
                    waits || end.place == end.own && self.may_be_full(end),
                    "{what}: there is room"
                );
            }
            status => panic!("{what}: it ends with {status}"),
        }
        let well = end.status == Status::Ok;
        self.registered += u64::from(well && !has);
        let claims = &mut self.claims[name];
        match claims.iter_mut().find(|claim| claim.handle == handle) {
            Some(claim) if well && !has => claim.since = Some(end.now),
            _ => claims.retain(|claim| claim.handle != handle),
        }
    }

    /// Returns true if a process, or all of its node, have so many names for sure that there is
    /// room for no other.
    fn most_names(&self, end: &End) -> bool {
        let all = || self.claims.iter().flatten();
        let own = all().filter(|claim| claim.is_in(end.slot)).count();
        let before = |since: u64| since <= end.command.issued;
        let on_node = |claim: &&Claim| {
            claim.place.0 == end.own.0 && claim.is_had() && claim.since.is_some_and(before)
        };
        own >= self.limits.names_of_process as usize
            || all().filter(on_node).count() >= self.limits.names as usize
    }

    /// Returns true if they may have had so many when the command was executed.
    fn may_be_full(&self, end: &End) -> bool {
        let all = || self.claims.iter().flatten();
        let own = all().filter(|claim| claim.is_in(end.slot)).count();
        let on_node = all().filter(|claim| {
            let then = claim.until.is_none_or(|until| end.command.issued <= until);
            claim.place.0 == end.own.0 && then
        });
        // One is that which was refused.
        own >= self.limits.names_of_process as usize || on_node.count() > self.limits.names as usize
    }

    fn withdraw_ended(&mut self, end: &End) {
        let Command { name, issued, .. } = end.command;
        let what = format!("process {}: Withdraw of name {name}", end.slot);
        assert!(end.now <= issued + LATE, "{what}: it ends too late");
        assert_eq!(end.place, NO_PROCESS, "{what}: it names a process");
        let mut claims = self.claims[name].iter_mut();
        let expected = match claims.find(|claim| claim.is_in(end.slot)) {
            Some(claim) => {
                claim.until = Some(end.now);
                Status::Ok
            }
            None => Status::NameNotFound,
        };
        assert_eq!(end.status, expected, "{what}");
    }

    /// The process that was found may have the name, and no other had to be found.
    fn assert_found(&self, end: &End, what: &str) {
        let Command { name, issued, .. } = end.command;
        let (node, place) = (end.own.0, end.place);
        assert!(
            self.may_find(name, place, node, (issued, end.now)),
            "{what}: {place:?} does not have it: {:?}",
            self.claims[name]
        );
        let rival = self.rival(name, place, node, issued);
        assert!(
            rival.is_none(),
            "{what}: {place:?} is found, and not {rival:?}"
        );
    }

    fn lookup_ended(&mut self, end: &End, timeout: u64) {
        let Command { name, issued, .. } = end.command;
        let what = format!("process {}: LookUp of name {name} at {issued}", end.slot);
        let found_from = self.found_from(name, end.own.0);
        let deadline = issued + timeout;
        let latest = deadline.min(issued.max(found_from)) + LATE;
        assert!(end.now <= latest, "{what}: it ends too late");
        match end.status {
            Status::Ok => {
                self.assert_found(end, &what);
                self.found += 1;
            }
            Status::NameNotFound => {
                assert_eq!(end.place, NO_PROCESS, "{what}: it names a process");
                assert!(deadline <= end.now, "{what}: it ends too early");
                assert!(
                    deadline < found_from,
                    "{what}: it does not find what it must: {:?}",
                    self.claims[name]
                );
            }
            Status::Exhausted => {
                assert_eq!(end.place, NO_PROCESS, "{what}: it names a process");
                let many = end.command.waiting >= self.limits.lookups as usize;
                assert!(many && timeout > 0, "{what}: there is room");
                assert!(issued < found_from, "{what}: it need not wait");
            }
            status => panic!("{what}: it ends with {status}"),
        }
    }
}
