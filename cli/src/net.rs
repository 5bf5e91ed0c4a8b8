//! `qnic net`: shows and changes what the links of a running cluster do to frames.

use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{ensure, Result};
use clap::{Args, Subcommand};
use qnic_cluster::{Cancel, ClusterSpec, ImpairmentChange, Links, Probability, Rate, Shape, Span};
use serde_json::Value;

use crate::ui::{self, ClusterOption};

/// Options of `qnic net`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic net show
  cargo qnic net set all --loss 5% --delay 1ms
  cargo qnic net set a:b --partition on           both directions
  cargo qnic net set 'a>b' --rate 100Mbit         from a to b only
  cargo qnic net set 'a>b' --rate none            without a limit again
  cargo qnic net clear a                          all links of a's first NIC
  cargo qnic net set a.disks:b.disks --loss 5%    of NICs with a name
  cargo qnic net set all --loss 1% --cluster pair needed if several clusters run

A link does what the cluster file says until it is changed; \"set\" changes what is
named and leaves the rest, \"clear\" ends everything, \"restore\" goes back to the file.
\"play\" does what [[network.schedule]] of the file says at each time. Frames that are under
way when a link is changed go on as they would have, but for a partition.

Exit status: 0 when done, 1 on an error, 2 for a wrong command line.")]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show each direction of each link: what it does, and what it has done
    Show {
        #[command(flatten)]
        cluster: ClusterOption,
        /// Print what the device process answers, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Change what links do
    Set {
        /// all, a node, A:B or A>B; for one of several NICs, NODE.NIC
        link: String,
        #[command(flatten)]
        change: Change,
        #[command(flatten)]
        cluster: ClusterOption,
    },
    /// Make links do nothing
    Clear {
        /// all, a node, A:B or A>B; for one of several NICs, NODE.NIC
        link: String,
        #[command(flatten)]
        cluster: ClusterOption,
    },
    /// Make links do again what the cluster file says
    Restore {
        /// all, a node, A:B or A>B; for one of several NICs, NODE.NIC
        link: String,
        #[command(flatten)]
        cluster: ClusterOption,
    },
    /// Play the schedule of the cluster file, [[network.schedule]], from now on
    Play {
        #[command(flatten)]
        cluster: ClusterOption,
        /// Seed of its chance, instead of the file's
        #[arg(long)]
        seed: Option<u64>,
    },
}

/// Changes of [`ImpairmentChange`].
#[derive(Args)]
struct Change {
    /// Frames that vanish, such as 5%
    #[arg(long, value_name = "PERCENT")]
    loss: Option<Probability>,
    /// How long every frame takes, such as 1ms
    #[arg(long, value_name = "TIME")]
    delay: Option<Span>,
    /// How much longer or shorter than that, at random
    #[arg(long, value_name = "TIME")]
    jitter: Option<Span>,
    /// Frames that later ones may overtake
    #[arg(long, value_name = "PERCENT")]
    reorder: Option<Probability>,
    /// Frames that arrive twice
    #[arg(long, value_name = "PERCENT")]
    duplicate: Option<Probability>,
    /// Frames of which some bits flip; the checksum catches them
    #[arg(long, value_name = "PERCENT")]
    corrupt: Option<Probability>,
    /// Bits per second, such as 1Gbit, or none for no limit
    #[arg(long, value_name = "RATE|none")]
    rate: Option<RateChange>,
    /// Nothing passes
    #[arg(long, value_name = "on|off")]
    partition: Option<Switch>,
}

/// A rate, or `none`.
#[derive(Clone, Copy)]
struct RateChange(Option<Rate>);

impl FromStr for RateChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(RateChange(None));
        }
        let rate = text.parse::<Rate>();
        let rate = rate.map_err(|error| format!("{error}; \"none\" takes the rate away"))?;
        Ok(RateChange(Some(rate)))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

