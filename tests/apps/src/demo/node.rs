//! What the programs share: a registered process, exported memory, imported segments,
//! and lines of output.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use qnic::{
    Access, Buffer, Endpoint, Nic, NodeId, NotificationId, Part, Port, RemoteSegment, Segment,
    SegmentName,
};
use serde::Serialize;

use crate::demo::options::{START_LIMIT, TARGET_PORT};

/// Opens the NIC and registers a process on `port`; on any free one for 0.
pub fn register(port: u16) -> Result<(Nic, Endpoint)> {
    let nic = Nic::open().context("open the NIC")?;
    let endpoint = nic.register(Port(port)).context("register")?;
    Ok((nic, endpoint))
}

/// Prints a JSON line with one member.
pub fn say(key: &str, value: impl Serialize) -> Result<()> {
    say_line(&serde_json::json!({ key: value }))
}

/// Prints a JSON line.
pub fn say_line(line: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(line)?);
    Ok(())
}

/// Imports what the process on a port of a node exports, as soon as it does.
pub fn import(
    endpoint: &Endpoint,
    node: u16,
    port: Port,
    name: SegmentName,
) -> Result<RemoteSegment> {
    endpoint
        .import(NodeId(node), port, name, START_LIMIT)
        .with_context(|| format!("import segment {} of node {node}", name.0))
}

/// Waits for a signal of a notification and acknowledges it.
pub fn take(
    endpoint: &Endpoint,
    id: NotificationId,
    limit: impl Into<Option<Duration>>,
    what: &'static str,
) -> Result<()> {
    endpoint.notification(id).take(limit.into()).context(what)
}

/// The process at the other end, as options.
#[derive(Args)]
pub struct Peer {
    /// Node of the other process
    #[arg(long)]
    pub peer: u16,
    /// Its port
    #[arg(long, default_value_t = TARGET_PORT.0)]
    peer_port: u16,
}

impl Peer {
    /// Its port.
    pub fn port(&self) -> Port {
        Port(self.peer_port)
    }

    /// Imports what it exports as `name`, as soon as it does.
    pub fn import(&self, endpoint: &Endpoint, name: SegmentName) -> Result<RemoteSegment> {
        import(endpoint, self.peer, self.port(), name)
    }
}

/// A buffer and the segment under which it is exported.
pub struct Exported {
    /// The memory.
    pub buffer: Buffer,
    /// What others import.
    pub segment: Segment,
}

impl Exported {
    /// Allocates `length` bytes and exports them with all rights.
    pub fn new(endpoint: &Endpoint, name: SegmentName, length: usize) -> Result<Self> {
        let buffer = endpoint
            .allocate(length)
            .with_context(|| format!("allocate {length} bytes"))?;
        let segment = endpoint
            .export(name, &buffer, Access::all())
            .context("export a buffer")?;
        Ok(Exported { buffer, segment })
    }

    /// A part of it, as the source or the destination of a transfer.
    pub fn part(&self, offset: usize, length: usize) -> Part<'_> {
        self.segment.part(offset, length)
    }
}
