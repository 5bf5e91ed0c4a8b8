//! `qnic net`: shows and changes what the links of a running cluster do to frames.

use std::process::ExitCode;

use anyhow::{ensure, Result};
use clap::{Args, Subcommand};
use qnic_cluster::{Cluster, ClusterSpec, ImpairmentChange, Links, Shape};
use serde_json::Value;

use crate::ui;

/// Options of `qnic net`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic net show
  cargo qnic net set all --loss 5% --delay 1ms
  cargo qnic net set a:b --partition on           both directions
  cargo qnic net set 'a>b' --rate 100Mbit         from a to b only
  cargo qnic net clear a                          all links of a
  cargo qnic net set all --loss 1% --cluster pair needed if several clusters run

A link does what the cluster file says until it is changed; \"set\" changes what is
named and leaves the rest, \"clear\" ends everything. Frames that are under way when a
link is changed keep their fate, but for a partition.

Exit status: 0 when done, 1 on an error, 2 for a wrong command line.")]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show each direction of each link: what it does, and what it has done
    Show(Show),
    /// Change what links do
    Set(Set),
    /// Make links do nothing
    Clear(Clear),
}

#[derive(Args)]
struct Show {
    /// The cluster; needed if several run
    #[arg(long, short)]
    cluster: Option<String>,
    /// Print what the device process answers, as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Set {
    /// all, a node, A:B or A>B
    link: String,
    #[command(flatten)]
    change: Change,
    /// The cluster; needed if several run
    #[arg(long, short)]
    cluster: Option<String>,
}

#[derive(Args)]
struct Clear {
    /// all, a node, A:B or A>B
    link: String,
    /// The cluster; needed if several run
    #[arg(long, short)]
    cluster: Option<String>,
}

