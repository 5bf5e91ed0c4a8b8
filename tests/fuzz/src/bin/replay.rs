//! Runs the inputs of folders through one target, each once, for `cargo qnic fuzz --coverage`,
//! which builds this program so that it counts what runs.
//!
//! ```text
//!   replay TARGET FOLDER...
//! ```
//!
//! Prints how many inputs ran, and on standard error which of them fail. A folder that is missing
//! is empty. Exit status: 0 if all passed, 1 if one failed, 2 for a wrong command line.
#![forbid(unsafe_code)]

use std::panic::catch_unwind;
use std::path::Path;
use std::process::ExitCode;

use qnic_fuzz::{inputs, Target};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, folders)) = arguments.split_first() else {
        eprintln!("usage: replay TARGET FOLDER...");
        return ExitCode::from(2);
    };
    let Some(target) = Target::named(name) else {
        eprintln!("there is no target {name}");
        return ExitCode::from(2);
    };
    let (mut ran, mut failed) = (0, 0);
    for folder in folders {
        let kept = match inputs::read(Path::new(folder)) {
            Ok(kept) => kept,
            Err(error) => {
                eprintln!("cannot read {folder}: {error}");
                return ExitCode::from(2);
            }
        };
        for input in kept {
            ran += 1;
            if catch_unwind(|| (target.run)(&input.data)).is_err() {
                failed += 1;
                eprintln!("FAILED {name}: {}", input.path.display());
            }
        }
    }
    println!("{ran}");
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
