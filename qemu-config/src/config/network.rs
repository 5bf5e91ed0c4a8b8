//! The part of a cluster file that says how NICs are joined, and on which hosts
//! their guests run.
//!
//! ```toml
//! [network]                          # optional
//! topology = "mesh"                  # or "ring"; "star" with hub = "a"; "torus" with columns = 4
//! seed = 1                           # of all chance
//! default = { delay = "20us" }       # what every link does
//! peer_timeout = "5s"                # a node that is silent for so long is given up
//! key_file = "cluster.key"           # with hosts: at least 32 random bytes, the same everywhere
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
//! nodes = ["a", "b"]
//!
//! [[network.process]]                # optional: several device processes on one host,
//! name = "left"                      # joined by shared memory
//! nodes = ["a", "b"]
//! ```
//!
//! Nodes are numbered in the order of the file; on a torus, that is row by row.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use qnic_links::units::Span;
use qnic_links::{Impairments, Shape, Topology};
use serde::{Deserialize, Serialize};

use super::error::Mistake;
use super::key::KeyPath;
use super::processes::{self, ProcessSpec};
use super::spec::ClusterSpec;

/// How NICs are joined.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSpec {
    /// Shape of the network.
    pub topology: Shape,
    /// Nodes in a row of a torus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub columns: Option<usize>,
    /// Node in the middle of a star.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hub: Option<String>,
    /// Seed of all chance.
    pub seed: u64,
    /// What links do that are not named.
    #[serde(skip_serializing_if = "Impairments::is_none")]
    pub default: Impairments,
    /// A node that owes an answer and is silent for so long is given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_timeout: Option<Span>,
    /// File with the key that hosts share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// On which of the hosts this cluster file is used, once that was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    /// Numbers of nodes that run elsewhere.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub elsewhere: BTreeMap<String, u16>,
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
    /// Names of its nodes.
    pub nodes: Vec<String>,
}

impl ClusterSpec {
    /// Number of a node's NIC, wherever it runs.
    pub fn node_number(&self, name: &str) -> Option<u16> {
        let local = self.numbered().find(|(node, _)| node.name == name);
        let elsewhere = || self.network.as_ref()?.elsewhere.get(name).copied();
        local.map(|(_, number)| number).or_else(elsewhere)
    }

    /// The part of this cluster that `host` boots.
    ///
    /// # Errors
    /// A sentence: the file has no such host.
    pub fn on_host(&self, host: &str) -> Result<Self, String> {
        let network = self.network.as_ref();
        let hosts = network.map_or(&[][..], |network| &network.hosts);
        let Some(here) = hosts.iter().find(|one| one.name == host) else {
            let known: Vec<_> = hosts.iter().map(|one| one.name.as_str()).collect();
            return Err(match known.is_empty() {
                true => "the cluster file has no [[network.host]]".to_owned(),
                false => format!("there is no host \"{host}\": use {}", known.join(" or ")),
            });
        };
        let mut part = self.clone();
        part.nodes.clear();
        let mut elsewhere = BTreeMap::new();
        for (node, number) in self.numbered() {
            if here.nodes.contains(&node.name) {
                let number = Some(number);
                part.nodes.push(super::NodeSpec {
                    number,
                    ..node.clone()
                });
            } else if node.nic {
                elsewhere.insert(node.name.clone(), number);
            }
        }
        if let Some(network) = &mut part.network {
            network.here = Some(host.to_owned());
            network.elsewhere = elsewhere;
        }
        Ok(part)
    }

    /// Names of the hosts of which one must be chosen before booting.
    pub fn hosts_to_choose(&self) -> Vec<&str> {
        let open = self.network.iter().filter(|network| network.here.is_none());
        open.flat_map(|network| &network.hosts)
            .map(|host| host.name.as_str())
            .collect()
    }

