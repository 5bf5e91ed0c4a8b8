//! Bounds of everything in a NIC that could grow, and of its times.

use crate::{Counts, COLLECTIVES, OPERATIONS, PROBES, RECEIVES, SENDS};

/// Smallest window that a peer is granted, whatever others have; each of
/// [`Limits::peers`] can have it at once.
pub const SMALLEST_WINDOW: u32 = 16;

/// Largest window: half of the numbers that a peer can tell from old ones, so that frames
/// without a payload have numbers when it is full.
pub const MAX_WINDOW: u32 = 4096;

/// What a message that is staged counts beside its bytes.
pub const STAGED_OVERHEAD: u32 = 256;

/// Bounds of everything that could grow, and of the work of one call.
///
/// Exhaustion delays or refuses; it never drops what was accepted.
#[derive(Debug, Clone)]
pub struct Limits {
    /// What a process has of its window and its host area (Q1).
    pub counts: Counts,
    /// Transfers of one process that run at the same time, 1 to [`OPERATIONS`].
    pub operations: u32,
    /// Messages of one process that run at the same time, 1 to [`SENDS`].
    pub sends: u32,
    /// Commands read from one process's queue in one poll.
    pub commands_per_poll: u32,
    /// Fragments sent in one poll, control frames not counted. A fragment has a page at
    /// most; a frame carries one, or within a process a page span of them
    /// (`qnic_abi::wire`).
    pub fragments_per_poll: u32,
    /// Fragments that one peer may have on their way to this NIC, or
    /// here and not delivered; and most that this NIC has on their way to one peer, up to
    /// [`MAX_WINDOW`]. Bounds what waits here for pages (N15), and the throughput of a path:
    /// 4,096 fill 16 GB/s over a millisecond.
    pub window: u32,
    /// Windows that are granted to all peers together, the own node being one: they share
    /// it, and each has [`SMALLEST_WINDOW`] at least. It is the most that waits in bounce
    /// memory, unless so many smallest windows are more; 65,536 are 256 MiB at the very worst.
    pub held_frames: u32,
    /// Fragments of one write that are sent and not yet delivered.
    pub fragments_per_write: u32,
    /// Fragments of one read that were asked for and have not come; a span may go beyond.
    pub requests_per_read: u32,
    /// Requests of peers that wait for a turn or a page, for one process.
    pub responses: u32,
    /// Page faults of one process reported to the driver and not answered.
    pub faults: u32,
    /// Imports that one process waits for.
    pub imports: u32,
    /// Imports that wait here for a name to be exported: of one process of a peer. Of all
    /// its processes together, as many as [`Limits::parked_imports_per_peer`].
    pub parked_imports: u32,
    /// Imports of one peer that wait here for a name to be exported.
    pub parked_imports_per_peer: u32,
    /// Receives that one process may have posted.
    pub receives: u32,
    /// Probes of one process that wait for a message.
    pub probes: u32,
    /// Different masks (source or any, ignore bits) of the receives of one space that are found
    /// without a walk.
    pub masks: u32,
    /// Bytes of messages that are staged for one process (Q12); each message counts
    /// [`STAGED_OVERHEAD`] more. Half of them are for any sender, half for the shares of all.
    pub staged_bytes: u32,
    /// Bytes of messages of one node that are staged, whatever processes sent them; half of them
    /// as above.
    pub staged_bytes_per_peer: u32,
    /// The share of one process that sends in the staged bytes of another one.
    pub staged_bytes_per_sender: u32,
    /// Messages of one node that wait here and are not staged. Nodes do not send more
    /// ([`Limits::envelopes_per_process`]).
    pub envelopes_per_peer: u32,
    /// Completions of one process that wait for room in its queue, from which on no more of its
    /// commands are read and no messages are given to it.
    pub completions: u32,
    /// Groups that one process is a member of, joins counted.
    pub groups: u32,
    /// Processes of one node that wait here for groups to form.
    pub joins_per_peer: u32,
    /// Collectives of one group that one process may have called and not completed.
    pub collectives: u32,
    /// Bytes that one group keeps here, of nodes below it and of results; one that needs more
    /// ends.
    pub group_bytes: u32,
    /// Names that processes of one node may have (Q14); so many for each process that a NIC takes
    /// leave none without.
    pub names: u32,
    /// Names that one process may have.
    pub names_of_process: u32,
    /// Lookups of names that one process waits for.
    pub lookups: u32,
    /// Receive buffers of datagrams that the driver may have posted (H2).
    pub datagram_buffers: u32,
    /// Nodes that this one talks to.
    pub peers: u32,
    /// How long to wait for an acknowledgement of the first frames to a peer, in
    /// nanoseconds, before its round trip is known (U2).
    pub retransmit_initial: u64,
    /// Shortest time to wait for an acknowledgement, in nanoseconds: what the peer's
    /// engine may need to wake up.
    pub retransmit_floor: u64,
    /// The same for the oldest frame that a peer has not acknowledged. It is one frame
    /// in a window, so it may be sent again in vain; its loss is what users wait for.
    pub retransmit_floor_oldest: u64,
    /// Longest time to wait for an acknowledgement, in nanoseconds.
    pub retransmit_ceiling: u64,
    /// How long an acknowledgement waits for a frame that carries it, in
    /// nanoseconds, where the route is not lossless (U1).
    pub ack_delay: u64,
    /// How long frames may wait in queues of the network, in nanoseconds, before fewer are
    /// sent: congestion control (U1).
    pub queue_delay: u64,
    /// A peer that owes an answer and says nothing for so long is given up, in
    /// nanoseconds.
    pub peer_timeout: u64,
    /// While peers are so many that they share windows or places, one with which nothing is
    /// under way leaves after twice this time, in nanoseconds.
    pub idle_peer: u64,
    /// A page fault that the driver has not answered after so long ends what waits for its
    /// pages with `qnic_abi::Status::FaultTimeout`, in nanoseconds (N13, N14).
    pub fault_timeout: u64,
    /// A command queue without a command for so long is no longer looked at in every poll, in
    /// nanoseconds.
    pub idle_timeout: u64,
    /// One without a command for so long needs a doorbell, in nanoseconds; earlier if the NIC
    /// sleeps.
    pub sleep_timeout: u64,
}

