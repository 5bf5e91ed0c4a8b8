//! The device process against front ends that behave, and front ends that do not.

#[path = "attachment/ethernet.rs"]
mod ethernet;
mod guest;
#[path = "attachment/turns.rs"]
mod turns;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use guest::ring::{wait_for, NEXT, WRITE};
use guest::{ram_file, region, until, Guest, RAM_BYTES, TIMEOUT};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence::WithSource;
use qnic_abi::attach::DeviceConfig;
use qnic_abi::control::Opcode;
use qnic_abi::event::Kind;
use qnic_abi::header::SRAM_MAGIC;
use qnic_abi::{NodeId, Status};
use qnic_device::{ByteSize, Config, Device, NicReport, NicSettings, NicState};
use rustix::fs::SealFlags;
use tempfile::TempDir;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::VhostUserFrontend;
use vhost::VhostBackend;
use zerocopy::FromBytes;

/// A device in this process, and its sockets.
struct Lab {
    device: Option<Device>,
    directory: TempDir,
}

impl Lab {
    fn new(nics: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let settings = |node: usize| {
            let socket = directory.path().join(format!("{node}.sock"));
            let ram = ByteSize(RAM_BYTES);
            NicSettings::new(format!("n{node}"), NodeId(node as u16), socket, ram)
        };
        let config = Config::new((0..nics).map(settings).collect());
        Lab {
            device: Some(Device::start(&config).unwrap()),
            directory,
        }
    }

    fn socket(&self, node: usize) -> PathBuf {
        self.directory.path().join(format!("{node}.sock"))
    }

    fn connect(&self, node: usize) -> Guest {
        Guest::connect(&self.socket(node), None)
    }

    fn started(&self, node: usize) -> Guest {
        let mut guest = self.connect(node);
        guest.start();
        assert_eq!(guest.hello(), Status::Ok);
        guest
    }

    /// A front end that never responds to SHMEM_MAP and keeps its end of the channel.
    fn silent(&self, node: usize) -> (Guest, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut guest = Guest::connect(&self.socket(node), Some(theirs));
        guest.control.clear(&guest.ram);
        guest.set_memory();
        guest.start_queues([0; 2]);
        self.wait_for_state(node, true, NicState::Mapping);
        (guest, ours)
    }

    fn device(&self) -> &Device {
        self.device.as_ref().unwrap()
    }

    fn report(&self, node: usize) -> NicReport {
        self.device().stats().unwrap().report.nics[node].clone()
    }

    fn wait_for_state(&self, node: usize, connected: bool, state: NicState) {
        until("the state", || {
            let report = self.report(node);
            report.connected == connected && report.state == state
        });
    }
}

/// A device with one NIC, and a guest that has started it.
fn started() -> (Lab, Guest) {
    let lab = Lab::new(1);
    let guest = lab.started(0);
    (lab, guest)
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(device) = self.device.take() {
            device.stop().unwrap();
        }
    }
}

#[test]
fn a_driver_finds_the_device() {
    let lab = Lab::new(1);
    let mut guest = lab.connect(0);
    let space = DeviceConfig::read_from_bytes(&guest.config_space()).unwrap();
    assert_eq!(space.node.get(), 0);
    let sizes = guest.front_end.get_shmem_config().unwrap();
    let sram_bytes = sizes.memory_sizes[0];
    assert_eq!(sram_bytes, space.sram_bytes.get());
    guest.start();
    assert_eq!(guest.geometry().sram_bytes, space.sram_bytes.get());
    assert_eq!(guest.hello(), Status::Ok);
    lab.wait_for_state(0, true, NicState::Running);
    let stats = lab.device().stats().unwrap();
    assert!(stats.rss_bytes > stats.rss_anon_bytes && stats.rss_anon_bytes > 0);
}

/// Two guests with a process each. That of the first has imported the segment of the
/// other, which wants to be woken, and is about to write these bytes.
fn joined() -> (Lab, Guest, Guest, Vec<u8>) {
    let lab = Lab::new(2);
    let (mut a, mut b) = (lab.started(0), lab.started(1));
    a.register(10);
    b.register(20);
    let (status, imported) = a.import(1, 20);
    assert_eq!(status, Status::Ok);
    assert_eq!(imported.address.get(), guest::process::VIRTUAL);
    b.want_wake(1);
    let bytes: Vec<u8> = (0..9000u32).map(|n| (n % 251) as u8).collect();
    a.fill(&bytes);
    (lab, a, b, bytes)
}

