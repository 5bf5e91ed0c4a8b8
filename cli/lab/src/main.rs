//! What measures, simulates and fuzzes: the commands `bench`, `sim` and `fuzz` of `cargo qnic`, which
//! builds and starts this program for them.
#![forbid(unsafe_code)]

mod bench;
mod fuzz;
mod sim;

use std::process::ExitCode;

use anyhow::Result;
use qnic_cli::lab;

struct Lab;

impl lab::Lab for Lab {
    fn bench(options: &lab::bench::Options) -> Result<ExitCode> {
        bench::run(options)
    }

    fn sim(options: &lab::sim::Options) -> Result<ExitCode> {
        sim::run(options)
    }

    fn fuzz(options: &lab::fuzz::Options) -> Result<ExitCode> {
        fuzz::run(options)
    }
}

fn main() -> ExitCode {
    lab::main::<Lab>()
}
