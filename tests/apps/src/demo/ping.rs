//! Checks that two nodes can talk, and what their route is like (U8), as one JSON line.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use qnic::{Nic, NodeId};
use serde_json::json;

/// Options of `ping`.
#[derive(Args)]
pub struct Options {
    /// Number of the other node
    node: u16,
    /// Give up after this many seconds
    #[arg(long, default_value_t = 5.0)]
    timeout: f64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let timeout = Duration::try_from_secs_f64(options.timeout).context("--timeout")?;
    let nic = Nic::open().context("open the NIC")?;
    let path = nic.check_path(NodeId(options.node), timeout)?;
    let line = json!({
        "from": nic.info()?.node.get(),
        "to": options.node,
        "round_trip_ns": path.round_trip.unwrap_or_default().as_nanos() as u64,
        "mtu": path.max_payload,
        "window": path.window,
        "lossless": path.lossless,
    });
    println!("{line}");
    Ok(())
}
