// Made by cbindgen of src/names.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// Names of processes: pairs of an application and a number, which every NIC knows once they are
// registered. They prove nothing: any process can register one that is free.

#ifndef QNIC_NAMES_H
#define QNIC_NAMES_H

#include <stddef.h>
#include <stdint.h>
#include "message.h"

// A name that this process has.
typedef struct qnic_name qnic_name;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Gives this process a name: the application, of 1 to 16 bytes, and a number in it. While another
// process has the name, this waits up to `timeout_ns` nanoseconds. `name` may be null: then the
// endpoint has the name until it ends.
//
// Fails with `QNIC_E_NAME_TAKEN`, `QNIC_E_EXHAUSTED`: this process has eight; `QNIC_E_ARGUMENT`.
int qnic_name_register(qnic_endpoint *endpoint,
                       const char *application,
                       uint32_t process,
                       int64_t timeout_ns,
                       qnic_name **name);

// Withdraws a name, unless another handle of this process is of the same one.
int qnic_name_close(qnic_name *name);

// Finds the process of a name: stores its node and port. Waits up to `timeout_ns` nanoseconds, 10
// minutes at most, until it is registered.
//
// Fails with `QNIC_E_NAME_NOT_FOUND`.
int qnic_name_find(qnic_endpoint *endpoint,
                   const char *application,
                   uint32_t process,
                   int64_t timeout_ns,
                   uint16_t *node,
                   uint16_t *port);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_NAMES_H */
