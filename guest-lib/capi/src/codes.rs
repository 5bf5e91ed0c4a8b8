//! The codes of errors. Those from -1 to -99 are the NIC's, with its numbers; those from -101 on are
//! the library's. A code keeps its number for ever; later versions add some.

use std::ffi::c_int;

/// Malformed: unknown opcode or a reserved field that is not zero.
pub const QNIC_E_MALFORMED: c_int = -1;
/// Length is zero or beyond its limit.
pub const QNIC_E_BAD_LENGTH: c_int = -2;
/// Address outside the segment.
pub const QNIC_E_BAD_ADDRESS: c_int = -3;
/// The key is not, or no longer, that of the segment.
pub const QNIC_E_BAD_KEY: c_int = -4;
/// The segment does not grant this access or notification.
pub const QNIC_E_ACCESS_DENIED: c_int = -5;
/// No such segment, or it was unexported.
pub const QNIC_E_NO_SUCH_SEGMENT: c_int = -6;
/// No process is registered on that port.
pub const QNIC_E_NO_SUCH_PORT: c_int = -7;
/// No such node, or no link to it.
pub const QNIC_E_NO_SUCH_NODE: c_int = -8;
/// No segment of that name was exported in time.
pub const QNIC_E_NAME_NOT_FOUND: c_int = -9;
/// This process exports a segment of that name already.
pub const QNIC_E_NAME_EXISTS: c_int = -10;
/// Another process of this node holds that port.
pub const QNIC_E_PORT_IN_USE: c_int = -11;
/// All entries of this kind are in use.
pub const QNIC_E_EXHAUSTED: c_int = -12;
/// The two sides speak different ABI versions.
pub const QNIC_E_VERSION_MISMATCH: c_int = -13;
/// No such VNI, or it is not registered.
pub const QNIC_E_NO_SUCH_VNI: c_int = -14;
/// The VNI is registered already.
pub const QNIC_E_VNI_IN_USE: c_int = -15;
/// The segment was unexported or its process ended during the transfer.
pub const QNIC_E_ABORTED: c_int = -16;
/// The peer was reset or its process ended during the transfer.
pub const QNIC_E_PEER_GONE: c_int = -17;
/// The owner of the memory could not bring a page of it in.
pub const QNIC_E_PAGE_UNAVAILABLE: c_int = -18;
/// There is no notification 0.
pub const QNIC_E_BAD_NOTIFICATION: c_int = -19;
/// The command queue stands still after a malformed command.
pub const QNIC_E_QUEUE_FAILED: c_int = -20;
/// The SRAM does not cover all of the guest's memory.
pub const QNIC_E_SRAM_TOO_SMALL: c_int = -21;
/// Some of the memory is not mapped.
pub const QNIC_E_NOT_MAPPED: c_int = -22;
/// The process itself cannot write some of the memory.
pub const QNIC_E_READ_ONLY_MEMORY: c_int = -23;
/// The process itself cannot read some of the memory.
pub const QNIC_E_UNREADABLE_MEMORY: c_int = -24;
/// Some of the memory is secret (memfd_secret).
pub const QNIC_E_SECRET_MEMORY: c_int = -25;
/// Some of the memory is storage that is mapped directly (DAX).
pub const QNIC_E_DAX_MEMORY: c_int = -26;
/// Some of the memory belongs to a device or to the kernel.
pub const QNIC_E_DEVICE_MEMORY: c_int = -27;
/// The memory overlaps a segment over another range of this process.
pub const QNIC_E_OVERLAPPING: c_int = -28;
/// The operand of an atomic operation is not aligned to its size.
pub const QNIC_E_MISALIGNED: c_int = -29;
/// Receiver not ready: a page was not brought in within the fault timeout.
pub const QNIC_E_FAULT_TIMEOUT: c_int = -30;
/// The exporter does not let this process import the segment.
pub const QNIC_E_IMPORT_REFUSED: c_int = -31;
/// The receiver has no room to stage the message; it waits for its receive.
pub const QNIC_E_NOT_STAGED: c_int = -32;
/// The message is longer than the receive that took it.
pub const QNIC_E_TRUNCATED: c_int = -33;
/// The receive was cancelled.
pub const QNIC_E_CANCELLED: c_int = -34;
/// The members of the group call different collectives.
pub const QNIC_E_MISMATCH: c_int = -35;
/// Not done within the time that was given.
pub const QNIC_E_TIMED_OUT: c_int = -36;
/// No such group, or the process has left it.
pub const QNIC_E_NO_SUCH_GROUP: c_int = -37;
/// The group has another key or size, or the rank is taken.
pub const QNIC_E_GROUP_REFUSED: c_int = -38;
/// No such message has arrived, or it is gone.
pub const QNIC_E_NO_MESSAGE: c_int = -39;
/// Another process has the name.
pub const QNIC_E_NAME_TAKEN: c_int = -40;
/// No such volume is attached.
pub const QNIC_E_NO_SUCH_VOLUME: c_int = -41;
/// The volume is mounted, used for swap or open.
pub const QNIC_E_VOLUME_IN_USE: c_int = -42;
/// This node gives no memory to others.
pub const QNIC_E_NOT_SERVING: c_int = -43;
/// Processors of the owner change the word all the time.
pub const QNIC_E_CONTENDED: c_int = -44;
/// A page of this process's own memory could not be brought in.
pub const QNIC_E_OWN_PAGE_UNAVAILABLE: c_int = -45;
/// Some of the memory is served by a program (userfaultfd).
pub const QNIC_E_USER_FAULT_MEMORY: c_int = -46;
/// The device file or the socket cannot be opened.
pub const QNIC_E_OPEN: c_int = -101;
/// The host-mode node cannot be started.
pub const QNIC_E_HOST: c_int = -102;
/// An environment variable, or an option of the same meaning, has a value that is not valid.
pub const QNIC_E_SETTING: c_int = -103;
/// The process belongs to no parallel machine.
pub const QNIC_E_NO_MACHINE: c_int = -104;
/// The two nodes cannot talk.
pub const QNIC_E_NO_PATH: c_int = -105;
/// An argument makes no sense.
pub const QNIC_E_ARGUMENT: c_int = -106;
/// The handle is null, was closed, or is of another type.
pub const QNIC_E_HANDLE: c_int = -107;
/// Another call uses this handle.
pub const QNIC_E_BUSY: c_int = -108;
/// A structure has fields that this library does not know.
pub const QNIC_E_NEWER_PROGRAM: c_int = -109;
/// A defect of the library: the call was abandoned.
pub const QNIC_E_PANIC: c_int = -110;
/// The requests are of several endpoints.
pub const QNIC_E_FOREIGN_REQUEST: c_int = -111;
/// All contexts of this direction are under way.
pub const QNIC_E_NO_CONTEXT: c_int = -112;
/// The pool has no run of pages of that length.
pub const QNIC_E_POOL_FULL: c_int = -113;
/// A range lies outside of its segment or buffer.
pub const QNIC_E_OUT_OF_RANGE: c_int = -114;
/// The local memory is not exported by this endpoint.
pub const QNIC_E_NOT_EXPORTED: c_int = -115;
/// The notification has a handler or is watched by the queue.
pub const QNIC_E_ARMED: c_int = -116;
/// One-shot notifications were dropped: the queue was full.
pub const QNIC_E_NOTIFICATIONS_LOST: c_int = -117;
/// The endpoint has a poller already.
pub const QNIC_E_POLLED: c_int = -118;
/// The other end of the channel violates its protocol.
pub const QNIC_E_CHANNEL_BROKEN: c_int = -119;
/// The message or datagram is longer than one can be.
pub const QNIC_E_MESSAGE_TOO_LONG: c_int = -120;
/// The other end has closed the channel or stream: nothing more comes.
pub const QNIC_E_CHANNEL_CLOSED: c_int = -121;
/// The command queue stayed full up to the time limit: nothing was issued.
pub const QNIC_E_QUEUE_FULL: c_int = -122;
/// The device is gone or was reset.
pub const QNIC_E_DEVICE_GONE: c_int = -123;
/// The NIC was opened by the parent of this process.
pub const QNIC_E_FORKED: c_int = -124;
/// The command was dropped when the command queue was reset.
pub const QNIC_E_QUEUE_RESET: c_int = -125;
/// A process died in the queue of the object.
pub const QNIC_E_BROKEN: c_int = -126;
/// The lock is held by a process that lives.
pub const QNIC_E_HELD: c_int = -127;
/// Nothing can be done without waiting.
pub const QNIC_E_WOULD_BLOCK: c_int = -128;
/// The stream has failed.
pub const QNIC_E_STREAM: c_int = -129;
/// The stream was ended on this side.
pub const QNIC_E_STREAM_ENDED: c_int = -130;
/// The table of streams is full.
pub const QNIC_E_TOO_MANY_STREAMS: c_int = -131;
/// The system refused a call.
pub const QNIC_E_SYSTEM: c_int = -132;
/// Driver, NIC and library are of different versions.
pub const QNIC_E_INCOMPATIBLE: c_int = -133;
/// An error that this version of the interface has no code for.
pub const QNIC_E_OTHER: c_int = -134;
