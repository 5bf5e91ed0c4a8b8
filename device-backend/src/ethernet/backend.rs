//! The device that `vhost-user-backend` serves: its features, and its two threads.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qnic_links::ethernet::Offloads;
use rustix::fs::SealFlags;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::VhostUserVirtioFeatures;
use vhost_user_backend::{VhostUserBackend, VringRwLock};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MAC,
    VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU, VIRTIO_NET_F_STATUS,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vm_memory::{GuestAddressSpace, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    new_event_consumer_and_notifier, EventConsumer, EventFlag, EventNotifier,
};

use super::control;
use super::receive::Receiver;
use super::transmit::transmit;
use super::{EthernetPort, Memory};

/// The thread of the receive queues; the other one is that of the transmit queues.
pub(super) const RECEIVE_THREAD: usize = 0;

/// Most entries of a queue.
const QUEUE_ENTRIES: usize = 1_024;

/// What the device can do.
const FEATURES: [u32; 7] = [
    VIRTIO_F_VERSION_1,
    VIRTIO_RING_F_EVENT_IDX,
    VIRTIO_RING_F_INDIRECT_DESC,
    VIRTIO_NET_F_MRG_RXBUF,
    VIRTIO_NET_F_STATUS,
    VIRTIO_NET_F_MAC,
    VIRTIO_NET_F_MTU,
];

/// What can be left to it, if that is not turned off: checksums, and the division of segments.
const CHECKSUMS: [u32; 2] = [VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM];
const SEGMENTS: [u32; 4] = [
    VIRTIO_NET_F_HOST_TSO4,
    VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6,
];

/// What one with several pairs of queues can do besides.
const SEVERAL: [u32; 2] = [VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_MQ];

/// One front end's device.
pub(super) struct Backend {
    port: Arc<EthernetPort>,
    memory: Memory,
    /// Of [`FEATURES`], what the driver has taken.
    features: AtomicU64,
    /// Pairs of queues that the driver uses. Relaxed: a frame that comes meanwhile may be in any.
    pairs: AtomicUsize,
    receiver: Mutex<Receiver>,
    /// The front end has gone. Relaxed: it orders nothing.
    ended: AtomicBool,
}

impl Backend {
    pub(super) fn new(port: Arc<EthernetPort>, memory: Memory) -> Self {
        Backend {
            receiver: Mutex::new(Receiver::new(port.pairs)),
            port,
            memory,
            features: AtomicU64::new(0),
            pairs: AtomicUsize::new(1),
            ended: AtomicBool::new(false),
        }
    }

    /// Has its threads end, whatever comes.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// The event with which the inbox wakes the receive thread.
    pub(super) fn bell_event(&self) -> u64 {
        self.num_queues() as u64 + 1
    }

    fn receiver(&self) -> MutexGuard<'_, Receiver> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, feature: u32) -> bool {
        // Pairs with nothing: the message that starts a queue comes after that with the features,
        // on the same connection, and starts it under the lock of the queue.
        self.features.load(Ordering::Relaxed) >> feature & 1 == 1
    }

    fn offloads(&self) -> Offloads {
        Offloads {
            checksum: self.has(VIRTIO_NET_F_GUEST_CSUM),
            tcp4: self.has(VIRTIO_NET_F_GUEST_TSO4),
            tcp6: self.has(VIRTIO_NET_F_GUEST_TSO6),
        }
    }
}

impl VhostUserBackend for Backend {
    type Bitmap = ();
    type Vring = VringRwLock<Memory>;

    fn num_queues(&self) -> usize {
        // The control queue is the last one.
        2 * self.port.pairs + usize::from(self.port.pairs > 1)
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_ENTRIES
    }

    fn features(&self) -> u64 {
        let several = SEVERAL.iter().filter(|_| self.port.pairs > 1);
        let checksums = CHECKSUMS.iter().filter(|_| self.port.checksums);
        let segments = SEGMENTS.iter().filter(|_| self.port.segments);
        let left = checksums.chain(segments);
        let features = FEATURES.iter().chain(left).chain(several);
        let features = features.map(|feature| 1u64 << feature);
        features.fold(VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits(), |a, b| {
            a | b
        })
    }

    fn acked_features(&self, features: u64) {
        self.pairs.store(1, Ordering::Relaxed);
        self.features.store(features, Ordering::Relaxed);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        control::config_space(&self.port, offset, size)
    }

    fn set_event_idx(&self, _enabled: bool) {}

    /// The memory is the one that this backend has. A file that can be truncated would kill the process
    /// (SIGBUS): its front end is refused.
    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        let sealed = |region: &GuestRegionMmap| {
            let file = region.file_offset().map(|offset| offset.file());
            let seals = file.and_then(|file| rustix::fs::fcntl_get_seals(file).ok());
            seals.is_some_and(|seals| seals.contains(SealFlags::SHRINK))
        };
        match memory.memory().iter().all(sealed) {
            true => Ok(()),
            false => Err(io::Error::other(
                "memory that is not sealed against shrinking: give the guest its RAM by \
                 -object memory-backend-memfd,share=on",
            )),
        }
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        let pairs = (0..self.port.pairs).map(|pair| 1u64 << (2 * pair));
        let receive: u64 = pairs.sum();
        let all = (1 << self.num_queues()) - 1;
        vec![receive, all & !receive]
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC).ok()
    }

    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        let queue = queue as usize;
        if queue % 2 == 0 && queue < 2 * self.port.pairs {
            self.receiver().stop(queue / 2);
        }
        Ok(())
    }

    fn handle_event(
        &self,
        event: u16,
        _events: EventSet,
        vrings: &[Self::Vring],
        thread: usize,
    ) -> io::Result<()> {
        if thread == RECEIVE_THREAD {
            let mergeable = self.has(VIRTIO_NET_F_MRG_RXBUF);
            self.receiver().serve(
                &self.port,
                &self.memory,
                vrings,
                (&self.pairs, self.offloads(), mergeable),
                &self.ended,
            );
            return Ok(());
        }
        let event = usize::from(event);
        match vrings.get(event) {
            Some(queue) if event == self.port.pairs => {
                control::serve(&self.port, &self.memory, queue, &self.pairs);
                Ok(())
            }
            Some(_) => {
                let queues = &vrings[..vrings.len().min(self.port.pairs)];
                transmit(&self.port, &self.memory, queues, &self.ended)
            }
            None => Ok(()),
        }
    }
}
