//! What an enabled endpoint has at the NIC: a process on a port, bounce memory, operations under way.
//!
//! ```text
//!   post ─► bounce memory ─► NIC ─► ends: which request? ─► the operation ─► the program's memory ─► Cq
//! ```
//! | module | holds |
//! |---|---|
//! | `sends`, `receives`, `many`, `claims` | operations of the program: Sends, receives, receives of many messages, peeks |
//! | [`mark`] | what a message tells the other endpoint beside |
//! | `answers` | that a program has its message (FI_DELIVERY_COMPLETE) |
//! | `long` | messages that go in pieces |
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
mod iovs;
mod long;
mod many;
mod mark;
mod receives;
mod sends;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qnic::message::{Claimed, Completion, Ends, News, Request, RequestId};
use qnic::{Endpoint, Error, Nic, NodeId, Port};
use rustix::event::Timespec;
use self_cell::self_cell;

use crate::address::Address;
use crate::arena::{Arena, Bounce};
use crate::av::Av;
use crate::cntr::Cntr;
use crate::cq::{Cq, Event};
use crate::errno::{Errno, Result};
use crate::loader;
use crate::pointers::Context;
use crate::progress::{Rest, Signal, Tended, FEW, FEW_ENDS};
use crate::sys;
use crate::waiting;
use answers::{Answers, Awaited};
use long::{Go, LongPart, LongSend, Pull};
use many::Many;

pub(crate) use claims::Search;
pub(crate) use iovs::Iovs;
pub(crate) use sends::Letter;

/// What operations borrow.
#[derive(Debug)]
struct Process {
    endpoint: Endpoint,
    arena: Arena,
}

type Board<'a> = Mutex<Operations<'a>>;

/// A process: its node, and its port there.
type Peer = (NodeId, Port);

