/* What a C program may do wrong: each is an error, and nothing else happens. */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "example.h"

enum { PORT = 20, NAME = 1, BYTES = 4096 };

#define REFUSED(call, code) expect((call) == (code), #call)

static void handles(qnic_nic *nic, qnic_endpoint *endpoint) {
    qnic_endpoint_info info = {.size = sizeof info};
    qnic_endpoint *closed;
    REFUSED(qnic_endpoint_get_info(NULL, &info), QNIC_E_HANDLE);
    REFUSED(qnic_endpoint_get_info((qnic_endpoint *)nic, &info), QNIC_E_HANDLE);
    REFUSED(qnic_endpoint_get_info((qnic_endpoint *)&info, &info), QNIC_E_HANDLE);
    CHECK(qnic_register(nic, 0, NULL, 0, &closed));
    CHECK(qnic_endpoint_close(closed));
    REFUSED(qnic_endpoint_get_info(closed, &info), QNIC_E_HANDLE);
    REFUSED(qnic_endpoint_close(closed), QNIC_E_HANDLE);
    REFUSED(qnic_endpoint_close((qnic_endpoint *)nic), QNIC_E_HANDLE);
    CHECK(qnic_endpoint_close(NULL));
    REFUSED(qnic_register(nic, 0, NULL, 0, NULL), QNIC_E_ARGUMENT);
    REFUSED(qnic_register(nic, PORT, NULL, 0, &closed), QNIC_E_PORT_IN_USE);
    REFUSED(qnic_endpoint_get_info(endpoint, (qnic_endpoint_info *)((char *)&info + 1)), QNIC_E_ARGUMENT);
}

static void sizes(qnic_endpoint *endpoint) {
    /* A program that knows less fields than the library, and one that knows more. */
    struct {
        size_t size;
        uint16_t node;
        uint16_t port;
        uint32_t guard;
    } less = {.size = 12, .guard = 77};
    CHECK(qnic_endpoint_get_info(endpoint, (qnic_endpoint_info *)&less));
    expect(less.port == PORT && less.guard == 77, "a short structure");
    struct {
        qnic_endpoint_info known;
        uint64_t unknown;
    } more = {.known.size = sizeof more, .unknown = 9};
    CHECK(qnic_endpoint_get_info(endpoint, &more.known));
    expect(more.unknown == 0, "a field that the library does not know");
    qnic_endpoint_info none = {.size = 0};
    REFUSED(qnic_endpoint_get_info(endpoint, &none), QNIC_E_ARGUMENT);
    struct {
        qnic_match known;
        uint64_t unknown;
    } later = {.known.size = sizeof later, .known.port = PORT, .known.flags = QNIC_MESSAGE_UNTAGGED,
               .unknown = 1};
    REFUSED(qnic_send(endpoint, &later.known, "x", 1, LIMIT), QNIC_E_NEWER_PROGRAM);
    later.unknown = 0;
    CHECK(qnic_send(endpoint, &later.known, "x", 1, LIMIT));
}

