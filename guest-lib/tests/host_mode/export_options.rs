//! A process with bad intentions, and what export options keep from it (N2): segments of
//! others, their notifications, their channels, the grants of their locks.

use std::sync::mpsc;

use qnic::sync::{self, Lock, Participant, Semaphore, OBJECT_BYTES};
use qnic::{
    ChannelOptions, Endpoint, Error, ExportOptions, ImportOptions, Importer, Importers, Nic,
    NodeId, NotificationId, Notifications, OneShot, Port, Receiver, RemoteSegment, Result, Secret,
    Segment, SegmentName, Sender, SharedReceiver, SharedSender, Signal, Status,
};

use crate::cluster::{id, status, Cluster, BOTH, NAME, ONE, SOON};

const SENT: NotificationId = id(10);
const REPLENISH: NotificationId = id(11);
/// The same memory as [`NAME`], for all processes to read.
const SHOWN: SegmentName = SegmentName(0xb10);
/// The port of victims.
const VICTIM: Port = Port(1);

/// A victim on node 0, and a process with bad intentions on node 1.
struct Two {
    victim: Endpoint,
    villain: Endpoint,
    /// The villain's NIC, for its neighbours.
    nic: Nic,
    _cluster: Cluster,
}

fn two() -> Two {
    let cluster = Cluster::new(2);
    let nic = cluster.nic(1);
    Two {
        victim: cluster.nic(0).register(VICTIM).unwrap(),
        villain: nic.register(Port(66)).unwrap(),
        nic,
        _cluster: cluster,
    }
}

/// An import from the victim that presents a secret, or none.
fn import(villain: &Endpoint, name: SegmentName, secret: Option<Secret>) -> Result<RemoteSegment> {
    let options = ImportOptions::new(SOON).secret(secret);
    villain.import(NodeId(0), VICTIM, name, options)
}

#[test]
fn only_a_process_with_the_secret_imports() {
    let two = two();
    let (victim, villain) = (&two.victim, &two.villain);
    let buffer = victim.allocate(4096).unwrap();
    let [secret, other] = [(); 2].map(|()| Secret::random().unwrap());
    let options = ExportOptions::new(BOTH).secret(secret);
    let segment = victim.export(NAME, &buffer, &options).unwrap();
    for wrong in [None, Some(other)] {
        let error = import(villain, NAME, wrong).unwrap_err();
        assert_eq!(error.status(), Some(Status::ImportRefused));
        let message = error.to_string();
        assert!(message.contains("import segment 0xb0f of node 0, port 1"));
        assert!(message.contains("ImportOptions::secret"), "{message}");
        assert!(!message.contains(&secret.to_hex()), "{message}");
    }
    let passed_on: Secret = secret.to_hex().parse().unwrap();
    let remote = import(villain, NAME, Some(passed_on)).unwrap();
    villain.write(&remote, 0, b"invited").fenced().unwrap();
    segment.unexport().unwrap();
    let refused = villain.write(&remote, 0, b"no more").fenced();
    assert_eq!(status(refused), Status::NoSuchSegment);
    assert_eq!(buffer.read_vec(0, 7).unwrap(), b"invited");
}

#[test]
fn only_listed_processes_import() {
    let cluster = Cluster::new(3);
    let victim = cluster.nic(0).register(VICTIM).unwrap();
    let nics = [1, 2].map(|node| cluster.nic(node));
    let [friend, villain] = [5, 66].map(|port| nics[0].register(Port(port)).unwrap());
    let elsewhere = nics[1].register(Port(5)).unwrap();
    let buffer = victim.allocate(4096).unwrap();
    let listed = [Importer::Process(NodeId(1), Port(5))];
    let options = ExportOptions::new(BOTH).importers(&listed);
    let _segment = victim.export(NAME, &buffer, options).unwrap();
    for from in [&villain, &elsewhere] {
        assert_eq!(status(import(from, NAME, None)), Status::ImportRefused);
    }
    import(&friend, NAME, None).unwrap();
    let of_node = ExportOptions::new(BOTH).importers(&[Importer::Node(NodeId(1))]);
    let _second = victim.export(SHOWN, &buffer, of_node).unwrap();
    assert_eq!(
        status(import(&elsewhere, SHOWN, None)),
        Status::ImportRefused
    );
    import(&villain, SHOWN, None).unwrap();
    let many = [listed[0]; Importers::MAX + 1];
    let options = ExportOptions::new(BOTH).importers(&many);
    let refused = victim.export(SegmentName(1), &buffer, options);
    assert_error!(refused, Error::TooManyImporters(_));
}

