//! The driver's side of a split virtqueue.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use vhost::VringConfigData;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EventFd, EFD_NONBLOCK};

use super::{QUEUE_SIZE, TIMEOUT, USER_BASE};

/// Flags of a descriptor.
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;

pub(crate) struct Ring {
    /// Address of the descriptors; available and used ring are on the next pages.
    pub(crate) base: u64,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    pub(crate) error: EventFd,
    next_descriptor: u16,
    available: u16,
    used: u16,
}

impl Ring {
    pub(crate) fn new(base: u64) -> Self {
        let eventfd = || EventFd::new(EFD_NONBLOCK).unwrap();
        Ring {
            base,
            kick: eventfd(),
            call: eventfd(),
            error: eventfd(),
            next_descriptor: 0,
            available: 0,
            used: 0,
        }
    }

    /// Where the front end has it.
    pub(crate) fn places(&self) -> VringConfigData {
        let address = |page: u64| USER_BASE + self.base + page * 0x1000;
        VringConfigData {
            queue_max_size: QUEUE_SIZE,
            queue_size: QUEUE_SIZE,
            flags: 0,
            desc_table_addr: address(0),
            avail_ring_addr: address(1),
            used_ring_addr: address(2),
            log_addr: None,
        }
    }

    /// Starts from empty rings.
    pub(crate) fn clear(&mut self, ram: &GuestMemoryMmap) {
        ram.write_slice(&[0; 0x3000], GuestAddress(self.base))
            .unwrap();
        (self.next_descriptor, self.available, self.used) = (0, 0, 0);
        let _ = self.call.read();
    }

    fn available_ring(&self) -> u64 {
        self.base + 0x1000
    }

    fn used_ring(&self) -> u64 {
        self.base + 0x2000
    }

    pub(crate) fn describe(
        &self,
        ram: &GuestMemoryMmap,
        index: u16,
        descriptor: (u64, u32, u16, u16),
    ) {
        let (address, length, flags, next) = descriptor;
        let at = GuestAddress(self.base + u64::from(index) * 16);
        let words = u64::from(length) | u64::from(flags) << 32 | u64::from(next) << 48;
        ram.write_obj([address, words], at).unwrap();
    }

    /// Makes the chain that starts at `head` available.
    pub(crate) fn offer(&mut self, ram: &GuestMemoryMmap, head: u16) {
        let place = u64::from(self.available % QUEUE_SIZE);
        let entry = GuestAddress(self.available_ring() + 4 + place * 2);
        ram.write_obj(head, entry).unwrap();
        self.available = self.available.wrapping_add(1);
        self.set_available(ram, self.available);
    }

    /// Sets the available index as the device sees it.
    pub(crate) fn set_available(&self, ram: &GuestMemoryMmap, value: u16) {
        let index = GuestAddress(self.available_ring() + 2);
        ram.store(value, index, Ordering::Release).unwrap();
    }

    /// Adds a chain of (address, length, writable) buffers.
    pub(crate) fn push(&mut self, ram: &GuestMemoryMmap, buffers: &[(u64, u32, bool)]) {
        let head = self.next_descriptor;
        for (index, (address, length, writable)) in buffers.iter().enumerate() {
            let this = (head + index as u16) % QUEUE_SIZE;
            let last = index + 1 == buffers.len();
            let flags = if last { 0 } else { NEXT } | if *writable { WRITE } else { 0 };
            self.describe(
                ram,
                this,
                (*address, *length, flags, (this + 1) % QUEUE_SIZE),
            );
        }
        self.next_descriptor = (head + buffers.len() as u16) % QUEUE_SIZE;
        self.offer(ram, head);
    }

    fn used_index(&self, ram: &GuestMemoryMmap) -> u16 {
        let index = GuestAddress(self.used_ring() + 2);
        ram.load(index, Ordering::Acquire).unwrap()
    }

    /// Returns true if a chain came back that was not taken.
    pub(crate) fn has_entry(&self, ram: &GuestMemoryMmap) -> bool {
        self.used_index(ram) != self.used
    }

    /// Waits for an interrupt and a chain that came back: its head and length.
    pub(crate) fn take(&mut self, ram: &GuestMemoryMmap) -> (u64, u32) {
        let started = Instant::now();
        while self.used_index(ram) == self.used {
            let left = TIMEOUT.saturating_sub(started.elapsed());
            assert!(!left.is_zero(), "no chain came back");
            wait_for(&self.call, left);
        }
        let place = u64::from(self.used % QUEUE_SIZE);
        let entry = GuestAddress(self.used_ring() + 4 + place * 8);
        let [head, length]: [u32; 2] = ram.read_obj(entry).unwrap();
        self.used = self.used.wrapping_add(1);
        (u64::from(head), length)
    }

    /// Waits until the device says that the queue has failed.
    pub(crate) fn wait_for_failure(&self) {
        assert!(wait_for(&self.error, TIMEOUT), "the queue did not fail");
    }
}

/// Waits until an eventfd is signalled, and takes the signal.
pub(crate) fn wait_for(eventfd: &EventFd, timeout: std::time::Duration) -> bool {
    let epoll = Epoll::new().unwrap();
    let event = EpollEvent::new(EventSet::IN, 0);
    epoll
        .ctl(ControlOperation::Add, eventfd.as_raw_fd(), event)
        .unwrap();
    let milliseconds = timeout.as_millis() as i32;
    while let Err(error) = epoll.wait(milliseconds, &mut [EpollEvent::default()]) {
        // A signal, such as libFuzzer's alarm clock, does not end the wait.
        assert_eq!(error.kind(), std::io::ErrorKind::Interrupted);
    }
    eventfd.read().is_ok()
}
