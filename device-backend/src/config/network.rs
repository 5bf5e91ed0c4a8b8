//! The part of the configuration that says how NICs are joined.
//!
//! ```toml
//! [network]                     # optional: without it, every NIC reaches every other over
//!                               # a perfect wire that cannot be changed at run time
//! topology = "mesh"             # or "ring", "star" with `hub`, "torus" with `columns`
//! seed = 1                      # of all chance
//! default = { delay = "10us" }  # what every link does ([`Impairments`])
//! peer_timeout = "5s"           # a node that is silent for so long is given up
//!
//! [[network.link]]              # what one link does instead
//! from = 0
//! to = 1
//! one_way = false               # true: only in this direction
//! impairments = { loss = "5%", delay = "1ms" }
//!
//! [network.udp]                 # how device processes of other hosts are reached
//! name = "west"                 # name of this process
//! listen = "0.0.0.0:7000"
//! key_file = "/run/qnic/key"    # at least 32 bytes, the same for all processes
//!
//! [network.shm]                 # how device processes of this host are reached
//! name = "west"                 # name of this process, at most 64 bytes
//! socket = "/run/qnic/west.shm" # where they call it; all run as one user
//!
//! [[network.process]]           # the others
//! name = "east"
//! address = "10.0.0.2:7000"     # UDP; on this host: socket = "/run/qnic/east.shm"
//! nodes = [2, 3]
//! ```

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use qnic_abi::NodeId;
use qnic_links::units::Span;
use qnic_links::{Impairments, Network, NetworkPlan, Shape, Topology, MAX_NAME};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::check::check_socket;
use super::raw::Places;
use super::{Config, Mistake};

/// Shortest [`NetworkSettings::peer_timeout`]: some retransmissions must fit.
const MIN_PEER_TIMEOUT: Span = Span::nanoseconds(100_000_000);

/// How NICs are joined.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct NetworkSettings {
    /// Shape of the network.
    pub topology: Shape,
    /// Nodes in a row of a torus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub columns: Option<usize>,
    /// Node in the middle of a star.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hub: Option<u16>,
    /// Seed of all chance.
    pub seed: u64,
    /// What links do that are not named.
    pub default: Impairments,
    /// A node that owes an answer and is silent for so long is given up; `None`: the
    /// NIC's default, five seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_timeout: Option<Span>,
    /// How processes of other hosts are reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp: Option<UdpSettings>,
    /// How processes of this host are reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm: Option<ShmSettings>,
    /// What single links do.
    #[serde(rename = "link", skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkSettings>,
    /// The other processes.
    #[serde(rename = "process", skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessSettings>,
}

/// What one link does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSettings {
    /// One end.
    pub from: u16,
    /// The other.
    pub to: u16,
    /// Only in this direction.
    #[serde(default)]
    pub one_way: bool,
    /// What it does.
    pub impairments: Impairments,
}

/// How processes of other hosts are reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpSettings {
    /// Name of this process.
    pub name: String,
    /// Address of its socket.
    pub listen: SocketAddr,
    /// File with the cluster's key.
    pub key_file: PathBuf,
}

/// How processes of this host are reached: through shared memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShmSettings {
    /// Name of this process.
    pub name: String,
    /// Path of the socket where it is called.
    pub socket: PathBuf,
}

/// Another device process of the network: it has an address or a socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessSettings {
    /// Its name.
    pub name: String,
    /// Where it listens, UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// Where it is called, on this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// The nodes whose NICs it runs.
    pub nodes: Vec<u16>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNetwork {
    #[serde(default)]
    topology: Shape,
    columns: Option<Spanned<usize>>,
    hub: Option<Spanned<u16>>,
    #[serde(default = "first_seed")]
    seed: u64,
    #[serde(default)]
    default: Impairments,
    peer_timeout: Option<Spanned<Span>>,
    udp: Option<UdpSettings>,
    shm: Option<ShmSettings>,
    #[serde(default)]
    link: Vec<Spanned<LinkSettings>>,
    #[serde(default)]
    process: Vec<Spanned<ProcessSettings>>,
}

fn first_seed() -> u64 {
    1
}

