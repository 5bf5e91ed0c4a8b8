//! A process that forks between its transfers, and while requests are under way (X9): they stay exact,
//! and the child is told that the NIC is not its own, whatever it calls or drops.
//!
//! The peer is a second endpoint of this process: its commands take the same path as those of any
//! other peer.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic::message::{wait_any, Destination, Pattern, Request, Source, Tag};
use qnic::{Endpoint, Error, Nic, Port, RemoteSegment, SegmentName, Ticket};

use crate::mapping::{self, Forked};
use qnic_apps::demo::node::{import, say, Exported};
use qnic_apps::demo::options::{ANSWER_LIMIT, DATA, SOURCE};

/// Words of each segment.
const WORDS: u64 = 1024;
const LIMIT: Option<Duration> = Some(ANSWER_LIMIT);
/// Requests that a process has when it forks.
const REQUESTS: u64 = 200;

#[derive(Args)]
pub(crate) struct Options {
    /// Transfers beside each child
    #[arg(long, default_value_t = 2000)]
    rounds: u64,
}

/// What a child does.
#[derive(Clone, Copy, Debug)]
enum Child {
    Ends,
    Calls,
    Drops,
}

/// Everything that the process has of its NIC.
struct Handles {
    remote: RemoteSegment,
    target: Exported,
    source: Exported,
    peer: Endpoint,
    endpoint: Endpoint,
    _nic: Nic,
}

/// Forks one child after the other, and transfers beside each.
pub(crate) fn run(options: &Options) -> Result<()> {
    let handles = RefCell::new(Some(Handles::new()?));
    let mut round = 0;
    for child in [Child::Ends, Child::Calls, Child::Drops] {
        let forked = child.fork(&handles)?;
        let handles = handles.borrow();
        let handles = handles.as_ref().context("they are the parent's")?;
        for _ in 0..options.rounds {
            round += 1;
            handles
                .transfer(round)
                .with_context(|| format!("{child:?}"))?;
        }
        ensure!(forked.succeeded()?, "{child:?}: the child failed");
        // What the parent has is whole, and so is what it gets anew.
        handles
            .message(round)
            .with_context(|| format!("{child:?}"))?;
        Exported::new(&handles.endpoint, SegmentName(99), 4096)?;
        let begun = handles.fork_beside_requests(child);
        begun.with_context(|| format!("{child:?}, beside requests"))?;
    }
    say("forked", round)
}

impl Child {
    fn fork(self, handles: &RefCell<Option<Handles>>) -> Result<Forked> {
        let forked = mapping::fork(|| match self {
            Child::Ends => true,
            Child::Calls => handles.borrow().as_ref().is_some_and(Handles::are_refused),
            Child::Drops => {
                drop(handles.take());
                true
            }
        });
        forked.context("fork")
    }
}

impl Handles {
    fn new() -> Result<Self> {
        let nic = Nic::open().context("open the NIC")?;
        let register = || nic.register(Port(0)).context("register");
        let (endpoint, peer) = (register()?, register()?);
        let bytes = 8 * WORDS as usize;
        let target = Exported::new(&peer, DATA, bytes)?;
        Ok(Handles {
            source: Exported::new(&endpoint, SOURCE, bytes)?,
            remote: import(&endpoint, peer.node().0, peer.port(), DATA)?,
            target,
            peer,
            endpoint,
            _nic: nic,
        })
    }

    /// Writes a word and reads it.
    fn transfer(&self, round: u64) -> Result<()> {
        let (word, at) = (
            round.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            8 * (round % WORDS),
        );
        let (sent, got) = (self.source.part(0, 8), self.source.part(8, 8));
        self.source.buffer.store_u64(0, word)?;
        self.source.buffer.store_u64(8, 0)?;
        let write = self.endpoint.write(&self.remote, at, sent);
        write.timeout(ANSWER_LIMIT).fenced()?;
        ensure!(
            self.target.buffer.load_u64(at as usize)? == word,
            "a write is complete, and its bytes are not there"
        );
        let read = self.endpoint.read(&self.remote, at, got);
        read.timeout(ANSWER_LIMIT).fenced()?;
        ensure!(
            self.source.buffer.load_u64(8)? == word,
            "a read has brought something else"
        );
        Ok(())
    }

    /// Sends a message and receives it.
    fn message(&self, round: u64) -> Result<()> {
        let from = Source::Process(self.endpoint.node(), self.endpoint.port());
        let to = Destination::tagged(self.peer.node(), self.peer.port(), Tag(round));
        let pattern = Pattern::tagged(from, Tag(round));
        let mut receive = self.peer.receive(&pattern, self.target.part(0, 8)).post()?;
        let mut send = self.endpoint.send(&to, &round.to_le_bytes()).post()?;
        send.wait(LIMIT)?;
        receive.wait(LIMIT)?;
        ensure!(self.target.buffer.load_u64(0)? == round, "another message");
        Ok(())
    }

