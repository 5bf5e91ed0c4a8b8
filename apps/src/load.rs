//! A process that transfers without end: to be killed, or to have its peer
//! killed. It ends with the first error, which it prints, and exit status 3.

use anyhow::{Context, Result};
use clap::Args;
use qnic::{Nic, NodeId, Port};

use crate::memory::Exported;
use crate::options::{DATA, SOURCE, START_LIMIT};

/// Exit status when a transfer failed.
const TRANSFER_FAILED: i32 = 3;

/// Options of the load.
#[derive(Args)]
pub(crate) struct Options {
    /// Node of the process to write to and read from
    #[arg(long)]
    peer: u16,
    /// Its port
    #[arg(long, default_value_t = 10)]
    peer_port: u16,
    /// Own port; 0 for any
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Bytes of a transfer
    #[arg(long, default_value_t = 200_000)]
    size: usize,
    /// Stop after so many rounds of 32 writes and reads; 0 for never
    #[arg(long, default_value_t = 0)]
    rounds: u64,
}

/// Transfers until an error, the limit, or a signal.
pub(crate) fn run(options: &Options) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let endpoint = nic.register(Port(options.port)).context("register")?;
    let (node, port) = (NodeId(options.peer), Port(options.peer_port));
    let data = endpoint
        .import(node, port, DATA, START_LIMIT)
        .context("import")?;
    let size = options.size.min(data.len() as usize);
    let memory = Exported::new(&endpoint, SOURCE, 2 * size)?;
    println!("{}", serde_json::json!({"loading": std::process::id()}));
    let mut rounds = 0u64;
    loop {
        let round = || -> qnic::Result<()> {
            for _ in 0..16 {
                endpoint.write(&data, 0, memory.part(0, size))?;
                endpoint.read(&data, 0, memory.part(size, size))?;
            }
            endpoint.flush()
        };
        if let Err(error) = round() {
            let line = serde_json::json!({"failed": error.to_string(), "rounds": rounds});
            println!("{line}");
            std::process::exit(TRANSFER_FAILED);
        }
        rounds += 1;
        if rounds == options.rounds {
            println!("{}", serde_json::json!({"loaded": rounds}));
            return Ok(());
        }
    }
}
