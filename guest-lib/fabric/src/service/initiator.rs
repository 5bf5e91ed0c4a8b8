//! Operations of this process on the memory of others.
//!
//! ```text
//!   Operation ─► Stream of its peer: waiting ─► pieces ─► at most WINDOW under way ─► replies ─► Report
//! ```
//! A stream is the requests to one service in their order. It ends, with all of its operations, when one of its
//! messages fails: the peer has ended or is silent. The next operation begins a new one.
//!
//! # Invariants
//! - Pieces of a stream are issued in the order of the operations, and none once its operation has failed.
//! - Names of streams and of replies begin at a random number in each process: what is for one process on a port, the
//!   next one does not take.
//! - An operation is told of once, when all of its pieces that were issued have ended. Its memory is not touched
//!   afterwards, nor once its endpoint is closed.

use std::collections::{HashMap, VecDeque};

use qnic::message::{Request, Tag};
use qnic::Port;

use super::outgoing::{Leaving, Sent, GONE};
use super::wire::{self, Action};
use super::{Process, WINDOW};
use crate::address::{Address, Peer};
use crate::arena::Bounce;
use crate::cq::Event;
use crate::engine::Report;
use crate::errno::{Errno, Result, AGAIN};
use crate::memory::Memory;
use crate::regions::DENIED;

/// Most operations of a process that have not ended.
const OPERATIONS_MAX: usize = 4096;

/// What an operation brings to its peer.
#[derive(Debug, Clone)]
pub(crate) enum Brought {
    /// Memory of the program, which must not change before the operation has ended.
    Memory(Memory),
    Copied(Vec<u8>),
}

/// An operation on a peer's memory.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub(crate) action: Action,
    pub(crate) to: Address,
    /// The endpoint that asks.
    pub(crate) from: Peer,
    pub(crate) key: u64,
    pub(crate) offset: u64,
    /// Bytes of the peer's memory.
    pub(crate) length: usize,
    /// Data for a completion at the peer.
    pub(crate) data: Option<u64>,
    pub(crate) brought: Brought,
    /// Where bytes go that come back.
    pub(crate) result: Memory,
    pub(crate) report: Report,
}

/// An operation under way.
struct Begun {
    operation: Operation,
    /// Bytes of which pieces are issued.
    issued: usize,
    /// Pieces under way.
    pieces: usize,
    is_issued: bool,
    failed: Option<Errno>,
}

struct Fragment<'a> {
    /// The number of its operation.
    of: u64,
    at: usize,
    length: usize,
    /// `None`: it has ended.
    sent: Option<Sent<'a>>,
    // In front of its memory.
    reply: Request<'a>,
    room: Bounce,
}

struct Stream<'a> {
    id: u64,
    sequence: u64,
    begun: HashMap<u64, Begun>,
    /// Operations of which pieces are to be issued.
    waiting: VecDeque<u64>,
    pieces: Vec<Fragment<'a>>,
}

/// All operations of a process.
#[derive(Default)]
pub(super) struct Initiator<'a> {
    streams: HashMap<Peer, Stream<'a>>,
    numbers: Numbers,
}

/// Numbers of operations, and names of replies and streams: of those that another process had on the same port
/// before, messages may come late.
#[derive(Default)]
struct Numbers {
    last: u64,
    /// Random: where the names of this process begin.
    session: u64,
}

impl Numbers {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn name(&mut self) -> u64 {
        self.session.wrapping_add(self.next())
    }
}

impl<'a> Initiator<'a> {
    pub(super) fn new(session: u64) -> Self {
        Initiator {
            streams: HashMap::new(),
            numbers: Numbers { last: 0, session },
        }
    }

    /// Begins an operation.
    ///
    /// # Errors
    /// [`AGAIN`]: too many are under way.
    pub(super) fn begin(&mut self, operation: Operation) -> Result<()> {
        if self.under_way() >= OPERATIONS_MAX {
            return Err(AGAIN);
        }
        let (number, id) = (self.numbers.next(), self.numbers.name());
        let peer = operation.to.memory_peer();
        let stream = self.streams.entry(peer).or_insert_with(|| Stream::new(id));
        stream.waiting.push_back(number);
        let begun = Begun {
            operation,
            issued: 0,
            pieces: 0,
            is_issued: false,
            failed: None,
        };
        stream.begun.insert(number, begun);
        Ok(())
    }

