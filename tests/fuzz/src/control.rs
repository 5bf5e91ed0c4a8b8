//! Requests on the control queue: what a guest's kernel asks of its NIC. The target
//! `vhost_user` attacks the virtqueue that brings them.
//!
//! After any input: every request has got one reply; honest nodes exchange data and keep
//! their bytes; all lists of all NICs are within their limits; after a reset nothing is
//! held, and the NIC serves again.

mod verbs;

use std::collections::BTreeSet;

use qnic_abi::control::{
    Export, FaultDone, Hello, Import, NewProcess, Opcode, QueryPath, RequestHeader, Unexport,
    MAX_IMPORT_WAIT_MS, PROCESS_DRIVER, PROCESS_PHYSICAL, REQUEST_BYTES,
};
use qnic_abi::datagram::DRIVER_PORT;
use qnic_abi::export::{ExportOptions, IMPORTERS_MAX, LISTED};
use qnic_abi::{Secret, ABI_VERSION, PAGE_SIZE};
use zerocopy::{FromZeros, IntoBytes};

use crate::guest::{Guest, HOSTILE};
use crate::honest::{pass, BYTES};
use crate::input::Input;

/// Most steps of one input.
const STEPS: usize = 96;

/// Tokens of the requests that an input makes, from here on.
const TOKENS: u64 = 1 << 40;

/// Longest time that an import may wait, and a bit more, in nanoseconds.
const ALL_IMPORTS: u64 = (MAX_IMPORT_WAIT_MS as u64 + 60_000) * 1_000_000;

/// Runs one input.
///
/// # Panics
/// If a promise is broken.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut guest = Guest::new(&mut input, true);
    let mut requests = Requests::default();
    for _ in 0..STEPS {
        if guest.input.is_empty() {
            break;
        }
        match guest.input.byte() {
            0..=159 => requests.send(&mut guest),
            160..=199 => guest.time(),
            200..=209 => guest.command(),
            210..=219 => {
                let command = verbs::command(guest.input, guest.friend.node as u16);
                guest.villain.post(&command);
            }
            220..=229 => guest.scribble_window(),
            230..=239 => guest.ring(),
            240..=251 => guest.scribble_sram(),
            _ => requests.reset(&guest),
        }
        requests.take_replies(&guest);
        guest.check();
    }
    pass(&guest.net, ALL_IMPORTS);
    guest.net.run();
    requests.take_replies(&guest);
    assert!(requests.pending.is_empty(), "a request without a reply");
    guest.end();
}

/// Requests that were sent.
#[derive(Debug, Default)]
struct Requests {
    count: u64,
    pending: BTreeSet<u64>,
}

impl Requests {
    fn send(&mut self, guest: &mut Guest<'_, '_>) {
        let mut bytes = request(guest);
        if guest.input.chance(4) {
            bytes.truncate(guest.input.below(REQUEST_BYTES));
        }
        let token = TOKENS + self.count;
        self.count += 1;
        let mut cluster = guest.net.cluster();
        if cluster.raw_request(HOSTILE, &bytes, token).is_none() {
            self.pending.insert(token);
        }
    }

    fn take_replies(&mut self, guest: &Guest<'_, '_>) {
        let mut cluster = guest.net.cluster();
        cluster.serve(HOSTILE);
        for (token, _) in cluster.nodes[HOSTILE].replies.drain(..) {
            assert!(self.pending.remove(&token), "a reply to no request");
        }
    }

    /// The guest resets its device: it waits for no replies any more.
    fn reset(&mut self, guest: &Guest<'_, '_>) {
        self.take_replies(guest);
        self.pending.clear();
        let mut cluster = guest.net.cluster();
        cluster.reset(HOSTILE);
        cluster.start(HOSTILE);
    }
}

