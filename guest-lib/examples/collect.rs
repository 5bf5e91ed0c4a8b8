//! Many to one: a collector receives numbered lines from any number of senders, each over
//! a channel of its own, and notices which of them die.
//!
//! ```text
//! collect LINES COLLECTOR SENDER…      node numbers; the same on each node
//! ```
//!
//! Each sender sends so many lines and closes its channel. The collector ends when
//! all channels have ended, and exits with 1 if one of them did so without having
//! been closed.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use qnic::{
    ChannelOptions, Endpoint, Error, Nic, NodeId, NotificationId, Port, Receiver, SegmentName,
    Sender, Signal,
};

const PORT: Port = Port(102);
/// Longest line in bytes.
const LINE: usize = 64;
/// How long senders may take to start.
const START: Duration = Duration::from_secs(60);
/// How long all senders may be silent before the collector asks which are there.
const SILENCE: Duration = Duration::from_secs(1);

/// Name of the channel of a sender.
fn name(sender: NodeId) -> SegmentName {
    SegmentName(0x0063_6f6c_6c65_6374 << 8 | u64::from(sender.0))
}

/// Collector's notification for the channel of the sender with this index.
fn line(index: usize) -> Result<NotificationId> {
    Ok(NotificationId::try_from(index as u32 + 1)?)
}

struct Source {
    node: NodeId,
    channel: Receiver,
    lines: u64,
    /// How it ended.
    end: Option<Error>,
}

fn collect(endpoint: &Endpoint, senders: &[NodeId]) -> Result<Vec<Source>> {
    let queue = endpoint.queue();
    let mut sources = Vec::new();
    for (index, node) in senders.iter().enumerate() {
        let options = ChannelOptions::new(64, LINE, line(index)?);
        queue.watch(options.sent)?;
        sources.push(Source {
            node: *node,
            channel: Receiver::open(endpoint, name(*node), &options)?,
            lines: 0,
            end: None,
        });
    }
    while sources.iter().any(|source| source.end.is_none()) {
        match queue.wait(Some(SILENCE)) {
            Ok(Signal::Counted(id)) => take(&mut sources[id.number() as usize - 1])?,
            Ok(Signal::OneShot(_)) | Err(Error::NotificationsLost(_)) => {}
            Err(Error::TimedOut) => {
                for source in sources.iter_mut().filter(|source| source.end.is_none()) {
                    source.end = source.channel.check_peer().err();
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sources)
}

/// Takes what the queue has announced: a line, or the end of the channel.
fn take(source: &mut Source) -> Result<()> {
    match source.channel.try_recv() {
        Ok(None) => {}
        Ok(Some(message)) => {
            let expected = format!("line {} of {}", source.lines, source.node);
            if message.to_vec() != expected.as_bytes() {
                bail!("{} sent something else than {expected:?}", source.node);
            }
            source.lines += 1;
        }
        Err(error) => source.end = Some(error),
    }
    Ok(())
}

fn send(endpoint: &Endpoint, collector: NodeId, lines: u64) -> Result<()> {
    const MORE: NotificationId = NotificationId::new(1).unwrap();
    let node = endpoint.node();
    let mut channel = Sender::connect(endpoint, (collector, PORT, name(node)), MORE, START)?;
    for number in 0..lines {
        channel.send(format!("line {number} of {node}").as_bytes(), None)?;
    }
    channel.close()?;
    Ok(())
}

fn main() -> Result<ExitCode> {
    const USAGE: &str = "usage: collect LINES COLLECTOR SENDER...";
    let mut arguments = std::env::args().skip(1);
    let lines: u64 = arguments.next().context(USAGE)?.parse().context(USAGE)?;
    let nodes = arguments.map(|node| node.parse().map(NodeId));
    let nodes = nodes.collect::<Result<Vec<_>, _>>().context(USAGE)?;
    let (collector, senders) = nodes.split_first().context(USAGE)?;
    let endpoint = Nic::open()?.register(PORT)?;
    if endpoint.node() != *collector {
        send(&endpoint, *collector, lines)?;
        println!("{} sent {lines} lines", endpoint.node());
        return Ok(ExitCode::SUCCESS);
    }
    let mut code = ExitCode::SUCCESS;
    for source in collect(&endpoint, senders)? {
        let end = source.end.context("every channel has ended")?;
        println!("{}: {} lines, then: {end}", source.node, source.lines);
        if source.lines != lines || !matches!(end, Error::ChannelClosed) {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}
