//! Messages of the vhost-user protocol: right but for what the input makes wrong.

use std::os::fd::{AsFd, BorrowedFd};

use super::{FrontEnd, USER_BASE};
use crate::front_end::RAM_BYTES;
use crate::input::Input;

/// Numbers of requests.
pub(super) mod request {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_LOG_BASE: u32 = 6;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const RESET_DEVICE: u32 = 34;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
    /// One more than the last.
    pub(crate) const END: u32 = 45;
}

/// Version 1, and a message that wants an answer.
const VERSION: u32 = 1;
const NEED_REPLY: u32 = 8;

/// VERSION_1, ORDER_PLATFORM, protocol features, and that all that spins yields.
const FEATURES: u64 = 1 << 32 | 1 << 36 | 1 << 30 | 1;
/// MQ, REPLY_ACK, BACKEND_REQ, CONFIG, BACKEND_SEND_FD, RESET_DEVICE, SHMEM.
const PROTOCOL_FEATURES: u64 = 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 10 | 1 << 13 | 1 << 22;

/// Queues of the NIC that are of interest: control, event, some doorbells.
const QUEUES: u32 = 4;
/// Entries of a queue, and where the rings of each are in RAM.
pub(super) const QUEUE_SIZE: u16 = 16;
pub(super) const RINGS: u64 = 0x4000;

/// Which files a message brings.
#[derive(Clone, Copy)]
enum Files {
    None,
    Ram(usize),
    Event,
}

/// A message of a request with that body.
pub(super) fn encode(code: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let words = [code, flags, body.len() as u32];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend_from_slice(body);
    bytes
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The address of the rings of a queue.
pub(super) fn rings_of(queue: u32) -> u64 {
    RINGS * (1 + u64::from(queue))
}

impl FrontEnd {
    /// One message of any kind.
    pub(super) fn any_message(&mut self, input: &mut Input<'_>) -> bool {
        let code = 1 + input.below(request::END as usize - 1) as u32;
        self.message(input, code)
    }

    /// A start as QEMU makes it: features, channel, memory, rings, queues enabled.
    pub(super) fn start(&mut self, input: &mut Input<'_>) -> bool {
        use request::*;
        let first = [SET_FEATURES, SET_PROTOCOL_FEATURES, SET_MEM_TABLE];
        let flags = VERSION;
        first.iter().all(|code| self.message(input, *code))
            && (self.channel.is_some() || self.open_channel(flags))
            && (0..QUEUES).all(|queue| {
                let codes = [SET_VRING_NUM, SET_VRING_BASE, SET_VRING_ADDR];
                let files = SET_VRING_KICK..=SET_VRING_ERR;
                codes
                    .into_iter()
                    .chain(files)
                    .all(|code| self.message_for(input, code, queue))
            })
            && (0..QUEUES).all(|queue| self.message_for(input, SET_VRING_ENABLE, queue))
    }

    /// A stop of all queues, and perhaps a reset; mostly as QEMU makes them.
    pub(super) fn stop(&mut self, input: &mut Input<'_>) -> bool {
        (0..QUEUES).all(|queue| self.message_for(input, request::GET_VRING_BASE, queue))
            && (input.chance(128) || self.message(input, request::RESET_DEVICE))
    }

    fn message(&mut self, input: &mut Input<'_>, code: u32) -> bool {
        let queue = input.below(QUEUES as usize) as u32;
        self.message_for(input, code, queue)
    }

    fn message_for(&mut self, input: &mut Input<'_>, code: u32, queue: u32) -> bool {
        if code == request::SET_BACKEND_REQ_FD {
            return self.open_channel(VERSION);
        }
        let (mut body, files) = body(input, code, queue);
        let answered = u32::from(input.chance(32)) * NEED_REPLY;
        let mut flags = VERSION | answered;
        if input.chance(4) {
            let length = input.near(body.len() as u64) as usize % 512;
            body.resize(length, 0);
        }
        if input.chance(4) && !body.is_empty() {
            let at = input.below(body.len());
            body[at] = input.byte();
        }
        if input.chance(2) {
            flags = input.near32(flags);
        }
        let wrong = input.chance(4).then(|| input.below(4));
        let (ram, event) = (self.ram.try_clone(), self.event.try_clone());
        let (Ok(ram), Ok(event)) = (ram, event) else {
            return false;
        };
        let given: Vec<BorrowedFd<'_>> = match (files, wrong) {
            (_, Some(count)) => vec![event.as_fd(); count],
            (Files::None, None) => Vec::new(),
            (Files::Ram(count), None) => vec![ram.as_fd(); count],
            (Files::Event, None) => vec![event.as_fd()],
        };
        self.send_bytes(&encode(code, flags, &body), &given)
    }
}

/// The body of a request, and the files that it brings.
fn body(input: &mut Input<'_>, code: u32, queue: u32) -> (Vec<u8>, Files) {
    use request::*;
    let index = input.near32(queue);
    let state = |value: u32| words(&[u64::from(index) | u64::from(value) << 32]);
    match code {
        GET_FEATURES => (Vec::new(), Files::None),
        SET_FEATURES => (words(&[input.near(FEATURES)]), Files::None),
        SET_PROTOCOL_FEATURES => (words(&[input.near(PROTOCOL_FEATURES)]), Files::None),
        SET_MEM_TABLE => {
            let count = input.near(1).min(33);
            let mut body = words(&[count]);
            for region in 0..count {
                body.extend_from_slice(&words(&self::region(input, region)));
            }
            (body, Files::Ram(count.min(32) as usize))
        }
        ADD_MEM_REG | REM_MEM_REG => {
            let mut body = words(&[0]);
            body.extend_from_slice(&words(&region(input, 0)));
            (body, Files::Ram(usize::from(code == ADD_MEM_REG)))
        }
        SET_VRING_NUM => (state(input.near32(QUEUE_SIZE.into())), Files::None),
        SET_VRING_BASE => (state(input.near32(0)), Files::None),
        GET_VRING_BASE => (state(0), Files::None),
        SET_VRING_ENABLE => (state(input.near32(1)), Files::None),
        SET_VRING_ADDR => {
            let at = USER_BASE + rings_of(queue);
            let flags = u64::from(index) | u64::from(input.near32(0)) << 32;
            let rings = [at, at + 0x2000, at + 0x1000].map(|ring| input.near(ring));
            (
                words(&[flags, rings[0], rings[1], rings[2], 0]),
                Files::None,
            )
        }
        SET_VRING_KICK..=SET_VRING_ERR => match input.chance(8) {
            // No descriptor comes.
            true => (words(&[u64::from(index) | 1 << 8]), Files::None),
            false => (words(&[u64::from(index)]), Files::Event),
        },
        GET_CONFIG | SET_CONFIG => {
            let (offset, size) = (input.near32(0), input.near32(64));
            let mut body = words(&[u64::from(offset) | u64::from(size) << 32]);
            body.extend_from_slice(&input.near32(0).to_ne_bytes());
            body.resize(12 + size.min(300) as usize, 0);
            (body, Files::None)
        }
        SET_LOG_BASE | SET_INFLIGHT_FD => {
            let numbers = [input.near(RAM_BYTES), input.near(0), input.near(0)];
            (words(&numbers), Files::Ram(1))
        }
        _ => (input.bytes(40).to_vec(), Files::None),
    }
}

/// Address, length, address in the front end, offset in the file.
fn region(input: &mut Input<'_>, number: u64) -> [u64; 4] {
    let address = number * RAM_BYTES;
    [
        input.near(address),
        input.near(RAM_BYTES),
        input.near(USER_BASE + address),
        input.near(0),
    ]
}
