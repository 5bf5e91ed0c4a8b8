//! The vhost-user session with the device process, as its front end.
//!
//! ```text
//!   GET/SET_FEATURES, PROTOCOL_FEATURES, SET_OWNER       [FrontEnd::open]
//!   GET_CONFIG                                           [FrontEnd::config]
//!   SET_MEM_TABLE                                        [FrontEnd::reach]
//!   SET_BACKEND_REQ_FD                                   [FrontEnd::transport]
//!   SET_VRING_NUM/ADDR/BASE/CALL/KICK,
//!   SET_VRING_ENABLE ──► the device sends SHMEM_MAP      [FrontEnd::start], [SramSlot]
//! ```

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use qnic_abi::attach::{CONFIG_SIZE, FIRST_DOORBELL, SRAM_REGION, YIELDING};
use qnic_driver::Config;
use qnic_shared::region::{map_shared, Kept, SharedRegion};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserMMap, VhostUserMMapFlags,
    VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{
    Frontend, FrontendReqHandler, HandlerResult, VhostUserFrontend, VhostUserFrontendReqHandler,
};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::EventFd;

use crate::error::{eventfd, ConnectError};
use crate::transport::{Addresses, Attachment, Transport, Virtqueue};

/// How long the device process may take to answer a message.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Descriptors of a queue: what the device process takes, and more than a node uses.
const QUEUE_SIZE_MAX: u16 = 256;

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
    /// Until the session has it.
    connection: Option<UnixStream>,
    /// Address of the arena in this process.
    base: u64,
    session: Option<Arc<Session>>,
}

/// Names the message that failed.
fn check<T>(message: &'static str, result: vhost::Result<T>) -> Result<T, ConnectError> {
    result.map_err(|error| ConnectError::Protocol { message, error })
}

impl FrontEnd {
    /// Connects and negotiates features.
    pub(crate) fn open(path: &Path) -> Result<Self, ConnectError> {
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
        Ok(FrontEnd {
            _kept: kept,
            device: frontend,
            connection: Some(connection),
            base: 0,
            session: None,
        })
    }

    fn set_queue(&self, queue: usize, of: &Virtqueue, call: &EventFd) -> Result<(), ConnectError> {
        // The vhost library takes addresses of this process, and translates them by the memory table.
        let [desc_table_addr, avail_ring_addr, used_ring_addr] =
            of.addresses.map(|address| self.base + address);
        let addresses = VringConfigData {
            queue_max_size: of.size,
            queue_size: of.size,
            flags: 0,
            desc_table_addr,
            used_ring_addr,
            avail_ring_addr,
            log_addr: None,
        };
        let device = &self.device;
        let session = self.session.as_ref();
        let kick = session.and_then(|session| session.kicks.get(queue));
        let kick = kick.ok_or(ConnectError::MissingFeature("this many virtqueues"))?;
        check("SET_VRING_NUM", device.set_vring_num(queue, of.size))?;
        check("SET_VRING_ADDR", device.set_vring_addr(queue, &addresses))?;
        check("SET_VRING_BASE", device.set_vring_base(queue, 0))?;
        check("SET_VRING_CALL", device.set_vring_call(queue, call))?;
        check("SET_VRING_KICK", device.set_vring_kick(queue, kick))
    }
}

impl Attachment for FrontEnd {
    fn config(&mut self) -> Result<[u8; CONFIG_SIZE], ConnectError> {
        let empty = [0; CONFIG_SIZE];
        let flags = VhostUserConfigFlags::empty();
        let config = self.device.get_config(0, CONFIG_SIZE as u32, flags, &empty);
        let (_, bytes) = check("GET_CONFIG", config)?;
        bytes
            .try_into()
            .map_err(|_| ConnectError::MissingFeature("a configuration space of the right size"))
    }

    fn queue_size_max(&mut self) -> Result<u16, ConnectError> {
        Ok(QUEUE_SIZE_MAX)
    }

    fn reach(&mut self, arena: &SharedRegion, file: &OwnedFd) -> Result<Addresses, ConnectError> {
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: arena.len() as u64,
            userspace_addr: arena.address(),
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        check("SET_MEM_TABLE", self.device.set_mem_table(&[region]))?;
        self.base = arena.address();
        Ok(Addresses::Offsets)
    }