/// What is under way.
struct Operations<'a> {
    ends: Ends<'a>,
    running: HashMap<RequestId, Running<'a>>,
    /// How many have been posted.
    posted: u64,
    /// Messages that a peek has claimed, by the context of the peek.
    claims: Vec<(Context, Claimed<'a>)>,
    answers: Answers,
    /// Messages that go in pieces, by name; and those that come so.
    long: BTreeMap<u16, LongSend>,
    pulls: BTreeMap<u64, Pull>,
    /// How many of what runs are Sends, and how many are receives of the program.
    sends: usize,
    receives: usize,
    /// How the helper looks after them.
    tended: Rest,
    /// Messages have come that end only when the process does something.
    serves: bool,
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
    LongPart(LongPart<'a>),
    Go(Go<'a>),
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
    /// What [`News::changes`] was when nothing was left to do; [`UNKNOWN`]: something may be.
    quiet: AtomicU64,
}

/// No number of changes is so high.
const UNKNOWN: u64 = u64::MAX;

/// What an operation tells when it has ended.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) context: Context,
    /// What kind of operation it is.
    pub(crate) flags: u64,
    /// False: its end is not told, unless it fails.
    pub(crate) told: bool,
    pub(crate) queue: Option<Arc<Cq>>,
    pub(crate) counter: Option<Arc<Cntr>>,
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
    fn fail(&self, room: Option<&Iovs>, reason: (i32, i32)) {
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

/// A Send, or a receive of one message.
struct Operation<'a> {
    // In front: dropped before the bounce memory is used again.
    request: Request<'a>,
    bounce: Option<Bounce>,
    /// Where a receive puts its bytes.
    room: Option<Iovs>,
    report: Report,
    /// Its number, of all that were posted.
    number: u64,
    /// The answer that ends a Send.
    answer: Option<RequestId>,
}

impl<'a> Operations<'a> {
    fn new(ends: Ends<'a>, random: u64) -> Self {
        Operations {
            ends,
            running: HashMap::new(),
            posted: 0,
            claims: Vec::new(),
            answers: Answers::new(random),
            long: BTreeMap::new(),
            pulls: BTreeMap::new(),
            sends: 0,
            receives: 0,
            tended: Rest::Asleep,
            serves: false,
            closed: false,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Answers or pieces are still to be posted, perhaps.
    fn owes(&self) -> bool {
        !self.answers.owed.is_empty() || !self.long.is_empty() || !self.pulls.is_empty()
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
        let running = self.running.remove(&id)?;
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
    /// domain's memory; 0: none does.
    ///
    /// # Errors
    /// Those of [`Nic::register`]; no bounce memory.
    pub(crate) fn new(nic: &Nic, port: Port, memory: Port, av: Arc<Av>) -> Result<Self> {
        let endpoint = nic.register(port).map_err(logged)?;
        let poller = endpoint.poller().map_err(logged)?;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Errno(error.raw_os_error()))?;
        let address = Address {
            node: endpoint.node(),
            port: endpoint.port(),
            memory,
            endpoint: 0,
            incarnation: u64::from_le_bytes(random),
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

    /// Takes back the first receive with this context. Its end comes as a completion. It costs a look at each
    /// operation that is under way.
    ///
    /// # Errors
    /// -FI_ENOENT: there is none.
    pub(crate) fn cancel(&self, context: Context) -> Result<()> {
        self.cell.with_dependent(|_, board| {
            let mut operations = lock(board);
            let numbers = operations.running.iter().filter_map(|(id, running)| {
                let (report, number) = match running {
                    Running::Operation(it) if it.room.is_some() => (&it.report, it.number),
                    Running::Many(it) => (&it.report, it.number),
                    _ => return None,
                };
                (report.context == context).then_some((number, *id))
            });
            let (_, first) = numbers.min().ok_or(Errno(libc::ENOENT))?;
            match operations.running.get_mut(&first) {
                Some(Running::Operation(it)) => it.request.cancel()?,
                Some(Running::Many(it)) => it.request.cancel()?,
                _ => {}
            }
            Ok(())
        })
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
        self.cell.with_dependent(|_, board| {
            let mut operations = lock(board);
            operations.closed = true;
            let running = std::mem::take(&mut operations.running);
            let claims = std::mem::take(&mut operations.claims);
            operations.answers.owed.clear();
            operations.long.clear();
            operations.pulls.clear();
            (operations.sends, operations.receives) = (0, 0);
            drop(operations);
            // Waits until the NIC is done with each.
            drop((running, claims));
        });
    }

    fn complete<'a>(&self, own: &'a Process, operations: &mut Operations<'a>) {
        if operations.closed {
            return;
        }
        let changes = self.take_ends(own, operations);
        self.post_answers(own, operations);
        self.post_pieces(own, operations);
        self.want_help(operations);
        let left = changes.filter(|_| !operations.owes()).unwrap_or(UNKNOWN);
        // Relaxed: a number by itself. What it was stored for is told; a thread that finds another one looks.
        self.quiet.store(left, Ordering::Relaxed);
    }

    /// Looks at all that has ended; what [`News::changes`] was before the last look, which has found nothing.
    fn take_ends<'a>(&self, own: &'a Process, operations: &mut Operations<'a>) -> Option<u64> {
        let news = News::of(&own.endpoint);
        loop {
            let changes = news.changes();
            match operations.ends.take() {
                Ok(Some(id)) => self.look(own, operations, id),
                Ok(None) => return changes,
                Err(_) => {
                    // The NIC is gone, and with it everything: each operation says so.
                    let all: Vec<RequestId> = operations.running.keys().copied().collect();
                    for id in all {
                        self.look(own, operations, id);
                    }
                    return None;
                }
            }
        }
    }

    /// Nothing has come, and nothing is to be done, since all was looked at.
    fn is_quiet(&self, own: &Process) -> bool {
        // Relaxed: as it is stored.
        let quiet = self.quiet.load(Ordering::Relaxed);
        News::of(&own.endpoint).changes() == Some(quiet)
    }

    /// Wakes the helper if there is more to do for it.
    fn want_help(&self, operations: &mut Operations<'_>) {
        let rest = operations.rest();
        if rest > operations.tended {
            operations.tended = rest;
            self.helper.want();
        }
    }

    /// Looks at what a request is of, and tells what has become of it if it has ended.
    fn look<'a>(&self, own: &'a Process, operations: &mut Operations<'a>, id: RequestId) {
        let Some(running) = operations.remove(id) else {
            return;
        };
        #[cfg(test)]
        {
            operations.looks += 1;
        }
        match running {
            Running::Operation(mut operation) => match operation.request.test() {
                Ok(None) => operations.insert(id, Running::Operation(operation)),
                Ok(Some(end)) => self.finish(own, operations, operation, Ok(end)),
                Err(error) => self.finish(own, operations, operation, Err(error)),
            },
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
            Running::Go(mut go) => match go.request.test() {
                Ok(None) => operations.insert(id, Running::Go(go)),
                end => operations.end_go(go, end.err().as_ref()),
            },
            Running::LongPart(mut piece) => match piece.request.test() {
                Ok(None) => operations.insert(id, Running::LongPart(piece)),
                end => self.end_piece(own, operations, piece, end.err().as_ref()),
            },
        }
    }

    fn finish<'a>(
        &self,
        own: &'a Process,
        operations: &mut Operations<'a>,
        operation: Operation<'a>,
        end: qnic::Result<Completion>,
    ) {
        let Operation {
            bounce,
            room,
            report,
            request,
            answer,
            ..
        } = operation;
        drop(request);
        match (room, end) {
            (Some(room), Ok(end)) => {
                self.received(own, operations, (bounce.as_ref(), room), report, &end);
            }
            (room, Err(error)) => {
                if let Some(Running::Awaited(awaited)) = answer.and_then(|it| operations.remove(it))
                {
                    operations.answered(awaited, Some(reason(&error)));
                }
                report.fail(room.as_ref(), reason(&error));
            }
            (None, Ok(_)) => report.tell(Event::of(report.context, report.flags)),
        }
        if let Some(bounce) = bounce {
            own.arena.give_back(bounce);
        }
    }

    /// Notes a request that was posted.
    fn begin<'a>(&self, operations: &mut Operations<'a>, running: Running<'a>) {
        let id = match &running {
            Running::Operation(it) => it.request.id(),
            Running::Many(it) => it.request.id(),
            Running::Awaited(it) => it.request.id(),
            Running::Answer(it) => it.id(),
            Running::LongPart(it) => it.request.id(),
            Running::Go(it) => it.request.id(),
        };
        operations.insert(id, running);
        self.want_help(operations);
    }

    fn source(&self, (node, port): Peer) -> u64 {
        self.av.number(node, port)
    }
}

impl waiting::Engine for Engine {
    fn progress(&self) {
        self.cell.with_dependent(|own, board| {
            if !self.is_quiet(own) {
                self.complete(own, &mut lock(board));
            }
        });
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
        self.cell.with_dependent(|own, board| {
            let mut operations = lock(board);
            self.complete(own, &mut operations);
            operations.tended = operations.rest();
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
