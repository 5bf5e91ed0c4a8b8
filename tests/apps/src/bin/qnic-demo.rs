//! The program of `qnic demo` on the nodes: one end of it, by subcommand.
//!
//! Exit status: 0 if everything was right, 1 if not, 2 for a wrong command line.
#![forbid(unsafe_code)]

use clap::Parser;

#[derive(Parser)]
#[command(name = "qnic-demo", version, about = "One end of the qnic demo")]
struct Arguments {
    #[command(subcommand)]
    role: qnic_apps::demo::Role,
}

fn main() -> anyhow::Result<()> {
    Arguments::parse().role.run()
}
