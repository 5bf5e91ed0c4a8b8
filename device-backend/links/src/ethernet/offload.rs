//! What a guest has left to its network device: the checksum of a frame, and the division of a long
//! TCP segment.

use qnic_abi::ethernet::{Ethernet, Segmentation, ETHERNET_HEADER};
use smoltcp::wire::{
    IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber, IPV6_HEADER_LEN,
};
use zerocopy::FromZeros;

use super::EthernetFrame;

/// What a receiver does itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offloads {
    /// It takes frames without a checksum.
    pub checksum: bool,
    /// It takes long segments of TCP over IPv4.
    pub tcp4: bool,
    /// It takes long segments of TCP over IPv6.
    pub tcp6: bool,
}

impl Offloads {
    /// It does nothing.
    pub const NONE: Offloads = Offloads {
        checksum: false,
        tcp4: false,
        tcp6: false,
    };

    fn divides(self, segmentation: Segmentation) -> bool {
        match segmentation {
            Segmentation::None => true,
            Segmentation::Tcp4 => self.tcp4,
            Segmentation::Tcp6 => self.tcp6,
        }
    }
}

/// A frame is not what is said of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the frame has no segment of TCP to be divided")]
pub struct OffloadError;

/// Where the parts of a segment are in its frame.
#[derive(Debug, Clone, Copy)]
struct Layout {
    segmentation: Segmentation,
    network: usize,
    tcp: usize,
    data: usize,
    source: IpAddress,
    destination: IpAddress,
}

impl EthernetFrame {
    /// Does what a receiver with these offloads does not, and calls `take` with each frame that
    /// results, in order.
    ///
    /// # Errors
    /// Returns [`OffloadError`] if the frame is to be divided and is not what it says; `take` is not
    /// called then.
    pub fn finish(
        mut self,
        offloads: Offloads,
        mut take: impl FnMut(EthernetFrame),
    ) -> Result<(), OffloadError> {
        if !offloads.divides(self.segmentation()) {
            return self.divide(&mut take);
        }
        if !offloads.checksum && self.left.needs_checksum != 0 {
            if self.segmentation() != Segmentation::None {
                return self.divide(&mut take);
            }
            self.fill_checksum();
        }
        take(self);
        Ok(())
    }

    fn fill_checksum(&mut self) {
        let start = usize::from(self.left.checksum_start.get());
        let place = start + usize::from(self.left.checksum_offset.get());
        // The field has the sum of the pseudo header. A sum of zero stands as its other form: in
        // UDP, zero means that there is none.
        let sum = match !ones_complement_sum(&self.bytes[start..]) {
            0 => u16::MAX,
            sum => sum,
        };
        self.bytes[place..place + 2].copy_from_slice(&sum.to_be_bytes());
        self.left = Ethernet::new_zeroed();
    }

    fn divide(&self, take: &mut dyn FnMut(EthernetFrame)) -> Result<(), OffloadError> {
        let layout = self.layout().ok_or(OffloadError)?;
        let (headers, data) = self.bytes.split_at(layout.data);
        let size = usize::from(self.left.segment_bytes.get()).max(1);
        let count = data.len().div_ceil(size).max(1);
        for index in 0..count {
            let (from, to) = (index * size, data.len().min((index + 1) * size));
            let mut bytes = Vec::with_capacity(headers.len() + to - from);
            bytes.extend_from_slice(headers);
            bytes.extend_from_slice(&data[from..to]);
            layout.number(&mut bytes, from, index, index + 1 == count);
            take(EthernetFrame {
                left: Ethernet::new_zeroed(),
                bytes,
            });
        }
        Ok(())
    }

    /// Finds the headers of a segment. `None`: it is none, or does not end where the frame does.
    fn layout(&self) -> Option<Layout> {
        let segmentation = self.segmentation();
        // One tag of a virtual network may stand in front.
        let tag = match self.bytes.get(12..14)? {
            [0x81, 0x00] => 4,
            _ => 0,
        };
        let kind = self.bytes.get(12 + tag..14 + tag)?;
        let network = ETHERNET_HEADER + tag;
        let packet = self.bytes.get(network..)?;
        let (kinds, length, protocol, source, destination) = match segmentation {
            Segmentation::Tcp4 => {
                let ip = Ipv4Packet::new_checked(packet).ok()?;
                let ends = (IpAddress::from(ip.src_addr()), ip.dst_addr().into());
                let length = usize::from(ip.header_len());
                ([0x08, 0x00], length, ip.next_header(), ends.0, ends.1)
            }
            Segmentation::Tcp6 => {
                let ip = Ipv6Packet::new_checked(packet).ok()?;
                let ends = (IpAddress::from(ip.src_addr()), ip.dst_addr().into());
                let next = ip.next_header();
                ([0x86, 0xdd], IPV6_HEADER_LEN, next, ends.0, ends.1)
            }
            Segmentation::None => return None,
        };
        let tcp = network + length;
        let header = TcpPacket::new_checked(self.bytes.get(tcp..)?)
            .ok()?
            .header_len();
        (kind == kinds && protocol == IpProtocol::Tcp).then_some(Layout {
            segmentation,
            network,
            tcp,
            data: tcp + usize::from(header),
            source,
            destination,
        })
    }
}

