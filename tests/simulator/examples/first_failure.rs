//! Runs seeds with all faults until one fails, and says which and why: what the
//! campaign of planted bugs (`cargo run --bin qnic-mutants -- simulator`) runs on each. If all pass, a quarter of them
//! run again on wires that lose nothing, on which more is promised.
//!
//! ```text
//! cargo run -p qnic-simulator --example first_failure -- COUNT [FIRST]
//! ```
//! The first seed is 0, or FIRST. Prints `seed N: message` and exits with 1, or `COUNT seeds pass` and
//! the same of the others, and exits with 0; exits with 2 if these are no numbers.

use std::process::ExitCode;

use qnic_simulator::campaign::{campaign, Seeds};
use qnic_simulator::Options;

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().ok());
    let (Some(Some(count)), Some(first), None) = (
        numbers.next(),
        numbers.next().unwrap_or(Some(0)),
        numbers.next(),
    ) else {
        eprintln!("usage: first_failure COUNT [FIRST]");
        return ExitCode::from(2);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let lossless = Options {
        lossless: true,
        ..Options::default()
    };
    for (options, count, on) in [
        (Options::default(), count, ""),
        (lossless, count / 4, "lossless wires: "),
    ] {
        // Every seed below the first that fails has been started, and is ended.
        let seeds = Seeds::new(first, count, options);
        let summary = campaign(threads, 1, &seeds);
        if let Some(failure) = summary.failures.first() {
            println!(
                "{}",
                failure.to_string().replacen(": ", &format!(": {on}"), 1)
            );
            return ExitCode::FAILURE;
        }
        println!("{on}{} seeds pass", summary.seeds);
    }
    ExitCode::SUCCESS
}
