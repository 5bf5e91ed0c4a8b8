//! What an enabled endpoint has at the NIC: a process on a port, bounce memory, operations under way.
//!
//! ```text
//!   post ─► bounce memory ─► NIC      progress: each operation ─ ended? ─► the program's memory ─► Cq
//! ```
//! # Invariants
//! - An operation ends once. Its completion is in the queue when the program's memory has its bytes.
//! - Operations are looked at one by one, in the order of their posts: ends are told in the order in which they are
//!   seen, which need not be that in which they came. It costs a look at each that is under way; a list of those that
//!   have ended would be the library's.
//! - The lock of the operations is taken before that of a completion queue, never behind it.

mod claims;
mod iovs;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qnic::message::{Claimed, Completion, Destination, MessageEndpoint, Pattern, Request, Source};
use qnic::{Endpoint, Error, Nic, NodeId, Port};
use self_cell::self_cell;

use crate::address::Address;
use crate::arena::{Arena, Bounce};
use crate::av::Av;
use crate::cntr::Cntr;
use crate::cq::{Cq, Event};
use crate::errno::{Errno, Result, INVALID, TOO_LONG};
use crate::info::offer::MESSAGE_MAX;
use crate::loader;
use crate::pointers::Context;
use crate::progress::{Signal, Tended, FEW, FEW_ENDS};
use crate::sys::{self, FI_ETRUNC};
use crate::waiting;

pub(crate) use claims::Search;
pub(crate) use iovs::Iovs;

/// Longest command payload that is looked for: bytes of a message that need no bounce memory.
const INLINE_MAX: usize = 256;

/// What operations borrow.
#[derive(Debug)]
struct Process {
    endpoint: Endpoint,
    arena: Arena,
}

type Board<'a> = Mutex<Operations<'a>>;

/// What is under way, in the order of the posts.
#[derive(Default)]
struct Operations<'a> {
    list: Vec<Operation<'a>>,
    /// Messages that a peek has claimed, by the context of the peek.
    claims: Vec<(Context, Claimed<'a>)>,
    /// How many of them are Sends.
    sends: usize,
    /// They are so many that the helper looks after them.
    are_tended: bool,
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
}

/// What an operation tells when it has ended.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) context: Context,
    /// What kind of operation it is.
    pub(crate) flags: u64,
    /// `None`: its end is not told, unless it fails.
    pub(crate) told: bool,
    pub(crate) queue: Option<Arc<Cq>>,
    pub(crate) counter: Option<Arc<Cntr>>,
}

impl Report {
    /// Counts the end of an operation, and tells it if it is to be told.
    fn tell(&self, event: Option<Event>) {
        let failed = event.as_ref().is_some_and(|event| event.error.is_some());
        if let Some((queue, event)) = self.queue.as_ref().zip(event) {
            queue.push(event);
        }
        if let Some(counter) = &self.counter {
            counter.count(failed);
        }
    }
}

struct Operation<'a> {
    // In front: dropped before the bounce memory is used again.
    request: Request<'a>,
    bounce: Option<Bounce>,
    /// Where a receive puts its bytes.
    room: Option<Iovs>,
    report: Report,
}

impl<'a> Operations<'a> {
    fn are_many(&self) -> bool {
        self.sends > FEW || self.list.len() > FEW_ENDS
    }

    fn take(&mut self, index: usize) -> Operation<'a> {
        let operation = self.list.remove(index);
        self.sends -= usize::from(operation.room.is_none());
        operation
    }
}

