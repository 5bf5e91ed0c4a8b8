//! What an exporter may do with its memory, step by step, and what its peers get
//! (N2, N7, N8): each step compares contents.
//!
//! The peer is a second endpoint of this process: its commands take the way that
//! those of any peer take, and steps stay in order without any further message.

mod address_space;
mod kinds;
mod others;
mod reclaim;

use anyhow::{ensure, Context, Result};
use clap::{Args, ValueEnum};
use qnic::{Access, Endpoint, Error, Nic, Port, RemoteSegment, Segment, SegmentName, Status};
use qnic_abi::PAGE_SIZE;
use qnic_apps::pattern;
use qnic_apps::report::LifeStep;

use crate::mapping::Mapping;
use crate::memory::Exported;
use crate::options::{SOURCE, START_LIMIT};

/// Pages of the memory that a step exports.
const PAGES: usize = 16;
/// Room for what the peer sends and gets.
const STAGE: usize = 64 * 1024;

/// Options of the exporter's life.
#[derive(Args)]
pub(crate) struct Options {
    /// Which steps
    #[arg(value_enum, default_value_t = Part::All)]
    part: Part,
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
            kinds::steps(&stage)?;
            reclaim::steps(&stage)?;
            others::steps(&stage)
        }
        Part::Limited => reclaim::beyond_the_limit(&stage),
        Part::Huge => reclaim::huge_pages(&stage),
    }
}

/// An exporter and a peer.
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
        let (segment, remote) = self.share_as(&memory, SegmentName(70), READ_WRITE)?;
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
            let from = self.sent.part(0, chunk.len());
            self.peer
                .write_fenced(remote, (index * STAGE) as u64, from)?;
        }
        Ok(())
    }

    /// The peer reads all of a segment.
    fn read(&self, remote: &RemoteSegment) -> qnic::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < remote.len() as usize {
            let length = STAGE.min(remote.len() as usize - bytes.len());
            let to = self.got.part(0, length);
            self.peer.read_fenced(remote, bytes.len() as u64, to)?;
            bytes.extend(self.got.buffer.read_vec(0, length)?);
        }
        Ok(bytes)
    }

    /// The peer finds the pattern of `seed`.
    fn expect(&self, remote: &RemoteSegment, seed: u64) -> Result<()> {
        let wanted = match seed {
            0 => vec![0; remote.len() as usize],
            seed => pattern::bytes(seed, remote.len() as usize),
        };
        ensure!(self.read(remote)? == wanted, "the peer read other bytes");
        Ok(())
    }
}

/// All rights.
const READ_WRITE: Access = Access::all();

/// Fills memory with the pattern of `seed`.
fn set(memory: &Mapping, seed: u64) {
    let bytes = pattern::bytes(seed, memory.len());
    for (index, chunk) in bytes.chunks_exact(8).enumerate() {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        memory.store(index, u64::from_le_bytes(eight));
    }
}

/// Says whether memory holds the pattern of `seed`, or zeroes for 0.
fn holds(memory: &Mapping, seed: u64) -> bool {
    let bytes = match seed {
        0 => vec![0; memory.len()],
        seed => pattern::bytes(seed, memory.len()),
    };
    bytes.chunks_exact(8).enumerate().all(|(index, chunk)| {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        memory.load(index) == u64::from_le_bytes(eight)
    })
}

/// Fails unless `result` is a refusal with this status.
fn refused<T>(result: qnic::Result<T>, wanted: Status) -> Result<()> {
    match result {
        Err(error) if error.status() == Some(wanted) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("expected {wanted:?}")),
        Ok(_) => anyhow::bail!("it was done, instead of refused with {wanted:?}"),
    }
}

/// The text that a user sees of a refusal.
fn text_of<T>(result: qnic::Result<T>, wanted: Status) -> Result<String> {
    match result {
        Err(error @ Error::Refused { .. }) if error.status() == Some(wanted) => {
            Ok(error.to_string())
        }
        Err(error) => Err(error).with_context(|| format!("expected {wanted:?}")),
        Ok(_) => anyhow::bail!("it was done, instead of refused with {wanted:?}"),
    }
}

/// Says that a step held.
fn held(what: &str, seen: impl Into<String>) -> Result<()> {
    let step = LifeStep {
        held: what.into(),
        seen: seen.into(),
    };
    println!("{}", serde_json::to_string(&step)?);
    Ok(())
}
