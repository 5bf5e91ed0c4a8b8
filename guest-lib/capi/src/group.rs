//! Groups of processes: barrier, broadcast, reduce and allreduce in the NICs, and messages to members.
//!
//! Members call the same collectives in the same order. A collective that fails ends the group for all
//! members, and so does a member that closes it. Local memory lies in segments that the endpoint
//! exports.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use qnic::group::{
    Application, Call, Group, Membership, Multicast, Operation, Operator, Posted, Reducible,
};
use qnic::message::Tag;
use qnic::{Endpoint, NodeId, Port, Source, INLINE_CAPACITY};
use self_cell::self_cell;

use crate::atomic::{QNIC_F32, QNIC_F64, QNIC_I32, QNIC_I64, QNIC_U32, QNIC_U64};
use crate::border::{call, head, limit, timeout, In, Out, Text};
use crate::endpoint::qnic_endpoint;
use crate::failure::{Failure, Result};
use crate::handles::{close, get, open, open_if_wanted};
use crate::memory::Local;
use crate::message::qnic_match;
use crate::request::turn;

/// A group, or that of an application.
enum Member<'a> {
    Group(Group<'a>),
    Application(Application<'a>),
}

impl<'a> Member<'a> {
    fn group(&self) -> &Group<'a> {
        match self {
            Member::Group(group) => group,
            Member::Application(application) => application,
        }
    }
}

self_cell!(
    struct GroupCell {
        owner: Arc<Endpoint>,
        #[covariant]
        dependent: Member,
    }
);

/// A process's place in a group. Serves many threads at once; their collectives need one order.
pub struct qnic_group(Arc<GroupCell>);

impl qnic_group {
    fn group(&self) -> &Group<'_> {
        self.0.borrow_dependent().group()
    }
}

/// Which group a process joins, and its place there.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_membership {
    /// Size of this structure.
    pub size: usize,
    /// Node of the process of rank 0: its NIC forms the group.
    pub home_node: u16,
    /// Port of that process.
    pub home_port: u16,
    /// Place of this process, below `members`.
    pub rank: u32,
    /// Members, 1 to 4,096.
    pub members: u32,
    /// Zero.
    pub reserved: u32,
    /// Tells the groups of one home apart.
    pub name: u64,
    /// A secret of the members.
    pub key: u64,
}

head!(qnic_membership {
    home_node,
    home_port,
    rank,
    members,
    reserved,
    name,
    key
});

/// Joins a group, and waits until all its members are there, up to `timeout_ns` nanoseconds, 10 minutes
/// at most. They may start in any order.
///
/// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_GROUP_REFUSED`, `QNIC_E_PEER_GONE`.
#[no_mangle]
pub extern "C" fn qnic_group_join(
    endpoint: *mut qnic_endpoint,
    membership: In<qnic_membership>,
    timeout_ns: i64,
    group: Out<*mut qnic_group>,
) -> c_int {
    open(group, || {
        let given = membership.head()?;
        let home = (NodeId(given.home_node), Port(given.home_port));
        let membership = Membership::new(home, given.rank, given.members);
        let membership = membership.name(given.name).key(given.key);
        let cell = GroupCell::try_new(get(endpoint)?.0.clone(), |endpoint| -> Result<_> {
            let group = Group::join(endpoint, &membership, limit(timeout_ns))?;
            Ok(Member::Group(group))
        })?;
        Ok(qnic_group(Arc::new(cell)))
    })
}

/// Joins an application: registers this process as number `process` of its `processes`, finds number 0,
/// and joins the group of all there. They may start in any order, on any nodes.
///
/// Fails as `qnic_name_register`, `qnic_name_find` and `qnic_group_join`.
#[no_mangle]
pub extern "C" fn qnic_application_join(
    endpoint: *mut qnic_endpoint,
    application: Text,
    process: u32,
    processes: u32,
    timeout_ns: i64,
    group: Out<*mut qnic_group>,
) -> c_int {
    open(group, || {
        let name = application.get()?;
        let cell = GroupCell::try_new(get(endpoint)?.0.clone(), |endpoint| -> Result<_> {
            let limit = limit(timeout_ns);
            let joined = Application::join(endpoint, name, process, processes, limit)?;
            Ok(Member::Application(joined))
        })?;
        Ok(qnic_group(Arc::new(cell)))
    })
}