impl RawNetwork {
    pub(super) fn resolve(self, places: &mut Places) -> NetworkSettings {
        let mut take = |key: String, span| places.insert(key, span);
        let columns = self.columns.map(|columns| {
            take("network.columns".to_owned(), columns.span());
            columns.into_inner()
        });
        let hub = self.hub.map(|hub| {
            take("network.hub".to_owned(), hub.span());
            hub.into_inner()
        });
        let peer_timeout = self.peer_timeout.map(|time| {
            take("network.peer_timeout".to_owned(), time.span());
            time.into_inner()
        });
        let links = self.link.into_iter().enumerate().map(|(index, link)| {
            take(format!("network.link[{index}]"), link.span());
            link.into_inner()
        });
        let links = links.collect();
        let processes = self.process.into_iter().enumerate();
        let processes = processes.map(|(index, process)| {
            take(format!("network.process[{index}]"), process.span());
            process.into_inner()
        });
        NetworkSettings {
            topology: self.topology,
            columns,
            hub,
            seed: self.seed,
            default: self.default,
            peer_timeout,
            udp: self.udp,
            shm: self.shm,
            links,
            processes: processes.collect(),
        }
    }
}

impl Config {
    /// The network that this process takes part in.
    ///
    /// # Errors
    /// The first value that breaks a rule.
    pub fn network_plan(&self) -> Result<NetworkPlan, Mistake> {
        let settings = self.network.clone().unwrap_or_default();
        let local = self.nics.iter().map(|nic| nic.node);
        let remote = settings.processes.iter().flat_map(|process| &process.nodes);
        let mut nodes: Vec<_> = local.chain(remote.copied().map(NodeId)).collect();
        nodes.sort_unstable();
        let topology = settings.topology(&nodes)?;
        let mut links = Vec::new();
        for (index, link) in settings.links.iter().enumerate() {
            let (from, to) = (NodeId(link.from), NodeId(link.to));
            let place = |node| nodes.binary_search(node).ok();
            let joined = place(&from)
                .zip(place(&to))
                .is_some_and(|(from, to)| topology.joins(nodes.len(), from, to));
            if !joined {
                return Err(mistake(
                    &format!("network.link[{index}]"),
                    format!("no link of this topology joins {from} and {to}"),
                ));
            }
            links.push((from, to, link.impairments));
            if !link.one_way {
                links.push((to, from, link.impairments));
            }
        }
        Ok(NetworkPlan {
            topology,
            nodes,
            default: settings.default,
            links,
            seed: settings.seed,
        })
    }

    pub(super) fn check_network(&self) -> Result<(), Mistake> {
        let Some(settings) = &self.network else {
            return Ok(());
        };
        settings.check_processes(self)?;
        if let Some(time) = settings
            .peer_timeout
            .filter(|time| *time < MIN_PEER_TIMEOUT)
        {
            let message = format!("expected {MIN_PEER_TIMEOUT} or more, found {time}");
            return Err(mistake("network.peer_timeout", message));
        }
        let plan = self.network_plan()?;
        let local: Vec<_> = self.nics.iter().map(|nic| nic.node).collect();
        match Network::new(&plan, &local) {
            Ok(_) => Ok(()),
            Err(message) => Err(mistake("network", message)),
        }
    }
}

impl NetworkSettings {
    fn topology(&self, nodes: &[NodeId]) -> Result<Topology, Mistake> {
        let odd = [
            ("columns", Shape::Torus, self.columns.is_some()),
            ("hub", Shape::Star, self.hub.is_some()),
        ];
        for (key, shape, given) in odd {
            if given != (self.topology == shape) {
                let what = if given { "only" } else { "needed" };
                let message = format!("{what} with the topology {shape:?}").to_lowercase();
                return Err(mistake(&format!("network.{key}"), message));
            }
        }
        let topology = match (self.topology, self.columns, self.hub) {
            (Shape::Torus, Some(columns), _) => Topology::Torus { columns },
            (Shape::Star, _, Some(hub)) => {
                let place = nodes.binary_search(&NodeId(hub));
                let hub =
                    place.map_err(|_| mistake("network.hub", format!("there is no node {hub}")))?;
                Topology::Star { hub }
            }
            (Shape::Ring, ..) => Topology::Ring,
            _ => Topology::Mesh,
        };
        let key = match topology {
            Topology::Torus { .. } => "network.columns",
            _ => "network.hub",
        };
        topology
            .check(nodes.len())
            .map_err(|message| mistake(key, message))?;
        Ok(topology)
    }

