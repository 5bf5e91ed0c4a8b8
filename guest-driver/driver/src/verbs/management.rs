//! Messages of connection management. Each comes from the kernel of another guest as a datagram, with the addresses of
//! two ports in its header: this is what is looked at before a kernel reads it. The rest is for that kernel's
//! connection manager, which takes nothing in a message for granted, as on any network.
//!
//! ```text
//!   header    | version u32 | reserved u32 | address of the sender, 16 | of the receiver, 16 |
//!   message   | base version 1 | class 7 | … 256 bytes
//! ```

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
/// First bytes of a message: version of the format, class of connection management.
const CONNECTIONS: [u8; 2] = [1, 7];
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
/// message is not for this kernel, or malformed. Whether the receiver's address is one of this node, the kernel checks.
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
        && message.len() == MESSAGE_BYTES
        && message.starts_with(&CONNECTIONS);
    if !is_valid {
        return None;
    }
    match (from.strip_prefix(&MAPPED), to.strip_prefix(&MAPPED)) {
        (Some(from), Some(to)) => Some((Version::V4, v4_route(from, to))),
        (None, None) => Some((Version::V6, v6_route(from, to))),
        _ => None,
    }
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
        message[..2].copy_from_slice(&CONNECTIONS);
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
    }

    proptest! {
        #[test]
        fn a_route_names_the_addresses_of_its_header(
            from: [u8; 16],
            to: [u8; 16],
            noise in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            // Addresses of IPv4 are rare among those.
            let (version, route) = route_of(MANAGEMENT_PORT, &header(&from, &to), &message()).unwrap();
            prop_assert_eq!(version, Version::V6);
            prop_assert_eq!(&route[8..], [from, to].concat());
            prop_assert_eq!(route_of(MANAGEMENT_PORT, &noise, &message()), None);
            let named = route_of(MANAGEMENT_PORT, &header(&from, &to), &noise).is_some();
            prop_assert_eq!(named, noise.len() == MESSAGE_BYTES && noise.starts_with(&CONNECTIONS));
        }
    }
}