/// Values are checked by the types that they stand for, when they are read.
#[derive(Args)]
struct Change {
    /// Frames that vanish, such as 5%
    #[arg(long, value_name = "PERCENT")]
    loss: Option<String>,
    /// How long every frame takes, such as 1ms
    #[arg(long, value_name = "TIME")]
    delay: Option<String>,
    /// How much longer or shorter than that, at random
    #[arg(long, value_name = "TIME")]
    jitter: Option<String>,
    /// Frames that later ones may overtake
    #[arg(long, value_name = "PERCENT")]
    reorder: Option<String>,
    /// Frames that arrive twice
    #[arg(long, value_name = "PERCENT")]
    duplicate: Option<String>,
    /// Frames of which some bits flip; the checksum catches them
    #[arg(long, value_name = "PERCENT")]
    corrupt: Option<String>,
    /// Bits per second, such as 1Gbit
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// Nothing passes
    #[arg(long, value_name = "on|off")]
    partition: Option<Switch>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

impl Change {
    fn read(&self) -> Result<ImpairmentChange> {
        let change = ImpairmentChange {
            loss: parse("--loss", self.loss.as_deref())?,
            delay: parse("--delay", self.delay.as_deref())?,
            jitter: parse("--jitter", self.jitter.as_deref())?,
            reorder: parse("--reorder", self.reorder.as_deref())?,
            duplicate: parse("--duplicate", self.duplicate.as_deref())?,
            corrupt: parse("--corrupt", self.corrupt.as_deref())?,
            rate: parse("--rate", self.rate.as_deref())?,
            partition: self.partition.map(|switch| switch == Switch::On),
        };
        ensure!(
            change != ImpairmentChange::default(),
            "say what is to change, such as --loss 5%"
        );
        Ok(change)
    }
}

fn parse<T: std::str::FromStr>(option: &str, text: Option<&str>) -> Result<Option<T>>
where
    T::Err: std::fmt::Display,
{
    let value = text.map(str::parse).transpose();
    value.map_err(|error| anyhow::anyhow!("{option}: {error}"))
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let find = |name: &Option<String>| -> Result<Cluster> {
        Ok(Cluster::find(&ui::runtime()?, name.as_deref(), None)?)
    };
    match &options.action {
        Action::Show(show) => {
            let cluster = find(&show.cluster)?;
            let mut stats = cluster.device_stats()?;
            let network = stats["network"].take();
            match show.json {
                true => println!("{network}"),
                false => print!("{}", table(cluster.spec(), &network)),
            }
            if let Some(silent) = stats.get("silent") {
                eprintln!(
                    "qnic: not all is shown, for these device processes do not answer: {silent}; \
                     see \"qnic ps\" and \"qnic logs\""
                );
                return Ok(ExitCode::FAILURE);
            }
        }
        Action::Set(set) => {
            let change = set.change.read()?;
            let changed = find(&set.cluster)?.set_links(&links(&set.link), Some(&change))?;
            println!("{changed} directions of links changed");
        }
        Action::Clear(clear) => {
            let changed = find(&clear.cluster)?.set_links(&links(&clear.link), None)?;
            println!("{changed} directions of links cleared");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `all`, a node, `A:B` or `A>B`.
pub(crate) fn links(text: &str) -> Links {
    if text == "all" {
        return Links::All;
    }
    if let Some((from, to)) = text.split_once('>') {
        return Links::OneWay(from.to_owned(), to.to_owned());
    }
    match text.split_once(':') {
        Some((a, b)) => Links::Between(a.to_owned(), b.to_owned()),
        None => Links::At(text.to_owned()),
    }
}

fn table(spec: &ClusterSpec, network: &Value) -> String {
    let shape = spec
        .network
        .as_ref()
        .map_or(Shape::Mesh, |net| net.topology);
    let mut text = format!("topology {shape:?}\n").to_lowercase();
    let name = |number: &Value| {
        let found = spec
            .nodes
            .iter()
            .find(|node| spec.node_number(&node.name).map(u64::from) == number.as_u64());
        found.map_or_else(|| format!("node {number}"), |node| node.name.clone())
    };
    for link in network["links"].as_array().into_iter().flatten() {
        let impairments = link["impairments"].as_object();
        let words = impairments.into_iter().flatten().map(|(key, value)| {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            format!("{key} {value}")
        });
        let words: Vec<_> = words.collect();
        let does = if words.is_empty() {
            "-".to_owned()
        } else {
            words.join(" ")
        };
        text.push_str(&format!(
            "{}>{}  {does}\n",
            name(&link["from"]),
            name(&link["to"])
        ));
        let counters = link["counters"].as_object();
        let counted = counters
            .into_iter()
            .flatten()
            .filter(|(_, value)| value.as_u64() != Some(0));
        let counted: Vec<_> = counted
            .map(|(key, value)| format!("{value} {key}"))
            .collect();
        if !counted.is_empty() {
            text.push_str(&format!("      {}\n", counted.join(", ")));
        }
    }
    text.push_str(&format!("damaged frames caught: {}\n", network["damaged"]));
    for carrier in network["carriers"].as_array().into_iter().flatten() {
        text.push_str(&format!(
            "{} at {}: {} connections or datagrams rejected\n",
            carrier["kind"].as_str().unwrap_or("?"),
            carrier["address"].as_str().unwrap_or("?"),
            carrier["rejected"]
        ));
        for process in carrier["processes"].as_array().into_iter().flatten() {
            let state = match process["connected"].as_bool() {
                Some(true) => "answers",
                _ => "SILENT",
            };
            text.push_str(&format!(
                "  {} at {}: {state}, pieces up to {} bytes, {} frames sent, {} received, {} dropped, {} replayed\n",
                process["name"].as_str().unwrap_or("?"),
                process["address"].as_str().unwrap_or("?"),
                process["mtu"],
                process["frames_sent"],
                process["frames_received"],
                process["dropped"],
                process["replayed"],
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_cluster::NodeSpec;
    use serde_json::json;

    #[test]
    fn links_are_named_in_four_ways() {
        assert_eq!(links("all"), Links::All);
        assert_eq!(links("a-1"), Links::At("a-1".into()));
        assert_eq!(links("a:b"), Links::Between("a".into(), "b".into()));
        assert_eq!(links("a>b"), Links::OneWay("a".into(), "b".into()));
    }

    #[test]
    fn values_are_checked_and_something_must_change() {
        let change = |loss: Option<&str>| Change {
            loss: loss.map(str::to_owned),
            delay: None,
            jitter: None,
            reorder: None,
            duplicate: None,
            corrupt: None,
            rate: None,
            partition: None,
        };
        assert!(change(Some("5%")).read().unwrap().loss.is_some());
        let wrong = change(Some("5")).read().unwrap_err().to_string();
        assert!(
            wrong.starts_with("--loss: expected a percentage"),
            "{wrong}"
        );
        assert!(change(None).read().is_err());
    }

    #[test]
    fn a_link_is_shown_by_the_names_of_its_nodes() {
        let spec = ClusterSpec::new("c")
            .with(NodeSpec::new("a"))
            .with(NodeSpec::new("b"));
        let network = json!({
            "links": [{
                "from": 0, "to": 1, "impairments": { "loss": "5%", "partition": true },
                "counters": { "offered": 20, "lost": 1, "cut": 0 }
            }, { "from": 1, "to": 7, "impairments": {}, "counters": {} }],
            "damaged": 3,
            "carriers": [],
        });
        let shown = table(&spec, &network);
        let expected = "topology mesh\na>b  loss 5% partition true\n      1 lost, 20 offered\n\
                        b>node 7  -\ndamaged frames caught: 3\n";
        assert_eq!(shown, expected);
    }
}
