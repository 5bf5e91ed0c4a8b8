//! Processes that are killed while they hold a lock or wait in a queue.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use qnic_trials::nodes::{Nodes, LIMIT};

/// How long survivors may take to find out. Documented is a second after the NIC knows,
/// which it does at once, and three more for a process that had nothing to do with the dead
/// one yet (it may have joined a moment ago). Twice that, as the processes share their
/// processors with others and are emulated; but less than the ten seconds after which a
/// waiter that has joined and is not linked is noticed, so it is not that rule that helped.
const FOUND_OUT: Duration = Duration::from_secs(8);

/// Survivors, for people.
const FIRST: &str = "the first in the queue";
const LAST: &str = "the last in the queue";

/// The death of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Death {
    /// `lock`, `queue` or `semaphore`.
    pub object: &'static str,
    /// It holds the lock; else it waits in the middle of the queue.
    pub holds: bool,
}

impl Death {
    /// All that survivors must be able to cope with.
    pub(crate) const ALL: [Death; 4] = [
        Death::of("lock", true),
        Death::of("lock", false),
        Death::of("queue", false),
        Death::of("semaphore", false),
    ];

    const fn of(object: &'static str, holds: bool) -> Self {
        Death { object, holds }
    }

    /// It waits in the queue of a lock.
    fn waits_for_lock(self) -> bool {
        self.object == "lock" && !self.holds
    }
}

/// Nodes of the processes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement {
    /// Has the object in its memory.
    pub owner: usize,
    /// Recovers the object; holds it before, if it is a lock in whose queue a waiter dies.
    pub recoverer: usize,
    /// Waits in front of the victim, or directly behind it if that holds the lock.
    pub first: usize,
    /// Is killed with signal 9.
    pub victim: usize,
    /// Waits behind the others.
    pub last: usize,
}

/// A process is killed while it holds a lock, or waits in the middle of a queue: all that
/// wait with it get `qnic::Error::Broken` in time (or, before the dead one, their turn, if
/// it comes first); a recovery then works (not under a holder that lives), and all of them
/// use the object again (N21, N22, N24).
pub(crate) fn a_death_in_the_queue_is_survived(
    nodes: &dyn Nodes,
    placement: Placement,
    death: Death,
) -> Result<()> {
    let (owner, object) = (placement.owner, death.object);
    let start = |node: usize, role: &str, key: &str| {
        let arguments = format!("lock-waiter --owner {owner} --object {object} --role {role}");
        nodes.start_until(node, &arguments, key)
    };
    let wait = |node| start(node, "wait", "joined");
    let mut server = nodes.start_until(owner, "memory-server", "serving")?;
    let holder = match death.holds {
        true => Some(start(placement.victim, "hold", "holds").context("the holder")?),
        false => None,
    };
    let recover = match death.waits_for_lock() {
        true => "recover --wake 2 --holding",
        false => "recover --wake 2",
    };
    let mut recoverer = start(placement.recoverer, recover, "watches")?;
    let first = wait(placement.first).context(FIRST)?;
    let mut victim = match holder {
        Some(holder) => holder,
        None => wait(placement.victim).context("the victim")?,
    };
    let last = wait(placement.last).context(LAST)?;

    let killed = Instant::now();
    victim.kill()?;
    let mut survivors = [(FIRST, first), (LAST, last)];
    let mut counted = Vec::new();
    for (name, survivor) in &mut survivors {
        let ended = survivor.expect("ended", FOUND_OUT).context(*name)?;
        // A waiter before the dead one may get its turn before it has noticed.
        let may_finish = *name == FIRST && death.waits_for_lock();
        ensure!(ended["broken"] == true || may_finish, "{name}: {ended}");
        counted.extend(ended["counted"].as_u64());
    }
    let took = killed.elapsed();
    println!("    {death:?}: all knew after {:.2} s", took.as_secs_f64());
    ensure!(took < FOUND_OUT, "they knew after {took:?}");
    let recovered = recoverer.expect("recovered", LIMIT);
    recovered.context("the recoverer")?;
    for (name, survivor) in &mut survivors {
        let again = survivor.expect("again", LIMIT).context(*name)?;
        counted.extend(again.as_u64());
        survivor.succeed(name, LIMIT)?;
    }
    counted.sort_unstable();
    let each_once: Vec<_> = (0..counted.len() as u64).collect();
    ensure!(counted == each_once, "the survivors counted {counted:?}");
    recoverer.succeed("the recoverer", LIMIT)?;
    victim.wait(LIMIT).context("the killed process")?;
    server.kill()?;
    server.wait(LIMIT).context("the owner")?;
    Ok(())
}
