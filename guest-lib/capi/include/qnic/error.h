// Made by cbindgen of src/codes.rs, src/error.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// The codes of errors. Those from -1 to -99 are the NIC's, with its numbers; those from -101 on are
// the library's. A code keeps its number for ever; later versions add some.
// What has failed: codes, and the detail of the last error.
//
// Each call returns 0, or a negative code. `qnic_strerror` says what a code means, and
// `qnic_last_error` what has failed in this thread: where, and what to do about it. A call that
// succeeds changes no detail.
//
// Codes from -1 to -99 are those of the NIC, with its numbers. Codes from -101 on are the library's.
// A code keeps its number for ever; later versions add some.

#ifndef QNIC_ERROR_H
#define QNIC_ERROR_H

#include <stddef.h>
#include <stdint.h>

// Malformed: unknown opcode or a reserved field that is not zero.
#define QNIC_E_MALFORMED -1

// Length is zero or beyond its limit.
#define QNIC_E_BAD_LENGTH -2

// Address outside the segment.
#define QNIC_E_BAD_ADDRESS -3

// The key is not, or no longer, that of the segment.
#define QNIC_E_BAD_KEY -4

// The segment does not grant this access or notification.
#define QNIC_E_ACCESS_DENIED -5

// No such segment, or it was unexported.
#define QNIC_E_NO_SUCH_SEGMENT -6

// No process is registered on that port.
#define QNIC_E_NO_SUCH_PORT -7

// No such node, or no link to it.
#define QNIC_E_NO_SUCH_NODE -8

// No segment of that name was exported in time.
#define QNIC_E_NAME_NOT_FOUND -9

// This process exports a segment of that name already.
#define QNIC_E_NAME_EXISTS -10

// Another process of this node holds that port.
#define QNIC_E_PORT_IN_USE -11

// All entries of this kind are in use.
#define QNIC_E_EXHAUSTED -12

// The two sides speak different ABI versions.
#define QNIC_E_VERSION_MISMATCH -13

// No such VNI, or it is not registered.
#define QNIC_E_NO_SUCH_VNI -14

// The VNI is registered already.
#define QNIC_E_VNI_IN_USE -15

// The segment was unexported or its process ended during the transfer.
#define QNIC_E_ABORTED -16

// The peer was reset or its process ended during the transfer.
#define QNIC_E_PEER_GONE -17

// The owner of the memory could not bring a page of it in.
#define QNIC_E_PAGE_UNAVAILABLE -18

// There is no notification 0.
#define QNIC_E_BAD_NOTIFICATION -19

// The command queue stands still after a malformed command.
#define QNIC_E_QUEUE_FAILED -20

// The SRAM does not cover all of the guest's memory.
#define QNIC_E_SRAM_TOO_SMALL -21

// Some of the memory is not mapped.
#define QNIC_E_NOT_MAPPED -22

// The process itself cannot write some of the memory.
#define QNIC_E_READ_ONLY_MEMORY -23

// The process itself cannot read some of the memory.
#define QNIC_E_UNREADABLE_MEMORY -24

// Some of the memory is secret (memfd_secret).
#define QNIC_E_SECRET_MEMORY -25

// Some of the memory is storage that is mapped directly (DAX).
#define QNIC_E_DAX_MEMORY -26

// Some of the memory belongs to a device or to the kernel.
#define QNIC_E_DEVICE_MEMORY -27

// The memory overlaps a segment over another range of this process.
#define QNIC_E_OVERLAPPING -28

// The operand of an atomic operation is not aligned to its size.
#define QNIC_E_MISALIGNED -29

// Receiver not ready: a page was not brought in within the fault timeout.
#define QNIC_E_FAULT_TIMEOUT -30

// The exporter does not let this process import the segment.
#define QNIC_E_IMPORT_REFUSED -31

// The receiver has no room to stage the message; it waits for its receive.
#define QNIC_E_NOT_STAGED -32

// The message is longer than the receive that took it.
#define QNIC_E_TRUNCATED -33

// The receive was cancelled.
#define QNIC_E_CANCELLED -34

// The members of the group call different collectives.
#define QNIC_E_MISMATCH -35

// Not done within the time that was given.
#define QNIC_E_TIMED_OUT -36

// No such group, or the process has left it.
#define QNIC_E_NO_SUCH_GROUP -37

// The group has another key or size, or the rank is taken.
#define QNIC_E_GROUP_REFUSED -38

// No such message has arrived, or it is gone.
#define QNIC_E_NO_MESSAGE -39

// Another process has the name.
#define QNIC_E_NAME_TAKEN -40

// No such volume is attached.
#define QNIC_E_NO_SUCH_VOLUME -41

// The volume is mounted, used for swap or open.
#define QNIC_E_VOLUME_IN_USE -42

// This node gives no memory to others.
#define QNIC_E_NOT_SERVING -43

// Processors of the owner change the word all the time.
#define QNIC_E_CONTENDED -44

