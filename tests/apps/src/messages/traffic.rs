//! Random traffic of many processes, received by exact patterns and by wildcards.
//!
//! ```text
//!   program ─┬─ process: a thread that sends, a thread that receives
//!            └─ process …                     every process sends to every one, also itself
//! ```
//! Of three messages one is sent by a context, and receives are posted by contexts as long as some
//! are free. Each process knows from the plan which messages come, and wants each, in random order: it posts
//! receives for a third, claims the next third and receives that in another order, and posts
//! receives for the rest. It checks that each message comes once and whole, and that
//! messages of one sender that match equal receives come in the order in which they were sent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use qnic::message::{wait_all, Completion, Destination, Pattern, Request, SHORT_MAX};
use qnic::{Endpoint, Error, Nic, NodeId, Part, Port, SegmentName};

use super::plan::{plan, Planned};
use super::slow::{Sender, Slow};
use qnic_apps::demo::node::{import, say_line, take, Exported};
use qnic_apps::demo::options::{notification, ANSWER_LIMIT, DATA, SOURCE};

/// Port of the first process of each node.
const FIRST_PORT: u16 = 40;
/// Another process has all of its messages.
const DONE: qnic::NotificationId = notification(1);
const INBOX: SegmentName = DATA;
const OUTBOX: SegmentName = SOURCE;

#[derive(Args)]
pub(crate) struct TrafficOptions {
    /// Numbers of all nodes that take part, this one included, such as 0,1,2
    #[arg(long, value_name = "NODE,…", value_delimiter = ',', required = true)]
    nodes: Vec<u16>,
    /// Programs of each node
    #[arg(long, default_value_t = 1)]
    programs: u16,
    /// Which of them this is, from 0
    #[arg(long, default_value_t = 0)]
    program: u16,
    /// Processes of each program
    #[arg(long, default_value_t = 3)]
    processes: u16,
    /// Messages that each process sends
    #[arg(long, default_value_t = 200)]
    count: usize,
    /// Decides which process sends what to which
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Messages that each program first sends to a process that receives them in the end
    #[arg(long)]
    slow: Option<u64>,
}

impl TrafficOptions {
    fn total(&self) -> usize {
        self.nodes.len() * self.ports()
    }

    /// Processes of a node.
    fn ports(&self) -> usize {
        usize::from(self.programs) * usize::from(self.processes)
    }

    /// Node and port of the process with that index.
    fn name(&self, index: usize) -> (NodeId, Port) {
        let port = FIRST_PORT + (index % self.ports()) as u16;
        (NodeId(self.nodes[index / self.ports()]), Port(port))
    }
}

/// Runs all processes of this program; fails at the first message that is not right.
pub(crate) fn traffic(options: &TrafficOptions) -> Result<()> {
    ensure!(
        (1..=64).contains(&options.total()) && options.program < options.programs,
        "1 to 64 processes in all, and --program below --programs"
    );
    ensure!((1..=320).contains(&options.count), "--count: 1 to 320");
    let nic = Nic::open().context("open the NIC")?;
    match options.slow {
        None => exchange(&nic, options),
        Some(count) => beside_a_slow_process(&nic, options, count),
    }
}

/// Exchanges messages while a process receives nothing, and after that all that was sent to it.
fn beside_a_slow_process(nic: &Nic, options: &TrafficOptions, count: u64) -> Result<()> {
    let programs = |node: &u16| (0..options.programs).map(|it| (*node, it)).collect();
    let senders: Vec<Sender> = options
        .nodes
        .iter()
        .flat_map::<Vec<_>, _>(programs)
        .collect();
    let slow = Slow::new(nic, options.program, senders, count)?;
    let slow = &slow;
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| slow.receive());
        let sender = scope.spawn(|| slow.send());
        slow.wait_to_go()?;
        exchange(nic, options)?;
        let join = "a thread panicked";
        let received = receiver.join().unwrap_or_else(|_| bail!(join))?;
        sender.join().unwrap_or_else(|_| bail!(join))?;
        say_line(&serde_json::json!({ "slowly": received }))
    })
}

/// Runs all processes; says how many messages have come.
fn exchange(nic: &Nic, options: &TrafficOptions) -> Result<()> {
    let received = std::thread::scope(|scope| {
        let first = options.program * options.processes;
        let run = |port: u16| scope.spawn(move || Process::run(nic, options, port));
        let ports = (first..first + options.processes).map(|port| FIRST_PORT + port);
        let running: Vec<_> = ports.map(run).collect();
        let ends = running.into_iter().map(|process| match process.join() {
            Ok(received) => received,
            Err(_) => bail!("a process panicked"),
        });
        ends.sum::<Result<usize>>()
    })?;
    say_line(&serde_json::json!({ "received": received }))
}

/// One process, and what it knows about the others.
struct Process<'a> {
    options: &'a TrafficOptions,
    me: usize,
    endpoint: Endpoint,
}

