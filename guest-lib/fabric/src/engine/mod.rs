//! What an enabled endpoint has at the NIC: a process on a port, bounce memory, operations under way.
//!
//! ```text
//!   post ─► bounce memory ─► NIC ─► ends: which request? ─► the operation ─► the program's memory ─► Cq
//! ```
//! | module | holds |
//! |---|---|
//! | `operation`, `sends`, `receives`, `many`, `claims` | operations of the program: Sends, receives, receives of many messages, peeks |
//! | [`mark`] | what a message tells the other endpoint beside |
//! | `answers` | that a program has its message (FI_DELIVERY_COMPLETE) |
//! | `long` | messages that go in pieces |
//! | `groups` | groups, and collectives in them |
//! | `iovs`, `bounced` | memory of the program, and its copy in bounce memory |
//!
//! # Invariants
//! - An operation ends once. Its completion is in the queue when the program's memory has its bytes.
//! - The library lists what has ended, so a look costs what has ended, not what is under way. Ends are told in the order
//!   in which they came, but for messages whose pieces or answers come later.
//! - An endpoint that is closed has no operations, and no memory of the program is touched any more.
//! - The lock of the operations is taken before that of a completion queue, never behind it.

mod answers;
mod bounced;
mod claims;
mod groups;
mod iovs;
mod long;
mod many;
mod mark;
mod operation;
mod progress;
mod receives;
mod sends;
mod table;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qnic::message::{set_incarnation, Claimed, Ends, Request, RequestId};
use qnic::{Endpoint, Error, Nic, Port};
use rustix::event::Timespec;
use self_cell::self_cell;

use crate::address::{self, Address, Peer};
use crate::arena::Arena;
use crate::av::Av;
use crate::cntr::Cntr;
use crate::cq::{Cq, Event};
use crate::errno::{Errno, Result};
use crate::fence::{Fences, Ticket};
use crate::loader;
use crate::pointers::Context;
use crate::progress::{Rest, Signal, Tended, FEW, FEW_ENDS};
use crate::sys;
use crate::waiting;
use answers::{Answers, Awaited};
use groups::{Groups, Join, PartCall};
use long::{Go, LongPart, LongSend, Pull};
use many::Many;
use operation::Operation;
use progress::UNKNOWN;
use table::Table;

pub(crate) use claims::Search;
pub(crate) use groups::Told;
pub(crate) use iovs::Iovs;
pub(crate) use sends::Letter;

/// What operations borrow.
#[derive(Debug)]
struct Process {
    endpoint: Endpoint,
    arena: Arena,
}

type Board<'a> = Mutex<Operations<'a>>;

/// What is under way.
struct Operations<'a> {
    ends: Ends<'a>,
    running: Table<Running<'a>>,
    /// How many have been posted.
    posted: u64,
    /// Messages that a peek has claimed, by the context of the peek.
    claims: Vec<(Context, Claimed<'a>)>,
    answers: Answers,
    /// Messages that go in pieces, by name; and those that come so.
    long: BTreeMap<u32, LongSend>,
    pulls: BTreeMap<u64, Pull>,
    groups: Groups<'a>,
    /// How many of what runs are Sends, and how many are receives of the program.
    sends: usize,
    receives: usize,
    /// How the helper looks after them.
    tended: Rest,
    /// Messages have come that end only when the process does something.
    serves: bool,
    /// What discards answers that come late is posted.
    has_late: bool,
    closed: bool,
    /// How often one of them was looked at.
    #[cfg(test)]
    looks: u64,
}