static void lengths(qnic_endpoint *endpoint, qnic_remote *own, char *memory) {
    static char elsewhere[BYTES];
    REFUSED(qnic_write(endpoint, own, 0, elsewhere, BYTES, 0, LIMIT), QNIC_E_NOT_EXPORTED);
    REFUSED(qnic_write(endpoint, own, 0, memory, SIZE_MAX, 0, LIMIT), QNIC_E_ARGUMENT);
    REFUSED(qnic_write(endpoint, own, 0, NULL, 8, 0, LIMIT), QNIC_E_ARGUMENT);
    REFUSED(qnic_write(endpoint, own, UINT64_MAX, memory, 8, 0, LIMIT), QNIC_E_OUT_OF_RANGE);
    REFUSED(qnic_read(endpoint, own, 0, memory + 1, BYTES, LIMIT), QNIC_E_NOT_EXPORTED);
    REFUSED(qnic_read(endpoint, own, 0, elsewhere, 8, LIMIT), QNIC_E_NOT_EXPORTED);
    REFUSED(qnic_notification_wait(endpoint, 5000, 0, NULL), QNIC_E_BAD_NOTIFICATION);
    REFUSED(qnic_notification_wait(endpoint, 5, 1000, NULL), QNIC_E_TIMED_OUT);
    REFUSED(qnic_notification_acknowledge(endpoint, 5), QNIC_E_WOULD_BLOCK);
    size_t index;
    REFUSED(qnic_request_wait_any(NULL, 0, LIMIT, &index), QNIC_E_ARGUMENT);
    REFUSED(qnic_request_wait_any(NULL, SIZE_MAX / 4, LIMIT, &index), QNIC_E_ARGUMENT);
    qnic_atomic_operation odd = {.size = sizeof odd, .function = QNIC_ATOMIC_XOR, .word = QNIC_F32};
    REFUSED(qnic_atomic(endpoint, own, &odd, LIMIT, NULL), QNIC_E_ARGUMENT);
    odd.function = 99;
    REFUSED(qnic_atomic(endpoint, own, &odd, LIMIT, NULL), QNIC_E_ARGUMENT);
    uint16_t node, port;
    REFUSED(qnic_name_find(endpoint, "\xff", 0, 0, &node, &port), QNIC_E_ARGUMENT);
    REFUSED(qnic_name_find(endpoint, NULL, 0, 0, &node, &port), QNIC_E_ARGUMENT);
    REFUSED(qnic_name_find(endpoint, "nothing", 0, 0, &node, &port), QNIC_E_NAME_NOT_FOUND);
}

/* No bytes need no memory. */
static void nothing(qnic_endpoint *endpoint, qnic_remote *own) {
    qnic_match to = {.size = sizeof to, .port = PORT, .tag = 3};
    qnic_completion received = {.size = sizeof received};
    qnic_request *request;
    CHECK(qnic_receive_post(endpoint, &to, NULL, 0, &request));
    CHECK(qnic_send(endpoint, &to, NULL, 0, LIMIT));
    CHECK(qnic_request_wait(request, LIMIT, &received));
    CHECK(qnic_request_close(request));
    expect(received.length == 0 && received.tag == 3, "a message of no bytes");
    CHECK(qnic_send_post(endpoint, &to, "abc", 3, NULL));
    CHECK(qnic_receive(endpoint, &to, NULL, 0, LIMIT, &received));
    expect(received.flags == QNIC_COMPLETION_TRUNCATED, "a message that does not fit");
    CHECK(qnic_write(endpoint, own, 0, NULL, 0, 9, LIMIT));
    CHECK(qnic_notification_take(endpoint, 9, LIMIT));
}

/* Another thread waits for a request. */
static void *wait_for(void *request) {
    int status;
    while ((status = qnic_request_wait(request, LIMIT, NULL)) == QNIC_E_BUSY)
        sched_yield();
    check(status, "qnic_request_wait");
    return NULL;
}

/* A handle that a call uses is busy, and cannot be closed. */
static void threads(qnic_endpoint *endpoint) {
    qnic_match to = {.size = sizeof to, .port = PORT, .tag = 4};
    qnic_request *request;
    pthread_t thread;
    CHECK(qnic_receive_post(endpoint, &to, NULL, 0, &request));
    expect(pthread_create(&thread, NULL, wait_for, request) == 0, "no thread");
    int status;
    while ((status = qnic_request_test(request, NULL)) == QNIC_E_WOULD_BLOCK)
        sched_yield();
    expect(status == QNIC_E_BUSY, "a request that two threads use");
    REFUSED(qnic_request_close(request), QNIC_E_BUSY);
    CHECK(qnic_send(endpoint, &to, NULL, 0, LIMIT));
    expect(pthread_join(thread, NULL) == 0, "the other thread");
    CHECK(qnic_request_close(request));
}

/* The NIC is the parent's. */
static void forks(qnic_endpoint *endpoint, qnic_remote *own) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int status = qnic_write(endpoint, own, 0, "x", 1, 0, LIMIT);
        qnic_remote_close(own);
        qnic_endpoint_close(endpoint);
        _exit(status == QNIC_E_FORKED ? 0 : 1);
    }
    int ended = -1;
    expect(waitpid(child, &ended, 0) == child && ended == 0, "a forked child");
    CHECK(qnic_write(endpoint, own, 0, "x", 1, 0, LIMIT));
}

