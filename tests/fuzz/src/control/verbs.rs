//! Requests and commands of verbs (X18) that are right but for what the input makes wrong. Numbers are few, so that
//! requests meet the objects of others.

use qnic_abi::command::{CommandBody, Descriptor};
use qnic_abi::control::Opcode;
use qnic_abi::verbs::commands::{VerbsArmCommand, VerbsSendCommand};
use qnic_abi::verbs::requests::{
    CreateCompletionQueue, CreateQueuePair, CreateSharedReceiveQueue, DestroyObject,
    ModifyQueuePair, ModifySharedReceiveQueue, QueryQueuePair, RegisterMemory, Ring,
};
use qnic_abi::verbs::PathAddress;
use qnic_abi::{NodeId, PAGE_SIZE};
use qnic_nic::testing::SimSegment;
use zerocopy::{FromZeros, IntoBytes};

use crate::input::Input;

/// The protection domain of all objects.
const DOMAIN: u32 = 1;

/// What requests name: a segment of the process, its guest's frames, and the node of peers.
pub(super) struct Place {
    pub(super) segment: SimSegment,
    pub(super) frames: usize,
    pub(super) peer: u16,
}

/// One of few numbers that is not zero.
fn few(input: &mut Input<'_>) -> u32 {
    1 + u32::from(input.byte() % 3)
}

/// A queue pair, perhaps.
fn pair(input: &mut Input<'_>) -> u32 {
    let number = 10 + few(input);
    input.near32(number)
}

fn ring(input: &mut Input<'_>, frames: usize, bytes: u16) -> Ring {
    let entries: u32 = 2 << (input.byte() % 8);
    let pages = Ring::pages_behind(entries as usize * usize::from(bytes)) as u16;
    let [first, list] = [(); 2].map(|()| input.below(frames) as u64 * PAGE_SIZE as u64);
    Ring {
        first: input.near(first).into(),
        list: input.near(if pages > 0 { list } else { 0 }).into(),
        entries: input.near32(entries).into(),
        entry_bytes: input.near16(bytes).into(),
        pages: input.near16(pages).into(),
    }
}

/// The body of a request.
pub(super) fn body(opcode: Opcode, input: &mut Input<'_>, place: &Place) -> Vec<u8> {
    match opcode {
        Opcode::CreateCompletionQueue => {
            let mut body = CreateCompletionQueue::new_zeroed();
            body.cq = few(input).into();
            body.token = 5.into();
            body.ring = ring(input, place.frames, 64);
            body.as_bytes().to_vec()
        }
        Opcode::CreateSharedReceiveQueue => {
            let mut body = CreateSharedReceiveQueue::new_zeroed();
            body.srq = few(input).into();
            body.domain = input.near32(DOMAIN).into();
            body.token = 6.into();
            body.ring = ring(input, place.frames, 512);
            body.limit = input.near32(1).into();
            body.sges = input.near16(8).into();
            body.as_bytes().to_vec()
        }
        Opcode::ModifySharedReceiveQueue => {
            let (srq, limit) = (few(input).into(), input.near32(1).into());
            ModifySharedReceiveQueue { srq, limit }.as_bytes().to_vec()
        }
        Opcode::CreateQueuePair => create_pair(input, place.frames).as_bytes().to_vec(),
        Opcode::ModifyQueuePair => modify_pair(input, place.peer).as_bytes().to_vec(),
        Opcode::QueryQueuePair => {
            let mut body = QueryQueuePair::new_zeroed();
            body.qp = pair(input).into();
            body.as_bytes().to_vec()
        }
        Opcode::RegisterMemory => {
            let mut body = RegisterMemory::new_zeroed();
            let segment = place.segment.id.0;
            body.segment = input.near16(segment).into();
            body.rights = input.near16(15).into();
            body.key = input.near32(u32::from(segment) << 16 | 0x78).into();
            body.domain = input.near32(DOMAIN).into();
            body.address = input.near(place.segment.address).into();
            body.as_bytes().to_vec()
        }
        _ => {
            let object = few(input);
            let number = match object {
                2 => pair(input),
                _ => few(input),
            };
            let (object, number) = (input.near32(object).into(), number.into());
            DestroyObject { object, number }.as_bytes().to_vec()
        }
    }
}

