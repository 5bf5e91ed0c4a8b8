//! A capture as pcapng: docs/capture.md says what is in it.
//!
//! The interface of a link is described before its first frame. A packet is a
//! [`PseudoHeader`], then the frame as in [`qnic_abi::wire`], little-endian, cut to the snap
//! length. What happened to a frame that did not simply pass is also a comment.

use std::borrow::Cow;
use std::collections::btree_map::{BTreeMap, Entry};
use std::io::Write;
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::{DataLink, Endianness, PcapError};
use qnic_abi::NodeId;
use qnic_links::{Outcome, TapFlags};
use qnic_nic::Time;
use zerocopy::little_endian::U16;
use zerocopy::{Immutable, IntoBytes};

use super::queue::{Link, Record};
use super::Names;

const VERSION: u8 = 1;

/// Nanoseconds, as `if_tsresol` says it: 10 to the minus ninth.
const NANOSECONDS: u8 = 9;

// Values of epb_flags.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
const CRC_ERROR: u32 = 1 << 24;

/// What a packet begins with: `outcome` is an [`Outcome`], `flags` are [`TapFlags`], and the
/// link is given by the numbers of its ends.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct PseudoHeader {
    version: u8,
    outcome: u8,
    flags: U16,
    from: U16,
    to: U16,
}

const PSEUDO_BYTES: u32 = size_of::<PseudoHeader>() as u32;
const _: () = assert!(PSEUDO_BYTES == 8);

pub(super) struct CaptureFile<'a, W: Write> {
    writer: PcapNgWriter<W>,
    names: &'a Names,
    /// Wall-clock time of the engine's time 0.
    epoch: Duration,
    snaplen: u32,
    interfaces: BTreeMap<Link, Interface>,
    last: Time,
}

#[derive(Debug, Clone, Copy)]
struct Interface {
    number: u32,
    frames: u64,
}

impl<'a, W: Write> CaptureFile<'a, W> {
    pub(super) fn new(
        writer: W,
        names: &'a Names,
        epoch: Duration,
        snaplen: u32,
    ) -> Result<Self, PcapError> {
        let application = concat!("qnic ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            // The crate writes the two halves of a time of statistics in the order of
            // the format only in this byte order.
            endianness: Endianness::Big,
            options: vec![SectionHeaderOption::UserApplication(application.into())],
            ..SectionHeaderBlock::default()
        };
        Ok(CaptureFile {
            writer: PcapNgWriter::with_section_header(writer, section)?,
            names,
            epoch,
            snaplen,
            interfaces: BTreeMap::new(),
            last: Time(0),
        })
    }

    pub(super) fn get_mut(&mut self) -> &mut W {
        self.writer.get_mut()
    }

    pub(super) fn frame(&mut self, record: &Record) -> Result<(), PcapError> {
        let interface = self.interface(record.link)?;
        interface.frames += 1;
        let interface_id = interface.number;
        self.last = self.last.max(record.at);
        let header = PseudoHeader {
            version: VERSION,
            outcome: record.outcome as u8,
            flags: record.flags.bits().into(),
            from: record.link.0 .0.into(),
            to: record.link.1 .0.into(),
        };
        let mut data = Vec::with_capacity(size_of::<PseudoHeader>() + record.bytes.len());
        data.extend_from_slice(header.as_bytes());
        data.extend_from_slice(&record.bytes);
        self.writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id,
            timestamp: self.wall(record.at),
            original_len: record.length.saturating_add(PSEUDO_BYTES),
            data: Cow::Owned(data),
            options: options(record),
        })?;
        Ok(())
    }

    /// Writes the statistics; `lost` are frames that are missing in the capture.
    pub(super) fn finish(mut self, lost: &BTreeMap<Link, u64>) -> Result<W, PcapError> {
        for link in lost.keys() {
            self.interface(*link)?;
        }
        let timestamp = u64::try_from(self.wall(self.last).as_nanos()).unwrap_or(u64::MAX);
        for (link, interface) in &self.interfaces {
            let lost = lost.get(link).copied().unwrap_or(0);
            let received = interface.frames.saturating_add(lost);
            self.writer.write_pcapng_block(InterfaceStatisticsBlock {
                interface_id: interface.number,
                timestamp,
                options: vec![
                    InterfaceStatisticsOption::IsbIfRecv(received),
                    InterfaceStatisticsOption::IsbIfDrop(lost),
                ],
            })?;
        }
        Ok(self.writer.into_inner())
    }

    fn wall(&self, time: Time) -> Duration {
        self.epoch.saturating_add(Duration::from_nanos(time.0))
    }

    /// The interface of a link, described now if it is new.
    fn interface(&mut self, link: Link) -> Result<&mut Interface, PcapError> {
        let number = self.interfaces.len() as u32;
        match self.interfaces.entry(link) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let (from, to) = (name(self.names, link.0), name(self.names, link.1));
                let description = format!("qnic link from node {} to {}", link.0 .0, link.1 .0);
                self.writer.write_pcapng_block(InterfaceDescriptionBlock {
                    linktype: DataLink::USER0,
                    snaplen: self.snaplen.saturating_add(PSEUDO_BYTES),
                    options: vec![
                        InterfaceDescriptionOption::IfName(format!("{from}>{to}").into()),
                        InterfaceDescriptionOption::IfDescription(description.into()),
                        InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                    ],
                })?;
                Ok(new.insert(Interface { number, frames: 0 }))
            }
        }
    }
}

