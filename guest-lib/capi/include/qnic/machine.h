// Made by cbindgen of src/machine.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// Which rank of which parallel machine this process is.

#ifndef QNIC_MACHINE_H
#define QNIC_MACHINE_H

#include <stddef.h>
#include <stdint.h>
#include "stream.h"

// The ranks reach each other through registers of the NIC: messages.
#define QNIC_INTERFACE_QNIC 1

// They reach each other through the kernel: streams.
#define QNIC_INTERFACE_POOL 2

// A parallel machine, as the environment of this process names it.
typedef struct qnic_machine qnic_machine;

// A machine.
typedef struct {
  // Size of this structure.
  size_t size;
  // The rank of this process.
  uint32_t rank;
  // Number of ranks.
  uint32_t ranks;
  // `QNIC_INTERFACE_…`.
  uint32_t interface;
  // Zero.
  uint32_t reserved;
  // The secret of the run.
  uint64_t key;
  // Its name, with a zero byte at its end; as much of it as fits.
  uint8_t name[64];
} qnic_machine_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens the machine that the environment names.
//
// Fails with `QNIC_E_NO_MACHINE`: start the program with `cargo qnic machine run`; `QNIC_E_SETTING`.
int qnic_machine_open(qnic_machine **machine);

// Describes a machine.
int qnic_machine_get_info(qnic_machine *machine, qnic_machine_info *info);

// Stores node and port of a rank. Both pointers may be null.
//
// Fails with `QNIC_E_ARGUMENT`: there is no such rank.
int qnic_machine_rank(qnic_machine *machine, uint32_t rank, uint16_t *node, uint16_t *port);

// Closes a machine.
int qnic_machine_close(qnic_machine *machine);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_MACHINE_H */
