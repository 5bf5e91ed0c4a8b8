//! A member: it contends, and checks what it can see.

use anyhow::{ensure, Context, Result};
use qnic::sync::{Condition, Lock, Monitor, Participant, Semaphore};
use qnic::{Endpoint, Nic, NodeId, RemoteSegment, RemoteU64};

use super::layout::{
    item, name, named, Layout, ARRIVED, BUFFER, DONE, HOME, HOME_PORT, INSIDE, IN_LINE, LOCK,
    MONITOR, NOT_EMPTY, NOT_FULL, PLACES, READ, SEMAPHORE, START, TURNS,
};
use super::Options;
use crate::memory::Exported;
use crate::options::START_LIMIT;

/// One process that contends.
pub(super) struct Member {
    pub(super) endpoint: Endpoint,
    pub(super) home: RemoteSegment,
    pub(super) participant: Participant,
    pub(super) layout: Layout,
    /// Its number, by the order in which the members have come.
    pub(super) number: u64,
    read: Exported,
    rounds: u64,
    units: u64,
}

/// The words of the buffer in the monitor.
struct Buffer {
    put: u64,
    taken: u64,
    places: [u64; PLACES],
}

impl Member {
    /// Comes, and says which number it is.
    pub(super) fn new(nic: &Nic, home: NodeId, options: &Options) -> Result<Self> {
        let endpoint = nic.register(qnic::Port(0)).context("register a member")?;
        let home = endpoint
            .import(home, HOME_PORT, HOME, START_LIMIT)
            .context("import the home")?;
        let layout = Layout::new(options);
        let read = Exported::new(&endpoint, READ, layout.length())?;
        let participant = Participant::new(&endpoint)?;
        // All of it once: then the home's NIC knows its pages, and needs no driver.
        endpoint.read_fenced(&home, 0, read.part(0, layout.length()))?;
        let number = endpoint.atomic_u64(&home, ARRIVED)?.increment()?;
        ensure!(number < layout.total, "there are members enough");
        let member = Member {
            read,
            participant,
            layout,
            number,
            rounds: options.rounds,
            units: options.units.into(),
            endpoint,
            home,
        };
        member.store(layout.name(number), &[member.name()])?;
        member.endpoint.flush_writes()?;
        println!("{}", serde_json::json!({ "ready": number }));
        Ok(member)
    }

    /// Does all its rounds and stands in both lines; returns how often the lock was
    /// taken by all, as far as it knows.
    pub(super) fn run(&self) -> Result<u64> {
        // The last that comes leads the others.
        let leads = self.number == self.layout.total - 1;
        let others = if leads { self.others()? } else { Vec::new() };
        for other in &others {
            self.endpoint.write_fenced_notify(other, 0, b"", START)?;
        }
        if !leads {
            self.endpoint.notification(START).take(None)?;
        }
        let (participant, home) = (&self.participant, &self.home);
        let lock = Lock::new(participant, home, LOCK)?;
        let semaphore = Semaphore::new(participant, home, SEMAPHORE)?;
        let monitor = Monitor::new(participant, home, MONITOR)?;
        let not_full = Condition::new(participant, home, NOT_FULL)?;
        let not_empty = Condition::new(participant, home, NOT_EMPTY)?;
        let inside = self.endpoint.atomic_u64(home, INSIDE)?;
        let (mut turns, mut in_line) = (0, 0);
        for round in 0..self.rounds {
            let waited;
            (turns, waited) = self.take_turn(&lock)?;
            in_line += u64::from(waited);
            self.take_unit(&semaphore, &inside)?;
            self.put(&monitor, [&not_full, &not_empty], round)?;
            self.take(&monitor, [&not_full, &not_empty])?;
        }
        self.endpoint
            .atomic_u64(home, IN_LINE)?
            .fetch_add(in_line)?;
        self.stand_in_lines(&others)?;
        self.endpoint.write_fenced_notify(home, 0, b"", DONE)?;
        Ok(turns)
    }

    /// Segments of all other members, in the order in which they have come.
    fn others(&self) -> Result<Vec<RemoteSegment>> {
        let mut others = Vec::new();
        for number in 0..self.number {
            let (node, port) = loop {
                // It has a number already: its name follows.
                let [name] = self.load(self.layout.name(number))?;
                if name != 0 {
                    break named(name);
                }
            };
            let other = self.endpoint.import(node, port, READ, START_LIMIT);
            others.push(other.with_context(|| format!("import from member {number}"))?);
        }
        Ok(others)
    }

