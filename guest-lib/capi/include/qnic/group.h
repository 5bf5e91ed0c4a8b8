// Made by cbindgen of src/group.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// Groups of processes: barrier, broadcast, reduce and allreduce in the NICs, and messages to members.
//
// Members call the same collectives in the same order. A collective that fails ends the group for all
// members, and so does a member that closes it. Local memory lies in segments that the endpoint
// exports.

#ifndef QNIC_GROUP_H
#define QNIC_GROUP_H

#include <stddef.h>
#include <stdint.h>
#include "names.h"

// All members wait until all have called it.
#define QNIC_BARRIER 1

// Gives the bytes of the root to all others, in their memory of the same length.
#define QNIC_BROADCAST 2

// Replaces the elements of the root by the reduction of those of all.
#define QNIC_REDUCE 3

// Replaces the elements of each member by the reduction of those of all.
#define QNIC_ALLREDUCE 4

// Their sum; integers wrap.
#define QNIC_SUM 1

// Their product; integers wrap.
#define QNIC_PRODUCT 2

// The lesser; of floats the number, if one is none.
#define QNIC_MINIMUM 3

// The greater; of floats the number, if one is none.
#define QNIC_MAXIMUM 4

// Bitwise and; integers only.
#define QNIC_AND 5

// Bitwise or; integers only.
#define QNIC_OR 6

// Bitwise exclusive or; integers only.
#define QNIC_XOR 7

// A collective or a message of a group that is under way. Serves one call at a time.
typedef struct qnic_call qnic_call;

// A process's place in a group. Serves many threads at once; their collectives need one order.
typedef struct qnic_group qnic_group;

// Which group a process joins, and its place there.
typedef struct {
  // Size of this structure.
  size_t size;
  // Node of the process of rank 0: its NIC forms the group.
  uint16_t home_node;
  // Port of that process.
  uint16_t home_port;
  // Place of this process, below `members`.
  uint32_t rank;
  // Members, 1 to 4,096.
  uint32_t members;
  // Zero.
  uint32_t reserved;
  // Tells the groups of one home apart.
  uint64_t name;
  // A secret of the members.
  uint64_t key;
} qnic_membership;

// A collective.
typedef struct {
  // Size of this structure.
  size_t size;
  // `QNIC_BARRIER`, …
  uint32_t function;
  // Rank of the root of a broadcast or a reduce.
  uint32_t root;
  // Of a reduce or allreduce: `QNIC_SUM`, …
  uint32_t op;
  // Of a reduce or allreduce: the type of the elements, `QNIC_U32`, …
  uint32_t element;
  // The memory; none of a barrier.
  void *address;
  // Its bytes.
  size_t length;
  // What the program calls it for itself, up to 65535; the same at all members.
  uint32_t label;
} qnic_collective;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Joins a group, and waits until all its members are there, up to `timeout_ns` nanoseconds, 10 minutes
// at most. They may start in any order.
//
// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_GROUP_REFUSED`, `QNIC_E_PEER_GONE`.
int qnic_group_join(qnic_endpoint *endpoint,
                    const qnic_membership *membership,
                    int64_t timeout_ns,
                    qnic_group **group);

// Joins an application: registers this process as number `process` of its `processes`, finds number 0,
// and joins the group of all there. They may start in any order, on any nodes.
//
// Fails as `qnic_name_register`, `qnic_name_find` and `qnic_group_join`.
int qnic_application_join(qnic_endpoint *endpoint,
                          const char *application,
                          uint32_t process,
                          uint32_t processes,
                          int64_t timeout_ns,
                          qnic_group **group);

// Stores the place of this process, and how many members there are. Both pointers may be null.
int qnic_group_get_info(qnic_group *group, uint32_t *rank, uint32_t *members);

// Leaves a group, once its calls are closed: that ends it for all members.
int qnic_group_close(qnic_group *group);

// Takes part in a collective, and waits until it has ended. When `timeout_ns` nanoseconds are over, 10
// minutes at most, the group ends.
//
// Fails with `QNIC_E_NOT_EXPORTED`, `QNIC_E_ARGUMENT` before it has begun; with `QNIC_E_TIMED_OUT`,
// `QNIC_E_PEER_GONE`, `QNIC_E_MISMATCH`, … the group has ended.
int qnic_group_collective(qnic_group *group,
                          const qnic_collective *collective,
                          int64_t timeout_ns);

// Begins a collective: `qnic_call_wait` waits for its end.
//
// Fails as `qnic_group_collective`.
int qnic_group_collective_post(qnic_group *group,
                               const qnic_collective *collective,
                               int64_t timeout_ns,
                               qnic_call **call);

// Sends a message to the members of `ranks`, 63 at most, or to all others if `count` is 0, and waits
// until it was received, or staged as a whole, everywhere, up to `timeout_ns` nanoseconds. Of `to`,
// tag, immediate and endpoint say something. Ordinary receives take it.
//
// Fails with `QNIC_E_TIMED_OUT`: if it has begun, it goes on; `QNIC_E_ARGUMENT`: no such rank;
// `QNIC_E_NOT_EXPORTED`, `QNIC_E_PEER_GONE`.
int qnic_group_send(qnic_group *group,
                    const uint32_t *ranks,
                    size_t count,
                    const qnic_match *to,
                    const void *bytes,
                    size_t length,
                    int64_t timeout_ns);

// Begins to send a message to members; never waits for a receiver. `call` may be null: then nothing
// tells of its end.
//
// Fails with `QNIC_E_WOULD_BLOCK`: 64 of this process in this group have not ended; and as
// `qnic_group_send`.
int qnic_group_send_post(qnic_group *group,
                         const uint32_t *ranks,
                         size_t count,
                         const qnic_match *to,
                         const void *bytes,
                         size_t length,
                         qnic_call **call);

// Says whether a call has ended well, without waiting.
//
// Fails with `QNIC_E_WOULD_BLOCK`: it goes on; or with why it failed.
int qnic_call_test(qnic_call *call);

// Waits until a call has ended: of a message up to `timeout_ns` nanoseconds, of a collective for the
// time that it was given.
//
// Fails with `QNIC_E_TIMED_OUT`: the message goes on; or with why it failed.
int qnic_call_wait(qnic_call *call,
                   int64_t timeout_ns);

// Closes a call. A collective is waited for; a message goes on, and nothing tells of its failure.
int qnic_call_close(qnic_call *call);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_GROUP_H */
