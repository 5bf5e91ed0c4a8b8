//! What an exporter may do with its memory, step by step, and what its peers get
//! (N2, N7, N8): each step compares contents.
//!
//! The peer is a second endpoint of this process: its commands take the same path as those
//! of any other peer, and steps stay in order without any further message.

mod address_space;
mod kinds;
mod others;
mod reclaim;
mod refused;

use std::path::PathBuf;

use anyhow::{bail, ensure, Context, Result};
use clap::{Args, ValueEnum};
use qnic::{Access, Endpoint, Error, Nic, Port, RemoteSegment, Segment, SegmentName, Status};
use qnic_abi::PAGE_SIZE;
use qnic_apps::demo::pattern;
use qnic_apps::report::LifeStep;

use crate::mapping::Mapping;
use qnic_apps::demo::node::{say_line, Exported};
use qnic_apps::demo::options::{SOURCE, START_LIMIT};

/// Pages of the memory that a step exports.
const PAGES: usize = 16;
/// Room for what the peer sends and gets.
const STAGE: usize = 64 * 1024;

#[derive(Args)]
pub(crate) struct Options {
    /// Which steps
    #[arg(value_enum, default_value_t = Part::All)]
    part: Part,
    /// Where files are made that are mapped: on a disk
    #[arg(long, default_value = "/tmp")]
    files: PathBuf,
    /// End of this program's own: export on this port, and execute another program
    /// once a line comes in
    #[arg(long, hide = true)]
    execute: Option<u16>,
}

/// A group of steps.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// All that need nothing prepared
    All,
    /// In a control group with `memory.max` far below 24 MiB, and swap
    Limited,
    /// With transparent huge pages always on
    Huge,
}

/// Runs the steps; fails at the first that does not hold.
pub(crate) fn run(options: &Options) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    if let Some(port) = options.execute {
        return others::execute(&nic, Port(port));
    }
    let stage = Stage::new(&nic)?;
    match options.part {
        Part::All => {
            address_space::steps(&stage)?;
            kinds::steps(&stage, &options.files)?;
            refused::steps(&stage)?;
            reclaim::steps(&stage)?;
            others::steps(&stage)
        }
        Part::Limited => reclaim::beyond_the_limit(&stage, &options.files),
        Part::Huge => reclaim::huge_pages(&stage),
    }
}

struct Stage {
    exporter: Endpoint,
    peer: Endpoint,
    /// The peer's memory: first what it sends, then what it gets.
    sent: Exported,
    got: Exported,
}

/// Memory of the exporter that the peer has imported.
struct Shared {
    memory: Mapping,
    _segment: Segment,
    remote: RemoteSegment,
}

impl Stage {
    fn new(nic: &Nic) -> Result<Self> {
        let exporter = nic.register(Port(0)).context("register the exporter")?;
        let peer = nic.register(Port(0)).context("register the peer")?;
        Ok(Stage {
            sent: Exported::new(&peer, SOURCE, STAGE)?,
            got: Exported::new(&peer, SegmentName(SOURCE.0 + 1), STAGE)?,
            exporter,
            peer,
        })
    }

    /// Exports `memory` and imports it.
    fn share(&self, memory: Mapping) -> Result<Shared> {
        let (segment, remote) = self.share_as(&memory, SegmentName(70), Access::all())?;
        Ok(Shared {
            memory,
            _segment: segment,
            remote,
        })
    }

    /// Exports `memory` under a name with these rights, and imports that.
    fn share_as(
        &self,
        memory: &Mapping,
        name: SegmentName,
        access: Access,
    ) -> Result<(Segment, RemoteSegment)> {
        let segment = memory.export(&self.exporter, name, access)?;
        let (node, port) = (self.exporter.node(), self.exporter.port());
        let remote = self.peer.import(node, port, name, START_LIMIT)?;
        Ok((segment, remote))
    }

    /// A segment of the exporter, as the exporter itself imports it.
    fn own(&self, name: SegmentName) -> Result<RemoteSegment> {
        let (node, port) = (self.exporter.node(), self.exporter.port());
        Ok(self.exporter.import(node, port, name, START_LIMIT)?)
    }

    /// Fresh memory with a pattern in it, shared.
    fn fresh(&self, seed: u64) -> Result<Shared> {
        let shared = self.share(Mapping::private(PAGES * PAGE_SIZE)?)?;
        set(&shared.memory, seed);
        Ok(shared)
    }

    /// The peer writes the pattern of `seed` over all of a segment.
    fn write(&self, remote: &RemoteSegment, seed: u64) -> qnic::Result<()> {
        let bytes = pattern::bytes(seed, remote.len() as usize);
        for (index, chunk) in bytes.chunks(STAGE).enumerate() {
            self.sent.buffer.write(0, chunk)?;
            let (offset, from) = ((index * STAGE) as u64, self.sent.part(0, chunk.len()));
            self.peer.write(remote, offset, from).fenced()?;
        }
        Ok(())
    }

    /// The same, over memory that is shared; the exporter sees it.
    fn write_seen(&self, shared: &Shared, seed: u64) -> Result<()> {
        self.write(&shared.remote, seed)?;
        ensure!(
            holds(&shared.memory, seed),
            "the exporter does not see write {seed}"
        );
        Ok(())
    }

    /// The peer reads all of a segment.
    fn read(&self, remote: &RemoteSegment) -> qnic::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < remote.len() as usize {
            let length = STAGE.min(remote.len() as usize - bytes.len());
            let to = self.got.part(0, length);
            self.peer.read(remote, bytes.len() as u64, to).fenced()?;
            bytes.extend(self.got.buffer.read_vec(0, length)?);
        }
        Ok(bytes)
    }

    /// The peer finds the pattern of `seed`.
    fn expect(&self, remote: &RemoteSegment, seed: u64) -> Result<()> {
        let wanted = content(seed, remote.len() as usize);
        ensure!(self.read(remote)? == wanted, "the peer read other bytes");
        Ok(())
    }
}

/// The pattern of `seed`, or zeroes for 0.
fn content(seed: u64, length: usize) -> Vec<u8> {
    match seed {
        0 => vec![0; length],
        seed => pattern::bytes(seed, length),
    }
}

/// Fills memory with the pattern of `seed`.
fn set(memory: &Mapping, seed: u64) {
    for (index, word) in pattern::words(&content(seed, memory.len())).enumerate() {
        memory.store(index, word);
    }
}

/// Returns true if memory holds the pattern of `seed`, or zeroes for 0.
fn holds(memory: &Mapping, seed: u64) -> bool {
    let content = content(seed, memory.len());
    let mut words = pattern::words(&content).enumerate();
    words.all(|(index, word)| memory.load(index) == word)
}

/// Fails unless `result` is a refusal with this status.
fn refused<T>(result: qnic::Result<T>, wanted: Status) -> Result<Error> {
    match result {
        Err(error) if error.status() == Some(wanted) => Ok(error),
        Err(error) => Err(error).with_context(|| format!("expected {wanted:?}")),
        Ok(_) => bail!("it was done, instead of refused with {wanted:?}"),
    }
}

/// The text that a user sees of a refusal at once.
fn text_of<T>(result: qnic::Result<T>, wanted: Status) -> Result<String> {
    match refused(result, wanted)? {
        error @ Error::Refused { .. } => Ok(error.to_string()),
        error => Err(error).with_context(|| format!("expected {wanted:?} at once")),
    }
}

fn held(what: &str, seen: impl Into<String>) -> Result<()> {
    say_line(&LifeStep {
        held: what.into(),
        seen: seen.into(),
    })
}
