//! The engine against the fake NIC, and against a wire that loses, doubles, reorders and lies.

mod dead;
mod hostile;
mod look_on;
mod lost;
mod stories;

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard};
use std::vec::Vec;

use qnic_abi::counters::CounterSource;
use qnic_abi::datagram::PacketFlags;
use qnic_abi::{NodeId, Status};

use super::*;
use crate::platform::DeviceMemory;
use crate::testing::{counted, run, DatagramNic, Fake, Packet};
use crate::Driver;

/// The data of a message; only its length is printed.
#[derive(PartialEq, Eq)]
struct Bytes(Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let front = &self.0[..self.0.len().min(4)];
        write!(f, "{} bytes, {front:?} …", self.0.len())
    }
}

/// A call of an upper module.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Received {
        from: Address,
        header: Vec<u8>,
        data: Bytes,
        steered: Option<Handle>,
    },
    Sent {
        token: u64,
        failed: usize,
        status: Status,
    },
    Withdrawn(Handle),
    Deadline,
    Gone,
}

/// An upper module that notes its calls.
#[derive(Default)]
struct Notes {
    told: Mutex<Vec<Told>>,
    /// Buffers of the messages that it has, if it is to keep them.
    kept: Mutex<Vec<Data<Fake>>>,
    keeps: AtomicBool,
    /// Posts each steered buffer again when it gets it back.
    expects_again: AtomicBool,
    expected: Mutex<Option<Handle>>,
    /// Answers each message with the same header and data.
    echoes: AtomicBool,
}

impl Notes {
    fn note(&self, told: Told) {
        self.told.lock().unwrap().push(told);
    }

    fn expect_again(&self, port: &Port<Fake>, buffer: Buffer<Fake>) {
        let handle = port.expect(buffer, None).ok();
        *self.expected.lock().unwrap() = handle;
    }

    fn take(&self) -> Vec<Told> {
        core::mem::take(&mut self.told.lock().unwrap())
    }
}

fn bytes_of(data: &Data<Fake>) -> Vec<u8> {
    let mut bytes = std::vec![0; data.len()];
    data.read(0, &mut bytes);
    bytes
}

impl Upper<Fake> for Notes {
    fn received(&self, port: &Port<Fake>, message: Message<Fake>) {
        self.note(Told::Received {
            from: message.from,
            header: message.header.as_bytes().to_vec(),
            data: Bytes(bytes_of(&message.data)),
            steered: message.steered,
        });
        if self.expects_again.load(Ordering::Relaxed) {
            let [buffer, _] = message.data.into_buffers();
            self.expect_again(port, buffer.unwrap());
        } else if self.echoes.load(Ordering::Relaxed) {
            let answer = Outgoing {
                header: message.header,
                data: message.data,
                target: None,
                token: 99,
            };
            port.send(&[message.from], answer)
                .map_err(|(error, _)| error)
                .unwrap();
        } else if self.keeps.load(Ordering::Relaxed) {
            self.kept.lock().unwrap().push(message.data);
        }
    }

    fn sent(&self, _: &Port<Fake>, sent: Sent<Fake>) {
        self.note(Told::Sent {
            token: sent.token,
            failed: sent.failed,
            status: sent.status,
        });
        if self.keeps.load(Ordering::Relaxed) {
            self.kept.lock().unwrap().push(sent.data);
        }
    }

    fn withdrawn(&self, port: &Port<Fake>, handle: Handle, buffer: Buffer<Fake>) {
        self.note(Told::Withdrawn(handle));
        if self.expects_again.load(Ordering::Relaxed) {
            self.expect_again(port, buffer);
        }
    }

    fn deadline(&self, _: &Port<Fake>, _: u64) {
        self.note(Told::Deadline);
    }

    fn gone(&self, _: &Port<Fake>) {
        self.note(Told::Gone);
    }
}

const CONFIG: PortConfig = PortConfig {
    receives: 16,
    steered: 4,
    messages: 8,
};

/// A driver with ports 1 and 2.
struct World {
    fake: Fake,
    driver: Arc<Driver<Fake>>,
    nic: Arc<Mutex<DatagramNic>>,
    notes: [Arc<Notes>; 2],
    ports: [Option<Binding<Fake>>; 2],
}

impl World {
    fn new() -> Self {
        Self::with(CONFIG)
    }

    fn with(config: PortConfig) -> Self {
        Self::of(config, |_, port| port.fill().unwrap())
    }

    /// A world whose ports receive in blocks of so many pages.
    fn with_blocks(config: PortConfig, pages: usize) -> Self {
        Self::of(config, |fake, port| {
            for _ in 0..config.receives {
                assert!(port.give(fake.pages.allocate_block(pages)).is_none());
            }
        })
    }

