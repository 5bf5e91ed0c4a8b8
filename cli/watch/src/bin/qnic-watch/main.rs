//! The commands `top` and `trace` of `cargo qnic`, which builds and starts this program for them.
#![forbid(unsafe_code)]

mod top;
mod trace;

use std::process::ExitCode;

use anyhow::Result;
use qnic_cli::watch;

struct Commands;

impl watch::Watch for Commands {
    fn top(options: &watch::top::Options) -> Result<ExitCode> {
        top::run(options)
    }

    fn trace(options: &watch::trace::Options) -> Result<ExitCode> {
        trace::run(options)
    }
}

fn main() -> ExitCode {
    watch::main::<Commands>()
}
