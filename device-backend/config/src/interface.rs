//! Addresses of nodes in IP networks: `10.71.0.7/16` (X17).

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use crate::as_text::as_text;

/// The network in which nodes have addresses by themselves, and the length of its prefix.
const USUAL: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 71, 0, 0), 16);

/// Lengths of prefixes that leave room for two nodes, the network and its broadcast.
const LENGTHS: std::ops::RangeInclusive<u8> = 8..=30;

/// The IPv4 address of a node, and the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceAddress {
    address: Ipv4Addr,
    length: u8,
}

/// A string is no address of a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnInterfaceAddress {
    /// It is no address at all.
    #[error("expected an address such as \"10.71.0.7\" or \"192.168.7.1/24\", found \"{0}\"")]
    Text(String),
    /// It has no length, and another network is possible.
    #[error("expected a prefix length too, such as \"{0}/24\": only {usual} goes without", usual = usual())]
    Length(Ipv4Addr),
    /// Its network has no room, or is none.
    #[error("expected a prefix length of {least} to {most}, found {0}", least = LENGTHS.start(), most = LENGTHS.end())]
    Range(u8),
    /// It is that of a network, its broadcast, or of no single node.
    #[error("expected the address of one node: {0} is {1}")]
    Reserved(Ipv4Addr, &'static str),
}

fn usual() -> String {
    format!("{}/{}", USUAL.0, USUAL.1)
}

impl InterfaceAddress {
    /// The address that the node with `number` has by itself; `None`: the network has no more.
    pub fn of_number(number: u16) -> Option<Self> {
        let host = u32::from(number) + 1;
        let address = Ipv4Addr::from(u32::from(USUAL.0) | host);
        Self::new(address, USUAL.1).ok().filter(|_| host <= 0xffff)
    }

    /// A node's address in a network with a prefix of `length` bits.
    ///
    /// # Errors
    /// Returns an error unless a node can have it.
    pub fn new(address: Ipv4Addr, length: u8) -> Result<Self, NotAnInterfaceAddress> {
        if !LENGTHS.contains(&length) {
            return Err(NotAnInterfaceAddress::Range(length));
        }
        let host = u32::from(address) & (u32::MAX >> length);
        let reserved = match host {
            _ if address.is_multicast() || address.octets()[0] >= 240 => {
                "that of a group, or of none"
            }
            _ if address.is_loopback() => "this node to each node",
            _ if address.octets()[0] == 0 => "no address",
            0 => "that of its network",
            _ if host == u32::MAX >> length => "the broadcast address of its network",
            _ => return Ok(Self { address, length }),
        };
        Err(NotAnInterfaceAddress::Reserved(address, reserved))
    }

    /// The address with this number, counted from the end of the same network, of those that are not
    /// among `taken`; `None`: there are not so many.
    pub fn free_at_end(self, number: u8, taken: &BTreeSet<Ipv4Addr>) -> Option<Self> {
        let last = u32::from(self.address) | u32::MAX >> self.length;
        let addresses = (0..last).rev().map(Ipv4Addr::from);
        let free = addresses.filter(|address| !taken.contains(address));
        let free = free.map_while(|address| Self::new(address, self.length).ok());
        free.take_while(|free| free.is_with(self))
            .nth(number.into())
    }

    fn is_with(self, other: Self) -> bool {
        let network = |it: Self| u32::from(it.address) >> (32 - u32::from(it.length));
        network(self) == network(other)
    }

    /// Bits of its network.
    pub const fn length(self) -> u8 {
        self.length
    }

    /// The mask of its network.
    pub fn mask(self) -> Ipv4Addr {
        Ipv4Addr::from(!(u32::MAX >> self.length))
    }

    /// Returns true if the networks of both have addresses in common.
    pub fn overlaps(self, other: Self) -> bool {
        let shorter = self.length.min(other.length);
        let differ = u32::from(self.address) ^ u32::from(other.address);
        differ & !(u32::MAX >> shorter) == 0
    }

    /// Returns true if both are in one network.
    pub fn is_beside(self, other: Self) -> bool {
        self.length == other.length && self.overlaps(other)
    }

