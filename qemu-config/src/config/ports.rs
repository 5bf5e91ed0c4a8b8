//! Which nodes have an Ethernet port, and its addresses (X17).
//!
//! ```text
//!                     a                  b
//!            ┌────────┴───────┐  ┌───────┴────────┐
//!          NIC 0    Ethernet port  …            NIC 1
//!            └───────┬────────┘
//!                  links of NIC 0
//! ```
//!
//! - The port is on the links of the node's first NIC, also where that one is on a network of
//!   its own. A node without a NIC has a place on the links of `[network]` for it.
//! - Node number *n* has the MAC address `52:54:00:71:HH:LL`, whose end is *n*, and the address
//!   *n* + 1 of 10.71.0.0/16.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use qnic_config::{add, check_mac, check_mtu, require, ConfigError, InterfaceAddress, Unique};

use super::ethernet::{mac_of_number, EthernetPort, EthernetSpec, PortSpec};
use super::on_off::OnOff;
use super::spec::{ClusterSpec, NodeSpec};

/// Most pairs of queues of the Ethernet port of a node, which has no more than processors.
const MAX_QUEUES: u16 = 4;

/// The Ethernet port of a node, as all device processes of its network know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    /// Its node.
    pub(crate) node: String,
    /// Number of its NIC.
    pub(crate) number: u16,
    /// Its addresses.
    pub(crate) addresses: EthernetPort,
}

impl NodeSpec {
    /// Pairs of queues of its Ethernet port.
    pub(crate) fn ethernet_queues(&self) -> u16 {
        u16::try_from(self.cpus).map_or(MAX_QUEUES, |cpus| cpus.clamp(1, MAX_QUEUES))
    }
}

impl ClusterSpec {
    /// The addresses of the Ethernet port of the node `name`, if it runs here and has one.
    pub fn ethernet_port(&self, name: &str) -> Option<EthernetPort> {
        let mut nodes = self.numbered();
        let (node, number) = nodes.find(|(node, _)| node.name == name)?;
        self.port_of(node, number)
    }

    /// What all Ethernet ports have in common; also if only single nodes have one.
    pub fn ethernet(&self) -> EthernetSpec {
        match self.ethernet {
            OnOff::On(ethernet) => ethernet,
            OnOff::Off => EthernetSpec::default(),
        }
    }

    /// The same cluster without Ethernet ports, and without what needs them.
    pub(crate) fn without_ethernet(&self) -> Self {
        let mut spec = self.clone();
        spec.ethernet = OnOff::Off;
        spec.mpi = false;
        for node in &mut spec.nodes {
            node.ethernet = None;
        }
        for network in spec.network.iter_mut().chain(spec.networks.values_mut()) {
            network.ports_elsewhere.clear();
        }
        spec
    }

    /// All Ethernet ports of a network, also of nodes that run elsewhere, by their numbers.
    pub(crate) fn ports_on(&self, network: Option<&str>) -> Vec<Port> {
        let port = |node: &str, number, addresses| Port {
            node: node.to_owned(),
            number,
            addresses,
        };
        let here = self.numbered().filter_map(|(node, number)| {
            let is_there = network_of_port(node) == network;
            let addresses = self.port_of(node, number).filter(|_| is_there)?;
            Some(port(&node.name, number, addresses))
        });
        let elsewhere = self.network_of(network).into_iter().flat_map(|network| {
            let ports = network.ports_elsewhere.iter();
            ports.filter_map(|(node, addresses)| {
                Some(port(node, *network.elsewhere.get(node)?, *addresses))
            })
        });
        let mut ports: Vec<_> = here.chain(elsewhere).collect();
        ports.sort_unstable_by_key(|port| port.number);
        ports
    }

    /// The lines of `/etc/hosts` in the guest of `node`: the nodes that its Ethernet port reaches.
    /// `None` if it has no port.
    pub(crate) fn hosts_of(&self, node: &NodeSpec) -> Option<String> {
        let own = self.ethernet_port(&node.name)?.ip;
        let ports = self.ports_on(network_of_port(node)).into_iter();
        let reached = ports.filter(|port| port.addresses.ip.is_beside(own));
        let lines = reached.map(|port| format!("{} {}\n", port.addresses.ip.address(), port.node));
        Some(lines.collect())
    }

    /// The ports of nodes that are not in `here`, by the nodes' names.
    pub(super) fn ports_beside(&self, here: &[String]) -> BTreeMap<String, EthernetPort> {
        let beside = self
            .numbered()
            .filter(|(node, _)| !here.contains(&node.name));
        let ports = beside
            .filter_map(|(node, number)| Some((node.name.clone(), self.port_of(node, number)?)));
        ports.collect()
    }

    /// Returns true if `node`, which has this number, has a port.
    pub(super) fn has_port(&self, node: &NodeSpec, number: u16) -> bool {
        self.port_of(node, number).is_some()
    }

    fn port_of(&self, node: &NodeSpec, number: u16) -> Option<EthernetPort> {
        let PortSpec { mac, ip } = match node.ethernet {
            Some(OnOff::On(port)) => port,
            None if !self.ethernet.is_off() => PortSpec::default(),
            _ => return None,
        };
        Some(EthernetPort {
            mac: mac.unwrap_or(mac_of_number(number)),
            ip: ip.or_else(|| InterfaceAddress::of_number(number))?,
        })
    }
}

