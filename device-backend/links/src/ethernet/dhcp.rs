//! DHCP for guests of other images: each port has one address to give, that of the configuration.
//!
//! A request is answered at the port of its guest, and goes nowhere else. The address is given for
//! ever, so no guest asks a server for more time: there is none to be asked, and the answers name the
//! dummy address of RFC 7600 as theirs. There is no router and no name server on this Ethernet.

use std::net::Ipv4Addr;

use qnic_config::InterfaceAddress;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    DhcpMessageType, DhcpOption, DhcpPacket, DhcpRepr, EthernetAddress, EthernetFrame,
    EthernetProtocol, EthernetRepr, IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};

/// What the server calls itself.
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;

/// Options that smoltcp has no field for (RFC 2132).
const HOST_NAME: u8 = 12;
const INTERFACE_MTU: u8 = 26;

/// A lease without an end.
const FOREVER: u32 = u32::MAX;

/// What a port has to give.
#[derive(Debug, Clone)]
pub struct Lease {
    /// Its address.
    pub ip: InterfaceAddress,
    /// Largest packet of its frames, in bytes.
    pub mtu: u16,
    /// Name of its node.
    pub name: String,
}

/// What a frame asks for, with the address of the client.
struct Asked {
    from: EthernetAddress,
    kind: DhcpMessageType,
    transaction: u32,
    /// The address that the client wants or has.
    wants: Option<Ipv4Addr>,
    has: Ipv4Addr,
    by_broadcast: bool,
}

impl Lease {
    /// The answer to a frame, if it is a request to this server or to any.
    pub(crate) fn answer(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let asked = asked(frame)?;
        let own = self.ip.address();
        let kind = match asked.kind {
            DhcpMessageType::Discover => DhcpMessageType::Offer,
            DhcpMessageType::Inform => DhcpMessageType::Ack,
            DhcpMessageType::Request if asked.wants.is_none_or(|it| it == own) => {
                DhcpMessageType::Ack
            }
            DhcpMessageType::Request => DhcpMessageType::Nak,
            _ => return None,
        };
        Some(self.reply(&asked, kind))
    }

    fn reply(&self, asked: &Asked, kind: DhcpMessageType) -> Vec<u8> {
        let is_refusal = kind == DhcpMessageType::Nak;
        let gives = !is_refusal && asked.kind != DhcpMessageType::Inform;
        let mtu = self.mtu.to_be_bytes();
        // The length of an option is a byte.
        let name = self.name.as_bytes();
        let name = name.get(..255).unwrap_or(name);
        let option = |kind, data| DhcpOption { kind, data };
        let options = [option(HOST_NAME, name), option(INTERFACE_MTU, &mtu)];
        let message = DhcpRepr {
            message_type: kind,
            transaction_id: asked.transaction,
            secs: 0,
            client_hardware_address: asked.from,
            client_ip: Ipv4Addr::UNSPECIFIED,
            your_ip: if gives {
                self.ip.address()
            } else {
                Ipv4Addr::UNSPECIFIED
            },
            server_ip: Ipv4Addr::UNSPECIFIED,
            router: None,
            subnet_mask: (!is_refusal).then(|| self.ip.mask()),
            relay_agent_ip: Ipv4Addr::UNSPECIFIED,
            broadcast: asked.by_broadcast,
            requested_ip: None,
            client_identifier: None,
            server_identifier: Some(SERVER),
            parameter_request_list: None,
            dns_servers: None,
            max_size: None,
            lease_duration: gives.then_some(FOREVER),
            renew_duration: None,
            rebind_duration: None,
            additional_options: if is_refusal { &[] } else { &options },
        };
        // A client that has no address yet takes what comes for the one that it is given.
        let (to, to_ip) = match asked.by_broadcast || is_refusal {
            true => (EthernetAddress::BROADCAST, Ipv4Addr::BROADCAST),
            false if gives => (asked.from, self.ip.address()),
            false => (asked.from, asked.has),
        };
        framed(&message, to, to_ip)
    }
}

