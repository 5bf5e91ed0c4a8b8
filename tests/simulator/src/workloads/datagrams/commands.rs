//! Commands of a datagram worker: right ones and wrong ones.

use qnic_abi::client;
use qnic_abi::command::CommandBody;
use qnic_abi::datagram::{
    DatagramPostCommand, PacketFlags, PostFlags, HEADER_CAPACITY, RECORD_BYTES,
};
use qnic_abi::{Status, PAGE_SHIFT, PAGE_SIZE};

use super::oracle::{bytes_of, Buffer, Packet};
use super::{DatagramWorker, Open, BUFFERS, PACKETS, PORTS};
use crate::common::Phase;
use crate::process::worker::QueueWorker;
use crate::process::Result;
use crate::schedule::lock;

/// How long it waits for room in its queue, in nanoseconds.
const ROOM: u64 = 100_000;

/// Makes a command one that is none.
type Spoil = fn(&mut DatagramPostCommand);

const SPOILS: [(Status, Spoil); 6] = [
    (Status::Malformed, |command| command.handle = 0.into()),
    (Status::Malformed, |command| command.port = 0.into()),
    (Status::Malformed, |command| command.flags = 2.into()),
    (Status::Malformed, |command| command.reserved1[2] = 1.into()),
    (Status::BadLength, |command| command.length = 0.into()),
    (Status::BadLength, |command| command.length = 32_769.into()),
];

