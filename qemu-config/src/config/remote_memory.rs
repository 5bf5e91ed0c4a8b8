//! The part of a cluster file that gives nodes block devices in the memory of others (H9).
//!
//! ```toml
//! [[remote_memory]]                  # optional, any number
//! on = "n0"                          # has the device: its first is /dev/qnicmem0
//! size = "512MiB"
//! replicas = 2                       # on how many servers each block is kept; 2 if left out
//! servers = ["n1", "n2", "n3"]
//! serve = "512MiB"                   # what each of them gives for it; the size if left out
//! lease = "5m"                       # a silence of its node that costs it what it has there; 5m if left out
//! thin = false                       # true: attach it though servers may have too little room
//! key = "5ec2e7"                     # secret, up to 32 hexadecimal digits; none if left out
//! ```
//!
//! A server that several tables name gives all of them together so much; each device has reserved what it
//! needs when it is made. The server has the longest lease of these tables. It has one key, so the
//! tables have the same.

use std::collections::BTreeMap;

use qnic_config::plan::units::Span;
use qnic_config::{add, index_of, require, ByteSize, ConfigError, Unique};
use qnic_limits::{MAX_SERVERS, MAX_VOLUMES};

use super::rules::check_size;
use super::spec::{ClusterSpec, NodeSpec, RemoteMemorySpec};

/// Most servers that a block can be kept on.
const MAX_REPLICAS: u16 = 4;
/// Smallest device, and smallest part that a server gives.
const MIN_SIZE: ByteSize = ByteSize::mib(1);
/// Largest device.
const MAX_SIZE: ByteSize = ByteSize::mib(1 << 20);
/// Most volumes that a server has pages of.
const MAX_CLIENTS: u32 = 64;
/// In nanoseconds, as a lease is.
const SECOND: u64 = 1_000_000_000;
/// Most digits of a key.
const MAX_KEY: usize = 32;

/// What a node gives to the devices of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// For all devices together.
    pub(crate) size: ByteSize,
    /// How many devices there are.
    pub(crate) clients: u32,
    /// The longest of those that tables ask for; `None`: that of the tool.
    pub(crate) lease: Option<Span>,
    /// As [`RemoteMemorySpec::key`].
    pub(crate) key: Option<String>,
}

impl ClusterSpec {
    /// What each server gives, by its name.
    pub(crate) fn served(&self) -> BTreeMap<&str, Served> {
        let mut all: BTreeMap<&str, Served> = BTreeMap::new();
        for memory in &self.remote_memory {
            for server in &memory.servers {
                let served = all.entry(server).or_insert(Served {
                    size: ByteSize(0),
                    clients: 0,
                    lease: None,
                    key: None,
                });
                served.size.0 = served.size.0.saturating_add(memory.served().0);
                served.clients += 1;
                served.lease = served.lease.max(memory.lease);
                served.key = served.key.take().or_else(|| memory.key.clone());
            }
        }
        all
    }

    /// The devices in the memory of others, each with its path on its node.
    pub fn remote_memory(&self) -> impl Iterator<Item = (String, &RemoteMemorySpec)> {
        let tables = self.remote_memory.iter().enumerate();
        tables.map(|(index, memory)| {
            let before = self.remote_memory[..index].iter();
            let number = before.filter(|other| other.on == memory.on).count();
            (format!("/dev/qnicmem{number}"), memory)
        })
    }

    /// The tables of one host's nodes.
    pub(super) fn remote_memory_of(&self, nodes: &[String]) -> Vec<RemoteMemorySpec> {
        let here = |memory: &&RemoteMemorySpec| nodes.contains(&memory.on);
        self.remote_memory.iter().filter(here).cloned().collect()
    }
}

