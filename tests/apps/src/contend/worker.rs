//! A sync worker: it contends, and checks what it can see.

use anyhow::{ensure, Context, Result};
use qnic::sync::{Condition, Lock, Monitor, MonitorGuard, Participant, Semaphore};
use qnic::{Endpoint, Nic, RemoteSegment, RemoteU64};

use super::layout::{
    item, name, named, Layout, ARRIVED, BUFFER, DONE, INSIDE, LOCK, MONITOR, NOT_EMPTY, NOT_FULL,
    OWNER, OWNER_PORT, READ, SEMAPHORE, SLOTS, START, TURNS, WAITED,
};
use super::Options;
use qnic_apps::demo::node::{import, say, Exported};
use qnic_apps::demo::options::START_LIMIT;

/// One process that contends.
pub(super) struct Worker {
    pub(super) endpoint: Endpoint,
    pub(super) owner: RemoteSegment,
    pub(super) participant: Participant,
    pub(super) layout: Layout,
    /// Its number, by the order in which the workers have come.
    pub(super) number: u64,
    read: Exported,
    rounds: u64,
    units: u64,
}

/// The words of the buffer in the monitor.
struct Buffer {
    put: u64,
    taken: u64,
    slots: [u64; SLOTS],
}

impl Worker {
    /// Comes, and says which number it is.
    pub(super) fn new(nic: &Nic, options: &Options) -> Result<Self> {
        let endpoint = nic.register(qnic::Port(0)).context("register a worker")?;
        let owner = import(&endpoint, options.owner, OWNER_PORT, OWNER)?;
        let layout = Layout::new(options);
        let read = Exported::new(&endpoint, READ, layout.length())?;
        let participant = Participant::new(&endpoint)?;
        // All of it once: then the owner's NIC knows its pages, and needs no driver.
        endpoint
            .read(&owner, 0, read.part(0, layout.length()))
            .fenced()?;
        let number = endpoint
            .atomic::<u64>(&owner, ARRIVED)?
            .increment()
            .wait()?;
        ensure!(number < layout.total, "there are workers enough");
        let worker = Worker {
            read,
            participant,
            layout,
            number,
            rounds: options.rounds,
            units: options.units.into(),
            endpoint,
            owner,
        };
        worker.store(layout.name(number), &[worker.name()])?;
        worker.endpoint.flush().writes().wait()?;
        say("ready", number)?;
        Ok(worker)
    }

    /// The last that comes leads the others.
    pub(super) fn leads(&self) -> bool {
        self.number == self.layout.total - 1
    }

    /// Does all its rounds and passes both FIFO queues; returns how often the lock was
    /// taken by all, as far as it knows.
    pub(super) fn run(&self) -> Result<u64> {
        let mut others = Vec::new();
        if self.leads() {
            others = self.others()?;
            for other in &others {
                self.endpoint.write(other, 0, b"").notify(START).fenced()?;
            }
        } else {
            self.endpoint.notification(START).take(None)?;
        }
        let (participant, owner) = (&self.participant, &self.owner);
        let lock = Lock::new(participant, owner, LOCK)?;
        let semaphore = Semaphore::new(participant, owner, SEMAPHORE)?;
        let monitor = Monitor::new(participant, owner, MONITOR)?;
        let not_full = Condition::new(participant, owner, NOT_FULL)?;
        let not_empty = Condition::new(participant, owner, NOT_EMPTY)?;
        let inside = self.endpoint.atomic::<u64>(owner, INSIDE)?;
        let (mut turns, mut waits) = (0, 0);
        for round in 0..self.rounds {
            let waited;
            (turns, waited) = self.take_turn(&lock)?;
            waits += u64::from(waited);
            self.take_unit(&semaphore, &inside)?;
            self.put(&monitor, [&not_full, &not_empty], round)?;
            self.take(&monitor, [&not_full, &not_empty])?;
        }
        self.endpoint
            .atomic::<u64>(owner, WAITED)?
            .fetch_add(waits)
            .wait()?;
        self.pass_fifos(&others)?;
        self.endpoint.write(owner, 0, b"").notify(DONE).fenced()?;
        Ok(turns)
    }

