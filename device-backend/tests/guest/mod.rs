//! A guest without a machine: a vhost-user front end with RAM in a memfd, rings,
//! and the little of a driver that the tests need.
//!
//! ```text
//!  RAM   0x01000  control queue: descriptors, available, used (a page each)
//!        0x04000  event queue, the same
//!        0x08000  request, 0x08800 reply
//!        0x0a000  event buffers
//!        0x10000  host area of the process
//!        0x20000  data
//! ```

pub(crate) mod ethernet;
pub(crate) mod process;
pub(crate) mod ring;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use qnic_abi::attach::{CONFIG_SIZE, CONTROL_QUEUE, EVENT_QUEUE, FIRST_DOORBELL, YIELDING};
use qnic_abi::control::{Hello, Opcode, Query, RequestHeader, REPLY_BYTES, REQUEST_BYTES};
use qnic_abi::counters::{self, CounterPage};
use qnic_abi::event::{Event, EVENT_BYTES};
use qnic_abi::header::{Geometry, SramHeader, MAGIC, SRAM_MAGIC};
use qnic_abi::{Status, ABI_VERSION};
use qnic_links::memfd::sealed_memfd;
use rustix::fs::SealFlags;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserMMap, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{
    Frontend, FrontendReqHandler, VhostUserFrontend, VhostUserFrontendReqHandlerMut,
};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryMmap, MmapRegion, VolatileMemory, VolatileSlice,
};
use vmm_sys_util::eventfd::EventFd;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use ring::Ring;

/// RAM of every test guest.
pub(crate) const RAM_BYTES: u64 = 16 << 20;
/// How long anything may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// Entries of the queues.
pub(crate) const QUEUE_SIZE: u16 = 16;
/// Where the front end claims to have the RAM.
const USER_BASE: u64 = 0x7f00_0000_0000;

const REQUEST: u64 = 0x8000;
const REPLY: u64 = 0x8800;
const EVENTS: u64 = 0xa000;

/// A memfd for RAM.
pub(crate) fn ram_file(bytes: u64, seals: SealFlags) -> File {
    sealed_memfd("ram", bytes, seals).unwrap()
}

/// What the front end does with SHMEM_MAP.
struct SramSlot {
    maps: mpsc::Sender<(VhostUserMMap, File)>,
    mapped: bool,
}

impl VhostUserFrontendReqHandlerMut for SramSlot {
    /// As QEMU does: a second mapping over the first is an error.
    fn shmem_map(&mut self, request: &VhostUserMMap, fd: &dyn AsRawFd) -> std::io::Result<u64> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let file = File::options().read(true).write(true).open(path)?;
        let _ = self.maps.send((*request, file));
        let duplicate = std::mem::replace(&mut self.mapped, true);
        Ok(u64::from(duplicate))
    }
}

pub(crate) struct Guest {
    pub(crate) stream: UnixStream,
    pub(crate) front_end: Frontend,
    pub(crate) ram: GuestMemoryMmap,
    pub(crate) ram_file: File,
    pub(crate) control: Ring,
    pub(crate) events: Ring,
    pub(crate) doorbells: Vec<EventFd>,
    slot: Arc<Mutex<SramSlot>>,
    maps: Receiver<(VhostUserMMap, File)>,
    pub(crate) sram: Option<MmapRegion>,
    channel: Option<JoinHandle<()>>,
    queues: usize,
}

impl Guest {
    /// Connects, negotiates, and opens the channel for SHMEM_MAP, of which `channel` is the
    /// device's end if it is given: then no thread answers there.
    pub(crate) fn connect(socket: &Path, channel: Option<UnixStream>) -> Self {
        let stream = UnixStream::connect(socket).expect("connect");
        let mut front_end = Frontend::from_stream(stream.try_clone().unwrap(), 64);
        let (slot, maps, channel) = negotiate(&mut front_end, channel);
        let queues = front_end.get_queue_num().unwrap() as usize;
        let ram_file = ram_file(RAM_BYTES, SealFlags::SHRINK);
        let backing = FileOffset::new(ram_file.try_clone().unwrap(), 0);
        let ram = GuestMemoryMmap::from_ranges_with_files([(
            GuestAddress(0),
            RAM_BYTES as usize,
            Some(backing),
        )])
        .unwrap();
        Guest {
            stream,
            front_end,
            control: Ring::new(0x1000),
            events: Ring::new(0x4000),
            ram,
            ram_file,
            doorbells: (FIRST_DOORBELL..queues)
                .map(|_| EventFd::new(0).unwrap())
                .collect(),
            slot,
            maps,
            sram: None,
            channel: Some(channel),
            queues,
        }
    }

    /// Sends the memory table: all RAM from address 0 on.
    pub(crate) fn set_memory(&mut self) {
        let region = region(&self.ram_file, 0, RAM_BYTES);
        self.front_end
            .set_mem_table(&[region])
            .expect("memory table");
    }