/// Checks the remote memory of `spec`, whose nodes are right.
pub(super) fn check(spec: &ClusterSpec) -> Result<(), ConfigError> {
    let with_nics = spec.nodes.iter().filter(|node| node.nic);
    let nodes: Vec<_> = with_nics.map(|node| node.name.as_str()).collect();
    let mut devices: BTreeMap<&str, usize> = BTreeMap::new();
    let mut secrets: BTreeMap<&str, (u128, String)> = BTreeMap::new();
    for (index, memory) in spec.remote_memory.iter().enumerate() {
        let key = format!("remote_memory[{index}]");
        check_table(spec, memory, &nodes, &key)?;
        check_hosts(spec, memory, &key)?;
        let count = devices.entry(&memory.on).or_default();
        *count += 1;
        let message = format!("node \"{}\" has more than {MAX_VOLUMES} of them", memory.on);
        require(*count <= MAX_VOLUMES, &key, message)?;
        for server in &memory.servers {
            let own = (memory.secret(), key.clone());
            let (secret, first) = secrets.entry(server).or_insert(own);
            let message = format!("node \"{server}\" has another key in {first}: it has one only");
            require(*secret == memory.secret(), format!("{key}.key"), message)?;
        }
    }
    let served = spec.served();
    let giving = |node: &&NodeSpec| served.contains_key(node.name.as_str());
    for node in spec.nodes.iter().filter(giving) {
        check_served(spec, node, &served[node.name.as_str()])?;
    }
    Ok(())
}

fn check_table(
    spec: &ClusterSpec,
    memory: &RemoteMemorySpec,
    nodes: &[&str],
    key: &str,
) -> Result<(), ConfigError> {
    index_of(&memory.on.as_str(), nodes, &format!("{key}.on"))?;
    check_size(Some(memory.size), MIN_SIZE..=MAX_SIZE, key, "size")?;
    let replicas = memory.replicas;
    let message = format!("expected 1 to {MAX_REPLICAS}, found {replicas}");
    let fits = (1..=MAX_REPLICAS).contains(&replicas);
    require(fits, format!("{key}.replicas"), message)?;
    let (top, count) = (format!("{key}.servers"), memory.servers.len());
    let message = format!(
        "expected {replicas} to {MAX_SERVERS} servers for {replicas} replicas, found {count}"
    );
    require(
        (replicas.into()..=MAX_SERVERS).contains(&count),
        &top,
        message,
    )?;
    let mut named = Unique::default();
    for (index, server) in memory.servers.iter().enumerate() {
        let place = format!("{top}[{index}]");
        index_of(&server.as_str(), nodes, &place)?;
        add(
            &mut named,
            server,
            &place,
            format_args!("node \"{server}\""),
        )?;
        let message = format!(
            "the first NICs of \"{server}\" and \"{}\" are on different networks",
            memory.on
        );
        let network = |node: &str| spec.nic_at(node).and_then(|nic| nic.network);
        require(network(server) == network(&memory.on), &place, message)?;
        let message = "a node is no server of its own device";
        require(*server != memory.on, place, message)?;
    }
    check_size(memory.serve, MIN_SIZE..=MAX_SIZE, key, "serve")?;
    let given = memory.served().0 * count as u64;
    let wanted = ByteSize(memory.size.0 * u64::from(replicas));
    let message = format!(
        "expected {wanted} of all servers together, which {replicas} replicas of {} take, found {}",
        memory.size,
        ByteSize(given)
    );
    let fits = memory.thin || given >= wanted.0;
    require(fits, format!("{key}.serve"), message)?;
    let lease = memory.lease.unwrap_or(Span::MAX);
    let message = "expected a whole number of seconds, 1s to 10m";
    let is_whole = lease.get() > 0 && lease.get() % SECOND == 0;
    require(is_whole, format!("{key}.lease"), message)?;
    let secret = memory.key.as_deref().unwrap_or("0");
    let fits = (1..=MAX_KEY).contains(&secret.len())
        && secret.bytes().all(|byte| byte.is_ascii_hexdigit());
    let message = format!("expected 1 to {MAX_KEY} hexadecimal digits");
    require(fits, format!("{key}.key"), message)
}

/// All servers are on the host of the device, which is made as soon as the nodes of that host have
/// booted.
fn check_hosts(
    spec: &ClusterSpec,
    memory: &RemoteMemorySpec,
    key: &str,
) -> Result<(), ConfigError> {
    let network = spec.network.iter();
    let mut hosts = network.flat_map(|network| &network.hosts);
    let Some(host) = hosts.find(|host| host.nodes.contains(&memory.on)) else {
        return Ok(());
    };
    for (index, server) in memory.servers.iter().enumerate() {
        let message = format!(
            "node \"{server}\" is not on the host of \"{}\": there, use \"qnic-rmem\" in the guests",
            memory.on
        );
        let place = format!("{key}.servers[{index}]");
        require(host.nodes.contains(server), place, message)?;
    }
    Ok(())
}