/// What a request is of.
enum Running<'a> {
    Operation(Operation<'a>),
    Many(Many<'a>),
    /// An answer to a Send of this endpoint.
    Awaited(Awaited<'a>),
    /// An answer of this endpoint, whose end is of no interest.
    Answer(Request<'a>),
    /// Waits for an answer that comes late.
    Late(Request<'a>),
    LongPart(LongPart<'a>),
    Go(Go<'a>),
    Join(Join<'a>),
    /// A part of a collective.
    Call(PartCall<'a>),
}

self_cell!(
    struct Cell {
        owner: Process,
        #[not_covariant]
        dependent: Board,
    }
);

/// An endpoint at the NIC.
pub(crate) struct Engine {
    cell: Cell,
    poller: qnic::Poller,
    address: Address,
    av: Arc<Av>,
    helper: Arc<Signal>,
    fences: Arc<Fences>,
    /// What [`qnic::message::News::changes`] was when nothing was left to do; [`UNKNOWN`]: something may be.
    quiet: AtomicU64,
}

/// What an operation tells when it has ended.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) context: Context,
    /// What kind of operation it is.
    pub(crate) flags: u64,
    /// False: its end is not told, unless it fails.
    pub(crate) told: bool,
    pub(crate) queue: Option<Arc<Cq>>,
    pub(crate) counter: Option<Arc<Cntr>>,
    /// Fences wait for its end.
    pub(crate) ticket: Option<Arc<Ticket>>,
}

impl Report {
    /// Of an operation of the provider's own.
    fn silent() -> Self {
        Report {
            context: Context::NULL,
            flags: 0,
            told: false,
            queue: None,
            counter: None,
            ticket: None,
        }
    }

    /// Counts the end of an operation, and tells it if it is to be told.
    pub(crate) fn tell(&self, event: Event) {
        let failed = event.error.is_some();
        if let Some(queue) = self.queue.as_ref().filter(|_| self.told || failed) {
            queue.push(event);
        }
        if let Some(counter) = &self.counter {
            counter.count(failed);
        }
    }

    /// Tells that the operation has failed, or was cancelled.
    pub(crate) fn fail(&self, room: Option<&Iovs>, reason: (i32, i32)) {
        let mut event = Event::of(self.context, self.flags);
        event.error = Some(reason);
        if let Some(room) = room {
            event.entry.buf = room.base();
        }
        self.tell(event);
    }
}

/// Error and status of the NIC, as completions tell them.
fn reason(error: &Error) -> (i32, i32) {
    let Errno(number) = Errno::from(error);
    (number, error.status().map_or(0, |status| status as i32))
}

impl<'a> Operations<'a> {
    fn new(ends: Ends<'a>, random: u32) -> Self {
        Operations {
            ends,
            running: Table::default(),
            posted: 0,
            claims: Vec::new(),
            answers: Answers::new(random),
            long: BTreeMap::new(),
            pulls: BTreeMap::new(),
            groups: Groups::default(),
            sends: 0,
            receives: 0,
            tended: Rest::Asleep,
            serves: false,
            has_late: false,
            closed: false,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Answers, pieces or calls are still to be posted, perhaps.
    fn owes(&self) -> bool {
        let answers = !self.answers.owed.is_empty();
        answers || !self.long.is_empty() || !self.pulls.is_empty() || self.groups.owe()
    }

    /// How the helper is to look after them.
    fn rest(&self) -> Rest {
        let owes = self.owes();
        let many = self.sends > FEW || self.running.len() > FEW_ENDS;
        match self.receives {
            _ if owes || many => Rest::Watching,
            0 => Rest::Asleep,
            _ if self.serves => Rest::Watching,
            _ => Rest::Looking,
        }
    }

    fn insert(&mut self, id: RequestId, running: Running<'a>) {
        match &running {
            Running::Operation(it) if it.room.is_none() => self.sends += 1,
            Running::Operation(_) | Running::Many(_) => self.receives += 1,
            _ => {}
        }
        self.running.insert(id, running);
    }

    fn remove(&mut self, id: RequestId) -> Option<Running<'a>> {
        let running = self.running.remove(id)?;
        match &running {
            Running::Operation(it) if it.room.is_none() => self.sends -= 1,
            Running::Operation(_) | Running::Many(_) => self.receives -= 1,
            _ => {}
        }
        Some(running)
    }

    /// A number that no operation has had.
    fn next_number(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }
}

impl Engine {
    /// Registers a process on a port; 0: any that is free. `memory` is the port of the process that serves the
    /// domain's memory, and its incarnation; port 0: none does.
    ///
    /// # Errors
    /// Those of [`Nic::register`]; no bounce memory.
    pub(crate) fn new(nic: &Nic, port: Port, memory: (Port, u32), av: Arc<Av>) -> Result<Self> {
        let endpoint = nic.register(port).map_err(logged)?;
        let poller = endpoint.poller().map_err(logged)?;
        let incarnation = address::incarnation()?;
        set_incarnation(&endpoint, incarnation);
        let address = Address {
            node: endpoint.node(),
            port: endpoint.port(),
            memory: memory.0,
            endpoint: 0,
            incarnation,
            service: memory.1,
        };
        let arena = Arena::new(&endpoint)?;
        let cell = Cell::new(Process { endpoint, arena }, |own| {
            Mutex::new(Operations::new(
                Ends::of(&own.endpoint),
                address.incarnation,
            ))
        });
        let helper = Arc::new(Signal::new()?);
        Ok(Engine {
            cell,
            poller,
            address,
            av,
            helper,
            fences: Arc::default(),
            quiet: AtomicU64::new(UNKNOWN),
        })
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// The address of a number.
    ///
    /// # Errors
    /// [`INVALID`]: none has it.
    pub(crate) fn address_of(&self, number: u64) -> Result<Address> {
        self.av.address(number)
    }

    #[cfg(test)]
    pub(crate) fn looks(&self) -> u64 {
        self.cell.with_dependent(|_, board| lock(board).looks)
    }

    /// What wakes the thread that helps.
    pub(crate) fn helper(&self) -> Arc<Signal> {
        self.helper.clone()
    }

    /// Ends what is under way without telling of it. No thread touches memory of the program behind this.
    pub(crate) fn close(&self) {
        self.fences.clear();
        self.cell.with_dependent(|_, board| {
            let mut operations = lock(board);
            operations.closed = true;
            let running = std::mem::take(&mut operations.running);
            let claims = std::mem::take(&mut operations.claims);
            operations.answers.owed.clear();
            operations.long.clear();
            operations.pulls.clear();
            // What is called in them ends then.
            operations.groups = Groups::default();
            (operations.sends, operations.receives) = (0, 0);
            drop(operations);
            // Waits until the NIC is done with each.
            drop((running, claims));
        });
    }

    /// How the helper is to look after the operations.
    fn rest(&self, operations: &Operations<'_>) -> Rest {
        match self.fences.has_held() {
            true => Rest::Watching,
            false => operations.rest(),
        }
    }

    /// What waits for earlier operations of this endpoint.
    pub(crate) fn fences(&self) -> &Arc<Fences> {
        &self.fences
    }

    /// Something is held: it begins as soon as it may, also if the program does not call.
    pub(crate) fn tend_fences(&self) {
        self.fences.run();
        self.cell
            .with_dependent(|_, board| self.want_help(&mut lock(board)));
    }

    /// Wakes the helper if there is more to do for it.
    fn want_help(&self, operations: &mut Operations<'_>) {
        // Whatever has come here may have left something to do. Relaxed: as in `complete`, under the same lock.
        self.quiet.store(UNKNOWN, Ordering::Relaxed);
        let rest = self.rest(operations);
        if rest > operations.tended {
            operations.tended = rest;
            self.helper.want();
        }
    }

    /// Looks at what a request is of, and tells what has become of it if it has ended.
    fn look<'a>(&self, own: &'a Process, operations: &mut Operations<'a>, id: RequestId) {
        #[cfg(test)]
        {
            operations.looks += u64::from(operations.running.get_mut(id).is_some());
        }
        // Most are of this kind.
        if self.look_at_operation(own, operations, id) {
            return;
        }
        let Some(running) = operations.remove(id) else {
            return;
        };
        match running {
            // It was looked at.
            Running::Operation(_) => {}
            Running::Many(mut many) => match self.look_at_many(own, operations, &mut many) {
                true => own.arena.give_back(many.bounce),
                false => operations.insert(id, Running::Many(many)),
            },
            Running::Awaited(mut awaited) => match awaited.request.test() {
                Ok(None) => operations.insert(id, Running::Awaited(awaited)),
                end => operations.answered(awaited, end.err().as_ref().map(reason)),
            },
            Running::Answer(mut answer) => {
                if let Ok(None) = answer.test() {
                    operations.insert(id, Running::Answer(answer));
                }
            }
            Running::Late(mut late) => match late.test() {
                Ok(None) => operations.insert(id, Running::Late(late)),
                // Another one may come.
                Ok(Some(_)) => operations.has_late = false,
                Err(_) => {}
            },
            Running::Go(mut go) => match go.request.test() {
                Ok(None) => operations.insert(id, Running::Go(go)),
                end => operations.end_go(go, end.err().as_ref()),
            },
            Running::Join(mut join) => match join.joining.test() {
                Ok(None) => operations.insert(id, Running::Join(join)),
                Ok(Some(group)) => self.joined(own, operations, &join, Ok(group)),
                Err(error) => self.joined(own, operations, &join, Err(error)),
            },
            Running::Call(mut part) => match part.call.test() {
                Ok(false) => operations.insert(id, Running::Call(part)),
                end => {
                    let error = end.err();
                    error
                        .as_ref()
                        .inspect(|error| groups::log_difference(error));
                    self.end_part(own, operations, part, error.as_ref().map(reason));
                }
            },
            Running::LongPart(mut piece) => match piece.request.test() {
                Ok(None) => operations.insert(id, Running::LongPart(piece)),
                end => self.end_piece(own, operations, piece, end.err().as_ref()),
            },
        }
    }

    /// Notes a request that was posted.
    fn begin<'a>(&self, operations: &mut Operations<'a>, running: Running<'a>) {
        let id = match &running {
            Running::Operation(it) => it.request.id(),
            Running::Many(it) => it.request.id(),
            Running::Awaited(it) => it.request.id(),
            Running::Answer(it) | Running::Late(it) => it.id(),
            Running::LongPart(it) => it.request.id(),
            Running::Go(it) => it.request.id(),
            Running::Join(it) => it.joining.id(),
            Running::Call(it) => it.call.id(),
        };
        operations.insert(id, running);
        self.want_help(operations);
    }

    fn source(&self, peer: Peer) -> u64 {
        self.av.number(peer)
    }
}

impl waiting::Engine for Engine {
    fn progress(&self) {
        self.cell.with_dependent(|own, board| {
            if !self.is_quiet(own) {
                self.complete(own, &mut lock(board));
            }
        });
        self.fences.run();
    }

    fn prepare_to_wait(&self) -> Result<()> {
        self.poller.prepare_for_any()?;
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl Tended for Engine {
    fn tend(&self) -> Rest {
        waiting::Engine::progress(self);
        self.cell.with_dependent(|own, board| {
            let mut operations = lock(board);
            self.complete(own, &mut operations);
            operations.tended = self.rest(&operations);
            operations.tended
        })
    }

    fn prepare(&self) -> Result<Option<Timespec>> {
        waiting::Engine::prepare_to_wait(self)?;
        Ok(None)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

fn lock<'g, 'a>(board: &'g Board<'a>) -> MutexGuard<'g, Operations<'a>> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the log what an endpoint could not do.
fn logged(error: Error) -> Errno {
    loader::log(sys::LOG_WARN, || error.to_string());
    Errno::from(error)
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
