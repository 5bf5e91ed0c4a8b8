//! Addresses of endpoints: 16 bytes that one endpoint publishes, and others insert.
//!
//! ```text
//!   byte   0      2      4        6          8
//!         ┌──────┬──────┬────────┬──────────┬─────────────────┐
//!         │ node │ port │ memory │ endpoint │ incarnation     │
//!         └──────┴──────┴────────┴──────────┴─────────────────┘
//! ```
//! All are little-endian. (node, port) is the process of the NIC that takes the endpoint's messages; each
//! endpoint registers one, as a NIC matches sources by it. `endpoint` is the message endpoint there. `memory`
//! is the port of the process that serves the domain's memory (`service`); 0: none does. `incarnation` tells an
//! endpoint from earlier ones on its port; it is random. Requests for memory check it, messages do not yet.

use std::fmt;
use std::str::FromStr;

use qnic::{NodeId, Port};

/// Its length in bytes.
pub(crate) const BYTES: usize = 16;

/// How texts of addresses begin.
const SCHEME: &str = "qnic://";

/// The node of an address that is not assigned.
const UNKNOWN: NodeId = NodeId(u16::MAX);

/// Address of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) node: NodeId,
    pub(crate) port: Port,
    pub(crate) memory: Port,
    pub(crate) endpoint: u16,
    pub(crate) incarnation: u64,
}

impl Address {
    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let words = [self.node.0, self.port.0, self.memory.0, self.endpoint];
        for (at, word) in bytes.chunks_exact_mut(2).zip(words) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        bytes[8..].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes
    }

    /// What an endpoint is to be named that has no address yet: by this node, on a port that it asks for; 0: on any.
    pub(crate) fn unassigned(port: Port) -> Self {
        Address {
            node: UNKNOWN,
            port,
            memory: Port(0),
            endpoint: 0,
            incarnation: 0,
        }
    }

    /// The address of these bytes; `None` if they are none: another length, or port 0.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::wanted(bytes).filter(|address| address.port.0 != 0)
    }

    /// The same, of an endpoint that may have no address yet.
    pub(crate) fn wanted(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Some(Address {
            node: NodeId(word(0)),
            port: Port(word(2)),
            memory: Port(word(4)),
            endpoint: word(6),
            incarnation: u64::from_le_bytes(bytes[8..].try_into().ok()?),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address {
            node,
            port,
            memory,
            endpoint,
            incarnation,
        } = self;
        let (node, port, memory) = (node.0, port.0, memory.0);
        write!(
            f,
            "{SCHEME}{node}:{port}:{memory}:{endpoint}:{incarnation:x}"
        )
    }
}

/// A text that is no address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoAddress;

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let fields = text.strip_prefix(SCHEME).ok_or(NoAddress)?;
        let fields: Vec<&str> = fields.split(':').collect();
        let [node, port, memory, endpoint, incarnation] = fields[..] else {
            return Err(NoAddress);
        };
        let word = |text: &str| text.parse::<u16>().map_err(|_| NoAddress);
        let address = Address {
            node: NodeId(word(node)?),
            port: Port(word(port)?),
            memory: Port(word(memory)?),
            endpoint: word(endpoint)?,
            incarnation: u64::from_str_radix(incarnation, 16).map_err(|_| NoAddress)?,
        };
        Address::from_bytes(&address.to_bytes()).ok_or(NoAddress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Address = Address {
        node: NodeId(0x102),
        port: Port(0x304),
        memory: Port(5),
        endpoint: 6,
        incarnation: 0xfedc_ba98_7654_3210,
    };

    #[test]
    fn bytes_stay_as_they_are() {
        let golden = [
            2, 1, 4, 3, 5, 0, 6, 0, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe,
        ];
        assert_eq!(ADDRESS.to_bytes(), golden);
        assert_eq!(Address::from_bytes(&golden), Some(ADDRESS));
    }

    #[test]
    fn texts_are_read_back() {
        let text = ADDRESS.to_string();
        assert_eq!(text, "qnic://258:772:5:6:fedcba9876543210");
        assert_eq!(text.parse(), Ok(ADDRESS));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        assert_eq!(Address::from_bytes(&[1; 15]), None);
        // Port 0.
        assert_eq!(Address::from_bytes(&[0; 16]), None);
        for text in [
            "",
            "host",
            "qnic://1:2",
            "qnic://1:0:0:0:0",
            "qnic://1:2:3:4:g",
            "qnic://70000:2:3:4:0",
        ] {
            assert_eq!(text.parse::<Address>(), Err(NoAddress), "{text}");
        }
    }
}
