//! Processes that are killed while they hold a lock or stand in a queue.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use crate::nodes::Nodes;

/// Longest time for programs that run under emulation on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// How long survivors may take to find out. Documented is a second after the NIC knows,
/// which it does at once, and three more for a process that had nothing to do with the dead
/// one yet (it may have joined a moment ago). Twice that, as the processes share their
/// processors with others and are emulated; but less than the ten seconds by which one
/// who has joined and is not chained up is noticed, so it is not that rule that helped.
const FOUND_OUT: Duration = Duration::from_secs(8);

/// Survivors, for people.
const FIRST: &str = "the first in line";
const LAST: &str = "the last in line";

/// Who dies, and in what.
#[derive(Debug, Clone, Copy)]
pub struct Death {
    /// `lock`, `queue` or `semaphore`.
    pub object: &'static str,
    /// It holds the lock; else it stands in the middle of the queue.
    pub holds: bool,
}

impl Death {
    /// All that survivors must be able to cope with.
    pub const ALL: [Death; 4] = [
        Death {
            object: "lock",
            holds: true,
        },
        Death {
            object: "lock",
            holds: false,
        },
        Death {
            object: "queue",
            holds: false,
        },
        Death {
            object: "semaphore",
            holds: false,
        },
    ];
}

/// Nodes of the processes.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// Has the object in its memory.
    pub home: usize,
    /// Recovers the object; holds it before, if it is a lock in whose queue somebody
    /// dies.
    pub mender: usize,
    /// Stands in front of the victim, or directly behind it if that holds the lock.
    pub first: usize,
    /// Is killed with signal 9.
    pub victim: usize,
    /// Stands behind the others.
    pub last: usize,
}

/// A process is killed while it holds a lock, or stands in the middle of a queue: all who
/// wait with it get `qnic::Error::Broken` in time (or, before the dead one, their turn, if
/// it comes first); a recovery then works (not under a holder that lives), and all of them
/// use the object again (N21, N22, N24).
///
/// # Errors
/// One of these does not hold.
pub fn a_death_in_line_is_survived(nodes: &dyn Nodes, places: Places, death: Death) -> Result<()> {
    let home_node = places.home.to_string();
    let common = [
        "lock-waiter",
        "--owner",
        &home_node,
        "--object",
        death.object,
    ];
    let start = |node: usize, role: &[&str]| {
        let arguments: Vec<_> = common.iter().chain(role).copied().collect();
        nodes.start(node, &arguments)
    };
    let wait_in_line = |node: usize| {
        let mut waiter = start(node, &["--role", "wait"])?;
        waiter.expect("joined", LIMIT)?;
        Ok::<_, anyhow::Error>(waiter)
    };
    let mut home = nodes.start(places.home, &["memory-server"])?;
    home.expect("serving", LIMIT)?;
    let mut holder = match death.holds {
        true => Some(start(places.victim, &["--role", "hold"])?),
        false => None,
    };
    if let Some(holder) = &mut holder {
        holder.expect("holds", LIMIT).context("the holder")?;
    }
    let mut mends = vec!["--role", "recover", "--wake", "2"];
    if death.object == "lock" && !death.holds {
        mends.push("--holding");
    }
    let mut mender = start(places.mender, &mends)?;
    mender.expect("watches", LIMIT).context("the mender")?;
    let first = wait_in_line(places.first).context(FIRST)?;
    let mut victim = match holder {
        Some(holder) => holder,
        None => wait_in_line(places.victim).context("the victim")?,
    };
    let last = wait_in_line(places.last).context(LAST)?;

    let killed = Instant::now();
    victim.kill()?;
    let mut survivors = [(FIRST, first), (LAST, last)];
    let mut counted = Vec::new();
    for (who, survivor) in &mut survivors {
        let ended = survivor.expect("ended", FOUND_OUT).context(*who)?;
        // Whoever stands before the dead one may get its turn before it has noticed.
        let has_luck = *who == FIRST && death.object == "lock" && !death.holds;
        ensure!(ended["broken"] == true || has_luck, "{who}: {ended}");
        counted.extend(ended["counted"].as_u64());
    }
    let took = killed.elapsed();
    println!("    {death:?}: all knew after {:.2} s", took.as_secs_f64());
    ensure!(took < FOUND_OUT, "they knew after {took:?}");
    mender.expect("recovered", LIMIT).context("the mender")?;
    for (who, survivor) in &mut survivors {
        let again = survivor.expect("again", LIMIT).context(*who)?;
        counted.extend(again.as_u64());
        survivor.wait(LIMIT)?.success(who)?;
    }
    counted.sort_unstable();
    let each_once: Vec<_> = (0..counted.len() as u64).collect();
    ensure!(counted == each_once, "the survivors counted {counted:?}");
    mender.wait(LIMIT)?.success("the mender")?;
    victim.wait(LIMIT).context("the killed process")?;
    home.kill()?;
    home.wait(LIMIT).context("the home")?;
    Ok(())
}