    /// All nodes with a NIC, those elsewhere included, by their numbers.
    fn network_nodes(&self) -> BTreeMap<u16, &str> {
        let local = self.numbered().filter(|(node, _)| node.nic);
        let local = local.map(|(node, number)| (number, node.name.as_str()));
        let elsewhere = self.network.iter().flat_map(|network| &network.elsewhere);
        local
            .chain(elsewhere.map(|(name, number)| (*number, name.as_str())))
            .collect()
    }
}

/// Makes a relative path of the key file relative to the cluster file.
pub(super) fn resolve(mut network: NetworkSpec, base: &Path) -> NetworkSpec {
    network.key_file = network.key_file.map(|file| base.join(file));
    network
}

/// Checks the network of `spec`.
pub(super) fn check(spec: &ClusterSpec) -> Result<(), Mistake> {
    let Some(network) = &spec.network else {
        return Ok(());
    };
    let key = KeyPath::top().key("network");
    let nodes = spec.network_nodes();
    let place = |name: &str, key: KeyPath| {
        let found = nodes.values().position(|node| *node == name);
        found.ok_or_else(|| Mistake::new(key, format!("there is no node \"{name}\" with a NIC")))
    };
    let least = Span::nanoseconds(100_000_000);
    if let Some(time) = network.peer_timeout.filter(|time| *time < least) {
        let message = format!("expected {least} or more, found {time}");
        return Err(Mistake::new(key.key("peer_timeout"), message));
    }
    let topology = topology(network, &key, &place)?;
    let wrong = match topology {
        Topology::Torus { .. } => key.key("columns"),
        _ => key.key("topology"),
    };
    topology
        .check(nodes.len())
        .map_err(|message| Mistake::new(wrong, message))?;
    for (index, link) in network.links.iter().enumerate() {
        let key = key.key("link").index(index).key("between");
        let [from, to] = &link.between;
        let ends = (place(from, key.clone())?, place(to, key.clone())?);
        if !topology.joins(nodes.len(), ends.0, ends.1) {
            let message = format!("no link of this topology joins \"{from}\" and \"{to}\"");
            return Err(Mistake::new(key, message));
        }
    }
    let names: HashSet<_> = nodes.into_values().collect();
    processes::check(spec, &names, &key)?;
    check_hosts(network, &names, &key)
}

fn topology(
    network: &NetworkSpec,
    key: &KeyPath,
    place: &dyn Fn(&str, KeyPath) -> Result<usize, Mistake>,
) -> Result<Topology, Mistake> {
    let odd = [
        ("columns", Shape::Torus, network.columns.is_some()),
        ("hub", Shape::Star, network.hub.is_some()),
    ];
    for (name, shape, given) in odd {
        if given != (network.topology == shape) {
            let what = if given { "only" } else { "needed" };
            let message = format!("{what} with the topology {shape:?}").to_lowercase();
            return Err(Mistake::new(key.key(name), message));
        }
    }
    Ok(match (network.topology, network.columns, &network.hub) {
        (Shape::Torus, Some(columns), _) => Topology::Torus { columns },
        (Shape::Star, _, Some(hub)) => Topology::Star {
            hub: place(hub, key.key("hub"))?,
        },
        (Shape::Ring, ..) => Topology::Ring,
        _ => Topology::Mesh,
    })
}

fn check_hosts(network: &NetworkSpec, nodes: &HashSet<&str>, key: &KeyPath) -> Result<(), Mistake> {
    if network.hosts.is_empty() {
        return Ok(());
    }
    if network.key_file.is_none() {
        let message = "needed with hosts: at least 32 random bytes, \
                       such as of \"head -c 32 /dev/urandom > FILE\"";
        return Err(Mistake::new(key.key("key_file"), message));
    }
    let (mut names, mut addresses, mut placed) = (HashSet::new(), HashSet::new(), HashSet::new());
    for (index, host) in network.hosts.iter().enumerate() {
        let key = key.key("host").index(index);
        if !names.insert(&host.name) {
            let message = format!("there is already a host \"{}\"", host.name);
            return Err(Mistake::new(key.key("name"), message));
        }
        if !addresses.insert(host.address) {
            let message = format!("{} is used already", host.address);
            return Err(Mistake::new(key.key("address"), message));
        }
        for (place, node) in host.nodes.iter().enumerate() {
            let key = key.key("nodes").index(place);
            if !nodes.contains(node.as_str()) {
                let message = format!("there is no node \"{node}\" with a NIC");
                return Err(Mistake::new(key, message));
            }
            if !placed.insert(node.as_str()) {
                let message = format!("\"{node}\" is on a host already");
                return Err(Mistake::new(key, message));
            }
        }
    }
    match nodes.iter().find(|node| !placed.contains(**node)) {
        Some(node) => {
            let message = format!("node \"{node}\" is on no host");
            Err(Mistake::new(key.key("host"), message))
        }
        None => Ok(()),
    }
}

