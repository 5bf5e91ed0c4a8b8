//! Who uses a NIC at one time: its processes, and the NICs that it talks to, for people.
//!
//! A report is made when somebody asks for it. Meanwhile the NIC counts what it does for a process
//! and a peer where it counts for itself. There are as many processes as windows, and as many peers
//! as [`crate::Limits::peers`].

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VniReport {
    /// Its VNI.
    pub vni: u16,
    /// Its port.
    pub port: u16,
    /// What the kernel of its node calls it; 0 of the driver.
    pub pid: u32,
    /// The first of the names that it has registered (Q14).
    pub name: Option<String>,
    /// What its command queue does: `active`, `idle` (looked at when there is nothing else to do),
    /// `asleep`, `stalled` (it has no operation to spare, or leaves completions unread) or `failed`.
    pub queue: &'static str,
    /// Commands read since its queue began.
    pub commands: u64,
    /// Commands that it has posted and the NIC has not read.
    pub posted: u64,
    /// Commands that run.
    pub operations: u64,
    /// Payload bytes sent from its memory.
    pub bytes_sent: u64,
    /// Payload bytes delivered into its memory.
    pub bytes_received: u64,
    /// Completions that it has not read, those included that wait for room.
    pub completions: u64,
    /// Entries of its notification queue that it has not read.
    pub notifications: u64,
    /// Faults reported to the driver and not answered.
    pub faults: u64,
    /// Requests of peers that it was not given a turn for.
    pub requests: u64,
    /// Receives posted.
    pub receives: u64,
    /// Messages that wait for a receive.
    pub messages: u64,
    /// Bytes of them that are kept here.
    pub staged_bytes: u64,
}

/// A NIC that it talks to, or has talked to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerReport {
    /// Its node.
    pub node: u16,
    /// `own` (the NIC itself), `open`, `opening` or `closed`.
    pub session: &'static str,
    /// Fragments that it lets this NIC have under way to it: credits.
    pub window: u64,
    /// How many of them are used.
    pub under_way: u64,
    /// Fragments that this NIC lets it have under way.
    pub granted: u64,
    /// Frames of it that have arrived and are not delivered.
    pub held: u64,
    /// Requests to it that were not answered.
    pub requests: u64,
    /// Operations and frames that wait for room to it, and control frames that wait for their turn.
    /// Operations that have ended meanwhile may still count.
    pub waiting: u64,
    /// Frames that were sent to it again.
    pub resent: u64,
}
