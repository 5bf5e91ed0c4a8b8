//! What locks, semaphores and wait queues promise (N21, N22, N24), checked while
//! members use them.
//!
//! The referee has two sources. It sees each change that a NIC makes to an object at
//! its home: who joins, what is woken, which units come and go. And members tell what
//! the library let them do. The two must fit:
//!
//! | promise | checked when |
//! |---|---|
//! | one holder at most, first come, first served: who gets a lock is the first in the order in which the home executed the joining operations, behind those who have released it | a member holds it |
//! | what a holder wrote to the protected word, the next one reads | a member reads it |
//! | a lock whose holder lives is not recovered, if its name had reached the home when the recovery began | a recovery makes it free |
//! | no more owners than units; who waited has its unit by the turn of the home | a member takes a unit |
//! | no unit is lost: all are at home again | when all is drained |
//! | nobody is woken without a signal, or before one who came earlier | a member is woken |
//! | each signal for which somebody waits wakes one | when all is drained |
//! | the home wakes whom it can: no unit goes to the value while somebody waits, nobody waits while there is a value | the home changes |
//! | no wake-up is lost: who waits is woken or learns that the object is broken | its time limit, once faults stop |
//! | only deaths and cut ways break an object | a member is told so |
//!
//! # Lines
//! The order in which a home executes joining operations is a *line*. A recovery ends
//! it and begins another. Who dies or gives up stays in its line for ever, and nobody
//! behind it may be served. Promises hold within a line: the library tells that a
//! recovery does not see a holder whose name is on its way, or that was cut off.
//!
//! # Hurt
//! An object may break, and its units or its protected word may be lost, if a process
//! that used its home has died, or if a NIC was reset or a way cut at any time before.
//! All other promises hold in any case.

mod line;
mod object;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use line::{Entry, Line, Structure};
use object::Object;

use crate::memory::Words;
use crate::platform::Machine;
use crate::settings::Settings;
use crate::user::port;

/// Objects of a home.
pub(crate) const OBJECTS: usize = 3;

/// Place of the life in an object, in words.
const LIFE: usize = 4;

/// The bits of a life that are all set while somebody recovers an object, and all zero
/// while it is in order.
const CLAIMED: u64 = 3;

/// What an object is; its number at its home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Lock = 0,
    Queue = 1,
    Semaphore = 2,
}

/// The objects of a member that lives.
struct Home {
    life: u32,
    machine: Arc<Machine>,
    space: u64,
    address: u64,
    objects: [Object; OBJECTS],
    /// Units of the semaphore, who has one, and how many have died with their owners.
    units: u64,
    owners: BTreeSet<usize>,
    lost: u64,
    /// Signals to the wait queue for which somebody waited.
    signals: u64,
    /// What the protected word is, if that is known.
    protected: Option<u64>,
    hurt: bool,
    /// Its member is being killed, and what it has exported goes.
    dying: bool,
}

/// What a member does.
#[derive(Debug, Clone)]
struct Turn {
    since: u64,
    home: usize,
    life: u32,
    kind: Kind,
    /// Its place in a line, once the home has executed its joining operation.
    entry: Option<Entry>,
}

/// A process at a place.
#[derive(Default)]
struct Member {
    /// Its participant's life, as names of slots carry it.
    life: Option<u16>,
    turn: Option<Turn>,
    /// Homes that it knows, and which life of them.
    met: BTreeMap<usize, u32>,
}

/// Checks all of it.
pub(crate) struct Referee {
    first: usize,
    members: Vec<Member>,
    homes: Vec<Option<Home>>,
    lives: u32,
    disturbed: bool,
    turns: u64,
}

impl Referee {
    pub(crate) fn new(settings: &Settings) -> Self {
        let count = settings.places.len() - settings.users;
        Referee {
            first: settings.users,
            members: (0..count).map(|_| Member::default()).collect(),
            homes: (0..count).map(|_| None).collect(),
            lives: 0,
            disturbed: false,
            turns: 0,
        }
    }

    /// Turns that members have had.
    pub(crate) fn turns(&self) -> u64 {
        self.turns
    }

    fn home(&mut self, place: usize) -> Option<&mut Home> {
        self.homes[place - self.first].as_mut()
    }

    fn member(&mut self, place: usize) -> &mut Member {
        &mut self.members[place - self.first]
    }

    /// A NIC was reset, a node lost its power, or a way was cut.
    pub(crate) fn disturb(&mut self) {
        self.disturbed = true;
    }

