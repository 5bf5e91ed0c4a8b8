//! The vhost-user session with the device process, as its front end.
//!
//! ```text
//!   GET/SET_FEATURES, PROTOCOL_FEATURES, SET_OWNER       [FrontEnd::open]
//!   GET_CONFIG                                           [FrontEnd::config]
//!   SET_BACKEND_REQ_FD                                   [FrontEnd::give_channel]
//!   SET_MEM_TABLE, SET_VRING_NUM/ADDR/BASE/CALL/KICK,
//!   SET_VRING_ENABLE ──► the device sends SHMEM_MAP      [FrontEnd::start], [SramSlot]
//! ```

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use qnic_abi::attach::{
    CONFIG_SIZE, CONTROL_QUEUE, EVENT_QUEUE, FIRST_DOORBELL, SRAM_REGION, YIELDING,
};
use qnic_shared::region::{map_shared, Kept, SharedRegion};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserMMap, VhostUserMMapFlags,
    VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, HandlerResult, VhostUserFrontend, VhostUserFrontendReqHandler};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use crate::arena::Arena;
use crate::control::Control;
use crate::error::ConnectError;
use crate::events::Events;

/// How long the device process may take to answer a message.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// `VIRTIO_F_VERSION_1`.
const VERSION_1: u64 = 1 << 32;

/// Protocol features without which there is no NIC.
const NEEDED: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::CONFIG)
    .union(VhostUserProtocolFeatures::BACKEND_REQ)
    .union(VhostUserProtocolFeatures::BACKEND_SEND_FD)
    .union(VhostUserProtocolFeatures::SHMEM);

/// A connection to a device process. A forked child has none, as it would keep the NIC from the next
/// node.
pub(crate) struct FrontEnd {
    _kept: Kept,
    device: Frontend,
}

/// Names the message that failed.
fn check<T>(message: &'static str, result: vhost::Result<T>) -> Result<T, ConnectError> {
    result.map_err(|error| ConnectError::Protocol { message, error })
}

impl FrontEnd {
    /// Connects and negotiates features. The second result is the connection
    /// itself, to be polled and shut down.
    pub(crate) fn open(path: &Path) -> Result<(Self, UnixStream), ConnectError> {
        let connect = || {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
            Ok((stream.try_clone()?, stream))
        };
        let (connection, stream) = connect().map_err(|error| ConnectError::Connect {
            path: path.to_owned(),
            error,
        })?;
        let kept = Kept::descriptor(&stream);
        let mut frontend = Frontend::from_stream(stream, FIRST_DOORBELL as u64);
        negotiate(&mut frontend)?;
        let front_end = FrontEnd {
            _kept: kept,
            device: frontend,
        };
        Ok((front_end, connection))
    }

    /// Reads the configuration space.
    pub(crate) fn config(&mut self) -> Result<[u8; CONFIG_SIZE], ConnectError> {
        let empty = [0; CONFIG_SIZE];
        let flags = VhostUserConfigFlags::empty();
        let config = self.device.get_config(0, CONFIG_SIZE as u32, flags, &empty);
        let (_, bytes) = check("GET_CONFIG", config)?;
        bytes
            .try_into()
            .map_err(|_| ConnectError::MissingFeature("a configuration space of the right size"))
    }

    /// Gives the device the channel on which it can ask for SHMEM_MAP.
    pub(crate) fn give_channel(&mut self, channel: &dyn AsRawFd) -> Result<(), ConnectError> {
        let set = self.device.set_backend_request_fd(channel);
        check("SET_BACKEND_REQ_FD", set)
    }

    /// Gives memory and queues to the device, and enables them.
    pub(crate) fn start(
        &mut self,
        arena: &Arena,
        control: &Control,
        events: &Events,
        doorbells: &[EventFd],
    ) -> Result<(), ConnectError> {
        let queues = FIRST_DOORBELL + doorbells.len();
        let offered = check("GET_QUEUE_NUM", self.device.get_queue_num())?;
        if offered < queues as u64 {
            return Err(ConnectError::MissingFeature(
                "a virtqueue for each doorbell",
            ));
        }
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: arena.size() as u64,
            userspace_addr: arena.base(),
            mmap_offset: 0,
            mmap_handle: arena.file.as_raw_fd(),
        };
        check("SET_MEM_TABLE", self.device.set_mem_table(&[region]))?;
        self.set_queue(CONTROL_QUEUE, control.ring(), &control.kick, &control.call)?;
        self.set_queue(EVENT_QUEUE, events.ring(), &events.kick, &events.call)?;
        for (doorbell, kick) in doorbells.iter().enumerate() {
            // Doorbells carry no descriptors, so any ring will do.
            let ring = control.ring();
            self.set_queue(FIRST_DOORBELL + doorbell, ring, kick, &control.call)?;
        }
        for queue in 0..queues {
            let enabled = self.device.set_vring_enable(queue, true);
            check("SET_VRING_ENABLE", enabled)?;
        }
        Ok(())
    }

    fn set_queue(
        &self,
        queue: usize,
        (size, [descriptors, available, used]): (u16, [u64; 3]),
        kick: &EventFd,
        call: &EventFd,
    ) -> Result<(), ConnectError> {
        let addresses = VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: descriptors,
            used_ring_addr: used,
            avail_ring_addr: available,
            log_addr: None,
        };
        let device = &self.device;
        check("SET_VRING_NUM", device.set_vring_num(queue, size))?;
        check("SET_VRING_ADDR", device.set_vring_addr(queue, &addresses))?;
        check("SET_VRING_BASE", device.set_vring_base(queue, 0))?;
        check("SET_VRING_CALL", device.set_vring_call(queue, call))?;
        check("SET_VRING_KICK", device.set_vring_kick(queue, kick))
    }
}

