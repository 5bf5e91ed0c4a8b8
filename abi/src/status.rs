//! Why something was refused: one list of codes for commands, control requests
//! and frames.

/// Result of a command, a control request or a frame, as it stands in shared
/// memory and on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The opcode is not known, or a reserved field is not zero.
    Malformed = 1,
    /// A length is zero where it must not be, or beyond its limit.
    BadLength = 2,
    /// An address lies outside its segment, or wraps around.
    BadAddress = 3,
    /// The key is not, or no longer, that of the segment (N11).
    BadKey = 4,
    /// The segment does not grant the access that the operation needs (N11).
    AccessDenied = 5,
    /// No such segment in that process, or it was unexported.
    NoSuchSegment = 6,
    /// No process is registered on that port of that node.
    NoSuchPort = 7,
    /// No such node, or no link to it.
    NoSuchNode = 8,
    /// No segment of that name appeared within the given time (N3).
    NameNotFound = 9,
    /// That name is already exported by this process.
    NameExists = 10,
    /// The port is held by another process of this node.
    PortInUse = 11,
    /// All windows, segments or pending requests of this kind are in use.
    Exhausted = 12,
    /// The other side speaks another [`crate::ABI_VERSION`].
    VersionMismatch = 13,
    /// No such VNI, or it is not registered.
    NoSuchVni = 14,
    /// The VNI is registered already.
    VniInUse = 15,
    /// The segment was unexported, or its process ended, while the transfer ran (N2).
    Aborted = 16,
    /// The peer was reset, or its process ended, while the transfer ran.
    PeerGone = 17,
    /// The owner of the memory could not bring the page in: it is unmapped or
    /// not accessible.
    PageUnavailable = 18,
    /// The notification number is 0 (N16).
    BadNotification = 19,
    /// The command queue stands still after an earlier malformed command.
    QueueFailed = 20,
    /// The physical map in SRAM does not cover all of the guest's memory.
    SramTooSmall = 21,
    /// Some of the memory to export is not mapped.
    NotMapped = 22,
    /// Some of the memory to export cannot be written by its own process.
    ReadOnlyMemory = 23,
    /// Some of the memory to export is a private mapping of a file.
    FileMemory = 24,
    /// Some of the memory to export is shared with other processes.
    SharedMemory = 25,
    /// Some of the memory to export is of hugetlb pages.
    HugetlbMemory = 26,
    /// Some of the memory to export belongs to a device or to the kernel.
    DeviceMemory = 27,
    /// The memory to export shares a page with another segment of this process
    /// without being the same range.
    Overlapping = 28,
    /// The operand of an atomic operation is not aligned to its size (N20).
    Misaligned = 29,
}

/// A number that is no [`Status`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownStatus(pub u32);

impl Status {
    /// Every status, in the order of their numbers.
    pub const ALL: [Status; 30] = [
        Status::Ok,
        Status::Malformed,
        Status::BadLength,
        Status::BadAddress,
        Status::BadKey,
        Status::AccessDenied,
        Status::NoSuchSegment,
        Status::NoSuchPort,
        Status::NoSuchNode,
        Status::NameNotFound,
        Status::NameExists,
        Status::PortInUse,
        Status::Exhausted,
        Status::VersionMismatch,
        Status::NoSuchVni,
        Status::VniInUse,
        Status::Aborted,
        Status::PeerGone,
        Status::PageUnavailable,
        Status::BadNotification,
        Status::QueueFailed,
        Status::SramTooSmall,
        Status::NotMapped,
        Status::ReadOnlyMemory,
        Status::FileMemory,
        Status::SharedMemory,
        Status::HugetlbMemory,
        Status::DeviceMemory,
        Status::Overlapping,
        Status::Misaligned,
    ];

    /// The number that stands in memory and on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// What the code means, for people.
    pub const fn message(self) -> &'static str {
        match self {
            Status::Ok => "done",
            Status::Malformed => "malformed: unknown opcode or a reserved field that is not zero",
            Status::BadLength => "length is zero or beyond its limit",
            Status::BadAddress => "address outside the segment",
            Status::BadKey => "the key is not, or no longer, that of the segment",
            Status::AccessDenied => "the segment does not grant this access",
            Status::NoSuchSegment => "no such segment, or it was unexported",
            Status::NoSuchPort => "no process is registered on that port",
            Status::NoSuchNode => "no such node, or no link to it",
            Status::NameNotFound => "no segment of that name was exported in time",
            Status::NameExists => "this process exports a segment of that name already",
            Status::PortInUse => "another process of this node holds that port",
            Status::Exhausted => "all entries of this kind are in use",
            Status::VersionMismatch => "the two sides speak different ABI versions",
            Status::NoSuchVni => "no such VNI, or it is not registered",
            Status::VniInUse => "the VNI is registered already",
            Status::Aborted => {
                "the segment was unexported or its process ended during the transfer"
            }
            Status::PeerGone => "the peer was reset or its process ended during the transfer",
            Status::PageUnavailable => "the owner of the memory could not bring the page in",
            Status::BadNotification => "there is no notification 0",
            Status::QueueFailed => "the command queue stands still after a malformed command",
            Status::SramTooSmall => "the SRAM does not cover all of the guest's memory",
            Status::NotMapped => "some of the memory is not mapped",
            Status::ReadOnlyMemory => "the process itself cannot write some of the memory",
            Status::FileMemory => "some of the memory is a mapping of a file",
            Status::SharedMemory => "some of the memory is shared with other processes",
            Status::HugetlbMemory => "some of the memory consists of hugetlb pages",
            Status::DeviceMemory => "some of the memory belongs to a device or to the kernel",
            Status::Overlapping => {
                "the memory shares a page with a segment over another range of this process"
            }
            Status::Misaligned => "the operand of an atomic operation is not aligned to its size",
        }
    }
}

impl TryFrom<u32> for Status {
    type Error = UnknownStatus;

    fn try_from(code: u32) -> Result<Self, UnknownStatus> {
        Self::ALL
            .get(code as usize)
            .copied()
            .ok_or(UnknownStatus(code))
    }
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_their_places_in_the_list() {
        for (place, status) in Status::ALL.into_iter().enumerate() {
            assert_eq!(status.code() as usize, place);
            assert_eq!(Status::try_from(place as u32), Ok(status));
        }
        assert_eq!(Status::try_from(30), Err(UnknownStatus(30)));
        assert_eq!(Status::try_from(u32::MAX), Err(UnknownStatus(u32::MAX)));
    }
}