    /// Takes the lock once; returns how often all have, and whether it had to wait.
    fn take_turn(&self, lock: &Lock) -> Result<(u64, bool)> {
        let guard = lock.acquire()?;
        let [turns, last, holder] = self.load(TURNS)?;
        ensure!(holder == 0, "{:?} has the lock as well", named(holder));
        let predecessor = guard.predecessor();
        if let Some((node, port)) = predecessor {
            ensure!(
                last == name(node, port),
                "{:?} had the lock, but {:?} stood in front",
                named(last),
                (node, port)
            );
        }
        let mine = [turns + 1, self.name(), self.name()];
        self.store(TURNS, &mine)?;
        // A read may overtake writes.
        self.endpoint.flush_writes()?;
        let now = self.load(TURNS)?;
        ensure!(now == mine, "{:?} took the lock as well", named(now[1]));
        self.store(TURNS + 16, &[0])?;
        guard.release()?;
        Ok((turns + 1, predecessor.is_some()))
    }

    /// Takes one unit of the semaphore and gives it back.
    fn take_unit(&self, semaphore: &Semaphore, inside: &RemoteU64) -> Result<()> {
        semaphore.wait()?;
        let others = inside.increment()?;
        ensure!(others < self.units, "{others} are inside already");
        inside.decrement()?;
        semaphore.signal()?;
        Ok(())
    }

    /// Puts an item into the buffer, as soon as there is room.
    fn put(&self, monitor: &Monitor, conditions: [&Condition; 2], round: u64) -> Result<()> {
        let [not_full, not_empty] = conditions;
        let mut guard = monitor.enter()?;
        let buffer = loop {
            let buffer = self.buffer()?;
            if buffer.put - buffer.taken < PLACES as u64 {
                break buffer;
            }
            guard = guard.wait(not_full)?;
        };
        let place = buffer.put % PLACES as u64;
        let there = buffer.places[place as usize];
        ensure!(there == 0, "item {there:#x} stands in a free place");
        let item = item(self.number, round);
        self.store(BUFFER + 16 + place * 8, &[item])?;
        self.store(BUFFER, &[buffer.put + 1])?;
        guard.signal(not_empty)?;
        guard.leave()?;
        Ok(())
    }

    /// Takes an item from the buffer, as soon as there is one, and notes which.
    fn take(&self, monitor: &Monitor, conditions: [&Condition; 2]) -> Result<()> {
        let [not_full, not_empty] = conditions;
        let mut guard = monitor.enter()?;
        let buffer = loop {
            let buffer = self.buffer()?;
            if buffer.put > buffer.taken {
                break buffer;
            }
            guard = guard.wait(not_empty)?;
        };
        let place = buffer.taken % PLACES as u64;
        let item = buffer.places[place as usize];
        ensure!(item != 0, "no item stands in a filled place");
        self.store(BUFFER + 16 + place * 8, &[0])?;
        self.store(self.layout.taken(buffer.taken), &[item])?;
        self.store(BUFFER + 8, &[buffer.taken + 1])?;
        guard.signal(not_full)?;
        guard.leave()?;
        Ok(())
    }

    fn buffer(&self) -> Result<Buffer> {
        let [put, taken, places @ ..] = self.load::<{ 2 + PLACES }>(BUFFER)?;
        ensure!(
            taken <= put && put - taken <= PLACES as u64,
            "{put} items were put and {taken} taken"
        );
        Ok(Buffer { put, taken, places })
    }

    fn name(&self) -> u64 {
        name(self.endpoint.node(), self.endpoint.port())
    }

    /// Reads words of the home.
    pub(super) fn load<const WORDS: usize>(&self, offset: u64) -> Result<[u64; WORDS]> {
        let part = self.read.part(0, WORDS * 8);
        self.endpoint.read_fenced(&self.home, offset, part)?;
        let mut words = [0; WORDS];
        for (place, word) in words.iter_mut().enumerate() {
            *word = self.read.buffer.load_u64(place * 8)?;
        }
        Ok(words)
    }

    /// Writes words of the home, and does not wait.
    pub(super) fn store(&self, offset: u64, words: &[u64]) -> Result<()> {
        let bytes: Vec<_> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.endpoint.write(&self.home, offset, &bytes[..])?;
        Ok(())
    }
}
