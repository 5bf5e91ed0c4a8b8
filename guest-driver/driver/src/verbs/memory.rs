//! Registered memory: a segment that no process can import, and a key for verbs.

use qnic_abi::control::Opcode;
use qnic_abi::export::{ExportOptions, LISTED};
use qnic_abi::verbs::requests::RegisterMemory;
use qnic_abi::verbs::Rights;
use qnic_abi::{uapi, Access, Status};

use super::context::Context;
use crate::error::Failure;
use crate::memory::MemoryManager;

/// How many random keys are tried: one in 65,536 is zero.
const KEY_TRIES: u32 = 8;

impl<P: MemoryManager> Context<P> {
    /// Registers memory of the process, and returns its key. Nothing is pinned. `named` is the address by
    /// which work requests name the first byte.
    ///
    /// # Errors
    /// `Refused` as by an export, else `Invalid`, `NotRegistered`, `NoDevice`, `NoMemory`.
    pub fn register(
        &self,
        domain: u32,
        (address, length): (u64, u64),
        named: u64,
        rights: Rights,
    ) -> Result<u32, Failure> {
        let mut access = Access::READ;
        access.set(Access::WRITE, rights.contains(Rights::LOCAL_WRITE));
        let mut call = uapi::Export {
            access: access.bits().into(),
            name: u64::from(self.next_number()).into(),
            address: address.into(),
            length: length.into(),
            flags: uapi::OVERLAPPING.into(),
            options: ExportOptions {
                flags: LISTED.into(),
                ..ExportOptions::open()
            },
            ..Default::default()
        };
        self.check_open()?;
        self.state.exports.export(&mut call)?;
        let refused = Status::try_from(call.status.get());
        Failure::check(refused.unwrap_or(Status::Malformed))?;
        let segment = call.segment.get();
        let key = u32::from(segment) << 16 | u32::from(self.random_key()?);
        let body = RegisterMemory {
            segment: segment.into(),
            rights: (rights.bits() as u16).into(),
            key: key.into(),
            domain: domain.into(),
            reserved: 0.into(),
            address: named.into(),
        };
        let registered = self.request(Opcode::RegisterMemory, &body);
        if let Err(failure) = registered {
            // Why it could not be registered says more than what this fails with.
            let _ = self.deregister(key);
            return Err(failure);
        }
        Ok(key)
    }

    /// Ends registered memory: when it returns, the NIC does not access it for this key any more.
    ///
    /// # Errors
    /// `Refused`; `Invalid`, `NotRegistered`, `NoDevice`.
    pub fn deregister(&self, key: u32) -> Result<(), Failure> {
        self.check_open()?;
        let mut call = uapi::Unexport {
            segment: ((key >> 16) as u16).into(),
            ..Default::default()
        };
        self.state.exports.unexport(&mut call)?;
        Failure::check(Status::try_from(call.status.get()).unwrap_or(Status::Malformed))
    }

    fn random_key(&self) -> Result<u16, Failure> {
        let random = || self.device.platform.random() as u16;
        let mut tried = (0..KEY_TRIES).map(|_| random());
        let key = tried.find(|key| *key != 0);
        key.ok_or(Status::Exhausted.into())
    }
}
