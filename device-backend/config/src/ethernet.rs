//! The Ethernet ports of a network (X17).
//!
//! ```toml
//! [[ethernet]]                      # one for each, also for those of other processes
//! node = 0                          # the NIC whose links its frames take
//! mac = "52:54:00:71:00:00"         # unique, of one port
//! socket = "/run/qnic/a.eth.sock"   # vhost-user; left out: the port is in another process
//! queues = 1                        # optional: pairs of queues, 1 to 16
//! mtu = 1500                        # optional: 576 to 4078, the same for all
//! checksum_offload = true           # optional: its guest may leave checksums to the device
//! segmentation_offload = true       # optional: and, with them, the division of TCP segments
//! ip = "10.71.0.1/16"               # optional: what its guest is given if it asks by DHCP
//! ```
//!
//! `ethernet_host = "/run/qnic/host.sock"`, in front of all tables, lets programs of the host join the
//! ports of this process. Each connection (SOCK_SEQPACKET) is one program: the first message, of 6 bytes,
//! is the MAC address that it has been given; each other one, in either direction, is one frame.

use std::collections::BTreeSet;
use std::path::PathBuf;

use qnic_limits::NodeId;
use serde::{Deserialize, Serialize};

use crate::check::{add, require, Seen, Unique};
use crate::node_number::NodeNumber;
use crate::{ConfigError, InterfaceAddress, MacAddress};

/// Most pairs of queues of an Ethernet port.
pub const MAX_ETHERNET_QUEUES: u16 = 16;

/// Smallest MTU: what each host must take of IPv4 (RFC 791).
pub const MIN_MTU: u16 = 576;

/// Largest MTU: a frame with its header and a VLAN tag is the payload of one frame of a NIC.
pub const MAX_MTU: u16 = 4078;

/// MTU of Ethernet.
pub const DEFAULT_MTU: u16 = 1500;

/// One Ethernet port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EthernetSettings {
    /// The NIC whose links its frames take.
    #[serde(with = "NodeNumber")]
    pub node: NodeId,
    /// Its address.
    pub mac: MacAddress,
    /// Path of its vhost-user socket; `None`: the port is in another process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Pairs of queues.
    #[serde(default = "default_queues")]
    pub queues: u16,
    /// Largest packet of its frames, in bytes.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
    /// Whether its guest may leave checksums to the device, and take frames without.
    #[serde(default = "on")]
    pub checksum_offload: bool,
    /// Whether its guest may leave the division of TCP segments to the device, and take undivided ones;
    /// only with checksums.
    #[serde(default = "on")]
    pub segmentation_offload: bool,
    /// What its guest is given if it asks by DHCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<InterfaceAddress>,
}

const fn default_queues() -> u16 {
    1
}

const fn default_mtu() -> u16 {
    DEFAULT_MTU
}

const fn on() -> bool {
    true
}

/// Checks `mtu`, which errors call `key`.
///
/// # Errors
/// Returns an error if it is out of range.
pub fn check_mtu(mtu: u16, key: &str) -> Result<(), ConfigError> {
    let message = format!("expected {MIN_MTU} to {MAX_MTU}, found {mtu}");
    require((MIN_MTU..=MAX_MTU).contains(&mtu), key, message)
}

/// Checks that `mac`, which errors call `key`, is the address of one port.
///
/// # Errors
/// Returns an error if it is that of a group, or zero.
pub fn check_mac(mac: MacAddress, key: &str) -> Result<(), ConfigError> {
    let message =
        format!("expected the address of one port: not zero, and an even first byte, found {mac}");
    require(mac.is_unicast(), key, message)?;
    let message = format!("expected an address that is not reserved for the host, found {mac}");
    require(mac.host_number().is_none(), key, message)
}

impl EthernetSettings {
    /// A port with one pair of queues and the MTU of Ethernet, in another process.
    pub const fn new(node: NodeId, mac: MacAddress) -> Self {
        Self {
            node,
            mac,
            socket: None,
            queues: default_queues(),
            mtu: default_mtu(),
            checksum_offload: on(),
            segmentation_offload: on(),
            ip: None,
        }
    }
}