impl Limits {
    /// Smallest and largest window of a peer.
    pub fn window_range(&self) -> (u32, u32) {
        let most = self.window.clamp(1, MAX_WINDOW);
        (most.min(SMALLEST_WINDOW), most)
    }

    /// Windows that are set apart: the smallest of each peer, and the whole one of the own node.
    pub fn reserved_windows(&self) -> u32 {
        let (least, most) = self.window_range();
        least
            .saturating_mul(self.peers)
            .saturating_add(most - least)
    }

    /// Completions of one process that wait at most: until the bound is reached, and then for each
    /// command that was accepted and each message that arrived before.
    pub fn waiting_completions(&self) -> u32 {
        let accepted = self
            .receives
            .saturating_add(self.operations.max(OPERATIONS));
        let accepted = accepted.saturating_add(self.sends);
        let accepted = accepted.saturating_add(self.probes);
        let accepted = accepted.saturating_add(self.datagram_buffers);
        let begun = self.completions.saturating_add(accepted);
        begun.saturating_add(self.unexpected())
    }

    /// Messages that wait for receives of one process at most, staged or not.
    pub fn unexpected(&self) -> u32 {
        let staged = self.staged_bytes / STAGED_OVERHEAD;
        let envelopes = self.envelopes_per_peer.saturating_mul(self.peers);
        envelopes.saturating_add(staged)
    }

    /// Messages of one process that another node knows of and that have not ended, at most. All
    /// processes of `windows` together stay a fifth below [`Limits::envelopes_per_peer`]: a message
    /// has ended here before the other node learns of it.
    pub fn envelopes_per_process(&self, windows: u32) -> u32 {
        (self.envelopes_per_peer / 5 * 4 / windows.max(1)).max(1)
    }

    /// Windows that are granted at most, so the most that is held in bounce memory.
    pub fn granted_windows(&self) -> u32 {
        self.held_frames.max(self.reserved_windows())
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            counts: Counts::MOST,
            operations: OPERATIONS,
            sends: SENDS,
            commands_per_poll: 16,
            fragments_per_poll: 64,
            window: MAX_WINDOW,
            held_frames: 65_536,
            fragments_per_write: 32,
            requests_per_read: 16,
            responses: 16_384,
            faults: 64,
            imports: 256,
            parked_imports: 256,
            parked_imports_per_peer: 1024,
            receives: RECEIVES,
            probes: PROBES,
            masks: 64,
            staged_bytes: 8 << 20,
            staged_bytes_per_peer: 64 << 20,
            staged_bytes_per_sender: (64 << 10) + 16 * STAGED_OVERHEAD,
            envelopes_per_peer: 200 * 1024,
            completions: 256,
            groups: 16,
            joins_per_peer: 1024,
            collectives: COLLECTIVES,
            group_bytes: 16 << 20,
            names: 1024,
            names_of_process: 8,
            lookups: 256,
            datagram_buffers: 16_384,
            peers: 1024,
            retransmit_initial: 100_000_000,
            retransmit_floor: 5_000_000,
            retransmit_floor_oldest: 500_000,
            retransmit_ceiling: 1_000_000_000,
            ack_delay: 50_000,
            queue_delay: 5_000_000,
            peer_timeout: 5_000_000_000,
            idle_peer: 10_000_000_000,
            fault_timeout: 30_000_000_000,
            idle_timeout: 5_000,
            sleep_timeout: 500_000,
        }
    }
}
