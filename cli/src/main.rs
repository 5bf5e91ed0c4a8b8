//! The program `qnic`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    qnic_cli::main()
}
