//! `qnic cp`: copies files and directories into and out of nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{anyhow, bail, Context, Result};
use clap::Args;
use qnic_cluster::{Cancel, Count, Node};

use crate::ui::{self, ClusterOption};

/// Options of `qnic cp`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic cp ./hello a:/usr/bin/hello
  cargo qnic cp ./data a:/root              the directory, as /root/data
  cargo qnic cp a:/var/log/x.log .
  cargo qnic cp ./hello all:/usr/bin/hello  into each node
  cargo qnic cp all:/var/log/x.log logs     out of each node, as logs/NODE/x.log
  cargo qnic cp ./odd:name a:/root          a host path with a colon needs a slash

Directories are copied with all that is in them; permission bits are kept, and
symbolic links in them stay links. The destination appears only when everything
has arrived and its checksum is right.

Exit status: 0 if all was copied, 1 if not.")]
pub(crate) struct Options {
    /// What to copy: PATH, NODE:PATH or all:PATH
    from: String,
    /// Where to: PATH, NODE:PATH or all:PATH
    to: String,
    #[command(flatten)]
    cluster: ClusterOption,
}

/// What stands for all nodes.
const ALL: &str = "all";

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
    let copy = match ends {
        (End::Host(from), End::Node(node, to)) => Copy::In { from, node, to },
        (End::Node(node, from), End::Host(to)) => Copy::Out { node, from, to },
        (End::Host(_), End::Host(_)) => bail!("one of the two must be NODE:PATH"),
        (End::Node(..), End::Node(..)) => {
            bail!("copy from a node to the host, and from there to the other node")
        }
    };
    let cancel = Cancel::on_signals()?;
    let cluster = options.cluster.find(Some(&cancel))?;
    let nodes: Vec<_> = match copy.node() {
        ALL => cluster.nodes().iter().collect(),
        name => vec![cluster.node(name)?],
    };
    let message = format!("{} to {}", options.from, options.to);
    let bar = ui::spinner(&message);
    // Of each node, as many as have gone.
    let gone = Mutex::new(vec![0; nodes.len()]);
    let count = |index: usize, bytes: u64| {
        let mut gone = gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone[index] = bytes;
        ui::show_bytes(&bar, &message, gone.iter().sum());
    };
    let copied: Vec<_> = std::thread::scope(|scope| {
        let copies = nodes.iter().enumerate().map(|(index, node)| {
            let (copy, count) = (&copy, &count);
            scope.spawn(move || copy.carry_out(node, &|bytes| count(index, bytes)))
        });
        let copies: Vec<_> = copies.collect();
        let panicked = |_| Err(anyhow!("the copy panicked"));
        copies
            .into_iter()
            .map(|copy| copy.join().unwrap_or_else(panicked))
            .collect()
    });
    bar.finish_and_clear();
    let failed: Vec<_> = copied.into_iter().filter_map(Result::err).collect();
    failed.iter().skip(1).for_each(ui::tell);
    failed.into_iter().next().map_or(Ok(ExitCode::SUCCESS), Err)
}

/// What is copied.
enum Copy<'a> {
    In {
        from: &'a Path,
        node: &'a str,
        to: &'a Path,
    },
    Out {
        node: &'a str,
        from: &'a Path,
        to: &'a Path,
    },
}

impl Copy<'_> {
    fn node(&self) -> &str {
        match self {
            Copy::In { node, .. } | Copy::Out { node, .. } => node,
        }
    }

    /// Does it for one node. What comes out of all nodes has a directory for each.
    fn carry_out(&self, node: &Node, count: Count<'_>) -> Result<()> {
        match self {
            Copy::In { from, to, .. } => Ok(node.put(from, &absolute(to), count)?),
            Copy::Out {
                node: ALL,
                from,
                to,
            } => {
                let to = to.join(node.name());
                fs::create_dir_all(&to).with_context(|| format!("create {}", to.display()))?;
                node.get(&absolute(from), &to, count).map(drop)?;
                Ok(())
            }
            Copy::Out { from, to, .. } => Ok(node.get(&absolute(from), to, count).map(drop)?),
        }
    }
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
