//! The Ethernet ports of a device process: virtqueues, headers of virtio-net, frames.
//!
//! ```text
//!   port 0: hostile guest ─┐
//!   port 1: honest guest  ─┼── device process
//!   port 2: honest guest  ─┘
//! ```
//! After any input: a frame of port 1 reaches port 2 as it was; port 2 has no frame from an address of
//! others; and the next guest of port 0 is served.

use qnic_device::MacAddress;
use vhost::vhost_user::VhostUserFrontend;
use vhost::VhostBackend;
use vm_memory::{Bytes, GuestAddress};

use crate::front_end::ethernet::{
    frame, mac, segment, Lab, Port, MERGED, NOTHING, OFFLOADS, RECEIVE,
};
use crate::front_end::{until, QUEUE_SIZE, RAM_BYTES};
use crate::input::Input;

/// Most steps of one input.
const STEPS: usize = 48;

/// Bytes of each buffer of the honest guests: room for the longest frame.
const BUFFER: u32 = 1 << 17;

/// Where the hostile guest has its chains.
const CHAINS: u64 = 0x30_0000;

/// Runs one input.
///
/// # Panics
/// If a promise is broken.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let lab = Lab::new(3);
    let features = input.pick(&[MERGED, MERGED | OFFLOADS, OFFLOADS, 0]);
    let mut hostile = Port::connect(&lab, 0, features);
    let mut sender = Port::connect(&lab, 1, MERGED | OFFLOADS);
    let mut receiver = Port::connect(&lab, 2, MERGED | OFFLOADS);
    receiver.offer(QUEUE_SIZE.into(), BUFFER);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        step(&mut hostile, &mut input);
    }
    let good = frame(1, 2, b"undisturbed");
    sender.send(NOTHING, &good);
    while next(&mut receiver) != good {}
    drop(hostile);
    let mut again = Port::connect(&lab, 0, MERGED);
    again.offer(1, 2_048);
    let hello = frame(1, 0, b"welcome");
    until("the next guest of the port is served", || {
        sender.send(NOTHING, &hello);
        again.receive.has_entry(&again.ram)
    });
}

/// The next frame of an honest guest, which offers its buffer again.
fn next(port: &mut Port) -> Vec<u8> {
    let (head, length) = port.receive.take(&port.ram);
    let place = RECEIVE + head * u64::from(BUFFER);
    let mut bytes = vec![0; length as usize];
    let read = port.ram.read_slice(&mut bytes, GuestAddress(place));
    read.expect("a buffer of its own");
    port.receive.push(&port.ram, &[(place, BUFFER, true)]);
    port.receive.kick.write(1).expect("a kick");
    let received = bytes.split_off(12);
    let source = |node| received[6..12] == mac(node).0;
    let data = received.get(14..).unwrap_or_default();
    assert!(
        !source(1) || data == b"undisturbed",
        "a frame in the name of port 1"
    );
    let host = MacAddress(received[6..12].try_into().expect("six bytes")).host_number();
    assert!(
        !source(2) && host.is_none(),
        "a frame from an address of others"
    );
    received
}

/// One thing that the hostile guest does.
fn step(guest: &mut Port, input: &mut Input<'_>) {
    let is_transmit = input.chance(200);
    match input.below(8) {
        0 => {
            let descriptor = (address(input), length(input), input.short(), input.short());
            let index = input.short() % QUEUE_SIZE;
            let ring = if is_transmit {
                &guest.transmit
            } else {
                &guest.receive
            };
            ring.describe(&guest.ram, index, descriptor);
        }
        1 => {
            let head = input.short();
            let ring = if is_transmit {
                &mut guest.transmit
            } else {
                &mut guest.receive
            };
            ring.offer(&guest.ram, head);
        }
        2 => {
            let ring = if is_transmit {
                &guest.transmit
            } else {
                &guest.receive
            };
            ring.set_available(&guest.ram, input.short());
        }
        3 => {
            // A pause, and the place where the queue goes on.
            let queue = usize::from(is_transmit);
            let stopped = guest.front_end.get_vring_base(queue);
            stopped.expect("a queue that stops");
            let base = input.short();
            guest
                .front_end
                .set_vring_base(queue, base)
                .expect("a place");
            let ring = if is_transmit {
                &guest.transmit
            } else {
                &guest.receive
            };
            let kicked = guest.front_end.set_vring_kick(queue, &ring.kick);
            kicked.expect("a queue that starts");
            let enabled = guest.front_end.set_vring_enable(queue, true);
            enabled.expect("a queue that starts");
        }
        4 => {
            let buffers = [(address(input), length(input), input.chance(200))];
            guest.receive.push(&guest.ram, &buffers);
            guest.receive.kick.write(1).expect("a kick");
        }
        _ => send(guest, input),
    }
    if input.chance(128) {
        guest.transmit.kick.write(1).expect("a kick");
        guest.receive.kick.write(1).expect("a kick");
    }
}

/// A chain with a frame that is nearly right.
fn send(guest: &mut Port, input: &mut Input<'_>) {
    let (mut header, mut bytes) = match input.below(3) {
        0 => segment(0, 2, usize::from(input.short())),
        1 => (
            NOTHING,
            frame(0, 2, &vec![input.byte(); usize::from(input.short())]),
        ),
        _ => (NOTHING, frame(0, 2, &[])),
    };
    if input.chance(64) {
        bytes[..6].fill(0xff);
    }
    if input.chance(64) {
        let source = input.pick(&[mac(1), MacAddress::of_host(0), mac(9)]);
        bytes[6..12].copy_from_slice(&source.0);
    }
    for _ in 0..input.below(4) {
        let at = input.below(12);
        header[at] = input.byte();
        let at = input.below(bytes.len().min(80));
        bytes[at] = input.byte();
    }
    let image = [&header[..], &bytes].concat();
    let written = guest.ram.write_slice(&image, GuestAddress(CHAINS));
    written.expect("room for a frame");
    let cut = input.below(image.len());
    let parts = [
        (CHAINS, cut as u32, false),
        (CHAINS + cut as u64, (image.len() - cut) as u32, false),
    ];
    guest.transmit.push(&guest.ram, &parts);
    guest.transmit.kick.write(1).expect("a kick");
}

fn address(input: &mut Input<'_>) -> u64 {
    let near = u64::from(input.short());
    input
        .pick(&[
            CHAINS,
            RECEIVE,
            0x1000,
            0x4000,
            RAM_BYTES - 100,
            u64::MAX - 100,
        ])
        .wrapping_add(near)
}

fn length(input: &mut Input<'_>) -> u32 {
    let short = u32::from(input.short());
    input.pick(&[short, 12, 2_048, 0, u32::MAX, 1 << 20])
}
