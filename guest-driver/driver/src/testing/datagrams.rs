//! The datagram side of the fake NIC: it reads the driver's commands, and its packets come
//! back on a wire that a test can impair.

use core::sync::atomic::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::vec::Vec;

use qnic_abi::command::{CommandHeader, Descriptor, COMMAND_BYTES, DESCRIPTOR_BYTES};
use qnic_abi::control::PROCESS_DRIVER;
use qnic_abi::datagram::{
    Datagram, DatagramPostCommand, DatagramSendCommand, DatagramWithdrawCommand, Opcode, PostFlags,
    WithdrawFlags, MAX_DATA,
};
use qnic_abi::event::Kind;
use qnic_abi::host_area::{
    completion_offset, CompletionEntry, CompletionKind, COMPLETIONS_WAITING, COMPLETION_ENTRIES,
    COMPLETION_TAIL, HEAD, HOST_PAGES,
};
use qnic_abi::window::{command_offset, COMPLETION_HEAD, SIGNAL_WAKE_REQUEST, WAKE_REQUEST};
use qnic_abi::{SharedMemory, Status, VniId, PAGE_SIZE};
use zerocopy::{FromBytes, IntoBytes};

use super::{event, geometry, Fake};
use crate::platform::DeviceMemory;
use crate::Driver;

/// A packet on the wire.
#[derive(Debug, Clone)]
pub(crate) struct Packet {
    pub(crate) from: u16,
    pub(crate) from_port: u16,
    pub(crate) to_port: u16,
    pub(crate) body: Datagram,
    pub(crate) data: Vec<u8>,
}

struct Posted {
    command: DatagramPostCommand,
}

/// The NIC.
pub(crate) struct DatagramNic {
    fake: Fake,
    vni: u16,
    area: [u64; HOST_PAGES],
    window: usize,
    next: u64,
    tail: u64,
    posted: BTreeMap<u16, VecDeque<Posted>>,
    /// Wake requests that were answered: for anything, and for solicited events only.
    wakes_seen: [u64; 2],
    changed: bool,
    signalled: bool,
    /// Completions that have no room.
    waiting: VecDeque<CompletionEntry>,
    /// Packets that were sent and not delivered.
    pub(crate) wire: VecDeque<Packet>,
    /// Most bytes that the route carries.
    pub(crate) max_payload: usize,
    /// Most buffers.
    pub(crate) max_posted: usize,
    /// The status of every send, in place of Ok.
    pub(crate) send_status: Status,
    /// Packets that found no buffer.
    pub(crate) dropped: u32,
    /// Nodes that do not answer.
    pub(crate) dead: Vec<u16>,
    /// Packets to them: handle, node and port.
    pub(crate) held: Vec<(u64, (u16, u16))>,
}

