//! The thread that asks the front end to map the SRAM.
//!
//! It waits for the front end's answer, which comes only when the front end has
//! done with the messages of the start that is under way; so the connection
//! thread cannot do it.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::Arc;
use std::thread::JoinHandle;

use vhost::vhost_user::message::{VhostUserMMap, VhostUserMMapFlags};
use vhost::vhost_user::{Backend, Error as ProtocolError, VhostUserFrontendReqHandler};

use super::Port;
use crate::engine::{Action, Command};
use crate::throttle::throttled;

/// The mapper of one connection. Ends, and is waited for, when it is dropped.
#[derive(Debug)]
pub(crate) struct Mapper {
    /// Number of the start to map for.
    epoch: Arc<AtomicU64>,
    request: Option<SyncSender<()>>,
    /// The socket that the thread may be waiting on.
    socket: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Mapper {
    /// Starts the thread. `socket` is the channel of `backend`.
    pub(crate) fn start(
        port: Arc<Port>,
        backend: Backend,
        socket: Option<UnixStream>,
    ) -> std::io::Result<Self> {
        let epoch = Arc::new(AtomicU64::new(0));
        let (request, requests) = mpsc::sync_channel(1);
        let latest = epoch.clone();
        let thread = std::thread::Builder::new()
            .name(format!("map-{}", port.name))
            .spawn(move || run(&port, &backend, &latest, &requests))?;
        Ok(Mapper {
            epoch,
            request: Some(request),
            socket,
            thread: Some(thread),
        })
    }

    /// Asks for the mapping of start number `epoch`; only the newest counts.
    pub(crate) fn map(&self, epoch: u64) {
        // Partner: the acquire load in `run`.
        self.epoch.store(epoch, Ordering::Release);
        if let Some(request) = &self.request {
            // Full: the thread has not taken the last request yet and will see the epoch.
            let _ = request.try_send(());
        }
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        self.request = None;
        if let Some(socket) = &self.socket {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(port: &Port, backend: &Backend, epoch: &AtomicU64, requests: &Receiver<()>) {
    while requests.recv().is_ok() {
        // Partner: the release store in `map`.
        let epoch = epoch.load(Ordering::Acquire);
        if !map(port, backend) {
            continue;
        }
        let action = Action::Mapped { epoch };
        let slot = port.slot;
        if port.engine.send(Command::Nic { slot, action }).is_err() {
            break;
        }
    }
}

/// Asks the front end to map the SRAM and says whether it is mapped now.
fn map(port: &Port, backend: &Backend) -> bool {
    let request = VhostUserMMap {
        shmid: qnic_abi::attach::SRAM_REGION,
        padding: [0; 7],
        fd_offset: 0,
        shm_offset: 0,
        len: port.sram_bytes,
        flags: VhostUserMMapFlags::WRITABLE.bits(),
    };
    let Err(error) = backend.shmem_map(&request, &port.sram) else {
        return true;
    };
    let protocol = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<ProtocolError>());
    if matches!(protocol, Some(ProtocolError::FrontendInternalError)) {
        tracing::debug!(
            nic = port.name,
            "the front end says that the SRAM is mapped already"
        );
        return true;
    }
    throttled!(
        port.throttle,
        warn,
        nic = port.name,
        "the front end did not map the SRAM: {error}"
    );
    false
}
