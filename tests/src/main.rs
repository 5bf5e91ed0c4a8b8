//! The program `qnic-suite`: the command `test` of `cargo qnic`, which builds and starts this program for it.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    qnic_cli::suite::main(qnic_tests::run::run)
}