fn check_served(spec: &ClusterSpec, node: &NodeSpec, served: &Served) -> Result<(), ConfigError> {
    let names = |memory: &RemoteMemorySpec| memory.servers.contains(&node.name);
    let last = spec.remote_memory.iter().rposition(names).unwrap_or(0);
    let key = format!("remote_memory[{last}].serve");
    let message = format!(
        "node \"{}\" would give {} in all, and has {} itself: more \"memory\" there, or less here",
        node.name, served.size, node.memory
    );
    require(served.size < node.memory, &key, message)?;
    let message = format!(
        "node \"{}\" serves more than {MAX_CLIENTS} of them",
        node.name
    );
    require(served.clients <= MAX_CLIENTS, key, message)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_errors, parse};
    use super::*;

    const GOOD: &str = "\
name = \"c\"\n[[node]]\nname = \"n\"\ncount = 4\n[[node]]\nname = \"plain\"\nnic = false
[[remote_memory]]\non = \"n0\"\nsize = \"64MiB\"\nservers = [\"n1\", \"n2\"]\nkey = \"0A\"
[[remote_memory]]\non = \"n0\"\nsize = \"96MiB\"\nreplicas = 1\nservers = [\"n2\", \"n3\"]\nserve = \"48MiB\"\nkey = \"a\"
[[remote_memory]]\non = \"n1\"\nsize = \"8MiB\"\nreplicas = 1\nservers = [\"n0\"]\n";

    #[test]
    fn devices_are_understood_and_printed_again() {
        let spec = parse(GOOD).unwrap();
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        let devices: Vec<_> = spec
            .remote_memory()
            .map(|(device, memory)| (device, memory.on.as_str()))
            .collect();
        let expected = ["/dev/qnicmem0", "/dev/qnicmem1", "/dev/qnicmem0"].map(str::to_owned);
        assert_eq!(
            devices,
            [("n0", 0), ("n0", 1), ("n1", 2)].map(|(on, at)| (expected[at].clone(), on))
        );
        assert_eq!(spec.remote_memory[0].replicas, 2);
    }

    /// The longest lease counts where tables share a server; a thin device needs no room.
    #[test]
    fn a_device_has_a_lease_and_may_be_thin() {
        let text = GOOD.replacen("servers = ", "lease = \"30s\"\nservers = ", 1);
        let text = text.replacen(
            "serve = \"48MiB\"",
            "serve = \"4MiB\"\nlease = \"2m\"\nthin = true",
            1,
        );
        let spec = parse(&text).unwrap();
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        let served = spec.served();
        let lease = |node: &str| served[node].lease.map(|lease| lease.get() / SECOND);
        assert_eq!(
            ["n0", "n1", "n2", "n3"].map(lease),
            [None, Some(30), Some(120), Some(120)]
        );
        assert!(spec.remote_memory[1].thin && !spec.remote_memory[0].thin);
    }

    /// A server gives what all tables ask of it.
    #[test]
    fn servers_give_to_all_who_name_them() {
        let spec = parse(GOOD).unwrap();
        let served = spec.served();
        let sizes: Vec<_> = served.iter().map(|(node, it)| (*node, it.size)).collect();
        let expected = [("n0", 8), ("n1", 64), ("n2", 112), ("n3", 48)];
        assert_eq!(
            sizes,
            expected.map(|(node, size)| (node, ByteSize::mib(size)))
        );
        assert_eq!(
            (served["n2"].clients, &served["n2"].key),
            (2, &Some("0A".to_owned()))
        );
        assert_eq!(served["n0"].key, None);
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let table = r#"
            on = "n0" => on = "n9" | c.toml:9:6: remote_memory[0].on: there is no node "n9" with a NIC
            on = "n0" => on = "plain" | c.toml:9:6: remote_memory[0].on: there is no node "plain" with a NIC
            on = "n0" => | c.toml:8:1: remote_memory[0]: missing field `on`
            on = "n0" => in = "n0" | c.toml:9:1: remote_memory[0].in: unknown field `in`
            "64MiB" => "64MB" | c.toml:10:8: remote_memory[0].size: expected a size
            "64MiB" => "65KiB" | c.toml:10:8: remote_memory[0].size: expected 1MiB to 1TiB, found 65KiB
            "64MiB" => "1025KiB" | c.toml:10:8: remote_memory[0].size: expected a whole number of MiB
            key = "0A" => replicas = 3 | c.toml:11:11: remote_memory[0].servers: expected 3 to 16 servers for 3 replicas, found 2
            key = "0A" => replicas = 5 | c.toml:12:12: remote_memory[0].replicas: expected 1 to 4, found 5
            key = "0A" => replicas = 0 | c.toml:12:12: remote_memory[0].replicas: expected 1 to 4, found 0
            ["n1", "n2"] => ["n1", "x"] | c.toml:11:18: remote_memory[0].servers[1]: there is no node "x" with a NIC
            ["n1", "n2"] => ["n1", "n1"] | c.toml:11:18: remote_memory[0].servers[1]: node "n1" is used already by remote_memory[0].servers[0]
            ["n1", "n2"] => ["n1", "n0"] | c.toml:11:18: remote_memory[0].servers[1]: a node is no server of its own device
            "48MiB" => "47MiB" | c.toml:18:9: remote_memory[1].serve: expected 96MiB of all servers together, which 1 replicas of 96MiB take, found 94MiB
            "48MiB" => "0MiB" | c.toml:18:9: remote_memory[1].serve: expected 1MiB to 1TiB
            "48MiB" => "192MiB" | c.toml:18:9: remote_memory[1].serve: node "n2" would give 256MiB in all, and has 256MiB itself
            key = "0A" => lease = "0s" | c.toml:12:9: remote_memory[0].lease: expected a whole number of seconds, 1s to 10m
            key = "0A" => lease = "1500ms" | c.toml:12:9: remote_memory[0].lease: expected a whole number of seconds, 1s to 10m
            key = "0A" => key = "" | c.toml:12:7: remote_memory[0].key: expected 1 to 32 hexadecimal digits
            key = "0A" => key = "+1" | c.toml:12:7: remote_memory[0].key: expected 1 to 32 hexadecimal digits
            key = "0A" => | c.toml:19:7: remote_memory[1].key: node "n2" has another key in remote_memory[0]: it has one only
            key = "a" => key = "b" | c.toml:19:7: remote_memory[1].key: node "n2" has another key in remote_memory[0]: it has one only
        "#;
        assert_errors(GOOD, table);
        let many = GOOD.to_owned() + &"[[remote_memory]]\non = \"n0\"\nsize = \"1MiB\"\nreplicas = 1\nservers = [\"n1\"]\nkey = \"a\"\n".repeat(7);
        let error = parse(&many).unwrap_err();
        assert!(
            error.contains("remote_memory[9]: node \"n0\" has more than 8 of them"),
            "{error}"
        );
    }

    #[test]
    fn devices_stay_on_their_host() {
        let host = |name: &str, port, key: &str, nodes: &str| {
            format!("[[network.host]]\nname = \"{name}\"\naddress = \"10.0.0.1:{port}\"\npublic_key = \"{key}\"\nprivate_key = \"/c/k\"\nnodes = {nodes}\n")
        };
        let text = |west: &str, east: &str| {
            let west = host(
                "west",
                1,
                "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=",
                west,
            );
            let east = host(
                "east",
                2,
                "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=",
                east,
            );
            let memory = "[[remote_memory]]\non = \"n0\"\nsize = \"64MiB\"\nreplicas = 1\nservers = [\"n1\"]\n";
            format!("name = \"c\"\n{west}{east}[[node]]\nname = \"n\"\ncount = 3\n{memory}")
        };
        let spec = parse(&text("[\"n0\", \"n1\"]", "[\"n2\"]")).unwrap();
        assert_eq!(spec.on_host("west").unwrap().remote_memory.len(), 1);
        assert_eq!(spec.on_host("east").unwrap().remote_memory.len(), 0);
        let error = parse(&text("[\"n0\", \"n2\"]", "[\"n1\"]")).unwrap_err();
        assert!(
            error.contains("node \"n1\" is not on the host of \"n0\""),
            "{error}"
        );
    }
}
