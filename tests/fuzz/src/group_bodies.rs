//! Frames of groups, names and datagrams: what their bodies and payloads are when they are right.

use qnic_abi::collective::kind as collective;
use qnic_abi::datagram::kind as datagram;
use qnic_abi::multicast::kind as multicast;
use qnic_abi::process_names::{NameEntry, ProcessName, NAME_WITHDRAWN};
use qnic_abi::wire::Frame;
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;

/// The words of a body. `seen` is a frame of the NIC, `port` that of the victim.
pub(crate) fn words(kind: u8, seen: &Frame, port: u16, input: &mut Input<'_>) -> [u64; 5] {
    match kind {
        collective::COLLECTIVE_UP | collective::COLLECTIVE_DOWN => {
            let (sequence, part) = (input.byte() % 8, input.byte() % 4);
            let (home, kind) = (input.below(3) as u64, 1 + input.byte() % 4);
            let (operator, element) = if kind > 2 { (1, 2) } else { (0, 0) };
            let numbers = u32::from_le_bytes([kind, operator, element, input.byte() % 4]);
            [
                group_number(seen, input),
                u64::from(input.byte()) * 8,
                u64::from(sequence) | u64::from(part) << 32,
                u64::from(input.byte() % 2) | home << 32,
                u64::from(numbers) | 4096 << 32,
            ]
        }
        collective::GROUP_FORM => {
            let (size, members) = (1 + input.byte() % 3, 1 + input.byte() % 2);
            let parent = [0xffff, 0, 1, 2][usize::from(input.byte() % 4)];
            [
                u64::from(input.byte() % 4),
                u64::from(input.byte() % 2),
                u64::from(input.byte() % 4),
                u64::from(size) | u64::from(members) << 32,
                parent | u64::from(port) << 16,
            ]
        }
        collective::GROUP_END => {
            let home = input.below(3) as u64;
            [
                group_number(seen, input),
                17 | home << 32 | 1 << 48,
                5,
                0,
                0,
            ]
        }
        collective::GROUP_SEEK => {
            let home = input.below(3) as u64;
            let sequence = u64::from(input.byte() % 8);
            [group_number(seen, input), sequence | 1000 << 32, home, 0, 0]
        }
        multicast::MULTICAST | multicast::MULTICAST_TAKEN => multicast_words(kind, seen, input),
        collective::GROUP_JOIN => {
            let (rank, size) = (input.byte() % 3, 1 + input.byte() % 3);
            let (name, key) = (input.byte() % 4, input.byte() % 2);
            [
                name.into(),
                key.into(),
                1 + u64::from(input.byte() % 4),
                u64::from(size) | u64::from(rank) << 32,
                0,
            ]
        }
        datagram::DATAGRAM => {
            let target = match input.chance(128) {
                true => u64::from(input.byte() % 32),
                false => 0,
            };
            let numbers = u64::from(input.byte()) | u64::from(input.byte() % 4) << 32;
            let flags = u64::from(input.byte() % 2) << 48;
            [target, numbers | flags | 24 << 56, 1, 2, 3]
        }
        collective::GROUP_REFUSED => [1 + u64::from(input.byte() % 8), 38, 0, 0, 0],
        collective::GROUP_FORMED | collective::GROUP_START | collective::GROUP_GREET => {
            let home = input.below(3) as u64;
            [group_number(seen, input), 4096 | home << 32, 0, 0, 0]
        }
        _ => [u64::from(input.byte() % 2), 0, 0, 0, 0],
    }
}

/// The words of a part of a multicast, or of what was taken of those of a source.
fn multicast_words(kind: u8, seen: &Frame, input: &mut Input<'_>) -> [u64; 5] {
    let (rank, home) = (u64::from(input.byte() % 3), input.below(3) as u64);
    let number = group_number(seen, input);
    if kind == multicast::MULTICAST_TAKEN {
        let count = u64::from(input.byte() % 3);
        return [number, rank | count << 32, home, 0, 0];
    }
    let (length, offset) = (u64::from(input.byte()), u64::from(input.byte() % 2));
    let (tag, ranks) = (u64::from(input.byte() % 4), u64::from(input.byte() % 3));
    let names = rank | ranks << 32 | home << 48;
    [number, tag, 0, length | offset << 32, names]
}

/// Bytes of the payload of a form: no node below or one, and its members, within reason.
pub(crate) fn form_length(words: &[u64], input: &mut Input<'_>) -> usize {
    let members = words.get(3).map_or(0, |word| word >> 32).min(128) as usize;
    2 * (members + input.below(2))
}

/// Fills the payload of a form with small numbers of nodes and ranks.
pub(crate) fn fill_form(bytes: &mut [u8], input: &mut Input<'_>) {
    for number in bytes.chunks_exact_mut(2).take(8) {
        number.copy_from_slice(&u16::from(input.byte() % 3).to_le_bytes());
    }
}

/// Fills a payload with names that are registered and withdrawn.
pub(crate) fn fill_names(bytes: &mut [u8], input: &mut Input<'_>) {
    let first = u32::from(input.byte());
    for (number, entry) in (first..).zip(bytes.chunks_exact_mut(size_of::<NameEntry>())) {
        let name = ProcessName::new("fuzz", number % 300).unwrap_or_default();
        let withdrawn = input.chance(32);
        let named = NameEntry {
            application: name.application,
            process: name.process,
            port: 5.into(),
            flags: if withdrawn { NAME_WITHDRAWN } else { 0 }.into(),
        };
        entry.copy_from_slice(named.as_bytes());
    }
}

/// The number of the group that the NIC has last told of, or a small one.
fn group_number(seen: &Frame, input: &mut Input<'_>) -> u64 {
    let words = <[u64; 3]>::read_from_prefix(&seen.body);
    let [first, _, third] = words.map_or([0; 3], |words| words.0);
    match seen.envelope.kind {
        collective::GROUP_FORM => third,
        collective::COLLECTIVE_UP
        | collective::COLLECTIVE_DOWN
        | collective::GROUP_END
        | collective::GROUP_SEEK
        | multicast::MULTICAST
        | multicast::MULTICAST_TAKEN
        | collective::GROUP_FORMED
        | collective::GROUP_START
        | collective::GROUP_GREET => first,
        _ => (input.byte() % 4).into(),
    }
}
