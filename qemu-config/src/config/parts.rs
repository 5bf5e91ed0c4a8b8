//! What of a cluster runs where: on which host, and in which device process.

use std::collections::BTreeMap;

use qnic_config::plan::PrivateKey;
use qnic_config::{require, ConfigError};

use super::network::ProcessSpec;
use super::nics::Nic;
use super::schedule::{self, Step};
use super::spec::{ClusterSpec, NodeSpec};

impl ClusterSpec {
    /// Number of the NIC with an address, wherever it runs; of a node without NICs, its own.
    pub fn node_number(&self, address: &str) -> Option<u16> {
        let nic = self.nic_at(address).map(|nic| nic.number);
        let mut plain = self.numbered().filter(|(node, _)| !node.nic);
        let elsewhere = || self.network.as_ref()?.elsewhere.get(address).copied();
        nic.or_else(|| Some(plain.find(|(node, _)| node.name == address)?.1))
            .or_else(elsewhere)
    }

    /// The part of this cluster that `host` boots.
    ///
    /// # Errors
    /// Returns an error if the file has no such host.
    pub fn on_host(&self, host: &str) -> Result<Self, ConfigError> {
        let network = self.network.as_ref();
        let hosts = network.map_or(&[][..], |network| &network.hosts);
        let Some(here) = hosts.iter().find(|one| one.name == host) else {
            let known: Vec<_> = hosts.iter().map(|one| one.name.as_str()).collect();
            let message = match known.is_empty() {
                true => "the cluster file has no [[network.host]]".to_owned(),
                false => format!("there is no host \"{host}\": use {}", known.join(" or ")),
            };
            return Err(ConfigError::new("network.host", message));
        };
        let mut part = self.clone();
        part.nodes.clear();
        part.remote_memory = self.remote_memory_of(&here.nodes);
        let mut elsewhere = BTreeMap::new();
        for (node, number) in self.numbered() {
            if here.nodes.contains(&node.name) {
                let number = Some(number);
                part.nodes.push(NodeSpec {
                    number,
                    ..node.clone()
                });
            } else if node.nic || self.has_port(node, number) {
                elsewhere.insert(node.name.clone(), number);
            }
        }
        if let Some(network) = &mut part.network {
            network.here = Some(host.to_owned());
            network.elsewhere = elsewhere;
            network.ports_elsewhere = self.ports_beside(&here.nodes);
        }
        Ok(part)
    }

    /// Checks that the private key of the host that was chosen is there, fit for use, and
    /// belongs to the public key.
    ///
    /// # Errors
    /// Returns an error that names the file.
    pub fn check_private_key(&self) -> Result<(), ConfigError> {
        let Some(network) = &self.network else {
            return Ok(());
        };
        let mut hosts = network.hosts.iter().enumerate();
        let here = hosts.find(|(_, host)| network.here.as_ref() == Some(&host.name));
        let Some((index, host)) = here else {
            return Ok(());
        };
        let (file, key) = (host.private_key.display(), format!("network.host[{index}]"));
        let private = PrivateKey::read(&host.private_key).map_err(|error| {
            ConfigError::new(format!("{key}.private_key"), format!("{file}: {error}"))
        })?;
        let (expected, found) = (host.public_key, private.public());
        let message = format!("{file} belongs to {found}, not to {expected}");
        require(found == expected, format!("{key}.public_key"), message)
    }

    /// Names of the hosts of which one must be chosen before booting.
    pub fn hosts_to_choose(&self) -> Vec<&str> {
        let open = self.network.iter().filter(|network| network.here.is_none());
        open.flat_map(|network| &network.hosts)
            .map(|host| host.name.as_str())
            .collect()
    }

    /// What the NICs of a network are called in its tables, those elsewhere included, by their
    /// numbers.
    pub(crate) fn network_nodes(&self, network: Option<&str>) -> BTreeMap<u16, String> {
        let local = self.nics().into_iter();
        let local = local.filter(|nic| nic.network == network);
        let local = local.map(|nic| (nic.number, nic.end()));
        let elsewhere = self.network_of(network).into_iter();
        let elsewhere = elsewhere.flat_map(|network| &network.elsewhere);
        local
            .chain(elsewhere.map(|(name, number)| (*number, name.clone())))
            .collect()
    }

    /// The number of what the tables of a network call `end`.
    pub(crate) fn number_there(&self, network: Option<&str>, end: &str) -> Option<u16> {
        let mut ends = self.network_nodes(network).into_iter();
        Some(ends.find(|(_, there)| there == end)?.0)
    }

    fn processes(&self) -> &[ProcessSpec] {
        let network = self.network.as_ref();
        network.map_or(&[], |network| &network.processes)
    }