/// The address of a guest in the network of QEMU's user-mode stack.
const OUTSIDE: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 0, 2, 15), 24);

/// The network that the Ethernet port of `node` is on; `None`: `[network]`.
fn network_of_port(node: &NodeSpec) -> Option<&str> {
    node.nics().next()?.1
}

/// Checks the ports of `spec`; `origin` tells which `[[node]]` of the file a node came from.
pub(super) fn check(
    spec: &ClusterSpec,
    origin: &dyn Fn(usize) -> usize,
) -> Result<(), ConfigError> {
    check_mtu(spec.ethernet().mtu, "ethernet.mtu")?;
    let (mut macs, mut addresses) = (Unique::default(), Unique::default());
    let mut networks: Vec<(InterfaceAddress, &str)> = Vec::new();
    let outside = InterfaceAddress::new(OUTSIDE.0, OUTSIDE.1).ok();
    for (index, (node, number)) in spec.numbered().enumerate() {
        let key = format!("node[{}].ethernet", origin(index));
        let said = match node.ethernet {
            Some(OnOff::On(said)) => said,
            Some(OnOff::Off) => continue,
            None if spec.ethernet.is_off() => continue,
            None => PortSpec::default(),
        };
        let usual = InterfaceAddress::of_number(number);
        let message = format!("expected an address: there is none for number {number}");
        require(usual.or(said.ip).is_some(), format!("{key}.ip"), message)?;
        let Some(port) = spec.port_of(node, number) else {
            continue;
        };
        let mac_key = format!("{key}.mac");
        check_mac(port.mac, &mac_key)?;
        let what = format_args!("the address {}", port.mac);
        add(&mut macs, port.mac, &mac_key, what)?;
        let address = port.ip.address();
        let what = format_args!("the address {address}");
        add(&mut addresses, address, &format!("{key}.ip"), what)?;
        let is_free = !outside.is_some_and(|it| node.outside && it.overlaps(port.ip));
        let message = format!(
            "{} is in the network of \"outside\": choose another one",
            port.ip
        );
        require(is_free, format!("{key}.ip"), message)?;
        let halfway =
            |(it, _): &&(InterfaceAddress, &str)| it.overlaps(port.ip) && !it.is_beside(port.ip);
        if let Some((other, name)) = networks.iter().find(halfway) {
            let message = format!(
                "{} and {other} of node \"{name}\" overlap and are not one network: write one prefix length for both",
                port.ip
            );
            require(false, format!("{key}.ip"), message)?;
        }
        networks.push((port.ip, &node.name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::network::tests::HOSTS;
    use super::super::tests::{assert_errors, parse};
    use super::*;

    const PORTS: &str = r#"
name = "x"
ethernet = true
[[node]]
name = "a"
[[node]]
name = "plain"
nic = false
[[node]]
name = "b"
cpus = 8
ethernet = { mac = "02:00:00:00:00:07", ip = "192.168.7.1/24" }
[[node]]
name = "c"
count = 2
[[node]]
name = "off"
ethernet = false
"#;

    fn ports(spec: &ClusterSpec) -> Vec<String> {
        let ports = spec.ports_on(None).into_iter();
        let text = |port: Port| {
            let EthernetPort { mac, ip } = port.addresses;
            format!("{} {} {mac} {ip}", port.node, port.number)
        };
        ports.map(text).collect()
    }

    #[test]
    fn ports_have_addresses_by_numbers_or_as_the_file_says() {
        let spec = parse(PORTS).unwrap();
        let expected = [
            "a 0 52:54:00:71:00:00 10.71.0.1/16",
            "plain 1 52:54:00:71:00:01 10.71.0.2/16",
            "b 2 02:00:00:00:00:07 192.168.7.1/24",
            "c0 3 52:54:00:71:00:03 10.71.0.4/16",
            "c1 4 52:54:00:71:00:04 10.71.0.5/16",
        ];
        assert_eq!(ports(&spec), expected);
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        assert_eq!(spec.ethernet().mtu, 1500);
        assert!(spec.ethernet_port("off").is_none());
        let queues = |node: usize| spec.nodes[node].ethernet_queues();
        assert_eq!([queues(0), queues(2)], [1, 4]);
        let hosts = "10.71.0.1 a\n10.71.0.2 plain\n10.71.0.4 c0\n10.71.0.5 c1\n";
        assert_eq!(spec.hosts_of(&spec.nodes[0]).unwrap(), hosts);
        assert_eq!(spec.hosts_of(&spec.nodes[2]).unwrap(), "192.168.7.1 b\n");
        assert_eq!(spec.hosts_of(&spec.nodes[5]), None);
        assert_eq!(spec.nics().len(), 6, "one is a place for a port");
        assert_eq!(spec.without_ethernet().nics().len(), 5);
        assert_eq!(ports(&spec.without_ethernet()), [""; 0]);
        assert_eq!(mac_of_number(0x1234).to_string(), "52:54:00:71:12:34");
    }

    #[test]
    fn there_are_ports_unless_the_file_says_so() {
        let unsaid = PORTS.replace("ethernet = true\n", "");
        assert_eq!(parse(&unsaid).unwrap(), parse(PORTS).unwrap());
        let without = PORTS.replace("ethernet = true\n", "ethernet = false\n");
        assert_eq!(ports(&parse(&without).unwrap()).len(), 1);
        let with = PORTS.replace("ethernet = true", "ethernet = { mtu = 4078 }");
        let spec = parse(&with).unwrap();
        assert_eq!((ports(&spec).len(), spec.ethernet().mtu), (5, 4078));
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        let usual = PORTS.replace("ethernet = true", "ethernet = { mtu = 1500 }");
        assert_eq!(parse(&usual).unwrap(), parse(PORTS).unwrap());
    }

    /// The port is where the first NIC is (S7), and its guest knows the nodes there.
    #[test]
    fn the_port_of_several_nics_is_on_the_links_of_the_first() {
        let text = "name = \"c\"\nethernet = true\n[networks.disks]\n\
                    [[node]]\nname = \"a\"\nnics = [{ name = \"main\" }, { name = \"disks\", network = \"disks\" }]\n\
                    [[node]]\nname = \"b\"\nnics = [{ name = \"disks\", network = \"disks\" }, { name = \"main\" }]\n\
                    [[node]]\nname = \"c\"\n";
        let spec = parse(text).unwrap();
        let nodes = |network| -> Vec<_> {
            let ports = spec.ports_on(network).into_iter();
            ports.map(|port| (port.node, port.number)).collect()
        };
        assert_eq!(nodes(None), [("a".to_owned(), 0), ("c".to_owned(), 2)]);
        assert_eq!(nodes(Some("disks")), [("b".to_owned(), 1)]);
        assert_eq!(spec.hosts_of(&spec.nodes[1]).unwrap(), "10.71.0.2 b\n");
    }

    /// Each host knows the ports of the others (X7).
    #[test]
    fn ports_of_other_hosts_are_known() {
        let text = HOSTS.replacen("name = \"x\"", "name = \"x\"\nethernet = true", 1);
        let whole = parse(&text).unwrap();
        let east = whole.on_host("east").unwrap();
        assert_eq!(ports(&east), ports(&whole));
        assert_eq!(parse(&east.to_toml().unwrap()).unwrap(), east);
        assert!(east.ethernet_port("a0").is_none());
        assert_eq!(ports(&east.without_ethernet()), [""; 0]);
    }

    #[test]
    fn errors_of_ports_have_location_and_key() {
        let table = r#"
            ethernet = true => ethernet = 1 | 3:12: ethernet: invalid type: integer `1`, expected true, false or a table
            ethernet = true => ethernet = { mtu = 575 } | 3:20: ethernet.mtu: expected 576 to 4078, found 575
            ethernet = true => ethernet = { mtu = 4079 } | 3:20: ethernet.mtu: expected 576 to 4078, found 4079
            ethernet = true => ethernet = { mac = 1 } | 3:14: ethernet.mac: unknown field `mac`
            "02:00:00:00:00:07" => "02:00:00:00:00" | 12:20: node[2].ethernet.mac: expected a MAC address such as "52:54:00:71:00:00"
            "02:00:00:00:00:07" => "03:00:00:00:00:07" | 12:20: node[2].ethernet.mac: expected the address of one port
            "02:00:00:00:00:07" => "52:54:00:71:00:00" | 12:20: node[2].ethernet.mac: the address 52:54:00:71:00:00 is used already by node[0].ethernet.mac
            192.168.7.1/24 => 192.168.7.1 | 12:46: node[2].ethernet.ip: expected a prefix length too
            192.168.7.1/24 => 10.71.0.1 | 12:46: node[2].ethernet.ip: the address 10.71.0.1 is used already by node[0].ethernet.ip
            192.168.7.1/24 => 10.71.0.5 | 13:1: node[3].ethernet.ip: the address 10.71.0.5 is used already by node[2].ethernet.ip
            192.168.7.1/24 => 10.64.0.9/10 | 12:46: node[2].ethernet.ip: 10.64.0.9/10 and 10.71.0.1/16 of node "a" overlap and are not one network
            192.168.7.1/24" } => 10.0.2.7/24" }\noutside = true | 12:46: node[2].ethernet.ip: 10.0.2.7/24 is in the network of "outside"
            ip = "192 => dns = "192 | 12:41: node[2].ethernet.dns: unknown field `dns`, expected `mac` or `ip`
            count = 2 => count = 2\nethernet = { mac = "02:00:00:00:00:08" } | 16:20: node[3].ethernet.mac: a node with a count cannot have a MAC address of its own
            count = 2 => count = 2\nethernet = { ip = "10.71.0.99" } | 16:19: node[3].ethernet.ip: a node with a count cannot have an address of its own
            name = "a" => name = "a"\nnumber = 65535 | node[0].ethernet.ip: expected an address: there is none for number 65535
        "#;
        assert_errors(PORTS, table);
    }
}
