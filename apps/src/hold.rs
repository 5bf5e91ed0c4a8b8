//! A process that holds memory for others to use or to attack: one segment that
//! peers may write, one that they may only read, and a buffer that is not
//! exported at all.

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic::{Access, Nic, Port, SegmentName};
use qnic_apps::pattern;
use qnic_apps::report::HoldLine;

use crate::memory::Exported;
use crate::options::{DATA, REQUEST};
use crate::proc_status;

/// The segment that peers may only read.
pub(crate) const READ_ONLY: SegmentName = SegmentName(30);
/// Bytes of the read-only segment and of the private buffer.
const GUARDED: usize = 64 * 1024;

/// Options of the holder.
#[derive(Args)]
pub(crate) struct Options {
    /// Port
    #[arg(long, default_value_t = 10)]
    port: u16,
    /// Bytes of the writable segment
    #[arg(long, default_value_t = 1 << 20)]
    size: usize,
}

/// Exports, says so, waits for the notification that ends it, and checks that
/// what nobody may change has not changed.
pub(crate) fn run(options: &Options) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let endpoint = nic.register(Port(options.port)).context("register")?;
    let wanted = pattern::bytes(30, GUARDED);
    let guarded = endpoint.allocate(GUARDED)?;
    guarded.write(0, &wanted)?;
    let read_only = endpoint.export(READ_ONLY, &guarded, Access::READ)?;
    let private = endpoint.allocate(GUARDED)?;
    private.write(0, &wanted)?;
    let _data = Exported::new(&endpoint, DATA, options.size)?;
    let locked_kib = proc_status::kibibytes("VmLck")?;
    let pinned_kib = proc_status::kibibytes("VmPin")?;
    say(&HoldLine::Holding {
        pid: std::process::id(),
        locked_kib,
        pinned_kib,
    })?;
    endpoint
        .notification(REQUEST)
        .take(None)
        .context("wait for the end")?;
    drop(read_only);
    for (what, buffer) in [
        ("read-only segment", &guarded),
        ("private buffer", &private),
    ] {
        ensure!(
            buffer.read_vec(0, GUARDED)? == wanted,
            "the {what} was changed"
        );
    }
    say(&HoldLine::Released)
}

fn say(line: &HoldLine) -> Result<()> {
    println!("{}", serde_json::to_string(line)?);
    Ok(())
}
