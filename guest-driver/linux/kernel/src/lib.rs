//! The Linux kernel under the driver core: implements its [`qnic_driver::Platform`]
//! on the functions of the C shim, and offers the shim the entry points that it
//! calls.
//!
//! ```text
//!   kernel ──► shim (C): device.c queues.c file.c pools.c memory.c datagram.c volume.c verbs.c
//!                │                             │    remote_memory.c support.c
//!                │ qnic_rs_…  (entry)          ▲ qnic_…  (ffi)
//!                ▼                             │
//!     this crate: entry, datagram, pools, remote_memory, verbs, shared ──► platform, sync, sram, memory
//!                │
//!                ▼
//!              qnic-driver (guest-driver/driver): all decisions
//! ```
//!
//! The build script makes the Rust declarations of both directions from `ffi.h`.
//! All unsafe code of the Rust part is in this crate.
//!
//! An allocation of up to a page cannot fail (the core's infallible allocations are
//! smaller, [`qnic_driver::platform::SMALL_BYTES`]); larger ones use
//! `try_reserve`. Nothing is allocated or freed in an atomic context.
#![no_std]

extern crate alloc;

mod datagram;
mod entry;
mod ffi;
mod memory;
mod platform;
mod pools;
mod remote_memory;
mod shared;
mod sram;
mod sync;
mod verbs;

use core::alloc::{GlobalAlloc, Layout};
use core::fmt::{self, Write};

use qnic_driver::platform::Level;

/// The numbers of `abi.h`, and the assertion that they are those of the ABI crate.
#[allow(
    dead_code,
    reason = "Rust 1.85 does not count what only a constant assertion uses"
)]
mod abi_h {
    use qnic_abi::header::SEGMENTS_PER_PROCESS;
    use qnic_abi::verbs::{rings, Event};
    use qnic_abi::{
        attach, control, counters, datagram, event, host_area, pool, uapi, verbs, volume, Status,
    };

    use crate::entry::{argument_bytes, CALLS};

    include!(concat!(env!("OUT_DIR"), "/abi_h.rs"));

    const fn same(name: u64, definition: u64) {
        assert!(name == definition, "abi.h differs from the crate qnic-abi");
    }

    /// Size of the largest argument of a call.
    const fn largest_argument() -> u64 {
        let (mut largest, mut index) = (0, 0);
        while index < CALLS.len() {
            let bytes = argument_bytes(CALLS[index]);
            largest = if bytes > largest { bytes } else { largest };
            index += 1;
        }
        largest as u64
    }

