//! `qnic keys`: makes and shows the keys by which hosts know each other.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use qnic_config::plan::PrivateKey;
use serde::Serialize;

use crate::ui;

/// Options of `qnic keys`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic keys new west.key          on the host \"west\": makes a key pair
  cargo qnic keys show west.key         what the cluster file needs of it
  cargo qnic keys show *.key --json     the same, for programs

The file has the private key: it stays on its host, and only its owner may read it. The
public key goes into [[network.host]] of the cluster file, which is the same on all
hosts. Guard the private key: with it, any machine can pose as its host.

Exit status: 0 when done, 1 if a file cannot be made or used, 2 for a wrong command
line.")]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a key pair for each file; none may be there yet
    New(Files),
    /// Show the public keys that belong to the private ones in files
    Show(Files),
}

#[derive(Args)]
struct Files {
    /// Files with a private key each
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print a JSON array of objects with private_key, which is a file, and public_key
    #[arg(long)]
    json: bool,
}

/// A pair, as a cluster file names it.
#[derive(Debug, Serialize)]
struct Pair {
    private_key: PathBuf,
    public_key: String,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let (files, key_of): (_, fn(&PathBuf) -> Result<PrivateKey>) = match &options.action {
        Action::New(files) => (files, |file| {
            let key = PrivateKey::generate()?;
            key.write_new(file)?;
            Ok(key)
        }),
        Action::Show(files) => (files, |file| Ok(PrivateKey::read(file)?)),
    };
    let pairs: Result<Vec<_>> = files.files.iter().map(|file| pair(file, key_of)).collect();
    ui::show(files.json, &pairs?[..], text)?;
    Ok(ExitCode::SUCCESS)
}

fn pair(file: &PathBuf, key_of: fn(&PathBuf) -> Result<PrivateKey>) -> Result<Pair> {
    let key = key_of(file).with_context(|| file.display().to_string())?;
    Ok(Pair {
        private_key: file.clone(),
        public_key: key.public().to_string(),
    })
}

/// The lines that `[[network.host]]` of a cluster file needs.
fn text(pairs: &[Pair]) -> String {
    let mut text = String::new();
    for Pair {
        private_key,
        public_key,
    } in pairs
    {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "public_key = \"{public_key}\"\nprivate_key = {private_key:?}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn run_line(words: &[&str]) -> Result<ExitCode> {
        let words = ["keys"].iter().chain(words);
        run(&Line::parse_from(words).options)
    }

    /// What is made can be shown and pasted; a file that is there is left as it is.
    #[test]
    fn keys_are_made_once_and_shown_for_pasting() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("west.key");
        let name = file.to_str().unwrap();
        run_line(&["show", name]).unwrap_err();
        run_line(&["new", name]).unwrap();
        let made = std::fs::read(&file).unwrap();
        let error = format!("{:#}", run_line(&["new", name]).unwrap_err());
        assert!(error.contains(name) && error.contains("exists"), "{error}");
        assert_eq!(std::fs::read(&file).unwrap(), made);
        run_line(&["show", name, "--json"]).unwrap();
        let pair = pair(&file, |file| Ok(PrivateKey::read(file)?)).unwrap();
        let public = PrivateKey::read(&file).unwrap().public().to_string();
        let expected = format!("public_key = \"{public}\"\nprivate_key = \"{name}\"\n");
        assert_eq!(text(&[pair]), expected);
    }
}