impl DatagramNic {
    /// The NIC of a driver that has bound a port.
    pub(crate) fn new(fake: &Fake) -> Self {
        let nic = fake.nic();
        let driver = nic
            .processes
            .iter()
            .find(|(_, process)| process.flags.get() == PROCESS_DRIVER);
        let (vni, process) = driver.expect("the driver is registered");
        DatagramNic {
            vni: *vni,
            area: process.host_area.map(|address| address.get()),
            window: geometry().window_offset(VniId(*vni)),
            fake: fake.clone(),
            next: 0,
            tail: 0,
            posted: BTreeMap::new(),
            wakes_seen: [0; 2],
            changed: false,
            signalled: false,
            waiting: VecDeque::new(),
            wire: VecDeque::new(),
            max_payload: MAX_DATA,
            max_posted: usize::MAX,
            send_status: Status::Ok,
            dropped: 0,
            dead: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Ends the first packets to a node that does not answer.
    pub(crate) fn give_up(&mut self, node: u16, count: usize) {
        self.end_held(node, count, Status::PeerGone);
    }

    /// A node answers again: waiting packets to it are sent, and lost.
    pub(crate) fn give_in(&mut self, node: u16) {
        self.end_held(node, usize::MAX, Status::Ok);
    }

    fn end_held(&mut self, node: u16, count: usize, status: Status) {
        let held = core::mem::take(&mut self.held);
        let (ended, rest): (Vec<_>, Vec<_>) = held.into_iter().partition(|it| it.1 .0 == node);
        let (ended, left) = ended.split_at(count.min(ended.len()));
        self.held = [left, &rest].concat();
        for (handle, to) in ended {
            self.complete(CompletionKind::DatagramSend, *handle, status, *to, 0);
        }
    }

    /// Buffers that the NIC has.
    pub(crate) fn posted(&self) -> usize {
        self.posted.values().map(VecDeque::len).sum()
    }

    /// The number of posted buffers that are not steered.
    pub(crate) fn posted_plain(&self) -> usize {
        let posted = self.posted.values().flatten();
        posted.filter(|it| it.command.flags.get() == 0).count()
    }

    /// Reads all commands in the queue; returns true if there were any.
    pub(crate) fn read_commands(&mut self) -> bool {
        let start = self.next;
        self.flush();
        loop {
            let slot = self.window + command_offset(self.next);
            let sram = self.fake.sram.clone();
            if sram.load_u64(slot, Ordering::Acquire) == 0 {
                break;
            }
            let mut words = [0; COMMAND_BYTES / 8];
            sram.read_words(slot, &mut words);
            sram.store_u64(slot, 0, Ordering::Relaxed);
            self.next += 1;
            let (command, inline) = words.as_bytes().split_at(DESCRIPTOR_BYTES);
            self.execute(&Descriptor::read_from_bytes(command).unwrap(), inline);
        }
        self.store(HEAD, self.next);
        self.next != start
    }

    fn execute(&mut self, command: &Descriptor, inline: &[u8]) {
        match Opcode::try_from(command.header.opcode).unwrap() {
            Opcode::DatagramSend => self.send(&command.read(), &command.header, inline),
            Opcode::DatagramPost => {
                let command: DatagramPostCommand = command.read();
                // Both must be memory, in one piece.
                let (memory, offset) = self.fake.pages.at(command.address.get());
                let _ = self.fake.pages.at(command.record.get());
                let length = usize::from(command.length.get());
                assert!(length <= MAX_DATA && offset + length <= memory.size());
                if self.posted() >= self.max_posted {
                    let handle = command.handle.get();
                    let kind = CompletionKind::DatagramReceive;
                    self.complete(kind, handle, Status::Exhausted, (0, 0), 0);
                    return;
                }
                let port = self.posted.entry(command.port.get()).or_default();
                port.push_back(Posted { command });
            }
            Opcode::DatagramWithdraw => {
                let command: DatagramWithdrawCommand = command.read();
                let all = command.flags.get() == WithdrawFlags::ALL.bits();
                let posted = self.posted.entry(command.port.get()).or_default();
                let taken: Vec<u64> = posted
                    .iter()
                    .map(|it| it.command.handle.get())
                    .filter(|handle| all || *handle == command.handle.get())
                    .collect();
                posted.retain(|it| !taken.contains(&it.command.handle.get()));
                for handle in taken {
                    let kind = CompletionKind::DatagramReceive;
                    self.complete(kind, handle, Status::Cancelled, (0, 0), 0);
                }
            }
        }
    }

    fn send(&mut self, command: &DatagramSendCommand, header: &CommandHeader, inline: &[u8]) {
        let length = usize::from(command.length.get());
        let mut data = std::vec![0; length];
        if length > 0 {
            let (page, offset) = self.fake.pages.at(command.address.get());
            page.read_bytes(offset, &mut data);
        }
        let header_length = usize::from(header.inline_length);
        let mut bytes = [0; 40];
        bytes[..header_length].copy_from_slice(&inline[..header_length]);
        let packet = Packet {
            from: 7,
            from_port: command.source_port.get(),
            to_port: header.remote_port.get(),
            body: Datagram {
                target: command.target,
                sequence: command.sequence,
                fragment: command.fragment,
                flags: command.flags,
                header_length: header.inline_length,
                header: zerocopy::transmute!(bytes),
            },
            data,
        };
        let status = match length > self.max_payload {
            true => Status::BadLength,
            false => self.send_status,
        };
        let to = (header.remote_node.get(), header.remote_port.get());
        if self.dead.contains(&to.0) {
            self.held.push((command.handle.get(), to));
            return;
        }
        if status == Status::Ok {
            self.wire.push_back(packet);
        }
        let kind = CompletionKind::DatagramSend;
        self.complete(kind, command.handle.get(), status, to, length);
    }

    /// Delivers a packet.
    pub(crate) fn deliver(&mut self, packet: &Packet) {
        let target = packet.body.target.get();
        let posted = self.posted.entry(packet.to_port).or_default();
        let steered = |it: &Posted| it.command.flags.get() == PostFlags::STEERED.bits();
        let found = posted.iter().position(|it| match target {
            0 => !steered(it),
            handle => steered(it) && it.command.handle.get() == handle,
        });
        let length = packet.data.len();
        let found = found.filter(|at| length <= posted[*at].command.length.get().into());
        let Some(Posted { command }) = found.and_then(|at| posted.remove(at)) else {
            self.dropped += 1;
            return;
        };
        let (page, offset) = self.fake.pages.at(command.address.get());
        page.write_bytes(offset, &packet.data);
        let (page, offset) = self.fake.pages.at(command.record.get());
        page.write_bytes(offset, packet.body.as_bytes());
        let from = (packet.from, packet.from_port);
        let kind = CompletionKind::DatagramReceive;
        self.complete(kind, command.handle.get(), Status::Ok, from, length);
    }

    /// Stores a completion.
    pub(crate) fn complete(
        &mut self,
        kind: CompletionKind,
        handle: u64,
        status: Status,
        (node, port): (u16, u16),
        length: usize,
    ) {
        let entry = CompletionEntry {
            handle: handle.into(),
            length: (length as u64).into(),
            status: status.code().into(),
            node: node.into(),
            port: port.into(),
            kind: kind as u8,
            ..Default::default()
        };
        self.signalled |= kind == CompletionKind::DatagramReceive || status != Status::Ok;
        self.waiting.push_back(entry);
        self.flush();
    }

    /// Stores the completions that there is room for.
    fn flush(&mut self) {
        let head = self.window + COMPLETION_HEAD;
        let head = self.fake.sram.load_u64(head, Ordering::Acquire);
        while self.tail - head < COMPLETION_ENTRIES {
            let Some(entry) = self.waiting.pop_front() else {
                break;
            };
            let words: [u64; 8] = zerocopy::transmute!(entry);
            for (index, word) in words.into_iter().enumerate() {
                self.store(completion_offset(self.tail) + index * 8, word);
            }
            self.tail += 1;
            self.store(COMPLETION_TAIL, self.tail);
            self.changed = true;
        }
        self.store(COMPLETIONS_WAITING, self.waiting.len() as u64);
    }

    fn store(&self, offset: usize, value: u64) {
        let (page, _) = self.fake.pages.at(self.area[offset / PAGE_SIZE]);
        page.store_u64(offset % PAGE_SIZE, value, Ordering::Release);
    }

    /// Raises a wake event if the driver has asked for one and there is a reason.
    pub(crate) fn offer_wake(&mut self, driver: &Driver<Fake>) {
        let changed = core::mem::take(&mut self.changed);
        let signalled = core::mem::take(&mut self.signalled);
        let words = [(WAKE_REQUEST, changed), (SIGNAL_WAKE_REQUEST, signalled)];
        let mut asked = false;
        for ((word, happened), seen) in words.into_iter().zip(&mut self.wakes_seen) {
            if happened {
                let word = self.window + word;
                let request = self.fake.sram.load_u64(word, Ordering::Acquire);
                asked |= core::mem::replace(seen, request) != request;
            }
        }
        if asked {
            let _ = event(driver, Kind::Wake, VniId(self.vni), 0, 0);
        }
    }
}

/// Runs NIC and driver until all is quiet, and sent packets are reaped. `lot` decides the fate of a
/// packet.
pub(crate) fn run(
    driver: &Arc<Driver<Fake>>,
    nic: &mut DatagramNic,
    mut lot: impl FnMut(Packet) -> Vec<Packet>,
) {
    let mut reaped = false;
    loop {
        let mut busy = nic.read_commands();
        while let Some(packet) = nic.wire.pop_front() {
            for packet in lot(packet) {
                nic.deliver(&packet);
            }
            busy = true;
        }
        nic.offer_wake(driver);
        if nic.fake.take_scheduled() {
            driver.serve_datagrams();
            busy = true;
        }
        if busy {
            reaped = false;
        } else if core::mem::replace(&mut reaped, true) {
            return;
        } else {
            driver.serve_datagrams();
        }
    }
}
