//! How NICs are joined, as a device process is told; and the rules of networks, for it and
//! for cluster files.
//!
//! ```toml
//! [network]                     # optional: without it, every NIC reaches every other over
//!                               # a lossless wire that cannot be changed at run time
//! lossless = false              # true: that wire, with timeouts and transport of its own
//! topology = "mesh"             # or "ring", "star" with `hub`, "torus" with `columns`
//! coordinates = { 0 = [1, 0], 1 = [0, 0] } # optional: column and row of each node of a torus,
//!                               # the place of each of a ring; else in the order of numbers
//! seed = 1                      # of all chance; 0 if left out
//! default = { delay = "10us" }  # what every link does ([`Impairments`])
//! peer_timeout = "5s"           # a node that is silent for so long is given up
//! fault_timeout = "30s"         # a page that is not brought in for so long is given up
//!
//! [network.transport]           # windows and timeouts ([`TransportSettings`])
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
//! private_key = "/run/qnic/key" # a file of "cargo qnic keys new"; no other user may read it
//! encrypt = true                # the same in all processes; true if left out
//!
//! [network.shm]                 # how device processes of this host are reached
//! name = "west"                 # name of this process, at most 64 bytes
//! socket = "/run/qnic/west.shm" # where they call it; all run as one user
//!
//! [[network.process]]           # the others
//! name = "east"
//! address = "10.0.0.2:7000"     # UDP; on this host: socket = "/run/qnic/east.shm"
//! public_key = "LbZt…="         # with an address: by it the process is known
//! nodes = [2, 3]
//! ```

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::plan::units::Span;
use crate::plan::{Impairments, NetworkPlan, PublicKey, Shape, Topology, MAX_NAME};
use qnic_limits::NodeId;
use serde::{Deserialize, Serialize};

use crate::check::{add, require, Seen, Unique};
use crate::{ConfigError, TransportSettings};

/// Shortest [`NetworkSettings::peer_timeout`] and [`NetworkSettings::fault_timeout`]: some
/// retransmissions, and the reclaim of some memory, must fit.
const MIN_TIMEOUT: Span = Span::nanoseconds(100_000_000);

/// How NICs are joined.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSettings {
    /// There are no links: each NIC always reaches each other one, and nothing can be changed. Only timeouts
    /// and transport can stand beside it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lossless: bool,
    /// Shape of the network.
    #[serde(default)]
    pub topology: Shape,
    /// Nodes in a row of a torus.
    pub columns: Option<usize>,
    /// Node in the middle of a star.
    pub hub: Option<u16>,
    /// Where nodes are on a ring or a torus, all or none ([`arrange`]).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub coordinates: BTreeMap<u16, Vec<usize>>,
    /// Seed of all chance.
    #[serde(default)]
    pub seed: u64,
    /// What links do that are not named.
    #[serde(default)]
    pub default: Impairments,
    /// A node that owes an answer and is silent for so long is given up; `None`: the
    /// NIC's default, five seconds.
    pub peer_timeout: Option<Span>,
    /// A page fault that a guest's kernel has not answered for so long fails what waits for
    /// its pages; `None`: the NIC's default, thirty seconds.
    pub fault_timeout: Option<Span>,
    /// Windows and timeouts.
    #[serde(default, skip_serializing_if = "TransportSettings::is_default")]
    pub transport: TransportSettings,
    /// How processes of other hosts are reached.
    pub udp: Option<UdpSettings>,
    /// How processes of this host are reached.
    pub shm: Option<ShmSettings>,
    /// What single links do.
    #[serde(rename = "link", default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkSettings>,
    /// The other processes.
    #[serde(rename = "process", default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessSettings>,
}

impl NetworkSettings {
    /// Returns true if it says something of links or of other processes.
    fn has_links(&self) -> bool {
        let bounds = NetworkSettings {
            lossless: self.lossless,
            peer_timeout: self.peer_timeout,
            fault_timeout: self.fault_timeout,
            transport: self.transport,
            ..NetworkSettings::default()
        };
        *self != bounds
    }
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
    /// File with its private key.
    pub private_key: PathBuf,
    /// Whether datagrams are encrypted, or only authenticated.
    #[serde(default = "encrypts")]
    pub encrypt: bool,
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
    pub address: Option<SocketAddr>,
    /// By which key it is known there.
    pub public_key: Option<PublicKey>,
    /// Where it is called, on this host.
    pub socket: Option<PathBuf>,
    /// The nodes whose NICs it runs.
    pub nodes: Vec<u16>,
}

