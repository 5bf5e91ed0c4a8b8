//! The NICs of nodes (S7): their names, their networks, and their numbers.
//!
//! ```toml
//! [networks.storage]                 # a network of its own; has the keys of [network]
//! default = { delay = "20us" }
//!
//! [[node]]
//! name = "a"
//! nics = [{ name = "main" }, { name = "disks", network = "storage" }]
//! ```
//!
//! ```text
//!                      a              b          c
//!                 ┌────┴────┐    ┌────┴────┐     │
//!               main      disks  main   disks    │
//!   [network]     0         │      1      │      2      device process
//!   networks.storage        0             1             device process storage
//! ```
//!
//! - A node without `nics` has one NIC, which has no name and is on `[network]`. Its first NIC is
//!   the one that a program gets that names none.
//! - Each network has numbers of its own. The first NIC that a node has there has the node's
//!   number; further ones have the numbers behind those of all nodes, in the order of the file.
//! - In the tables of a network, the first NIC that a node has there is called `NODE`, and a
//!   further one `NODE.NIC`. On command lines, where no network is named, `NODE` is the first NIC of
//!   the node, and `NODE.NIC` the one with that name.
//! - A network of its own has one device process, with its name.

use std::collections::BTreeMap;

use qnic_config::{add, require, ConfigError, Unique};

use super::network::NetworkSpec;
use super::rules::check_name;
use super::spec::{ClusterSpec, NodeSpec};

/// Most NICs of one node.
pub(crate) const MAX_NICS: usize = 4;

/// A NIC of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nic<'a> {
    /// Its node.
    pub(crate) node: &'a NodeSpec,
    /// Its name, if it has one.
    pub(crate) name: Option<&'a str>,
    /// Its network; `None`: `[network]`.
    pub(crate) network: Option<&'a str>,
    /// Its number there.
    pub(crate) number: u16,
    /// It is the first of its node.
    pub(crate) leads: bool,
    /// It is the first of its node on its network.
    leads_there: bool,
}

impl Nic<'_> {
    /// What it is called on command lines, in logs and in metrics.
    pub(crate) fn address(&self) -> String {
        self.called(self.leads)
    }

    /// What it is called in the tables of its network.
    pub(super) fn end(&self) -> String {
        self.called(self.leads_there)
    }

    fn called(&self, leads: bool) -> String {
        match (leads, self.name) {
            (false, Some(name)) => format!("{}.{name}", self.node.name),
            _ => self.node.name.clone(),
        }
    }
}

impl NodeSpec {
    /// Name and network of each of its NICs.
    pub(crate) fn nics(&self) -> impl Iterator<Item = (Option<&str>, Option<&str>)> {
        let only = (self.nic && self.nics.is_empty()).then_some((None, None));
        let named = self.nics.iter();
        only.into_iter()
            .chain(named.map(|nic| (Some(&*nic.name), nic.network.as_deref())))
    }
}

impl ClusterSpec {
    /// All NICs of the device processes, by nodes. A node that has an Ethernet port only has one, too:
    /// its place on the links, which no driver starts.
    pub(crate) fn nics(&self) -> Vec<Nic<'_>> {
        let most = self.numbered().map(|(_, number)| number).max();
        let mut next: BTreeMap<Option<&str>, u16> = BTreeMap::new();
        let mut nics: Vec<Nic<'_>> = Vec::new();
        for (node, number) in self.numbered() {
            let first = nics.len();
            let place = (!node.nic && self.has_port(node, number)).then_some((None, None));
            for (name, network) in node.nics().chain(place) {
                let leads_there = !nics[first..].iter().any(|nic| nic.network == network);
                let number = if leads_there {
                    number
                } else {
                    let next = next.entry(network).or_insert(most.unwrap_or(0));
                    *next = next.saturating_add(1);
                    *next
                };
                nics.push(Nic {
                    node,
                    name,
                    network,
                    number,
                    leads: nics.len() == first,
                    leads_there,
                });
            }
        }
        nics
    }

    /// The NIC with an address: `NODE`, or `NODE.NIC`.
    pub(crate) fn nic_at(&self, address: &str) -> Option<Nic<'_>> {
        let (node, name) = match address.split_once('.') {
            Some((node, name)) => (node, Some(name)),
            None => (address, None),
        };
        let of_node = |nic: &Nic<'_>| nic.node.name == node;
        let meant = |nic: &Nic<'_>| name.map_or(nic.leads, |name| nic.name == Some(name));
        let mut nics = self.nics().into_iter();
        nics.find(|nic| of_node(nic) && meant(nic))
    }

    /// The address of the NIC with a number on a network.
    pub fn nic_address(&self, network: Option<&str>, number: u64) -> Option<String> {
        let it = |nic: &Nic<'_>| nic.network == network && u64::from(nic.number) == number;
        let nics = self.nics();
        Some(nics.into_iter().find(it)?.address())
    }

    /// How the NICs of a network are joined.
    pub(crate) fn network_of(&self, network: Option<&str>) -> Option<&NetworkSpec> {
        network.map_or(self.network.as_ref(), |name| self.networks.get(name))
    }
}