/// Stores the place of this process, and how many members there are. Both pointers may be null.
#[no_mangle]
pub extern "C" fn qnic_group_get_info(
    group: *mut qnic_group,
    rank: Out<u32>,
    members: Out<u32>,
) -> c_int {
    call(|| {
        let group = get(group)?;
        rank.set(group.group().rank())?;
        members.set(group.group().size())
    })
}

/// Leaves a group, once its calls are closed: that ends it for all members.
#[no_mangle]
pub extern "C" fn qnic_group_close(group: *mut qnic_group) -> c_int {
    close(group)
}

/// All members wait until all have called it.
pub const QNIC_BARRIER: u32 = 1;
/// Gives the bytes of the root to all others, in their memory of the same length.
pub const QNIC_BROADCAST: u32 = 2;
/// Replaces the elements of the root by the reduction of those of all.
pub const QNIC_REDUCE: u32 = 3;
/// Replaces the elements of each member by the reduction of those of all.
pub const QNIC_ALLREDUCE: u32 = 4;

/// Their sum; integers wrap.
pub const QNIC_SUM: u32 = 1;
/// Their product; integers wrap.
pub const QNIC_PRODUCT: u32 = 2;
/// The lesser; of floats the number, if one is none.
pub const QNIC_MINIMUM: u32 = 3;
/// The greater; of floats the number, if one is none.
pub const QNIC_MAXIMUM: u32 = 4;
/// Bitwise and; integers only.
pub const QNIC_AND: u32 = 5;
/// Bitwise or; integers only.
pub const QNIC_OR: u32 = 6;
/// Bitwise exclusive or; integers only.
pub const QNIC_XOR: u32 = 7;

/// A collective.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_collective {
    /// Size of this structure.
    pub size: usize,
    /// `QNIC_BARRIER`, …
    pub function: u32,
    /// Rank of the root of a broadcast or a reduce.
    pub root: u32,
    /// Of a reduce or allreduce: `QNIC_SUM`, …
    pub op: u32,
    /// Of a reduce or allreduce: the type of the elements, `QNIC_U32`, …
    pub element: u32,
    /// The memory; none of a barrier.
    pub address: Out<c_void>,
    /// Its bytes.
    pub length: usize,
    /// What the program calls it for itself, up to 65535; the same at all members.
    pub label: u32,
}

head!(qnic_collective {
    function,
    root,
    op,
    element,
    address,
    length,
    label,
});

fn reduction<'b, T: Reducible>(
    group: &'b Group<'_>,
    collective: &qnic_collective,
    local: &'b Local,
) -> Result<Operation<'b>> {
    let number = u8::try_from(collective.op).unwrap_or(0);
    let operator = Operator::try_from(number);
    let operator = operator.map_err(|_| Failure::argument("no such operator"))?;
    Ok(match collective.function {
        QNIC_REDUCE => group.reduce::<T>(local.part(), operator, collective.root),
        _ => group.allreduce::<T>(local.part(), operator),
    })
}

fn no_collective() -> Failure {
    Failure::argument("no such collective")
}

/// A collective as the library describes it.
fn operation<'b>(
    group: &'b Group<'_>,
    collective: &qnic_collective,
    local: Option<&'b Local>,
) -> Result<Operation<'b>> {
    let memory = || Failure::argument("a collective without memory");
    let label = u16::try_from(collective.label);
    let label = label.map_err(|_| Failure::argument("a label above 65535"))?;
    let operation = match collective.function {
        QNIC_BARRIER => group.barrier(),
        QNIC_BROADCAST => {
            let local = local.ok_or_else(memory)?;
            group.broadcast(local.part(), collective.root)
        }
        QNIC_REDUCE | QNIC_ALLREDUCE => {
            let describe = match collective.element {
                QNIC_U32 => reduction::<u32>,
                QNIC_U64 => reduction::<u64>,
                QNIC_I32 => reduction::<i32>,
                QNIC_I64 => reduction::<i64>,
                QNIC_F32 => reduction::<f32>,
                QNIC_F64 => reduction::<f64>,
                _ => return Err(Failure::argument("no such type of elements")),
            };
            describe(group, collective, local.ok_or_else(memory)?)?
        }
        _ => return Err(no_collective()),
    };
    Ok(operation.label(label))
}

