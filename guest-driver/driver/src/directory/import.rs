//! Imports: segments of other processes, found by name (N3).
//!
//! The NIC answers when the name appears or the time is over. All processes of a guest
//! share its control queue, so none may fill it: a long import is sent as several
//! requests with short waits (a request whose thread was interrupted leaves the queue
//! soon), and the number of pending imports of a process is limited.

use core::sync::atomic::{AtomicU32, Ordering};

use qnic_abi::control::{self, Imported, Opcode, MAX_IMPORT_WAIT_MS};
use qnic_abi::{uapi, Status, VniId};

use crate::device::control_queue::Request;
use crate::device::Device;
use crate::error::CallError;
use crate::platform::{Platform, RequestError, Timeout};

/// Longest wait of one request, in milliseconds.
const REQUEST_WAIT_MS: u32 = 1000;

/// Pending imports of one process.
const IMPORTS_MAX: u32 = 8;

/// The number of pending imports of a process.
#[derive(Default)]
pub(crate) struct Imports(AtomicU32);

/// Permission for one import.
struct Permit<'a>(&'a AtomicU32);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Imports {
    fn acquire(&self) -> Option<Permit<'_>> {
        // Relaxed: the count orders nothing.
        let more = |count| (count < IMPORTS_MAX).then_some(count + 1);
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.ok().map(|_| Permit(&self.0))
    }

    /// Asks for a segment of another process (N3). Blocks; signals end the wait.
    pub(crate) fn import<P: Platform>(
        &self,
        device: &Device<P>,
        vni: VniId,
        call: &mut uapi::Import,
    ) -> Result<(), CallError> {
        let mut left_ms = call.wait_ms.get();
        if call.reserved.iter().any(|r| r.get() != 0) || left_ms > MAX_IMPORT_WAIT_MS {
            return Err(CallError::Invalid);
        }
        let Some(_permit) = self.acquire() else {
            call.status = Status::Exhausted.code().into();
            return Ok(());
        };
        loop {
            let wait_ms = left_ms.min(REQUEST_WAIT_MS);
            left_ms -= wait_ms;
            let status = send(device, vni, call, wait_ms)?;
            call.status = status.code().into();
            // A node that is not there yet may come, as a name may.
            let may_come = matches!(status, Status::NameNotFound | Status::NoSuchNode);
            if !may_come || left_ms == 0 {
                return Ok(());
            }
        }
    }
}

/// Sends one request, which the NIC answers within `wait_ms`.
fn send<P: Platform>(
    device: &Device<P>,
    vni: VniId,
    call: &mut uapi::Import,
    wait_ms: u32,
) -> Result<Status, CallError> {
    let body = control::Import {
        node: call.node,
        port: call.port,
        wait_ms: wait_ms.into(),
        name: call.name,
        secret: call.secret,
    };
    let timeout = Timeout::Interruptible(wait_ms.saturating_add(device.response_ms()));
    let request = Request::new(Opcode::Import, vni, &body);
    let response = match request.send(&device.platform, timeout) {
        Ok(response) => response,
        Err(RequestError::TooMany) => return Ok(Status::Exhausted),
        Err(RequestError::Interrupted) => return Err(CallError::Interrupted),
        Err(RequestError::Gone | RequestError::TimedOut) => return Err(CallError::NoDevice),
    };
    let status = device.status(&response)?;
    if status == Status::Ok {
        let imported: Imported = response.body().ok_or(CallError::NoDevice)?;
        call.access = imported.access;
        call.address = imported.address;
        call.length = imported.length;
        call.key = imported.key;
        call.segment = imported.segment;
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{exporter, running, Fake, PAGE};
    use crate::Process;
    use std::vec::Vec;

    fn import(process: &Process<Fake>, name: u64, wait_ms: u32) -> (Status, uapi::Import) {
        let mut call = uapi::Import {
            name: name.into(),
            wait_ms: wait_ms.into(),
            ..Default::default()
        };
        process.import(&mut call).unwrap();
        (Status::try_from(call.status.get()).unwrap(), call)
    }

    #[test]
    fn an_import_passes_on_what_the_nic_says() {
        let (fake, _, process) = exporter(1, true);
        assert_eq!(import(&process, 5, 0).0, Status::NameNotFound);
        let (status, imported) = import(&process, 0, 0);
        assert_eq!(status, Status::Ok);
        let segment = fake.nic().segments[&(process.vni().0, 0)];
        assert_eq!(imported.key, segment.key);
        assert_eq!(imported.address.get(), 16 * PAGE);
        assert_eq!(imported.length.get(), PAGE);
        let mut call = uapi::Import::default();
        fake.nic().next.push_back(Err(RequestError::Interrupted));
        assert_eq!(process.import(&mut call), Err(CallError::Interrupted));
        assert!(process.driver.is_alive());
        fake.nic().next.push_back(Err(RequestError::TooMany));
        assert_eq!(import(&process, 0, 0).0, Status::Exhausted);
        call.wait_ms = (MAX_IMPORT_WAIT_MS + 1).into();
        assert_eq!(process.import(&mut call), Err(CallError::Invalid));
    }

    #[test]
    fn a_long_import_is_sent_as_several_requests() {
        let (fake, _, process) = running();
        assert_eq!(import(&process, 5, 2500).0, Status::NameNotFound);
        assert_eq!(fake.nic().import_waits, [1000, 1000, 500]);
    }

    #[test]
    fn a_node_that_is_not_there_yet_is_waited_for_as_long_as_a_name() {
        let (fake, _, process) = exporter(1, true);
        let absent = || Ok(Status::NoSuchNode.code());
        fake.nic().next.extend([absent(), absent()]);
        assert_eq!(import(&process, 0, 2500).0, Status::Ok);
        fake.nic().next.extend([absent(), absent(), absent()]);
        assert_eq!(import(&process, 0, 2500).0, Status::NoSuchNode);
    }

    #[test]
    fn one_process_waits_for_so_many_imports() {
        let (_, _, process) = running();
        let permits: Vec<_> = (0..IMPORTS_MAX)
            .map(|_| process.state.imports.acquire().unwrap())
            .collect();
        assert_eq!(import(&process, 0, 0).0, Status::Exhausted);
        drop(permits);
        assert_eq!(import(&process, 0, 0).0, Status::NameNotFound);
    }
}