    /// How many operations have not ended.
    pub(super) fn under_way(&self) -> usize {
        self.streams.values().map(|stream| stream.begun.len()).sum()
    }

    /// Tells what has ended, and issues what there is room for.
    pub(super) fn tend(&mut self, own: &'a Process, leaving: &mut Leaving<'a>) {
        let numbers = &mut self.numbers;
        self.streams.retain(|peer, stream| {
            let went_on = stream
                .complete(own, leaving, *peer)
                .and_then(|()| stream.issue(own, *peer, numbers));
            if let Err(error) = went_on {
                stream.fail(leaving, *peer, error);
            }
            // An idle one ends: another process may have its peer's port when there is more to do.
            went_on.is_ok() && !(stream.begun.is_empty() && stream.pieces.is_empty())
        });
    }

    /// Forgets the operations of the endpoint on a port.
    pub(super) fn forget(&mut self, from: Port) {
        for stream in self.streams.values_mut() {
            stream
                .begun
                .retain(|_, begun| begun.operation.from.port != from);
        }
    }
}

impl<'a> Stream<'a> {
    fn new(id: u64) -> Self {
        Stream {
            id,
            sequence: 0,
            begun: HashMap::new(),
            waiting: VecDeque::new(),
            pieces: Vec::new(),
        }
    }

    /// Ends the pieces that have got their reply.
    ///
    /// # Errors
    /// A message has failed: the peer is gone.
    fn complete(&mut self, own: &'a Process, leaving: &mut Leaving<'a>, peer: Peer) -> Result<()> {
        let mut index = 0;
        while let Some(piece) = self.pieces.get_mut(index) {
            if let Some(sent) = &mut piece.sent {
                if sent.test()? {
                    piece
                        .sent
                        .take()
                        .into_iter()
                        .for_each(|sent| sent.finish(own));
                }
            }
            let Some(end) = piece.reply.test()? else {
                index += 1;
                continue;
            };
            let length = usize::try_from(end.length).unwrap_or(usize::MAX);
            let piece = self.pieces.swap_remove(index);
            self.answered(own, &piece, length.min(wire::MESSAGE_MAX));
            drop(piece.reply);
            own.arena.give_back(piece.room);
            if let Some(sent) = piece.sent {
                leaving.send(peer, sent);
            }
        }
        Ok(())
    }

    /// Takes a reply of so many bytes.
    fn answered(&mut self, own: &Process, piece: &Fragment<'_>, length: usize) {
        let Some(begun) = self.begun.get_mut(&piece.of) else {
            // Its endpoint is closed.
            return;
        };
        let operation = &begun.operation;
        let expected = operation.action.answered(piece.length);
        let mut message = vec![0; length.min(wire::REPLY_BYTES + expected)];
        let read = own.arena.read(&piece.room, 0, &mut message);
        let reply = read.ok().and_then(|()| wire::parse_reply(&message));
        let end = match reply {
            Some((Ok(()), bytes)) if bytes.len() == expected => {
                operation.result.write(piece.at, bytes)
            }
            Some((Err(error), _)) => Err(error),
            // Nothing that a service says.
            _ => Err(Errno(libc::EIO)),
        };
        begun.pieces -= 1;
        if let Err(error) = end {
            begun.failed.get_or_insert(error);
        }
        self.end(piece.of);
    }

    /// Tells of an operation if it has ended.
    fn end(&mut self, number: u64) {
        let has_ended = |it: &Begun| it.pieces == 0 && (it.is_issued || it.failed.is_some());
        if !self.begun.get(&number).is_some_and(has_ended) {
            return;
        }
        if let Some(begun) = self.begun.remove(&number) {
            tell(&begun.operation.report, begun.failed);
        }
    }