/// What a call of a group borrows from.
struct CallBase {
    group: Arc<GroupCell>,
    /// Memory that the NIC reads or writes.
    local: Option<Local>,
    /// Bytes that travel in the command.
    inline: Vec<u8>,
    /// Members that a message goes to; none: all.
    ranks: Vec<u32>,
}

impl CallBase {
    fn new(group: *mut qnic_group) -> Result<Self> {
        Ok(CallBase {
            group: get(group)?.0.clone(),
            local: None,
            inline: Vec::new(),
            ranks: Vec::new(),
        })
    }

    fn with_memory(group: *mut qnic_group, collective: &qnic_collective) -> Result<Self> {
        let mut base = Self::new(group)?;
        let (address, length) = (collective.address.address(), collective.length);
        match collective.function {
            QNIC_BARRIER => {}
            QNIC_BROADCAST | QNIC_REDUCE | QNIC_ALLREDUCE => {
                base.local = Some(Local::new(base.group.borrow_owner(), address, length)?);
            }
            _ => return Err(no_collective()),
        }
        Ok(base)
    }

    fn group(&self) -> &Group<'_> {
        self.group.borrow_dependent().group()
    }
}

/// What goes on in a group.
enum State<'a> {
    Collective(Call<'a>),
    Message(Posted<'a>),
    Ended,
}

self_cell!(
    struct CallCell {
        owner: CallBase,
        #[covariant]
        dependent: State,
    }
);

/// A collective or a message of a group that is under way. Serves one call at a time.
pub struct qnic_call(Mutex<CallCell>);

/// Takes part in a collective, and waits until it has ended. When `timeout_ns` nanoseconds are over, 10
/// minutes at most, the group ends.
///
/// Fails with `QNIC_E_NOT_EXPORTED`, `QNIC_E_ARGUMENT` before it has begun; with `QNIC_E_TIMED_OUT`,
/// `QNIC_E_PEER_GONE`, `QNIC_E_MISMATCH`, … the group has ended.
#[no_mangle]
pub extern "C" fn qnic_group_collective(
    group: *mut qnic_group,
    collective: In<qnic_collective>,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        let collective = collective.head()?;
        let base = CallBase::with_memory(group, &collective)?;
        let operation = operation(base.group(), &collective, base.local.as_ref())?;
        Ok(operation.timeout(limit(timeout_ns)).wait()?)
    })
}

/// Begins a collective: `qnic_call_wait` waits for its end.
///
/// Fails as `qnic_group_collective`.
#[no_mangle]
pub extern "C" fn qnic_group_collective_post(
    group: *mut qnic_group,
    collective: In<qnic_collective>,
    timeout_ns: i64,
    call: Out<*mut qnic_call>,
) -> c_int {
    open(call, || {
        let collective = collective.head()?;
        let base = CallBase::with_memory(group, &collective)?;
        let cell = CallCell::try_new(base, |base| -> Result<_> {
            let operation = operation(base.group(), &collective, base.local.as_ref())?;
            Ok(State::Collective(
                operation.timeout(limit(timeout_ns)).post()?,
            ))
        })?;
        Ok(qnic_call(Mutex::new(cell)))
    })
}

/// A message to members as C describes it.
#[derive(Clone, Copy)]
struct MessageCall {
    group: *mut qnic_group,
    ranks: In<u32>,
    count: usize,
    to: In<qnic_match>,
    bytes: In<c_void>,
    length: usize,
}

impl MessageCall {
    fn base(&self) -> Result<CallBase> {
        let mut base = CallBase::new(self.group)?;
        base.ranks = self.ranks.items(self.count)?.to_vec();
        let endpoint = base.group.borrow_owner();
        let room = endpoint.inline_max().min(INLINE_CAPACITY);
        let mut copy = [0; INLINE_CAPACITY];
        if self.bytes.copy_to(self.length, &mut copy[..room])? {
            base.inline = copy[..self.length].to_vec();
        } else {
            base.local = Some(Local::new(endpoint, self.bytes.address(), self.length)?);
        }
        Ok(base)
    }

