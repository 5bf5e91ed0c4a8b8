// Made by cbindgen of src/memory.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// Memory that processes share: buffers, exported segments, and imported ones.
//
// Peers and the NIC may write to exported memory at any time: a program reads it by its address, with
// atomic loads where a word matters. A program that has seen a notification sees everything that its
// sender wrote before. Writes without a notification appear in no particular order.
//
// Local memory of transfers and messages is named by its address. It lies in a segment that the
// endpoint exports, with whatever access; of several, the newest counts.

#ifndef QNIC_MEMORY_H
#define QNIC_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include "endpoint.h"

// Peers may read.
#define QNIC_READ 1

// Peers may write.
#define QNIC_WRITE 2

// Only the processes of the list may import the segment.
#define QNIC_EXPORT_LISTED 1

// Only processes that present the secret may.
#define QNIC_EXPORT_SECRET 2

// Writers may signal no notification.
#define QNIC_EXPORT_NO_SIGNALS 4

// The range may overlap others of this endpoint.
#define QNIC_EXPORT_OVERLAPPING 8

// Memory of this process that can be exported. It stays mapped while a segment made from it lives.
typedef struct qnic_buffer qnic_buffer;

// A segment of another process. Closing the last handle of it unimports it.
typedef struct qnic_remote qnic_remote;

// A range of memory that is exported. Closing it unexports it at once.
typedef struct qnic_segment qnic_segment;

// A process that may import a segment; port 0: every process of the node.
typedef struct {
  // Its node.
  uint16_t node;
  // Its port.
  uint16_t port;
} qnic_process;

// What an export grants beside access. Null or zeros: all of it, to every process.
typedef struct {
  // Size of this structure.
  size_t size;
  // `QNIC_EXPORT_…`.
  uint32_t flags;
  // First notification that writers may signal; 0: every one.
  uint32_t first_notification;
  // Last notification that they may signal.
  uint32_t last_notification;
  // How many processes are listed, 32 at most.
  uint32_t listed_count;
  // The list.
  const qnic_process *listed;
  // The secret, if the flags say that there is one: 16 bytes, not all zero.
  uint8_t secret[16];
} qnic_export_options;

// A segment, exported or imported.
typedef struct {
  // Size of this structure.
  size_t size;
  // Its name.
  uint64_t name;
  // Address of its first byte in the process that exports it.
  uint64_t address;
  // Length in bytes.
  uint64_t length;
  // The access that it grants.
  uint32_t access;
  // Node of the process that exports it.
  uint16_t node;
  // Port of that process.
  uint16_t port;
} qnic_segment_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Memory that can be exported: page aligned, zeroed. Stores where it begins; `address` may be null.
//
// Fails with `QNIC_E_ARGUMENT`: no bytes; `QNIC_E_SYSTEM`.
int qnic_buffer_open(qnic_endpoint *endpoint, size_t length, void **address, qnic_buffer **buffer);

// Closes the handle. The memory stays while a segment of it is open, and goes with the last one.
int qnic_buffer_close(qnic_buffer *buffer);

// Exports a buffer under a name that is unique in this process. `access` is of `QNIC_READ` and
// `QNIC_WRITE`; `options` may be null.
//
// Fails with `QNIC_E_NAME_EXISTS`, `QNIC_E_EXHAUSTED`, `QNIC_E_OVERLAPPING`, `QNIC_E_ARGUMENT`.
int qnic_export(qnic_endpoint *endpoint,
                uint64_t name,
                qnic_buffer *buffer,
                uint32_t access,
                const qnic_export_options *options,
                qnic_segment **segment);

// Exports any memory of this process. In a guest, all that the process itself may access; in host
// mode, parts of buffers. Until the segment is closed it stays mapped, and readable; writable if
// `access` grants writing, or reads and messages go there.
//
// Fails as `qnic_export`, and with why the memory cannot be exported: `QNIC_E_BAD_ADDRESS`,
// `QNIC_E_NOT_MAPPED`, `QNIC_E_READ_ONLY_MEMORY`, …
int qnic_export_memory(qnic_endpoint *endpoint,
                       uint64_t name,
                       void *address,
                       size_t length,
                       uint32_t access,
                       const qnic_export_options *options,
                       qnic_segment **segment);

// Unexports a segment and closes it: its transfers end with an error, and when this returns, neither
// NIC nor peers use the memory any more.
//
// Fails with `QNIC_E_DEVICE_GONE`: the handle is closed, and the memory is not used either.
int qnic_segment_close(qnic_segment *segment);

// Finds the exported segment that holds all of `length` bytes at `address`. Of several, the newest is
// found.
//
// Fails with `QNIC_E_NOT_EXPORTED`: no single one does.
int qnic_export_lookup(qnic_endpoint *endpoint,
                       const void *address,
                       size_t length,
                       qnic_segment_info *info);

// Imports a segment of another process, of any node. `timeout_ns` is how long to wait until it is
// exported, in nanoseconds. `secret` is null, or the 16 bytes that the exporter asks for.
//
// Fails with `QNIC_E_NAME_NOT_FOUND`, `QNIC_E_NO_SUCH_NODE`, `QNIC_E_PEER_GONE`,
// `QNIC_E_IMPORT_REFUSED`, `QNIC_E_EXHAUSTED`.
int qnic_import(qnic_endpoint *endpoint,
                uint16_t node,
                uint16_t port,
                uint64_t name,
                const uint8_t *secret,
                int64_t timeout_ns,
                qnic_remote **remote);

// Closes an imported segment.
int qnic_remote_close(qnic_remote *remote);

// Describes an imported segment.
int qnic_remote_get_info(qnic_remote *remote, qnic_segment_info *info);

// Opens another handle of the imported segment that holds an address of a remote process, and stores
// the offset of the address in it. Of several, the one that was imported last is found.
//
// Fails with `QNIC_E_NO_SUCH_SEGMENT`: none does.
int qnic_import_lookup(qnic_endpoint *endpoint,
                       uint16_t node,
                       uint16_t port,
                       uint64_t address,
                       uint64_t *offset,
                       qnic_remote **remote);

// Fills 16 bytes with a secret that no process can guess.
//
// Fails with `QNIC_E_SYSTEM`.
int qnic_secret_random(uint8_t *secret);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_MEMORY_H */
