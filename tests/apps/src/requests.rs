//! A process that has many requests under way when it is paused or killed, or resets its queue: each
//! is told once, of its own operation (N12, X9).
//!
//! Its peer is a `memory-server`. The requests alternate: a write and a read of [`SIZE`] bytes, an
//! atomic operation, and a write that is refused.

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use qnic::message::Request;
use qnic::{Endpoint, Error, RemoteSegment, RemoteU64, Status};
use rustix::process::{getpid, kill_process, Signal};

use crate::memory_server::READ_ONLY;
use qnic_apps::demo::node::{register, say, Exported, Peer};
use qnic_apps::demo::options::{ANSWER_LIMIT, DATA, SOURCE};
use qnic_apps::demo::pattern;

/// Requests that are under way at once.
const REQUESTS: u64 = 1000;
/// Bytes of a write and of a read.
const SIZE: usize = 64 << 10;
/// Where they are in the peer's memory; before it are words that are counted in.
const AT: u64 = 4096;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    peer: Peer,
    /// Stop once, as SIGSTOP does, while requests are under way
    #[arg(long)]
    stop: bool,
    /// Begin more until a signal
    #[arg(long)]
    stay: bool,
}

/// What requests are made of.
struct User<'a> {
    endpoint: &'a Endpoint,
    data: &'a RemoteSegment,
    read_only: &'a RemoteSegment,
    memory: &'a Exported,
    word: &'a RemoteU64,
}

/// Begins requests and drops them by a reset; begins others, and is told of each.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (_nic, endpoint) = register(0)?;
    let data = &options.peer.import(&endpoint, DATA)?;
    let read_only = &options.peer.import(&endpoint, READ_ONLY)?;
    let memory = &Exported::new(&endpoint, SOURCE, 2 * SIZE)?;
    let expected = pattern::bytes(7, SIZE);
    memory.buffer.write(0, &expected)?;
    let words = [0, 8].map(|at| endpoint.atomic::<u64>(data, at));
    let [dropped, word] = words;
    let (dropped, word) = (&dropped?, &word?);
    let user = User {
        endpoint: &endpoint,
        data,
        read_only,
        memory,
        word,
    };
    User {
        word: dropped,
        ..user
    }
    .reset()
    .context("reset")?;
    let requests = user.begin()?;
    say("begun", REQUESTS)?;
    if options.stop {
        kill_process(getpid(), Signal::STOP).context("stop")?;
    }
    user.tell(requests)?;
    if options.stay {
        loop {
            user.tell(user.begin()?)?;
        }
    }
    let back = memory.part(SIZE, SIZE);
    endpoint
        .read(data, AT, back)
        .timeout(ANSWER_LIMIT)
        .fenced()?;
    let same = memory.buffer.read_vec(SIZE, SIZE)? == expected;
    ensure!(same, "other bytes than were written");
    say("told", REQUESTS)
}

impl<'a> User<'a> {
    fn begin(&self) -> Result<Vec<Request<'a>>> {
        let User {
            endpoint,
            data,
            memory,
            ..
        } = *self;
        let begin = |number: u64| {
            let begun = match number % 4 {
                0 => endpoint.write(data, AT, memory.part(0, SIZE)).begin(),
                1 => endpoint.read(data, AT, memory.part(SIZE, SIZE)).begin(),
                2 => self.word.fetch_add(1).begin(),
                _ => endpoint.write(self.read_only, 0, b"intrudes").begin(),
            };
            begun.with_context(|| format!("begin request {number}"))
        };
        (0..REQUESTS).map(begin).collect()
    }

    /// Waits for all requests: each has ended as it should, and nothing is left to tell.
    fn tell(&self, requests: Vec<Request>) -> Result<()> {
        let mut counted = Vec::new();
        for (number, mut request) in (0..).zip(requests) {
            let ended = request.wait(Some(ANSWER_LIMIT));
            counted.extend(is_right(number, ended)?);
        }
        counted.sort_unstable();
        let first = counted.first().copied().context("nothing was counted")?;
        let in_turn = (first..).zip(&counted).all(|(due, told)| due == *told);
        ensure!(in_turn, "counted otherwise than one by one: {counted:?}");
        Ok(self.endpoint.flush().timeout(ANSWER_LIMIT).wait()?)
    }

    /// Resets the queue while requests are under way: what has not ended says so.
    fn reset(&self) -> Result<()> {
        let requests = self.begin()?;
        self.endpoint.reset_queue()?;
        for (number, mut request) in (0..).zip(requests) {
            match request.wait(Some(ANSWER_LIMIT)) {
                Err(Error::QueueReset) => {}
                ended => drop(is_right(number, ended)?),
            }
        }
        Ok(self.endpoint.flush().timeout(ANSWER_LIMIT).wait()?)
    }
}

/// Fails unless this is how the request of a number ends. Returns what an atomic one has counted.
fn is_right(number: u64, ended: qnic::Result<qnic::request::Completion>) -> Result<Option<u64>> {
    let length = match number % 4 {
        0 | 1 => SIZE as u64,
        _ => 8,
    };
    match (number % 4, ended) {
        (2, Ok(ended)) if ended.length == length => Ok(Some(ended.immediate)),
        (0 | 1, Ok(ended)) if (ended.length, ended.offset) == (length, AT) => Ok(None),
        (3, Err(error)) if error.status() == Some(Status::AccessDenied) => Ok(None),
        (_, other) => bail!("request {number} was told {other:?}"),
    }
}
