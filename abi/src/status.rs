//! Why something was refused: one list of codes for commands, control requests
//! and frames.

/// Declares [`Status`]: the code of each, its message for people, and above it what else
/// there is to say.
macro_rules! statuses {
    ($($(#[doc = $doc:expr])* $name:ident = $code:literal: $message:literal,)*) => {
        numbered! {
            /// Result of a command, a control request or a frame, as it stands in shared
            /// memory and on the wire.
            pub enum Status: u32 {
                $(#[doc = $message] #[doc = ""] $(#[doc = $doc])* $name = $code,)*
            }
        }

        impl core::fmt::Display for Status {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(match self {
                    $(Status::$name => $message,)*
                })
            }
        }
    };
}

statuses! {
    Ok = 0: "done",
    Malformed = 1: "malformed: unknown opcode or a reserved field that is not zero",
    /// A length is zero where it must not be, or beyond its limit.
    BadLength = 2: "length is zero or beyond its limit",
    /// An address lies outside its segment, or wraps around.
    BadAddress = 3: "address outside the segment",
    /// The key is not, or no longer, that of the segment (N11).
    BadKey = 4: "the key is not, or no longer, that of the segment",
    /// The segment does not grant the access that the operation needs, or does not let its
    /// writers signal that notification (N2, N11).
    AccessDenied = 5: "the segment does not grant this access or notification",
    NoSuchSegment = 6: "no such segment, or it was unexported",
    NoSuchPort = 7: "no process is registered on that port",
    NoSuchNode = 8: "no such node, or no link to it",
    /// No segment of that name appeared within the given time (N3).
    NameNotFound = 9: "no segment of that name was exported in time",
    NameExists = 10: "this process exports a segment of that name already",
    PortInUse = 11: "another process of this node holds that port",
    /// All windows, segments or pending requests of this kind are in use.
    Exhausted = 12: "all entries of this kind are in use",
    /// The other side speaks another [`crate::ABI_VERSION`].
    VersionMismatch = 13: "the two sides speak different ABI versions",
    NoSuchVni = 14: "no such VNI, or it is not registered",
    VniInUse = 15: "the VNI is registered already",
    /// The segment was unexported, or its process ended, while the transfer ran (N2).
    Aborted = 16: "the segment was unexported or its process ended during the transfer",
    PeerGone = 17: "the peer was reset or its process ended during the transfer",
    /// The page is not mapped or not accessible, or a program is to serve it (userfaultfd), or there is no
    /// memory for it.
    PageUnavailable = 18: "the owner of the memory could not bring a page of it in",
    /// The notification number is 0 (N16).
    BadNotification = 19: "there is no notification 0",
    QueueFailed = 20: "the command queue stands still after a malformed command",
    /// The physical map in SRAM does not cover all of the guest's memory.
    SramTooSmall = 21: "the SRAM does not cover all of the guest's memory",
    NotMapped = 22: "some of the memory is not mapped",
    /// The process that owns the memory cannot write some of it, so it can grant no write
    /// to it, and no read of its own can end there.
    ReadOnlyMemory = 23: "the process itself cannot write some of the memory",
    UnreadableMemory = 24: "the process itself cannot read some of the memory",
    /// Some of the memory is of memfd_secret, which no kernel may touch.
    SecretMemory = 25: "some of the memory is secret (memfd_secret)",
    /// Some of the memory maps storage itself, which has no page frames to be reclaimed.
    DaxMemory = 26: "some of the memory is storage that is mapped directly (DAX)",
    DeviceMemory = 27: "some of the memory belongs to a device or to the kernel",
    Overlapping = 28: "the memory overlaps a segment over another range of this process",
    /// The operand of an atomic operation is not aligned to its size (N20).
    Misaligned = 29: "the operand of an atomic operation is not aligned to its size",
    /// The receiver is not ready: the kernel that owns the memory answers no page fault. It
    /// is stuck, has panicked, or is hostile; or the machine has far too little memory.
    FaultTimeout = 30: "receiver not ready: a page was not brought in within the fault timeout",
    /// The exporter does not list the importer, or asks for a secret that the importer did not
    /// present. The answer does not say which (N2).
    ImportRefused = 31: "the exporter does not let this process import the segment",
    /// The receiver keeps the envelope of the message and not its bytes: they may come when a
    /// receive takes them (Q12). Between NICs only.
    NotStaged = 32: "the receiver has no room to stage the message; it waits for its receive",
    /// The message is longer than its receive: what fits has arrived (Q4).
    Truncated = 33: "the message is longer than the receive that took it",
    /// A receive, or a probe that waits.
    Cancelled = 34: "the receive was cancelled",
    /// Of the members of a group, two call different collectives, or with different lengths,
    /// roots or operators.
    Mismatch = 35: "the members of the group call different collectives",
    TimedOut = 36: "not done within the time that was given",
    NoSuchGroup = 37: "no such group, or the process has left it",
    /// The key or the size is another than that of the home process, or another process has the
    /// rank.
    GroupRefused = 38: "the group has another key or size, or the rank is taken",
    /// A probe finds no message, or a receive names a claimed message that is not there: it was
    /// received or discarded, or its sender has ended or given it up (Q4).
    NoMessage = 39: "no such message has arrived, or it is gone",
    NameTaken = 40: "another process has the name",
    NoSuchVolume = 41: "no such volume is attached",
    VolumeInUse = 42: "the volume is mounted, used for swap or open",
    NotServing = 43: "this node gives no memory to others",
    /// Nothing has changed; the operation may be tried again.
    Contended = 44: "processors of the owner change the word all the time",
    /// A page of the process that issued the operation, or that receives the message. Whatever is with
    /// the memory of the other side says [`PageUnavailable`](Status::PageUnavailable).
    OwnPageUnavailable = 45: "a page of this process's own memory could not be brought in",
    /// Pages of the memory come from a program that may never give them.
    UserFaultMemory = 46: "some of the memory is served by a program (userfaultfd)",
}

impl Status {
    /// The number that stands in memory and on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// What the owner of the memory is told, if peers are told this.
    pub const fn for_owner(self) -> Self {
        match self {
            Status::PageUnavailable => Status::OwnPageUnavailable,
            status => status,
        }
    }

    /// What peers are told, if the owner of the memory is told this.
    pub const fn for_peer(self) -> Self {
        match self {
            Status::OwnPageUnavailable => Status::PageUnavailable,
            status => status,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Unknown;

    #[test]
    fn codes_are_their_places_in_the_list() {
        for (place, status) in Status::ALL.into_iter().enumerate() {
            assert_eq!(status.code() as usize, place);
            assert_eq!(Status::try_from(place as u32), Ok(status));
        }
        let next = Status::ALL.len() as u32;
        assert_eq!(Status::try_from(next), Err(Unknown(next)));
        assert_eq!(Status::try_from(u32::MAX), Err(Unknown(u32::MAX)));
    }
}
