//! What a hostile guest puts into its virtqueues: descriptors, available rings, requests.

use std::os::unix::fs::FileExt;

use qnic_abi::control::{Opcode, RequestHeader, REPLY_BYTES, REQUEST_BYTES};
use qnic_abi::event::EVENT_BYTES;
use zerocopy::IntoBytes;

use super::message::{rings_of, QUEUE_SIZE};
use super::FrontEnd;
use crate::input::Input;

/// Flags of a descriptor; indirect ones are not offered.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Where requests, responses and event buffers are in RAM.
const REQUESTS: u64 = 0x10_0000;
const RESPONSES: u64 = 0x11_0000;
const BUFFERS: u64 = 0x12_0000;

impl FrontEnd {
    /// Puts something into a ring, and kicks.
    pub(super) fn rings(&mut self, input: &mut Input<'_>) {
        let queue = input.below(2) as u32;
        match input.byte() {
            0..=159 => self.push(input, queue),
            160..=191 => self.describe(input, queue),
            192..=223 => {
                let at = rings_of(queue) + input.near(0x1000) % 0x3000;
                self.store(at, input.bytes(32));
            }
            224..=239 => {
                let index = input.near16(self.available[queue as usize]);
                self.offer_up_to(queue, index);
            }
            _ => {
                let byte = [input.byte(); 0x1000];
                self.store(rings_of(queue) + 0x1000 * input.below(3) as u64, &byte);
            }
        }
        self.kick();
    }

    /// A chain as a driver makes it, mostly.
    fn push(&mut self, input: &mut Input<'_>, queue: u32) {
        let slot = u64::from(input.byte() % 8);
        let head = 2 * slot as u16;
        let chain: [(u64, u32, u16); 2] = if queue == 0 {
            let opcode = input.pick(&Opcode::ALL);
            let header = RequestHeader {
                opcode: input.near32(opcode as u32).into(),
                vni: input.near16(3).into(),
                reserved: 0.into(),
            };
            let mut request = header.as_bytes().to_vec();
            request.extend_from_slice(input.bytes(REQUEST_BYTES - request.len()));
            request.resize(REQUEST_BYTES, 0);
            let address = REQUESTS + slot * REQUEST_BYTES as u64;
            self.store(address, &request);
            let response = RESPONSES + slot * REPLY_BYTES as u64;
            [
                (address, REQUEST_BYTES as u32, NEXT),
                (response, REPLY_BYTES as u32, WRITE),
            ]
        } else {
            let buffer = BUFFERS + slot * EVENT_BYTES as u64;
            [(buffer, EVENT_BYTES as u32, WRITE), (0, 0, 0)]
        };
        for (index, (address, length, flags)) in chain.into_iter().enumerate() {
            let this = head + index as u16;
            let (address, length) = (input.near(address), input.near32(length));
            let (flags, next) = (input.near16(flags), input.near16(this + 1));
            self.descriptor(queue, this, (address, length, flags, next));
        }
        let head = input.near16(head);
        let available = self.available[queue as usize];
        let place = u64::from(available % QUEUE_SIZE);
        self.store(rings_of(queue) + 0x1004 + 2 * place, &head.to_le_bytes());
        self.offer_up_to(queue, available.wrapping_add(1));
    }

    /// A descriptor alone: in a loop with others, indirect, anywhere.
    fn describe(&self, input: &mut Input<'_>, queue: u32) {
        let this = u16::from(input.byte()) % QUEUE_SIZE;
        let flags = input.pick(&[0, NEXT, WRITE, NEXT | WRITE, INDIRECT, INDIRECT | NEXT]);
        let address = input.near(rings_of(queue));
        let next = u16::from(input.byte()) % QUEUE_SIZE;
        let next = input.near16(next);
        let length = input.near32(64);
        self.descriptor(queue, this, (address, length, flags, next));
    }

    fn descriptor(
        &self,
        queue: u32,
        index: u16,
        (address, length, flags, next): (u64, u32, u16, u16),
    ) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&next.to_le_bytes());
        let index = index % QUEUE_SIZE;
        self.store(rings_of(queue) + 16 * u64::from(index), &bytes);
    }

    /// Makes all chains before an available index available.
    fn offer_up_to(&mut self, queue: u32, index: u16) {
        self.available[queue as usize] = index;
        self.store(rings_of(queue) + 0x1002, &index.to_le_bytes());
    }

    fn store(&self, address: u64, bytes: &[u8]) {
        self.ram.write_all_at(bytes, address).expect("RAM");
    }
}