impl Engine {
    /// Registers a process on a port; 0: any that is free.
    ///
    /// # Errors
    /// Those of [`Nic::register`]; no bounce memory.
    pub(crate) fn new(nic: &Nic, port: Port, av: Arc<Av>) -> Result<Self> {
        let endpoint = nic.register(port).map_err(logged)?;
        let poller = endpoint.poller().map_err(logged)?;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Errno(error.raw_os_error()))?;
        let address = Address {
            node: endpoint.node(),
            port: endpoint.port(),
            memory: Port(0),
            endpoint: 0,
            incarnation: u64::from_le_bytes(random),
        };
        let arena = Arena::new(&endpoint)?;
        let cell = Cell::new(Process { endpoint, arena }, |_| Board::default());
        let helper = Arc::new(Signal::new()?);
        Ok(Engine {
            cell,
            poller,
            address,
            av,
            helper,
        })
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// Posts a Send. Its memory may change as soon as this has returned.
    ///
    /// # Errors
    /// [`crate::errno::AGAIN`]: there is no room for it now. [`TOO_LONG`], [`INVALID`]
    pub(crate) fn send(
        &self,
        to: u64,
        tag: Option<u64>,
        data: u64,
        from: &Iovs,
        report: Report,
    ) -> Result<()> {
        let length = from.len();
        if length > MESSAGE_MAX {
            return Err(TOO_LONG);
        }
        let to = self.av.address(to)?;
        let at = MessageEndpoint::new(to.endpoint).ok_or(INVALID)?;
        let destination = match tag {
            Some(tag) => Destination::tagged(to.node, to.port, qnic::message::Tag(tag)),
            None => Destination::untagged(to.node, to.port),
        };
        let destination = destination.at(at).immediate(data);
        self.cell.with_dependent(|own, board| {
            let mut operations = lock(board);
            let mut copy = [0; INLINE_MAX];
            let inline = own.endpoint.inline_max().min(INLINE_MAX);
            let Some(copy) = copy.get_mut(..length).filter(|_| length <= inline) else {
                let operation = post_long(own, &destination, from, report)?;
                self.begin(&mut operations, operation);
                return Ok(());
            };
            from.gather(|offset, bytes| {
                let place = copy.get_mut(offset..offset + bytes.len()).ok_or(INVALID)?;
                place.copy_from_slice(bytes);
                Ok(())
            })?;
            let request = own.endpoint.send(&destination, &*copy).post()?;
            let (bounce, room) = (None, None);
            let operation = Operation {
                request,
                bounce,
                room,
                report,
            };
            self.begin(&mut operations, operation);
            Ok(())
        })
    }

    /// Posts a receive, from a sender or from any, with a tag and bits of it to ignore, or without.
    ///
    /// # Errors
    /// Those of [`Engine::send`]
    pub(crate) fn receive(
        &self,
        from: Option<u64>,
        tag: Option<(u64, u64)>,
        room: Iovs,
        report: Report,
    ) -> Result<()> {
        let pattern = self.pattern(from, tag)?;
        // No message is longer.
        let length = room.len().min(MESSAGE_MAX);
        self.cell.with_dependent(|own, board| {
            let mut operations = lock(board);
            let bounce = own.arena.take(&own.endpoint, length)?;
            let posted = own.arena.part(&bounce, length).and_then(|part| {
                let posted = own.endpoint.receive(&pattern, part).post();
                posted.map_err(Errno::from)
            });
            let request = match posted {
                Ok(request) => request,
                Err(error) => {
                    own.arena.give_back(bounce);
                    return Err(error);
                }
            };
            let (bounce, room) = (Some(bounce), Some(room));
            let operation = Operation {
                request,
                bounce,
                room,
                report,
            };
            self.begin(&mut operations, operation);
            Ok(())
        })
    }

    /// What a receive takes.
    fn pattern(&self, from: Option<u64>, tag: Option<(u64, u64)>) -> Result<Pattern> {
        let source = match from {
            None => Source::Any,
            Some(from) => {
                let from = self.av.address(from)?;
                Source::Process(from.node, from.port)
            }
        };
        Ok(match tag {
            Some((tag, ignore)) => Pattern::ignoring(source, qnic::message::Tag(tag), ignore),
            None => Pattern::untagged(source),
        })
    }

    /// Takes back the first receive with this context. Its end comes as a completion.
    ///
    /// # Errors
    /// -FI_ENOENT: there is none.
    pub(crate) fn cancel(&self, context: Context) -> Result<()> {
        self.cell.with_dependent(|_, board| {
            let mut operations = lock(board);
            let has_context =
                |it: &&mut Operation<'_>| it.report.context == context && it.room.is_some();
            let operation = operations.list.iter_mut().find(has_context);
            Ok(operation.ok_or(Errno(libc::ENOENT))?.request.cancel()?)
        })
    }

    /// What wakes the thread that helps.
    pub(crate) fn helper(&self) -> Arc<Signal> {
        self.helper.clone()
    }