/// Messages that are claimed before one of them is received.
const CLAIMED: usize = 8;

/// A receive that is to be posted for a message, or a claim.
struct Wanted {
    pattern: Pattern,
    /// What is equal for equal patterns.
    class: (Option<usize>, u64),
    room: usize,
    offset: usize,
}

impl Process<'_> {
    /// Returns how many messages have come.
    fn run(nic: &Nic, options: &TrafficOptions, port: u16) -> Result<usize> {
        let endpoint = nic.register(Port(port)).context("register")?;
        let own = (endpoint.node(), endpoint.port());
        let me = (0..options.total()).find(|index| options.name(*index) == own);
        let process = Process {
            options,
            me: me.context("--nodes does not list this node")?,
            endpoint,
        };
        let plans = (0..options.total()).map(|sender| process.plan(sender));
        let plans: Vec<_> = plans.collect();
        let wanted = process.wanted(&plans);
        let room = wanted.last().map_or(1, |last| last.offset + last.room + 1);
        let inbox = Exported::new(&process.endpoint, INBOX, room)?;
        let others = (0..options.total()).map(|other| {
            let (node, port) = options.name(other);
            import(&process.endpoint, node.0, port, INBOX)
        });
        let others = others.collect::<Result<Vec<_>>>()?;
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| process.send(&plans[process.me]));
            let received = process.receive(&wanted, &plans, &inbox);
            let sent = sender.join().unwrap_or_else(|_| bail!("a thread panicked"));
            received.and(sent)
        })?;
        // No process goes before all have what they wait for.
        for other in &others {
            process.endpoint.write(other, 0, b"").notify(DONE).post()?;
        }
        process.endpoint.flush().wait()?;
        for _ in &others {
            take(&process.endpoint, DONE, ANSWER_LIMIT, "the others' end")?;
        }
        Ok(wanted.len())
    }

    fn plan(&self, sender: usize) -> Vec<Planned> {
        let options = self.options;
        plan(options.seed, sender, options.total(), options.count)
    }

    /// A receive for each message that comes, in the order in which they are posted.
    fn wanted(&self, plans: &[Vec<Planned>]) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        for (sender, plan) in plans.iter().enumerate() {
            for message in plan.iter().filter(|message| message.to == self.me) {
                let class = message.tag.0 >> 32;
                let exact = if class >= 2 {
                    message.tag.0
                } else {
                    class << 32
                };
                wanted.push(Wanted {
                    pattern: message.pattern(self.options.name(sender)),
                    class: ((class % 2 == 1).then_some(sender), exact),
                    room: message.length,
                    offset: 0,
                });
            }
        }
        // Equal receives take each other's messages.
        let mut rooms = BTreeMap::new();
        for one in &wanted {
            let room = rooms.entry(one.class).or_insert(0);
            *room = one.room.max(*room);
        }
        fastrand::Rng::with_seed(self.options.seed + self.me as u64).shuffle(&mut wanted);
        let mut offset = 0;
        for one in &mut wanted {
            (one.room, one.offset) = (rooms[&one.class], offset);
            // Neighbours do not share a page border.
            offset += one.room + 13;
        }
        wanted
    }

    fn send(&self, plan: &[Planned]) -> Result<()> {
        let bytes: usize = plan.iter().map(|message| message.length).sum();
        let outbox = Exported::new(&self.endpoint, OUTBOX, bytes.max(1))?;
        let (mut offset, mut sends) = (0, Vec::new());
        for message in plan {
            outbox.buffer.write(offset, &message.bytes())?;
            let (node, port) = self.options.name(message.to);
            let to = Destination::tagged(node, port, message.tag).immediate(message.id);
            let part = outbox.part(offset, message.length);
            sends.push(self.begin(&to, message, part)?);
            offset += message.length;
        }
        let sent = wait_all(&mut sends, Some(ANSWER_LIMIT)).context("send")?;
        ensure!(sent.iter().all(|it| !it.truncated), "one was truncated");
        Ok(())
    }

    /// Begins to send a message: of three one by a context, if it can be.
    fn begin(
        &self,
        to: &Destination,
        message: &Planned,
        part: Part<'_>,
    ) -> qnic::Result<Request<'_>> {
        let endpoint = &self.endpoint;
        if message.id % 3 == 0 {
            let by_context = match message.length <= SHORT_MAX {
                true => endpoint.send_short(to, &message.bytes()).post(),
                false => endpoint.send(to, &[part]).post(),
            };
            match by_context {
                Err(Error::NoContext { .. } | Error::BadPiece { .. }) => {}
                begun => return begun,
            }
        }
        endpoint.send(to, part).post()
    }

    /// Posts a receive, by a context if it can be.
    fn post<'a>(&'a self, one: &Wanted, inbox: &'a Exported) -> qnic::Result<Request<'a>> {
        let part = inbox.part(one.offset, one.room);
        match self.endpoint.receive(&one.pattern, &[part]).post() {
            Err(Error::NoContext { .. } | Error::BadPiece { .. }) => {
                self.endpoint.receive(&one.pattern, part).post()
            }
            posted => posted,
        }
    }

    fn receive(&self, wanted: &[Wanted], plans: &[Vec<Planned>], inbox: &Exported) -> Result<()> {
        let mut check = Check {
            process: self,
            plans,
            seen: BTreeSet::new(),
            last: BTreeMap::new(),
        };
        let (first, rest) = wanted.split_at(wanted.len() / 3);
        let (second, third) = rest.split_at(rest.len() / 2);
        self.receive_posted(first, inbox, &mut check)?;
        for some in second.chunks(CLAIMED) {
            self.receive_claimed(some, inbox, &mut check)?;
        }
        self.receive_posted(third, inbox, &mut check)
    }

    /// Posts receives for all of these.
    fn receive_posted(
        &self,
        wanted: &[Wanted],
        inbox: &Exported,
        check: &mut Check<'_>,
    ) -> Result<()> {
        let post = |one: &Wanted| self.post(one, inbox);
        let mut receives = wanted.iter().map(post).collect::<qnic::Result<Vec<_>>>()?;
        let completions = wait_all(&mut receives, Some(ANSWER_LIMIT)).context("receive")?;
        for (one, completion) in wanted.iter().zip(completions) {
            check.message(one, &completion, inbox)?;
        }
        Ok(())
    }

    /// Claims all of these, every other one after a probe; then receives them, the last one first,
    /// each into as much memory as it needs.
    fn receive_claimed(
        &self,
        wanted: &[Wanted],
        inbox: &Exported,
        check: &mut Check<'_>,
    ) -> Result<()> {
        let mut receives = VecDeque::new();
        let claim = |(number, one): (usize, &Wanted)| {
            let probe = self.endpoint.probe(&one.pattern).timeout(ANSWER_LIMIT);
            if number % 2 == 0 {
                return probe.claim().context("claim");
            }
            let found = probe.wait().context("probe")?;
            let claimed = probe.try_claim().context("claim")?;
            let claimed = claimed.with_context(|| format!("{found:?} is gone"))?;
            let same = *claimed.envelope() == found;
            ensure!(same, "{found:?} is now {:?}", claimed.envelope());
            Ok(claimed)
        };
        let claims = wanted.iter().enumerate().map(claim);
        let claims = claims.collect::<Result<Vec<_>>>()?;
        for (one, claimed) in wanted.iter().zip(claims).rev() {
            let length = claimed.envelope().length as usize;
            ensure!(length <= one.room, "{:?} is too long", claimed.envelope());
            receives.push_front(claimed.post_receive(inbox.part(one.offset, length))?);
        }
        let receives = receives.make_contiguous();
        let completions = wait_all(receives, Some(ANSWER_LIMIT)).context("receive")?;
        for (one, completion) in wanted.iter().zip(completions) {
            check.message(one, &completion, inbox)?;
        }
        Ok(())
    }
}