    /// The names of the device processes that run here: those of `[network]`, of which an only
    /// one has no name, and one for each network beside it.
    pub(crate) fn device_processes(&self) -> Vec<Option<&str>> {
        let has_main = self.nics().iter().any(|nic| nic.network.is_none());
        let of_main = match self.processes() {
            [] if has_main => vec![None],
            [] => Vec::new(),
            several => several.iter().map(|one| Some(one.name.as_str())).collect(),
        };
        let beside = self.networks.keys().map(|name| Some(name.as_str()));
        of_main.into_iter().chain(beside).collect()
    }

    /// The network whose NICs a device process has.
    pub(crate) fn network_of_process<'a>(&self, process: Option<&'a str>) -> Option<&'a str> {
        process.filter(|name| self.networks.contains_key(*name))
    }

    /// The device process that has the NIC with an address.
    pub(crate) fn process_of(&self, address: &str) -> Option<&str> {
        self.process_with(&self.nic_at(address)?)
    }

    fn process_with<'a>(&'a self, nic: &Nic<'a>) -> Option<&'a str> {
        let end = nic.end();
        let has = |process: &&ProcessSpec| process.nodes.contains(&end);
        let process = || self.processes().iter().find(has);
        nic.network.or_else(|| Some(process()?.name.as_str()))
    }

    /// What all NICs are called on command lines.
    pub fn nic_addresses(&self) -> Vec<String> {
        self.nics().iter().map(Nic::address).collect()
    }

    /// The NICs that a device process has.
    pub(crate) fn nics_of(&self, process: Option<&str>) -> Vec<Nic<'_>> {
        let mut nics = self.nics();
        nics.retain(|nic| self.process_with(nic) == process);
        nics
    }

    /// The steps of `[[network.schedule]]` in the order of their times, those of one time in
    /// the order of the file.
    pub fn schedule(&self) -> Vec<Step> {
        let network = self.network.as_ref();
        network.map_or(Vec::new(), |network| {
            schedule::steps(&network.schedule, network.seed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::network::tests::{HOSTS, PROCESSES};
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn a_host_boots_its_nodes_and_knows_the_others() {
        let whole = parse(HOSTS).unwrap();
        let east = whole.on_host("east").unwrap();
        east.validate().unwrap();
        assert!(east.hosts_to_choose().is_empty());
        let names: Vec<_> = east.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["a2", "a3"]);
        for (name, number) in [("a0", 0), ("a1", 1), ("a2", 2), ("a3", 3)] {
            assert_eq!(east.node_number(name), Some(number));
        }
        assert_eq!(parse(&east.to_toml().unwrap()).unwrap(), east);
        let error = whole.on_host("north").unwrap_err().to_string();
        let expected = "network.host: there is no host \"north\": use west or east";
        assert_eq!(error, expected);
    }

    /// The key of the host that boots is checked before anything is.
    #[test]
    fn a_host_needs_its_private_key() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("east");
        let text = HOSTS.replace("/c/east", file.to_str().unwrap());
        let check = |text: &str| {
            let spec = parse(text).unwrap().on_host("east").unwrap();
            spec.check_private_key().map_err(|error| error.to_string())
        };
        let error = check(&text).unwrap_err();
        let key = "network.host[1].private_key: ";
        assert!(
            error.starts_with(key) && error.contains("No such file"),
            "{error}"
        );
        let private = PrivateKey::generate().unwrap();
        private.write_new(&file).unwrap();
        let error = check(&text).unwrap_err();
        let key = "network.host[1].public_key: ";
        assert!(
            error.starts_with(key) && error.contains("belongs to"),
            "{error}"
        );
        let text = text.replace(
            "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=",
            &private.public().to_string(),
        );
        check(&text).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        let error = check(&text).unwrap_err();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn each_process_has_its_nics() {
        let spec = parse(PROCESSES).unwrap();
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        assert_eq!(spec.device_processes(), [Some("left"), Some("right")]);
        let nics = |process| {
            let nics = spec.nics_of(process).into_iter();
            nics.map(|nic| (nic.node.name.as_str(), nic.number))
                .collect::<Vec<_>>()
        };
        assert_eq!(nics(Some("left")), [("a0", 0), ("a1", 1)]);
        assert_eq!(nics(Some("right")), [("a2", 2)]);
        assert_eq!(spec.process_of("a2"), Some("right"));
        assert_eq!(spec.process_of("plain"), None);
    }

    #[test]
    fn without_processes_there_is_one_and_without_nics_none() {
        let one = ClusterSpec::new("c").with(NodeSpec::new("a"));
        assert_eq!(one.device_processes(), [None]);
        assert_eq!(one.nics_of(None).len(), 1);
        let plain = NodeSpec {
            nic: false,
            ..NodeSpec::new("a")
        };
        let mut none = ClusterSpec::new("c").with(plain);
        // Its Ethernet port needs one.
        assert_eq!(none.device_processes(), [None]);
        none.ethernet = crate::OnOff::Off;
        assert!(none.device_processes().is_empty());
    }
}
