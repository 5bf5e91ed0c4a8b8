// Made by cbindgen of src/nic.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// The NIC of this node: open it, and ask it.
//
// `qnic_open` without options opens the NIC that the environment names, so that one program runs in
// guests and in host mode: `QNIC_NIC`, else `QNIC_HOST_SOCKET`, else `QNIC_VFIO`, else `QNIC_DEVICE`,
// else `/dev/qnic0`. A NIC belongs to the process that has opened it: after a fork, the child gets
// `QNIC_E_FORKED`, and opens one of its own.

#ifndef QNIC_NIC_H
#define QNIC_NIC_H

#include <stddef.h>
#include <stdint.h>
#include "error.h"

// No part of a segment travels in the command: `inline_max` of 0 bytes.
#define QNIC_OPEN_NO_INLINE 1

// What the driver counts.
#define QNIC_COUNTERS_DRIVER 0

// What the datagram layer of the driver counts.
#define QNIC_COUNTERS_DATAGRAMS 1

// What the NIC counts.
#define QNIC_COUNTERS_NIC 2

// Each frame of the route arrives once and at once.
#define QNIC_PATH_LOSSLESS 1

// The NIC of this node, as this process has opened it. Serves many threads at once.
typedef struct qnic_nic qnic_nic;

// Which NIC is opened, and how. At most one of the first four is set.
typedef struct {
  // Size of this structure.
  size_t size;
  // Name of the NIC, on a node with several.
  const char *name;
  // Path of a device file of the kernel module.
  const char *device;
  // Path of a device process's socket: host mode.
  const char *host_socket;
  // Folder of a PCI function that vfio-pci drives.
  const char *vfio;
  // Memory for buffers of a node with `host_socket`, in bytes, a multiple of the page size; 0: what
  // the environment says. If it is set, the environment sets nothing.
  size_t memory;
  // `QNIC_OPEN_…`.
  uint32_t flags;
  // Most bytes of a segment that travel in the command, 1 to 128; 0: what the NIC says.
  uint32_t inline_max;
  // Most transfers and atomic operations that an endpoint has under way, 16 to 1,024; 0: 1,024.
  uint32_t operations;
  // Place of this process in an application: its number, below `ranks`.
  uint32_t rank;
  // How many processes the application has; 0 without `application`.
  uint32_t ranks;
  // Zero.
  uint32_t reserved;
  // Name of the application whose place endpoints have; null: what the environment says.
  const char *application;
} qnic_open_options;

// Driver and NIC.
typedef struct {
  // Size of this structure.
  size_t size;
  // Version of the interface between driver and NIC.
  uint32_t abi_version;
  // Node number.
  uint16_t node;
  // Zero.
  uint16_t reserved;
  // Windows of the NIC: how many endpoints the node can have at a time.
  uint32_t windows;
  // Rank of this process in its application, if `ranks` is not 0.
  uint32_t rank;
  // How many processes its application has; 0: it has no place in one.
  uint32_t ranks;
  // Zero.
  uint32_t reserved1;
  // Size of the SRAM in bytes.
  uint64_t sram_bytes;
} qnic_nic_info;

// The route to another node.
typedef struct {
  // Size of this structure.
  size_t size;
  // Most bytes of a transfer that one frame carries.
  uint32_t max_payload;
  // Fragments, of a page each at most, that may be under way.
  uint32_t window;
  // Time from a frame to its acknowledgement, in nanoseconds; 0: not measured.
  uint64_t round_trip_ns;
  // `QNIC_PATH_…`.
  uint32_t flags;
  // Zero.
  uint32_t reserved;
} qnic_path;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a NIC. `options` may be null.
//
// Fails with `QNIC_E_OPEN`, `QNIC_E_HOST`, `QNIC_E_SETTING`, `QNIC_E_INCOMPATIBLE`.
int qnic_open(const qnic_open_options *options, qnic_nic **nic);

// Closes the handle. The NIC stays open while an endpoint, a socket or a stream of it does.
int qnic_close(qnic_nic *nic);

// Describes driver and NIC.
//
// Fails with `QNIC_E_SYSTEM`, `QNIC_E_DEVICE_GONE`.
int qnic_nic_get_info(qnic_nic *nic, qnic_nic_info *info);

// Calls `each` with every counter of a source, `QNIC_COUNTERS_…`, in the order of their names, on this
// thread before this function returns. `name` lives as long as the call of `each`.
//
// Fails with `QNIC_E_ARGUMENT`, `QNIC_E_SYSTEM`, `QNIC_E_DEVICE_GONE`.
int qnic_nic_counters(qnic_nic *nic,
                      uint32_t source,
                      void (*each)(void *context, const char *name, uint64_t value),
                      void *context);

// Checks that this node and another one can talk, and what their route is like. No process of the
// other node takes part. `path` may be null.
//
// Fails with `QNIC_E_NO_PATH`: no answer within `timeout_ns` nanoseconds.
int qnic_nic_check_path(qnic_nic *nic, uint16_t node, int64_t timeout_ns, qnic_path *path);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_NIC_H */