// A page of this process's own memory could not be brought in.
#define QNIC_E_OWN_PAGE_UNAVAILABLE -45

// Some of the memory is served by a program (userfaultfd).
#define QNIC_E_USER_FAULT_MEMORY -46

// The device file or the socket cannot be opened.
#define QNIC_E_OPEN -101

// The host-mode node cannot be started.
#define QNIC_E_HOST -102

// An environment variable, or an option of the same meaning, has a value that is not valid.
#define QNIC_E_SETTING -103

// The process belongs to no parallel machine.
#define QNIC_E_NO_MACHINE -104

// The two nodes cannot talk.
#define QNIC_E_NO_PATH -105

// An argument makes no sense.
#define QNIC_E_ARGUMENT -106

// The handle is null, was closed, or is of another type.
#define QNIC_E_HANDLE -107

// Another call uses this handle.
#define QNIC_E_BUSY -108

// A structure has fields that this library does not know.
#define QNIC_E_NEWER_PROGRAM -109

// A defect of the library: the call was abandoned.
#define QNIC_E_PANIC -110

// The requests are of several endpoints.
#define QNIC_E_FOREIGN_REQUEST -111

// All contexts of this direction are under way.
#define QNIC_E_NO_CONTEXT -112

// The pool has no run of pages of that length.
#define QNIC_E_POOL_FULL -113

// A range lies outside of its segment or buffer.
#define QNIC_E_OUT_OF_RANGE -114

// The local memory is not exported by this endpoint.
#define QNIC_E_NOT_EXPORTED -115

// The notification has a handler or is watched by the queue.
#define QNIC_E_ARMED -116

// One-shot notifications were dropped: the queue was full.
#define QNIC_E_NOTIFICATIONS_LOST -117

// The endpoint has a poller already.
#define QNIC_E_POLLED -118

// The other end of the channel violates its protocol.
#define QNIC_E_CHANNEL_BROKEN -119

// The message or datagram is longer than one can be.
#define QNIC_E_MESSAGE_TOO_LONG -120

// The other end has closed the channel or stream: nothing more comes.
#define QNIC_E_CHANNEL_CLOSED -121

// The command queue stayed full up to the time limit: nothing was issued.
#define QNIC_E_QUEUE_FULL -122

// The device is gone or was reset.
#define QNIC_E_DEVICE_GONE -123

// The NIC was opened by the parent of this process.
#define QNIC_E_FORKED -124

// The command was dropped when the command queue was reset.
#define QNIC_E_QUEUE_RESET -125

// A process died in the queue of the object.
#define QNIC_E_BROKEN -126

// The lock is held by a process that lives.
#define QNIC_E_HELD -127

// Nothing can be done without waiting.
#define QNIC_E_WOULD_BLOCK -128

// The stream has failed.
#define QNIC_E_STREAM -129

// The stream was ended on this side.
#define QNIC_E_STREAM_ENDED -130

// The table of streams is full.
#define QNIC_E_TOO_MANY_STREAMS -131

// The system refused a call.
#define QNIC_E_SYSTEM -132

// Driver, NIC and library are of different versions.
#define QNIC_E_INCOMPATIBLE -133

// An error that this version of the interface has no code for.
#define QNIC_E_OTHER -134

// Version of this interface: 10,000 × major + 100 × minor + patch.
#define QNIC_VERSION 200

// The process at the other end, its node or the segment is gone.
#define QNIC_ERROR_PEER_GONE 1

// `node` and `port` say which process it was about.
#define QNIC_ERROR_HAS_PEER 2

// `segment`, `offset` and `length` say which transfer was the first that failed.
#define QNIC_ERROR_HAS_TRANSFER 4

// What has failed.
typedef struct {
  // Size of this structure.
  size_t size;
  // The code; 0 if nothing has failed in this thread.
  int code;
  // Which of the fields below say something: `QNIC_ERROR_…`.
  uint32_t flags;
  // What has failed, where, and what to do about it. Never null; lives until the next call of
  // `qnic_last_error` in this thread.
  const char *message;
  // Node of the other process.
  uint16_t node;
  // Port of the other process.
  uint16_t port;
  // The number of the system (`errno`), if the system has refused a call; otherwise 0.
  int system_errno;
  // Name of the remote segment.
  uint64_t segment;
  // Offset in it, in bytes.
  uint64_t offset;
  // Bytes of the transfer.
  uint64_t length;
  // How many transfers failed.
  uint64_t failures;
} qnic_error;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Says what a code means: a text that lives for ever, never null. Any thread may ask at any time.
const char *qnic_strerror(int code);

// The version of the library that the program runs with, as `QNIC_VERSION`.
uint32_t qnic_version(void);

// Tells of the last call that has failed in this thread.
//
// Fails with `QNIC_E_ARGUMENT` if `error` does not say its size; that is no error that it tells of.
int qnic_last_error(qnic_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_ERROR_H */