fn name(names: &Names, node: NodeId) -> Cow<'_, str> {
    match names.get(&node) {
        Some(name) => name.into(),
        None => format!("node{}", node.0).into(),
    }
}

fn options(record: &Record) -> Vec<EnhancedPacketOption<'static>> {
    let mut flags = match record.flags.contains(TapFlags::FOREIGN) {
        true => INBOUND,
        false => OUTBOUND,
    };
    if record.flags.contains(TapFlags::CORRUPTED) {
        flags |= CRC_ERROR;
    }
    let mut options = vec![EnhancedPacketOption::Flags(flags)];
    let outcome = match record.outcome {
        Outcome::Passes => None,
        Outcome::Lost => Some("lost"),
        Outcome::Cut => Some("dropped: partition"),
        Outcome::Overflowed => Some("dropped: queue full"),
        Outcome::Refused => Some("dropped: destination not running"),
        Outcome::CutInTransit => Some("dropped in transit: partition"),
    };
    let effects = [
        (TapFlags::DUPLICATED, "duplicated"),
        (TapFlags::REORDERED, "reordered"),
        (TapFlags::CORRUPTED, "corrupted"),
    ];
    let effects = effects.into_iter();
    let effects = effects.filter_map(|(flag, word)| record.flags.contains(flag).then_some(word));
    let words: Vec<_> = outcome.into_iter().chain(effects).collect();
    if !words.is_empty() {
        options.push(EnhancedPacketOption::Comment(words.join(", ").into()));
    }
    if record.gap > 0 {
        options.push(EnhancedPacketOption::DropCount(record.gap));
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};
    use proptest::prelude::*;

    const SNAPLEN: u32 = 200;

    fn names() -> Names {
        Names::from([(NodeId(0), "a".to_owned()), (NodeId(1), "b".to_owned())])
    }

    fn record(link: (u16, u16)) -> Record {
        Record {
            at: Time(7),
            link: (NodeId(link.0), NodeId(link.1)),
            outcome: Outcome::Passes,
            flags: TapFlags::empty(),
            length: 120,
            bytes: vec![9; 120],
            gap: 0,
        }
    }

    /// Writes, and reads back with the crate.
    fn blocks(
        records: &[Record],
        lost: &BTreeMap<Link, u64>,
        epoch: Duration,
    ) -> Vec<Block<'static>> {
        let names = names();
        let mut file = CaptureFile::new(Vec::new(), &names, epoch, SNAPLEN).unwrap();
        for record in records {
            file.frame(record).unwrap();
        }
        let bytes = file.finish(lost).unwrap();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        std::iter::from_fn(|| Some(reader.next_block()?.unwrap().into_owned())).collect()
    }

    #[test]
    fn links_are_described_before_their_frames_and_counted_at_the_end() {
        let lost = BTreeMap::from([((NodeId(0), NodeId(1)), 3), ((NodeId(7), NodeId(0)), 4)]);
        let records = [record((0, 1)), record((1, 0)), record((0, 1))];
        let mut shape = String::new();
        for block in blocks(&records, &lost, Duration::ZERO) {
            match block {
                Block::InterfaceDescription(block) => {
                    assert_eq!(block.linktype, DataLink::USER0);
                    assert_eq!(block.snaplen, SNAPLEN + 8);
                    let resolution = InterfaceDescriptionOption::IfTsResol(9);
                    assert!(block.options.contains(&resolution));
                    let InterfaceDescriptionOption::IfName(name) = &block.options[0] else {
                        panic!("{block:?}");
                    };
                    shape += &format!("[{name}]");
                }
                Block::EnhancedPacket(block) => shape += &block.interface_id.to_string(),
                Block::InterfaceStatistics(block) => {
                    use InterfaceStatisticsOption::{IsbIfDrop, IsbIfRecv};
                    let [IsbIfRecv(received), IsbIfDrop(lost)] = block.options[..] else {
                        panic!("{block:?}");
                    };
                    shape += &format!(" {}:{received},{lost},", block.interface_id);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(shape, "[a>b]0[b>a]10[node7>a] 0:5,3, 1:1,0, 2:4,4,");
    }

    #[test]
    fn outcomes_are_recorded() {
        let dropped = Record {
            outcome: Outcome::Lost,
            flags: TapFlags::CORRUPTED | TapFlags::FOREIGN,
            gap: 2,
            ..record((0, 1))
        };
        let expected = [
            EnhancedPacketOption::Flags(CRC_ERROR | INBOUND),
            EnhancedPacketOption::Comment("lost, corrupted".into()),
            EnhancedPacketOption::DropCount(2),
        ];
        assert_eq!(options(&dropped), expected);
        let plain = [EnhancedPacketOption::Flags(OUTBOUND)];
        assert_eq!(options(&record((0, 1))), plain);
    }

    fn any_record() -> impl Strategy<Value = Record> {
        use Outcome::{Cut, CutInTransit, Lost, Overflowed, Passes, Refused};
        let outcomes = vec![Passes, Lost, Cut, Overflowed, Refused, CutInTransit];
        let outcome = (prop::sample::select(outcomes), 0u16..16, 0u64..3);
        let bytes = (
            prop::collection::vec(any::<u8>(), 0..SNAPLEN as usize),
            0u32..5000,
        );
        (outcome, bytes, (0u16..4, 0u16..4), 0..1u64 << 50).prop_map(
            |((outcome, flags, gap), (bytes, more), link, at)| Record {
                at: Time(at),
                outcome,
                flags: TapFlags::from_bits_truncate(flags),
                length: bytes.len() as u32 + more,
                bytes,
                gap,
                ..record(link)
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Every frame is read back as it was: time, link, verdict, bytes.
        #[test]
        fn frames_are_read_back(records in prop::collection::vec(any_record(), 0..20)) {
            let epoch = Duration::new(1_700_000_000, 123);
            let blocks = blocks(&records, &BTreeMap::new(), epoch);
            let packets = blocks.into_iter().filter_map(Block::into_enhanced_packet);
            let packets: Vec<_> = packets.collect();
            prop_assert_eq!(packets.len(), records.len());
            for (packet, record) in packets.into_iter().zip(&records) {
                prop_assert_eq!(packet.timestamp, epoch + Duration::from_nanos(record.at.0));
                prop_assert_eq!(packet.original_len, record.length + 8);
                prop_assert_eq!(packet.data[8..].to_vec(), record.bytes.clone());
                let number = |at: usize| u16::from_le_bytes([packet.data[at], packet.data[at + 1]]);
                prop_assert_eq!(packet.data[..2].to_vec(), vec![1, record.outcome as u8]);
                prop_assert_eq!(number(2), record.flags.bits());
                prop_assert_eq!((number(4), number(6)), (record.link.0.0, record.link.1.0));
                prop_assert_eq!(&packet.options, &options(record));
            }
        }
    }
}
