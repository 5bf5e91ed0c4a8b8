//! Messages of connection management. Each comes from the kernel of another guest as a datagram, with the addresses of
//! two ports in its header: this is what is looked at before a kernel reads it. The rest is for that kernel's
//! connection manager, which takes nothing in a message for granted, as on any network.
//!
//! ```text
//!   header    | version u32 | reserved u32 | address of the sender, 16 | of the receiver, 16 |
//!   message   | base version 1 | class 7 | its version 2 | method 3 | … | attribute, bytes 16 and 17 | … 256 bytes
//! ```

use core::ops::{Range, RangeInclusive};

/// Datagram port of connection management on every node.
pub const MANAGEMENT_PORT: u16 = 65;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 40;
/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 256;
/// Bytes in front of a message as its kernel sees it: a header of IPv6, or in its last 20 bytes one of IPv4.
pub const ROUTE_BYTES: usize = 40;

/// Version of the header.
const VERSION: [u8; 4] = 1u32.to_le_bytes();
/// First bytes of a message: version of the format, class of connection management, version of the class, and the
/// method that all its messages have (Send). For others, the kernel looks for a request or makes an answer of its own.
const CONNECTIONS: [u8; 4] = [1, 7, 2, 3];
/// Where the attribute stands, and what it can be: from a request for a connection (REQ) to an answer to another path
/// (APR).
const ATTRIBUTE: Range<usize> = 16..18;
const ATTRIBUTES: RangeInclusive<u16> = 0x10..=0x1a;
/// Messages of a node that are taken at once.
pub const BURST: u64 = 256;
/// Nanoseconds after which one more is taken.
pub const INTERVAL_NS: u64 = 1_000_000_000 / 256;
/// Messages that one is worth if it makes this node ask for its sender's address: the table of neighbours, where
/// questions wait for seconds, has room for few.
pub const QUESTION: u64 = 16;
/// First bytes of an address of IPv6 that stands for one of IPv4.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// The protocol that headers of routes name, UDP, and how far such a packet may go.
const UDP: u8 = 17;
const HOPS: u8 = 0xff;

/// A version of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// IPv4.
    V4 = 4,
    /// IPv6.
    V6 = 6,
}

/// The header of a message between these addresses (GIDs).
#[must_use]
pub fn header(from: &[u8; 16], to: &[u8; 16]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&VERSION);
    header[8..24].copy_from_slice(from);
    header[24..].copy_from_slice(to);
    header
}

/// The route header of a message that has come from a datagram port, as a packet of RoCE would have it. `None`: the
/// message is not for this kernel, or malformed. Whether the sender's address is at its node, and the receiver's at
/// this one, the module checks.
#[must_use]
pub fn route_of(
    from_port: u16,
    header: &[u8],
    message: &[u8],
) -> Option<(Version, [u8; ROUTE_BYTES])> {
    let (start, addresses) = header.split_first_chunk::<8>()?;
    let (from, to) = addresses.split_first_chunk::<16>()?;
    let to: &[u8; 16] = to.try_into().ok()?;
    let is_valid = from_port == MANAGEMENT_PORT
        && start[..4] == VERSION
        && start[4..] == [0; 4]
        && is_of_connections(message);
    if !is_valid {
        return None;
    }
    match (from.strip_prefix(&MAPPED), to.strip_prefix(&MAPPED)) {
        (Some(from), Some(to)) => Some((Version::V4, v4_route(from, to))),
        (None, None) => Some((Version::V6, v6_route(from, to))),
        _ => None,
    }
}

fn is_of_connections(message: &[u8]) -> bool {
    message.len() == MESSAGE_BYTES
        && message.starts_with(&CONNECTIONS)
        && ATTRIBUTES.contains(&u16::from_be_bytes([
            message[ATTRIBUTE.start],
            message[ATTRIBUTE.start + 1],
        ]))
}

/// Whether one more message of a node is taken at the time `now_ns`: [`BURST`] at once, and one in [`INTERVAL_NS`]
/// behind them. `due_ns` is the node's own: 0 at first, and then when all that was taken is made up for. Time does not
/// go back.
#[must_use]
pub fn admits(due_ns: &mut u64, now_ns: u64) -> bool {
    let due = (*due_ns).max(now_ns);
    let admitted = due - now_ns <= (BURST - 1) * INTERVAL_NS;
    if admitted {
        *due_ns = due.saturating_add(INTERVAL_NS);
    }
    admitted
}