    /// A member has made its home, with a semaphore of so many units.
    pub(crate) fn begin(
        &mut self,
        place: usize,
        machine: &Arc<Machine>,
        (space, address): (u64, u64),
        units: u32,
    ) {
        self.lives += 1;
        let life = self.lives;
        self.homes[place - self.first] = Some(Home {
            life,
            machine: machine.clone(),
            space,
            address,
            objects: std::array::from_fn(|_| Object::new()),
            units: units.into(),
            owners: BTreeSet::new(),
            lost: 0,
            signals: 0,
            protected: Some(0),
            hurt: false,
            dying: false,
        });
    }

    /// A member has its name.
    pub(crate) fn named(&mut self, place: usize, life: u16) {
        self.member(place).life = Some(life);
    }

    /// A member is killed: others may notice before it has ended.
    pub(crate) fn dies(&mut self, place: usize) {
        if let Some(home) = self.home(place) {
            home.dying = true;
        }
        for (home, life) in self.member(place).met.clone() {
            if let Some(home) = self.home(home).filter(|home| home.life == life) {
                home.hurt = true;
                home.protected = None;
            }
        }
    }

    /// A member ends: in peace, or in whatever it was doing.
    pub(crate) fn end(&mut self, place: usize, in_peace: bool) {
        let member = std::mem::take(self.member(place));
        self.homes[place - self.first] = None;
        if in_peace {
            return;
        }
        for (home, life) in member.met {
            if let Some(home) = self.home(home).filter(|home| home.life == life) {
                home.hurt = true;
                home.protected = None;
                home.lost += u64::from(home.owners.remove(&place));
            }
        }
    }

    /// A member has imported a home.
    pub(crate) fn met(&mut self, _now: u64, place: usize, home: usize, address: u64) {
        let there = self.home(home).filter(|home| home.address == address);
        let life = there.map(|home| home.life);
        let met = &mut self.member(place).met;
        match life {
            Some(life) => met.insert(home, life),
            // That one has died meanwhile.
            None => met.remove(&home),
        };
    }

    /// Says whether operations on a home may fail: the one that the member knows is
    /// gone, or the way there was disturbed.
    pub(crate) fn may_fail(&self, place: usize, home: usize) -> bool {
        let known = self.members[place - self.first].met.get(&home);
        let there = self.homes[home - self.first].as_ref();
        let there = there.filter(|home| !home.dying);
        self.disturbed || known.is_none() || there.map(|home| &home.life) != known
    }

    /// Says whether objects of a home may break.
    pub(crate) fn may_break(&self, home: usize) -> bool {
        let home = self.homes[home - self.first].as_ref();
        self.disturbed || home.is_none_or(|home| home.hurt || home.dying)
    }

    /// A member is about to join.
    pub(crate) fn enters(&mut self, now: u64, place: usize, home: usize, kind: Kind) {
        let life = self.member(place).met.get(&home).copied();
        self.member(place).turn = Some(Turn {
            since: now,
            home,
            life: life.unwrap_or_default(),
            kind,
            entry: None,
        });
    }

    /// Its turn is over.
    pub(crate) fn leaves(&mut self, _now: u64, place: usize) {
        self.turns += 1;
        self.member(place).turn = None;
    }

    /// Its turn has ended with an error: it stays in its line.
    pub(crate) fn failed(&mut self, _now: u64, place: usize) {
        self.member(place).turn = None;
    }

    /// The turn of a member, and the home if it is still that one.
    fn turn(&mut self, place: usize) -> Option<(Turn, &mut Home)> {
        let turn = self.member(place).turn.clone()?;
        let home = self.home(turn.home)?;
        (home.life == turn.life).then_some((turn, home))
    }

    /// A member has the lock.
    pub(crate) fn holds(&mut self, _now: u64, place: usize) {
        let Some((turn, home)) = self.turn(place) else {
            return;
        };
        let Some(entry) = turn.entry else {
            panic!("member {place} holds a lock that it never joined");
        };
        let line = home.objects[Kind::Lock as usize].line_of(entry);
        let first = line.and_then(|line| line.first());
        assert_eq!(
            first,
            Some(entry),
            "member {place} holds the lock of member {} out of turn",
            turn.home
        );
    }

    /// A holder reads the protected word.
    pub(crate) fn reads(&mut self, _now: u64, place: usize, value: u64) {
        let disturbed = self.disturbed;
        let Some((turn, home)) = self.turn(place) else {
            return;
        };
        if let Some(expected) = home.protected.filter(|_| !disturbed) {
            assert_eq!(
                value, expected,
                "member {place} does not see what was written under the lock of member {}",
                turn.home
            );
        }
    }