fn negotiate(frontend: &mut Frontend) -> Result<(), ConnectError> {
    let needed = VERSION_1 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
    check("SET_OWNER", frontend.set_owner())?;
    let features = check("GET_FEATURES", frontend.get_features())?;
    if features & VERSION_1 == 0 {
        return Err(ConnectError::MissingFeature("VIRTIO_F_VERSION_1"));
    }
    if features & needed != needed {
        return Err(ConnectError::MissingFeature("protocol features"));
    }
    let offered = frontend.get_protocol_features();
    let offered = check("GET_PROTOCOL_FEATURES", offered)?;
    if let Some((missing, _)) = NEEDED.difference(offered).iter_names().next() {
        return Err(ConnectError::MissingFeature(missing));
    }
    check(
        "SET_PROTOCOL_FEATURES",
        frontend.set_protocol_features(NEEDED),
    )?;
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    // The library yields while it spins; programs that poll memory should do the same.
    let accepted = needed | features & YIELDING;
    check("SET_FEATURES", frontend.set_features(accepted))
}

/// The SRAM that the device process shares, or the reason why it does not.
pub(crate) type Answer = Result<SharedRegion, String>;

/// Waits for the SRAM.
pub(crate) fn wait_for_sram(answers: &Receiver<Answer>) -> Result<SharedRegion, ConnectError> {
    let answer = answers.recv_timeout(ANSWER_TIMEOUT);
    let silence = |_| Err(format!("no SHMEM_MAP within {ANSWER_TIMEOUT:?}"));
    answer.unwrap_or_else(silence).map_err(ConnectError::NoSram)
}

/// Receives the SRAM that the device process shares.
#[derive(Debug)]
pub(crate) struct SramSlot {
    /// Size that it must have, in bytes.
    size: u64,
    /// The first answer counts: there is room for one.
    answers: SyncSender<Answer>,
    is_mapped: AtomicBool,
}

impl SramSlot {
    pub(crate) fn new(size: u64, answers: SyncSender<Answer>) -> Self {
        SramSlot {
            size,
            answers,
            is_mapped: AtomicBool::new(false),
        }
    }

    /// Fails the wait for the SRAM, if a thread still waits.
    pub(crate) fn fail(&self, reason: impl Into<String>) {
        let _ = self.answers.try_send(Err(reason.into()));
    }

    /// Maps the memory of a SHMEM_MAP.
    fn map(&self, request: &VhostUserMMap, file: &dyn AsRawFd) -> Result<SharedRegion, String> {
        let (region, start, length) = (request.shmid, request.shm_offset, request.len);
        if (region, start, length) != (SRAM_REGION, 0, self.size) {
            return Err(format!(
                "SHMEM_MAP of {length} bytes at {start:#x} of region {region}; region {SRAM_REGION} \
                 must be mapped whole, {} bytes",
                self.size
            ));
        }
        if request.flags & VhostUserMMapFlags::WRITABLE.bits() == 0 {
            return Err("SHMEM_MAP without write access".to_owned());
        }
        let length = usize::try_from(self.size).map_err(|error| error.to_string())?;
        let sram = map_shared(file, request.fd_offset, length);
        let sram = sram.and_then(|sram| sram.kept_from_children(None));
        sram.map_err(|error| format!("mmap: {error}"))
    }
}

impl VhostUserFrontendReqHandler for SramSlot {
    fn shmem_map(&self, request: &VhostUserMMap, file: &dyn AsRawFd) -> HandlerResult<u64> {
        // Relaxed: only the interrupt thread uses it.
        if self.is_mapped.load(Ordering::Relaxed) {
            return Err(std::io::Error::from_raw_os_error(libc::EEXIST));
        }
        match self.map(request, file) {
            Ok(sram) => {
                self.is_mapped.store(true, Ordering::Relaxed);
                let _ = self.answers.try_send(Ok(sram));
                Ok(0)
            }
            Err(reason) => {
                self.fail(reason);
                Err(std::io::Error::from_raw_os_error(libc::EINVAL))
            }
        }
    }
}