    /// Segments of all other workers, in the order in which they have come.
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
            others.push(other.with_context(|| format!("import from worker {number}"))?);
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
        self.endpoint.flush().writes().wait()?;
        let now = self.load(TURNS)?;
        ensure!(now == mine, "{:?} took the lock as well", named(now[1]));
        self.store(TURNS + 16, &[0])?;
        guard.release()?;
        Ok((turns + 1, predecessor.is_some()))
    }

    /// Takes one unit of the semaphore and gives it back.
    fn take_unit(&self, semaphore: &Semaphore, inside: &RemoteU64) -> Result<()> {
        semaphore.wait()?;
        let others = inside.increment().wait()?;
        ensure!(others < self.units, "{others} are inside already");
        inside.decrement().wait()?;
        semaphore.signal()?;
        Ok(())
    }

    /// Puts an item into the buffer, as soon as there is room.
    fn put(&self, monitor: &Monitor, conditions: [&Condition; 2], round: u64) -> Result<()> {
        let [not_full, not_empty] = conditions;
        let has_room = |buffer: &Buffer| buffer.put - buffer.taken < SLOTS as u64;
        let (guard, buffer) = self.enter_when(monitor, not_full, has_room)?;
        let slot = buffer.put % SLOTS as u64;
        let there = buffer.slots[slot as usize];
        ensure!(there == 0, "item {there:#x} is in a free slot");
        self.store(BUFFER + 16 + slot * 8, &[item(self.number, round)])?;
        self.store(BUFFER, &[buffer.put + 1])?;
        guard.signal(not_empty)?;
        Ok(guard.leave()?)
    }

    /// Takes an item from the buffer, as soon as there is one, and logs which.
    fn take(&self, monitor: &Monitor, conditions: [&Condition; 2]) -> Result<()> {
        let [not_full, not_empty] = conditions;
        let has_item = |buffer: &Buffer| buffer.put > buffer.taken;
        let (guard, buffer) = self.enter_when(monitor, not_empty, has_item)?;
        let slot = buffer.taken % SLOTS as u64;
        let item = buffer.slots[slot as usize];
        ensure!(item != 0, "no item is in a filled slot");
        self.store(BUFFER + 16 + slot * 8, &[0])?;
        self.store(self.layout.taken(buffer.taken), &[item])?;
        self.store(BUFFER + 8, &[buffer.taken + 1])?;
        guard.signal(not_full)?;
        Ok(guard.leave()?)
    }

    /// Enters the monitor, and waits in it until the buffer is as wanted.
    fn enter_when<'a>(
        &self,
        monitor: &'a Monitor,
        condition: &Condition,
        wanted: impl Fn(&Buffer) -> bool,
    ) -> Result<(MonitorGuard<'a>, Buffer)> {
        let mut guard = monitor.enter()?;
        loop {
            let buffer = self.buffer()?;
            if wanted(&buffer) {
                return Ok((guard, buffer));
            }
            guard = guard.wait(condition)?;
        }
    }

    fn buffer(&self) -> Result<Buffer> {
        let [put, taken, slots @ ..] = self.load::<{ 2 + SLOTS }>(BUFFER)?;
        ensure!(
            taken <= put && put - taken <= SLOTS as u64,
            "{put} items were put and {taken} taken"
        );
        Ok(Buffer { put, taken, slots })
    }

    fn name(&self) -> u64 {
        name(self.endpoint.node(), self.endpoint.port())
    }

    /// Reads words of the owner.
    pub(super) fn load<const WORDS: usize>(&self, offset: u64) -> Result<[u64; WORDS]> {
        let part = self.read.part(0, WORDS * 8);
        self.endpoint.read(&self.owner, offset, part).fenced()?;
        let mut words = [0; WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.read.buffer.load_u64(index * 8)?;
        }
        Ok(words)
    }

    /// Writes words of the owner, and does not wait.
    pub(super) fn store(&self, offset: u64, words: &[u64]) -> Result<()> {
        let bytes: Vec<_> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.endpoint
            .write(&self.owner, offset, &bytes[..])
            .post()?;
        Ok(())
    }
}
