//! A node: this process, attached to a NIC.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{mpsc, Arc, OnceLock, Weak};
use std::thread::JoinHandle;

use qnic_abi::host_area::{READ_ONLY_PAGES, WAKE_GENERATION, WRITABLE_PAGES};
use qnic_abi::pool::OpenPools;
use qnic_abi::shared::Ordering;
use qnic_abi::window::WINDOW_BYTES;
use qnic_abi::{uapi, PAGE_SIZE};
use qnic_driver::datagram::{BindError, Binding, PortConfig, Upper};
use qnic_driver::remote_memory::{
    AttachError, ClientConfig, Memory, ServeError, ServerConfig, Volume, VolumeUser,
};
use qnic_driver::{check_config, Driver, Platform, Process};
use qnic_shared::region::{Forked, Kept, Own, SharedRegion};

use crate::arena::Arena;
use crate::calls::pass_on;
use crate::control::Control;
use crate::device_memory::HostMemory;
use crate::error::{eventfd, ConnectError, HostError};
use crate::events::Events;
use crate::front_end::FrontEnd;
use crate::platform::HostPlatform;
use crate::pools::HostPools;
use crate::threads::{self, Shared};
use crate::timer::Timer;
use crate::transport::{Attachment, Virtqueue};

/// Smallest arena, in bytes: it also holds queues and host areas.
pub const MIN_ARENA: usize = 256 * PAGE_SIZE;

/// A node of the network in this process (X2). Clones stand for the same node;
/// it leaves the network when the last clone and the last process are dropped.
///
/// A child that this process forks has no part in it: each call there returns [`HostError::Forked`],
/// and what is dropped there stays as it is ([`qnic_shared::region`], "fork").
#[derive(Clone)]
pub struct HostNode(Arc<Own<Inner>>);

struct Inner {
    driver: Arc<Driver<HostPlatform>>,
    /// Dropped before the attachment, with which a connection ends.
    _threads: Threads,
    _attachment: Box<dyn Attachment>,
}

impl HostNode {
    /// Connects to the device process that listens on `socket` and becomes the
    /// node that its NIC serves, with `arena_bytes` of memory that can be
    /// exported (a multiple of the page size, at least [`MIN_ARENA`]).
    ///
    /// # Errors
    /// [`ConnectError`]
    pub fn connect(socket: impl AsRef<Path>, arena_bytes: usize) -> Result<Self, ConnectError> {
        check_size(arena_bytes)?;
        Self::attach(FrontEnd::open(socket.as_ref())?, arena_bytes)
    }

