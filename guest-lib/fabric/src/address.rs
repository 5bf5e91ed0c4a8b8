//! Addresses of endpoints: 16 bytes that one endpoint publishes, and others insert.
//!
//! ```text
//!   byte   0      2      4        6          8             12
//!         ┌──────┬──────┬────────┬──────────┬─────────────┬─────────┐
//!         │ node │ port │ memory │ endpoint │ incarnation │ service │
//!         └──────┴──────┴────────┴──────────┴─────────────┴─────────┘
//! ```
//! All are little-endian. (node, port) is the process of the NIC that takes the endpoint's messages; each
//! endpoint registers one, as a NIC matches sources by it. `endpoint` is the message endpoint there. `memory`
//! is the port of the process that serves the domain's memory (`service`); 0: none does. `incarnation` tells the process from
//! earlier ones on its port, `service` the one that serves memory; they are random. Messages and requests name them, and
//! the NIC of the receiver refuses those of another incarnation.

use std::fmt;
use std::str::FromStr;

use qnic::message::{Completion, Destination, Envelope, Pattern, Source, Tag};
use qnic::{NodeId, Port};

use crate::errno::Errno;

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
    pub(crate) incarnation: u32,
    pub(crate) service: u32,
}

/// A process that messages are of, or for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    pub(crate) port: Port,
    /// 0: it has none. It is no endpoint of this provider then.
    pub(crate) incarnation: u32,
}

impl Peer {
    /// What a receive takes from it, and from no later process on its port, with a tag but for some bits of it; without: in the
    /// untagged space.
    pub(crate) fn pattern(self, tag: Option<(Tag, u64)>) -> Pattern {
        let source = Source::Process(self.node, self.port);
        let pattern = match tag {
            Some((tag, ignore)) => Pattern::ignoring(source, tag, ignore),
            None => Pattern::untagged(source),
        };
        pattern.incarnation(self.incarnation)
    }

    /// The tagged space of this process, and of no later one on its port.
    pub(crate) fn tagged(self, tag: Tag) -> Destination {
        Destination::tagged(self.node, self.port, tag).incarnation(self.incarnation)
    }

    /// The same of its untagged space.
    pub(crate) fn untagged(self) -> Destination {
        Destination::untagged(self.node, self.port).incarnation(self.incarnation)
    }
}

impl From<&Completion> for Peer {
    fn from(end: &Completion) -> Self {
        Peer {
            node: end.node,
            port: end.port,
            incarnation: end.incarnation,
        }
    }
}

impl From<&Envelope> for Peer {
    fn from(found: &Envelope) -> Self {
        Peer {
            node: found.node,
            port: found.port,
            incarnation: found.incarnation,
        }
    }
}

/// A random incarnation, which is not 0.
///
/// # Errors
/// Those of the system.
pub(crate) fn incarnation() -> Result<u32, Errno> {
    let mut random = [0; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Errno(error.raw_os_error()))?;
    Ok(u32::from_le_bytes(random).max(1))
}

impl Address {
    /// The process that takes its messages.
    pub(crate) fn peer(self) -> Peer {
        Peer {
            node: self.node,
            port: self.port,
            incarnation: self.incarnation,
        }
    }

    /// The process that serves its memory.
    pub(crate) fn memory_peer(self) -> Peer {
        Peer {
            node: self.node,
            port: self.memory,
            incarnation: self.service,
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let words = [self.node.0, self.port.0, self.memory.0, self.endpoint];
        for (at, word) in bytes.chunks_exact_mut(2).zip(words) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        bytes[8..12].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[12..].copy_from_slice(&self.service.to_le_bytes());
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
            service: 0,
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
            incarnation: u32::from_le_bytes(bytes[8..12].try_into().ok()?),
            service: u32::from_le_bytes(bytes[12..].try_into().ok()?),
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
            service,
        } = self;
        let (node, port, memory) = (node.0, port.0, memory.0);
        write!(
            f,
            "{SCHEME}{node}:{port}:{memory}:{endpoint}:{incarnation:x}:{service:x}"
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
        let [node, port, memory, endpoint, incarnation, service] = fields[..] else {
            return Err(NoAddress);
        };
        let word = |text: &str| text.parse::<u16>().map_err(|_| NoAddress);
        let number = |text: &str| u32::from_str_radix(text, 16).map_err(|_| NoAddress);
        let address = Address {
            node: NodeId(word(node)?),
            port: Port(word(port)?),
            memory: Port(word(memory)?),
            endpoint: word(endpoint)?,
            incarnation: number(incarnation)?,
            service: number(service)?,
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
        incarnation: 0x7654_3210,
        service: 0xfedc_ba98,
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
        assert_eq!(text, "qnic://258:772:5:6:76543210:fedcba98");
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
            "qnic://1:0:0:0:0:0",
            "qnic://1:2:3:4:g:0",
            "qnic://70000:2:3:4:0:0",
        ] {
            assert_eq!(text.parse::<Address>(), Err(NoAddress), "{text}");
        }
    }
}
