//! Datagrams of a hostile guest.

use qnic_abi::client::{withdraw, withdraw_all, Buffer, Packet};
use qnic_abi::datagram::HEADER_CAPACITY;
use qnic_abi::{Status, PAGE_SIZE};

use crate::driver;
use crate::guest::{Guest, HOSTILE};

impl Guest<'_, '_> {
    /// A command of datagrams that is right but for what the input makes wrong: of the driver, if
    /// that is hostile, or of a process that is none.
    pub(crate) fn datagram_command(&mut self) {
        let input = &mut *self.input;
        let frames = self.net.cluster().nodes[HOSTILE].nic.geometry().frames;
        let party = match &self.driver {
            Some(driver) if !input.chance(8) => &driver.party,
            _ => &self.villain,
        };
        let small = 1 + u64::from(input.byte() % 16);
        let handle = input.near(small);
        let port = driver::port(input);
        let address = (input.below(frames as usize) * PAGE_SIZE) as u64;
        let offset = input.below(PAGE_SIZE) as u64;
        let length = input.near16((PAGE_SIZE as u64 - offset).min(700) as u16);
        let mut header = Vec::new();
        let mut descriptor = match input.byte() % 8 {
            0..=3 => {
                header = input.bytes(HEADER_CAPACITY).to_vec();
                let node = [2, 2, HOSTILE as u16, 7][usize::from(input.byte() % 4)];
                let named = u64::from(input.byte() % 32);
                let packet = Packet {
                    handle,
                    node: input.near16(node),
                    port: input.near16(port),
                    source_port: input.near16(1),
                    address: input.near(address + offset),
                    length,
                    target: if input.chance(128) { named } else { 0 },
                    sequence: input.near32(1),
                    fragment: input.short() % 4,
                    flags: input.near8(1),
                    header: header.clone(),
                };
                packet.descriptor()
            }
            4..=6 => {
                let steered = u16::from(input.byte() % 2);
                let record = (input.below(frames as usize) * PAGE_SIZE) as u64;
                let buffer = Buffer {
                    handle,
                    address: input.near(address + offset),
                    record: input.near(record + offset / 64 * 64),
                    length,
                    port: input.near16(port),
                    flags: input.near16(steered),
                };
                buffer.descriptor()
            }
            _ if input.chance(64) => withdraw_all(port),
            _ => withdraw(port, handle),
        };
        let inline = descriptor.header.inline_length;
        descriptor.header.inline_length = input.near8(inline);
        if input.chance(8) {
            let byte = input.below(descriptor.body.len());
            descriptor.body[byte] = input.byte();
        }
        party.post_with(&descriptor, &header);
        if input.chance(64) {
            party.completions();
        }
        if input.chance(16) && party.reset_queue() == Status::Ok {
            party.clear_queue();
        }
    }
}