    const _: () = {
        same(QNIC_VIRTIO_ID, attach::VIRTIO_ID as u64);
        same(QNIC_CONFIG_BYTES, attach::CONFIG_SIZE as u64);
        same(QNIC_SRAM_REGION, attach::SRAM_REGION as u64);
        same(QNIC_CONTROL, attach::CONTROL_QUEUE as u64);
        same(QNIC_EVENT, attach::EVENT_QUEUE as u64);
        same(QNIC_FIRST_DOORBELL, attach::FIRST_DOORBELL as u64);
        same(
            QNIC_QUEUES_MAX,
            attach::FIRST_DOORBELL as u64 + attach::MAX_DOORBELLS as u64,
        );
        same(QNIC_REQUEST_BYTES, control::REQUEST_BYTES as u64);
        same(QNIC_REPLY_BYTES, control::REPLY_BYTES as u64);
        same(QNIC_EVENT_BYTES, event::EVENT_BYTES as u64);
        same(QNIC_HOST_PAGES, host_area::HOST_PAGES as u64);
        same(QNIC_READ_ONLY_PAGES, host_area::READ_ONLY_PAGES as u64);
        same(QNIC_FAULT_PAGES, event::MAX_FAULT_PAGES as u64);
        same(QNIC_ARGUMENT_BYTES, largest_argument());
        same(QNIC_IOCTL_REGISTER, uapi::REGISTER as u64);
        same(QNIC_IOCTL_INFO, uapi::INFO as u64);
        same(QNIC_IOCTL_COUNTERS, uapi::COUNTERS as u64);
        same(QNIC_IOCTL_OPEN_POOLS, pool::OPEN_POOLS as u64);
        same(QNIC_HEADER_BYTES, datagram::HEADER_CAPACITY as u64);
        same(QNIC_COUNTERS_NIC, counters::CounterSource::Nic as u64);
        same(QNIC_COUNTER_NAME_BYTES, counters::NAME_BYTES as u64);
        same(QNIC_PAGE_COUNTERS, counters::PAGE_COUNTERS as u64);
        same(QNIC_VERBS_COMPLETION, Event::Completion as u64);
        same(QNIC_VERBS_CQ_ERROR, Event::CompletionQueueError as u64);
        same(QNIC_VERBS_FATAL, Event::Fatal as u64);
        same(QNIC_VERBS_ACCESS_ERROR, Event::AccessError as u64);
        same(QNIC_VERBS_REQUEST_ERROR, Event::RequestError as u64);
        same(QNIC_VERBS_ESTABLISHED, Event::Established as u64);
        same(QNIC_VERBS_DRAINED, Event::Drained as u64);
        same(QNIC_VERBS_LAST_RECEIVE, Event::LastReceive as u64);
        same(QNIC_VERBS_LIMIT_REACHED, Event::LimitReached as u64);
        same(QNIC_VERBS_QUEUE_PAIRS, verbs::QUEUE_PAIRS as u64);
        same(QNIC_VERBS_CQS, verbs::COMPLETION_QUEUES as u64);
        same(QNIC_VERBS_SRQS, verbs::SHARED_RECEIVE_QUEUES as u64);
        same(QNIC_VERBS_SEGMENTS, SEGMENTS_PER_PROCESS as u64);
        same(QNIC_VERBS_SGES, verbs::MAX_SGES as u64);
        same(QNIC_VERBS_INLINE, verbs::MAX_INLINE as u64);
        same(QNIC_VERBS_READS, verbs::MAX_READS as u64);
        same(QNIC_VERBS_MESSAGE, verbs::MAX_MESSAGE);
        same(QNIC_VERBS_RING_BYTES, verbs::requests::RING_BYTES as u64);
        same(QNIC_VERBS_HEADER_BYTES, rings::ENTRIES as u64);
        same(QNIC_VERBS_PRODUCER, rings::PRODUCER as u64);
        same(QNIC_VERBS_CONSUMER, rings::CONSUMER as u64);
        same(QNIC_VERBS_SEND_ENTRY_BYTES, size_of::<rings::SendEntry>() as u64);
        same(QNIC_VERBS_RECEIVE_ENTRY_BYTES, size_of::<rings::ReceiveEntry>() as u64);
        same(QNIC_VERBS_COMPLETION_BYTES, size_of::<rings::WorkCompletion>() as u64);
        same(QNIC_VOLUMES, volume::MAX_VOLUMES as u64);
        same(QNIC_VOLUME_PAGES, volume::MAX_PAGES_UNDER_WAY as u64);
        same(QNIC_REQUEST_PAGES, volume::MAX_PAGES_OF_REQUEST as u64);
        same(QNIC_VOLUME_OFFSET, volume::VOLUME_OFFSET as u64);
        same(QNIC_FIRST_MEMORY_CALL, volume::FIRST_CALL as u64);
        same(QNIC_LAST_MEMORY_CALL, volume::LAST_CALL as u64);
        same(QNIC_IOCTL_ATTACH_VOLUME, volume::ATTACH_VOLUME as u64);
        same(QNIC_IOCTL_DETACH_VOLUME, volume::DETACH_VOLUME as u64);
        same(QNIC_IOCTL_SERVE_MEMORY, volume::SERVE_MEMORY as u64);
        same(QNIC_IOCTL_LEAVE_MEMORY, volume::LEAVE_MEMORY as u64);
        same(QNIC_IOCTL_MEMORY_INFO, volume::MEMORY_INFO as u64);
        same(QNIC_STATUS_PORT_IN_USE, Status::PortInUse as u64);
        same(QNIC_STATUS_EXHAUSTED, Status::Exhausted as u64);
        same(QNIC_STATUS_NO_SUCH_VOLUME, Status::NoSuchVolume as u64);
        same(QNIC_STATUS_VOLUME_IN_USE, Status::VolumeInUse as u64);
        same(QNIC_STATUS_NOT_SERVING, Status::NotServing as u64);
    };
}

/// The kernel's allocator.
struct KernelAllocator;

// SAFETY: qnic_alloc returns null or memory of that size that nothing else uses,
// aligned to the size rounded up to a power of two, at most to a page; `alloc`
// asks for a size of at least the alignment and refuses alignments beyond a page.
unsafe impl GlobalAlloc for KernelAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > qnic_abi::PAGE_SIZE {
            return core::ptr::null_mut();
        }
        let bytes = layout.size().max(layout.align());
        // SAFETY: any number of bytes may be asked for.
        unsafe { ffi::qnic_alloc(bytes as u64) }.cast()
    }

    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        // SAFETY: the caller gives back what `alloc` returned.
        unsafe { ffi::qnic_free(memory.cast()) }
    }
}

#[global_allocator]
static ALLOCATOR: KernelAllocator = KernelAllocator;

/// Longest line of the log.
const LINE_BYTES: usize = 200;

/// A line that is formatted on the stack: logging must not allocate.
struct Line {
    bytes: [u8; LINE_BYTES],
    length: usize,
}

impl Write for Line {
    /// Drops the part that does not fit.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.iter_mut().skip(self.length);
        let mut written = 0;
        for (to, from) in room.zip(text.bytes()) {
            *to = from;
            written += 1;
        }
        self.length += written;
        Ok(())
    }
}

/// Writes a line to the kernel's log.
fn log(level: Level, message: fmt::Arguments<'_>) {
    let mut line = Line {
        bytes: [0; LINE_BYTES],
        length: 0,
    };
    // A Line takes everything.
    let _ = line.write_fmt(message);
    let level = match level {
        Level::Error => 0,
        Level::Warning => 1,
        Level::Info => 2,
    };
    // SAFETY: `length` bytes of `bytes` were written.
    unsafe { ffi::qnic_log(level, line.bytes.as_ptr(), line.length as u64) }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    log(Level::Error, format_args!("{info}"));
    // SAFETY: stops this thread with an oops; nothing of it runs on.
    unsafe { ffi::qnic_bug() }
}
