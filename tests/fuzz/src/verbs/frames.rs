//! Frames of a stranger, for queue pairs of verbs.

use qnic_abi::verbs::frames::kind;
use qnic_abi::wire::{self, Class, Frame, BODY_BYTES, MAX_PAYLOAD};
use qnic_nic::testing::Net;
use qnic_nic::Payload;
use zerocopy::{FromZeros, IntoBytes};

use super::{Attack, ATTACKED, ATTACKER, DATAGRAM, FRIENDLY, QKEY, STRANGER};
use crate::honest::BYTES;

/// Kinds of frames of verbs, with the length of their bodies.
const KINDS: [(u8, u8); 8] = [
    (kind::VERBS_MESSAGE, 48),
    (kind::VERBS_READ_DATA, 24),
    (kind::VERBS_READ, 32),
    (kind::VERBS_ATOMIC, 48),
    (kind::VERBS_REPLY, 32),
    (kind::VERBS_PROBE, 16),
    (kind::VERBS_DATAGRAM, 24),
    (kind::VERBS_UNRELIABLE, 48),
];

impl Attack<'_, '_> {
    /// A frame of the stranger that is right but for what the input makes wrong.
    pub(super) fn frame(&mut self) {
        let (kind, length) = self.input.pick(&KINDS);
        let mut frame = Frame::new_zeroed();
        frame.envelope.magic = wire::FRAME_MAGIC.into();
        frame.envelope.version = wire::WIRE_VERSION;
        frame.envelope.kind = kind;
        frame.envelope.body_length = self.input.near8(length);
        let words = self.body(kind);
        frame.body.copy_from_slice(&words.as_bytes()[..BODY_BYTES]);
        let class = Class::of(kind);
        let takes = class.takes_payload();
        let payload = match self.input.byte() {
            _ if !takes => 0,
            0..=127 => 100,
            128..=191 => MAX_PAYLOAD,
            _ => self.input.below(MAX_PAYLOAD + 1),
        };
        if class.is_numbered() {
            let sequence = self.input.near(self.sequence);
            let at = if takes { words[4] } else { 0 };
            let fragments = wire::fragments(at, payload);
            frame.envelope.sequence = sequence.into();
            frame.envelope.fragments = self.input.near8(fragments as u8);
            if sequence == self.sequence {
                self.sequence += u64::from(frame.envelope.fragments);
            }
        }
        frame.envelope.operation = self.input.near(1).into();
        hand(
            &self.net,
            &mut frame,
            self.sessions,
            &[7; MAX_PAYLOAD][..payload],
        );
        if self.input.chance(200) {
            self.net.poll(FRIENDLY);
        }
    }

    /// The words of a body of the stranger.
    fn body(&mut self, kind: u8) -> [u64; BODY_BYTES.div_ceil(8)] {
        let segment = self.friend.party.segment;
        let (to, key) = match kind {
            kind::VERBS_DATAGRAM => (DATAGRAM + 1, QKEY),
            _ => (ATTACKED, self.keys[1]),
        };
        let state = self.friend.query(ATTACKED);
        let input = &mut *self.input;
        let pack = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let number = match kind {
            kind::VERBS_REPLY | kind::VERBS_READ_DATA => state.1.wrapping_sub(1),
            _ => state.2,
        };
        let number = number.wrapping_add(u32::from(input.byte() % 3)) % qnic_abi::verbs::NUMBERS;
        let names = pack(input.near32(to), input.near32(ATTACKER));
        let address = input.near_within(segment.address, BYTES - 5000);
        let request = u32::from(input.byte() % 7);
        let length = input.near(100);
        let right = match kind {
            kind::VERBS_MESSAGE | kind::VERBS_UNRELIABLE => {
                let request = request % 4;
                let (address, key) = if request < 2 { (address, key) } else { (0, 0) };
                let request = pack(key, input.near32(request));
                [
                    names,
                    number.into(),
                    input.near(0),
                    length,
                    address,
                    request,
                ]
            }
            kind::VERBS_READ => {
                let third = pack(number, input.near32(key));
                [names, third, address, length, 0, 0]
            }
            kind::VERBS_ATOMIC => {
                let third = pack(number, input.near32(key));
                [names, third, address & !7, 1, 2, input.near(5)]
            }
            kind::VERBS_REPLY => {
                let what = u32::from(input.byte() % 10) | u32::from(input.byte() % 32) << 8;
                [
                    names,
                    pack(number, input.near32(what)),
                    input.near(0),
                    9,
                    0,
                    0,
                ]
            }
            kind::VERBS_READ_DATA => [names, number.into(), input.near(0), 0, 0, 0],
            kind::VERBS_DATAGRAM => {
                let key = pack(input.near32(key), 5);
                [names, key, input.near(2 + u64::from(request & 1)), 0, 0, 0]
            }
            _ => [names, number.into(), 0, 0, 0, 0],
        };
        let mut words = [0; BODY_BYTES.div_ceil(8)];
        words[..right.len()].copy_from_slice(&right);
        words
    }
}

/// A session of the stranger with the friend's NIC: the numbers of both.
pub(super) fn open_session(net: &Net) -> [u64; 2] {
    net.cluster().outside.insert(STRANGER, Vec::new());
    let mut hello = Frame::new(&wire::Hello::<{ wire::kind::HELLO }> {
        window: 64.into(),
        leaves: 0.into(),
    });
    hand(net, &mut hello, [1000, 0], &[]);
    net.poll(FRIENDLY);
    let answer = net.cluster().outside[&STRANGER].first().copied();
    let answer = answer.expect("an answer to a hello");
    [1000, answer.envelope.source_session.get()]
}

fn hand(net: &Net, frame: &mut Frame, sessions: [u64; 2], payload: &[u8]) {
    let envelope = &mut frame.envelope;
    envelope.source_node = STRANGER.into();
    envelope.destination_node = (FRIENDLY as u16).into();
    envelope.source_session = sessions[0].into();
    envelope.destination_session = sessions[1].into();
    envelope.payload_length = (payload.len() as u16).into();
    let cluster = &mut *net.cluster();
    let (now, node) = (cluster.now, &mut cluster.nodes[FRIENDLY]);
    let payload = match payload {
        [] => Payload::None,
        bytes => Payload::Bytes(bytes),
    };
    node.nic.handle_frame(now, &node.host, frame, payload);
}
