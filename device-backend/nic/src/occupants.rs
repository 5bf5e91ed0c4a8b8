//! Reports for people: the processes of a NIC at one time, and the NICs that it talks to.
//!
//! A report is made on request. The NIC counts its work for each process and each peer beside its
//! own [`crate::Counters`]. A report has at most as many processes as windows, and as many peers as
//! [`crate::Limits::peers`].

qnic_abi::counters! {
    /// A process.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct VniReport: u64 {
        {
            /// Its VNI.
            pub vni: u16,
            /// Its port.
            pub port: u16,
            /// What the kernel of its node calls it; 0 of the driver.
            pub pid: u32,
            /// The first of the names that it has registered (Q14).
            pub name: Option<String>,
            /// What its command queue does: `active`, `idle` (looked at when there is nothing else to
            /// do), `asleep`, `stalled` (it has no operation to spare, or leaves completions unread) or
            /// `failed`.
            pub queue: &'static str,
        }
        Counter qnic_vni_commands_total "Commands read from the queue of a process." = commands;
        Counter qnic_vni_bytes_total
            "Payload bytes sent from the memory of a process, or received into it." =
            bytes_sent { direction: "sent" }, bytes_received { direction: "received" };
        Gauge qnic_vni_operations "Commands of a process that run." = operations;
        Gauge qnic_vni_queue_depth
            "What stands in a queue of a process: commands that the NIC has not read; completions and notifications that the process has not read; requests and faults that wait; receives posted, and messages that wait for one." =
            posted { queue: "commands" },
            completions { queue: "completions" },
            notifications { queue: "notifications" },
            requests { queue: "requests" },
            faults { queue: "faults" },
            receives { queue: "receives" },
            messages { queue: "messages" };
        Gauge _ "Bytes of messages that wait for a receive." = staged_bytes;
    }
}

qnic_abi::counters! {
    /// A NIC that it talks to, or has talked to.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct PeerReport: u64 {
        {
            /// Its node.
            pub node: u16,
            /// `own` (the NIC itself), `open`, `opening` or `closed`.
            pub session: &'static str,
        }
        Gauge qnic_session_window_fragments
            "Fragments that the peer lets the NIC have under way to it." = window;
        Gauge qnic_session_under_way_fragments "How many of them are under way." = under_way;
        Gauge qnic_session_granted_fragments
            "Fragments that the NIC lets the peer have under way." = granted;
        Gauge qnic_session_frames_held
            "Frames of the peer that have arrived and are not delivered." = held;
        Gauge qnic_session_requests "Requests to the peer that were not answered." = requests;
        Gauge qnic_session_waiting
            "Operations and frames that wait for room to the peer, or for their turn; some of them may have ended." =
            waiting;
        Counter qnic_session_frames_resent_total "Frames that were sent to the peer again." = resent;
    }
}
