//! Imports: segments of other processes, found by name (N3).
//!
//! The NIC answers when the name appears or the time is over. Its control queue is
//! shared by all processes of a guest, so nobody may fill it: an import is asked
//! for in slices (a request that its thread has given up leaves the queue soon),
//! and a process waits for a few at a time.

use core::sync::atomic::{AtomicU32, Ordering};

use qnic_abi::control::{self, Imported, Opcode, MAX_IMPORT_WAIT_MS};
use qnic_abi::{uapi, Status};

use crate::control::Request;
use crate::error::CallError;
use crate::platform::{Platform, RequestError};
use crate::process::Process;

/// Longest wait of one request, in milliseconds.
const IMPORT_SLICE_MS: u32 = 1000;

/// Imports that one process waits for at the same time.
const IMPORTS_MAX: u32 = 8;

/// One of the imports that a process may wait for at the same time.
struct Turn<'a>(&'a AtomicU32);

impl<'a> Turn<'a> {
    fn take(count: &'a AtomicU32) -> Option<Self> {
        // Relaxed: the count orders nothing.
        let more = |count| (count < IMPORTS_MAX).then_some(count + 1);
        let taken = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.ok().map(|_| Turn(count))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<P: Platform> Process<P> {
    /// Asks for a segment of another process (N3). Blocks; signals end the wait.
    ///
    /// # Errors
    /// `Invalid`, `NotRegistered`, `NoDevice`, `Interrupted`.
    pub fn import(&self, call: &mut uapi::Import) -> Result<(), CallError> {
        self.check_open()?;
        let wait_ms = call.wait_ms.get();
        if call.reserved.iter().any(|r| r.get() != 0) || wait_ms > MAX_IMPORT_WAIT_MS {
            return Err(CallError::Invalid);
        }
        let Some(_turn) = Turn::take(&self.state().imports) else {
            call.status = Status::Exhausted.code().into();
            return Ok(());
        };
        let mut left_ms = wait_ms;
        loop {
            let slice_ms = left_ms.min(IMPORT_SLICE_MS);
            left_ms -= slice_ms;
            let status = self.import_once(call, slice_ms)?;
            call.status = status.code().into();
            if status != Status::NameNotFound || left_ms == 0 {
                return Ok(());
            }
        }
    }

    /// Asks the NIC once, to wait for so long.
    fn import_once(&self, call: &mut uapi::Import, wait_ms: u32) -> Result<Status, CallError> {
        let body = control::Import {
            node: call.node,
            port: call.port,
            wait_ms: wait_ms.into(),
            name: call.name,
        };
        let reply = Request::new(Opcode::Import, self.vni(), &body)
            .send_patiently(&self.driver().platform, wait_ms);
        let reply = match reply {
            Ok(reply) => reply,
            Err(RequestError::TooMany) => return Ok(Status::Exhausted),
            Err(RequestError::Interrupted) => return Err(CallError::Interrupted),
            Err(RequestError::Gone | RequestError::TimedOut) => return Err(CallError::NoDevice),
        };
        let status = self.driver().status(&reply)?;
        if status == Status::Ok {
            let imported: Imported = reply.body().ok_or(CallError::NoDevice)?;
            call.access = imported.access;
            call.address = imported.address;
            call.length = imported.length;
            call.key = imported.key;
            call.segment = imported.segment;
        }
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{register, Fake};
    use std::vec::Vec;

    #[test]
    fn an_import_passes_on_what_the_nic_says() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        let process = register(&driver);
        let mut call = uapi::Import {
            name: 5.into(),
            ..Default::default()
        };
        assert_eq!(process.import(&mut call), Ok(()));
        assert_eq!(call.status.get(), Status::NameNotFound.code());
        fake.kernel.map(100, 1, true);
        let mut export = uapi::Export {
            access: 1.into(),
            name: 5.into(),
            address: (100u64 << 12).into(),
            length: 64.into(),
            ..Default::default()
        };
        process.export(&mut export).unwrap();
        process.import(&mut call).unwrap();
        assert_eq!(call.status.get(), Status::Ok.code());
        assert_eq!((call.key, call.address), (export.key, export.address));
        assert_eq!(call.length.get(), 64);
        fake.nic().next.push_back(Err(RequestError::Interrupted));
        assert_eq!(process.import(&mut call), Err(CallError::Interrupted));
        assert!(driver.is_alive());
        fake.nic().next.push_back(Err(RequestError::TooMany));
        assert_eq!(process.import(&mut call), Ok(()));
        assert_eq!(call.status.get(), Status::Exhausted.code());
        call.wait_ms = (MAX_IMPORT_WAIT_MS + 1).into();
        assert_eq!(process.import(&mut call), Err(CallError::Invalid));
    }

    #[test]
    fn a_long_import_is_asked_for_in_slices() {
        let fake = Fake::new();
        let process = register(&fake.start().unwrap());
        let mut call = uapi::Import {
            name: 5.into(),
            wait_ms: 2500.into(),
            ..Default::default()
        };
        assert_eq!(process.import(&mut call), Ok(()));
        assert_eq!(call.status.get(), Status::NameNotFound.code());
        assert_eq!(fake.nic().import_waits, [1000, 1000, 500]);
        fake.nic().next.push_back(Ok(Status::NoSuchNode.code()));
        assert_eq!(process.import(&mut call), Ok(()));
        assert_eq!(call.status.get(), Status::NoSuchNode.code());
    }

    #[test]
    fn one_process_waits_for_so_many_imports() {
        let fake = Fake::new();
        let process = register(&fake.start().unwrap());
        let turns: Vec<_> = (0..IMPORTS_MAX)
            .map(|_| Turn::take(&process.state().imports).unwrap())
            .collect();
        let mut call = uapi::Import::default();
        assert_eq!(process.import(&mut call), Ok(()));
        assert_eq!(call.status.get(), Status::Exhausted.code());
        drop(turns);
        assert_eq!(process.import(&mut call), Ok(()));
        assert_eq!(call.status.get(), Status::NameNotFound.code());
    }
}
