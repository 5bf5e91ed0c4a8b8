//! What a link emulator counts.

use serde::Serialize;

qnic_abi::counters! {
    /// What a link has done, in frames unless stated otherwise.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
    pub struct LinkCounters: u64 {
        Counter qnic_link_frames_total
            "Frames on one direction of a link, by what became of them; counts only while it is impaired." =
            offered { outcome: "offered" },
            released { outcome: "released" },
            lost { outcome: "lost" },
            cut { outcome: "cut" },
            overflowed { outcome: "overflowed" },
            duplicated { outcome: "duplicated" },
            reordered { outcome: "reordered" },
            corrupted { outcome: "corrupted" };
        Counter qnic_link_offered_bytes_total
            "Bytes offered to one direction of a link; counts only while it is impaired." = offered_bytes;
    }
}