    /// A holder has written the protected word, and is about to release the lock.
    pub(crate) fn releases(&mut self, _now: u64, place: usize, value: Option<u64>) {
        if let Some((turn, home)) = self.turn(place) {
            home.protected = home.protected.and(value);
            let object = &mut home.objects[Kind::Lock as usize];
            if let Some(line) = turn.entry.and_then(|entry| object.line_of_mut(entry)) {
                line.serve();
            }
        }
    }

    /// A member has taken a unit.
    pub(crate) fn takes(&mut self, _now: u64, place: usize) {
        let Some((turn, home)) = self.turn(place) else {
            return;
        };
        home.owners.insert(place);
        let (owners, units) = (home.owned(), home.units);
        assert!(
            owners <= units,
            "{owners} units of the semaphore of member {} are out, which has {units}",
            turn.home
        );
        if let Some(entry) = turn.entry {
            home.objects[Kind::Semaphore as usize].check_served(place, entry);
        }
    }

    /// An owner is about to give its unit back.
    pub(crate) fn gives(&mut self, _now: u64, place: usize) {
        if let Some((_, home)) = self.turn(place) {
            home.owners.remove(&place);
        }
    }

    /// Units that nobody who lives owns, as far as is known.
    pub(crate) fn units_left(&self, home: usize) -> u32 {
        let home = self.homes[home - self.first].as_ref();
        home.map_or(0, |home| {
            home.units.saturating_sub(home.owners.len() as u64) as u32
        })
    }

    /// A member has signalled a wait queue, and was told that somebody waited.
    pub(crate) fn signalled(&mut self, _now: u64, place: usize, home: usize) {
        let life = self.member(place).met.get(&home).copied();
        if let Some(home) = self.home(home).filter(|home| Some(home.life) == life) {
            home.signals += 1;
        }
    }

    /// A member in a wait queue is woken.
    pub(crate) fn woken(&mut self, _now: u64, place: usize) {
        if let Some((turn, home)) = self.turn(place) {
            let Some(entry) = turn.entry else {
                panic!("member {place} is woken in a queue that it never joined");
            };
            home.objects[Kind::Queue as usize].check_served(place, entry);
        }
    }

    /// A NIC has changed an object at its home.
    pub(crate) fn changed(
        &mut self,
        now: u64,
        place: usize,
        number: usize,
        before: &Words,
        after: &Words,
    ) {
        let kinds = [Kind::Lock, Kind::Queue, Kind::Semaphore];
        let Some(kind) = kinds.get(number).copied() else {
            return;
        };
        if before[LIFE] != after[LIFE] {
            return self.life_changed(now, place, kind, before[LIFE], after[LIFE]);
        }
        if kind == Kind::Lock && before[0] != 0 && after[0] == 0 {
            self.check_recovery(place, after[1]);
        }
        let in_flight = self.in_flight(place);
        let Some(home) = self.home(place) else {
            return;
        };
        let object = &mut home.objects[number];
        let joined = match kind {
            Kind::Lock => object.lock_changed(now, before, after),
            Kind::Queue | Kind::Semaphore => {
                let (before, after) = (Structure::of(before), Structure::of(after));
                if object.reviving && after.is_empty() {
                    object.empty();
                    if kind == Kind::Semaphore {
                        // Operations under way may have taken units, or bring some.
                        home.units = after.value + home.owners.len() as u64 + in_flight;
                        home.lost = 0;
                    }
                    return;
                }
                object.queue_changed(kind, &before, &after)
            }
        };
        let Some(entry) = joined else {
            return;
        };
        let life = home.life;
        let Some(joiner) = self.member_of(entry) else {
            return;
        };
        let turn = joiner.turn.as_mut();
        let turn = turn.filter(|turn| (turn.home, turn.life, turn.kind) == (place, life, kind));
        if let Some(turn) = turn {
            turn.entry = Some(entry);
        }
    }

    /// The member that has a slot of that name and lives.
    fn member_of(&mut self, entry: Entry) -> Option<&mut Member> {
        let index = entry.port().checked_sub(port(self.first))?;
        let member = self.members.get_mut(usize::from(index));
        member.filter(|member| member.life == Some(entry.life()))
    }

    /// Turns under way at the semaphore of a home.
    fn in_flight(&self, home: usize) -> u64 {
        let turns = self.members.iter().flat_map(|member| &member.turn);
        turns
            .filter(|turn| turn.home == home && turn.kind == Kind::Semaphore)
            .count() as u64
    }

