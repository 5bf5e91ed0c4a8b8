//! A NIC that answers requests and keeps tables of processes and segments.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec::Vec;

use qnic_abi::control::{
    self, Imported, Opcode, ReplyHeader, RequestHeader, REPLY_BYTES, REQUEST_BYTES,
};
use qnic_abi::counters::CounterPage;
use qnic_abi::{Secret, Status};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::verbs_tables::Verbs;
use crate::platform::{RequestError, Timeout};

qnic_abi::counters! {
    /// What the fake NIC counts: also something that the driver has never heard of.
    #[derive(Default)]
    struct Invented: u64 {
        Gauge _ "Registered processes." = processes;
        Counter _ "No driver knows it." = newer_than_the_driver;
    }
}

/// The fake NIC.
#[derive(Default)]
pub(crate) struct Nic {
    /// Processes by VNI.
    pub(crate) processes: BTreeMap<u16, control::NewProcess>,
    /// Segments by VNI and index.
    pub(crate) segments: BTreeMap<(u16, u16), control::Export>,
    /// Answers to faults, in their order.
    pub(crate) faults_done: Vec<(u16, control::FaultDone)>,
    /// Requests for whose response no thread waits.
    pub(crate) posted: u32,
    /// The waits that imports asked for, in milliseconds.
    pub(crate) import_waits: Vec<u32>,
    /// The secret of the last import.
    pub(crate) presented: Secret,
    /// The results of the next requests, in place of proper responses.
    pub(crate) next: VecDeque<Result<u32, RequestError>>,
    /// The driver has announced a reset.
    pub(crate) reset_announced: bool,
    /// Objects of verbs.
    pub(crate) verbs: Verbs,
    /// Stopped by the driver.
    pub(crate) stopped: bool,
}

impl Nic {
    pub(crate) fn request(
        &mut self,
        request: &[u8; REQUEST_BYTES],
        timeout: Timeout,
    ) -> Result<[u8; REPLY_BYTES], RequestError> {
        if self.stopped {
            return Err(RequestError::Gone);
        }
        if let Some(next) = self.next.pop_front() {
            return next.map(|code| respond(code, &[0u8; 0]));
        }
        let (header, body) = RequestHeader::read_from_prefix(request).unwrap();
        let vni = header.vni.get();
        let opcode = Opcode::try_from(header.opcode.get()).unwrap();
        assert_eq!(
            matches!(timeout, Timeout::Interruptible(_)),
            opcode == Opcode::Import
        );
        let known = self.processes.contains_key(&vni);
        let of_process = !matches!(
            opcode,
            Opcode::Hello
                | Opcode::Query
                | Opcode::QueryPath
                | Opcode::NewProcess
                | Opcode::AnnounceReset
        );
        if !known && of_process {
            return Ok(respond(Status::NoSuchVni.code(), &[0u8; 0]));
        }
        Ok(self.answer(opcode, vni, body))
    }

    fn answer(&mut self, opcode: Opcode, vni: u16, body: &[u8]) -> [u8; REPLY_BYTES] {
        let mut status = Status::Ok;
        match opcode {
            Opcode::QueryQueuePair => {
                return match self.verbs.query(body) {
                    Some(info) => respond(Status::Ok.code(), &info),
                    None => respond(Status::Malformed.code(), &[0u8; 0]),
                };
            }
            Opcode::CreateCompletionQueue
            | Opcode::CreateSharedReceiveQueue
            | Opcode::ModifySharedReceiveQueue
            | Opcode::CreateQueuePair
            | Opcode::ModifyQueuePair
            | Opcode::RegisterMemory
            | Opcode::DestroyObject => status = self.verbs.request(opcode, vni, body),
            Opcode::Hello | Opcode::ResetQueue => {}
            Opcode::AnnounceReset => self.reset_announced = true,
            Opcode::NewProcess => {
                let (process, _) = control::NewProcess::read_from_prefix(body).unwrap();
                let old = self.processes.insert(vni, process);
                assert!(old.is_none(), "VNI {vni} is registered twice");
            }
            Opcode::DeleteProcess => {
                self.processes.remove(&vni);
                self.segments.retain(|(owner, _), _| *owner != vni);
                self.verbs.forget(vni);
            }
            Opcode::Export => {
                let (segment, _) = control::Export::read_from_prefix(body).unwrap();
                let old = self.segments.insert((vni, segment.segment.get()), segment);
                assert!(old.is_none(), "segment index is used twice");
            }
            Opcode::Unexport => {
                let (segment, _) = control::Unexport::read_from_prefix(body).unwrap();
                let old = self.segments.remove(&(vni, segment.segment.get()));
                self.verbs.revoke(vni, segment.segment.get());
                status = old.map_or(Status::NoSuchSegment, |_| Status::Ok);
            }
            Opcode::Import => return self.import(body),
            Opcode::FaultDone => {
                let (done, _) = control::FaultDone::read_from_prefix(body).unwrap();
                self.faults_done.push((vni, done));
            }
            Opcode::QueryPath => {
                let (query, _) = control::QueryPath::read_from_prefix(body).unwrap();
                if query.node.get() != 1 {
                    return respond(Status::NoSuchNode.code(), &[0u8; 0]);
                }
                let path = control::PathInfo {
                    max_payload: 1024.into(),
                    ..Default::default()
                };
                return respond(Status::Ok.code(), &path);
            }
            Opcode::Query => {
                let (query, _) = control::Query::read_from_prefix(body).unwrap();
                let table = Invented {
                    processes: self.processes.len() as u64,
                    newer_than_the_driver: 7,
                };
                let page = CounterPage::of(&table, query.first.get());
                return respond(Status::Ok.code(), &page);
            }
        }
        respond(status.code(), &[0u8; 0])
    }

    fn import(&mut self, body: &[u8]) -> [u8; REPLY_BYTES] {
        let (import, _) = control::Import::read_from_prefix(body).unwrap();
        self.import_waits.push(import.wait_ms.get());
        self.presented = import.secret;
        let found = self.segments.values().find(|s| s.name == import.name);
        let Some(segment) = found else {
            return respond(Status::NameNotFound.code(), &[0u8; 0]);
        };
        let imported = Imported {
            segment: segment.segment,
            reserved: 0.into(),
            access: segment.access,
            address: segment.address,
            length: segment.length,
            key: segment.key,
        };
        respond(Status::Ok.code(), &imported)
    }

    /// Page keys of the segments of a process.
    pub(crate) fn page_keys(&self, vni: u16) -> BTreeSet<u64> {
        let mine = self.segments.iter().filter(|((owner, _), _)| *owner == vni);
        mine.map(|(_, segment)| segment.page_key.get()).collect()
    }
}

fn respond<T: IntoBytes + Immutable>(status: u32, body: &T) -> [u8; REPLY_BYTES] {
    let header = ReplyHeader {
        status: status.into(),
        reserved: 0.into(),
    };
    let mut bytes = [0; REPLY_BYTES];
    let (front, rest) = bytes.split_at_mut(size_of::<ReplyHeader>());
    front.copy_from_slice(header.as_bytes());
    rest[..size_of::<T>()].copy_from_slice(body.as_bytes());
    bytes
}
