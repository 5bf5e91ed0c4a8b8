// Made by cbindgen of src/atomic.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// Atomic operations on words of imported segments, executed once by the NIC of their owner.
//
// A word is an integer or a floating-point number of 32 or 64 bits, aligned. All operations on one
// word take effect one after the other, those of each process in the order of its calls. An operation
// does not wait for writes that were issued before it: flush them first, if it announces them.

#ifndef QNIC_ATOMIC_H
#define QNIC_ATOMIC_H

#include <stddef.h>
#include <stdint.h>
#include "notification.h"

// `uint32_t`.
#define QNIC_U32 1

// `uint64_t`.
#define QNIC_U64 2

// `int32_t`.
#define QNIC_I32 3

// `int64_t`.
#define QNIC_I64 4

// `float`.
#define QNIC_F32 5

// `double`.
#define QNIC_F64 6

// Loads the word.
#define QNIC_ATOMIC_LOAD 1

// Adds `value`; integers wrap around.
#define QNIC_ATOMIC_ADD 2

// The word becomes `value` if that is less.
#define QNIC_ATOMIC_MIN 3

// The word becomes `value` if that is greater.
#define QNIC_ATOMIC_MAX 4

// The word becomes `value`.
#define QNIC_ATOMIC_SWAP 5

// The word becomes `value` if it has the bits of `expected`.
#define QNIC_ATOMIC_COMPARE_SWAP 6

// Keeps the bits that are also in `value`. This and all below: integers only.
#define QNIC_ATOMIC_AND 7

// Sets the bits of `value`.
#define QNIC_ATOMIC_OR 8

// Flips the bits of `value`.
#define QNIC_ATOMIC_XOR 9

// The bits of `changed` become those of `value` if the bits of `compared` are those of `expected`.
#define QNIC_ATOMIC_MASKED_COMPARE_SWAP 10

// The word becomes 1 if it is 0; what it was is 0 then.
#define QNIC_ATOMIC_TEST_AND_SET 11

// Adds one, wraps around.
#define QNIC_ATOMIC_INCREMENT 12

// Subtracts one, wraps around.
#define QNIC_ATOMIC_DECREMENT 13

// An atomic operation. Values have the bits of the word's type; those of 32 bits stand in the lower
// half.
typedef struct {
  // Size of this structure.
  size_t size;
  // `QNIC_ATOMIC_…`.
  uint32_t function;
  // Type of the word: `QNIC_U32`, …
  uint32_t word;
  // Offset of the word in the remote segment, in bytes.
  uint64_t offset;
  // The operand.
  uint64_t value;
  // What the word is compared with.
  uint64_t expected;
  // Bits that are compared.
  uint64_t compared;
  // Bits that are exchanged.
  uint64_t changed;
} qnic_atomic_operation;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Executes an atomic operation, waits for it up to `timeout_ns` nanoseconds, and stores what the word
// was. `before` may be null.
//
// Fails with `QNIC_E_QUEUE_FULL`: it was not issued; `QNIC_E_TIMED_OUT`: it is executed once or not at
// all, and the next flush of reads waits for that; `QNIC_E_ACCESS_DENIED` unless the segment grants
// reading and writing; `QNIC_E_MISALIGNED`, `QNIC_E_OUT_OF_RANGE`.
int qnic_atomic(qnic_endpoint *endpoint,
                qnic_remote *remote,
                const qnic_atomic_operation *operation,
                int64_t timeout_ns,
                uint64_t *before);

// Begins an atomic operation with a completion of its own: `immediate` of that has what the word was.
//
// Fails as `qnic_atomic` before it is issued.
int qnic_atomic_begin(qnic_endpoint *endpoint,
                      qnic_remote *remote,
                      const qnic_atomic_operation *operation,
                      int64_t timeout_ns,
                      qnic_request **request);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_ATOMIC_H */
