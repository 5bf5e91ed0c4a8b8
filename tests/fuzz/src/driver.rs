//! A driver that behaves: it keeps receive buffers of datagrams posted, and looks at what is in
//! them.
//!
//! ```text
//!   page:  │ buffer │ gap │ buffer │ gap │ …        records: one for each
//! ```

use std::collections::BTreeMap;

use qnic_abi::client::{Buffer, Record};
use qnic_abi::datagram::{PostFlags, RECORD_BYTES};
use qnic_abi::host_area::CompletionKind;
use qnic_abi::{Status, PAGE_SIZE};
use qnic_nic::testing::{Datagrams, Net};

use crate::input::Input;

/// Datagram ports that it receives on; the first of them has steered buffers, too.
const PORTS: [u16; 2] = [5, 6];

/// One of them.
pub(crate) fn port(input: &mut Input<'_>) -> u16 {
    PORTS[usize::from(input.byte() % 2)]
}

/// Buffers that it keeps posted, their size, and how far apart they begin.
const BUFFERS: usize = 6;
const LENGTH: usize = 500;
const STEP: usize = 600;

const _: () = assert!(BUFFERS * STEP <= PAGE_SIZE && BUFFERS * RECORD_BYTES <= PAGE_SIZE);

/// The driver of a node.
#[derive(Debug)]
pub(crate) struct Driver {
    datagrams: Datagrams,
    data: u64,
    records: u64,
    /// Handle of what is posted, and its place.
    posted: BTreeMap<u64, usize>,
    last: u64,
}

impl Driver {
    /// The driver of a node, with all its buffers posted.
    pub(crate) fn new(net: &Net, node: usize) -> Self {
        let datagrams = Datagrams::register(net, node, 5).expect("a driver");
        let (data, records) = (datagrams.page(), datagrams.page());
        let mut driver = Driver {
            datagrams,
            data,
            records,
            posted: BTreeMap::new(),
            last: 0,
        };
        for place in 0..BUFFERS {
            driver.post(place);
        }
        net.run();
        driver
    }

    fn post(&mut self, place: usize) {
        self.last += 1;
        let flags = match place % 3 {
            0 => PostFlags::STEERED,
            _ => PostFlags::empty(),
        };
        let buffer = Buffer {
            handle: self.last,
            address: self.data + (place * STEP) as u64,
            record: self.records + (place * RECORD_BYTES) as u64,
            length: LENGTH as u16,
            port: PORTS[usize::from(place % 3 == 2)],
            flags: flags.bits(),
        };
        self.datagrams.write(buffer.address, &[0; LENGTH]);
        self.datagrams.write(buffer.record, &[0; RECORD_BYTES]);
        self.datagrams.party.post(&buffer.descriptor());
        self.posted.insert(self.last, place);
    }

    fn page(&self, address: u64) -> [u8; PAGE_SIZE] {
        let mut bytes = [0; PAGE_SIZE];
        self.datagrams.read(address, &mut bytes);
        bytes
    }

    /// Takes packets out and posts their buffers again. What is in them is a packet that fits, and
    /// nothing behind it. Nothing but buffers and their records is ever written to.
    pub(crate) fn check(&mut self) {
        let (mut data, mut records) = (self.page(self.data), self.page(self.records));
        for entry in self.datagrams.party.completions() {
            let handle = entry.handle.get();
            let place = self.posted.remove(&handle).expect("it was posted");
            assert_eq!(entry.kind, CompletionKind::DatagramReceive as u8);
            assert_eq!(entry.status.get(), Status::Ok.code());
            let length = entry.length.get() as usize;
            assert!(length <= LENGTH, "a packet that fits");
            data[place * STEP..][..length].fill(0);
            let record = &mut records[place * RECORD_BYTES..][..RECORD_BYTES];
            let bytes: &[u8; RECORD_BYTES] = (&*record).try_into().expect("a record");
            let read = Record::read(bytes).expect("a header that fits");
            let named = if place % 3 == 0 { handle } else { 0 };
            assert_eq!(read.target, named, "the buffer of a packet");
            record.fill(0);
        }
        // The completion of a packet may wait for the next poll.
        for place in self.posted.values() {
            data[place * STEP..][..LENGTH].fill(0);
            records[place * RECORD_BYTES..][..RECORD_BYTES].fill(0);
        }
        let untouched = data.iter().chain(&records).all(|byte| *byte == 0);
        assert!(untouched, "memory that no packet is for");
        for place in 0..BUFFERS {
            if !self.posted.values().any(|posted| *posted == place) {
                self.post(place);
            }
        }
    }
}