/// An import that waits gets its answer as soon as the segment appears.
#[test]
fn an_import_that_waits_is_refused_when_the_segment_appears() {
    let two = two();
    let (victim, villain) = (&two.victim, &two.villain);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| status(import(villain, NAME, None)));
        let buffer = victim.allocate(4096).unwrap();
        let options = ExportOptions::new(BOTH).secret(Secret::random().unwrap());
        let _segment = victim.export(NAME, &buffer, options).unwrap();
        assert_eq!(waiting.join().unwrap(), Status::ImportRefused);
    });
}

#[test]
fn a_writer_signals_what_the_segment_allows() {
    let two = two();
    let (victim, villain) = (&two.victim, &two.villain);
    let buffer = victim.allocate(3 * 4096).unwrap();
    let long = villain.allocate(2 * 4096).unwrap();
    long.write(0, &[0xbb; 2 * 4096]).unwrap();
    let source = villain.export(NAME, &long, BOTH).unwrap();
    for (number, (allowed, fine)) in (1..).zip([
        (Notifications::None, &[][..]),
        (Notifications::only(id(5)), &[5]),
        (Notifications::from(id(5)..=id(9)), &[5, 9]),
        (Notifications::only(OneShot::new(3000).unwrap()), &[3000]),
        (Notifications::All, &[1, 5, 9, 1023, 1024, 3000]),
    ]) {
        let name = SegmentName(number);
        let options = ExportOptions::new(BOTH).notifications(allowed);
        let segment = victim.export(name, &buffer, options).unwrap();
        let remote = import(villain, name, None).unwrap();
        for number in [1, 4, 5, 9, 10, 1023, 1024, 3000, u32::MAX] {
            let signal = Signal::new(number).unwrap();
            let all = matches!(allowed, Notifications::All);
            let inline = villain.write(&remote, 0, b"forged").notify(signal).fenced();
            let part = source.part(0, 2 * 4096);
            let pages = villain.write(&remote, 100, part).notify(signal).fenced();
            if all || fine.contains(&number) {
                inline.and(pages).unwrap();
                buffer.write(0, &[0; 3 * 4096]).unwrap();
                continue;
            }
            let message = inline.as_ref().unwrap_err().to_string();
            assert!(message.contains("ExportOptions"), "{message}");
            let denied = [status(inline), status(pages)];
            assert_eq!(denied, [Status::AccessDenied; 2], "{allowed:?} {number}");
            assert_eq!(buffer.read_vec(0, 3 * 4096).unwrap(), [0; 3 * 4096]);
            if let Signal::Counted(id) = signal {
                let signals = victim.notification(id).signals();
                assert_eq!(signals, if fine.is_empty() { 0 } else { signals });
            }
        }
        segment.unexport().unwrap();
    }
    let signals = [1, 4, 5, 9, 10, 1023].map(|n| victim.notification(id(n)).signals());
    assert_eq!(signals, [2, 2, 6, 4, 2, 2]);
}

/// Others neither become the sender, nor signal what is not the channel's, nor reach the
/// sender's credit, whose name stands in the receiver's segment.
#[test]
fn a_channel_is_for_its_two_ends() {
    let two = two();
    let (receiving, villain) = (&two.victim, &two.villain);
    let sending = two.nic.register(Port(5)).unwrap();
    let secret = Secret::random().unwrap();
    let options = ChannelOptions::new(8, 64, SENT).importers(Importers::with_secret(secret));
    let _closed = Receiver::open(receiving, NAME, &options).unwrap();
    let connect = |from: &Endpoint, name, secret| {
        let options = ImportOptions::new(SOON).secret(secret);
        Sender::connect(from, (NodeId(0), VICTIM, name), REPLENISH, options)
    };
    assert_eq!(status(connect(villain, NAME, None)), Status::ImportRefused);
    let mut sender = connect(&sending, NAME, Some(secret)).unwrap();
    sender.send(b"honest", Some(SOON)).unwrap();

    let options = ChannelOptions::new(8, 64, ONE);
    let mut open = Receiver::open(receiving, SHOWN, &options).unwrap();
    let mut sender = connect(&sending, SHOWN, None).unwrap();
    sender.send(b"honest", Some(SOON)).unwrap();
    assert_eq!(open.recv(Some(SOON)).unwrap().to_vec(), b"honest");
    let remote = import(villain, SHOWN, None).unwrap();
    let forged = villain
        .write(&remote, 0x40, b"forged")
        .notify(SENT)
        .fenced();
    assert_eq!(status(forged), Status::AccessDenied);
    let own = villain.allocate(4096).unwrap();
    let segment = villain.export(NAME, &own, BOTH).unwrap();
    villain
        .read(&remote, 0x40, segment.part(0, 32))
        .fenced()
        .unwrap();
    let credit = SegmentName(own.load_u64(24).unwrap());
    let stolen = villain.import(NodeId(1), Port(5), credit, SOON);
    assert_eq!(status(stolen), Status::ImportRefused);
}