/// Datagrams are encrypted unless a file says otherwise.
const fn encrypts() -> bool {
    true
}

/// The topology that `[network]` of a file means: its `shape`, and `columns` and `hub`, which
/// only some shapes have. `nodes` are those with a NIC, in the order of their numbers.
///
/// # Errors
/// Returns an error for the first value that does not fit.
pub fn topology<N: PartialEq + Debug>(
    shape: Shape,
    columns: Option<usize>,
    hub: Option<&N>,
    nodes: &[N],
) -> Result<Topology, ConfigError> {
    let odd = [
        ("network.columns", Shape::Torus, columns.is_some()),
        ("network.hub", Shape::Star, hub.is_some()),
    ];
    for (key, only, given) in odd {
        let what = if given { "only" } else { "needed" };
        let message = format!("{what} with the topology {only:?}").to_lowercase();
        require(given == (shape == only), key, message)?;
    }
    let (topology, key) = match (shape, columns, hub) {
        (Shape::Torus, Some(columns), _) => (Topology::Torus { columns }, "network.columns"),
        (Shape::Star, _, Some(hub)) => {
            let hub = index_of(hub, nodes, "network.hub")?;
            (Topology::Star { hub }, "network.hub")
        }
        (Shape::Ring, ..) => (Topology::Ring, "network.topology"),
        _ => (Topology::Mesh, "network.topology"),
    };
    topology
        .check(nodes.len())
        .map_err(|message| ConfigError::new(key, message))?;
    Ok(topology)
}

/// Puts `nodes` in the order of their places in `topology` (Q16): as `coordinates` say, which
/// name each node or none; without any, the order stays.
///
/// # Errors
/// Returns an error for the first coordinates that do not fit, are taken, or are missing.
pub fn arrange<'a, N: Copy + PartialEq + Debug + Display>(
    topology: &Topology,
    coordinates: impl Iterator<Item = (N, &'a [usize])>,
    nodes: &mut [N],
) -> Result<(), ConfigError> {
    let mut taken: Vec<Option<N>> = vec![None; nodes.len()];
    let mut count = 0;
    for (node, coordinates) in coordinates {
        let key = format!("network.coordinates.{node}");
        index_of(&node, nodes, &key)?;
        let place = topology
            .place(nodes.len(), coordinates)
            .map_err(|message| ConfigError::new(&key, message))?;
        if let Some(other) = taken[place].replace(node) {
            let message =
                format!("node {other:?} is at {coordinates:?}: give each node a place of its own");
            return Err(ConfigError::new(key, message));
        }
        count += 1;
    }
    if count == 0 {
        return Ok(());
    }
    let missing = nodes.iter().find(|node| !taken.contains(&Some(**node)));
    if let Some(node) = missing {
        let message = format!("node {node:?} has none: give coordinates to each node, or to none");
        return Err(ConfigError::new("network.coordinates", message));
    }
    for (place, node) in nodes.iter_mut().zip(taken.into_iter().flatten()) {
        *place = node;
    }
    Ok(())
}

/// Checks that a link of `topology` joins `ends`.
///
/// # Errors
/// Returns an error for `key` if none does.
pub fn check_link<N: PartialEq + Debug>(
    topology: &Topology,
    nodes: &[N],
    ends: [&N; 2],
    key: &str,
) -> Result<(), ConfigError> {
    let from = index_of(ends[0], nodes, key)?;
    let to = index_of(ends[1], nodes, key)?;
    let joined = topology.joins(nodes.len(), from, to);
    let [from, to] = ends;
    let message = format!("no link of this topology joins {from:?} and {to:?}");
    require(joined, key, message)
}

/// Checks `peer_timeout` and `fault_timeout` of `[network]`.
///
/// # Errors
/// Returns an error if one is too short.
pub fn check_timeouts(peer: Option<Span>, fault: Option<Span>) -> Result<(), ConfigError> {
    for (key, time) in [("peer_timeout", peer), ("fault_timeout", fault)] {
        let time = time.unwrap_or(MIN_TIMEOUT);
        let message = format!("expected {MIN_TIMEOUT} or more, found {time}");
        require(time >= MIN_TIMEOUT, format!("network.{key}"), message)?;
    }
    Ok(())
}