/// The frame that carries a message.
fn framed(message: &DhcpRepr<'_>, to: EthernetAddress, to_ip: Ipv4Addr) -> Vec<u8> {
    let udp = UdpRepr {
        src_port: SERVER_PORT,
        dst_port: CLIENT_PORT,
    };
    let ip = Ipv4Repr {
        src_addr: SERVER,
        dst_addr: to_ip,
        next_header: IpProtocol::Udp,
        payload_len: udp.header_len() + message.buffer_len(),
        hop_limit: 64,
    };
    // An address that no port has: the first one of the host's.
    let from = EthernetAddress(qnic_config::MacAddress::of_host(0).0);
    let ethernet = EthernetRepr {
        src_addr: from,
        dst_addr: to,
        ethertype: EthernetProtocol::Ipv4,
    };
    let header = ethernet.buffer_len() + ip.buffer_len();
    let mut bytes = vec![0; header + ip.payload_len];
    let checksums = ChecksumCapabilities::default();
    ethernet.emit(&mut EthernetFrame::new_unchecked(&mut bytes));
    let packet = &mut bytes[ethernet.buffer_len()..];
    ip.emit(&mut Ipv4Packet::new_unchecked(&mut *packet), &checksums);
    let datagram = &mut packet[ip.buffer_len()..];
    udp.emit(
        &mut UdpPacket::new_unchecked(datagram),
        &SERVER.into(),
        &to_ip.into(),
        message.buffer_len(),
        |payload| {
            // The buffer has its length.
            let _ = message.emit(&mut DhcpPacket::new_unchecked(payload));
        },
        &checksums,
    );
    bytes
}