    /// Issues pieces while there is room.
    ///
    /// # Errors
    /// The peer is gone, or the NIC.
    fn issue(&mut self, own: &'a Process, peer: Peer, numbers: &mut Numbers) -> Result<()> {
        while let Some(number) = self.waiting.front().copied() {
            let begun = self.begun.get_mut(&number);
            let Some(begun) = begun.filter(|it| !it.is_issued && it.failed.is_none()) else {
                self.waiting.pop_front();
                continue;
            };
            let operation = &begun.operation;
            if operation
                .offset
                .checked_add(operation.length as u64)
                .is_none()
            {
                // Its last pieces would be at the region's begin.
                begun.failed = Some(DENIED);
                self.end(number);
                continue;
            }
            if self.pieces.len() >= WINDOW {
                return Ok(());
            }
            let of = (number, self.id, self.sequence, numbers.name());
            match begun.piece(own, peer, of) {
                Ok(piece) => {
                    self.pieces.push(piece);
                    self.sequence += 1;
                }
                // What is under way makes room.
                Err(AGAIN) => return Ok(()),
                Err(Errno(libc::EINVAL)) => {
                    begun.failed = Some(Errno(libc::EFAULT));
                    self.end(number);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends all operations with an error.
    fn fail(&mut self, leaving: &mut Leaving<'a>, peer: Peer, error: Errno) {
        for piece in self.pieces.drain(..) {
            leaving.receive(peer, piece.reply, piece.room);
            if let Some(sent) = piece.sent {
                leaving.send(peer, sent);
            }
        }
        let mut begun: Vec<_> = self.begun.drain().collect();
        begun.sort_by_key(|(number, _)| *number);
        for (_, begun) in begun {
            tell(&begun.operation.report, Some(begun.failed.unwrap_or(error)));
        }
    }
}

impl Begun {
    /// Issues the next piece.
    fn piece<'a>(
        &mut self,
        own: &'a Process,
        peer: Peer,
        (number, stream, sequence, reply): (u64, u64, u64, u64),
    ) -> Result<Fragment<'a>> {
        let operation = &self.operation;
        let at = self.issued;
        let length = (operation.length - at).min(wire::PIECE_MAX);
        let is_last = at + length == operation.length;
        let request = wire::Request {
            stream,
            sequence,
            reply,
            key: operation.key,
            // It does not wrap: `issue` looks before.
            offset: operation.offset.wrapping_add(at as u64),
            length,
            data: operation.data,
            incarnation: operation.to.incarnation,
            source: operation.from.incarnation,
            total: operation.length as u64,
            from: operation.from.port,
            to: operation.to.port,
            is_first: at == 0,
            is_last,
            action: operation.action,
        };
        let brought = operation.action.brought(length);
        let mut gathered = Vec::new();
        let bytes = match &operation.brought {
            _ if brought == 0 => &gathered,
            Brought::Copied(bytes) => bytes.get(at..at + brought).ok_or(GONE)?,
            Brought::Memory(memory) => {
                gathered.resize(brought, 0);
                memory.read(at, &mut gathered)?;
                &gathered
            }
        };
        let room = wire::REPLY_BYTES + operation.action.answered(length);
        let (reply, room) = receive(own, peer, Tag(reply), room)?;
        let to = peer.untagged();
        match Sent::post(own, &to, &request.to_bytes(), bytes) {
            Ok(sent) => {
                self.issued += length;
                self.is_issued = is_last;
                self.pieces += 1;
                Ok(Fragment {
                    of: number,
                    at,
                    length,
                    sent: Some(sent),
                    reply,
                    room,
                })
            }
            Err(error) => {
                // No message has this tag: it ends at once.
                drop(reply);
                own.arena.give_back(room);
                Err(error)
            }
        }
    }
}

/// Posts the receive of a reply.
fn receive<'a>(
    own: &'a Process,
    peer: Peer,
    tag: Tag,
    length: usize,
) -> Result<(Request<'a>, Bounce)> {
    let room = own.arena.take(&own.endpoint, length)?;
    let pattern = peer.pattern(Some((tag, 0)));
    let posted = own.arena.part(&room, length);
    let posted = posted.and_then(|part| Ok(own.endpoint.receive(&pattern, part).post()?));
    match posted {
        Ok(request) => Ok((request, room)),
        Err(error) => {
            own.arena.give_back(room);
            Err(error)
        }
    }
}

fn tell(report: &Report, failed: Option<Errno>) {
    let mut event = Event::of(report.context, report.flags);
    event.error = failed.map(|Errno(number)| (number, 0));
    report.tell(event);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next process on a port does not take what was for the one before it.
    #[test]
    fn names_of_replies_are_those_of_one_process() {
        let of = |session| {
            let mut numbers = Numbers { last: 0, session };
            [(); 1000].map(|()| numbers.name())
        };
        let (first, last) = (of(0x1234_5678_9abc_def0), of(u64::MAX - 1));
        assert!(first.iter().all(|name| !last.contains(name)));
        assert!(first
            .windows(2)
            .chain(last.windows(2))
            .all(|it| it[0] != it[1]));
    }
}
