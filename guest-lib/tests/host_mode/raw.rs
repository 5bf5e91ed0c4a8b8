//! Commands that the library would never issue, put into the window by hand (N11).
#![allow(unsafe_code)]

use std::sync::Arc;

use qnic::provider::{Memory, Process, Registration};
use qnic::{uapi, Access, Nic, Port, Status};
use qnic_abi::command::{Descriptor, Opcode, DESCRIPTOR_BYTES};
use qnic_abi::host_area::{ErrorRecord, ERRORS, ERROR_RING, QUEUE_STATUS, WRITES_DONE};
use qnic_abi::shared::Ordering;
use qnic_abi::window::command_offset;
use zerocopy::{FromZeros, IntoBytes};

use crate::cluster::{Cluster, Peer, NAME, SOON};

/// A process below the library.
struct Raw {
    process: Box<dyn Process>,
    memory: Arc<dyn Memory>,
    local: uapi::Export,
    remote: uapi::Import,
    issued: u64,
}

impl Raw {
    fn new(nic: &Nic, victim: &Peer) -> Self {
        let Registration::Done(process) = nic.provider().register(0, 0).unwrap() else {
            panic!("refused");
        };
        let memory = nic.provider().allocate(4096).unwrap();
        let mut local = uapi::Export {
            access: Access::READ.bits().into(),
            name: 1.into(),
            address: memory.address().into(),
            length: 4096.into(),
            ..Default::default()
        };
        process.export(&mut local).unwrap();
        assert_eq!(local.status.get(), 0);
        let mut remote = uapi::Import {
            node: victim.endpoint.node().0.into(),
            port: victim.endpoint.port().0.into(),
            name: NAME.0.into(),
            ..Default::default()
        };
        process.import(&mut remote).unwrap();
        assert_eq!(remote.status.get(), 0);
        Raw {
            process,
            memory,
            local,
            remote,
            issued: 0,
        }
    }

    /// A write of 4096 bytes that is right in every way.
    fn write(&self) -> Descriptor {
        let mut descriptor = Descriptor::new_zeroed();
        descriptor.opcode = Opcode::Write as u8;
        descriptor.length = 4096.into();
        descriptor.local_address = self.memory.address().into();
        descriptor.local_key = self.local.key;
        descriptor.local_segment = self.local.segment;
        descriptor.remote_address = self.remote.address;
        descriptor.remote_key = self.remote.key;
        descriptor.remote_segment = self.remote.segment;
        descriptor.remote_node = self.remote.node;
        descriptor.remote_port = self.remote.port;
        descriptor
    }

    /// Issues a command and returns how it ended.
    fn run(&mut self, descriptor: &Descriptor) -> Status {
        let (window, area) = (self.process.window(), self.process.host_area());
        let (errors, done) = (
            area.load_u64(ERRORS, Ordering::Acquire),
            area.load_u64(WRITES_DONE, Ordering::Acquire),
        );
        let slot = command_offset(self.issued);
        let mut words = [0u64; DESCRIPTOR_BYTES / 8];
        words.as_mut_bytes().copy_from_slice(descriptor.as_bytes());
        window.write_words(slot + 8, &words[1..]);
        window.store_u64(slot, words[0], Ordering::Release);
        self.process.ring_doorbell();
        self.issued += 1;
        let start = std::time::Instant::now();
        // A queue that stops says why a moment later.
        while area.load_u64(WRITES_DONE, Ordering::Acquire) == done
            && (area.load_u64(QUEUE_STATUS, Ordering::Acquire) == 0
                || area.load_u64(ERRORS, Ordering::Acquire) == errors)
        {
            assert!(start.elapsed() < SOON, "the command never ends");
            std::thread::yield_now();
        }
        if area.load_u64(ERRORS, Ordering::Acquire) == errors {
            return Status::Ok;
        }
        let record = ERROR_RING + (errors % 64) as usize * size_of::<ErrorRecord>();
        assert_eq!(area.load_u64(record, Ordering::Relaxed), self.issued - 1);
        let code = area.load_u64(record + 8, Ordering::Relaxed) as u32;
        Status::try_from(code).unwrap()
    }
}

