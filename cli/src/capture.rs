//! `qnic capture`: writes what runs over the links of a running cluster as pcapng.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic_cluster::{Cancel, CaptureOptions, Links, DISSECTOR};

use crate::ui;

/// Options of `qnic capture`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic capture -o all.pcapng                    all links, until Ctrl-C
  cargo qnic capture pair --link a:b --count 1000 -o ab.pcapng
  cargo qnic capture --node a --snaplen 120 -o a.pcapng      headers only
  cargo qnic capture --dissector > qnic.lua
  tshark -2 -X lua_script:qnic.lua -r all.pcapng -V
  cargo qnic capture -o - | wireshark -X lua_script:qnic.lua -k -i -

Each direction of a link is an interface. A frame is there once for each link that it
takes, with what the link did to it. A frame of another device process is there where
it arrives. What a slow reader misses is counted in the capture (capinfos, isb_ifdrop).

Exit status: 0 when the capture has ended or was ended with Ctrl-C.")]
pub(crate) struct Options {
    /// The cluster; needed if several run
    cluster: Option<String>,
    /// A:B for both directions, A>B for one
    #[arg(long, conflicts_with = "node")]
    link: Option<String>,
    /// All links of this node
    #[arg(long)]
    node: Option<String>,
    /// Where to write, - for standard output
    #[arg(long, short, default_value = "-")]
    output: PathBuf,
    /// End after so many frames
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Bytes to keep of each frame; a header has 120
    #[arg(long)]
    snaplen: Option<u32>,
    /// Print the dissector for Wireshark (Lua) and do nothing else
    #[arg(long, exclusive = true)]
    dissector: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.dissector {
        io::stdout().write_all(DISSECTOR.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let links = links(options.link.as_deref(), options.node.as_deref())?;
    let cancel = Cancel::on_signals()?;
    let cluster = ui::find(options.cluster.as_deref(), Some(&cancel))?;
    let settings = CaptureOptions {
        snaplen: options.snaplen,
        count: options.count,
    };
    let mut out = output(&options.output)?;
    let bytes = cluster.capture(&links, &settings, &cancel, &mut out)?;
    eprintln!("{bytes} bytes captured");
    Ok(ExitCode::SUCCESS)
}

fn links(link: Option<&str>, node: Option<&str>) -> Result<Links> {
    match (link, node) {
        (Some(link), _) => {
            let named = Links::named(link);
            ensure!(
                matches!(named, Links::Between(..) | Links::OneWay(..)),
                "--link {link}: expected A:B or A>B"
            );
            Ok(named)
        }
        (None, Some(node)) => Ok(Links::At(node.to_owned())),
        (None, None) => Ok(Links::All),
    }
}

fn output(path: &Path) -> Result<Box<dyn Write>> {
    if path != Path::new("-") {
        let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        return Ok(Box::new(file));
    }
    let out = io::stdout();
    ensure!(
        !out.is_terminal(),
        "a capture is not for a terminal: name a file with -o, or pipe it to a program"
    );
    Ok(Box::new(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_chosen_by_link_or_node() {
        let between = Links::Between("a".into(), "b".into());
        assert_eq!(links(Some("a:b"), None).unwrap(), between);
        let one_way = Links::OneWay("a".into(), "b".into());
        assert_eq!(links(Some("a>b"), None).unwrap(), one_way);
        assert_eq!(links(None, Some("a")).unwrap(), Links::At("a".into()));
        assert_eq!(links(None, None).unwrap(), Links::All);
        assert!(links(Some("a"), None).is_err());
    }
}
