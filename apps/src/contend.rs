//! Many processes of all nodes contend for one lock, one semaphore and one bounded
//! buffer in a monitor (N21 to N24). Each checks what it sees, and the home checks
//! the sums at the end.

use std::thread::Scope;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use qnic::sync::{Condition, Lock, Monitor, Participant, Semaphore, OBJECT_BYTES};
use qnic::{Access, Endpoint, Nic, NodeId, Port, RemoteSegment, RemoteU64, SegmentName};

use crate::memory::Exported;
use crate::options::{notification, START_LIMIT};

/// Port of the home.
const HOME_PORT: Port = Port(30);
/// Segment of the home: the objects, then the words they guard.
const HOME: SegmentName = SegmentName(30);
/// The same before it is ready.
const UNREADY: SegmentName = SegmentName(31);
/// Segment of a member: where its reads go.
const READ: SegmentName = SegmentName(32);
/// A member is done.
const DONE: qnic::NotificationId = notification(1);
/// Longest time for all members to be done.
const LIMIT: Duration = Duration::from_secs(600);

const LOCK: u64 = 0;
const SEMAPHORE: u64 = OBJECT_BYTES;
const MONITOR: u64 = 2 * OBJECT_BYTES;
const NOT_FULL: u64 = 3 * OBJECT_BYTES;
const NOT_EMPTY: u64 = 4 * OBJECT_BYTES;
/// Counted under the lock, by reads and writes.
const COUNTER: u64 = 5 * OBJECT_BYTES;
/// Who is between wait and signal of the semaphore.
const INSIDE: u64 = COUNTER + 8;
/// Items put and taken so far, in the monitor.
const PUT: u64 = COUNTER + 16;
const TAKEN: u64 = COUNTER + 24;
/// Sum of all items that were put, less those that were taken.
const BALANCE: u64 = COUNTER + 32;
/// Places of the buffer.
const PLACES: u64 = COUNTER + 40;
/// How many there are.
const PLACE_COUNT: u64 = 3;

/// Options of the contention.
#[derive(Args)]
pub(crate) struct Options {
    /// All nodes that take part; the first is the home of what is contended for
    #[arg(long, value_delimiter = ',', required = true)]
    nodes: Vec<u16>,
    /// Processes on each node
    #[arg(long, default_value_t = 2)]
    members: u64,
    /// Rounds of each
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// Units of the semaphore
    #[arg(long, default_value_t = 3)]
    units: u32,
}

/// Runs the members of this node; at the home, until all are done.
pub(crate) fn run(options: &Options) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let node = nic.register(Port(0)).context("register")?.node();
    let home = NodeId(options.nodes[0]);
    let served = match node == home {
        true => Some(Home::new(&nic, options)?),
        false => None,
    };
    std::thread::scope(|scope| -> Result<()> {
        let start = |number| start(scope, &nic, home, number, options);
        let members: Vec<_> = (0..options.members).map(start).collect();
        for member in members {
            let result = member.join();
            result.unwrap_or_else(|_| bail!("a member panicked"))?;
        }
        Ok(())
    })?;
    match served {
        Some(served) => served.finish(options),
        None => {
            println!("{}", serde_json::json!({"contended": options.rounds}));
            Ok(())
        }
    }
}

fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    nic: &Nic,
    home: NodeId,
    number: u64,
    options: &Options,
) -> std::thread::ScopedJoinHandle<'scope, Result<()>> {
    let nic = nic.clone();
    let (rounds, units) = (options.rounds, options.units);
    scope.spawn(move || {
        let member = Member::new(&nic, home)?;
        member
            .contend(rounds, units)
            .with_context(|| format!("member {number} of {}", member.endpoint.node()))
    })
}

/// The memory that everybody uses.
struct Home {
    endpoint: Endpoint,
    buffer: qnic::Buffer,
    _segment: qnic::Segment,
}

impl Home {
    fn new(nic: &Nic, options: &Options) -> Result<Self> {
        let endpoint = nic.register(HOME_PORT).context("register the home")?;
        let buffer = endpoint.allocate(4096)?;
        let unready = endpoint.export(UNREADY, &buffer, Access::all())?;
        let own = endpoint.import(endpoint.node(), HOME_PORT, UNREADY, START_LIMIT)?;
        let participant = Participant::new(&endpoint)?;
        Semaphore::new(&participant, &own, SEMAPHORE)?.initialize(options.units)?;
        let segment = endpoint.export(HOME, &buffer, Access::all())?;
        drop(unready);
        Ok(Home {
            endpoint,
            buffer,
            _segment: segment,
        })
    }

