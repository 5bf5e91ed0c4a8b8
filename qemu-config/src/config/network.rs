//! The part of a cluster file that says how NICs are joined, and on which hosts
//! their guests run.
//!
//! ```toml
//! [network]                          # optional
//! topology = "mesh"                  # or "ring"; "star" with hub = "a"; "torus" with columns = 4
//! seed = 1                           # of all chance; 0 if left out
//! default = { delay = "20us" }       # what every link does
//! peer_timeout = "5s"                # a node that is silent for so long is given up
//! fault_timeout = "30s"              # a page that is not brought in for so long is given up
//! encrypt = true                     # what goes between hosts; true if left out
//! transport = { window = 4096 }      # bounds: qnic_config::TransportSettings
//!
//! [[network.link]]                   # what one link does instead
//! between = ["a", "b"]
//! one_way = false                    # true: only from the first to the second
//! impairments = { loss = "5%", delay = "1ms", jitter = "200us", reorder = "2%",
//!                 duplicate = "1%", corrupt = "1%", rate = "1Gbit", partition = false }
//!
//! [[network.host]]                   # optional: "qnic up FILE --host west" boots a and b
//! name = "west"
//! address = "10.0.0.1:7000"          # UDP
//! public_key = "LbZt…="              # of the pair that "cargo qnic keys new west.key" makes
//! private_key = "west.key"           # its file, beside this one; only that host needs it
//! nodes = ["a", "b"]
//!
//! [[network.process]]                # optional: several device processes on one host,
//! name = "left"                      # joined by shared memory
//! nodes = ["a", "b"]
//!
//! [[network.schedule]]               # optional: faults by the clock, see [`ScheduleSpec`]
//! at = "2s"
//! links = "a:b"
//! impairments = { loss = "5%" }
//! ```
//!
//! `lossless = true` gives a wire that never loses a frame and cannot be changed: frames go without copies
//! and timers. Only timeouts and transport go with it. A cluster without `[network]` is a
//! mesh whose links do nothing until they are changed.
//!
//! Nodes are numbered in the order of the file. On a torus they have their places in this order,
//! row by row, and on a ring one after the other, unless each is given coordinates:
//!
//! ```toml
//! [network.coordinates]              # optional, of all nodes with a NIC
//! a = [1, 0]                         # column and row of a torus, from 0; on a ring: [place]
//! b = [0, 0]
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use qnic_config::plan::units::Span;
use qnic_config::plan::{Impairments, PublicKey, Shape};
use qnic_config::{add, require, ConfigError, TransportSettings, Unique};
use serde::{Deserialize, Serialize};

use super::ethernet::EthernetPort;
use super::rules::check_name;
use super::schedule::{self, ScheduleSpec};

/// How NICs are joined.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSpec {
    /// Shape of the network.
    pub topology: Shape,
    /// Nodes in a row of a torus.
    pub columns: Option<usize>,
    /// Node in the middle of a star.
    pub hub: Option<String>,
    /// Where nodes are on a ring or a torus, all or none; [`qnic_config::arrange`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub coordinates: BTreeMap<String, Vec<usize>>,
    /// Seed of all chance.
    pub seed: u64,
    /// The wire loses nothing and cannot be changed.
    #[serde(skip_serializing_if = "is_false")]
    pub lossless: bool,
    /// What links do that are not named.
    #[serde(skip_serializing_if = "Impairments::is_none")]
    pub default: Impairments,
    /// A node that owes an answer and is silent for so long is given up.
    pub peer_timeout: Option<Span>,
    /// A page fault that a guest's kernel has not answered for so long fails what waits for
    /// its pages.
    pub fault_timeout: Option<Span>,
    /// Whether what goes between hosts is encrypted, or only authenticated; `None`: it is.
    pub encrypt: Option<bool>,
    /// Windows and timeouts.
    #[serde(skip_serializing_if = "TransportSettings::is_default")]
    pub transport: TransportSettings,
    /// On which of the hosts this cluster file is used, once that was chosen.
    pub here: Option<String>,
    /// What single links do.
    #[serde(rename = "link", skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkSpec>,
    /// Where nodes run; empty: all on this machine.
    #[serde(rename = "host", skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostSpec>,
    /// Device processes of this machine; empty: one.
    #[serde(rename = "process", skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessSpec>,
    /// What links do at which time of a run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schedule: Vec<ScheduleSpec>,
    /// Numbers of nodes that run elsewhere.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub elsewhere: BTreeMap<String, u16>,
    /// Ethernet ports of nodes that run elsewhere.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ports_elsewhere: BTreeMap<String, EthernetPort>,
}

