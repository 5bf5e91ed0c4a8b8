//! The home: it serves memory, waits for all members, and checks what they left.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic::sync::{Participant, Semaphore};
use qnic::{Access, Buffer, Endpoint, Nic, Segment};
use qnic_abi::atomic::WaitQueue;

use super::layout::{
    item, Layout, ARRIVED, BUFFER, DONE, HOME, HOME_PORT, INSIDE, IN_LINE, LINE_SEMAPHORE, LOCK,
    PLACES, SEMAPHORE, TURNS, UNREADY,
};
use super::Options;
use crate::options::START_LIMIT;

/// Longest time for one more member to be done.
const LIMIT: Duration = Duration::from_secs(600);

/// The memory that everybody uses.
pub(super) struct Home {
    endpoint: Endpoint,
    buffer: Buffer,
    _segment: Segment,
}

impl Home {
    /// Makes it ready, and says so.
    pub(super) fn new(nic: &Nic, options: &Options) -> Result<Self> {
        let endpoint = nic.register(HOME_PORT).context("register the home")?;
        let buffer = endpoint.allocate(Layout::new(options).length())?;
        let unready = endpoint.export(UNREADY, &buffer, Access::all())?;
        let own = endpoint.import(endpoint.node(), HOME_PORT, UNREADY, START_LIMIT)?;
        let participant = Participant::new(&endpoint)?;
        Semaphore::new(&participant, &own, SEMAPHORE)?.initialize(options.units)?;
        let segment = endpoint.export(HOME, &buffer, Access::all())?;
        drop(unready);
        println!("{}", serde_json::json!({"serving": std::process::id()}));
        Ok(Home {
            endpoint,
            buffer,
            _segment: segment,
        })
    }

    /// Waits for all members, and checks the sums and the logs.
    pub(super) fn finish(&self, options: &Options) -> Result<()> {
        let layout = Layout::new(options);
        for done in 0..layout.total {
            self.endpoint
                .notification(DONE)
                .take(Some(LIMIT))
                .with_context(|| format!("{done} of {} members are done", layout.total))?;
        }
        let total = layout.total * options.rounds;
        for (what, offset, expected) in [
            ("members", ARRIVED, layout.total),
            ("the lock's queue", LOCK, 0),
            ("turns of the lock", TURNS, total),
            ("who holds the lock", TURNS + 16, 0),
            ("who is inside", INSIDE, 0),
            ("items put", BUFFER, total),
            ("items taken", BUFFER + 8, total),
        ] {
            let is = self.word(offset)?;
            ensure!(is == expected, "{what}: {is} instead of {expected}");
        }
        for place in 0..PLACES as u64 {
            ensure!(self.word(BUFFER + 16 + place * 8)? == 0, "an item is left");
        }
        // The last in line has given on the unit that went through all hands.
        for (what, offset, expected) in [
            ("units", SEMAPHORE, options.units),
            ("units of the line", LINE_SEMAPHORE, 1),
        ] {
            let at = offset as usize + std::mem::offset_of!(WaitQueue, value);
            let is = self.buffer.load_u32(at)?;
            ensure!(is == expected, "{what}: {is} instead of {expected}");
        }
        self.check_items(layout, options.rounds)?;
        self.check_lines(layout)?;
        let in_line = self.word(IN_LINE)?;
        let line = serde_json::json!({"contended": total, "in_line": in_line});
        println!("{line}");
        Ok(())
    }

    /// Each item came out once, and those of a producer in their order.
    fn check_items(&self, layout: Layout, rounds: u64) -> Result<()> {
        let mut next = vec![0; layout.total as usize];
        for number in 0..layout.total * rounds {
            let taken = self.word(layout.taken(number))?;
            let member = (taken >> 32).wrapping_sub(1);
            let round = next
                .get_mut(member as usize)
                .with_context(|| format!("{taken:#x} is no item"))?;
            let expected = item(member, *round);
            ensure!(
                taken == expected,
                "{taken:#x} came out instead of {expected:#x}"
            );
            *round += 1;
        }
        Ok(())
    }

    /// Who joined a line first left it first.
    fn check_lines(&self, layout: Layout) -> Result<()> {
        for line in 0..2 {
            let at = layout.line(line);
            let left = self.word(at)?;
            ensure!(left == layout.total, "{left} have left line {line}");
            for place in 0..layout.total {
                let member = self.word(at + 8 + place * 8)?;
                ensure!(
                    member == place,
                    "member {member} left line {line} as number {place}"
                );
            }
        }
        Ok(())
    }

    fn word(&self, offset: u64) -> Result<u64> {
        Ok(self.buffer.load_u64(offset as usize)?)
    }
}
