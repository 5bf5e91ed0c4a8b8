//! Groups of processes, and operations that they take part in together: barrier, broadcast,
//! reduce, allreduce (Q14, Q15, N26; docs/collectives.md).
//!
//! ```text
//!   Membership ─► Group::join ─► Group ─ barrier, broadcast, reduce, allreduce ─► Operation
//!                                                          timeout, then ─┬─ wait ─► done
//!                                                                         └─ post ─► Call
//!                                Group ─ multicast ─► Multicast: a message that receives take
//!   a Group that is dropped leaves: it ends for all members
//! ```
//!
//! ```no_run
//! use std::time::Duration;
//! use qnic::group::{Group, Membership, Operator};
//! use qnic::{Access, Nic, NodeId, Port, SegmentName};
//!
//! # fn main() -> qnic::Result<()> {
//! # let (rank, size) = (0, 4);
//! let endpoint = Nic::open()?.register(Port(7))?;
//! let buffer = endpoint.allocate(4096)?;
//! let memory = endpoint.export(SegmentName(1), &buffer, Access::READ)?;
//!
//! let limit = Duration::from_secs(10);
//! let home = (NodeId(0), Port(7));
//! let group = Group::join(&endpoint, &Membership::new(home, rank, size), limit)?;
//! buffer.write(0, &f64::from(rank).to_le_bytes())?;
//! group.allreduce::<f64>(memory.part(0, 8), Operator::Sum).timeout(limit).wait()?;
//! group.barrier().timeout(limit).wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//! - The *n*-th call of each member belongs to the *n*-th operation of the group. Calls of several
//!   threads stand in the order in which they are made, which members have to agree on.
//! - A call that is refused, by the library or by the NIC, uses up its number, and the group ends at
//!   all members. So no later call meets an operation of another number.
//! - Memory that the NIC may still read or write belongs to a [`Call`], which borrows its segment.
//!   Dropping a call waits for its end, which comes within its time limit. If a call is leaked, the
//!   NIC may use the memory until the segment ends, but not longer (N2).
//! - The NIC ends each call within the call's time limit, whichever member dies.
//!
//! # Ends
//! A group ends when a member leaves, dies, is cut off, or calls something else than the others,
//! when a call is refused, and when a call's time is over. Calls then fail with an [`Error::Group`] that names the process
//! that is the reason; so do all later ones. The others may join a new group under the same name.
//! A call may have succeeded at some members and failed at others.

mod application;
mod call;
mod joining;
mod multicast;

use std::time::Duration;

use qnic_abi::collective::{
    Collective, CollectiveCommand, LeaveGroupCommand, MAX_LENGTH, MAX_TIMEOUT_MS,
};
use qnic_abi::command::CommandBody;
use qnic_abi::{NodeId, Port};

use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, GroupError, GroupOperation, Result};
use crate::memory::{LocalMemory, Part};

pub use crate::error::Difference;
pub use application::Application;
pub use call::Call;
pub use joining::Joining;
pub use multicast::{Multicast, Posted};
pub use qnic_abi::collective::{Called, Element, Operator, MAX_MEMBERS};

/// Which group a process joins, and its place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Membership {
    /// The process of rank 0: its NIC forms the group.
    pub home: (NodeId, Port),
    /// Tells the groups of one home apart; 0 unless set.
    pub name: u64,
    /// A secret of the members; 0 unless set. The one that the home process gives is the right one.
    pub key: u64,
    /// Place of this process among the members, below `size`.
    pub rank: u32,
    /// Members, 1 to [`MAX_MEMBERS`].
    pub size: u32,
}

impl Membership {
    /// Membership of a group without name and key.
    pub const fn new(home: (NodeId, Port), rank: u32, size: u32) -> Self {
        Membership {
            home,
            name: 0,
            key: 0,
            rank,
            size,
        }
    }

    /// The same in the group of another name.
    #[must_use]
    pub const fn name(self, name: u64) -> Self {
        Membership { name, ..self }
    }

