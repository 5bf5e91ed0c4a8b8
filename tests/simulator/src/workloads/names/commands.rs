//! Commands of a name worker: right ones and wrong ones.

use qnic_abi::command::CommandBody;
use qnic_abi::process_names::{NameAction, NameCommand, MAX_TIMEOUT_MS};
use qnic_abi::Status;

use super::oracle::{process_name, What, NAMES};
use super::{NameWorker, OPEN};
use crate::process::worker::QueueWorker;
use crate::process::Result;
use crate::schedule::lock;

/// Nanoseconds in a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// Makes a command one that is none.
type Spoil = fn(&mut NameCommand);

const SPOILS: [Spoil; 8] = [
    |command| command.action = 0,
    |command| command.action = 4,
    |command| command.name.application = [0; 16],
    |command| command.name.application = *b"a\0b\0\0\0\0\0\0\0\0\0\0\0\0\0",
    |command| command.name.application[15] = 0xff,
    |command| command.timeout_ms = (MAX_TIMEOUT_MS + 1).into(),
    |command| command.reserved0 = [0, 0, 1],
    |command| command.reserved1[1] = 1.into(),
];

fn command(name: usize, action: NameAction, handle: u64, timeout: u32) -> NameCommand {
    let mut command = NameCommand::command();
    command.handle = handle.into();
    command.name = process_name(name);
    command.timeout_ms = timeout.into();
    command.action = action as u8;
    command
}

impl NameWorker<'_> {
    /// Puts a command into the queue.
    fn issue(&mut self, name: usize, what: What, timeout: u32) -> Result<()> {
        if self.open.len() >= OPEN {
            return self.wait(MILLISECOND);
        }
        let action = match what {
            What::Register(_) => NameAction::Register,
            What::Withdraw => NameAction::Withdraw,
            What::LookUp(_) => NameAction::LookUp,
        };
        let now = self.schedule.now();
        let handle = lock(self.oracle).issue(self.slot, name, what, now);
        self.trace(format_args!("{handle}: {what:?}, name {name}"));
        self.open.insert(handle, (name, what));
        let descriptor = command(name, action, handle, timeout).descriptor();
        self.put(&descriptor, &[]);
        Ok(())
    }

    /// Registers some name; it may have it, and others may.
    pub(super) fn register(&mut self) -> Result<()> {
        let timeout = self.timeout();
        let what = What::Register(u64::from(timeout) * MILLISECOND);
        self.issue(self.schedule.below(NAMES), what, timeout)
    }

    /// Withdraws a name, mostly one that it has.
    pub(super) fn withdraw(&mut self) -> Result<()> {
        let names: Vec<usize> = self.names.iter().copied().collect();
        let name = match names.is_empty() || self.schedule.chance(150) {
            true => self.schedule.below(NAMES),
            false => names[self.schedule.below(names.len())],
        };
        // It would get one later that it has given back before.
        let waits = |open: &(usize, What)| open.0 == name && matches!(open.1, What::Register(1..));
        match self.open.values().any(waits) {
            true => Ok(()),
            false => self.issue(name, What::Withdraw, 0),
        }
    }

    /// How long a command waits: not at all, for a short or for a long time.
    fn timeout(&self) -> u32 {
        let timeout = match self.schedule.range(0..10) {
            0..=3 => 0,
            4..=7 => self.schedule.range(1..60),
            _ => self.schedule.range(300..3000),
        };
        timeout as u32
    }

    /// Looks some name up.
    pub(super) fn look_up_some(&mut self) -> Result<()> {
        let timeout = self.timeout();
        self.look_up(self.schedule.below(NAMES), timeout)
    }

    /// Looks a name up, for so many milliseconds.
    pub(super) fn look_up(&mut self, name: usize, timeout: u32) -> Result<()> {
        let what = What::LookUp(u64::from(timeout) * MILLISECOND);
        self.issue(name, what, timeout)
    }

    /// Issues a command that is malformed, and starts its queue again. Its names stay, its lookups
    /// do not.
    pub(super) fn malform(&mut self) -> Result<()> {
        if !self.queue.has_room() {
            return Ok(());
        }
        let (spoil, name) = (
            self.schedule.below(SPOILS.len()),
            self.schedule.below(NAMES),
        );
        let mut command = command(name, NameAction::LookUp, 0, 0);
        SPOILS[spoil](&mut command);
        self.trace(format_args!("malformed command {spoil}"));
        lock(self.oracle).malform(self.slot);
        self.put(&command.descriptor(), &[]);
        let (oracle, slot) = (self.oracle, self.slot);
        self.restart_queue(Status::Malformed, || lock(oracle).queue_reset(slot))?;
        self.open.clear();
        Ok(())
    }
}