    fn check_processes(&self, config: &Config) -> Result<(), Mistake> {
        let own = self.udp.iter().map(|udp| udp.name.as_str());
        let own = own.chain(self.shm.iter().map(|shm| shm.name.as_str()));
        let mut names: HashSet<_> = own.collect();
        let mut nodes: HashSet<_> = config.nics.iter().map(|nic| nic.node.0).collect();
        let (mut addresses, mut sockets) = (HashSet::new(), HashSet::new());
        if let Some(shm) = &self.shm {
            check_name(&shm.name, "network.shm.name")?;
            check_socket(&shm.socket, "network.shm.socket".to_owned())?;
            sockets.insert(shm.socket.as_path());
        }
        for (index, process) in self.processes.iter().enumerate() {
            let key = format!("network.process[{index}]");
            if !names.insert(&process.name) {
                let message = format!("the name \"{}\" is used already", process.name);
                return Err(mistake(&key, message));
            }
            match (process.address, &process.socket) {
                (Some(address), None) => self.check_udp(&key, address, &mut addresses)?,
                (None, Some(socket)) => {
                    check_name(&process.name, &key)?;
                    self.check_shm(&key, socket, &mut sockets)?;
                }
                _ => {
                    let message = "expected either an address (UDP) or a socket (on this host)";
                    return Err(mistake(&key, message.to_owned()));
                }
            }
            if let Some(node) = process.nodes.iter().find(|node| !nodes.insert(**node)) {
                let message = format!("node {node} is in another process, or here twice");
                return Err(mistake(&key, message));
            }
        }
        Ok(())
    }

    fn check_udp(
        &self,
        key: &str,
        address: SocketAddr,
        known: &mut HashSet<SocketAddr>,
    ) -> Result<(), Mistake> {
        if self.udp.is_none() {
            let message = "needed to reach other processes: name, listen, key_file".to_owned();
            return Err(mistake("network.udp", message));
        }
        match known.insert(address) {
            true => Ok(()),
            false => {
                let message = format!("the address {address} is used already");
                Err(mistake(key, message))
            }
        }
    }

    fn check_shm<'a>(
        &self,
        key: &str,
        socket: &'a Path,
        known: &mut HashSet<&'a Path>,
    ) -> Result<(), Mistake> {
        if self.shm.is_none() {
            let message = "needed to reach other processes of this host: name, socket".to_owned();
            return Err(mistake("network.shm", message));
        }
        check_socket(socket, key.to_owned())?;
        match known.insert(socket) {
            true => Ok(()),
            false => {
                let message = format!("the socket {} is used already", socket.display());
                Err(mistake(key, message))
            }
        }
    }
}

/// Names that go over a link of shared memory have a fixed room.
fn check_name(name: &str, key: &str) -> Result<(), Mistake> {
    match name.len() {
        _ if name.chars().any(char::is_control) => {
            let message = format!("{name:?} has control characters");
            Err(mistake(key, message))
        }
        1..=MAX_NAME => Ok(()),
        length => {
            let message = format!("expected a name of 1 to {MAX_NAME} bytes, found {length}");
            Err(mistake(key, message))
        }
    }
}