/// Checks the NICs of a node.
pub(super) fn check_node(
    spec: &ClusterSpec,
    node: &NodeSpec,
    key: &str,
) -> Result<(), ConfigError> {
    let key = format!("{key}.nics");
    let count = node.nics.len();
    let message = "a node with \"nic = false\" has none: leave one of both out";
    require(node.nic || count == 0, &key, message)?;
    let message = format!("expected at most {MAX_NICS}, found {count}");
    require(count <= MAX_NICS, &key, message)?;
    let hosts = spec.network.iter().flat_map(|network| &network.hosts);
    let message = "a node of a cluster with [[network.host]] has one NIC";
    require(count == 0 || hosts.count() == 0, &key, message)?;
    let mut names = Unique::default();
    for (index, nic) in node.nics.iter().enumerate() {
        let key = format!("{key}[{index}]");
        check_name(&nic.name, &format!("{key}.name"))?;
        let what = format_args!("name \"{}\"", nic.name);
        add(&mut names, &nic.name, &format!("{key}.name"), what)?;
        if let Some(network) = &nic.network {
            let message = format!("there is no [networks.{network}]");
            let known = spec.networks.contains_key(network);
            require(known, format!("{key}.network"), message)?;
        }
    }
    Ok(())
}

/// Checks the networks beside `[network]`.
pub(super) fn check_networks(spec: &ClusterSpec) -> Result<(), ConfigError> {
    for (name, network) in &spec.networks {
        let key = format!("networks.{name}");
        check_name(name, &key)?;
        let processes = spec.network.iter().flat_map(|network| &network.processes);
        let taken = processes.into_iter().any(|process| process.name == *name);
        let message = format!("a [[network.process]] is called \"{name}\", too");
        require(!taken, &key, message)?;
        let own = network.is_one_process() && network.schedule.is_empty();
        let message = "only [network] has hosts, processes and a schedule";
        require(own, &key, message)?;
        let ends = spec.network_nodes(Some(name));
        let ends: Vec<_> = ends.values().map(String::as_str).collect();
        let message = "no node has a NIC on it";
        require(!ends.is_empty(), &key, message)?;
        let checked = super::network::check(network, ends);
        checked.map_err(|error| error.within("network", &key))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_errors, parse};

    /// Two networks, and a second NIC of `b` on one of them.
    const NICS: &str = r#"
name = "x"
[networks.storage]
topology = "ring"
[[networks.storage.link]]
between = ["a", "b.spare"]
impairments = { loss = "5%" }
[[node]]
name = "a"
nics = [{ name = "main" }, { name = "disks", network = "storage" }]
[[node]]
name = "b"
nics = [{ name = "main" }, { name = "disks", network = "storage" }, { name = "spare", network = "storage" }]
[[node]]
name = "c"
"#;

    #[test]
    fn nics_have_addresses_networks_and_numbers() {
        let spec = parse(NICS).unwrap();
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        let nics = spec.nics();
        let seen: Vec<_> = nics
            .iter()
            .map(|nic| (nic.address(), nic.end(), nic.network, nic.number))
            .collect();
        let storage = Some("storage");
        let expected = [
            ("a", "a", None, 0),
            ("a.disks", "a", storage, 0),
            ("b", "b", None, 1),
            ("b.disks", "b", storage, 1),
            ("b.spare", "b.spare", storage, 3),
            ("c", "c", None, 2),
        ];
        let expected = expected.map(|(address, end, network, number)| {
            (address.to_owned(), end.to_owned(), network, number)
        });
        assert_eq!(seen, expected);
        for (address, _, network, number) in expected {
            assert_eq!(spec.node_number(&address), Some(number), "{address}");
            assert_eq!(spec.process_of(&address), network, "{address}");
            let found = spec.nic_address(network, number.into());
            assert_eq!(found, Some(address));
        }
        assert_eq!(spec.nic_at("a.main").unwrap().address(), "a");
        assert_eq!(spec.node_number("c.main"), None);
        assert_eq!(spec.device_processes(), [None, storage]);
        let beside = spec.nics_of(storage).into_iter().map(|nic| nic.number);
        assert_eq!(beside.collect::<Vec<_>>(), [0, 1, 3]);
    }

    /// The example is right.
    #[test]
    fn the_example_has_two_networks() {
        let text = include_str!("../../../examples/two-networks.toml");
        let spec = parse(text).unwrap();
        assert_eq!(spec.device_processes(), [None, Some("disks")]);
        assert_eq!(spec.nics_of(Some("disks")).len(), 2);
    }

    #[test]
    fn errors_of_nics_and_networks_have_location_and_key() {
        let table = r#"
            name = "main" }, { => name = "disks" }, { | node[0].nics[1].name: name "disks" is used already by node[0].nics[0].name
            name = "main" } => name = "A" } | 10:18: node[0].nics[0].name: expected 1 to 24
            name = "a"\n => name = "a"\nnic = false\n | node[0].nics: a node with "nic = false" has none
            network = "storage" }] => network = "store" }] | node[0].nics[1].network: there is no [networks.store]
            "b.spare"]\n => "b.main"]\n | networks.storage.link[0].between: there is no node "b.main"
            [networks.storage]\n => [networks.other]\n[networks.storage]\n | networks.other: no node has a NIC on it
            "ring"\n => "ring"\npeer_timeout = "1ms"\n | 5:16: networks.storage.peer_timeout: expected 100ms
            "ring"\n => "ring"\nschedule = [{ at = "1s", links = "all", heal = true }]\n | networks.storage: only [network] has hosts
            [networks.storage]\n => [[network.process]]\nname = "storage"\nnodes = ["a", "b", "c"]\n[networks.storage]\n | networks.storage: a [[network.process]] is called "storage", too
            name = "c" => name = "c"\nnics = [{ name = "1" }, { name = "2" }, { name = "3" }, { name = "4" }, { name = "5" }] | node[2].nics: expected at most 4, found 5
        "#;
        assert_errors(NICS, table);
        let hosts = super::super::network::tests::HOSTS;
        let error = parse(&format!("{hosts}nics = [{{ name = \"main\" }}]\n")).unwrap_err();
        let expected = "node[0].nics: a node of a cluster with [[network.host]] has one NIC";
        assert!(error.contains(expected), "{error}");
    }
}