    /// Starts all queues, in QEMU's order, at these places of the control and event
    /// queues; does not wait for the mapping.
    pub(crate) fn start_queues(&mut self, places: [u16; 2]) {
        for index in 0..self.queues {
            let ring = match index {
                CONTROL_QUEUE => &self.control,
                EVENT_QUEUE => &self.events,
                doorbell => {
                    let kick = &self.doorbells[doorbell - FIRST_DOORBELL];
                    self.front_end.set_vring_kick(index, kick).unwrap();
                    continue;
                }
            };
            self.front_end.set_vring_num(index, QUEUE_SIZE).unwrap();
            let place = places[usize::from(index == EVENT_QUEUE)];
            self.front_end.set_vring_base(index, place).unwrap();
            self.front_end
                .set_vring_addr(index, &ring.places())
                .unwrap();
            self.front_end.set_vring_kick(index, &ring.kick).unwrap();
            self.front_end.set_vring_call(index, &ring.call).unwrap();
            self.front_end.set_vring_err(index, &ring.error).unwrap();
        }
        for index in 0..self.queues {
            self.front_end.set_vring_enable(index, true).unwrap();
        }
    }

    /// Starts the device as a driver does: rings, event buffers, mapping, magic.
    pub(crate) fn start(&mut self) {
        self.control.clear(&self.ram);
        self.events.clear(&self.ram);
        for index in 0..QUEUE_SIZE {
            let buffer = EVENTS + u64::from(index) * EVENT_BYTES as u64;
            self.events
                .push(&self.ram, &[(buffer, EVENT_BYTES as u32, true)]);
        }
        self.set_memory();
        self.start_queues([0; 2]);
        self.take_mapping();
        self.wait_for_magic();
    }

    /// Waits for SHMEM_MAP and maps what it brings.
    pub(crate) fn take_mapping(&mut self) {
        let (request, file) = self.maps.recv_timeout(TIMEOUT).expect("SHMEM_MAP");
        let (length, offset) = (request.len, request.shm_offset);
        assert_eq!((request.shmid, offset), (0, 0));
        let region = MmapRegion::from_file(FileOffset::new(file, 0), length as usize).unwrap();
        self.sram = Some(region);
    }

