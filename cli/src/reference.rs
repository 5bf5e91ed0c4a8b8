//! `qnic man` and `qnic completions`: the command line as other programs want it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;

/// Options of `qnic man`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic man ~/.local/share/man/man1     one page for each command: man qnic-exec

Exit status: 0 when they are there, 1 if one cannot be written.")]
pub(crate) struct ManOptions {
    /// The directory for the pages; it is made if need be
    dir: PathBuf,
}

/// Options of `qnic completions`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic completions bash > ~/.local/share/bash-completion/completions/qnic

They are for a program called qnic, such as an alias of \"cargo qnic\".

Exit status: 0.")]
pub(crate) struct CompletionsOptions {
    /// The shell
    shell: Shell,
}

/// Writes a page for `command` and one for each of its subcommands.
pub(crate) fn man(options: &ManOptions, command: Command) -> Result<ExitCode> {
    write_pages(&options.dir, command)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes them into `dir`, which is made if need be.
pub(crate) fn write_pages(dir: &Path, command: Command) -> Result<()> {
    let made = std::fs::create_dir_all(dir);
    made.and_then(|()| clap_mangen::generate_to(command, dir))
        .with_context(|| format!("write the pages into {}", dir.display()))
}

/// Prints completions of `command`.
pub(crate) fn completions(options: &CompletionsOptions, command: Command) -> Result<ExitCode> {
    let text = completions_of(options.shell, command);
    io::stdout().write_all(&text).context("print completions")?;
    Ok(ExitCode::SUCCESS)
}

/// Completions of `command` for `shell`.
pub(crate) fn completions_of(shell: Shell, mut command: Command) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "qnic", &mut text);
    text
}