#[test]
fn a_write_reaches_the_other_guest_and_wakes_its_process() {
    let (lab, a, mut b, bytes) = joined();
    a.issue(0, &a.write_command(1, 20, 4093, 9000));
    let event = b.event();
    assert_eq!(event.kind.get(), Kind::Wake as u32);
    assert_eq!(b.signals(), 1);
    assert_eq!(b.data(4093, 9000), bytes);
    until("the completion", || a.writes_done() == 1);
    assert_eq!(lab.report(1).statistics.bytes_received, 9000);
}

/// A paused guest's memory is served; what its driver has to know waits for it.
#[test]
fn a_paused_machine_is_served_and_goes_on() {
    let (lab, a, mut b, bytes) = joined();
    for round in 0..3 {
        assert!(lab.device().expect_pause(1));
        let indices = b.pause();
        assert_ne!(indices, [0; 2]);
        lab.wait_for_state(1, true, NicState::Paused);
        a.issue(round, &a.write_command(1, 20, 4096 * round, 9000));
        until("the completion", || a.writes_done() == round + 1);
        assert_eq!(b.data(4096 * round, 9000), bytes);
        assert!(!b.events.has_entry(&b.ram), "an event during the pause");
        b.resume(indices);
        lab.wait_for_state(1, true, NicState::Running);
        assert_eq!(b.event().kind.get(), Kind::Wake as u32);
        b.want_wake(round + 2);
        assert_eq!(b.counters()["processes"], 1);
    }
    let counters = lab.report(1).counters;
    assert_eq!((counters.starts, counters.resets), (1, 0));
    assert_eq!(counters.pauses, 3);
}

/// A machine that was reset while it was paused starts at the beginning, whether or not the
/// pause was announced and the reset was said.
#[test]
fn a_machine_reset_during_a_pause_gets_a_fresh_device() {
    let (lab, mut guest) = started();
    let expected = [NicState::Paused, NicState::Suspended];
    for (resets, state) in (1..).zip(expected) {
        guest.register(10);
        if state == NicState::Paused {
            assert!(lab.device().expect_pause(0));
        }
        guest.pause();
        lab.wait_for_state(0, true, state);
        guest.lose_mapping();
        guest.start();
        assert_eq!(guest.hello(), Status::Ok);
        assert_eq!(guest.counters()["processes"], 0);
        assert_eq!(lab.report(0).counters.resets, resets);
    }
    assert_eq!(lab.report(0).counters.pauses, 0);
}

/// It was not announced: nothing accesses the guest's memory, what peers send waits, and all
/// of it arrives when the machine goes on.
#[test]
fn a_pause_from_outside_is_survived() {
    let (lab, a, mut b, bytes) = joined();
    for round in 0..3 {
        let indices = b.pause();
        lab.wait_for_state(1, true, NicState::Suspended);
        b.clear_data();
        a.issue(round, &a.write_command(1, 20, 4096 * round, 9000));
        until("the command", || a.commands_read() == round + 1);
        assert_eq!(
            b.data(4096 * round, 9000),
            [0; 9000],
            "a paused guest's memory"
        );
        assert_eq!(a.writes_done(), round);
        b.renew();
        b.resume(indices);
        lab.wait_for_state(1, true, NicState::Running);
        until("the completion", || a.writes_done() == round + 1);
        assert_eq!(b.data(4096 * round, 9000), bytes);
        assert_eq!(b.event().kind.get(), Kind::Wake as u32);
        b.want_wake(round + 2);
        assert_eq!(b.counters()["processes"], 1);
    }
    let counters = lab.report(1).counters;
    assert_eq!((counters.starts, counters.resets), (1, 0));
    assert_eq!(counters.pauses, 3);
}

/// Peers wait for a machine that stands still as for any node that is silent: the peer timeout.
/// What it had of its own is there when it goes on, and its peers find it again.
#[test]
fn a_long_pause_ends_what_peers_wait_for() {
    let (lab, a, mut b, bytes) = joined();
    let indices = b.pause();
    a.issue(0, &a.write_command(1, 20, 0, 9000));
    until("the failure", || a.writes_done() == 1);
    assert_eq!(a.errors(), 1);
    a.issue(1, &a.write_command(1, 20, 0, 9000));
    until("another failure", || a.writes_done() == 2);
    assert_eq!(a.errors(), 2);
    b.resume(indices);
    lab.wait_for_state(1, true, NicState::Running);
    assert_eq!(b.counters()["processes"], 1);
    let mut number = 2;
    until("a write that arrives", || {
        a.issue(number, &a.write_command(1, 20, 0, 9000));
        number += 1;
        until("its end", || a.writes_done() == number);
        a.errors() < number
    });
    assert_eq!(b.data(0, 9000), bytes);
    assert_eq!(lab.report(1).counters.resets, 0);
}