/// A request that is right but for what the input makes wrong.
fn request(guest: &mut Guest<'_, '_>) -> Vec<u8> {
    let segment = guest.villain.segment;
    let friend = guest.friend.segment;
    let memory = guest.net.cluster().nodes[HOSTILE].nic.geometry().frames as usize;
    let input = &mut *guest.input;
    let opcode = input.pick(&Opcode::ALL);
    let header = RequestHeader {
        opcode: input.near32(opcode as u32).into(),
        vni: input.near16(guest.villain.vni.0).into(),
        reserved: u16::from(input.chance(4)).into(),
    };
    let mut bytes = header.as_bytes().to_vec();
    match opcode {
        Opcode::Hello => bytes.extend_from_slice(hello(input, memory).as_bytes()),
        Opcode::NewProcess => bytes.extend_from_slice(new_process(input, memory).as_bytes()),
        Opcode::Export => {
            let export = Export {
                segment: u16::from(input.byte()).into(),
                flags: u16::from(input.chance(48)).into(),
                access: input.near32(3).into(),
                name: near_name(input).into(),
                address: input.near(segment.address).into(),
                length: input.near(BYTES).into(),
                key: input.near(segment.key).into(),
                page_key: input.near(0).into(),
                options: options(input, friend.node as u16),
            };
            bytes.extend_from_slice(export.as_bytes());
        }
        Opcode::Unexport => {
            let mut unexport = Unexport::new_zeroed();
            unexport.segment = u16::from(input.byte()).into();
            bytes.extend_from_slice(unexport.as_bytes());
        }
        Opcode::Import => {
            let node = match input.byte() {
                0..=127 => friend.node as u16,
                128..=159 => HOSTILE as u16,
                160..=191 => 7,
                _ => input.short(),
            };
            let import = Import {
                node: node.into(),
                port: input.near16(friend.port.0).into(),
                wait_ms: input.near32(0).into(),
                name: input.near(7).into(),
                secret: secret(input),
            };
            bytes.extend_from_slice(import.as_bytes());
        }
        Opcode::FaultDone => {
            let done = FaultDone {
                fault: u64::from(input.near32(1)).into(),
                status: input.near32(0).into(),
                reserved: Default::default(),
            };
            bytes.extend_from_slice(done.as_bytes());
        }
        Opcode::QueryPath => {
            let node = match input.chance(128) {
                true => friend.node as u16,
                false => input.short(),
            };
            let query = QueryPath {
                node: node.into(),
                reserved: [u16::from(input.chance(4)).into(); 3],
            };
            bytes.extend_from_slice(query.as_bytes());
        }
        opcode @ (Opcode::CreateCompletionQueue
        | Opcode::CreateSharedReceiveQueue
        | Opcode::ModifySharedReceiveQueue
        | Opcode::CreateQueuePair
        | Opcode::ModifyQueuePair
        | Opcode::QueryQueuePair
        | Opcode::RegisterMemory
        | Opcode::DestroyObject) => {
            let (frames, peer) = (memory, friend.node as u16);
            let place = verbs::Place {
                segment,
                frames,
                peer,
            };
            bytes.extend_from_slice(&verbs::body(opcode, input, &place));
        }
        Opcode::DeleteProcess | Opcode::ResetQueue | Opcode::Query | Opcode::AnnounceReset => {}
    }
    bytes.resize(REQUEST_BYTES, 0);
    if input.chance(4) {
        let at = input.below(REQUEST_BYTES);
        bytes[at] = input.byte();
    }
    bytes
}

/// Options of an export that are often right, and shut out few.
fn options(input: &mut Input<'_>, friend: u16) -> ExportOptions {
    let mut options = ExportOptions::open();
    if input.chance(64) {
        options.secret = secret(input);
        options.first_notification = input.near32(1).into();
        options.last_notification = input.near32(u32::MAX).into();
    }
    if input.chance(64) {
        let count = input.byte() % (IMPORTERS_MAX as u8 + 2);
        options.flags = input.near32(LISTED).into();
        options.count = input.near32(count.into()).into();
        for entry in options.importers.iter_mut().take(count.into()) {
            entry.node = input.near16(friend).into();
            entry.port = input.near16(0).into();
        }
    }
    options
}

/// None, or one of few secrets.
fn secret(input: &mut Input<'_>) -> Secret {
    Secret([input.byte() % 4; 16])
}

/// A name that is likely to be exported already.
fn near_name(input: &mut Input<'_>) -> u64 {
    let name = u64::from(input.byte() % 16);
    input.near(name)
}

fn hello(input: &mut Input<'_>, frames: usize) -> Hello {
    Hello {
        abi_version: input.near32(ABI_VERSION).into(),
        reserved: u32::from(input.chance(4)).into(),
        frames: input.near(frames as u64).into(),
    }
}

fn new_process(input: &mut Input<'_>, frames: usize) -> NewProcess {
    let mut process = NewProcess::new_zeroed();
    let port = 200 + u16::from(input.byte() % 8);
    process.port = input.near16(port).into();
    match input.byte() {
        0..=31 => {
            process.port = DRIVER_PORT.into();
            process.flags = PROCESS_DRIVER.into();
        }
        160.. => process.flags = PROCESS_PHYSICAL.into(),
        _ => {}
    }
    process.host_area = std::array::from_fn(|_| {
        let frame = input.below(frames) as u64;
        input.near(frame * PAGE_SIZE as u64).into()
    });
    process
}
