//! `qnic cp`: copies files and directories into and out of nodes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, Result};
use clap::Args;
use qnic_cluster::Cancel;

use crate::ui::{self, ClusterOption};

/// Options of `qnic cp`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic cp ./hello a:/usr/bin/hello
  cargo qnic cp ./data a:/root              the directory, as /root/data
  cargo qnic cp a:/var/log/x.log .
  cargo qnic cp ./odd:name a:/root          a host path with a colon needs a slash

Directories are copied with all that is in them; permission bits are kept, and
symbolic links in them stay links. The destination appears only when everything
has arrived and its checksum is right.

Exit status: 0 if all was copied, 1 if not.")]
pub(crate) struct Options {
    /// What to copy: PATH, or NODE:PATH
    from: String,
    /// Where to: PATH, or NODE:PATH
    to: String,
    #[command(flatten)]
    cluster: ClusterOption,
}

/// One end of a copy.
#[derive(Debug, PartialEq, Eq)]
enum End<'a> {
    Host(&'a Path),
    Node(&'a str, &'a Path),
}

impl<'a> End<'a> {
    fn parse(text: &'a str) -> Self {
        match text.split_once(':') {
            Some((node, path)) if !node.is_empty() && !node.contains('/') => {
                Self::Node(node, Path::new(path))
            }
            _ => Self::Host(Path::new(text)),
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let ends = (End::parse(&options.from), End::parse(&options.to));
    let (node, _) = match &ends {
        (End::Host(_), End::Node(node, path)) | (End::Node(node, path), End::Host(_)) => {
            (*node, path)
        }
        (End::Host(_), End::Host(_)) => bail!("one of the two must be NODE:PATH"),
        (End::Node(..), End::Node(..)) => {
            bail!("copy from a node to the host, and from there to the other node")
        }
    };
    let cancel = Cancel::on_signals()?;
    let cluster = options.cluster.find(Some(&cancel))?;
    let node = cluster.node(node)?;
    let message = format!("{} to {}", options.from, options.to);
    let bar = ui::spinner(&message);
    let count = |bytes| ui::show_bytes(&bar, &message, bytes);
    let copied = match ends {
        (End::Host(from), End::Node(_, to)) => node.put(from, &absolute(to), &count),
        (End::Node(_, from), End::Host(to)) => node.get(&absolute(from), to, &count).map(drop),
        _ => Ok(()),
    };
    bar.finish_and_clear();
    copied?;
    Ok(ExitCode::SUCCESS)
}

/// Relative paths in a guest are relative to root's home.
fn absolute(path: &Path) -> PathBuf {
    Path::new("/root").join(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_before_any_slash_names_a_node() {
        assert_eq!(End::parse("a:/x"), End::Node("a", Path::new("/x")));
        assert_eq!(End::parse("a:"), End::Node("a", Path::new("")));
        assert_eq!(End::parse("./a:/x"), End::Host(Path::new("./a:/x")));
        assert_eq!(End::parse("/a"), End::Host(Path::new("/a")));
        assert_eq!(absolute(Path::new("x")), Path::new("/root/x"));
    }
}