/// Index of `node` among `nodes`.
///
/// # Errors
/// Returns an error for `key` if it is not there.
pub fn index_of<N: PartialEq + Debug>(
    node: &N,
    nodes: &[N],
    key: &str,
) -> Result<usize, ConfigError> {
    let index = nodes.iter().position(|known| known == node);
    index.ok_or_else(|| ConfigError::new(key, format!("there is no node {node:?} with a NIC")))
}

impl NetworkSettings {
    /// The nodes whose NICs other processes run.
    pub(crate) fn remote_nodes(&self) -> impl Iterator<Item = u16> + '_ {
        let nodes = self.processes.iter().flat_map(|process| &process.nodes);
        nodes.copied()
    }

    /// The network of a process that has the NICs `own`.
    pub(crate) fn plan(&self, own: impl Iterator<Item = u16>) -> Result<NetworkPlan, ConfigError> {
        let mut nodes: Vec<_> = own.chain(self.remote_nodes()).collect();
        nodes.sort_unstable();
        let topology = topology(self.topology, self.columns, self.hub.as_ref(), &nodes)?;
        let coordinates = self.coordinates.iter();
        let coordinates = coordinates.map(|(node, at)| (*node, &at[..]));
        arrange(&topology, coordinates, &mut nodes)?;
        let mut links = Vec::new();
        for (index, link) in self.links.iter().enumerate() {
            let key = format!("network.link[{index}]");
            check_link(&topology, &nodes, [&link.from, &link.to], &key)?;
            let (from, to) = (NodeId(link.from), NodeId(link.to));
            links.push((from, to, link.impairments));
            if !link.one_way {
                links.push((to, from, link.impairments));
            }
        }
        Ok(NetworkPlan {
            topology,
            nodes: nodes.into_iter().map(NodeId).collect(),
            default: self.default,
            links,
            seed: self.seed,
            one_channel: self.transport.has_one_channel(),
        })
    }

    /// Checks the rules, for a process that has the NICs `own`.
    pub(crate) fn check<'a>(
        &'a self,
        own: impl Iterator<Item = u16>,
        seen: Seen<'a>,
    ) -> Result<(), ConfigError> {
        let message =
            "a lossless wire has no links: only timeouts and transport go with it in [network]";
        let alone = !self.lossless || !self.has_links();
        require(alone, "network.lossless", message)?;
        self.check_processes(seen)?;
        check_timeouts(self.peer_timeout, self.fault_timeout)?;
        self.transport.check()?;
        self.plan(own)?
            .check()
            .map_err(|message| ConfigError::new("network", message))
    }

    fn check_processes<'a>(&'a self, mut seen: Seen<'a>) -> Result<(), ConfigError> {
        let (mut names, mut addresses) = (Unique::default(), Unique::default());
        let mut keys = Unique::default();
        let mut add_name = |name: &'a str, key: &str| {
            add(&mut names, name, key, format_args!("the name \"{name}\""))
        };
        if let Some(shm) = &self.shm {
            check_name(&shm.name, "network.shm.name")?;
            add_name(&shm.name, "network.shm.name")?;
            seen.socket(&shm.socket, "network.shm.socket")?;
        }
        let shm_name = self.shm.as_ref().map(|shm| &shm.name);
        if let Some(udp) = self.udp.as_ref().filter(|udp| Some(&udp.name) != shm_name) {
            add_name(&udp.name, "network.udp.name")?;
        }
        let needed = "needed to reach other processes";
        for (index, process) in self.processes.iter().enumerate() {
            let key = format!("network.process[{index}]");
            let name_key = format!("{key}.name");
            add_name(&process.name, &name_key)?;
            match (process.address, &process.socket) {
                (Some(address), None) => {
                    let message = format!("{needed}: name, listen, private_key");
                    require(self.udp.is_some(), "network.udp", message)?;
                    let key = format!("{key}.public_key");
                    let Some(public_key) = process.public_key else {
                        return Err(ConfigError::new(key, "needed with an address"));
                    };
                    add(&mut keys, public_key, &key, "the key")?;
                    let what = format_args!("the address {address}");
                    add(&mut addresses, address, &format!("{key}.address"), what)?;
                }
                (None, Some(_)) if process.public_key.is_some() => {
                    let message = "only with an address: on one host, the user is checked";
                    return Err(ConfigError::new(format!("{key}.public_key"), message));
                }
                (None, Some(socket)) => {
                    let message = format!("{needed} of this host: name, socket");
                    require(self.shm.is_some(), "network.shm", message)?;
                    check_name(&process.name, &name_key)?;
                    seen.socket(socket, &format!("{key}.socket"))?;
                }
                _ => {
                    let message = "expected either an address (UDP) or a socket (on this host)";
                    return Err(ConfigError::new(key, message));
                }
            }
            for (at, node) in process.nodes.iter().enumerate() {
                seen.node(*node, &format!("{key}.nodes[{at}]"))?;
            }
        }
        Ok(())
    }
}