#[test]
fn a_shared_queue_is_for_the_participants_of_its_secret() {
    let two = two();
    let (receiving, villain) = (&two.victim, &two.villain);
    let group = Importers::with_secret(Secret::random().unwrap());
    let member = Participant::among(receiving, group.clone()).unwrap();
    let mut receiver = SharedReceiver::open(&member, NAME, 4, 64, SENT).unwrap();
    let queue = (NodeId(0), VICTIM, NAME);
    let stranger = Participant::new(villain).unwrap();
    let refused = SharedSender::connect(&stranger, queue, SOON);
    assert_eq!(status(refused), Status::ImportRefused);
    let invited = Participant::among(villain, group).unwrap();
    let mut sender = SharedSender::connect(&invited, queue, SOON).unwrap();
    for number in 0..20u8 {
        sender.send(&[number]).unwrap();
        assert_eq!(receiver.recv(Some(SOON)).unwrap(), [number]);
    }
}

/// A lock that a process holds and another waits for, and one that wants it first.
struct Contended {
    _owner: (Segment, Segment, Endpoint),
    _cluster: Cluster,
    villain: Endpoint,
    /// Says when the waiting process has the lock.
    granted: mpsc::Receiver<()>,
    /// Ends the holder's turn.
    release: mpsc::Sender<()>,
    threads: Vec<std::thread::JoinHandle<()>>,
    /// The lock's words, which all processes may read.
    shown: RemoteSegment,
}

/// Offset of the name of the last entry of a lock's queue.
const TAIL: u64 = 8;

fn contended(group: &Importers) -> Contended {
    let Two {
        victim: owner,
        villain,
        nic,
        _cluster: cluster,
    } = two();
    let memory = owner.allocate(4096).unwrap();
    let objects = ExportOptions::new(BOTH)
        .importers(group.clone())
        .notifications(Notifications::None);
    let object = owner.export(NAME, &memory, objects).unwrap();
    let shown = owner.export(SHOWN, &memory, qnic::Access::READ).unwrap();
    let (release, end) = mpsc::channel();
    let (grant, granted) = mpsc::channel();
    let (held, is_held) = mpsc::channel();
    let member = |port| {
        let endpoint = nic.register(Port(port)).unwrap();
        let participant = Participant::among(&endpoint, group.clone()).unwrap();
        let options = ImportOptions::new(SOON).secret(group.secret());
        let remote = endpoint.import(NodeId(0), VICTIM, NAME, options).unwrap();
        (Lock::new(&participant, &remote, 0).unwrap(), endpoint)
    };
    let (first, first_endpoint) = member(5);
    let (second, second_endpoint) = member(6);
    let holder = std::thread::spawn(move || {
        let guard = first.acquire().unwrap();
        held.send(()).unwrap();
        end.recv().unwrap();
        guard.release().unwrap();
        drop(first_endpoint);
    });
    is_held.recv().unwrap();
    let waiter = std::thread::spawn(move || {
        second.acquire().unwrap().release().unwrap();
        grant.send(()).unwrap();
        drop(second_endpoint);
    });
    Contended {
        shown: import(&villain, SHOWN, None).unwrap(),
        _owner: (object, shown, owner),
        _cluster: cluster,
        villain,
        granted,
        release,
        threads: vec![holder, waiter],
    }
}

impl Contended {
    /// A word of the lock.
    fn word(&self, offset: u64) -> u64 {
        let buffer = self.villain.allocate(8).unwrap();
        let segment = self.villain.export(SegmentName(9), &buffer, BOTH).unwrap();
        let read = self
            .villain
            .read(&self.shown, offset, segment.part(0, 8))
            .fenced();
        read.unwrap();
        buffer.load_u64(0).unwrap()
    }

