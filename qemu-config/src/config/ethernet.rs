//! What a cluster file says of Ethernet ports (X17).
//!
//! ```toml
//! ethernet = true                     # the default; or false, or { mtu = 4078, checksum_offload = false }
//!
//! [[node]]
//! name = "a"                          # true, false, or a table with what is not as usual
//! ethernet = { mac = "52:54:00:71:00:07", ip = "10.71.0.7" }
//! ```

use qnic_config::{InterfaceAddress, MacAddress, DEFAULT_MTU};
use serde::{Deserialize, Serialize};

/// What all Ethernet ports of a cluster have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EthernetSpec {
    /// Largest packet of their frames, in bytes.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
    /// Whether guests may leave checksums to their ports.
    #[serde(default = "on")]
    pub checksum_offload: bool,
    /// Whether guests may leave the division of TCP segments to their ports; only with checksums.
    #[serde(default = "on")]
    pub segmentation_offload: bool,
}

const fn default_mtu() -> u16 {
    DEFAULT_MTU
}

const fn on() -> bool {
    true
}

impl Default for EthernetSpec {
    fn default() -> Self {
        Self {
            mtu: DEFAULT_MTU,
            checksum_offload: true,
            segmentation_offload: true,
        }
    }
}

/// What the Ethernet port of a node has of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSpec {
    /// Its MAC address; `None`: that of the node's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddress>,
    /// The address that the guest gives it; `None`: that of the node's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<InterfaceAddress>,
}

/// The addresses of the Ethernet port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EthernetPort {
    /// Its MAC address.
    pub mac: MacAddress,
    /// The address that the guest gives it.
    pub ip: InterfaceAddress,
}

/// The MAC address that the port of the node with `number` has by itself: QEMU's prefix,
/// and the number in the last two bytes.
pub(super) const fn mac_of_number(number: u16) -> MacAddress {
    let [high, low] = number.to_be_bytes();
    MacAddress([0x52, 0x54, 0x00, 0x71, high, low])
}