    /// Brings a node up on a device that was found, as [`HostNode::connect`] does on that of host mode.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub fn attach(
        mut attachment: impl Attachment,
        arena_bytes: usize,
    ) -> Result<Self, ConnectError> {
        check_size(arena_bytes)?;
        let config = check_config(&attachment.config()?)?;
        let arena = Arena::new(arena_bytes, |memory, file| attachment.reach(memory, file))?;
        let transport = attachment.transport(&config)?;
        let size_max = attachment.queue_size_max()?;
        let small = |_: HostError| ConnectError::ArenaSize(arena_bytes);
        let control = Control::new(&arena, size_max, transport.clone()).map_err(small)?;
        let events = Events::new(&arena, size_max, transport.clone()).map_err(small)?;
        let timer = Timer::new().map_err(ConnectError::system("make a timer"))?;
        let shared = Arc::new(Shared {
            control: Arc::new(control),
            events,
            interrupt: eventfd()?,
            transport: transport.clone(),
            timer: Arc::new(timer),
            driver: OnceLock::new(),
        });
        let threads = Threads::start(&shared)?;
        let queues = queues(&shared, config.doorbells as usize);
        let sram = attachment.start(&queues, &shared.interrupt)?;
        let (control, timer) = (shared.control.clone(), shared.timer.clone());
        let platform = HostPlatform::new(arena, sram, control, transport, timer);
        let driver = Driver::start(platform, &config)
            .map_err(|error| ConnectError::start(error, arena_bytes))?;
        // Set once, here: the cell is empty.
        let _ = shared.driver.set(Arc::downgrade(&driver));
        shared.drain_events(|| ());
        Ok(HostNode(Arc::new(Own::new(Inner {
            driver,
            _threads: threads,
            _attachment: Box::new(attachment),
        }))))
    }

    /// The node, without keeping it.
    pub fn downgrade(&self) -> WeakNode {
        WeakNode(Arc::downgrade(&self.0))
    }

    fn driver(&self) -> Result<&Arc<Driver<HostPlatform>>, Forked> {
        Ok(&self.0.get()?.driver)
    }

    /// Registers a process, as `uapi::REGISTER` does. Returns `None` if it was refused; the status in
    /// `call` has the reason.
    ///
    /// # Errors
    /// [`HostError::Call`], [`HostError::Forked`]
    pub fn register(&self, call: &mut uapi::Register) -> Result<Option<HostProcess>, HostError> {
        let driver = self.driver()?;
        let Some(process) = driver.register((), std::process::id(), call)? else {
            return Ok(None);
        };
        let sram = driver.platform().sram();
        let area = &process.host_area().region;
        Ok(Some(HostProcess {
            _marked: Kept::word(area, WAKE_GENERATION),
            window: sram.part(process.window_offset(), WINDOW_BYTES),
            host_area: area.part(0, READ_ONLY_PAGES * PAGE_SIZE),
            pool: area.part(READ_ONLY_PAGES * PAGE_SIZE, WRITABLE_PAGES * PAGE_SIZE),
            registration: *call,
            process: Own::new(process),
            node: self.clone(),
        }))
    }

    /// Lets processes that register on this node from now on use physical addresses
    /// if they ask for it (N25); without this they are refused.
    pub fn allow_physical(&self) {
        if let Ok(driver) = self.driver() {
            let physical = &driver.platform().physical;
            physical.store(true, Ordering::Relaxed);
        }
    }

    /// Memory that can be exported: `length` bytes (not zero), page aligned and
    /// zeroed, free again when the last clone of the region is dropped.
    ///
    /// # Errors
    /// [`HostError::ArenaFull`], [`HostError::Forked`]
    pub fn allocate(&self, length: usize) -> Result<SharedRegion, HostError> {
        self.driver()?.platform().arena.allocate(length)
    }

    /// Binds a datagram port for an upper module in this process (H1), as modules of a guest's
    /// kernel do. The thread that serves interrupts calls the module.
    ///
    /// # Errors
    /// [`BindError`]
    pub fn bind_datagrams(
        &self,
        number: u16,
        config: &PortConfig,
        upper: Arc<dyn Upper<HostPlatform>>,
    ) -> Result<Binding<HostPlatform>, BindError> {
        let driver = self.driver().map_err(|Forked| BindError::NoDevice)?;
        driver.bind_datagrams(number, config, upper)
    }

    /// Opens shared pools, as `pool::OPEN_POOLS` does. Returns `None` if that was refused; the status in
    /// `call` has the reason.
    ///
    /// # Errors
    /// [`HostError::Call`], [`HostError::Forked`]
    pub fn open_pools(&self, call: &mut OpenPools) -> Result<Option<HostPools>, HostError> {
        HostPools::open(self.0.clone(), self.driver()?, call)
    }

    /// Attaches a volume in the memory of other nodes (H9), over a datagram port.
    ///
    /// # Errors
    /// [`AttachError`]
    pub fn attach_volume(
        &self,
        port: u16,
        config: ClientConfig,
        user: Arc<dyn VolumeUser<HostPlatform>>,
    ) -> Result<Volume<HostPlatform>, AttachError> {
        let driver = self.driver().map_err(|Forked| BindError::NoDevice)?;
        driver.attach_volume(port, config, user)
    }

    /// Offers memory of the arena to other nodes (H9), over a datagram port.
    ///
    /// # Errors
    /// [`ServeError`]
    pub fn serve_memory(
        &self,
        port: u16,
        config: ServerConfig,
    ) -> Result<Memory<HostPlatform>, ServeError> {
        let driver = self.driver().map_err(|Forked| BindError::NoDevice)?;
        driver.serve_memory(port, config)
    }

    /// A page of the arena for datagrams.
    ///
    /// # Errors
    /// [`HostError::ArenaFull`], [`HostError::Forked`]
    pub fn new_page(&self) -> Result<HostMemory, HostError> {
        let platform = self.driver()?.platform();
        platform.new_page().map_err(|_| HostError::ArenaFull {
            length: PAGE_SIZE,
            arena: platform.arena.size(),
        })
    }

    /// Takes the pages that touch `length` bytes at `address` out of the NIC's
    /// page table, as a kernel under memory pressure would; the NIC's next access
    /// to one of them faults and brings it back (N8, N13). For tests.
    pub fn evict(&self, address: u64, length: u64) {
        let end = address.saturating_add(length);
        if let Ok(driver) = self.driver() {
            driver.platform().evict(address, end);
        }
    }

    pass_on! { self => self.driver();
        /// The versions and properties of driver and NIC, as `uapi::INFO`.
        info(uapi::Info);
        /// A page of counters, as `uapi::COUNTERS`.
        counters(uapi::Counters);
    }

    /// Returns true if the device process is there.
    pub fn is_alive(&self) -> bool {
        self.driver().is_ok_and(|driver| driver.is_alive())
    }
}