    /// Forks while requests are at each stage: told, taken from the NIC, ended there, and under way.
    /// The parent is told of each, once and in its turn.
    fn fork_beside_requests(&self, child: Child) -> Result<()> {
        let (endpoint, remote) = (&self.endpoint, &self.remote);
        let word = endpoint.atomic::<u64>(remote, 0)?;
        word.swap(0).timeout(ANSWER_LIMIT).wait()?;
        let begin = |number: u64| match number % 2 {
            0 => word.fetch_add(1).begin(),
            _ => endpoint.write(remote, 8, self.source.part(0, 8000)).begin(),
        };
        let mut requests: Vec<_> = (0..8).map(begin).collect::<qnic::Result<_>>()?;
        requests[0].wait(LIMIT)?;
        requests[5].wait(LIMIT)?;
        // Ended, but nothing has looked.
        let last = endpoint.write(remote, 8, b"8 bytes.").post()?;
        while !last.has_ended() {
            std::thread::yield_now();
        }
        let last = RefCell::new(Some(last));
        let more = (8..REQUESTS).map(begin);
        requests.extend(more.collect::<qnic::Result<Vec<_>>>()?);
        let requests = RefCell::new(requests);
        let forked = mapping::fork(|| match child {
            Child::Ends => true,
            Child::Calls => {
                let of_ticket = |ticket: &mut Ticket<'_>| ticket.wait_timeout(ANSWER_LIMIT);
                let ended = last.borrow_mut().as_mut().map(of_ticket);
                matches!(ended, Some(Err(Error::Forked)))
                    && requests.borrow_mut().iter_mut().all(is_refused)
            }
            Child::Drops => {
                drop(last.take());
                requests.borrow_mut().clear();
                true
            }
        });
        let mut requests = requests.into_inner();
        for (number, request) in (0..).zip(&mut requests) {
            let ended = request.wait(LIMIT)?;
            let right = match number % 2 {
                0 => (8, number / 2),
                _ => (8000, 0),
            };
            let told = (ended.length, ended.immediate);
            ensure!(told == right, "request {number} was told {told:?}");
        }
        ensure!(forked?.succeeded()?, "the child failed");
        last.into_inner().map_or(Ok(()), Ticket::wait)?;
        endpoint.flush().timeout(ANSWER_LIMIT).wait()?;
        let added = word.load().timeout(ANSWER_LIMIT).wait()?;
        ensure!(added == REQUESTS / 2, "{added} of {REQUESTS} were executed");
        Ok(())
    }

    /// Returns true if every call is refused because this process was forked, and says which is not.
    fn are_refused(&self) -> bool {
        let endpoint = &self.endpoint;
        let begun = endpoint.atomic::<u64>(&self.remote, 0);
        let begun = begun.and_then(|word| word.load().begin().map(drop));
        let word = || self.source.part(0, 8);
        let to = Destination::tagged(self.peer.node(), self.peer.port(), Tag(1));
        let pattern = Pattern::tagged(Source::Any, Tag(1));
        // The child's own memory now: nothing of this is seen by the parent.
        let stored = self.source.buffer.store_u64(0, 7);
        let calls = [
            ("store", stored.and(Err(Error::Forked))),
            ("write", endpoint.write(&self.remote, 0, word()).fenced()),
            (
                "write inline",
                endpoint.write(&self.remote, 0, b"8 bytes.").fenced(),
            ),
            ("read", endpoint.read(&self.remote, 0, word()).fenced()),
            ("begin", begun),
            ("send", endpoint.send(&to, b"8 bytes.").post().map(drop)),
            (
                "receive",
                endpoint.receive(&pattern, word()).post().map(drop),
            ),
            (
                "import",
                endpoint
                    .import(self.peer.node(), self.peer.port(), DATA, ANSWER_LIMIT)
                    .map(drop),
            ),
            (
                "export",
                endpoint
                    .export(SegmentName(98), &self.source.buffer, qnic::Access::READ)
                    .map(drop),
            ),
            ("path", endpoint.path(self.peer.node()).map(drop)),
            ("reset", endpoint.reset_queue()),
        ];
        // Each says so.
        let refused = calls.map(|(call, result)| says_forked(call, result));
        refused.iter().all(|refused| *refused)
    }
}

/// Returns true if a child is told nothing of a request of its parent, whatever it asks.
fn is_refused(request: &mut Request) -> bool {
    let any = wait_any(std::slice::from_mut(request), LIMIT);
    says_forked("wait for any", any.map(drop))
        && says_forked("wait", request.wait(LIMIT).map(drop))
        && says_forked("test", request.test().map(drop))
}

fn says_forked(call: &str, result: qnic::Result<()>) -> bool {
    let forked = matches!(result, Err(Error::Forked));
    if !forked {
        eprintln!("{call} in a forked child: {result:?}");
    }
    forked
}