impl DatagramWorker<'_> {
    fn some_port(&self) -> u16 {
        self.schedule.range(1..u64::from(PORTS) + 1) as u16
    }

    /// Posts a buffer for some port; one in three is steered.
    pub(super) fn post(&mut self) -> Result<()> {
        let steered = self.schedule.chance(333);
        self.post_for(self.some_port(), steered)
    }

    /// Posts a buffer for a port, if a page is free.
    pub(super) fn post_for(&mut self, port: u16, steered: bool) -> Result<()> {
        self.make_room(ROOM)?;
        let Some(page) = self.free_buffers.pop() else {
            return Ok(());
        };
        let (address, record) = self.frames.buffer(page);
        let (offset, length) = match self.schedule.chance(500) {
            true => (0, PAGE_SIZE),
            false => self.some_range(1),
        };
        self.post_buffer(
            page,
            Buffer {
                handle: 0,
                address: address + offset,
                record,
                length: length as u16,
                port,
                steered,
                wrong: false,
                withdrawn: false,
            },
        );
        Ok(())
    }

    /// Some bytes of a page, `least` at least: offset and length.
    fn some_range(&self, least: usize) -> (u64, usize) {
        let longest = match self.schedule.chance(500) {
            true => 200,
            false => PAGE_SIZE,
        };
        let length = least + self.schedule.below(longest);
        let offset = self.schedule.below(PAGE_SIZE - length + 1);
        (offset as u64, length)
    }

    fn post_buffer(&mut self, page: usize, buffer: Buffer) {
        self.frames.fill(&self.context.machine.memory, page);
        let mut oracle = lock(self.oracle);
        let handle = oracle.handle();
        let buffer = Buffer { handle, ..buffer };
        oracle.post(self.slot, buffer);
        drop(oracle);
        self.trace(format_args!("{buffer:?}"));
        self.open.insert(handle, Open::Buffer(page, buffer.port));
        let flags = match buffer.steered {
            true => PostFlags::STEERED,
            false => PostFlags::empty(),
        };
        let command = client::Buffer {
            handle,
            address: buffer.address,
            record: buffer.record,
            length: buffer.length,
            port: buffer.port,
            flags: flags.bits(),
        };
        self.put(&command.descriptor(), &[]);
    }

    /// Posts a buffer that is not in memory, or not all of it, or has no record.
    pub(super) fn post_wrong(&mut self) -> Result<()> {
        self.make_room(ROOM)?;
        let Some(page) = self.free_buffers.pop() else {
            return Ok(());
        };
        let (address, record) = self.frames.buffer(page);
        let end = self.context.machine.geometry.frames << PAGE_SHIFT;
        let wrong = [
            (end, record),
            (end - 50, record),
            (u64::MAX - 99, record),
            (address, end),
            (address, record + RECORD_BYTES as u64 / 2),
        ];
        let (address, record) = wrong[self.schedule.below(wrong.len())];
        let buffer = Buffer {
            handle: 0,
            address,
            record,
            length: 100,
            port: self.some_port(),
            steered: self.schedule.chance(333),
            wrong: true,
            withdrawn: false,
        };
        self.post_buffer(page, buffer);
        Ok(())
    }

    /// Node, port and target of a packet.
    fn some_destination(&self) -> (u16, u16, u64) {
        let nodes = self.common.settings.options.nodes;
        let node = self.schedule.below(nodes) as u16;
        let steered = !self.schedule.chance(100);
        let buffers = lock(self.oracle).buffers(steered);
        if buffers.is_empty() || self.schedule.chance(500) {
            return (node, self.some_port(), 0);
        }
        let (at, port, handle) = buffers[self.schedule.below(buffers.len())];
        match self.schedule.range(0..10) {
            0 => (at, port % PORTS + 1, handle),
            1 => (node, port, handle),
            2 => (at, port, self.schedule.range(1..handle + 1)),
            _ => (at, port, handle),
        }
    }

    /// Sends a packet to some port.
    pub(super) fn send(&mut self) -> Result<()> {
        let (node, port, target) = self.some_destination();
        let (offset, length) = match self.schedule.chance(200) {
            true => (0, 0),
            false => self.some_range(0),
        };
        self.send_to((node, port), target, (offset, length), false)
    }

    /// Sends a packet that says that nothing breaks any more.
    pub(super) fn open_session(&mut self, node: u16) -> Result<()> {
        self.send_to((node, self.some_port()), 0, (0, 1), true)
    }

    fn send_to(
        &mut self,
        to: (u16, u16),
        target: u64,
        (offset, length): (u64, usize),
        opens: bool,
    ) -> Result<()> {
        self.make_room(ROOM)?;
        let Some(page) = self.free_packets.pop() else {
            return Ok(());
        };
        let address = match length {
            0 => 0,
            _ => self.frames.packet(page) + offset,
        };
        let packet = self.packet(to, target, (address, length as u16));
        let data = bytes_of(packet.number, length);
        let memory = &self.context.machine.memory;
        if length > 0 {
            self.frames.store(memory, address, &data);
        }
        let packet = Packet { opens, ..packet };
        self.send_packet(page, packet);
        Ok(())
    }

    /// Sends bytes that are not in memory, or not all of them.
    pub(super) fn send_wrong(&mut self) -> Result<()> {
        self.make_room(ROOM)?;
        let Some(page) = self.free_packets.pop() else {
            return Ok(());
        };
        let (node, port, target) = self.some_destination();
        let end = self.context.machine.geometry.frames << PAGE_SHIFT;
        let wrong = [end, end - 50, u64::MAX - 99];
        let address = wrong[self.schedule.below(wrong.len())];
        let packet = self.packet((node, port), target, (address, 100));
        let wrong = true;
        self.send_packet(page, Packet { wrong, ..packet });
        Ok(())
    }

    fn packet(&self, to: (u16, u16), target: u64, (address, length): (u64, u16)) -> Packet {
        let mut oracle = lock(self.oracle);
        let (handle, number) = (oracle.handle(), oracle.number());
        let header = self.schedule.below(HEADER_CAPACITY + 1);
        Packet {
            handle,
            number,
            from: (
                self.context.machine.incarnation.node as u16,
                self.some_port(),
            ),
            to,
            target,
            fragment: self.schedule.range(0..3) as u16,
            flags: match self.schedule.chance(500) {
                true => PacketFlags::LAST.bits(),
                false => 0,
            },
            header: bytes_of(!number, header),
            address,
            length,
            wrong: false,
            opens: false,
            issued: self.schedule.now(),
            end: None,
            arrived: 0,
        }
    }

    fn send_packet(&mut self, page: usize, packet: Packet) {
        let command = client::Packet {
            handle: packet.handle,
            node: packet.to.0,
            port: packet.to.1,
            source_port: packet.from.1,
            address: packet.address,
            length: packet.length,
            target: packet.target,
            sequence: packet.number,
            fragment: packet.fragment,
            flags: packet.flags,
            header: packet.header.clone(),
        };
        self.trace(format_args!("{packet:?}"));
        self.open.insert(packet.handle, Open::Packet(page));
        lock(self.oracle).send(self.slot, packet);
        self.put(&command.descriptor(), &command.header);
    }

    /// Takes a buffer back; some have left.
    pub(super) fn withdraw(&mut self) -> Result<()> {
        self.make_room(ROOM)?;
        let buffers = self.open.iter().filter_map(|(handle, open)| match open {
            Open::Buffer(_, port) => Some((*handle, *port)),
            Open::Packet(_) => None,
        });
        let buffers: Vec<_> = buffers.collect();
        if buffers.is_empty() {
            return Ok(());
        }
        let (handle, port) = buffers[self.schedule.below(buffers.len())];
        // With another port it is not there.
        let port = if self.schedule.chance(100) {
            port % PORTS + 1
        } else {
            port
        };
        self.trace(format_args!("takes {handle} of port {port} back"));
        lock(self.oracle).withdraw(self.slot, port, Some(handle));
        self.put(&client::withdraw(port, handle), &[]);
        Ok(())
    }

    /// Takes all buffers of some port back.
    pub(super) fn withdraw_all(&mut self) -> Result<()> {
        self.take_all_back(self.some_port())
    }

    /// Takes all buffers of a port back.
    pub(super) fn take_all_back(&mut self, port: u16) -> Result<()> {
        self.make_room(ROOM)?;
        self.trace(format_args!("takes all of port {port} back"));
        lock(self.oracle).withdraw(self.slot, port, None);
        self.put(&client::withdraw_all(port), &[]);
        Ok(())
    }

    /// Issues a command that is malformed, and starts its queue again: it has all its pages.
    pub(super) fn malform(&mut self) -> Result<()> {
        self.make_room(ROOM)?;
        if self.common.phase() != Phase::Work {
            return Ok(());
        }
        let spoil = self.schedule.below(SPOILS.len());
        let mut command = DatagramPostCommand::command();
        command.handle = 1.into();
        command.port = 1.into();
        command.length = 1.into();
        let (expected, change) = SPOILS[spoil];
        change(&mut command);
        self.trace(format_args!("malformed command {spoil}"));
        lock(self.oracle).malform(self.slot);
        self.put(&command.descriptor(), &[]);
        let (oracle, slot) = (self.oracle, self.slot);
        self.restart_queue(expected, || lock(oracle).queue_reset(slot))?;
        self.open.clear();
        self.free_buffers = (0..BUFFERS).collect();
        self.free_packets = (0..PACKETS).collect();
        Ok(())
    }
}