    fn complete(&self, own: &Process, operations: &mut Operations<'_>) {
        let mut index = 0;
        while let Some(operation) = operations.list.get_mut(index) {
            match operation.request.test() {
                Ok(None) => index += 1,
                Ok(Some(end)) => self.finish(own, operations.take(index), Ok(end)),
                Err(error) => self.finish(own, operations.take(index), Err(error)),
            }
        }
    }

    /// Notes an operation that was posted, and wakes the helper if they have become many.
    fn begin<'a>(&self, operations: &mut Operations<'a>, operation: Operation<'a>) {
        operations.sends += usize::from(operation.room.is_none());
        operations.list.push(operation);
        if operations.are_many() && !operations.are_tended {
            operations.are_tended = true;
            self.helper.want();
        }
    }

    fn finish(&self, own: &Process, operation: Operation<'_>, end: qnic::Result<Completion>) {
        let Operation {
            bounce,
            room,
            report,
            request,
        } = operation;
        drop(request);
        let event = match end {
            Ok(end) => self.ended(own, &bounce, &room, &report, end),
            Err(error) => Some(failed(&report, room.as_ref(), &error)),
        };
        if let Some(bounce) = bounce {
            own.arena.give_back(bounce);
        }
        report.tell(event);
    }

    /// What is told of an operation that has moved its bytes.
    fn ended(
        &self,
        own: &Process,
        bounce: &Option<Bounce>,
        room: &Option<Iovs>,
        report: &Report,
        end: Completion,
    ) -> Option<Event> {
        let (Some(bounce), Some(room)) = (bounce, room) else {
            return report.told.then(|| Event::of(report.context, report.flags));
        };
        let sent = usize::try_from(end.length).unwrap_or(usize::MAX);
        let length = sent.min(room.len());
        let copied = room.scatter(length, |offset, bytes| {
            own.arena.read(bounce, offset, bytes)
        });
        let mut event = Event::of(report.context, report.flags);
        event.entry.len = length;
        event.entry.buf = room.base();
        event.entry.tag = end.tag.0;
        event.entry.data = end.immediate;
        if end.immediate != 0 {
            event.entry.flags |= sys::REMOTE_CQ_DATA;
        }
        event.source = self.source(end.node, end.port);
        if let Err(Errno(number)) = copied {
            event.error = Some((number, 0));
        } else if sent > length {
            event.error = Some((FI_ETRUNC, 0));
            event.beyond = sent - length;
        }
        (report.told || event.error.is_some()).then_some(event)
    }

    fn source(&self, node: NodeId, port: Port) -> u64 {
        self.av.number(node, port)
    }
}

impl waiting::Engine for Engine {
    fn progress(&self) {
        self.cell
            .with_dependent(|own, board| self.complete(own, &mut lock(board)));
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
    fn tend(&self) -> bool {
        self.cell.with_dependent(|own, board| {
            let mut operations = lock(board);
            self.complete(own, &mut operations);
            operations.are_tended = operations.are_many();
            operations.are_tended
        })
    }

    fn prepare(&self) -> Result<()> {
        waiting::Engine::prepare_to_wait(self)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

fn post_long<'a>(
    own: &'a Process,
    destination: &Destination,
    from: &Iovs,
    report: Report,
) -> Result<Operation<'a>> {
    let bounce = own.arena.take(&own.endpoint, from.len())?;
    let gathered = from.gather(|offset, bytes| own.arena.write(&bounce, offset, bytes));
    let posted = gathered.and_then(|()| {
        let part = own.arena.part(&bounce, from.len())?;
        Ok(own.endpoint.send(destination, part).post()?)
    });
    match posted {
        Ok(request) => Ok(Operation {
            request,
            bounce: Some(bounce),
            room: None,
            report,
        }),
        Err(error) => {
            own.arena.give_back(bounce);
            Err(error)
        }
    }
}

/// What is told of an operation that has failed, or was cancelled.
fn failed(report: &Report, room: Option<&Iovs>, error: &Error) -> Event {
    let mut event = Event::of(report.context, report.flags);
    let Errno(number) = Errno::from(error);
    let status = error.status().map_or(0, |status| status as i32);
    event.error = Some((number, status));
    if let Some(room) = room {
        event.entry.buf = room.base();
    }
    event
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