    /// Writes a grant to the process that waits, as its predecessor will.
    fn forge(&self) -> Result<()> {
        // Both have joined when the tail names port 6.
        let tail = loop {
            let tail = self.word(TAIL);
            if tail >> 32 & 0xffff == 6 {
                break tail;
            }
        };
        let name = u64::from(sync::AREA_NAME) << 32 | (tail >> 16 & 0xffff);
        let (node, slot) = (NodeId((tail >> 48) as u16), (tail & 0xffff) - 1);
        let area = self
            .villain
            .import(node, Port(6), SegmentName(name), SOON)?;
        let grant = 3u64.to_le_bytes();
        self.villain
            .write(&area, slot * 64 + 8, &grant)
            .notify(sync::NOTIFICATION)
            .fenced()
    }
}

#[test]
fn a_grant_of_a_lock_is_not_forged() {
    let group = Importers::with_secret(Secret::random().unwrap());
    let lock = contended(&group);
    assert_eq!(status(lock.forge()), Status::ImportRefused);
    assert_eq!(
        status(import(&lock.villain, NAME, None)),
        Status::ImportRefused
    );
    assert!(
        lock.granted.try_recv().is_err(),
        "two processes hold the lock"
    );
    lock.release.send(()).unwrap();
    lock.granted.recv_timeout(SOON).unwrap();
    lock.threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// The area of a participant that admits all processes lets others signal its own notification, and
/// no other.
#[test]
fn an_area_signals_nothing_but_grants() {
    let two = two();
    let (victim, villain) = (&two.victim, &two.villain);
    let memory = victim.allocate(4096).unwrap();
    let _object = victim.export(NAME, &memory, BOTH).unwrap();
    let participant = Participant::new(victim).unwrap();
    let own = import(victim, NAME, None).unwrap();
    let lock = Lock::new(&participant, &own, 0).unwrap();
    let _guard = lock.acquire().unwrap();
    let holder = memory.load_u64(0).unwrap();
    let name = u64::from(sync::AREA_NAME) << 32 | (holder >> 16 & 0xffff);
    let area = import(villain, SegmentName(name), None).unwrap();
    for number in [1, 10, 1022, 1024] {
        let signal = Signal::new(number).unwrap();
        let forged = villain.write(&area, 0, b"forged").notify(signal).fenced();
        assert_eq!(status(forged), Status::AccessDenied);
    }
}

/// All that participants do among each other, with a secret, and with a list.
#[test]
fn participants_that_trust_each_other_work_as_all_others() {
    let members = [4, 5, 6].map(|port| Importer::Process(NodeId(1), Port(port)));
    let secret = Secret::random().unwrap();
    for group in [
        Importers::with_secret(secret),
        Importers::listed(&members),
        Importers::listed(&members).and_secret(secret),
    ] {
        let two = two();
        let (owner, villain) = (&two.victim, &two.villain);
        let memory = owner.allocate(4096).unwrap();
        let objects = ExportOptions::new(BOTH)
            .importers(group.clone())
            .notifications(Notifications::None);
        let _objects = owner.export(NAME, &memory, objects).unwrap();
        assert_eq!(status(import(villain, NAME, None)), Status::ImportRefused);
        let endpoints = [4, 5, 6].map(|port| two.nic.register(Port(port)).unwrap());
        std::thread::scope(|scope| {
            for endpoint in &endpoints {
                scope.spawn(|| {
                    let participant = Participant::among(endpoint, group.clone()).unwrap();
                    let remote = import(endpoint, NAME, group.secret()).unwrap();
                    let lock = Lock::new(&participant, &remote, 0).unwrap();
                    let gate = Semaphore::new(&participant, &remote, OBJECT_BYTES).unwrap();
                    let counter = endpoint.atomic::<u64>(&remote, 1024).unwrap();
                    for _ in 0..30 {
                        let guard = lock.acquire().unwrap();
                        let before = counter.load().wait().unwrap();
                        counter.swap(before + 1).wait().unwrap();
                        guard.release().unwrap();
                        gate.signal().unwrap();
                        gate.wait().unwrap();
                    }
                });
            }
        });
        assert_eq!(memory.load_u64(1024).unwrap(), 90);
    }
}
