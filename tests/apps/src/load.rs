//! A process that transfers without end, so that it or its peer can be killed. It ends
//! with the first error, which it prints, and exit status 3.

use anyhow::Result;
use clap::Args;

use qnic_apps::demo::node::{register, say, say_line, Exported, Peer};
use qnic_apps::demo::options::{DATA, SOURCE};

/// Exit status when a transfer failed.
const TRANSFER_FAILED: i32 = 3;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    peer: Peer,
    /// Own port; 0 for any
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Bytes of a transfer
    #[arg(long, default_value_t = 200_000)]
    size: usize,
    /// Only read
    #[arg(long)]
    reads: bool,
    /// Stop after so many rounds of 32 writes and reads; 0 for never
    #[arg(long, default_value_t = 0)]
    rounds: u64,
}

/// Transfers until an error, the limit, or a signal.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (_nic, endpoint) = register(options.port)?;
    let data = options.peer.import(&endpoint, DATA)?;
    let size = options.size.min(data.len() as usize);
    let memory = Exported::new(&endpoint, SOURCE, 2 * size)?;
    say("loading", std::process::id())?;
    let round = || -> qnic::Result<()> {
        for _ in 0..16 {
            if !options.reads {
                endpoint.write(&data, 0, memory.part(0, size)).post()?;
            }
            endpoint.read(&data, 0, memory.part(size, size)).post()?;
        }
        endpoint.flush().wait()
    };
    let mut rounds = 0;
    while options.rounds == 0 || rounds < options.rounds {
        if let Err(error) = round() {
            say_line(&serde_json::json!({"failed": error.to_string(), "rounds": rounds}))?;
            std::process::exit(TRANSFER_FAILED);
        }
        rounds += 1;
    }
    say("loaded", rounds)
}
