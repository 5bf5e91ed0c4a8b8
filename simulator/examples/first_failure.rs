//! Runs seeds with all faults until one fails, and says which and why: what the
//! campaign of planted bugs (`cargo run -p qnic-mutants -- simulator`) runs on each.
//!
//! ```text
//! cargo run -p qnic-sim --example first_failure -- COUNT
//! ```
//! Prints `seed N: message` and exits with 1, or `COUNT seeds pass` and exits with 0;
//! exits with 2 without a COUNT.

use std::process::ExitCode;

use qnic_sim::campaign::{campaign, Seeds};
use qnic_sim::Options;

fn main() -> ExitCode {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let Some(count) = count else {
        eprintln!("usage: first_failure COUNT");
        return ExitCode::from(2);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // Every seed below the first that fails has been started, and is ended.
    let summary = campaign(&Options::default(), threads, 1, &Seeds::new(0, count));
    match summary.failures.first() {
        Some(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
        None => {
            println!("{} seeds pass", summary.seeds);
            ExitCode::SUCCESS
        }
    }
}