/// Checks all `ports` of a network, in which this process has the NICs `own` and others have the
/// NICs `remote`.
pub(crate) fn check<'a>(
    ports: &'a [EthernetSettings],
    own: &BTreeSet<u16>,
    remote: &BTreeSet<u16>,
    seen: &mut Seen<'a>,
) -> Result<(), ConfigError> {
    let (mut nodes, mut macs) = (Unique::default(), Unique::default());
    for (index, port) in ports.iter().enumerate() {
        let key = |field| format!("ethernet[{index}].{field}");
        let node = port.node.0;
        let is_own = own.contains(&node);
        let message = format!("there is no node {node} with a NIC");
        require(is_own || remote.contains(&node), key("node"), message)?;
        let what = format_args!("node {node}");
        add(&mut nodes, node, &key("node"), what)?;
        check_mac(port.mac, &key("mac"))?;
        let what = format_args!("the address {}", port.mac);
        add(&mut macs, port.mac, &key("mac"), what)?;
        if let Some(socket) = &port.socket {
            let message = format!("only with a NIC of this process, unlike that of node {node}");
            require(is_own, key("socket"), message)?;
            seen.socket(socket, &key("socket"))?;
        }
        let message = format!("needed: the NIC of node {node} is in this process");
        require(!is_own || port.socket.is_some(), key("socket"), message)?;
        let queues = port.queues;
        let message = format!("expected 1 to {MAX_ETHERNET_QUEUES}, found {queues}");
        let fits = (1..=MAX_ETHERNET_QUEUES).contains(&queues);
        require(fits, key("queues"), message)?;
        check_mtu(port.mtu, &key("mtu"))?;
        let mtu = ports[0].mtu;
        let message = format!("expected {mtu} as of the other ports, found {}", port.mtu);
        require(port.mtu == mtu, key("mtu"), message)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::assert_errors;
    use crate::Config;
    use std::path::Path;

    /// Ports begin on line 14, that of the other process on line 18.
    const GOOD: &str = "\
[[nic]]\nname = \"a\"\nnode = 0\nsocket = \"/tmp/a\"\nram = \"256MiB\"
[network.shm]\nname = \"left\"\nsocket = \"/l.shm\"
[[network.process]]\nname = \"right\"\nsocket = \"/r.shm\"\nnodes = [2]\n
[[ethernet]]\nnode = 0\nmac = \"52:54:00:71:00:00\"\nsocket = \"/tmp/a.eth\"
[[ethernet]]\nnode = 2\nmac = \"52:54:00:71:00:02\"\n";

    #[test]
    fn ports_have_defaults_and_round_trip() {
        let config = Config::parse(GOOD, Path::new("q.toml")).unwrap();
        let port = |node, last| {
            EthernetSettings::new(NodeId(node), MacAddress([0x52, 0x54, 0, 0x71, 0, last]))
        };
        let own = EthernetSettings {
            socket: Some("/tmp/a.eth".into()),
            ..port(0, 0)
        };
        assert_eq!(config.ethernet, [own, port(2, 2)]);
        let printed = toml::to_string(&config).unwrap();
        let again = Config::parse(&printed, Path::new("q.toml")).unwrap();
        assert_eq!(again, config);
        let none = GOOD.split_once("[[ethernet]]").unwrap().0;
        let config = Config::parse(none, Path::new("q.toml")).unwrap();
        assert!(!toml::to_string(&config).unwrap().contains("ethernet"));
    }

    #[test]
    fn ports_of_one_process_need_no_network() {
        let (nic, _) = GOOD.split_once("[network").unwrap();
        let (_, ports) = GOOD.split_once("\n\n").unwrap();
        let (own, _) = ports.split_at(ports.rfind("[[").unwrap());
        let text = format!("{nic}{own}queues = 16\nmtu = 4078\n");
        assert!(Config::parse(&text, Path::new("q.toml")).is_ok(), "{text}");
    }

    #[test]
    fn errors_have_a_location_and_a_key() {
        let table = r#"
            END => node = 7 | 21 | duplicate key
            END => colour = 7 | 21 | unknown field
            END => queues = 17 | 21 | ethernet[1].queues: expected 1 to 16, found 17
            END => queues = 0 | 21 | ethernet[1].queues
            END => mtu = 575 | 21 | ethernet[1].mtu: expected 576 to 4078, found 575
            END => mtu = 4079 | 21 | ethernet[1].mtu
            END => mtu = 4000 | 21 | ethernet[1].mtu: expected 1500 as of the other ports, found 4000
            END => socket = "/tmp/c.eth" | 21 | ethernet[1].socket: only with a NIC of this process, unlike that of node 2
            END => [[ethernet]]\nnode = 2\nmac = "52:54:00:71:00:03" | 22 | ethernet[2].node: node 2 is used already by ethernet[1].node
            node = 2 => node = 3 | 19 | ethernet[1].node: there is no node 3 with a NIC
            :02" => :00" | 20 | ethernet[1].mac: the address 52:54:00:71:00:00 is used already by ethernet[0].mac
            :02" => " | 20 | ethernet[1].mac: expected a MAC address such as
            "52:54:00:71:00:00" => "00:00:00:00:00:00" | 16 | ethernet[0].mac: expected the address of one port
            "52:54:00:71:00:00" => "52:54:00:70:00:00" | 16 | ethernet[0].mac: expected an address that is not reserved for the host
            "52:54:00:71:00:00" => "01:00:5e:00:00:01" | 16 | ethernet[0].mac: expected the address of one port
            mac = "52:54:00:71:00:00"\n => | 14 | missing field `mac`
            socket = "/tmp/a.eth"\n => | 14 | ethernet[0].socket: needed
            /tmp/a.eth => /tmp/a | 17 | ethernet[0].socket: socket /tmp/a is used already by nic[0].socket
            /tmp/a.eth => /l.shm | 8 | network.shm.socket: socket /l.shm is used already by ethernet[0].socket
            /tmp/a.eth => LONG | 17 | ethernet[0].socket: expected a path of 1 to 107 bytes
        "#;
        let table = table
            .replace("END", "#END")
            .replace("LONG", &"x".repeat(108));
        assert_errors(&format!("{GOOD}#END"), &table);
    }
}