fn create_pair(input: &mut Input<'_>, frames: usize) -> CreateQueuePair {
    let mut body = CreateQueuePair::new_zeroed();
    body.qp = pair(input).into();
    body.transport = input.near8(2);
    body.flags = input.near8(1);
    body.inline = input.near16(512).into();
    body.token = 7.into();
    body.domain = input.near32(DOMAIN).into();
    (body.send_cq, body.receive_cq) = (few(input).into(), few(input).into());
    body.send = ring(input, frames, 1024);
    match input.chance(64) {
        true => body.srq = few(input).into(),
        false => body.receive = ring(input, frames, 512),
    }
    (body.send_sges, body.receive_sges) = (input.near16(8).into(), input.near16(8).into());
    body
}

fn modify_pair(input: &mut Input<'_>, peer: u16) -> ModifyQueuePair {
    let mut body = ModifyQueuePair::new_zeroed();
    let state = input.byte() % 8;
    body.qp = pair(input).into();
    body.state = input.near8(state);
    body.access = input.near8(15);
    (body.timeout, body.retries) = (input.near8(14), input.near8(7));
    body.path = input
        .near32(PathAddress::new(NodeId(peer), 0, false).0)
        .into();
    body.peer_qp = pair(input).into();
    (body.send_psn, body.receive_psn) = (input.near32(1).into(), input.near32(1).into());
    (body.mtu, body.not_ready_timer) = (input.near8(5), input.near8(1));
    (body.max_reads, body.max_peer_reads) = (input.near8(8), input.near8(8));
    body.drain_event = input.near8(1);
    body
}

/// A command of the driver about these objects.
pub(super) fn command(input: &mut Input<'_>, peer: u16) -> Descriptor {
    if input.chance(128) {
        let mut send = VerbsSendCommand::command();
        send.header.remote_node = input.near16(peer).into();
        send.qp = pair(input).into();
        return send.descriptor();
    }
    let mut arm = VerbsArmCommand::command();
    arm.cq = few(input).into();
    arm.flags = input.near32(1).into();
    arm.seen = input.near32(0).into();
    arm.descriptor()
}

#[cfg(test)]
mod tests {
    use qnic_abi::control::{RequestHeader, REQUEST_BYTES};
    use qnic_abi::Status;
    use qnic_nic::testing::{status_of, Net};

    use super::*;
    use crate::honest::{limits, party, WINDOWS};

    /// So an input that spoils nothing gets to the objects.
    #[test]
    fn what_no_input_spoils_is_taken() {
        let net = Net::new(2, 144, WINDOWS, &limits());
        let villain = party(&net, 0, 3);
        let frames = net.cluster().nodes[0].nic.geometry().frames as usize;
        let place = Place {
            segment: villain.segment,
            frames,
            peer: 1,
        };
        for opcode in [
            Opcode::CreateCompletionQueue,
            Opcode::CreateSharedReceiveQueue,
            Opcode::ModifySharedReceiveQueue,
            Opcode::CreateQueuePair,
            Opcode::ModifyQueuePair,
            Opcode::QueryQueuePair,
            Opcode::RegisterMemory,
        ] {
            let header = RequestHeader {
                opcode: (opcode as u32).into(),
                vni: villain.vni.0.into(),
                reserved: 0.into(),
            };
            let body = body(opcode, &mut Input::new(&[]), &place);
            let mut request = [header.as_bytes(), &body].concat();
            request.resize(REQUEST_BYTES, 0);
            let reply = net.cluster().raw_request(0, &request, 1);
            let status = status_of(&reply.expect("a reply at once"));
            assert_eq!(status, Status::Ok, "{opcode:?}");
        }
    }
}