/// What has come, in the order in which its receives were posted.
struct Check<'a> {
    process: &'a Process<'a>,
    plans: &'a [Vec<Planned>],
    seen: BTreeSet<u64>,
    /// Number of the last message of a sender that an equal receive took.
    last: BTreeMap<((Option<usize>, u64), usize), u64>,
}

impl Check<'_> {
    fn message(&mut self, by: &Wanted, got: &Completion, inbox: &Exported) -> Result<()> {
        let (id, number) = (got.immediate, got.immediate as u32 as usize);
        let sender = (id >> 32) as usize;
        let planned = self.plans.get(sender).and_then(|plan| plan.get(number));
        let planned = planned.with_context(|| format!("no process has sent {got:?}"))?;
        let from = self.process.options.name(sender);
        ensure!(
            planned.to == self.process.me
                && (got.node, got.port) == from
                && (got.tag, got.length) == (planned.tag, planned.length as u64)
                && !got.truncated,
            "{got:?} came for {planned:?} of {from:?}"
        );
        let source = by.class.0.is_none_or(|wanted| wanted == sender);
        let pattern = planned.pattern(from);
        ensure!(source && by.pattern == pattern, "{got:?} does not match");
        ensure!(self.seen.insert(id), "{got:?} came twice");
        let last = self.last.insert((by.class, sender), id);
        ensure!(last < Some(id), "{got:?} came after {last:?}");
        let bytes = inbox.buffer.read_vec(by.offset, planned.length)?;
        let checksum = crc32fast::hash(&bytes);
        let expected = crc32fast::hash(&planned.bytes());
        ensure!(checksum == expected, "wrong bytes in {got:?}");
        Ok(())
    }
}