    fn of(config: PortConfig, fill: impl Fn(&Fake, &Port<Fake>)) -> Self {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        let notes: [Arc<Notes>; 2] = Default::default();
        let bind = |index: usize| {
            let upper = notes[index].clone();
            let number = index as u16 + 1;
            Some(driver.bind_datagrams(number, &config, upper).unwrap())
        };
        let ports = [bind(0), bind(1)];
        let nic = Arc::new(Mutex::new(DatagramNic::new(&fake)));
        let (other, server) = (nic.clone(), driver.clone());
        // While the driver waits for the NIC, the NIC runs.
        fake.on_yield(move |_| {
            run(&server, &mut other.lock().unwrap(), |packet| {
                std::vec![packet]
            })
        });
        let world = World {
            fake,
            driver,
            nic,
            notes,
            ports,
        };
        fill(&world.fake, world.port(0));
        fill(&world.fake, world.port(1));
        world.run();
        world
    }

    fn port(&self, index: usize) -> &Port<Fake> {
        self.ports[index].as_deref().unwrap()
    }

    fn run(&self) {
        self.run_with(|packet| std::vec![packet]);
    }

    fn run_with(&self, lot: impl FnMut(Packet) -> Vec<Packet>) {
        run(&self.driver, &mut self.nic(), lot);
    }

    /// Memory with these bytes.
    fn buffer(&self, bytes: &[u8]) -> Buffer<Fake> {
        let page = self.fake.pages.allocate();
        page.write_bytes(0, bytes);
        Buffer::new(page)
    }

    fn data(&self, bytes: &[u8]) -> Data<Fake> {
        let (front, back) = bytes.split_at(bytes.len().min(4096));
        if front.is_empty() {
            return Data::none();
        }
        let second = (!back.is_empty()).then(|| self.buffer(back));
        Data::new(self.buffer(front), second, bytes.len()).unwrap()
    }

    /// A message in a block.
    fn message_in_block(&self, bytes: &[u8], token: u64) -> Outgoing<Fake> {
        let pages = bytes.len().div_ceil(4096).next_power_of_two();
        let block = self.fake.pages.allocate_block(pages);
        block.write_bytes(0, bytes);
        Outgoing {
            header: Header::NONE,
            data: Data::whole(Buffer::new(block.part(0, bytes.len()))),
            target: None,
            token,
        }
    }

    fn message(&self, header: &[u8], bytes: &[u8], token: u64) -> Outgoing<Fake> {
        Outgoing {
            header: Header::new(header).unwrap(),
            data: self.data(bytes),
            target: None,
            token,
        }
    }

    /// Sends from port 1 to port 2.
    fn send(&self, header: &[u8], bytes: &[u8], token: u64) {
        self.send_to(&[to(2)], self.message(header, bytes, token));
    }

    fn send_to(&self, to: &[Address], message: Outgoing<Fake>) {
        let sent = self.port(0).send(to, message);
        sent.map_err(|(error, _)| error).unwrap();
    }

    /// Sends from port 1 to a steered buffer of port 2.
    fn answer(&self, handle: Handle, header: &[u8], bytes: &[u8]) {
        let mut message = self.message(header, bytes, 1);
        message.target = Some(handle);
        self.send_to(&[to(2)], message);
    }

    /// Posts a steered buffer of port 2, of so many pages.
    fn expect(&self, pages: usize) -> Handle {
        let second = (pages > 1).then(|| self.buffer(&[]));
        self.port(1).expect(self.buffer(&[]), second).unwrap()
    }

    /// Runs until all is quiet: port 1 has sent its message with this token, and port 2 has received it.
    fn run_and_check(&self, token: u64, header: &[u8], bytes: &[u8]) {
        self.run();
        assert_eq!(self.notes[0].take(), [sent(token)]);
        assert_eq!(self.notes[1].take(), [received(1, header, bytes)]);
    }

    fn nic(&self) -> MutexGuard<'_, DatagramNic> {
        self.nic.lock().unwrap()
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        counted(&self.driver, CounterSource::Datagrams)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            core::mem::forget(core::mem::take(&mut self.ports));
            return;
        }
        for port in &mut self.ports {
            *port = None;
        }
    }
}

fn to(port: u16) -> Address {
    let node = NodeId(7);
    Address { node, port }
}

fn bytes(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| (index as u8).wrapping_mul(31) ^ (index >> 8) as u8 ^ seed)
        .collect()
}

fn received(from: u16, header: &[u8], data: &[u8]) -> Told {
    Told::Received {
        from: to(from),
        header: header.to_vec(),
        data: Bytes(data.to_vec()),
        steered: None,
    }
}

fn sent(token: u64) -> Told {
    Told::Sent {
        token,
        failed: 0,
        status: Status::Ok,
    }
}