/// Names that go over a link of shared memory have a fixed room.
fn check_name(name: &str, key: &str) -> Result<(), ConfigError> {
    let message = match name.len() {
        _ if name.chars().any(char::is_control) => format!("{name:?} has control characters"),
        1..=MAX_NAME => return Ok(()),
        length => format!("expected a name of 1 to {MAX_NAME} bytes, found {length}"),
    };
    Err(ConfigError::new(key, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::assert_errors;
    use crate::Config;
    use std::path::Path;

    const NICS: &str = "\
[[nic]]\nname = \"a\"\nnode = 0\nsocket = \"/tmp/a\"\nram = \"256MiB\"
[[nic]]\nname = \"b\"\nnode = 1\nsocket = \"/tmp/b\"\nram = \"256MiB\"\n";

    fn parse(rest: &str) -> Result<Config, String> {
        let text = format!("{NICS}{rest}");
        Config::parse(&text, Path::new("q.toml")).map_err(|error| error.to_string())
    }

    fn assert_round_trip(config: &Config) {
        let printed = toml::to_string(config).unwrap();
        let again = Config::parse(&printed, Path::new("q.toml")).unwrap();
        assert_eq!(again, *config);
    }

    /// The network begins on line 11.
    const WHOLE: &str = "\
[network]\ntopology = \"torus\"\ncolumns = 2\nseed = 3\npeer_timeout = \"2s\"\nfault_timeout = \"9s\"\ndefault = { delay = \"10us\" }
[[network.link]]\nfrom = 0\nto = 1\none_way = true\nimpairments = { loss = \"5%\", rate = \"1Gbit\" }
[network.udp]\nname = \"west\"\nlisten = \"127.0.0.1:7000\"\nprivate_key = \"/k\"
[[network.process]]\nname = \"east\"\naddress = \"127.0.0.1:7001\"
public_key = \"hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=\"\nnodes = [2, 3]\n";

    #[test]
    fn a_whole_network_is_understood_and_printed_again() {
        let config = parse(WHOLE).unwrap();
        let plan = config.network_plan().unwrap();
        assert_eq!(plan.topology, Topology::Torus { columns: 2 });
        assert_eq!(plan.nodes, [0, 1, 2, 3].map(NodeId));
        assert_eq!(plan.links.len(), 1);
        assert!(
            config
                .network
                .as_ref()
                .unwrap()
                .udp
                .as_ref()
                .unwrap()
                .encrypt
        );
        assert_round_trip(&config);
        let open = WHOLE.replace("/k\"", "/k\"\nencrypt = false");
        assert_round_trip(&parse(&open).unwrap());
        assert!(parse("").unwrap().network_plan().is_ok());
        let bounds =
            "[network]\nlossless = true\npeer_timeout = \"9s\"\ntransport = { window = 64 }\n";
        assert_round_trip(&parse(bounds).unwrap());
    }

    #[test]
    fn errors_have_a_location_and_a_key() {
        let table = r#"
            seed = 3 => lossless = true | 14 | network.lossless: a lossless wire has no links
            torus => cube | 12 | unknown variant
            columns = 2 => columns = 3 | 13 | network.columns
            columns = 2\n => | 11 | network.columns: needed
            torus => ring | 13 | network.columns: only
            torus"\ncolumns = 2 => star"\nhub = 7 | 13 | network.hub: there is no node 7
            2s => 2ms | 15 | network.peer_timeout: expected 100ms
            9s => 99ms | 16 | network.fault_timeout: expected 100ms
            10us => soon | 17 | expected a time
            5% => 5 | 22 | expected a percentage
            to = 1 => to = 7 | 18 | network.link[0]: there is no node 7
            to = 1 => to = 3 | 18 | network.link[0]: no link of this topology joins 0 and 3
            rate => speed | 22 | unknown field
            [2, 3] => [1, 3] | 31 | node 1 is used already by nic[1].node
            "east" => "west" | 28 | is used already by network.udp.name
            127.0.0.1:7001 => east | 29 | socket address
            Tmo=" => Tmo" | 30 | network.process[0].public_key: expected a key of 44 characters
            public_key = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="\n => | 27 | network.process[0].public_key: needed with an address
            nodes = [2, 3]\n => nodes = [2, 3]\n[[network.process]]\nname = "x"\naddress = "[::1]:1"\npublic_key = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="\nnodes = [] | 35 | the key is used already by network.process[0].public_key
            private_key = "/k"\n => | 23 | missing field `private_key`
            "/k" => "/k"\nencrypt = "no" | 27 | invalid type
        "#;
        assert_errors(&format!("{NICS}{WHOLE}"), table);
        let lonely = r#"
            END => [[network.process]]\nname = "e"\naddress = "127.0.0.1:1"\nnodes = [2] | 11 | network.udp: needed
            END => [[network.process]]\nname = "e"\nsocket = "/e"\nnodes = [2] | 11 | network.shm: needed
        "#;
        assert_errors(&format!("{NICS}#END"), &lonely.replace("END", "#END"));
    }

    /// Coordinates give nodes their places, and with them their links and routes (Q16).
    #[test]
    fn nodes_are_where_their_coordinates_say() {
        let with = |coordinates: &str| {
            WHOLE.replace(
                "columns = 2",
                &format!("columns = 2\ncoordinates = {coordinates}"),
            )
        };
        let good = "{ 0 = [1, 1], 1 = [0, 1], 2 = [1, 0], 3 = [0, 0] }";
        let config = parse(&with(good)).unwrap();
        assert_eq!(
            config.network_plan().unwrap().nodes,
            [3, 2, 1, 0].map(NodeId)
        );
        assert_round_trip(&config);
        let good = with(good);
        let table = r#"
            0 = [1, 1] => 7 = [1, 1] | 14 | network.coordinates.7: there is no node 7
            0 = [1, 1] => 0 = [2, 1] | 14 | network.coordinates.0: expected [column, row] from [0, 0] to [1, 1]
            0 = [1, 1] => 0 = [1] | 14 | network.coordinates.0: expected [column, row], found 1
            0 = [1, 1], => | 14 | network.coordinates: node 0 has none
            0 = [1, 1] => 0 = [0, 0] | 14 | network.coordinates.3: node 0 is at [0, 0]
            0 = [1, 1] => 0 = [-1, 0] | 14 | invalid value
            0 = [1, 1] => x = [1, 0] | 14 | network.coordinates
            3 = [0, 0] => 3 = [1, 1], 0 = [0, 0] | 14 | duplicate
            to = 1 => to = 3 | 19 | no link of this topology joins 0 and 3
        "#;
        assert_errors(&format!("{NICS}{good}"), table);
    }

    const SHARED: &str = "\
[network.shm]\nname = \"left\"\nsocket = \"/l.shm\"
[[network.process]]\nname = \"right\"\nsocket = \"/r.shm\"\nnodes = [2]
[[network.process]]\nname = \"far\"\nsocket = \"/f.shm\"\nnodes = [3]\n";

    #[test]
    fn processes_of_this_host_have_sockets_of_their_own() {
        assert_round_trip(&parse(SHARED).unwrap());
        let table = r#"
            /f.shm => /l.shm | 20 | socket /l.shm is used already by network.shm.socket
            /f.shm => /tmp/a | 20 | socket /tmp/a is used already by nic[0].socket
            far => left | 19 | the name "left" is used already by network.shm.name
            far => F65 | 19 | 1 to 64 bytes, found 65
            /f.shm => F108 | 20 | a path of 1 to 107
            socket = "/f.shm"\n => | 18 | expected either an address
            "/f.shm" => "/f.shm"\npublic_key = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=" | 21 | only with an address
            "/f.shm" => "/f"\naddress = "[::1]:1" | 18 | either an address
            [3] => [0] | 21 | node 0 is used already by nic[0].node
        "#;
        let table = [65, 108].iter().fold(table.to_owned(), |table, length| {
            table.replace(&format!("F{length}"), &"f".repeat(*length))
        });
        assert_errors(&format!("{NICS}{SHARED}"), &table);
    }
}