    fn transport(&mut self, config: &Config) -> Result<Arc<dyn Transport>, ConnectError> {
        let queues = FIRST_DOORBELL + config.doorbells as usize;
        let offered = check("GET_QUEUE_NUM", self.device.get_queue_num())?;
        let missing = ConnectError::MissingFeature("a virtqueue for each doorbell");
        let connection = self.connection.take().filter(|_| offered >= queues as u64);
        let session = Session::new(connection.ok_or(missing)?, queues, config.sram_bytes)?;
        let set = self
            .device
            .set_backend_request_fd(&session.channel().get_tx_raw_fd());
        check("SET_BACKEND_REQ_FD", set)?;
        let session = Arc::new(session);
        self.session = Some(session.clone());
        Ok(session)
    }

    fn start(
        &mut self,
        queues: &[Virtqueue],
        interrupt: &EventFd,
    ) -> Result<SharedRegion, ConnectError> {
        for (index, queue) in queues.iter().enumerate() {
            self.set_queue(index, queue, interrupt)?;
        }
        for index in 0..queues.len() {
            let enabled = self.device.set_vring_enable(index, true);
            check("SET_VRING_ENABLE", enabled)?;
        }
        let none = || ConnectError::NoSram("there is no session".to_owned());
        self.session.as_ref().ok_or_else(none)?.wait_for_sram()
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
type Answer = Result<SharedRegion, String>;

/// What the threads of a node use of a session.
struct Session {
    /// One for each virtqueue.
    kicks: Vec<EventFd>,
    /// A forked child has no such connection.
    _kept: Kept,
    connection: UnixStream,
    channel: Mutex<FrontendReqHandler<SramSlot>>,
    sram: Arc<SramSlot>,
    answer: Mutex<Receiver<Answer>>,
}

/// Sources of [`Session::sources`].
const CONNECTION: usize = 0;

impl Session {
    fn new(connection: UnixStream, queues: usize, sram_bytes: u64) -> Result<Self, ConnectError> {
        let (answers, answer) = sync_channel(1);
        let sram = Arc::new(SramSlot::new(sram_bytes, answers));
        let mut channel =
            FrontendReqHandler::new(sram.clone()).map_err(|error| ConnectError::Protocol {
                message: "SET_BACKEND_REQ_FD",
                error: vhost::Error::VhostUserProtocol(error),
            })?;
        channel.set_reply_ack_flag(true);
        Ok(Session {
            kicks: (0..queues).map(|_| eventfd()).collect::<Result<_, _>>()?,
            _kept: Kept::descriptor(&connection),
            connection,
            channel: Mutex::new(channel),
            sram,
            answer: Mutex::new(answer),
        })
    }

    fn channel(&self) -> MutexGuard<'_, FrontendReqHandler<SramSlot>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_sram(&self) -> Result<SharedRegion, ConnectError> {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let silence = |_| Err(format!("no SHMEM_MAP within {ANSWER_TIMEOUT:?}"));
        let answer = answer.recv_timeout(ANSWER_TIMEOUT).unwrap_or_else(silence);
        answer.map_err(ConnectError::NoSram)
    }
}

impl Transport for Session {
    fn notify(&self, queue: usize) {
        if let Some(kick) = self.kicks.get(queue) {
            // The eventfd's counter is never near its limit; a full one notifies too.
            let _ = kick.write(1);
        }
    }

    /// Closes the connection, which makes the device process unmap the arena. A device process that
    /// hangs may still write to the arena, and to nothing else.
    fn stop(&self) {
        // It fails only if it is closed already.
        let _ = self.connection.shutdown(std::net::Shutdown::Both);
        self.sram.fail("the device process closed the connection");
    }

    fn sources(&self) -> Vec<(RawFd, EventSet)> {
        vec![
            (self.connection.as_raw_fd(), EventSet::READ_HANG_UP),
            (self.channel().as_raw_fd(), EventSet::IN),
        ]
    }

    fn serve(&self, source: usize) -> bool {
        if source == CONNECTION {
            return false;
        }
        if let Err(error) = self.channel().handle_request() {
            log::warn!("request of the device process refused: {error}");
        }
        true
    }

    fn is_silent(&self) -> bool {
        false
    }
}

/// Receives the SRAM that the device process shares.
#[derive(Debug)]
struct SramSlot {
    /// Size that it must have, in bytes.
    size: u64,
    /// The first answer counts: there is room for one.
    answers: SyncSender<Answer>,
    is_mapped: AtomicBool,
}

impl SramSlot {
    fn new(size: u64, answers: SyncSender<Answer>) -> Self {
        SramSlot {
            size,
            answers,
            is_mapped: AtomicBool::new(false),
        }
    }

    /// Fails the wait for the SRAM, if a thread still waits.
    fn fail(&self, reason: impl Into<String>) {
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
