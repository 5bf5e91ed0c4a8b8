//! A process that receives nothing for long, beside the random traffic of others.
//!
//! ```text
//!   senders, one in each program ── more short messages than it can stage ──► slow receiver
//!          │ say "posted"                                                       │ waits
//!   GO ───► random traffic, which says "received"                               │
//!                                                               RELEASE ──────► receives all
//! ```
//! A [`prompt`] gives the two signals. The receiver takes the messages of each sender in turn, and
//! checks that they come whole and in the order in which they were sent.

use anyhow::{ensure, Context, Result};
use clap::{Args, ValueEnum};
use qnic::message::{wait_all, Destination, Pattern, Source, Tag};
use qnic::{Endpoint, Nic, NodeId, NotificationId, Port};
use qnic_apps::demo::pattern;

use qnic_apps::demo::node::{import, register, say, take, Exported};
use qnic_apps::demo::options::{notification, ANSWER_LIMIT, DATA, SOURCE};

/// Port of the slow receiver, and of the first program's sender.
const RECEIVER_PORT: Port = Port(119);
const SENDER_PORT: u16 = 120;
/// The random traffic begins.
const GO: NotificationId = notification(2);
/// The slow receiver begins.
const RELEASE: NotificationId = notification(3);
/// Longest message in bytes: all are short.
const LONGEST: usize = 4000;

/// The senders: node, and which of its programs.
pub(super) type Sender = (u16, u16);

/// What one program has to do with the slow receiver.
pub(super) struct Slow<'a> {
    nic: &'a Nic,
    /// Messages of each sender.
    count: u64,
    senders: Vec<Sender>,
    /// Which of them this program is.
    own: usize,
    sender: Endpoint,
    /// What GO is written to.
    _gate: Exported,
}

fn sender_port((_, program): Sender) -> Port {
    Port(SENDER_PORT + program)
}

/// Length and bytes of a message.
fn bytes(sender: usize, number: u64) -> Vec<u8> {
    let length = LONGEST - (number as usize * 7 + sender) % 500;
    pattern::bytes((sender as u64) << 32 | number, length)
}

impl<'a> Slow<'a> {
    /// For a program of this node, with the senders of all programs.
    pub(super) fn new(
        nic: &'a Nic,
        program: u16,
        senders: Vec<Sender>,
        count: u64,
    ) -> Result<Self> {
        let sender = nic.register(sender_port((0, program)));
        let sender = sender.context("register a sender")?;
        let own = (sender.node().0, program);
        let own = senders.iter().position(|it| *it == own);
        let own = own.context("--nodes does not list this node")?;
        Ok(Slow {
            _gate: Exported::new(&sender, DATA, 8)?,
            nic,
            count,
            senders,
            own,
            sender,
        })
    }

    /// Waits until the random traffic is to begin.
    pub(super) fn wait_to_go(&self) -> Result<()> {
        take(&self.sender, GO, None, "wait to go")
    }

    /// The receiver's node is the first sender's.
    fn receiver(&self) -> NodeId {
        NodeId(self.senders[0].0)
    }

    /// Sends all messages; ends when they are received, or staged.
    pub(super) fn send(&self) -> Result<()> {
        import(&self.sender, self.receiver().0, RECEIVER_PORT, DATA)?;
        let messages = (0..self.count).map(|number| bytes(self.own, number));
        let all: Vec<u8> = messages.flatten().collect();
        let outbox = Exported::new(&self.sender, SOURCE, all.len())?;
        outbox.buffer.write(0, &all)?;
        let (mut offset, mut sends) = (0, Vec::new());
        for number in 0..self.count {
            let length = bytes(self.own, number).len();
            let to = Destination::tagged(self.receiver(), RECEIVER_PORT, Tag(number % 3));
            let part = outbox.part(offset, length);
            sends.push(self.sender.send(&to.immediate(number), part).post()?);
            offset += length;
        }
        say("posted", self.count)?;
        let sent = wait_all(&mut sends, None).context("send to the slow process")?;
        ensure!(sent.iter().all(|it| !it.truncated), "one was truncated");
        Ok(())
    }

    /// In the first program: receives all messages, once it is released. Returns how many.
    pub(super) fn receive(&self) -> Result<u64> {
        if self.own > 0 {
            return Ok(0);
        }
        let endpoint = self.nic.register(RECEIVER_PORT);
        let endpoint = endpoint.context("register the slow receiver")?;
        let inbox = Exported::new(&endpoint, DATA, LONGEST)?;
        take(&endpoint, RELEASE, None, "wait to be released")?;
        let mut received = 0;
        for number in 0..self.count {
            for (index, sender) in self.senders.iter().enumerate() {
                let source = Source::Process(NodeId(sender.0), sender_port(*sender));
                let part = inbox.part(0, LONGEST);
                let got = endpoint
                    .receive(&Pattern::any_tag(source), part)
                    .timeout(ANSWER_LIMIT)
                    .wait();
                let got = got.with_context(|| format!("message {number} of sender {index}"))?;
                let expected = bytes(index, number);
                ensure!(
                    got.immediate == number && got.length == expected.len() as u64,
                    "{got:?} came instead of message {number} of sender {index}"
                );
                let there = inbox.buffer.read_vec(0, expected.len())?;
                let checksums = [there, expected].map(|bytes| crc32fast::hash(&bytes));
                ensure!(checksums[0] == checksums[1], "wrong bytes in {got:?}");
                received += 1;
            }
        }
        Ok(received)
    }
}

/// What is prompted.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// The random traffic
    Go,
    /// The slow receiver
    Release,
}

#[derive(Args)]
pub(crate) struct PromptOptions {
    /// What shall begin
    #[arg(value_enum)]
    what: What,
    /// Numbers of the nodes of the programs, such as 0,1,2; the slow receiver is on the first
    #[arg(long, value_name = "NODE,…", value_delimiter = ',', required = true)]
    nodes: Vec<u16>,
    /// Programs of each node
    #[arg(long, default_value_t = 1)]
    programs: u16,
}

/// Lets the programs go on that run with `--slow`.
pub(crate) fn prompt(options: &PromptOptions) -> Result<()> {
    let (_nic, endpoint) = register(0)?;
    let programs = options.nodes.iter();
    let programs = programs.flat_map(|node| (0..options.programs).map(move |it| (*node, it)));
    let (targets, id): (Vec<_>, _) = match options.what {
        What::Go => (programs.map(|it| (it.0, sender_port(it))).collect(), GO),
        What::Release => (vec![(options.nodes[0], RECEIVER_PORT)], RELEASE),
    };
    for (node, port) in targets {
        let segment = import(&endpoint, node, port, DATA)?;
        endpoint.write(&segment, 0, b"").notify(id).post()?;
    }
    Ok(endpoint.flush().wait()?)
}