impl NetworkSpec {
    /// A wire that loses nothing and cannot be changed.
    pub fn lossless() -> Self {
        Self {
            lossless: true,
            ..Self::default()
        }
    }

    /// One device process serves all nodes.
    pub(super) fn is_one_process(&self) -> bool {
        self.hosts.is_empty() && self.processes.is_empty()
    }
}

// Serde passes a reference.
fn is_false(lossless: &bool) -> bool {
    !lossless
}

/// What one link does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// The nodes that it joins.
    pub between: [String; 2],
    /// Only from the first to the second.
    #[serde(default)]
    pub one_way: bool,
    /// What it does.
    pub impairments: Impairments,
}

/// A machine that boots some of the nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Its name.
    pub name: String,
    /// Where its device process listens, UDP.
    pub address: SocketAddr,
    /// By which key it is known.
    pub public_key: PublicKey,
    /// File with the other key of the pair, on that host.
    pub private_key: PathBuf,
    /// Names of its nodes.
    pub nodes: Vec<String>,
}

/// A device process of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessSpec {
    /// Its name.
    pub name: String,
    /// Names of the nodes whose NICs it has.
    pub nodes: Vec<String>,
}

/// Checks the network of these nodes, which have a NIC.
pub(super) fn check<'a>(
    network: &'a NetworkSpec,
    mut nodes: Vec<&'a str>,
) -> Result<(), ConfigError> {
    let message =
        "a lossless wire cannot be changed: only timeouts and transport go with it in [network]";
    let bounds = NetworkSpec {
        peer_timeout: network.peer_timeout,
        fault_timeout: network.fault_timeout,
        transport: network.transport,
        ..NetworkSpec::lossless()
    };
    let alone = !network.lossless || *network == bounds;
    require(alone, "network.lossless", message)?;
    qnic_config::check_timeouts(network.peer_timeout, network.fault_timeout)?;
    network.transport.check()?;
    let hub = network.hub.as_deref();
    let (shape, columns) = (network.topology, network.columns);
    let topology = qnic_config::topology(shape, columns, hub.as_ref(), &nodes)?;
    let coordinates = network.coordinates.iter();
    let coordinates = coordinates.map(|(node, at)| (node.as_str(), &at[..]));
    qnic_config::arrange(&topology, coordinates, &mut nodes)?;
    let nodes = &nodes[..];
    for (index, link) in network.links.iter().enumerate() {
        let [from, to] = &link.between;
        let ends = [&from.as_str(), &to.as_str()];
        let key = format!("network.link[{index}].between");
        qnic_config::check_link(&topology, nodes, ends, &key)?;
    }
    schedule::check(&network.schedule, &topology, nodes)?;
    check_processes(network, nodes)?;
    check_hosts(network, nodes)
}

fn check_hosts(network: &NetworkSpec, nodes: &[&str]) -> Result<(), ConfigError> {
    if network.hosts.is_empty() {
        return Ok(());
    }
    let (mut addresses, mut keys) = (Unique::default(), Unique::default());
    for (index, host) in network.hosts.iter().enumerate() {
        let key = format!("network.host[{index}]");
        let (address, public_key) = (host.address, host.public_key);
        add(&mut addresses, address, &format!("{key}.address"), address)?;
        add(
            &mut keys,
            public_key,
            &format!("{key}.public_key"),
            "the key",
        )?;
    }
    let hosts = network.hosts.iter().map(|host| (&host.name, &host.nodes));
    check_division(hosts, nodes, "network.host")
}