/// A driver that is removed, or a guest that reboots, says so: no peer waits for it to go on.
#[test]
fn an_announced_reset_is_no_pause() {
    let (lab, a, mut b, _) = joined();
    assert_eq!(b.request(Opcode::AnnounceReset, 0, &()).0, Status::Ok);
    assert_eq!(b.counters()["processes"], 1, "it is served until then");
    b.pause();
    lab.wait_for_state(1, true, NicState::Down);
    assert_eq!(lab.report(1).counters.resets, 1);
    a.issue(0, &a.write_command(1, 20, 0, 9000));
    until("the failure", || a.writes_done() == 1);
    assert_eq!(a.errors(), 1);
    // The next start is one like any other: its pauses are pauses.
    b.start();
    assert_eq!(b.hello(), Status::Ok);
    b.pause();
    lab.wait_for_state(1, true, NicState::Suspended);
}

/// A suspended NIC costs the engine nothing: with nothing else to do, it sleeps.
#[test]
fn a_pause_holds_no_engine_time() {
    let (lab, mut guest) = started();
    let indices = guest.pause();
    lab.wait_for_state(0, true, NicState::Suspended);
    let rounds = || lab.device().stats().unwrap().report.engine;
    until("sleep", || {
        let before = rounds();
        let after = rounds();
        // Nothing but the questions themselves wakes it.
        after.sleeps > before.sleeps && after.rounds - before.rounds < 10_000
    });
    guest.resume(indices);
    assert_eq!(guest.hello(), Status::Ok);
}

#[test]
fn a_reset_gives_a_fresh_device() {
    let lab = Lab::new(2);
    let mut guest = lab.started(0);
    guest.register(10);
    for _ in 0..20 {
        guest.stop();
        assert_ne!(guest.magic(), SRAM_MAGIC, "the old start must be over");
        guest.start();
        assert_eq!(guest.hello(), Status::Ok);
        assert_eq!(guest.counters()["processes"], 0);
        guest.register(10);
    }
    assert_eq!(lab.report(0).counters.resets, 20);
}

/// QEMU responds with an error when the mapping is there already.
#[test]
fn a_mapping_that_exists_counts_as_mapped() {
    let (_lab, mut guest) = started();
    guest.front_end.reset_device().unwrap();
    assert_ne!(guest.magic(), SRAM_MAGIC);
    guest.start();
    assert_eq!(guest.hello(), Status::Ok);
}

#[test]
fn front_ends_come_one_after_the_other() {
    let lab = Lab::new(2);
    let mut peer = lab.started(1);
    peer.register(20);
    for _ in 0..5 {
        let mut guest = lab.started(0);
        guest.register(10);
        assert_eq!(guest.import(1, 20).0, Status::Ok);
        guest.issue(0, &guest.write_command(1, 20, 0, 60_000));
        drop(guest);
        lab.wait_for_state(0, false, NicState::Down);
    }
    assert_eq!(peer.ping(), Status::Ok);
}

#[test]
fn a_second_front_end_is_turned_away() {
    let (lab, mut guest) = started();
    let mut second = UnixStream::connect(lab.socket(0)).unwrap();
    second.set_read_timeout(Some(TIMEOUT)).unwrap();
    let end = std::io::Read::read(&mut second, &mut [0]);
    assert!(matches!(end, Ok(0)), "{end:?}");
    assert_eq!(guest.counters()["processes"], 0);
}

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    let lab = Lab::new(2);
    let mut peer = lab.started(1);
    for seed in 0..40u32 {
        let mut stream = UnixStream::connect(lab.socket(0)).unwrap();
        let noise: Vec<u8> = (0..200u32)
            .map(|n| (n.wrapping_mul(seed.wrapping_mul(2_654_435_761) | 1) >> 7) as u8)
            .collect();
        let _ = stream.write_all(&noise);
        // Half a message, and the peer stays silent: the end must still be seen.
        let _ = stream.write_all(&[1, 0, 0, 0]);
        drop(stream);
        lab.wait_for_state(0, false, NicState::Down);
    }
    assert_eq!(peer.counters()["processes"], 0);
    lab.started(0);
}