/// The message that was admitted last has made this node ask for an address.
pub fn has_asked(due_ns: &mut u64) {
    *due_ns = due_ns.saturating_add((QUESTION - 1) * INTERVAL_NS);
}

fn v4_route(from: &[u8], to: &[u8]) -> [u8; ROUTE_BYTES] {
    let mut route = [0; ROUTE_BYTES];
    route[20] = 0x45;
    route[28..30].copy_from_slice(&[HOPS, UDP]);
    route[32..36].copy_from_slice(from);
    route[36..].copy_from_slice(to);
    route
}

fn v6_route(from: &[u8], to: &[u8]) -> [u8; ROUTE_BYTES] {
    let mut route = [0; ROUTE_BYTES];
    route[0] = 0x60;
    route[6..8].copy_from_slice(&[UDP, HOPS]);
    route[8..24].copy_from_slice(from);
    route[24..].copy_from_slice(to);
    route
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const V4: [[u8; 16]; 2] = [
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 71, 0, 1],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 71, 0, 2],
    ];
    const V6: [[u8; 16]; 2] = [
        [
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x71, 0, 0,
        ],
        [
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x71, 0, 1,
        ],
    ];

    fn message() -> [u8; MESSAGE_BYTES] {
        let mut message = [0; MESSAGE_BYTES];
        message[..4].copy_from_slice(&CONNECTIONS);
        message[17] = 0x10;
        message
    }

    #[test]
    fn a_message_has_the_route_of_its_addresses() {
        let (version, route) =
            route_of(MANAGEMENT_PORT, &header(&V4[0], &V4[1]), &message()).unwrap();
        assert_eq!(version, Version::V4);
        assert_eq!(route[..20], [0; 20]);
        assert_eq!(
            route[20..],
            [0x45, 0, 0, 0, 0, 0, 0, 0, 255, 17, 0, 0, 10, 71, 0, 1, 10, 71, 0, 2]
        );
        let (version, route) =
            route_of(MANAGEMENT_PORT, &header(&V6[0], &V6[1]), &message()).unwrap();
        assert_eq!(version, Version::V6);
        assert_eq!(route[..8], [0x60, 0, 0, 0, 0, 0, 17, 255]);
        assert_eq!(route[8..], V6.concat());
    }

    #[test]
    fn nothing_else_reaches_the_connection_manager() {
        let good = header(&V4[0], &V4[1]);
        let refused = |port, header: &[u8], message: &[u8]| {
            assert_eq!(route_of(port, header, message), None);
        };
        assert!(route_of(MANAGEMENT_PORT, &good, &message()).is_some());
        // From another port, of a process for example.
        refused(1024, &good, &message());
        refused(0, &good, &message());
        // Shorter, or longer.
        refused(MANAGEMENT_PORT, &good[..39], &message());
        refused(MANAGEMENT_PORT, &[&good[..], &[0]].concat(), &message());
        refused(MANAGEMENT_PORT, &[], &message());
        refused(MANAGEMENT_PORT, &good, &message()[..255]);
        refused(MANAGEMENT_PORT, &good, &[&message()[..], &[0]].concat());
        refused(MANAGEMENT_PORT, &good, &[]);
        // Addresses of two kinds.
        refused(MANAGEMENT_PORT, &header(&V4[0], &V6[1]), &message());
        refused(MANAGEMENT_PORT, &header(&V6[0], &V4[1]), &message());
        // Another version, a reserved word that is used, another format, another class: of subnet management.
        for (at, value) in [(0, 2), (3, 1), (4, 1), (7, 0x80)] {
            let mut other = good;
            other[at] = value;
            refused(MANAGEMENT_PORT, &other, &message());
        }
        for (at, value) in [(0, 2), (1, 1), (1, 0x81)] {
            let mut other = message();
            other[at] = value;
            refused(MANAGEMENT_PORT, &good, &other);
        }
        // Another version of the class; Get, Set, and answers to them and to what was sent; other attributes.
        for (at, value) in [
            (2, 1),
            (3, 1),
            (3, 2),
            (3, 0x81),
            (3, 0x83),
            (17, 1),
            (17, 0x0f),
            (17, 0x1b),
            (16, 1),
        ] {
            let mut other = message();
            other[at] = value;
            refused(MANAGEMENT_PORT, &good, &other);
        }
    }

    #[test]
    fn all_messages_of_connections_reach_the_connection_manager() {
        for attribute in ATTRIBUTES {
            let mut message = message();
            message[ATTRIBUTE].copy_from_slice(&attribute.to_be_bytes());
            assert!(route_of(MANAGEMENT_PORT, &header(&V6[0], &V6[1]), &message).is_some());
        }
    }

    #[test]
    fn a_flood_of_a_node_is_cut_off() {
        let mut due = 0;
        let admitted = |due: &mut u64, now| (0..10 * BURST).filter(|_| admits(due, now)).count();
        assert_eq!(admitted(&mut due, 1_000_000_000), BURST as usize);
        assert_eq!(admitted(&mut due, 1_000_000_000 + INTERVAL_NS - 1), 0);
        assert_eq!(admitted(&mut due, 1_000_000_000 + INTERVAL_NS), 1);
        // All of it again after a second.
        assert_eq!(admitted(&mut due, 10_000_000_000), BURST as usize);
        assert!(admits(&mut due, u64::MAX));
    }

    #[test]
    fn questions_for_addresses_are_fewer() {
        let mut due = 0;
        let asked = |due: &mut u64, now| {
            let asks = |_: &u64| {
                let admitted = admits(due, now);
                if admitted {
                    has_asked(due);
                }
                admitted
            };
            (0..10 * BURST).filter(asks).count() as u64
        };
        assert_eq!(asked(&mut due, 1_000_000_000), BURST / QUESTION);
        assert_eq!(asked(&mut due, 1_000_000_000 + INTERVAL_NS), 1);
        assert_eq!(asked(&mut due, 1_000_000_000 + QUESTION * INTERVAL_NS), 0);
        assert_eq!(
            asked(&mut due, 2_000_000_000 + INTERVAL_NS),
            BURST / QUESTION
        );
    }

    /// An address of either kind.
    fn address() -> impl Strategy<Value = [u8; 16]> {
        let mapped = any::<[u8; 4]>().prop_map(|address| {
            let mut mapped = V4[0];
            mapped[12..].copy_from_slice(&address);
            mapped
        });
        prop_oneof![any::<[u8; 16]>(), mapped]
    }

    /// A message, or noise, perhaps behind the start of one.
    fn noise() -> impl Strategy<Value = Vec<u8>> {
        let noise = proptest::collection::vec(any::<u8>(), 0..300);
        let begun = (any::<[u8; 252]>(), 0..0x20u8).prop_map(|(mut rest, attribute)| {
            rest[12..14].copy_from_slice(&[0, attribute]);
            [&CONNECTIONS[..], &rest].concat()
        });
        prop_oneof![noise, begun]
    }

    proptest! {
        #[test]
        fn a_route_names_the_addresses_of_its_header(
            from in address(),
            to in address(),
            noise in noise(),
        ) {
            let header = header(&from, &to);
            let are_v4 = [from, to].map(|address| address.starts_with(&MAPPED));
            let found = route_of(MANAGEMENT_PORT, &header, &message());
            match (are_v4, found) {
                ([true, true], Some((Version::V4, route))) => {
                    prop_assert_eq!(&route[32..36], &from[12..]);
                    prop_assert_eq!(&route[36..], &to[12..]);
                }
                ([false, false], Some((Version::V6, route))) => {
                    prop_assert_eq!(&route[8..], [from, to].concat());
                }
                (are_v4, found) => prop_assert!(are_v4[0] != are_v4[1] && found.is_none()),
            }
            prop_assert_eq!(route_of(MANAGEMENT_PORT, &noise, &message()), None);
            let taken = route_of(MANAGEMENT_PORT, &header, &noise).is_some();
            prop_assert_eq!(taken, found.is_some() && noise.len() == MESSAGE_BYTES
                && noise[..4] == [1, 7, 2, 3] && noise[16] == 0 && (0x10..0x1b).contains(&noise[17]));
        }

        #[test]
        fn no_node_has_more_than_its_messages(
            pauses in proptest::collection::vec(0..3 * INTERVAL_NS, 1..2000),
        ) {
            let (mut due, mut now, mut taken) = (0, 0, 0);
            for pause in pauses {
                now += pause;
                taken += u64::from(admits(&mut due, now));
                prop_assert!(taken <= BURST + now / INTERVAL_NS);
            }
        }
    }
}