    fn describe<'b>(&self, base: &'b CallBase) -> Result<Multicast<'b>> {
        let to = self.to.head()?;
        let source = match &base.local {
            Some(local) => Source::Part(local.part()),
            None => Source::Bytes(&base.inline),
        };
        let message = base.group().multicast(Tag(to.tag), source);
        let message = message.immediate(to.immediate).at(to.endpoint()?);
        Ok(match base.ranks.is_empty() {
            true => message,
            false => message.to(&base.ranks),
        })
    }
}

/// Sends a message to the members of `ranks`, 63 at most, or to all others if `count` is 0, and waits
/// until it was received, or staged as a whole, everywhere, up to `timeout_ns` nanoseconds. Of `to`,
/// tag, immediate and endpoint say something. Ordinary receives take it.
///
/// Fails with `QNIC_E_TIMED_OUT`: if it has begun, it goes on; `QNIC_E_ARGUMENT`: no such rank;
/// `QNIC_E_NOT_EXPORTED`, `QNIC_E_PEER_GONE`.
#[no_mangle]
pub extern "C" fn qnic_group_send(
    group: *mut qnic_group,
    ranks: In<u32>,
    count: usize,
    to: In<qnic_match>,
    bytes: In<c_void>,
    length: usize,
    timeout_ns: i64,
) -> c_int {
    let message = MessageCall {
        group,
        ranks,
        count,
        to,
        bytes,
        length,
    };
    call(|| {
        let base = message.base()?;
        let described = message.describe(&base)?;
        Ok(described.timeout(timeout(timeout_ns)).wait()?)
    })
}

/// Begins to send a message to members; never waits for a receiver. `call` may be null: then nothing
/// tells of its end.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: 64 of this process in this group have not ended; and as
/// `qnic_group_send`.
#[no_mangle]
pub extern "C" fn qnic_group_send_post(
    group: *mut qnic_group,
    ranks: In<u32>,
    count: usize,
    to: In<qnic_match>,
    bytes: In<c_void>,
    length: usize,
    call: Out<*mut qnic_call>,
) -> c_int {
    let message = MessageCall {
        group,
        ranks,
        count,
        to,
        bytes,
        length,
    };
    open_if_wanted(call, || {
        let cell = CallCell::try_new(message.base()?, |base| -> Result<_> {
            Ok(State::Message(message.describe(base)?.post()?))
        })?;
        Ok(qnic_call(Mutex::new(cell)))
    })
}

/// Says whether a call has ended well, without waiting.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: it goes on; or with why it failed.
#[no_mangle]
pub extern "C" fn qnic_call_test(call: *mut qnic_call) -> c_int {
    self::call_of(call, |state| {
        let has_ended = match state {
            State::Collective(call) => call.test()?,
            State::Message(posted) => posted.test()?,
            State::Ended => true,
        };
        match has_ended {
            true => Ok(()),
            false => Err(Failure::would_block()),
        }
    })
}

/// Waits until a call has ended: of a message up to `timeout_ns` nanoseconds, of a collective for the
/// time that it was given.
///
/// Fails with `QNIC_E_TIMED_OUT`: the message goes on; or with why it failed.
#[no_mangle]
pub extern "C" fn qnic_call_wait(call: *mut qnic_call, timeout_ns: i64) -> c_int {
    self::call_of(call, |state| {
        if let State::Message(posted) = state {
            return Ok(posted.wait(timeout(timeout_ns))?);
        }
        match std::mem::replace(state, State::Ended) {
            State::Collective(call) => Ok(call.wait()?),
            _ => Ok(()),
        }
    })
}

fn call_of(call: *mut qnic_call, work: impl FnOnce(&mut State<'_>) -> Result<()>) -> c_int {
    crate::border::call(|| {
        let call = get(call)?;
        let outcome = turn(&call.0)?.with_dependent_mut(|_, state| work(state));
        outcome
    })
}

/// Closes a call. A collective is waited for; a message goes on, and nothing tells of its failure.
#[no_mangle]
pub extern "C" fn qnic_call_close(call: *mut qnic_call) -> c_int {
    close(call)
}