#[test]
fn memory_that_could_vanish_is_refused_and_the_connection_goes_on() {
    let lab = Lab::new(1);
    let mut guest = lab.connect(0);
    let unsealed = ram_file(RAM_BYTES, SealFlags::empty());
    let table = [region(&unsealed, 0, RAM_BYTES)];
    assert!(guest.front_end.set_mem_table(&table).is_err());
    guest.start();
    assert_eq!(guest.hello(), Status::Ok);
    assert!(guest.front_end.set_mem_table(&table).is_err());
    guest.control.wait_for_failure();
}

/// What the NIC says to a guest whose table has another region beside its RAM.
fn hello_with_another(address: u64, bytes: u64) -> Status {
    let lab = Lab::new(1);
    let mut guest = lab.connect(0);
    guest.control.clear(&guest.ram);
    let another = ram_file(bytes, SealFlags::SHRINK);
    let table = [
        region(&guest.ram_file, 0, RAM_BYTES),
        region(&another, address, bytes),
    ];
    guest.front_end.set_mem_table(&table).unwrap();
    guest.start_queues([0; 2]);
    guest.take_mapping();
    guest.wait_for_magic();
    guest.hello()
}

#[test]
fn more_ram_than_the_sram_covers_is_said() {
    assert_eq!(hello_with_another(RAM_BYTES, 4096), Status::SramTooSmall);
}

/// QEMU lists the SRAM of the guest's other NICs as RAM, too (S7).
#[test]
fn memory_of_other_devices_in_a_table_is_ignored() {
    assert_eq!(hello_with_another(0x38_0000_0000, 8 << 20), Status::Ok);
}

/// QEMU lists its mapping of the SRAM as RAM; and sends tables while all runs.
#[test]
fn the_sram_in_a_table_is_ignored() {
    let (_lab, mut guest) = started();
    let sram_bytes = guest.geometry().sram_bytes;
    let sram = guest.sram.as_ref().unwrap().file_offset().unwrap();
    let table = [
        region(&guest.ram_file, 0, RAM_BYTES),
        region(sram.file(), 1 << 40, sram_bytes),
    ];
    for _ in 0..10 {
        guest.front_end.set_mem_table(&table).unwrap();
        assert_eq!(guest.ping(), Status::Ok);
    }
}

#[test]
fn reads_beyond_the_configuration_space_are_zero() {
    let lab = Lab::new(1);
    let mut guest = lab.connect(0);
    let flags = vhost::vhost_user::message::VhostUserConfigFlags::WRITABLE;
    let read = guest.front_end.get_config(60, 200, flags, &[9; 200]);
    assert_eq!(read.unwrap().1, [0; 200]);
    guest.front_end.set_config(0, flags, &[1, 2, 3, 4]).unwrap();
    let space = DeviceConfig::read_from_bytes(&guest.config_space()).unwrap();
    assert_eq!(space.magic.get(), qnic_abi::attach::CONFIG_MAGIC);
}

#[test]
fn kicks_that_are_no_eventfds_do_nothing() {
    let lab = Lab::new(1);
    let mut guest = lab.connect(0);
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let wrong = std::mem::replace(&mut guest.doorbells[0], eventfd_of(&ours));
    guest.start();
    assert_eq!(guest.hello(), Status::Ok);
    drop(wrong);
}

/// An `EventFd` object around a descriptor that is none.
fn eventfd_of(stream: &UnixStream) -> vmm_sys_util::eventfd::EventFd {
    use std::os::fd::{FromRawFd, IntoRawFd};
    let descriptor = stream.try_clone().unwrap().into_raw_fd();
    #[allow(unsafe_code)]
    // SAFETY: the descriptor has no other owner.
    unsafe {
        vmm_sys_util::eventfd::EventFd::from_raw_fd(descriptor)
    }
}

/// A front end that never responds does not delay the next one.
#[test]
fn a_silent_front_end_is_survived() {
    let lab = Lab::new(1);
    for _ in 0..3 {
        let (guest, channel) = lab.silent(0);
        drop(guest);
        lab.wait_for_state(0, false, NicState::Down);
        drop(channel);
    }
    lab.started(0);
}

/// The device ends, whatever its front ends are waiting for.
#[test]
fn the_end_does_not_wait_for_front_ends() {
    let mut lab = Lab::new(3);
    let guest = lab.started(0);
    let mut half = UnixStream::connect(lab.socket(1)).unwrap();
    half.write_all(&[1, 0, 0, 0]).unwrap();
    let silent = lab.silent(2);
    lab.wait_for_state(0, true, NicState::Running);
    lab.device.take().unwrap().stop().unwrap();
    assert!(!lab.socket(0).exists());
    drop((guest, half, silent));
}