impl std::fmt::Debug for HostNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let node = self.driver().map(|driver| driver.geometry().node);
        f.debug_struct("HostNode")
            .field("node", &node)
            .finish_non_exhaustive()
    }
}

/// A node that may have gone.
#[derive(Debug, Clone)]
pub struct WeakNode(Weak<Own<Inner>>);

impl WeakNode {
    /// Returns true unless it has gone.
    pub fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Makes the node leave the network, if it is there and this process's: its peers learn of it at
    /// once, its device is stopped, and each call on it fails from then on.
    pub fn leave(&self) {
        let node = self.0.upgrade();
        if let Some(Ok(inner)) = node.as_deref().map(Own::get) {
            inner.leave();
            inner.driver.platform().stop_device();
        }
    }
}

impl Inner {
    fn leave(&self) {
        // Frames that its processes have sent are still under way.
        self.driver.announce_reset();
        self.driver.begin_removal();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The threads of a node; they end when this is dropped.
struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    fn start(shared: &Arc<Shared>) -> Result<Self, ConnectError> {
        let epoll = threads::epoll_set(shared).map_err(ConnectError::system("epoll"))?;
        let mut started = Threads {
            shared: shared.clone(),
            handles: Vec::new(),
        };
        let (sender, receiver) = mpsc::channel();
        let both = (shared.clone(), shared.clone());
        started.spawn("qnic-faults", move || threads::faults(&both.0, &receiver))?;
        started.spawn("qnic-interrupts", move || {
            threads::interrupts(&both.1, &epoll, &sender);
        })?;
        Ok(started)
    }

    fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), ConnectError> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        let thread = thread.map_err(ConnectError::system("start a thread"))?;
        self.handles.push(thread);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.control.disconnect();
        for thread in self.handles.drain(..) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

fn check_size(arena_bytes: usize) -> Result<(), ConnectError> {
    match arena_bytes < MIN_ARENA {
        true => Err(ConnectError::ArenaSize(arena_bytes)),
        false => Ok(()),
    }
}

/// All virtqueues of the device. Doorbells carry no descriptors, so any ring will do.
fn queues(shared: &Shared, doorbells: usize) -> Vec<Virtqueue> {
    let [control, events] = [shared.control.virtqueue(), shared.events.virtqueue()];
    let doorbell = Virtqueue {
        interrupts: false,
        ..control
    };
    let doorbells = std::iter::repeat_n(doorbell, doorbells);
    [control, events].into_iter().chain(doorbells).collect()
}

/// A process registered on a node: the calls of [`qnic_abi::uapi`], and the
/// memory that they provide. Dropping it takes everything back.
pub struct HostProcess {
    /// What a forked child finds before each command.
    _marked: Kept,
    window: SharedRegion,
    host_area: SharedRegion,
    pool: SharedRegion,
    registration: uapi::Register,
    process: Own<Process<HostPlatform>>,
    node: HostNode,
}

impl HostProcess {
    /// The result of the registration.
    pub fn registration(&self) -> &uapi::Register {
        &self.registration
    }