    /// The address without its network.
    pub const fn address(self) -> Ipv4Addr {
        self.address
    }
}

impl FromStr for InterfaceAddress {
    type Err = NotAnInterfaceAddress;

    fn from_str(text: &str) -> Result<Self, NotAnInterfaceAddress> {
        let no_address = || NotAnInterfaceAddress::Text(text.to_owned());
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: Ipv4Addr = address.parse().map_err(|_| no_address())?;
        let is_usual = (u32::from(address) ^ u32::from(USUAL.0)) >> (32 - USUAL.1) == 0;
        let length = match length {
            Some(length) if length.bytes().all(|digit| digit.is_ascii_digit()) => {
                length.parse().map_err(|_| no_address())?
            }
            Some(_) => return Err(no_address()),
            None if is_usual => USUAL.1,
            None => return Err(NotAnInterfaceAddress::Length(address)),
        };
        Self::new(address, length)
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.length)
    }
}

as_text!(InterfaceAddress);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_addresses_by_their_numbers() {
        for (number, expected) in [
            (0, "10.71.0.1/16"),
            (1, "10.71.0.2/16"),
            (254, "10.71.0.255/16"),
            (255, "10.71.1.0/16"),
            (65_533, "10.71.255.254/16"),
        ] {
            let address = InterfaceAddress::of_number(number).unwrap();
            assert_eq!(address.to_string(), expected, "{number}");
            assert_eq!(expected.parse(), Ok(address));
        }
        for number in [65_534, 65_535] {
            assert_eq!(InterfaceAddress::of_number(number), None, "{number}");
        }
    }

    #[test]
    fn a_length_is_needed_elsewhere_only() {
        for (text, expected) in [
            ("10.71.0.7", "10.71.0.7/16"),
            ("10.71.0.7/24", "10.71.0.7/24"),
            ("192.168.7.1/30", "192.168.7.1/30"),
        ] {
            let address: InterfaceAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), expected);
        }
    }

    #[test]
    fn what_no_node_can_have_is_refused() {
        for (text, part) in [
            ("", "expected an address such as"),
            ("a", "expected an address such as"),
            ("10.71.0.7/", "expected an address such as"),
            ("10.71.0.7/+16", "expected an address such as"),
            ("10.71.0.7/256", "expected an address such as"),
            ("fe80::1/64", "expected an address such as"),
            (
                "192.168.7.1",
                "\"192.168.7.1/24\": only 10.71.0.0/16 goes without",
            ),
            (
                "192.168.7.1/31",
                "expected a prefix length of 8 to 30, found 31",
            ),
            ("10.71.0.0", "10.71.0.0 is that of its network"),
            ("10.71.255.255", "is the broadcast address of its network"),
            ("192.168.7.3/30", "is the broadcast address of its network"),
            ("224.0.0.1/24", "is that of a group"),
            ("255.255.255.255/24", "is that of a group"),
            ("127.0.0.1/8", "is this node to each node"),
            ("0.0.0.1/8", "is no address"),
        ] {
            let error = text.parse::<InterfaceAddress>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_host_has_what_is_free_at_the_end() {
        let free = |text: &str, number, taken: &[&str]| {
            let taken = taken.iter().map(|text| text.parse().unwrap()).collect();
            let address: InterfaceAddress = text.parse().unwrap();
            let free = address.free_at_end(number, &taken);
            free.map(|free| free.to_string())
        };
        let found = |text: &str| Some(text.to_owned());
        assert_eq!(
            free("10.71.0.7", 0, &["10.71.0.7"]),
            found("10.71.255.254/16")
        );
        assert_eq!(
            free("10.71.0.7", 2, &["10.71.255.253"]),
            found("10.71.255.251/16")
        );
        let taken = ["192.168.7.1", "192.168.7.2"];
        assert_eq!(
            free("192.168.7.1/30", 0, &taken[..1]),
            found("192.168.7.2/30")
        );
        assert_eq!(free("192.168.7.1/30", 0, &taken), None);
        assert_eq!(free("192.168.7.1/30", 1, &[]), found("192.168.7.1/30"));
        assert_eq!(free("192.168.7.1/30", 2, &[]), None);
    }
}