    /// The same with a key.
    #[must_use]
    pub const fn key(self, key: u64) -> Self {
        Membership { key, ..self }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type of elements that can be reduced. They stand in memory in little-endian order.
pub trait Reducible: sealed::Sealed {
    /// Its number for the NIC.
    const ELEMENT: Element;
}

macro_rules! reducible {
    ($($type:ty: $element:ident,)*) => {$(
        impl sealed::Sealed for $type {}

        impl Reducible for $type {
            const ELEMENT: Element = Element::$element;
        }
    )*};
}

reducible! { u32: U32, u64: U64, i32: I32, i64: I64, f32: F32, f64: F64, }

/// A process's place in a group that has formed. A process that drops it leaves, and so ends the
/// group for all members.
#[derive(Debug)]
#[must_use = "a group that is dropped ends"]
pub struct Group<'a> {
    core: &'a Core,
    /// The NIC's name for it.
    number: u64,
    membership: Membership,
}

impl<'a> Group<'a> {
    /// Joins a group, and waits up to `timeout`, at most 10 minutes, until all its members are
    /// there. They may start in any order.
    ///
    /// # Errors
    /// [`Error::Group`]: the group has not formed: the time is over, the home
    /// process has another key or size, another process has the rank, or a member has ended.
    /// [`DeviceGone`](crate::Error::DeviceGone), [`QueueFailed`](crate::Error::QueueFailed)
    pub fn join(
        endpoint: &'a Endpoint,
        membership: &Membership,
        timeout: Duration,
    ) -> Result<Self> {
        let core = endpoint.core();
        let (command, what) = membership.command(timeout)?;
        let call = Call::new(core, core.post_command(command)?, what);
        Joining::new(core, call, *membership).wait()
    }

    /// Place of this process among the members.
    pub fn rank(&self) -> u32 {
        self.membership.rank
    }

    /// Members.
    pub fn size(&self) -> u32 {
        self.membership.size
    }

    /// All members wait until all have called it. This call and those below go on if the group is dropped, and then
    /// fail.
    pub fn barrier(&self) -> Operation<'a> {
        self.operation(Collective::Barrier, None)
    }

    /// Gives the bytes of the root to all others, in their memory of the same length.
    pub fn broadcast<'b>(&self, part: Part<'b>, root: u32) -> Operation<'b>
    where
        'a: 'b,
    {
        let mut operation = self.operation(Collective::Broadcast, Some(part));
        operation.command.root = root.into();
        operation
    }

    /// Replaces the elements of the root by the reduction of those of all.
    pub fn reduce<'b, T: Reducible>(
        &self,
        part: Part<'b>,
        operator: Operator,
        root: u32,
    ) -> Operation<'b>
    where
        'a: 'b,
    {
        let mut operation = self.operation(Collective::Reduce, Some(part));
        operation.command.root = root.into();
        operation.reducing::<T>(operator)
    }

    /// Replaces the elements of each member by the reduction of those of all.
    pub fn allreduce<'b, T: Reducible>(&self, part: Part<'b>, operator: Operator) -> Operation<'b>
    where
        'a: 'b,
    {
        self.operation(Collective::Allreduce, Some(part))
            .reducing::<T>(operator)
    }

    fn operation<'b>(&self, collective: Collective, part: Option<Part<'b>>) -> Operation<'b>
    where
        'a: 'b,
    {
        let mut command = CollectiveCommand::command();
        command.group = self.number.into();
        command.collective = collective as u8;
        command.timeout_ms = MAX_TIMEOUT_MS.into();
        Operation {
            core: self.core,
            name: self.membership.name,
            command,
            part,
        }
    }
}

/// An operation of a group, which has not begun.
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is done before `post` or `wait`"]
pub struct Operation<'b> {
    core: &'b Core,
    /// Name of the group.
    name: u64,
    command: CollectiveCommand,
    part: Option<Part<'b>>,
}

