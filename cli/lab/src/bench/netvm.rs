//! The figures that NetVM's authors published for the operations that `qnic bench memory`
//! and `qnic bench sync` measure (tables 24 to 31 and figure 28), in microseconds.
//!
//! Their hosts had processors of 1 GHz, their network interface one of 132 MHz, and their
//! network, Myrinet, moved 1.28 Gb/s. So absolute times say nothing about this system;
//! what compares is the ratio of two figures of the same table.
//!
//! A list has an operation by the name of its row here, and its time. An operation that is
//! measured here alone is in none.

/// Operations and their times.
pub(super) type Times = [(&'static str, f64)];

/// The time of an operation.
pub(super) fn time(times: &Times, name: &str) -> Option<f64> {
    let found = times.iter().find(|(other, _)| *other == name);
    found.map(|(_, time)| *time)
}

/// Table 24: operations on the page table, five by the kernel, four by the network
/// interface.
pub(super) const PAGE_TABLE: &Times = &[
    ("mapPage", 0.31),
    ("unmapPage", 1.44),
    ("unmapPage (LOCKED)", 0.73),
    ("isPageDirty (CLEAN)", 0.55),
    ("isPageDirty (DIRTY)", 0.60),
    ("lockPage", 0.33),
    ("lockPage (absent)", 0.39),
    ("unlockPage", 0.13),
    ("unlockPageDirty", 0.27),
];

/// Table 25: the time for each page of a cluster to pin and unpin all of it.
pub(super) const PINNING: &Times = &[
    ("mlock + munlock, 1 at a time", 4.21),
    ("mlock + munlock, 2 at a time", 2.57),
    ("mlock + munlock, 4 at a time", 1.76),
    ("mlock + munlock, 8 at a time", 1.30),
];

/// Table 25: lockPage and unlockPageDirty of one page.
pub(super) const LOCKING: f64 = 0.60;

/// Table 26: transfers by virtual and by physical address. For streams it has MB/s; here
/// is the time between two writes.
pub(super) const TRANSFERS: &Times = &[
    ("write 4 B", 5.56),
    ("writeP 4 B", 5.28),
    ("write 4096 B", 47.79),
    ("writeP 4096 B", 47.08),
    ("read 4 B", 9.25),
    ("readP 4 B", 8.79),
    ("read 4096 B", 50.05),
    ("readP 4096 B", 49.99),
    ("write 4 B, stream", 4.0 / 1.26),
    ("writeP 4 B, stream", 4.0 / 1.51),
    ("write 4096 B, stream", 4096.0 / 155.46),
    ("writeP 4096 B, stream", 4096.0 / 155.36),
];

/// Tables 26, 27, 30 and 31: a write and a read; a notifying write; atomic operations; and
/// locks, wait queues and semaphores without contention.
pub(super) const OPERATIONS: &Times = &[
    ("write 4 B, seen", 5.56),
    ("writeN 4 B, spun", 8.52),
    ("read 4 B", 9.25),
    ("testandset", 10.50),
    ("incr", 10.55),
    ("decr", 10.55),
    ("swap", 10.52),
    ("cswap", 10.50),
    ("acquire", 10.53),
    ("release, no successor", 10.55),
    ("insertQ, first", 11.87),
    ("insertQ, behind another", 12.47),
    ("removeQ", 11.64),
    ("Swait", 10.55),
    ("Ssignal, no waiter", 10.55),
];

/// Tables 26 and 27: a write of 4 bytes until it is seen, and a notifying one until each
/// kind of receiver knows of it.
pub(super) const NOTIFICATIONS_4: &Times = &[
    ("write, seen", 5.56),
    ("writeN, notfSpin", 8.52),
    ("writeN, notfWait", 16.61),
    ("writeN, handler", 31.14),
];

/// The same of 4 KiB.
pub(super) const NOTIFICATIONS_4096: &Times = &[
    ("write, seen", 47.79),
    ("writeN, notfSpin", 50.68),
    ("writeN, notfWait", 58.73),
    ("writeN, handler", 73.16),
];

/// Table 28: calls that find a signal pending.
pub(super) const DETECTION: &Times = &[
    ("notfSpin and notfAck", 2.29),
    ("notfWait and notfAck", 3.67),
    ("notfTest", 1.07),
    ("notfAck", 0.69),
];

/// Table 29: messages of a channel. For streams it has MB/s of notfWait; here is the time
/// between two messages.
pub(super) const CHANNELS: &Times = &[
    ("4 B, spun", 9.55),
    ("4 B, waited", 17.34),
    ("4096 B, waited", 59.01),
    ("4 B, stream", 4.0 / 0.79),
    ("4096 B, stream", 4096.0 / 155.36),
];

/// Figure 28: the time of an operation when one process issues it, and when a group does.
/// The source computes the first from tables 26, 30 and 31 (the longer case of two, the
/// mean of a pair) and the second from what its network interface needs (table 30).
pub(super) const RATES: [(&str, [f64; 2]); 5] = [
    ("read 4 B", [9.25, 2.72]),
    // The slowest of the atomic operations.
    ("swap", [10.55, 4.31]),
    // The group's: swap and cswap.
    (
        "acquire, release",
        [(10.53 + 10.55) / 2.0, (4.19 + 4.30) / 2.0],
    ),
    // The group's: enqueue and dequeue.
    ("insertQ, removeQ", [(12.47 + 11.64) / 2.0, 4.30]),
    // The group's: semP and semV.
    (
        "Swait, Ssignal",
        [(10.55 + 11.88) / 2.0, (4.37 + 4.54) / 2.0],
    ),
];