/// What a frame asks for, if it is a message of a DHCP client.
fn asked(frame: &[u8]) -> Option<Asked> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    if !frame.dst_addr().is_broadcast() || frame.ethertype() != EthernetProtocol::Ipv4 {
        return None;
    }
    let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
    let is_whole = packet.frag_offset() == 0 && !packet.more_frags();
    if packet.version() != 4 || packet.next_header() != IpProtocol::Udp || !is_whole {
        return None;
    }
    let datagram = UdpPacket::new_checked(packet.payload()).ok()?;
    if (datagram.src_port(), datagram.dst_port()) != (CLIENT_PORT, SERVER_PORT) {
        return None;
    }
    let message = DhcpPacket::new_checked(datagram.payload()).ok()?;
    let message = DhcpRepr::parse(&message).ok()?;
    let to_other = |server: Ipv4Addr| server != SERVER;
    if message.server_identifier.is_some_and(to_other) {
        return None;
    }
    let has = Some(message.client_ip).filter(|ip| !ip.is_unspecified());
    Some(Asked {
        from: frame.src_addr(),
        kind: message.message_type,
        transaction: message.transaction_id,
        wants: message.requested_ip.or(has),
        has: message.client_ip,
        by_broadcast: message.broadcast,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The first request of the guest with this address.
    pub(crate) fn discover(guest: qnic_config::MacAddress) -> Vec<u8> {
        let mut frame = request(DhcpMessageType::Discover, None, None);
        frame[6..12].copy_from_slice(&guest.0);
        frame
    }

    const GUEST: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);

    fn lease() -> Lease {
        Lease {
            ip: "10.71.0.7/16".parse().unwrap(),
            mtu: 1500,
            name: "n6".to_owned(),
        }
    }

    /// A request of a client.
    fn request(kind: DhcpMessageType, wants: Option<&str>, server: Option<Ipv4Addr>) -> Vec<u8> {
        let message = DhcpRepr {
            message_type: kind,
            transaction_id: 77,
            secs: 0,
            client_hardware_address: GUEST,
            client_ip: Ipv4Addr::UNSPECIFIED,
            your_ip: Ipv4Addr::UNSPECIFIED,
            server_ip: Ipv4Addr::UNSPECIFIED,
            router: None,
            subnet_mask: None,
            relay_agent_ip: Ipv4Addr::UNSPECIFIED,
            broadcast: false,
            requested_ip: wants.map(|text| text.parse().unwrap()),
            client_identifier: Some(GUEST),
            server_identifier: server,
            parameter_request_list: Some(&[1, 3, 12, 26]),
            dns_servers: None,
            max_size: Some(1472),
            lease_duration: None,
            renew_duration: None,
            rebind_duration: None,
            additional_options: &[],
        };
        let mut frame = framed(&message, EthernetAddress::BROADCAST, Ipv4Addr::BROADCAST);
        frame[6..12].copy_from_slice(&GUEST.0);
        frame[34..38].copy_from_slice(&[0, 68, 0, 67]);
        frame
    }

    /// Kind, address and mask of an answer, and where it goes.
    fn said(answer: &[u8]) -> (DhcpMessageType, Ipv4Addr, Option<Ipv4Addr>, EthernetAddress) {
        let frame = EthernetFrame::new_checked(answer).unwrap();
        let packet = Ipv4Packet::new_checked(frame.payload()).unwrap();
        assert!(packet.verify_checksum());
        let datagram = UdpPacket::new_checked(packet.payload()).unwrap();
        assert!(datagram.verify_checksum(&packet.src_addr().into(), &packet.dst_addr().into()));
        assert_eq!((datagram.src_port(), datagram.dst_port()), (67, 68));
        let message = DhcpPacket::new_checked(datagram.payload()).unwrap();
        let options: Vec<_> = message
            .options()
            .map(|it| (it.kind, it.data.to_vec()))
            .collect();
        let message = DhcpRepr::parse(&message).unwrap();
        assert_eq!(
            (message.transaction_id, message.client_hardware_address),
            (77, GUEST)
        );
        if message.message_type != DhcpMessageType::Nak {
            assert!(options.contains(&(12, b"n6".to_vec())));
            assert!(options.contains(&(26, vec![0x05, 0xdc])));
        }
        (
            message.message_type,
            message.your_ip,
            message.subnet_mask,
            frame.dst_addr(),
        )
    }

    #[test]
    fn a_client_gets_the_address_of_its_port_and_no_other() {
        use DhcpMessageType::{Ack, Discover, Inform, Nak, Offer, Release, Request};
        let (own, mask) = (
            Ipv4Addr::new(10, 71, 0, 7),
            Some(Ipv4Addr::new(255, 255, 0, 0)),
        );
        let answer = |kind, wants, server| lease().answer(&request(kind, wants, server));
        let said_to = |kind, wants, server| said(&answer(kind, wants, server).unwrap());
        assert_eq!(said_to(Discover, None, None), (Offer, own, mask, GUEST));
        let chosen = said_to(Request, Some("10.71.0.7"), Some(SERVER));
        assert_eq!(chosen, (Ack, own, mask, GUEST));
        let other = said_to(Request, Some("10.71.0.8"), None);
        let nobody = Ipv4Addr::UNSPECIFIED;
        assert_eq!(other, (Nak, nobody, None, EthernetAddress::BROADCAST));
        assert_eq!(said_to(Inform, None, None), (Ack, nobody, mask, GUEST));
        assert_eq!(answer(Release, None, None), None);
        let elsewhere = Some(Ipv4Addr::new(10, 71, 0, 9));
        assert_eq!(
            answer(Request, Some("10.71.0.7"), elsewhere),
            None,
            "another server"
        );
    }

    /// A name longer than an option is cut: the guest has its address all the same.
    #[test]
    fn a_long_name_keeps_no_guest_from_its_address() {
        let lease = Lease {
            name: "n".repeat(300),
            ..lease()
        };
        let answer = lease.answer(&request(DhcpMessageType::Discover, None, None));
        let answer = answer.unwrap();
        let frame = EthernetFrame::new_checked(&answer[..]).unwrap();
        let packet = Ipv4Packet::new_checked(frame.payload()).unwrap();
        let datagram = UdpPacket::new_checked(packet.payload()).unwrap();
        let message = DhcpPacket::new_checked(datagram.payload()).unwrap();
        assert_eq!(
            DhcpRepr::parse(&message).unwrap().your_ip,
            lease.ip.address()
        );
    }

    proptest! {
        #[test]
        fn nonsense_is_no_request_and_no_panic(
            at in 0usize..400, byte: u8, length in 0usize..400, kind in 1u8..9,
        ) {
            let mut frame = request(DhcpMessageType::from(kind), None, None);
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
            frame.truncate(length);
            if let Some(answer) = lease().answer(&frame) {
                prop_assert!(answer.len() < 600);
            }
        }
    }
}
