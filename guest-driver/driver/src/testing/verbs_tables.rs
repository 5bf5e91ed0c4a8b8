//! The tables of verbs of the fake NIC.

use std::collections::BTreeMap;

use qnic_abi::control::Opcode;
use qnic_abi::verbs::requests::{
    CreateCompletionQueue, CreateQueuePair, CreateSharedReceiveQueue, DestroyObject,
    ModifyQueuePair, ModifySharedReceiveQueue, Object, QueryQueuePair, QueuePairInfo,
    RegisterMemory, Ring,
};
use qnic_abi::Status;
use zerocopy::FromBytes;

/// What the driver has made, by VNI and number; queue pairs by number.
#[derive(Default)]
pub(crate) struct Verbs {
    pub(crate) queues: BTreeMap<(u16, u32), CreateCompletionQueue>,
    pub(crate) shared: BTreeMap<(u16, u32), CreateSharedReceiveQueue>,
    pub(crate) pairs: BTreeMap<u32, (u16, CreateQueuePair, ModifyQueuePair)>,
    pub(crate) memory: BTreeMap<(u16, u32), RegisterMemory>,
}

fn body<T: FromBytes>(bytes: &[u8]) -> T {
    T::read_from_prefix(bytes).unwrap().0
}

fn check(ring: &Ring) {
    assert!(ring.is_valid(), "{ring:?}");
}

impl Verbs {
    /// The process has ended.
    pub(crate) fn forget(&mut self, vni: u16) {
        self.queues.retain(|(owner, _), _| *owner != vni);
        self.shared.retain(|(owner, _), _| *owner != vni);
        self.pairs.retain(|_, (owner, ..)| *owner != vni);
        self.memory.retain(|(owner, _), _| *owner != vni);
    }

    /// The segment has ended.
    pub(crate) fn revoke(&mut self, vni: u16, segment: u16) {
        let same = |memory: &RegisterMemory| memory.segment.get() == segment;
        self.memory
            .retain(|(owner, _), memory| *owner != vni || !same(memory));
    }

    /// Answers a request that has no reply body.
    pub(crate) fn request(&mut self, opcode: Opcode, vni: u16, bytes: &[u8]) -> Status {
        match opcode {
            Opcode::CreateCompletionQueue => {
                let made: CreateCompletionQueue = body(bytes);
                check(&made.ring);
                self.queues.insert((vni, made.cq.get()), made);
            }
            Opcode::CreateSharedReceiveQueue => {
                let made: CreateSharedReceiveQueue = body(bytes);
                check(&made.ring);
                self.shared.insert((vni, made.srq.get()), made);
            }
            Opcode::ModifySharedReceiveQueue => {
                let change: ModifySharedReceiveQueue = body(bytes);
                let Some(queue) = self.shared.get_mut(&(vni, change.srq.get())) else {
                    return Status::Malformed;
                };
                queue.limit = change.limit;
            }
            Opcode::CreateQueuePair => {
                let made: CreateQueuePair = body(bytes);
                check(&made.send);
                match made.srq.get() {
                    0 => check(&made.receive),
                    srq => {
                        assert!(self.shared.contains_key(&(vni, srq)));
                        assert_eq!(made.receive, Ring::default());
                    }
                }
                if self.pairs.contains_key(&made.qp.get()) {
                    return Status::NameExists;
                }
                for queue in [made.send_cq, made.receive_cq] {
                    assert!(self.queues.contains_key(&(vni, queue.get())));
                }
                let pair = (vni, made, ModifyQueuePair::default());
                self.pairs.insert(made.qp.get(), pair);
            }
            Opcode::ModifyQueuePair => {
                let change: ModifyQueuePair = body(bytes);
                let Some((_, _, now)) = self.pairs.get_mut(&change.qp.get()) else {
                    return Status::Malformed;
                };
                *now = change;
            }
            Opcode::RegisterMemory => {
                let memory: RegisterMemory = body(bytes);
                let key = memory.key.get();
                let legal = key >> 16 == u32::from(memory.segment.get()) && key & 0xffff != 0;
                assert!(legal, "key {key:#x}");
                self.memory.insert((vni, key), memory);
            }
            Opcode::DestroyObject => return self.destroy(vni, body(bytes)),
            _ => return Status::Malformed,
        }
        Status::Ok
    }

    fn destroy(&mut self, vni: u16, wanted: DestroyObject) -> Status {
        let number = wanted.number.get();
        let was_there = match Object::try_from(wanted.object.get()) {
            Ok(Object::CompletionQueue) => self.queues.remove(&(vni, number)).is_some(),
            Ok(Object::QueuePair) => self.pairs.remove(&number).is_some(),
            Ok(Object::Memory) => self.memory.remove(&(vni, number)).is_some(),
            Ok(Object::SharedReceiveQueue) => self.shared.remove(&(vni, number)).is_some(),
            Err(_) => false,
        };
        match was_there {
            true => Status::Ok,
            false => Status::Malformed,
        }
    }

    /// Answers a question for a queue pair.
    pub(crate) fn query(&self, bytes: &[u8]) -> Option<QueuePairInfo> {
        let asked: QueryQueuePair = body(bytes);
        let (_, _, now) = self.pairs.get(&asked.qp.get())?;
        Some(QueuePairInfo {
            state: now.state,
            send_psn: now.send_psn,
            receive_psn: now.receive_psn,
            ..Default::default()
        })
    }
}
