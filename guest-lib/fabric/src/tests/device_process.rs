//! A device that is a process of its own: it stands still, or is killed, while messages and operations on memory are
//! under way.

use std::io::Read;
use std::path::Path;
use std::process::Child;

use qnic_device::Device;
use tempfile::TempDir;

use super::harness::{at, close, config, domain_at, socket_in, Side, BOTH, TAGGED};
use super::memory::{begin_write, pattern};
use super::processes::{signal, start, stop, ADDRESS, SOCKET};
use super::regions::{register, ALL};
use crate::pointers::test::{bytes, context};
use crate::pointers::{Context, In};
use crate::service::PIECE_MAX;

/// Messages, and writes, that are under way.
const COUNT: usize = 8;
const LENGTH: usize = 60_000;

/// Numbers of receives, of Sends and of writes.
const RECEIVES: usize = 100;
const SENDS: usize = 200;
const WRITE: usize = 300;

/// Is the device until standard input ends; returns false in the first process.
fn is_device() -> bool {
    let Some(folder) = std::env::var_os(SOCKET) else {
        return false;
    };
    let device = Device::start(&config(Path::new(&folder), 2)).unwrap();
    println!("\n{ADDRESS}00");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    device.stop().unwrap();
    true
}

/// The device of a test, and an endpoint on each of its nodes: each has number 0 at the other.
struct Apart {
    device: Child,
    a: Side,
    b: Side,
    _folder: TempDir,
}

impl Apart {
    fn new(test: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let test = format!("tests::device_process::{test}");
        let (device, _) = start(&test, folder.path().to_owned(), None);
        let [a, b] = [0, 1].map(|node| {
            let (fabric, domain) = domain_at(socket_in(folder.path(), node), In::NULL);
            Side::on(fabric, domain, TAGGED, BOTH)
        });
        assert_eq!((a.insert(&b.name), b.insert(&a.name)), (0, 0));
        Apart {
            device,
            a,
            b,
            _folder: folder,
        }
    }

    /// Stops the device, and begins messages and writes from one side to the other.
    fn begin(&self, sent: &[u8], written: &[u8], rooms: &mut [Vec<u8>]) {
        stop(&self.device);
        for (number, room) in rooms.iter_mut().enumerate() {
            let tag = number as u64;
            self.b.receive(0, Some((tag, 0)), room, RECEIVES + number);
            self.a.send(0, Some(tag), sent, SENDS + number);
            begin_write(&self.a, 0, written, (0, 1), WRITE);
        }
        assert!(self.a.poll().is_none() && self.b.poll().is_none());
    }
}

fn rooms() -> Vec<Vec<u8>> {
    vec![vec![0; LENGTH]; COUNT]
}

#[test]
fn what_is_under_way_goes_on_when_the_device_process_does() {
    if is_device() {
        return;
    }
    let mut apart = Apart::new("what_is_under_way_goes_on_when_the_device_process_does");
    let (sent, written) = (pattern(LENGTH, 3), pattern(4 * PIECE_MAX, 5));
    let mut memory = vec![0; written.len()];
    let region = register(&apart.b, &mut memory, ALL, 1);
    for _ in 0..3 {
        let mut rooms = rooms();
        apart.begin(&sent, &written, &mut rooms);
        signal(&apart.device, libc::SIGCONT);
        for _ in 0..2 * COUNT {
            apart.a.next().unwrap();
        }
        for number in 0..COUNT {
            let (entry, _) = apart.b.next().unwrap();
            assert_eq!(entry.context, context(RECEIVES + number));
        }
        assert!(memory == written && rooms.iter().all(|room| *room == sent));
        memory.fill(0);
    }
    assert_eq!(close(region), 0);
    assert_eq!((close(apart.a.ep), close(apart.b.ep)), (0, 0));
    apart.device.kill().unwrap();
    apart.device.wait().unwrap();
}

#[test]
fn what_is_under_way_ends_with_an_error_when_the_device_process_is_killed() {
    if is_device() {
        return;
    }
    let mut apart =
        Apart::new("what_is_under_way_ends_with_an_error_when_the_device_process_is_killed");
    let (sent, written) = (pattern(LENGTH, 3), pattern(4 * PIECE_MAX, 5));
    let mut memory = vec![0; written.len()];
    let region = register(&apart.b, &mut memory, ALL, 1);
    let mut rooms = rooms();
    apart.begin(&sent, &written, &mut rooms);
    apart.device.kill().unwrap();
    apart.device.wait().unwrap();
    for (side, count) in [(&apart.a, 2 * COUNT), (&apart.b, COUNT)] {
        for _ in 0..count {
            assert_eq!(side.next().unwrap_err().err, libc::ENODEV);
        }
    }
    let (send, none) = (at(apart.a.ep).tagged.send, Context::NULL);
    let refused = send(apart.a.ep, bytes(&sent), 8, none, 0, 1, none);
    assert_eq!(refused, -(libc::ENODEV as isize));
    assert_eq!(close(region), 0);
    assert_eq!((close(apart.a.ep), close(apart.b.ep)), (0, 0));
}
