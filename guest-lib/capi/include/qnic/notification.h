// Made by cbindgen of src/notification.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// Notifications: a peer signals with a write, and this process learns of it.
//
// Counted notifications have the numbers 1 to 1,023: each counts its signals, and how many of them are
// acknowledged. One-shot notifications have the numbers from 1,024 on, and arrive in the queue only. A
// process that has seen a signal sees all data that its sender wrote to this node before it.

#ifndef QNIC_NOTIFICATION_H
#define QNIC_NOTIFICATION_H

#include <stddef.h>
#include <stdint.h>
#include "transfer.h"

// A handler that is armed.
typedef struct qnic_armed qnic_armed;

// A descriptor for event loops.
typedef struct qnic_poller qnic_poller;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Stores how often a counted notification was signalled since this process registered, and how many
// of these signals are not acknowledged. Never waits. Both pointers may be null.
//
// Fails with `QNIC_E_BAD_NOTIFICATION`.
int qnic_notification_test(qnic_endpoint *endpoint,
                           uint32_t number,
                           uint64_t *signals,
                           uint64_t *pending);

// Waits until a signal of a counted notification is pending, up to `timeout_ns` nanoseconds.
// Acknowledges nothing; `pending` may be null.
//
// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_BAD_NOTIFICATION`, `QNIC_E_DEVICE_GONE`.
int qnic_notification_wait(qnic_endpoint *endpoint,
                           uint32_t number,
                           int64_t timeout_ns,
                           uint64_t *pending);

// The same, and never sleeps: for waits of microseconds.
int qnic_notification_spin(qnic_endpoint *endpoint,
                           uint32_t number,
                           int64_t timeout_ns,
                           uint64_t *pending);

// Acknowledges one pending signal of a counted notification. Of several threads, each gets signals of
// its own.
//
// Fails with `QNIC_E_WOULD_BLOCK`: none is pending.
int qnic_notification_acknowledge(qnic_endpoint *endpoint,
                                  uint32_t number);

// Waits for a signal of a counted notification and acknowledges it, in one step.
//
// Fails as `qnic_notification_wait`.
int qnic_notification_take(qnic_endpoint *endpoint, uint32_t number, int64_t timeout_ns);

// Waits until a signal of one of several counted notifications is pending, and stores its number. If
// several are pending, they take turns. Acknowledges nothing.
//
// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_ARGUMENT`: there are none.
int qnic_notification_wait_any(qnic_endpoint *endpoint,
                               const uint32_t *numbers,
                               size_t count,
                               int64_t timeout_ns,
                               uint32_t *number);

// Calls `handler` once for each signal of a counted notification, beginning with those that are
// pending, until the handle is closed. One thread of the library calls all handlers of an endpoint, one
// at a time. It has acknowledged the signal. A handler may call this library, and arm and close others.
//
// Fails with `QNIC_E_ARMED`: it has a handler, or the queue watches it.
int qnic_notification_arm(qnic_endpoint *endpoint,
                          uint32_t number,
                          void (*handler)(void *context, uint32_t number),
                          void *context,
                          qnic_armed **armed);

// Disarms a handler. When this returns, it is not called any more; called by the handler itself, it
// runs to its end.
int qnic_armed_close(qnic_armed *armed);

// Lets a counted notification arrive in the queue, with the signals that are pending.
//
// Fails with `QNIC_E_ARMED`.
int qnic_queue_watch(qnic_endpoint *endpoint, uint32_t number);

// Ends that; signals that are pending stay pending.
int qnic_queue_unwatch(qnic_endpoint *endpoint, uint32_t number);

// Takes the next notification of the queue, without waiting: its number, below 1,024 if it is a
// counted one, whose signals the program acknowledges.
//
// Fails with `QNIC_E_WOULD_BLOCK`: there is none; `QNIC_E_NOTIFICATIONS_LOST`.
int qnic_queue_test(qnic_endpoint *endpoint, uint32_t *number);

// Waits for the next notification of the queue and takes it, up to `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_NOTIFICATIONS_LOST`, `QNIC_E_DEVICE_GONE`.
int qnic_queue_wait(qnic_endpoint *endpoint, int64_t timeout_ns, uint32_t *number);

// Makes a descriptor for poll and epoll that becomes readable when a notification arrives for the
// endpoint, or the device is gone. An endpoint has one at a time.
//
// Fails with `QNIC_E_POLLED`.
int qnic_poller_open(qnic_endpoint *endpoint, qnic_poller **poller);

// Stores the descriptor, which is the library's and lives as long as the handle.
int qnic_poller_descriptor(qnic_poller *poller, int *descriptor);

// Ends readability. An event loop calls this, looks at what it waits for, and polls only if it finds
// nothing. `happened` may be null; otherwise it becomes 1 if there was an event since the last call.
//
// Fails with `QNIC_E_DEVICE_GONE`.
int qnic_poller_prepare(qnic_poller *poller,
                        int *happened);

// Closes the descriptor.
int qnic_poller_close(qnic_poller *poller);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_NOTIFICATION_H */
