//! Commands that the library would never issue, put into the window by hand (N11).
#![allow(unsafe_code)]

use std::sync::Arc;

use qnic::provider::{Memory, Process, Registration};
use qnic::{uapi, Access, CounterSource, Nic, NodeId, Port, Status};
use qnic_abi::client::{self as client, Command, CommandQueue, HostArea, Remote};
use qnic_abi::host_area::{ERRORS, QUEUE_STATUS};
use qnic_abi::shared::Ordering;
use qnic_abi::{Key, SegmentId};

use crate::cluster::{Cluster, Peer, NAME, SOON};

/// A process below the library.
struct Raw {
    process: Box<dyn Process>,
    memory: Arc<dyn Memory>,
    local: uapi::Export,
    remote: uapi::Import,
    queue: CommandQueue,
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
            queue: CommandQueue::at(0, 0),
            process,
            memory,
            local,
            remote,
        }
    }

    /// A write of 4096 bytes that is right in every way.
    fn write(&self) -> Command {
        let local = client::Memory {
            address: self.memory.address(),
            key: Key(self.local.key.get()),
            segment: SegmentId(self.local.segment.get()),
        };
        let remote = Remote {
            node: NodeId(self.remote.node.get()),
            port: Port(self.remote.port.get()),
            memory: client::Memory {
                address: self.remote.address.get(),
                key: Key(self.remote.key.get()),
                segment: SegmentId(self.remote.segment.get()),
            },
        };
        Command::write(local, remote, 4096)
    }

    /// Issues a command and returns how it ended.
    fn run(&mut self, command: &Command) -> Status {
        let (window, memory) = (self.process.window(), self.process.host_area());
        let area = HostArea(|offset| memory.load_u64(offset, Ordering::Acquire));
        let (errors, done) = (area.0(ERRORS), area.done());
        let (number, _) = self.queue.post(&window, command, &[]);
        self.process.ring_doorbell();
        let start = std::time::Instant::now();
        // A queue that stops says why a moment later.
        while area.done() == done && (area.0(QUEUE_STATUS) == 0 || area.0(ERRORS) == errors) {
            assert!(start.elapsed() < SOON, "the command never ends");
            std::thread::yield_now();
        }
        if area.0(ERRORS) == errors {
            return Status::Ok;
        }
        let (failed, status) = area.errors().pop().unwrap();
        assert_eq!(failed, number);
        status
    }
}

#[test]
fn forged_commands_fail_alone_and_touch_nothing() {
    let cluster = Cluster::new(2);
    let victim = Peer::new(&cluster.nic(1), 1, 8192);
    let nic = cluster.nic(0);
    let mut raw = Raw::new(&nic, &victim);
    raw.memory.write_bytes(0, &[9; 4096]);

    use Status::{BadAddress, BadKey, NoSuchNode, NoSuchPort, NoSuchSegment};
    type Forge = fn(&mut Command);
    let forgeries: [(Forge, Status); 8] = [
        (|c| c.remote.memory.key.0 ^= 1, BadKey),
        (|c| c.local.key.0 ^= 1, BadKey),
        (|c| c.remote.memory.address += 8192, BadAddress),
        (|c| c.local.address += 1, BadAddress),
        (|c| c.remote.memory.address = u64::MAX - 100, BadAddress),
        (|c| c.remote.memory.segment = SegmentId(77), NoSuchSegment),
        (|c| c.remote.port = Port(999), NoSuchPort),
        (|c| c.remote.node = NodeId(999), NoSuchNode),
    ];
    for (number, (forge, expected)) in forgeries.into_iter().enumerate() {
        let mut command = raw.write();
        forge(&mut command);
        assert_eq!(raw.run(&command), expected, "forgery {number}");
    }
    assert!(victim.buffer.read_vec(0, 8192).unwrap() == [0; 8192]);

    let honest = raw.write();
    assert_eq!(raw.run(&honest), Status::Ok);
    assert!(victim.buffer.read_vec(0, 4096).unwrap() == [9; 4096]);
    assert!(nic.counters(CounterSource::Nic).unwrap()["protection_errors"] > 0);
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
        let mut command = raw.write();
        let address = &mut command.remote.memory.address;
        *address = address.wrapping_add_signed(shift);
        assert_eq!(raw.run(&command), Status::BadAddress, "shift {shift}");
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
    let mut command = raw.write();
    command.opcode = 99;
    assert_eq!(raw.run(&command), Status::Malformed);
    let area = raw.process.host_area();
    let stopped = area.load_u64(QUEUE_STATUS, Ordering::Acquire);
    assert_eq!(stopped, u64::from(Status::Malformed.code()));

    let remote = other.import(&victim);
    other.endpoint.write(&remote, 0, b"alive").fenced().unwrap();

    let mut reset = uapi::ResetQueue::default();
    raw.process.reset_queue(&mut reset).unwrap();
    assert_eq!(reset.status.get(), 0);
    raw.queue = CommandQueue::at(0, 0);
    let honest = raw.write();
    assert_eq!(raw.run(&honest), Status::Ok);
}