/// What the device process is told of the network.
#[derive(Serialize)]
pub(crate) struct DeviceNetwork {
    topology: Shape,
    #[serde(skip_serializing_if = "Option::is_none")]
    columns: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hub: Option<u16>,
    seed: u64,
    default: Impairments,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_timeout: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    udp: Option<DeviceUdp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shm: Option<DeviceShm>,
    link: Vec<DeviceLink>,
    process: Vec<DeviceProcess>,
}

#[derive(Serialize)]
struct DeviceLink {
    from: u16,
    to: u16,
    one_way: bool,
    impairments: Impairments,
}

#[derive(Serialize)]
struct DeviceUdp {
    name: String,
    listen: SocketAddr,
    key_file: PathBuf,
}

#[derive(Serialize)]
struct DeviceShm {
    name: String,
    socket: PathBuf,
}

#[derive(Serialize)]
struct DeviceProcess {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<PathBuf>,
    nodes: Vec<u16>,
}

/// What a device process for `spec` is told of the network; `None` if the file
/// says nothing of it. `calls` says where processes of this machine are called. A path
/// of a key file is made absolute: the process may run elsewhere.
pub(crate) fn for_device(
    spec: &ClusterSpec,
    process: Option<&str>,
    calls: &dyn Fn(&str) -> PathBuf,
) -> Option<DeviceNetwork> {
    let network = spec.network.as_ref()?;
    let number = |name: &String| spec.node_number(name);
    let link = |link: &LinkSpec| {
        let [from, to] = &link.between;
        Some(DeviceLink {
            from: number(from)?,
            to: number(to)?,
            one_way: link.one_way,
            impairments: link.impairments,
        })
    };
    let is_here = |host: &&HostSpec| network.here.as_ref() == Some(&host.name);
    let here = network.hosts.iter().find(is_here);
    let udp = here.zip(network.key_file.as_ref());
    let others = network
        .hosts
        .iter()
        .filter(|host| here.is_some() && !is_here(host));
    let others = others.map(|host| DeviceProcess {
        name: host.name.clone(),
        address: Some(host.address),
        socket: None,
        nodes: host.nodes.iter().filter_map(number).collect(),
    });
    let beside = network.processes.iter();
    let beside = beside.filter(|one| Some(one.name.as_str()) != process);
    let beside = beside.map(|one| DeviceProcess {
        name: one.name.clone(),
        address: None,
        socket: Some(calls(&one.name)),
        nodes: one.nodes.iter().filter_map(number).collect(),
    });
    Some(DeviceNetwork {
        topology: network.topology,
        columns: network.columns,
        hub: network.hub.as_ref().and_then(number),
        seed: network.seed,
        default: network.default,
        peer_timeout: network.peer_timeout,
        udp: udp.map(|(host, key_file)| DeviceUdp {
            name: host.name.clone(),
            listen: host.address,
            key_file: std::path::absolute(key_file).unwrap_or_else(|_| key_file.clone()),
        }),
        shm: process.map(|name| DeviceShm {
            name: name.to_owned(),
            socket: calls(name),
        }),
        link: network.links.iter().filter_map(link).collect(),
        process: others.chain(beside).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
name = "x"
[network]
topology = "torus"
columns = 2
default = { delay = "20us" }
key_file = "k"
[[network.link]]
between = ["a0", "a1"]
one_way = true
impairments = { loss = "5%" }
[[network.host]]
name = "west"
address = "10.0.0.1:7000"
nodes = ["a0", "a1"]
[[network.host]]
name = "east"
address = "10.0.0.2:7000"
nodes = ["a2", "a3"]
[[node]]
name = "a"
count = 4
"#;

    fn parse(text: &str) -> Result<ClusterSpec, String> {
        let file = Path::new("/c/c.toml");
        ClusterSpec::parse(text, file).map_err(|error| error.to_string())
    }

    #[test]
    fn a_network_is_understood_and_printed_again() {
        let spec = parse(FILE).unwrap();
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        assert_eq!(spec.hosts_to_choose(), ["west", "east"]);
        assert_eq!(spec.network.unwrap().key_file.unwrap(), Path::new("/c/k"));
    }

    #[test]
    fn a_host_boots_its_nodes_and_knows_the_others() {
        let whole = parse(FILE).unwrap();
        let east = whole.on_host("east").unwrap();
        east.validate().unwrap();
        assert!(east.hosts_to_choose().is_empty());
        let names: Vec<_> = east.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["a2", "a3"]);
        for (name, number) in [("a0", 0), ("a1", 1), ("a2", 2), ("a3", 3)] {
            assert_eq!(east.node_number(name), Some(number));
        }
        assert_eq!(parse(&east.to_toml().unwrap()).unwrap(), east);
        let device =
            toml::to_string(&for_device(&east, None, &|_| unreachable!()).unwrap()).unwrap();
        for part in [
            "[udp]\nname = \"east\"\nlisten = \"10.0.0.2:7000\"\nkey_file = \"/c/k\"",
            "[[link]]\nfrom = 0\nto = 1\none_way = true",
            "[[process]]\nname = \"west\"\naddress = \"10.0.0.1:7000\"\nnodes = [0, 1]",
        ] {
            assert!(device.contains(part), "{device}");
        }
        let error = whole.on_host("north").unwrap_err();
        assert_eq!(error, "there is no host \"north\": use west or east");
    }

    #[test]
    fn mistakes_are_reported_with_place_and_key() {
        let cases = [
            ("torus", "cube", "4:12: network.topology: unknown variant"),
            (
                "columns = 2",
                "columns = 3",
                "5:11: network.columns: 4 nodes do not fill",
            ),
            (
                "columns = 2",
                "hub = \"a0\"",
                "network.columns: needed with the topology torus",
            ),
            (
                "\"torus\"\ncolumns = 2",
                "\"star\"\nhub = \"b\"",
                "5:7: network.hub: there is no node",
            ),
            (
                "columns = 2",
                "columns = 2\npeer_timeout = \"1ms\"",
                "6:16: network.peer_timeout: expected 100ms",
            ),
            ("20us", "soon", "expected a time such as"),
            ("5%", "5", "expected a percentage"),
            ("loss =", "lose =", "unknown field `lose`"),
            (
                "[\"a0\", \"a1\"]\none",
                "[\"a0\", \"a3\"]\none",
                "network.link[0].between: no link",
            ),
            (
                "[\"a2\", \"a3\"]",
                "[\"a1\", \"a3\"]",
                "network.host[1].nodes[0]: \"a1\" is on a host",
            ),
            (
                "[\"a2\", \"a3\"]",
                "[\"a3\"]",
                "network.host: node \"a2\" is on no host",
            ),
            (
                "0.2:7000",
                "0.1:7000",
                "network.host[1].address: 10.0.0.1:7000 is used",
            ),
            (
                "key_file = \"k\"\n",
                "",
                "network.key_file: needed with hosts",
            ),
        ];
        for (from, to, expected) in cases {
            let error = parse(&FILE.replace(from, to)).expect_err(to);
            assert!(error.contains(expected), "{to}: {error}");
        }
    }
}
