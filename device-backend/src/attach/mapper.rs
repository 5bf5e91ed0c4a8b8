//! The thread that asks the front end to map the SRAM.
//!
//! It waits for the front end's response, which comes only when the front end has
//! handled the messages of the present start; so the connection thread cannot do it.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;

use vhost::vhost_user::message::{VhostUserMMap, VhostUserMMapFlags};
use vhost::vhost_user::{Backend, Error as ProtocolError, VhostUserFrontendReqHandler};

use super::Attachment;
use crate::throttle::throttled;

/// The mapper of one connection. Dropping it ends its thread and waits for it.
#[derive(Debug)]
pub(crate) struct Mapper {
    /// Takes the numbers of starts to map for.
    epochs: Option<Sender<u64>>,
    /// The socket that the thread may be waiting on.
    socket: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Mapper {
    /// Starts the thread. `socket` is the channel of `backend`.
    pub(crate) fn start(
        nic: Arc<Attachment>,
        backend: Backend,
        socket: Option<UnixStream>,
    ) -> std::io::Result<Self> {
        let (epochs, requests) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(format!("map-{}", nic.name))
            .spawn(move || run(&nic, &backend, &requests))?;
        Ok(Mapper {
            epochs: Some(epochs),
            socket,
            thread: Some(thread),
        })
    }

    /// Requests the mapping for start number `epoch`; only the newest request counts.
    pub(crate) fn map(&self, epoch: u64) {
        if let Some(epochs) = &self.epochs {
            let _ = epochs.send(epoch);
        }
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        self.epochs = None;
        if let Some(socket) = &self.socket {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(nic: &Attachment, backend: &Backend, requests: &Receiver<u64>) {
    while let Ok(request) = requests.recv() {
        let epoch = requests.try_iter().last().unwrap_or(request);
        if !map(nic, backend) {
            continue;
        }
        let mapped = nic.ask(move |port, cx| port.mapped(cx, epoch));
        if mapped.is_err() {
            break;
        }
    }
}

/// Asks the front end to map the SRAM. Returns true if it is mapped now.
fn map(nic: &Attachment, backend: &Backend) -> bool {
    let request = VhostUserMMap {
        shmid: qnic_abi::attach::SRAM_REGION,
        padding: [0; 7],
        fd_offset: 0,
        shm_offset: 0,
        len: nic.sram_bytes,
        flags: VhostUserMMapFlags::WRITABLE.bits(),
    };
    let Err(error) = backend.shmem_map(&request, &nic.sram) else {
        return true;
    };
    let protocol = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<ProtocolError>());
    if matches!(protocol, Some(ProtocolError::FrontendInternalError)) {
        tracing::debug!(
            nic = nic.name,
            "the front end says that the SRAM is mapped already"
        );
        return true;
    }
    throttled!(nic, warn, "the front end did not map the SRAM: {error}");
    false
}