    /// Waits for all members, and checks the sums.
    fn finish(&self, options: &Options) -> Result<()> {
        let members = options.members * options.nodes.len() as u64;
        for done in 0..members {
            self.endpoint
                .notification(DONE)
                .take(Some(LIMIT))
                .with_context(|| format!("{done} of {members} members are done"))?;
        }
        let word = |offset: u64| self.buffer.load_u64(offset as usize);
        let total = members * options.rounds;
        for (what, offset, expected) in [
            ("the lock's queue", LOCK, 0),
            ("the counter", COUNTER, total),
            ("who is inside", INSIDE, 0),
            ("items put", PUT, total),
            ("items taken", TAKEN, total),
            ("the balance of the items", BALANCE, 0),
        ] {
            let is = word(offset)?;
            ensure!(is == expected, "{what}: {is} instead of {expected}");
        }
        let units = self.buffer.load_u32(SEMAPHORE as usize + 24)?;
        ensure!(units == options.units, "{units} units are left");
        println!("{}", serde_json::json!({"contended": total}));
        Ok(())
    }
}

/// One process that contends.
struct Member {
    endpoint: Endpoint,
    home: RemoteSegment,
    read: Exported,
    participant: Participant,
}

impl Member {
    fn new(nic: &Nic, home: NodeId) -> Result<Self> {
        let endpoint = nic.register(Port(0)).context("register a member")?;
        let home = endpoint
            .import(home, HOME_PORT, HOME, START_LIMIT)
            .context("import the home")?;
        Ok(Member {
            read: Exported::new(&endpoint, READ, 4096)?,
            participant: Participant::new(&endpoint)?,
            home,
            endpoint,
        })
    }

    fn contend(&self, rounds: u64, units: u32) -> Result<()> {
        let (participant, home) = (&self.participant, &self.home);
        let lock = Lock::new(participant, home, LOCK)?;
        let semaphore = Semaphore::new(participant, home, SEMAPHORE)?;
        let monitor = Monitor::new(participant, home, MONITOR)?;
        let not_full = Condition::new(participant, home, NOT_FULL)?;
        let not_empty = Condition::new(participant, home, NOT_EMPTY)?;
        let inside = self.endpoint.atomic_u64(home, INSIDE)?;
        let balance: RemoteU64 = self.endpoint.atomic_u64(home, BALANCE)?;
        for round in 0..rounds {
            let guard = lock.acquire()?;
            self.store(COUNTER, self.load(COUNTER)? + 1)?;
            guard.release()?;

            semaphore.wait()?;
            let others = inside.increment()?;
            ensure!(others < u64::from(units), "{others} are inside already");
            inside.decrement()?;
            semaphore.signal()?;

            let item = u64::from(self.endpoint.port().0) << 32 | round;
            let mut guard = monitor.enter()?;
            while self.load(PUT)? - self.load(TAKEN)? == PLACE_COUNT {
                guard = guard.wait(&not_full)?;
            }
            let put = self.load(PUT)?;
            self.store(PLACES + put % PLACE_COUNT * 8, item)?;
            self.store(PUT, put + 1)?;
            guard.signal(&not_empty)?;
            guard.leave()?;
            balance.fetch_add(item)?;

            let mut guard = monitor.enter()?;
            while self.load(PUT)? == self.load(TAKEN)? {
                guard = guard.wait(&not_empty)?;
            }
            let taken = self.load(TAKEN)?;
            let item = self.load(PLACES + taken % PLACE_COUNT * 8)?;
            self.store(TAKEN, taken + 1)?;
            guard.signal(&not_full)?;
            guard.leave()?;
            balance.fetch_add(item.wrapping_neg())?;
        }
        self.endpoint.flush_writes()?;
        self.endpoint.write_fenced_notify(home, 0, b"", DONE)?;
        Ok(())
    }

    fn load(&self, offset: u64) -> Result<u64> {
        let part = self.read.part(0, 8);
        self.endpoint.read_fenced(&self.home, offset, part)?;
        Ok(self.read.buffer.load_u64(0)?)
    }

    fn store(&self, offset: u64, value: u64) -> Result<()> {
        let bytes = value.to_le_bytes();
        self.endpoint.write(&self.home, offset, &bytes)?;
        Ok(())
    }
}