    /// The window (`qnic_abi::window`).
    pub fn window(&self) -> &SharedRegion {
        &self.window
    }

    /// The read-only pages of the host area (`qnic_abi::host_area`).
    pub fn host_area(&self) -> &SharedRegion {
        &self.host_area
    }

    /// Its writable pages: doorbells of contexts, and the buffer pool.
    pub fn pool(&self) -> &SharedRegion {
        &self.pool
    }

    /// Rings the doorbell.
    pub fn ring_doorbell(&self) {
        if let (Ok(driver), Ok(process)) = (self.node.driver(), self.process.get()) {
            let platform = driver.platform();
            platform.ring_doorbell(process.doorbell_queue());
        }
    }

    /// Exports a range of the node's arena (N2), as `uapi::EXPORT`.
    ///
    /// # Errors
    /// [`HostError::OutsideArena`], [`HostError::Call`], [`HostError::Forked`]
    pub fn export(&self, call: &mut uapi::Export) -> Result<(), HostError> {
        let (address, length) = (call.address.get(), call.length.get());
        let arena = &self.node.driver()?.platform().arena;
        if length > 0 && !arena.contains(address, length) {
            return Err(HostError::OutsideArena { address, length });
        }
        Ok(self.process.get()?.export(call)?)
    }

    /// Blocks until the wake generation differs, as `uapi::WAIT`.
    ///
    /// # Errors
    /// [`HostError::Call`] with `TimedOut` or `NoDevice`, [`HostError::Forked`]
    pub fn wait(&self, call: &mut uapi::Wait) -> Result<(), HostError> {
        let process = self.process.get()?;
        if call.flags.get() & uapi::WAIT_SEEN != 0 {
            // Before the generation is read: a wake event in between leaves the
            // descriptor readable.
            process.waiters().clear_event();
        }
        Ok(process.wait(call)?)
    }

    /// A descriptor that is readable when the character device of a guest would be
    /// (`uapi`, "poll").
    ///
    /// # Errors
    /// [`HostError::Descriptor`], [`HostError::Forked`]
    pub fn event(&self) -> Result<BorrowedFd<'_>, HostError> {
        let process = self.process.get()?;
        process.waiters().event(|| process.is_readable())
    }

    pass_on! { self => self.process.get();
        /// Revokes a segment (N2), as `uapi::UNEXPORT`.
        unexport(uapi::Unexport);
        /// Finds a segment of another process (N3), as `uapi::IMPORT`. Blocks.
        import(uapi::Import);
        /// Ends the waits of this process, as `uapi::WAKE`.
        wake(uapi::Wake);
        /// Starts the command queue again, as `uapi::RESET_QUEUE`.
        reset_queue(uapi::ResetQueue);
        /// Queries the route to a node, as `uapi::PATH`.
        path(uapi::Path);
    }

    /// The node that it is registered on.
    pub fn node(&self) -> &HostNode {
        &self.node
    }
}

impl std::fmt::Debug for HostProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostProcess")
            .field("registration", &self.registration)
            .finish_non_exhaustive()
    }
}