#[test]
fn malformed_chains_come_back_empty() {
    let (lab, mut guest) = started();
    let chains: [&[(u64, u32, bool)]; 6] = [
        &[(0x8000, 64, false)],
        &[(0x8800, 128, true)],
        &[(0x8800, 128, true), (0x8000, 64, false)],
        &[(0x8000, 63, false), (0x8800, 128, true)],
        &[(0x8000, 64, false), (0x8800, 127, true)],
        &[(u64::MAX - 10, 64, false), (0x8800, 128, true)],
    ];
    for chain in chains {
        guest.control.push(&guest.ram, chain);
        guest.control.kick.write(1).unwrap();
        assert_eq!(guest.control.take(&guest.ram).1, 0);
    }
    assert_eq!(guest.ping(), Status::Ok);
    assert_eq!(lab.report(0).counters.malformed_chains, 6);
}

#[test]
fn impossible_rings_fail_and_a_new_start_heals_them() {
    let (lab, mut guest) = started();
    guest.control.set_available(&guest.ram, 500);
    guest.control.kick.write(1).unwrap();
    guest.control.wait_for_failure();
    until("the count", || lab.report(0).counters.failed_queues == 1);
    guest.stop();
    guest.start();
    assert_eq!(guest.hello(), Status::Ok);
}

/// QEMU hands on what addresses its guest has chosen, and does not survive the end of the
/// connection.
#[test]
fn misaligned_rings_stop_their_queue_and_nothing_else() {
    let (lab, mut guest) = started();
    for (offset, reply) in [(1, true), (8, true), (1, false), (8, false)] {
        guest.stop();
        guest.front_end.set_hdr_flags(match reply {
            true => VhostUserHeaderFlag::NEED_REPLY,
            false => VhostUserHeaderFlag::empty(),
        });
        guest.control.base += offset;
        guest.start();
        guest.control.base -= offset;
        // Nor does the queue run where it was before.
        guest.control.push(&guest.ram, &[(0x8800, 128, true)]);
        guest.control.kick.write(1).unwrap();
        guest.stop();
        assert!(!guest.control.has_entry(&guest.ram));
        guest.start();
        assert_eq!(guest.hello(), Status::Ok);
    }
    assert!(lab.report(0).connected);
}

/// Kicks merge; each is still looked at.
#[test]
fn the_device_sleeps_between_doorbells() {
    let (lab, guest) = started();
    let engine = || lab.device().stats().unwrap().report.engine;
    let before = engine().sleeps;
    until("sleep", || engine().sleeps > before);
    // A virtual processor might not give back what it gets.
    assert_eq!(engine().yields, 0);
    guest.doorbells[0].write(1).unwrap();
    until("the doorbell", || lab.report(0).counters.doorbells >= 1);
    assert!(!wait_for(&guest.control.error, Duration::ZERO));
}

/// Descriptors, offered heads, and an available index.
type Noise = (Vec<(u64, u32, u16, u16)>, Vec<u16>, Option<u16>);

fn noise() -> impl Strategy<Value = Noise> {
    let address = prop_oneof![0u64..0x10000, any::<u64>()];
    let length = prop_oneof![Just(64u32), Just(128), any::<u32>()];
    let flags = prop_oneof![
        prop::sample::select(vec![0, NEXT, WRITE, NEXT | WRITE]),
        any::<u16>()
    ];
    let next = prop_oneof![0u16..16, any::<u16>()];
    let heads = prop::collection::vec(prop_oneof![4 => 0u16..16, 1 => any::<u16>()], 0..16);
    let jump = prop::option::weighted(0.1, any::<u16>());
    (
        prop::collection::vec((address, length, flags, next), 16),
        heads,
        jump,
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        ..ProptestConfig::with_failure_persistence(WithSource("proptest-regressions"))
    })]

    /// Whatever stands in the rings, the device survives, and serves the next start.
    #[test]
    fn noise_in_the_rings_is_survived(control in noise(), events in noise()) {
        let (_lab, mut guest) = started();
        for (noise, ring) in [(control, &mut guest.control), (events, &mut guest.events)] {
            let (descriptors, heads, jump) = noise;
            for (index, descriptor) in descriptors.iter().enumerate() {
                ring.describe(&guest.ram, index as u16, *descriptor);
            }
            for head in heads {
                ring.offer(&guest.ram, head);
            }
            if let Some(jump) = jump {
                ring.set_available(&guest.ram, jump);
            }
            ring.kick.write(1).unwrap();
        }
        guest.stop();
        guest.start();
        prop_assert_eq!(guest.hello(), Status::Ok);
    }
}