impl<'b> Operation<'b> {
    /// How long it may take: 1 ms to 10 minutes, which is the default. When the time is over, the
    /// group ends.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.command.timeout_ms = milliseconds(timeout).into();
        self
    }

    /// What the program calls it for itself: any number, which is zero unless set. Members that give different
    /// ones call different things.
    pub fn label(mut self, label: u16) -> Self {
        self.command.label = label.into();
        self
    }

    /// Begins it. At most 64 calls of a group are under way. One more waits for a place until its
    /// time limit, and then fails with Exhausted.
    ///
    /// # Errors
    /// Each of them ends the group for all members, because a call that fails has used up its
    /// number.
    ///
    /// [`OutOfRange`](crate::Error::OutOfRange), [`ForeignSegment`](crate::Error::ForeignSegment),
    /// [`BadCollective`](crate::Error::BadCollective),
    /// [`DeviceGone`](crate::Error::DeviceGone), [`QueueFailed`](crate::Error::QueueFailed)
    pub fn post(self) -> Result<Call<'b>> {
        let core = self.core;
        let what = GroupError::new(GroupOperation::of(&self.command), self.name);
        match self.checked() {
            Ok(command) => Ok(Call::new(core, core.post_call(command)?, what)),
            Err(error) => {
                self.refuse();
                Err(error)
            }
        }
    }

    /// Begins it if there is a place for it: fewer than 64 calls of the group are under way, and the NIC has room for
    /// the command. Otherwise nothing has happened.
    ///
    /// # Errors
    /// Those of [`Operation::post`]
    pub fn try_post(self) -> Result<Option<Call<'b>>> {
        let core = self.core;
        let what = GroupError::new(GroupOperation::of(&self.command), self.name);
        match self.checked() {
            Ok(command) => {
                let posted = core.try_call(command)?;
                Ok(posted.map(|key| Call::new(core, key, what)))
            }
            Err(error) => {
                self.refuse();
                Err(error)
            }
        }
    }

    /// Its command.
    fn checked(&self) -> Result<CollectiveCommand> {
        let mut command = self.command;
        if let Some(part) = self.part {
            let range = part.range(self.core)?;
            command.length = range.length.into();
            if range.length > 0 {
                command.set_local(&range);
            }
        }
        check_elements(&command)?;
        Ok(command)
    }

    /// Takes its place among the calls of the group, so that no later one does: the NIC refuses a
    /// broadcast of a rank that no group has, which ends the group at all members.
    #[cold]
    fn refuse(&self) {
        let mut command = CollectiveCommand::command();
        command.group = self.command.group;
        command.collective = Collective::Broadcast as u8;
        command.root = MAX_MEMBERS.into();
        command.timeout_ms = 1.into();
        // An error says that the NIC runs nothing of this process: the group has ended.
        if let Ok(key) = self.core.post_command(command) {
            self.core.detach_request(key);
        }
    }

    /// Begins it, and waits until it has ended.
    ///
    /// # Errors
    /// Those of [`Operation::post`] and [`Call::wait`]
    pub fn wait(self) -> Result<()> {
        self.post()?.wait()
    }

    fn reducing<T: Reducible>(mut self, operator: Operator) -> Self {
        self.command.operator = operator as u8;
        self.command.element = T::ELEMENT as u8;
        self
    }
}

/// Checks what the NIC would take for a malformed command, and stop the queue.
fn check_elements(command: &CollectiveCommand) -> Result<()> {
    if command.length.get() > MAX_LENGTH {
        return Err(Error::BadCollective("the part is longer than 64 GiB"));
    }
    let element = Element::try_from(command.element);
    let operator = Operator::try_from(command.operator);
    let (Ok(element), Ok(operator)) = (element, operator) else {
        return Ok(());
    };
    let float = matches!(element, Element::F32 | Element::F64);
    if float && matches!(operator, Operator::And | Operator::Or | Operator::Xor) {
        return Err(Error::BadCollective("floats have no bitwise operators"));
    }
    match command.length.get() % element.bytes() {
        0 => Ok(()),
        _ => Err(Error::BadCollective(
            "the part is not a whole number of elements",
        )),
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        let mut command = LeaveGroupCommand::command();
        command.group = self.number.into();
        // A drop cannot report. A device that is gone has no groups.
        if let Ok(key) = self.core.post_command(command) {
            self.core.detach_request(key);
        }
    }
}

/// A time limit as commands have it: at least one millisecond, at most ten minutes.
fn milliseconds(timeout: Duration) -> u32 {
    let milliseconds = timeout.as_millis().clamp(1, MAX_TIMEOUT_MS.into());
    milliseconds as u32
}
