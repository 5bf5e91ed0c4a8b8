//! A process that has the largest pools, to be killed: nothing of them is left.

use anyhow::{Context, Result};
use clap::Args;
use qnic::pool::PoolOptions;
use qnic::Nic;
use qnic_abi::pool::{MAX_FRAME_BYTES, MAX_POOL_BYTES};

use qnic_apps::demo::node::say;

#[derive(Args)]
pub(crate) struct HolderOptions {
    /// Datagram port
    #[arg(long, default_value_t = 2002)]
    port: u16,
}

/// Opens them, fills every output frame, says how many bytes they have, and waits.
pub(crate) fn hold(options: &HolderOptions) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let frames = MAX_POOL_BYTES / MAX_FRAME_BYTES;
    let largest = PoolOptions::new(MAX_FRAME_BYTES, frames, frames);
    let pools = nic
        .open_pools(options.port, largest)
        .context("open pools")?;
    let mut frames = Vec::new();
    while let Some(mut frame) = pools.output()? {
        frame.write(0, &[0xa5; MAX_FRAME_BYTES])?;
        frames.push(frame);
    }
    say("holding", 2 * frames.len() * MAX_FRAME_BYTES)?;
    loop {
        std::thread::park();
    }
}