fn mistake(key: &str, message: String) -> Mistake {
    Mistake {
        key: key.to_owned(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const NICS: &str = "\
[[nic]]\nname = \"a\"\nnode = 0\nsocket = \"/tmp/a\"\nram = \"256MiB\"
[[nic]]\nname = \"b\"\nnode = 1\nsocket = \"/tmp/b\"\nram = \"256MiB\"\n";

    fn parse(rest: &str) -> Result<Config, String> {
        let text = format!("{NICS}{rest}");
        Config::parse(&text, Path::new("q.toml")).map_err(|error| error.to_string())
    }

    const WHOLE: &str = "\
[network]\ntopology = \"torus\"\ncolumns = 2\nseed = 3\npeer_timeout = \"2s\"\ndefault = { delay = \"10us\" }
[[network.link]]\nfrom = 0\nto = 1\none_way = true\nimpairments = { loss = \"5%\", rate = \"1Gbit\" }
[network.udp]\nname = \"west\"\nlisten = \"127.0.0.1:7000\"\nkey_file = \"/k\"
[[network.process]]\nname = \"east\"\naddress = \"127.0.0.1:7001\"\nnodes = [2, 3]\n";

    #[test]
    fn a_whole_network_is_understood_and_printed_again() {
        let config = parse(WHOLE).unwrap();
        let plan = config.network_plan().unwrap();
        assert_eq!(plan.topology, Topology::Torus { columns: 2 });
        assert_eq!(plan.nodes, [0, 1, 2, 3].map(NodeId));
        assert_eq!(plan.links.len(), 1);
        let printed = toml::to_string(&config).unwrap();
        let again = Config::parse(&printed, Path::new("q.toml")).unwrap();
        assert_eq!(again, config);
        assert!(parse("").unwrap().network_plan().is_ok());
    }

    /// Each mistake is found on its line; the network begins on line 11.
    #[test]
    fn mistakes_have_a_place_and_a_key() {
        let cases = [
            (WHOLE.replace("torus", "cube"), 12, "unknown variant"),
            (
                WHOLE.replace("columns = 2", "columns = 3"),
                13,
                "network.columns",
            ),
            (
                WHOLE.replace("columns = 2\n", ""),
                1,
                "network.columns: needed",
            ),
            (WHOLE.replace("torus", "ring"), 13, "network.columns: only"),
            (
                WHOLE.replace("2s", "2ms"),
                15,
                "network.peer_timeout: expected 100ms",
            ),
            (WHOLE.replace("10us", "soon"), 16, "expected a time"),
            (WHOLE.replace("5%", "5"), 21, "expected a percentage"),
            (
                WHOLE.replace("to = 1", "to = 7"),
                17,
                "network.link[0]: no link",
            ),
            (WHOLE.replace("rate", "speed"), 21, "unknown field"),
            (
                WHOLE.replace("[2, 3]", "[1, 3]"),
                26,
                "node 1 is in another process",
            ),
            (WHOLE.replace("\"east\"", "\"west\""), 26, "is used already"),
            (
                WHOLE.replace("127.0.0.1:7001", "east"),
                28,
                "socket address",
            ),
        ];
        for (text, line, part) in cases {
            let error = parse(&text).expect_err(&text);
            assert!(
                error.starts_with(&format!("q.toml:{line}:")),
                "{error}\n{text}"
            );
            assert!(error.contains(part), "{error}\n{text}");
        }
        let lonely = "[[network.process]]\nname = \"e\"\naddress = \"127.0.0.1:1\"\nnodes = [2]\n";
        assert!(parse(lonely).unwrap_err().contains("network.udp: needed"));
        let lonely = lonely.replace("address = \"127.0.0.1:1\"", "socket = \"/e\"");
        assert!(parse(&lonely).unwrap_err().contains("network.shm: needed"));
    }

    const SHARED: &str = "\
[network.shm]\nname = \"left\"\nsocket = \"/l.shm\"
[[network.process]]\nname = \"right\"\nsocket = \"/r.shm\"\nnodes = [2]
[[network.process]]\nname = \"far\"\nsocket = \"/f.shm\"\nnodes = [3]\n";

    #[test]
    fn processes_of_this_host_have_sockets_of_their_own() {
        let config = parse(SHARED).unwrap();
        let printed = toml::to_string(&config).unwrap();
        assert_eq!(
            Config::parse(&printed, Path::new("q.toml")).unwrap(),
            config
        );
        let cases = [
            (
                SHARED.replace("/f.shm", "/l.shm"),
                "the socket /l.shm is used already",
            ),
            (
                SHARED.replace("far", "left"),
                "the name \"left\" is used already",
            ),
            (
                SHARED.replace("far", &"f".repeat(65)),
                "1 to 64 bytes, found 65",
            ),
            (
                SHARED.replace("/f.shm", &"f".repeat(108)),
                "a path of 1 to 107",
            ),
            (
                SHARED.replace("socket = \"/f.shm\"\n", ""),
                "expected either an address",
            ),
            (
                SHARED.replace(
                    "socket = \"/f.shm\"",
                    "socket = \"/f\"\naddress = \"[::1]:1\"",
                ),
                "either an address",
            ),
            (SHARED.replace("[3]", "[0]"), "node 0 is in another process"),
        ];
        for (text, part) in cases {
            let error = parse(&text).expect_err(&text);
            assert!(error.contains(part), "{error}\n{text}");
        }
    }
}