    fn life_changed(&mut self, now: u64, place: usize, kind: Kind, before: u64, after: u64) {
        let disturbed = self.disturbed;
        let Some(home) = self.home(place) else {
            return;
        };
        let object = &mut home.objects[kind as usize];
        if after & CLAIMED == CLAIMED {
            object.reviving = true;
            object.claimed_at = now;
        }
        let breaks = before & CLAIMED == 0 && after & CLAIMED != 0;
        assert!(
            !breaks || disturbed || home.hurt,
            "the {kind:?} of member {place} breaks, but nobody has died"
        );
    }

    /// Somebody makes a broken lock free; its holder had that name.
    fn check_recovery(&mut self, place: usize, holder: u64) {
        let disturbed = self.disturbed;
        let Some(home) = self.home(place) else {
            return;
        };
        let object = &home.objects[Kind::Lock as usize];
        let first = object.lines.last().and_then(Line::first);
        let known = Entry::of(holder).filter(|entry| first == Some(*entry));
        let known = known.filter(|_| object.named_at < object.claimed_at && !disturbed);
        let Some(entry) = known else {
            return;
        };
        let turn = self
            .member_of(entry)
            .and_then(|member| member.turn.as_ref());
        assert!(
            turn.is_none_or(|turn| turn.entry != Some(entry)),
            "the lock of member {place} is recovered from a holder that lives"
        );
    }

    /// Who has been waiting for the longest time, for people.
    pub(crate) fn oldest(&self) -> Option<String> {
        let turns = self.members.iter().enumerate();
        let turns = turns.filter_map(|(index, member)| Some((index, member.turn.as_ref()?)));
        let (index, turn) = turns.min_by_key(|(_, turn)| turn.since)?;
        let home = self.homes[turn.home - self.first].as_ref();
        let words = home.map(|home| home.peek(turn.kind));
        Some(format!(
            "member {} waits at the {:?} of member {} since {} ns; there stands {words:x?}",
            self.first + index,
            turn.kind,
            turn.home,
            turn.since
        ))
    }

    /// Members that wait for units of a semaphore which have died with their owners, or
    /// on their way: nobody promises them anything.
    pub(crate) fn starving(&self) -> Vec<usize> {
        let members = self.members.iter().enumerate();
        let starves = |turn: &Turn| {
            let home = self.homes[turn.home - self.first].as_ref();
            let home = home.filter(|home| home.life == turn.life);
            home.is_some_and(|home| home.starves(turn, self.disturbed))
        };
        members
            .filter(|(_, member)| member.turn.as_ref().is_some_and(starves))
            .map(|(index, _)| self.first + index)
            .collect()
    }

    /// All members have had their last turn: nothing of it may be left at the homes.
    ///
    /// # Panics
    /// If something is.
    pub(crate) fn audit(&self) {
        for (index, home) in self.homes.iter().enumerate() {
            if let Some(home) = home {
                home.audit(self.first + index, self.disturbed);
            }
        }
    }
}

impl Home {
    /// An object as it stands in memory.
    fn peek(&self, kind: Kind) -> Words {
        let at = self.address + kind as u64 * qnic::sync::OBJECT_BYTES;
        let bytes = self.machine.kernel.peek(self.space, at, size_of::<Words>());
        let bytes = bytes.expect("its home is there");
        let mut words = Words::default();
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        words
    }

    /// Units that are out for all that is known.
    fn owned(&self) -> u64 {
        self.owners.len() as u64 + self.lost
    }

    fn starves(&self, turn: &Turn, disturbed: bool) -> bool {
        let object = &self.objects[Kind::Semaphore as usize];
        let line = turn
            .entry
            .and_then(|entry| Some((entry, object.line_of(entry)?)));
        turn.kind == Kind::Semaphore
            && (self.hurt || disturbed)
            && self.owners.is_empty()
            && Structure::of(&self.peek(turn.kind)).value == 0
            && line.is_some_and(|(entry, line)| !line.served(entry))
    }

    fn audit(&self, place: usize, disturbed: bool) {
        let semaphore = Structure::of(&self.peek(Kind::Semaphore));
        let owned = self.owned();
        assert!(
            semaphore.value + owned <= self.units,
            "member {place}: {} units at home and {owned} owned, but there are {}",
            semaphore.value,
            self.units
        );
        if self.hurt || disturbed {
            return;
        }
        let woken = self.objects[Kind::Queue as usize].served();
        assert_eq!(
            self.signals, woken,
            "member {place}: signals to the wait queue, and how many were woken"
        );
        let queue = Structure::of(&self.peek(Kind::Queue));
        let tail = self.peek(Kind::Lock)[0];
        assert_eq!(
            (semaphore.value, semaphore.count, queue.count, tail),
            (self.units, 0, 0, 0),
            "member {place}: units of the semaphore, who waits for it, who waits in the queue, \
             tail of the lock"
        );
    }
}
