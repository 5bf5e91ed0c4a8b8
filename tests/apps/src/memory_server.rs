//! A process that serves memory for others to use or to attack: one segment that peers
//! may write, one that they may only read, some that export options guard, and a buffer that is
//! not exported at all.

use anyhow::{ensure, Result};
use clap::Args;
use qnic::{Access, SegmentName};
use qnic_apps::demo::pattern;
use qnic_apps::report::ServerLine;

use crate::guarded::Guarded;
use crate::proc_status::locked_and_pinned;
use qnic_apps::demo::node::{register, say_line, take, Exported};
use qnic_apps::demo::options::{DATA, REQUEST, TARGET_PORT};

/// The segment that peers may only read.
pub(crate) const READ_ONLY: SegmentName = SegmentName(30);
/// Bytes of the read-only segment and of the private buffer.
const GUARDED: usize = 64 * 1024;

#[derive(Args)]
pub(crate) struct Options {
    /// Port
    #[arg(long, default_value_t = TARGET_PORT.0)]
    port: u16,
    /// Bytes of the writable segment
    #[arg(long, default_value_t = 1 << 20)]
    size: usize,
}

/// Exports, says so, waits for the notification that ends it, and checks that memory that no process
/// may change has not changed.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (_nic, endpoint) = register(options.port)?;
    let expected = pattern::bytes(30, GUARDED);
    let guarded = endpoint.allocate(GUARDED)?;
    guarded.write(0, &expected)?;
    let read_only = endpoint.export(READ_ONLY, &guarded, Access::READ)?;
    let private = endpoint.allocate(GUARDED)?;
    private.write(0, &expected)?;
    let _data = Exported::new(&endpoint, DATA, options.size)?;
    let by_options = Guarded::new(&endpoint)?;
    let (locked_kib, pinned_kib) = locked_and_pinned()?;
    say_line(&ServerLine::Serving {
        pid: std::process::id(),
        locked_kib,
        pinned_kib,
    })?;
    take(&endpoint, REQUEST, None, "wait for the end")?;
    drop(read_only);
    for (what, buffer) in [
        ("read-only segment", &guarded),
        ("private buffer", &private),
    ] {
        let same = buffer.read_vec(0, GUARDED)? == expected;
        ensure!(same, "the {what} was changed");
    }
    by_options.check(&endpoint)?;
    say_line(&ServerLine::Released)
}
