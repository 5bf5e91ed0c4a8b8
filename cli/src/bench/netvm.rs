//! Figures of the source, for comparison as ratios: NetVM tables 24 to 31, figure 28
//! (1-GHz hosts, 132-MHz network processor, 1.28 Gb/s Myrinet), in microseconds.

/// Table 24, kernel.
pub(super) const MAP_PAGE: f64 = 0.31;
/// Table 24, kernel.
pub(super) const UNMAP_PAGE: f64 = 1.44;
/// Table 24, kernel.
pub(super) const UNMAP_PAGE_LOCKED: f64 = 0.73;
/// Table 24, kernel.
pub(super) const IS_PAGE_DIRTY_CLEAN: f64 = 0.55;
/// Table 24, kernel.
pub(super) const IS_PAGE_DIRTY_DIRTY: f64 = 0.60;
/// Table 24, network interface.
pub(super) const LOCK_PAGE: f64 = 0.33;
/// Table 24, network interface.
pub(super) const LOCK_PAGE_NOT_MAPPED: f64 = 0.39;
/// Table 24, network interface.
pub(super) const UNLOCK_PAGE: f64 = 0.13;
/// Table 24, network interface.
pub(super) const UNLOCK_PAGE_DIRTY: f64 = 0.27;

/// Table 25: pages of a cluster, and what it costs to pin and unpin one of them
/// with mlock and munlock of the whole cluster.
pub(super) const PINNING: [(usize, f64); 4] = [(1, 4.21), (2, 2.57), (4, 1.76), (8, 1.30)];

/// Table 25: lockPage and unlockPageDirty.
pub(super) const LOCKING: f64 = 0.60;

/// Table 26: a write of 4 bytes and of 4 KiB.
pub(super) const WRITE: [f64; 2] = [5.56, 47.79];
/// Table 26: the same by physical address.
pub(super) const WRITE_P: [f64; 2] = [5.28, 47.08];
/// Table 26: a read of 4 bytes and of 4 KiB.
pub(super) const READ: [f64; 2] = [9.25, 50.05];
/// Table 26: the same by physical address.
pub(super) const READ_P: [f64; 2] = [8.79, 49.99];

/// Table 26: time between writes of a stream, from its 1.26 and 155.46 MB/s.
pub(super) const WRITE_STREAM: [f64; 2] = [4.0 / 1.26, 4096.0 / 155.46];
/// Table 26: the same by physical address, from its 1.51 and 155.36 MB/s.
pub(super) const WRITE_P_STREAM: [f64; 2] = [4.0 / 1.51, 4096.0 / 155.36];

/// Table 27: a notifying write of 4 bytes, until notfSpin sees it.
pub(super) const WRITE_NOTIFY_SPIN: f64 = 8.52;

/// Table 30: testandset and cswap.
pub(super) const TEST_AND_SET: f64 = 10.50;
/// Table 30: incr and decr.
pub(super) const INCREMENT: f64 = 10.55;
/// Table 30: swap.
pub(super) const SWAP: f64 = 10.52;

/// Table 31: acquire of a free lock.
pub(super) const ACQUIRE: f64 = 10.53;
/// Table 31: release without a successor.
pub(super) const RELEASE: f64 = 10.55;
/// Table 31: insertQ as the first, and behind another.
pub(super) const INSERT: [f64; 2] = [11.87, 12.47];
/// Table 31: removeQ.
pub(super) const REMOVE: f64 = 11.64;
/// Table 31: Swait with a positive count, and Ssignal without a waiter.
pub(super) const SEMAPHORE: f64 = 10.55;

/// Table 27: notifying writes of 4 bytes and of 4 KiB, until notfSpin sees them.
pub(super) const WRITE_NOTIFY_SPINS: [f64; 2] = [WRITE_NOTIFY_SPIN, 50.68];
/// Table 27: until notfWait returns.
pub(super) const WRITE_NOTIFY_WAIT: [f64; 2] = [16.61, 58.73];
/// Table 27: until a handler is called.
pub(super) const WRITE_NOTIFY_HANDLER: [f64; 2] = [31.14, 73.16];

/// Table 28: a pending signal, acknowledged too.
pub(super) const DETECT_SPIN: f64 = 2.29;
/// Table 28: a pending signal, acknowledged too.
pub(super) const DETECT_WAIT: f64 = 3.67;
/// Table 28: the dispatcher's notfTest.
pub(super) const DETECT_TEST: f64 = 1.07;
/// Table 28.
pub(super) const ACKNOWLEDGE: f64 = 0.69;

/// Table 29: 4 bytes, until notfSpin sees them.
pub(super) const CHANNEL_SPIN: f64 = 9.55;
/// Table 29: 4 bytes and 4 KiB, until notfWait returns.
pub(super) const CHANNEL_WAIT: [f64; 2] = [17.34, 59.01];
/// Table 29: time between messages, from its 0.79 and 155.36 MB/s of notfWait.
pub(super) const CHANNEL_STREAM: [f64; 2] = [4.0 / 0.79, 4096.0 / 155.36];

/// Figure 28: microseconds for each operation of a single process (tables 26, 30 and 31,
/// the longer case of two) and of a group (table 30, of the network interface).
pub(super) const RATE_READ: [f64; 2] = [READ[0], 2.72];
/// Figure 28: the slowest of the standard operations.
pub(super) const RATE_ATOMIC: [f64; 2] = [INCREMENT, 4.31];
/// Figure 28: acquire and release; swap and cswap.
pub(super) const RATE_LOCK: [f64; 2] = [(ACQUIRE + RELEASE) / 2.0, (4.19 + 4.30) / 2.0];
/// Figure 28: insertQ and removeQ; enqueue and dequeue.
pub(super) const RATE_QUEUE: [f64; 2] = [(INSERT[1] + REMOVE) / 2.0, 4.30];
/// Figure 28: Swait and Ssignal; semP and semV.
pub(super) const RATE_SEMAPHORE: [f64; 2] = [(SEMAPHORE + 11.88) / 2.0, (4.37 + 4.54) / 2.0];