impl Change {
    fn read(&self) -> Result<ImpairmentChange> {
        let change = ImpairmentChange {
            loss: self.loss,
            delay: self.delay,
            jitter: self.jitter,
            reorder: self.reorder,
            duplicate: self.duplicate,
            corrupt: self.corrupt,
            rate: self.rate.map(|change| change.0),
            partition: self.partition.map(|switch| switch == Switch::On),
        };
        ensure!(
            change != ImpairmentChange::default(),
            "say what is to change, such as --loss 5%"
        );
        Ok(change)
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    match &options.action {
        Action::Show { cluster, json } => {
            let cluster = cluster.find(None)?;
            let mut stats = cluster.device_stats()?;
            let network = stats["network"].take();
            ui::show(*json, &network, |network| table(cluster.spec(), network))?;
            if let Some(silent) = stats.get("silent") {
                eprintln!(
                    "qnic: not all is shown, for these device processes do not answer: {silent}; \
                     see \"qnic ps\" and \"qnic logs\""
                );
                return Ok(ExitCode::FAILURE);
            }
        }
        Action::Set {
            link,
            change,
            cluster,
        } => {
            let change = change.read()?;
            let changed = cluster
                .find(None)?
                .set_links(&Links::named(link), Some(&change))?;
            println!("{changed} directions of links changed");
        }
        Action::Clear { link, cluster } => {
            let changed = cluster.find(None)?.set_links(&Links::named(link), None)?;
            println!("{changed} directions of links cleared");
        }
        Action::Restore { link, cluster } => {
            let changed = cluster.find(None)?.restore_links(&Links::named(link))?;
            println!("{changed} directions of links restored");
        }
        Action::Play { cluster, seed } => play(cluster, *seed)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes the steps of the schedule and says each, until the last or Ctrl-C.
fn play(cluster: &ClusterOption, seed: Option<u64>) -> Result<()> {
    let cancel = Cancel::on_signals()?;
    let cluster = cluster.find(Some(&cancel))?;
    let mut spec = cluster.spec().clone();
    if let (Some(seed), Some(network)) = (seed, &mut spec.network) {
        network.seed = seed;
    }
    let steps = spec.schedule();
    ensure!(
        !steps.is_empty(),
        "the file of cluster {} has no [[network.schedule]]",
        cluster.name()
    );
    cluster.play(&steps, &cancel, &mut |step| {
        let (at, links) = (step.taken_seconds, &step.links);
        println!("{at:8.3} s  {links}  {}", step.change);
    })?;
    match cancel.is_cancelled() {
        true => Err(qnic_cluster::Error::Interrupted.into()),
        false => Ok(()),
    }
}

fn table(spec: &ClusterSpec, network: &Value) -> String {
    let network_spec = spec.network.as_ref();
    let shape = network_spec.map_or(Shape::Mesh, |net| net.topology);
    let mut text = format!("topology {shape:?}\n").to_lowercase();
    let name = |link: &Value, end: &str| {
        let (network, number) = (link["network"].as_str(), &link[end]);
        let found = number
            .as_u64()
            .and_then(|number| spec.nic_address(network, number));
        found.unwrap_or_else(|| format!("node {number}"))
    };
    for link in list(&network["links"]) {
        let impairments = link["impairments"].as_object().into_iter().flatten();
        let words: Vec<_> = impairments
            .map(|(key, value)| format!("{key} {}", plain(value)))
            .collect();
        let does = if words.is_empty() {
            "-"
        } else {
            &words.join(" ")
        };
        text += &format!("{}>{}  {does}\n", name(link, "from"), name(link, "to"));
        let counters = link["counters"].as_object().into_iter().flatten();
        let counted: Vec<_> = counters
            .filter(|(_, value)| value.as_u64() != Some(0))
            .map(|(key, value)| format!("{value} {key}"))
            .collect();
        if !counted.is_empty() {
            text += &format!("      {}\n", counted.join(", "));
        }
    }
    text += &format!("damaged frames caught: {}\n", network["damaged"]);
    for carrier in list(&network["carriers"]) {
        text += &format!(
            "{} at {}: {} calls or datagrams rejected\n",
            plain(&carrier["kind"]),
            plain(&carrier["address"]),
            carrier["rejected"]
        );
        for process in list(&carrier["processes"]) {
            let state = match process["connected"].as_bool() {
                Some(true) => "answers",
                _ => "SILENT",
            };
            text += &format!(
                "  {} at {}: {state}, pieces up to {} bytes, {} frames sent ({} in fragments), {} received, {} dropped, {} replayed\n",
                plain(&process["name"]),
                plain(&process["address"]),
                process["mtu"],
                process["frames_sent"],
                process["fragmented"],
                process["frames_received"],
                process["dropped"],
                process["replayed"],
            );
        }
    }
    text
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A value as text: a string without its quotes.
pub(crate) fn plain(value: &Value) -> String {
    let text = value.as_str().map(str::to_owned);
    text.unwrap_or_else(|| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_cluster::{NicSpec, NodeSpec};
    use qnic_links::{CarrierReport, ProcessReport};
    use serde_json::json;

    #[test]
    fn values_are_checked_and_something_must_change() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            change: Change,
        }
        let parse = |arguments: &[&str]| <Line as clap::Parser>::try_parse_from(arguments);
        let change = parse(&["net", "--loss", "5%", "--partition", "off"]).unwrap();
        let change = change.change.read().unwrap();
        assert_eq!(change.loss, Some(Probability::percent(5.0)));
        assert_eq!(change.partition, Some(false));
        let wrong = parse(&["net", "--loss", "5"]).err().unwrap().to_string();
        assert!(
            wrong.contains("'--loss <PERCENT>': expected a percentage"),
            "{wrong}"
        );
        assert!(parse(&["net"]).unwrap().change.read().is_err());
        for (rate, expected) in [
            ("none", None),
            ("1Gbit", Some(Rate::bits_per_second(1_000_000_000))),
        ] {
            let change = parse(&["net", "--rate", rate]).unwrap();
            assert_eq!(change.change.read().unwrap().rate, Some(expected));
        }
    }

    #[test]
    fn a_link_is_shown_by_the_names_of_its_nodes() {
        let mut spec = ClusterSpec::new("c")
            .with(NodeSpec::new("a"))
            .with(NodeSpec::new("b"));
        let disks = |network| NicSpec {
            name: "disks".into(),
            network,
        };
        spec.nodes[1].nics = vec![disks(None), disks(Some("side".into()))];
        let network = json!({
            "links": [{
                "network": "side", "from": 1, "to": 2, "impairments": {}, "counters": {}
            }, {
                "from": 0, "to": 1, "impairments": { "loss": "5%", "partition": true },
                "counters": { "offered": 20, "lost": 1, "cut": 0 }
            }, { "from": 1, "to": 7, "impairments": {}, "counters": {} }],
            "damaged": 3,
            "carriers": [CarrierReport {
                kind: "udp",
                address: "10.0.0.1:7000".into(),
                rejected: 4,
                processes: vec![ProcessReport { name: "d1".into(), ..ProcessReport::default() }],
            }],
        });
        let shown = table(&spec, &network);
        let expected = "topology mesh\nb.disks>node 2  -\na>b  loss 5% partition true\n      1 lost, 20 offered\n\
                        b>node 7  -\ndamaged frames caught: 3\n\
                        udp at 10.0.0.1:7000: 4 calls or datagrams rejected\n  \
                        d1 at : SILENT, pieces up to 0 bytes, 0 frames sent (0 in fragments), 0 received, \
                        0 dropped, 0 replayed\n";
        assert_eq!(shown, expected);
    }
}