impl Layout {
    /// Makes headers that were copied those of the part `index`, whose data begins at `from`.
    fn number(&self, bytes: &mut [u8], from: usize, index: usize, is_last: bool) {
        let (front, tcp) = bytes.split_at_mut(self.tcp);
        let (length, header) = (tcp.len(), &mut front[self.network..]);
        match self.segmentation {
            Segmentation::Tcp4 => {
                let mut ip = Ipv4Packet::new_unchecked(header);
                let size = usize::from(ip.header_len()) + length;
                ip.set_total_len(size as u16);
                ip.set_ident(ip.ident().wrapping_add(index as u16));
                ip.fill_checksum();
            }
            Segmentation::Tcp6 | Segmentation::None => {
                Ipv6Packet::new_unchecked(header).set_payload_len(length as u16);
            }
        }
        let mut tcp = TcpPacket::new_unchecked(tcp);
        tcp.set_seq_number(TcpSeqNumber(tcp.seq_number().0.wrapping_add(from as i32)));
        if !is_last {
            tcp.set_fin(false);
            tcp.set_psh(false);
        }
        if index > 0 {
            tcp.set_cwr(false);
        }
        tcp.fill_checksum(&self.source, &self.destination);
    }
}

/// The sum that RFC 1071 inverts.
fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| match *word {
        [high, low] => u64::from(u16::from_be_bytes([high, low])),
        [high] => u64::from(high) << 8,
        _ => 0,
    });
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SOURCE4: [u8; 4] = [10, 71, 0, 1];
    const DESTINATION4: [u8; 4] = [10, 71, 0, 2];

    /// A segment as a guest's kernel leaves it: the field of the checksum has the sum of the pseudo
    /// header, as the whole segment has.
    fn segment(is_v4: bool, tag: bool, options: usize, data: &[u8], size: u16) -> EthernetFrame {
        let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        if tag {
            bytes.extend([0x81, 0, 0, 7]);
        }
        let tcp_bytes = 20 + options * 4;
        let (source, destination): (IpAddress, IpAddress);
        if is_v4 {
            bytes.extend([0x08, 0]);
            let mut ip = Ipv4Packet::new_unchecked(vec![0; 20]);
            ip.set_version(4);
            ip.set_header_len(20);
            ip.set_total_len((20 + tcp_bytes + data.len()) as u16);
            ip.set_ident(0xffff);
            ip.set_hop_limit(64);
            ip.set_next_header(IpProtocol::Tcp);
            ip.set_src_addr(SOURCE4.into());
            ip.set_dst_addr(DESTINATION4.into());
            ip.fill_checksum();
            (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
            bytes.extend(ip.into_inner());
        } else {
            bytes.extend([0x86, 0xdd]);
            let mut ip = Ipv6Packet::new_unchecked(vec![0; IPV6_HEADER_LEN]);
            ip.set_version(6);
            ip.set_payload_len((tcp_bytes + data.len()) as u16);
            ip.set_hop_limit(64);
            ip.set_next_header(IpProtocol::Tcp);
            ip.set_src_addr([1; 16].into());
            ip.set_dst_addr([2; 16].into());
            (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
            bytes.extend(ip.into_inner());
        }
        let start = bytes.len();
        let mut tcp = TcpPacket::new_unchecked(vec![0; tcp_bytes + data.len()]);
        tcp.set_src_port(1);
        tcp.set_dst_port(2);
        tcp.set_seq_number(TcpSeqNumber(-5));
        tcp.set_header_len(tcp_bytes as u8);
        tcp.set_ack(true);
        tcp.set_psh(true);
        tcp.set_fin(true);
        tcp.set_cwr(true);
        tcp.payload_mut().copy_from_slice(data);
        tcp.fill_checksum(&source, &destination);
        let mut tcp = tcp.into_inner();
        // What is missing is the sum of all but the pseudo header.
        let filled = u16::from_be_bytes([tcp[16], tcp[17]]);
        tcp[16..18].fill(0);
        let sum = !filled;
        let rest = !ones_complement_sum(&tcp);
        let pseudo = u32::from(sum) + u32::from(rest);
        tcp[16..18].copy_from_slice(&((pseudo >> 16) as u16 + pseudo as u16).to_be_bytes());
        bytes.extend(tcp);
        let mut left = Ethernet::new_zeroed();
        left.needs_checksum = 1;
        left.checksum_start = (start as u16).into();
        left.checksum_offset = 16.into();
        if size > 0 {
            let kind = if is_v4 {
                Segmentation::Tcp4
            } else {
                Segmentation::Tcp6
            };
            left.segmentation = kind as u8;
            left.segment_bytes = size.into();
        }
        EthernetFrame::new(left, bytes).unwrap()
    }

    /// Checks all that a receiver checks. Returns number, flags and data of the TCP packet.
    fn received(frame: &EthernetFrame, is_v4: bool, tag: bool) -> (i32, [bool; 3], Vec<u8>) {
        assert_eq!(frame.left, Ethernet::new_zeroed(), "nothing is left to do");
        let packet = &frame.bytes[ETHERNET_HEADER + usize::from(tag) * 4..];
        let (source, destination, tcp): (IpAddress, IpAddress, &[u8]) = if is_v4 {
            let ip = Ipv4Packet::new_checked(packet).unwrap();
            assert!(ip.verify_checksum());
            assert_eq!(usize::from(ip.total_len()), packet.len());
            (ip.src_addr().into(), ip.dst_addr().into(), &packet[20..])
        } else {
            let ip = Ipv6Packet::new_checked(packet).unwrap();
            assert_eq!(
                usize::from(ip.payload_len()) + IPV6_HEADER_LEN,
                packet.len()
            );
            (ip.src_addr().into(), ip.dst_addr().into(), &packet[40..])
        };
        let tcp = TcpPacket::new_checked(tcp).unwrap();
        assert!(tcp.verify_checksum(&source, &destination));
        let flags = [tcp.psh(), tcp.fin(), tcp.cwr()];
        (tcp.seq_number().0, flags, tcp.payload().to_vec())
    }

    fn finished(frame: EthernetFrame, offloads: Offloads) -> Vec<EthernetFrame> {
        let mut frames = Vec::new();
        frame.finish(offloads, |frame| frames.push(frame)).unwrap();
        frames
    }

    proptest! {
        #[test]
        fn a_divided_segment_is_what_tcp_would_have_sent(
            is_v4: bool, tag: bool, options in 0usize..=10, size in 100u16..3_000,
            data in prop::collection::vec(any::<u8>(), 0..20_000),
        ) {
            let frames = finished(segment(is_v4, tag, options, &data, size), Offloads::NONE);
            let count = frames.len();
            let mut joined = Vec::new();
            for (index, frame) in frames.iter().enumerate() {
                let (number, [psh, fin, cwr], part) = received(frame, is_v4, tag);
                prop_assert_eq!(number, (joined.len() as i32).wrapping_sub(5));
                prop_assert_eq!([psh, fin, cwr], [index + 1 == count, index + 1 == count, index == 0]);
                prop_assert!(part.len() <= usize::from(size));
                joined.extend(part);
            }
            prop_assert_eq!(joined, data);
        }

        #[test]
        fn a_missing_checksum_is_filled_in(is_v4: bool, data in prop::collection::vec(any::<u8>(), 0..3_000)) {
            let frames = finished(segment(is_v4, false, 0, &data, 0), Offloads::NONE);
            prop_assert_eq!(frames.len(), 1);
            let (_, flags, part) = received(&frames[0], is_v4, false);
            prop_assert_eq!((flags, part), ([true; 3], data));
        }

        /// A guest writes what it likes (X8).
        #[test]
        fn any_frame_is_finished_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            left: [u8; 8], kind in 0u8..6, missing in 0u8..3, v4: bool,
        ) {
            let mut all = Ethernet::new_zeroed();
            all.needs_checksum = missing;
            all.segmentation = kind;
            all.segment_bytes = u16::from_le_bytes([left[0], left[1] % 2]).into();
            all.checksum_start = u16::from(left[2]).into();
            all.checksum_offset = u16::from(left[3] % 64).into();
            let mut bytes = bytes;
            if let Some(kind) = bytes.get_mut(12..14) {
                kind.copy_from_slice(if v4 { &[8, 0] } else { &[0x86, 0xdd] });
            }
            if let Ok(frame) = EthernetFrame::new(all, bytes) {
                let _ = frame.finish(Offloads::NONE, |frame| {
                    assert_eq!(frame.left, Ethernet::new_zeroed());
                });
            }
        }
    }

    #[test]
    fn what_a_receiver_does_itself_is_left_to_it() {
        let long = segment(true, false, 0, &[7; 5_000], 1_000);
        let all = Offloads {
            checksum: true,
            tcp4: true,
            tcp6: true,
        };
        assert_eq!(finished(long.clone(), all), std::slice::from_ref(&long));
        let no_tcp4 = Offloads { tcp4: false, ..all };
        assert_eq!(finished(long.clone(), no_tcp4).len(), 5);
        // A long segment without checksum: each part gets one.
        let no_checksum = Offloads {
            checksum: false,
            ..all
        };
        assert_eq!(finished(long, no_checksum).len(), 5);
    }

    #[test]
    fn a_checksum_of_zero_does_not_say_that_there_is_none() {
        let mut left = Ethernet::new_zeroed();
        left.needs_checksum = 1;
        left.checksum_start = 14.into();
        let mut bytes = vec![0; 16];
        bytes[14..].copy_from_slice(&[0xff, 0xff]);
        let frames = finished(EthernetFrame::new(left, bytes).unwrap(), Offloads::NONE);
        assert_eq!(frames[0].bytes[14..], [0xff, 0xff]);
    }
}
