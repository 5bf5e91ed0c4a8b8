// Made by cbindgen of src/sync.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// Locks, wait queues and semaphores between processes of all nodes.
//
// An object is `QNIC_OBJECT_BYTES` of an imported segment that grants reading and writing, aligned to
// that and zeroed at first. Its owner is the process that exports this memory. Participants of an
// object trust each other; export its memory, and open participants, for a list or with a secret.
//
// A process that waits has a place in a queue, which it cannot leave before its turn. So when a time
// limit is over (`QNIC_E_TIMED_OUT`), the handle keeps the place, and the next wait goes on there.
// Closing the handle passes on a turn that has come; if none has, it breaks the object.
//
// A process that dies while it holds an object, or waits for it, breaks it: the others get
// `QNIC_E_BROKEN`, until one of them recovers it.
//
// A monitor is a lock, and its conditions are wait queues: `qnic_lock_wait`, `qnic_wait_queue_remove`.

#ifndef QNIC_SYNC_H
#define QNIC_SYNC_H

#include <stddef.h>
#include <stdint.h>
#include "group.h"

// Length and alignment of an object, in bytes.
#define QNIC_OBJECT_BYTES 64

// A lock. Serves one call at a time; each thread opens one of its own.
typedef struct qnic_lock qnic_lock;

// What a process needs to use objects. It takes a notification of its own.
typedef struct qnic_participant qnic_participant;

// A counting semaphore. Serves one call at a time; each thread opens one of its own.
typedef struct qnic_semaphore qnic_semaphore;

// A wait queue. Serves one call at a time; each thread opens one of its own.
typedef struct qnic_wait_queue qnic_wait_queue;

// Which processes may wake a participant. Null or zeros: every process.
typedef struct {
  // Size of this structure.
  size_t size;
  // `QNIC_EXPORT_LISTED`, `QNIC_EXPORT_SECRET`.
  uint32_t flags;
  // How many processes are listed, 32 at most.
  uint32_t listed_count;
  // The list.
  const qnic_process *listed;
  // The secret.
  uint8_t secret[16];
} qnic_participant_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes this process a participant. `options` may be null.
int qnic_participant_open(qnic_endpoint *endpoint,
                          const qnic_participant_options *options,
                          qnic_participant **participant);

// Closes the handle. Objects that were opened with it go on.
int qnic_participant_close(qnic_participant *participant);

// Opens the lock at `offset` of an imported segment.
//
// Fails with `QNIC_E_OUT_OF_RANGE`, `QNIC_E_MISALIGNED`.
int qnic_lock_open(qnic_participant *participant,
                   qnic_remote *remote,
                   uint64_t offset,
                   qnic_lock **lock);

// Waits for the lock, first come, first served, up to `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`: the place in the queue stays, wait again; `QNIC_E_BROKEN`: this process
// is not in the queue any more.
int qnic_lock_acquire(qnic_lock *lock,
                      int64_t timeout_ns);

// Takes the lock if it is free; waits for no holder.
//
// Fails with `QNIC_E_WOULD_BLOCK`: it is not.
int qnic_lock_try(qnic_lock *lock);

// Releases the lock. All that this process wrote through the same endpoint is there before the next
// holder has it.
//
// Fails with `QNIC_E_BROKEN`; in each case this process does not hold it any more.
int qnic_lock_release(qnic_lock *lock);

// Stores the process that held the lock directly before, if this one had to wait for it.
//
// Fails with `QNIC_E_WOULD_BLOCK`: it did not wait, or does not hold the lock.
int qnic_lock_predecessor(qnic_lock *lock, qnic_process *process);

// Waits for a condition of a monitor: enters its queue, releases the lock, waits for the turn, up to
// `timeout_ns` nanoseconds, and acquires the lock again. The lock is held.
//
// Fails with `QNIC_E_TIMED_OUT`: the place in the queue stays and the lock is not held: call this again;
// `QNIC_E_BROKEN`: it is not held either.
int qnic_lock_wait(qnic_lock *lock,
                   qnic_wait_queue *queue,
                   int64_t timeout_ns);

// Stores 1 if a process has died in the queue of the lock, else 0.
int qnic_lock_is_broken(qnic_lock *lock, int *broken);

// Makes a broken lock free. `recovered` may be null; it becomes 0 if another process does it.
//
// Fails with `QNIC_E_HELD`: a process that lives holds it.
int qnic_lock_recover(qnic_lock *lock, int *recovered);

// Closes a lock; one that is held is released.
int qnic_lock_close(qnic_lock *lock);

// Opens the wait queue at `offset` of an imported segment.
//
// Fails as `qnic_lock_open`.
int qnic_wait_queue_open(qnic_participant *participant,
                         qnic_remote *remote,
                         uint64_t offset,
                         qnic_wait_queue **queue);

// Takes a place in the queue, without waiting for the turn.
//
// Fails with `QNIC_E_BROKEN`.
int qnic_wait_queue_insert(qnic_wait_queue *queue);

// Waits for the turn of the place, up to `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`: the place stays; `QNIC_E_BROKEN`.
int qnic_wait_queue_wait(qnic_wait_queue *queue, int64_t timeout_ns);

// Takes the first process out of the queue and wakes it. `woken` may be null; it becomes 0 if no process
// waits, or, with `all`, as many as have been woken.
//
// Fails with `QNIC_E_BROKEN`.
int qnic_wait_queue_remove(qnic_wait_queue *queue,
                           int all,
                           uint64_t *woken);

// Stores 1 if a process has died in the queue, else 0.
int qnic_wait_queue_is_broken(qnic_wait_queue *queue, int *broken);

// Makes a broken queue empty. `recovered` may be null; it becomes 0 if another process does it.
int qnic_wait_queue_recover(qnic_wait_queue *queue, int *recovered);

// Closes a wait queue.
int qnic_wait_queue_close(qnic_wait_queue *queue);

// Opens the semaphore at `offset` of an imported segment. Zeroed memory is one without units.
//
// Fails as `qnic_lock_open`.
int qnic_semaphore_open(qnic_participant *participant,
                        qnic_remote *remote,
                        uint64_t offset,
                        qnic_semaphore **semaphore);

// Sets the number of units, before processes use it. `before` may be null.
int qnic_semaphore_initialize(qnic_semaphore *semaphore, uint32_t value, uint32_t *before);

// Stores the number of free units.
int qnic_semaphore_value(qnic_semaphore *semaphore, uint32_t *value);

// Takes a unit; waits for one, first come, first served, up to `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`: the place in the queue stays, wait again; `QNIC_E_BROKEN`.
int qnic_semaphore_wait(qnic_semaphore *semaphore, int64_t timeout_ns);

// Takes a unit if one is free.
//
// Fails with `QNIC_E_WOULD_BLOCK`: none is.
int qnic_semaphore_try(qnic_semaphore *semaphore);

// Gives a unit back. All that this process wrote through the same endpoint is there before another
// process has the unit.
//
// Fails with `QNIC_E_BROKEN`.
int qnic_semaphore_signal(qnic_semaphore *semaphore);

// Stores 1 if a process has died in the queue of the semaphore, else 0.
int qnic_semaphore_is_broken(qnic_semaphore *semaphore, int *broken);

// Gives a broken semaphore so many units. `recovered` may be null; it becomes 0 if another process does
// it.
int qnic_semaphore_recover(qnic_semaphore *semaphore,
                           uint32_t value,
                           int *recovered);

// Closes a semaphore.
int qnic_semaphore_close(qnic_semaphore *semaphore);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_SYNC_H */