fn check_processes(network: &NetworkSpec, nodes: &[&str]) -> Result<(), ConfigError> {
    let top = "network.process";
    if network.processes.is_empty() {
        return Ok(());
    }
    let message = "a cluster has either hosts or several processes on one host";
    require(network.hosts.is_empty(), top, message)?;
    for (index, process) in network.processes.iter().enumerate() {
        check_name(&process.name, &format!("{top}[{index}].name"))?;
        let message = "expected at least one node: a device process has a NIC";
        require(
            !process.nodes.is_empty(),
            format!("{top}[{index}].nodes"),
            message,
        )?;
    }
    let processes = network.processes.iter().map(|one| (&one.name, &one.nodes));
    check_division(processes, nodes, top)
}

/// Checks that `parts`, each a name and its nodes, have names of their own and divide all
/// nodes among them.
fn check_division<'a>(
    parts: impl Iterator<Item = (&'a String, &'a Vec<String>)>,
    nodes: &[&str],
    top: &str,
) -> Result<(), ConfigError> {
    let (mut names, mut placed) = (Unique::default(), Unique::default());
    for (index, (name, part)) in parts.enumerate() {
        let key = format!("{top}[{index}]");
        let what = format_args!("name \"{name}\"");
        add(&mut names, name, &format!("{key}.name"), what)?;
        for (index, node) in part.iter().enumerate() {
            let (node, key) = (node.as_str(), format!("{key}.nodes[{index}]"));
            qnic_config::index_of(&node, nodes, &key)?;
            add(&mut placed, node, &key, format_args!("node \"{node}\""))?;
        }
    }
    for node in nodes {
        let message =
            format!("node \"{node}\" is in none of them, and has a NIC or an Ethernet port");
        require(placed.contains_key(node), top, message)?;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::super::tests::{assert_errors, parse};
    use crate::ClusterSpec;

    pub(in super::super) const HOSTS: &str = r#"
name = "x"
[network]
topology = "torus"
columns = 2
default = { delay = "20us" }
[[network.link]]
between = ["a0", "a1"]
one_way = true
impairments = { loss = "5%" }
[[network.host]]
name = "west"
address = "10.0.0.1:7000"
public_key = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="
private_key = "/c/west"
nodes = ["a0", "a1"]
[[network.host]]
name = "east"
address = "10.0.0.2:7000"
public_key = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08="
private_key = "/c/east"
nodes = ["a2", "a3"]
[[node]]
name = "a"
count = 4
"#;

    pub(in super::super) const PROCESSES: &str = r#"
name = "x"
[[network.process]]
name = "left"
nodes = ["a0", "a1"]
[[network.process]]
name = "right"
nodes = ["a2"]
[[node]]
name = "a"
count = 3
[[node]]
name = "plain"
nic = false
ethernet = false
"#;

    #[test]
    fn a_network_is_understood_and_printed_again() {
        let file = Path::new("/c/c.toml");
        let spec = ClusterSpec::parse(&HOSTS.replace("/c/", ""), file).unwrap();
        assert_eq!(spec, parse(HOSTS).unwrap());
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        assert_eq!(spec.hosts_to_choose(), ["west", "east"]);
        let network = spec.network.unwrap();
        assert_eq!(network.hosts[1].private_key, Path::new("/c/east"));
        let open = HOSTS.replace("columns = 2", "columns = 2\nencrypt = false");
        let spec = parse(&open).unwrap();
        assert_eq!(spec.network.as_ref().unwrap().encrypt, Some(false));
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
    }

    #[test]
    fn errors_of_hosts_and_links_have_location_and_key() {
        let table = r#"
            torus => cube | 4:12: network.topology: unknown variant
            columns = 2 => columns = 3 | 5:11: network.columns: 4 nodes do not fill
            columns = 2 => hub = "a0" | 3:1: network.columns: needed with the topology torus
            "torus"\ncolumns = 2 => "star"\nhub = "b" | 5:7: network.hub: there is no node "b"
            columns = 2 => columns = 2\npeer_timeout = "1ms" | 6:16: network.peer_timeout: expected 100ms
            columns = 2 => columns = 2\nfault_timeout = "1ms" | 6:17: network.fault_timeout: expected 100ms
            columns = 2 => columns = 2\ntransport = { window = 8 } | network.transport.window: expected 16 to 4096
            20us => soon | expected a time such as
            5% => 5 | expected a percentage
            loss => lose | unknown field `lose`
            "a1"]\none => "a3"]\none | network.link[0].between: no link of this topology joins "a0" and "a3"
            "a2", "a3" => "a1", "a3" | network.host[1].nodes[0]: node "a1" is used already by network.host[0].nodes[1]
            "a2", "a3" => "a3" | network.host: node "a2" is in none
            0.2:7000 => 0.1:7000 | network.host[1].address: 10.0.0.1:7000 is used already by network.host[0].address
            east => west | network.host[1].name: name "west" is used already
            private_key = "/c/east"\n => | network.host[1]: missing field `private_key`
            3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08= => | 20:14: network.host[1].public_key: expected a key of 44 characters
            3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08= => hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo= | network.host[1].public_key: the key is used already by network.host[0].public_key
        "#;
        assert_errors(HOSTS, table);
    }

    /// Coordinates give nodes their places (Q16).
    #[test]
    fn nodes_are_where_their_coordinates_say() {
        let coordinates = "{ a0 = [1, 0], a1 = [0, 0], a2 = [1, 1], a3 = [0, 1] }";
        let line = format!("columns = 2\ncoordinates = {coordinates}");
        let good = HOSTS.replace("columns = 2", &line);
        let spec = parse(&good).unwrap();
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        let table = r#"
            a0 = [1, 0] => b = [1, 0] | 6:21: network.coordinates.b: there is no node "b"
            a0 = [1, 0] => a0 = [1, 2] | 6:22: network.coordinates.a0: expected [column, row] from [0, 0] to [1, 1], found [1, 2]
            a0 = [1, 0] => a0 = [1, 0, 0] | network.coordinates.a0: expected [column, row], found 3
            a0 = [1, 0], => | network.coordinates: node "a0" has none
            a0 = [1, 0] => a0 = [0, 1] | network.coordinates.a3: node "a0" is at [0, 1]: give each node
            a0 = [1, 0] => a0 = 1 | network.coordinates.a0: invalid type
            "a0", "a1"]\none => "a0", "a3"]\none | network.link[0].between: no link of this topology joins "a0" and "a3"
            "torus"\ncolumns = 2 => "mesh" | network.coordinates.a0: only a ring and a torus
        "#;
        assert_errors(&good, table);
    }

    #[test]
    fn errors_of_processes_have_location_and_key() {
        let table = r#"
            right => left | network.process[1].name: name "left" is used already
            right => Right | network.process[1].name: expected 1 to
            "a2" => "a1" | network.process[1].nodes[0]: node "a1" is used already
            "a2" => "plain" | network.process[1].nodes[0]: there is no node
            "a2" => | network.process[1].nodes: expected at least one
            "a0", "a1" => "a0" | network.process: node "a1" is in none
            [[node]] => [[network.host]]\nname = "h"\naddress = "[::1]:1"\npublic_key = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="\nprivate_key = "k"\nnodes = []\n[[node]] | network.process: a cluster has either hosts
        "#;
        assert_errors(PROCESSES, table);
    }
}