/* The detail of what failed, and codes that nothing has. */
static void details(qnic_endpoint *endpoint, qnic_remote *own) {
    qnic_export_options refused = {.size = sizeof refused, .flags = 1u << 31};
    qnic_segment *segment;
    qnic_error error = {.size = sizeof error};
    REFUSED(qnic_export_memory(endpoint, 9, &error, 8, 99, NULL, &segment), QNIC_E_ARGUMENT);
    REFUSED(qnic_export_memory(endpoint, 9, &error, 8, QNIC_READ, &refused, &segment), QNIC_E_ARGUMENT);
    REFUSED(qnic_write(endpoint, own, 1 << 20, "x", 1, 0, LIMIT), QNIC_E_OUT_OF_RANGE);
    CHECK(qnic_version() >= 200 ? 0 : QNIC_E_OTHER);
    CHECK(qnic_last_error(&error));
    expect(error.code == QNIC_E_OUT_OF_RANGE, "the code of the last error");
    expect(strstr(error.message, "1048576") != NULL, "its message");
    qnic_remote *nowhere;
    REFUSED(qnic_import(endpoint, 1, 999, 1, NULL, 0, &nowhere), QNIC_E_NO_SUCH_NODE);
    CHECK(qnic_last_error(&error));
    expect(error.flags & QNIC_ERROR_PEER_GONE, "a peer that is not there");
    for (int code = 1; code > -200; code--)
        expect(qnic_strerror(code) != NULL, "a text for every code");
}

/* Handles may be closed in any order: what was made from an object keeps it. */
static void orders(qnic_nic *nic) {
    qnic_endpoint *endpoint;
    qnic_buffer *buffer;
    qnic_segment *segment;
    qnic_request *request;
    void *memory;
    CHECK(qnic_register(nic, 0, NULL, 0, &endpoint));
    CHECK(qnic_buffer_open(endpoint, BYTES, &memory, &buffer));
    CHECK(qnic_export(endpoint, NAME, buffer, QNIC_READ, NULL, &segment));
    qnic_match any = {.size = sizeof any, .flags = QNIC_MESSAGE_ANY_SOURCE, .ignore = UINT64_MAX};
    CHECK(qnic_receive_post(endpoint, &any, memory, BYTES, &request));
    CHECK(qnic_endpoint_close(endpoint));
    CHECK(qnic_buffer_close(buffer));
    REFUSED(qnic_request_test(request, NULL), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_request_cancel(request));
    REFUSED(qnic_request_wait(request, LIMIT, NULL), QNIC_E_CANCELLED);
    CHECK(qnic_segment_close(segment));
    CHECK(qnic_request_close(request));
}

int main(void) {
    qnic_nic *nic;
    qnic_endpoint *endpoint;
    qnic_buffer *buffer;
    qnic_segment *segment;
    qnic_remote *own;
    void *memory;
    qnic_open_options both = {.size = sizeof both, .name = "a", .device = "b"};
    REFUSED(qnic_open(&both, &nic), QNIC_E_ARGUMENT);
    CHECK(qnic_open(NULL, &nic));
    CHECK(qnic_register(nic, PORT, NULL, 0, &endpoint));
    CHECK(qnic_buffer_open(endpoint, BYTES, &memory, &buffer));
    CHECK(qnic_export(endpoint, NAME, buffer, QNIC_READ | QNIC_WRITE, NULL, &segment));
    CHECK(qnic_import(endpoint, 0, PORT, NAME, NULL, LIMIT, &own));
    handles(nic, endpoint);
    sizes(endpoint);
    lengths(endpoint, own, memory);
    nothing(endpoint, own);
    threads(endpoint);
    forks(endpoint, own);
    details(endpoint, own);
    orders(nic);
    CHECK(qnic_remote_close(own));
    CHECK(qnic_segment_close(segment));
    CHECK(qnic_buffer_close(buffer));
    CHECK(qnic_endpoint_close(endpoint));
    CHECK(qnic_close(nic));
    return 0;
}