#[test]
fn forged_commands_fail_alone_and_touch_nothing() {
    let cluster = Cluster::new(2);
    let victim = Peer::new(&cluster.nic(1), 1, 8192);
    let nic = cluster.nic(0);
    let mut raw = Raw::new(&nic, &victim);
    raw.memory.write_bytes(0, &[9; 4096]);

    type Forge = fn(&mut Descriptor);
    let forgeries: [(Forge, &[Status]); 8] = [
        (
            |d| d.remote_key = (d.remote_key.get() ^ 1).into(),
            &[Status::BadKey],
        ),
        (
            |d| d.local_key = (d.local_key.get() ^ 1).into(),
            &[Status::BadKey],
        ),
        (
            |d| d.remote_address = (d.remote_address.get() + 8192).into(),
            &[Status::BadAddress],
        ),
        (
            |d| d.local_address = (d.local_address.get() + 1).into(),
            &[Status::BadAddress],
        ),
        (
            |d| d.remote_address = (u64::MAX - 100).into(),
            &[Status::BadAddress],
        ),
        (|d| d.remote_segment = 77.into(), &[Status::NoSuchSegment]),
        (|d| d.remote_port = 999.into(), &[Status::NoSuchPort]),
        (|d| d.remote_node = 999.into(), &[Status::NoSuchNode]),
    ];
    for (number, (forge, expected)) in forgeries.into_iter().enumerate() {
        let mut descriptor = raw.write();
        forge(&mut descriptor);
        let status = raw.run(&descriptor);
        assert!(expected.contains(&status), "forgery {number}: {status:?}");
    }
    assert!(victim.buffer.read_vec(0, 8192).unwrap() == [0; 8192]);

    let honest = raw.write();
    assert_eq!(raw.run(&honest), Status::Ok);
    assert!(victim.buffer.read_vec(0, 4096).unwrap() == [9; 4096]);
    assert!(nic.info().unwrap().nic.protection_errors.get() > 0);
}

/// A transfer is refused as a whole, though its first pieces would be allowed.
#[test]
fn a_transfer_across_the_end_of_a_segment_touches_nothing() {
    let cluster = Cluster::new(2);
    let nic = cluster.nic(1);
    let endpoint = nic.register(Port(1)).unwrap();
    let buffer = endpoint.allocate(3 * 4096).unwrap();
    // SAFETY: the buffer outlives the segment, and its memory is accessed through
    // the buffer's copies only.
    let segment = unsafe {
        let start = buffer.as_ptr().add(4096 + 100);
        endpoint.export_range(NAME, start, 4096, Access::WRITE)
    };
    let victim = Peer {
        segment: segment.unwrap(),
        buffer,
        endpoint,
    };
    let nic = cluster.nic(0);
    let mut raw = Raw::new(&nic, &victim);
    raw.memory.write_bytes(0, &[9; 4096]);
    for shift in [-4096, -4095, -2000, -1, 1, 2000, 4095, 4096i64] {
        let mut descriptor = raw.write();
        let address = descriptor.remote_address.get();
        descriptor.remote_address = address.wrapping_add_signed(shift).into();
        assert_eq!(raw.run(&descriptor), Status::BadAddress, "shift {shift}");
    }
    assert!(victim.buffer.read_vec(0, 3 * 4096).unwrap() == [0; 3 * 4096]);
}

#[test]
fn a_malformed_command_stops_its_own_queue_only() {
    let cluster = Cluster::new(2);
    let victim = Peer::new(&cluster.nic(1), 1, 8192);
    let nic = cluster.nic(0);
    let other = Peer::new(&nic, 5, 4096);
    let mut raw = Raw::new(&nic, &victim);
    let mut descriptor = raw.write();
    descriptor.opcode = 99;
    assert_eq!(raw.run(&descriptor), Status::Malformed);
    let stopped = raw
        .process
        .host_area()
        .load_u64(QUEUE_STATUS, Ordering::Acquire);
    assert_eq!(stopped, u64::from(Status::Malformed.code()));

    let remote = other.import(&victim);
    other.endpoint.write_fenced(&remote, 0, b"alive").unwrap();

    let mut reset = uapi::ResetQueue::default();
    raw.process.reset_queue(&mut reset).unwrap();
    assert_eq!(reset.status.get(), 0);
    raw.issued = 0;
    let honest = raw.write();
    assert_eq!(raw.run(&honest), Status::Ok);
}
