//! What the NIC's store of a completion says, checked at that instant.

use qnic_abi::client::Record;
use qnic_abi::datagram::RECORD_BYTES;
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::{Status, PAGE_SHIFT, PAGE_SIZE};

use super::{bytes_of, Buffer, DatagramOracle, Packet, FILL};
use crate::machine::memory::Memory;

/// How long the news that a process has ended may take, in nanoseconds.
const NEWS: u64 = 500_000_000;

/// Bytes within a page, as the processor sees them.
fn load(memory: &Memory, address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let offset = address as usize % PAGE_SIZE;
    memory.load((address >> PAGE_SHIFT) as u32, offset, &mut bytes);
    bytes
}

/// Returns true if no NIC has written to memory of a buffer.
fn is_untouched(memory: &Memory, address: u64, length: usize) -> bool {
    let bytes = load(memory, address, length);
    bytes.iter().all(|byte| *byte == FILL)
}

impl DatagramOracle {
    /// A command of a process has completed.
    pub(super) fn completed(&mut self, slot: usize, entry: &CompletionEntry, now: u64) {
        let handle = entry.handle.get();
        if self.processes[slot].forgotten.remove(&handle) {
            return;
        }
        let status = Status::try_from(entry.status.get()).expect("a known status");
        match CompletionKind::try_from(entry.kind) {
            Ok(CompletionKind::DatagramSend) => self.sent(slot, entry, status, now),
            Ok(CompletionKind::DatagramReceive) => self.left(slot, entry, status),
            _ => panic!("process {slot}: a completion of another kind: {entry:?}"),
        }
    }

    /// A packet of a process has ended.
    fn sent(&mut self, slot: usize, entry: &CompletionEntry, status: Status, now: u64) {
        let process = &mut self.processes[slot];
        let Some(number) = process.sends.remove(&entry.handle.get()) else {
            panic!("process {slot}: a packet ends that is not under way: {entry:?}");
        };
        let memory = process.machine().memory.clone();
        let packet = &self.packets[&number];
        packet.take_back(&memory);
        let what = format!("process {slot}: {packet:?}");
        let to = (entry.node.get(), entry.port.get());
        assert_eq!(
            (to, entry.length.get()),
            (packet.to, packet.length.into()),
            "{what}: its completion"
        );
        let well = status == Status::Ok;
        match status {
            Status::Ok => assert!(!packet.wrong, "{what}: its address is wrong"),
            Status::BadAddress => assert!(packet.wrong, "{what}: its address is right"),
            Status::NoSuchNode | Status::PeerGone => {
                assert!(
                    self.may_fail(packet, now),
                    "{what}: it fails for no reason: {status}"
                );
            }
            status => panic!("{what}: it ends with {status}"),
        }
        assert!(well || packet.arrived == 0, "{what}: it fails and arrives");
        let packet = self.packets.get_mut(&number).expect("it is there");
        packet.end = Some(status);
    }

    /// Returns true if the route of a packet, or its receiver, was disturbed.
    fn may_fail(&self, packet: &Packet, now: u64) -> bool {
        let [from, to] = [packet.from.0, packet.to.0].map(usize::from);
        let ended = self.on_node(to).and_then(|process| process.ended);
        let news = ended.is_some_and(|ended| now <= ended + NEWS);
        from != to && (news || self.routes.whole_since(from, to) > packet.issued)
    }

    /// A buffer of a process leaves its NIC.
    fn left(&mut self, slot: usize, entry: &CompletionEntry, status: Status) {
        let most = self.limits.datagram_buffers as usize;
        let process = &mut self.processes[slot];
        let Some(buffer) = process.posted.remove(&entry.handle.get()) else {
            panic!("process {slot}: a buffer leaves that is not posted: {entry:?}");
        };
        let memory = process.machine().memory.clone();
        buffer.take_back(&memory);
        let what = format!("process {slot}: {buffer:?}");
        match status {
            Status::Ok => return self.received(slot, entry, &buffer, &memory),
            Status::BadAddress => assert!(buffer.wrong, "{what}: its addresses are right"),
            Status::Cancelled => assert!(
                buffer.withdrawn,
                "{what}: its process does not take it back"
            ),
            Status::Exhausted => {
                let before = process.posted.range(..buffer.handle);
                let before = before.filter(|(_, it)| !it.wrong).count();
                assert_eq!(before, most, "{what}: buffers that are posted");
            }
            status => panic!("{what}: it leaves with {status}"),
        }
        let untouched = buffer.wrong
            || is_untouched(&memory, buffer.address, buffer.length.into())
                && is_untouched(&memory, buffer.record, RECORD_BYTES);
        assert!(untouched, "{what}: it has no packet, and is written to");
    }

    /// A packet has arrived in a buffer.
    fn received(&mut self, slot: usize, entry: &CompletionEntry, buffer: &Buffer, memory: &Memory) {
        let what = format!("process {slot}: {buffer:?}");
        assert!(!buffer.wrong, "{what}: it has a packet");
        let bytes: [u8; RECORD_BYTES] = load(memory, buffer.record, RECORD_BYTES)
            .try_into()
            .expect("a record");
        let record = Record::read(&bytes).expect("a header that fits");
        let node = self.processes[slot].watched.node;
        let Some(packet) = self.packets.get_mut(&record.sequence) else {
            panic!("{what}: its packet was never sent: {record:?}");
        };
        packet.arrived += 1;
        assert_eq!(packet.to, (node as u16, buffer.port), "{what}: {packet:?}");
        let expected = Record {
            target: packet.target,
            sequence: packet.number,
            fragment: packet.fragment,
            flags: packet.flags,
            header: packet.header.clone(),
        };
        assert_eq!(record, expected, "{what}: its record");
        let source = (entry.node.get(), entry.port.get());
        let length = usize::from(packet.length);
        assert_eq!(source, packet.from, "{what}: the sender of {packet:?}");
        assert_eq!(entry.length.get(), length as u64, "{what}: its length");
        let bytes = load(memory, buffer.address, buffer.length.into());
        let (data, behind) = bytes.split_at(length.min(bytes.len()));
        assert_eq!(data, bytes_of(packet.number, length), "{what}: its data");
        let untouched = behind.iter().all(|byte| *byte == FILL);
        assert!(untouched, "{what}: bytes behind its data are written to");
        let named = if buffer.steered { buffer.handle } else { 0 };
        assert_eq!(packet.target, named, "{what}: the buffer of {packet:?}");
        let copies = match usize::from(packet.from.0) == node {
            true => 1,
            false => self.copies,
        };
        assert!(packet.arrived <= copies, "{what}: how often {packet:?}");
        let failed = packet.end.filter(|end| *end != Status::Ok);
        assert_eq!(failed, None, "{what}: it has failed: {packet:?}");
        let (opens, from) = (packet.opens, usize::from(packet.from.0));
        self.received += 1;
        let process = &mut self.processes[slot];
        let mut before = process.posted.range(..buffer.handle);
        let overtaken = before.find(|(_, it)| it.port == buffer.port && !it.steered);
        let in_turn = buffer.steered || overtaken.is_none();
        assert!(in_turn, "{what}: it is taken before {overtaken:?}");
        if opens {
            process.opened_by.insert(from);
        }
    }
}