    pub(crate) fn sram(&self) -> VolatileSlice<'_> {
        let region = self.sram.as_ref().expect("SRAM is mapped");
        region.as_volatile_slice()
    }

    pub(crate) fn magic(&self) -> u64 {
        self.sram()
            .load(MAGIC, std::sync::atomic::Ordering::Acquire)
            .unwrap()
    }

    pub(crate) fn wait_for_magic(&self) {
        until("the magic word", || self.magic() == SRAM_MAGIC);
    }

    pub(crate) fn geometry(&self) -> Geometry {
        let mut bytes = [0; size_of::<SramHeader>()];
        self.sram().read_slice(&mut bytes, 0).unwrap();
        let header = SramHeader::read_from_bytes(&bytes).unwrap();
        Geometry::from_header(&header, self.sram().len() as u64).unwrap()
    }

    pub(crate) fn config_space(&mut self) -> Vec<u8> {
        let bytes = [0; CONFIG_SIZE];
        let flags = VhostUserConfigFlags::WRITABLE;
        let size = CONFIG_SIZE as u32;
        self.front_end.get_config(0, size, flags, &bytes).unwrap().1
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn request(
        &mut self,
        opcode: Opcode,
        vni: u16,
        body: &(impl IntoBytes + Immutable),
    ) -> (Status, [u8; REPLY_BYTES]) {
        let header = RequestHeader {
            opcode: (opcode as u32).into(),
            vni: vni.into(),
            reserved: 0.into(),
        };
        let mut request = [0; REQUEST_BYTES];
        request[..8].copy_from_slice(header.as_bytes());
        request[8..8 + body.as_bytes().len()].copy_from_slice(body.as_bytes());
        self.ram
            .write_slice(&request, GuestAddress(REQUEST))
            .unwrap();
        let buffers = [
            (REQUEST, REQUEST_BYTES as u32, false),
            (REPLY, REPLY_BYTES as u32, true),
        ];
        self.control.push(&self.ram, &buffers);
        self.control.kick.write(1).unwrap();
        let (_, length) = self.control.take(&self.ram);
        assert_eq!(length as usize, REPLY_BYTES);
        let mut bytes = [0; REPLY_BYTES];
        self.ram
            .read_slice(&mut bytes, GuestAddress(REPLY))
            .unwrap();
        let status = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        (Status::try_from(status).unwrap(), bytes)
    }

    pub(crate) fn hello(&mut self) -> Status {
        let body = Hello {
            abi_version: ABI_VERSION.into(),
            reserved: 0.into(),
            frames: (RAM_BYTES >> 12).into(),
        };
        self.request(Opcode::Hello, 0, &body).0
    }

    /// A request that any start answers.
    pub(crate) fn ping(&mut self) -> Status {
        self.request(Opcode::Query, 0, &()).0
    }

    /// What the NIC counts.
    pub(crate) fn counters(&mut self) -> BTreeMap<String, u64> {
        let page = |first: u32| {
            let (first, reserved) = (first.into(), 0.into());
            let (status, bytes) = self.request(Opcode::Query, 0, &Query { first, reserved });
            assert_eq!(status, Status::Ok);
            Ok::<_, ()>(CounterPage::read_from_prefix(&bytes[8..]).unwrap().0)
        };
        counters::read(page).unwrap()
    }

    /// Waits for the next event and posts its buffer again.
    pub(crate) fn event(&mut self) -> Event {
        let (head, length) = self.events.take(&self.ram);
        assert_eq!(length as usize, EVENT_BYTES);
        let buffer = EVENTS + head * EVENT_BYTES as u64;
        let mut bytes = [0; EVENT_BYTES];
        self.ram
            .read_slice(&mut bytes, GuestAddress(buffer))
            .unwrap();
        self.events
            .push(&self.ram, &[(buffer, EVENT_BYTES as u32, true)]);
        Event::read_from_bytes(&bytes).unwrap()
    }

    /// Stops all queues, as QEMU does for a reset or a pause; returns the places of
    /// the control and event queues.
    pub(crate) fn pause(&mut self) -> [u16; 2] {
        for index in 0..self.queues {
            self.front_end.set_vring_enable(index, false).unwrap();
        }
        let place = |index| self.front_end.get_vring_base(index).unwrap() as u16;
        let places: Vec<_> = (0..self.queues).map(place).collect();
        [CONTROL_QUEUE, EVENT_QUEUE].map(|queue| places[queue])
    }

    /// Goes on after a pause, with the memory table sent again.
    pub(crate) fn resume(&mut self, places: [u16; 2]) {
        self.set_memory();
        self.start_queues(places);
    }

    /// Stops all queues and resets the device, as QEMU does for a virtio reset; the mapping
    /// is lost.
    pub(crate) fn stop(&mut self) {
        self.pause();
        self.front_end.reset_device().unwrap();
        self.lose_mapping();
    }

    /// The front end has removed its mapping of the SRAM.
    pub(crate) fn lose_mapping(&mut self) {
        self.slot.lock().unwrap().mapped = false;
    }

    /// The front end renews its eventfds.
    pub(crate) fn renew(&mut self) {
        let eventfd = || EventFd::new(vmm_sys_util::eventfd::EFD_NONBLOCK).unwrap();
        for ring in [&mut self.control, &mut self.events] {
            (ring.kick, ring.call, ring.error) = (eventfd(), eventfd(), eventfd());
        }
        self.doorbells.fill_with(eventfd);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The device sees that, and shuts the channel down, which ends its thread.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(channel) = self.channel.take() {
            let _ = channel.join();
        }
    }
}

type Channel = (
    Arc<Mutex<SramSlot>>,
    Receiver<(VhostUserMMap, File)>,
    JoinHandle<()>,
);

fn negotiate(front_end: &mut Frontend, silent: Option<UnixStream>) -> Channel {
    front_end.set_owner().unwrap();
    let features = front_end.get_features().unwrap();
    // VERSION_1, ORDER_PLATFORM, protocol features.
    assert_eq!(features, 1 << 32 | 1 << 36 | 1 << 30 | YIELDING);
    let offered = front_end.get_protocol_features().unwrap();
    assert!(!offered.contains(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS));
    assert!(offered.contains(VhostUserProtocolFeatures::SHMEM));
    front_end.set_protocol_features(offered).unwrap();
    front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    let (maps, receiver) = mpsc::channel();
    let slot = Arc::new(Mutex::new(SramSlot {
        maps,
        mapped: false,
    }));
    let mut handler = FrontendReqHandler::new(slot.clone()).unwrap();
    handler.set_reply_ack_flag(true);
    let answered = silent.is_none();
    let end = silent.map_or(handler.get_tx_raw_fd(), |end| end.into_raw_fd());
    front_end.set_backend_request_fd(&Descriptor(end)).unwrap();
    // As the driver of a guest.
    front_end.set_features(features & !YIELDING).unwrap();
    let channel = std::thread::spawn(
        move || {
            while answered && handler.handle_request().is_ok() {}
        },
    );
    (slot, receiver, channel)
}

struct Descriptor(i32);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> i32 {
        self.0
    }
}

/// A line of the memory table.
pub(crate) fn region(file: &File, guest_address: u64, bytes: u64) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: guest_address,
        memory_size: bytes,
        userspace_addr: USER_BASE + guest_address,
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    }
}

/// Waits for something that another thread does.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < TIMEOUT, "{what} did not come");
        std::hint::spin_loop();
    }
}
