/* An application of two processes: they find each other by name, add up their numbers in the NICs, and
 * the first one sends a message to all.
 *
 *     group RANK
 */

#include "example.h"

enum { PORT = 11, OWN = 1, ALL = 3, NUMBERS = 1000 };

int main(int count, char **arguments) {
    uint32_t rank = peer_of(count, arguments);
    qnic_endpoint *endpoint = registered(PORT, NULL);
    void *own;
    qnic_buffer *buffer;
    qnic_segment *segment;
    CHECK(qnic_buffer_open(endpoint, NUMBERS * sizeof(double), &own, &buffer));
    CHECK(qnic_export(endpoint, OWN, buffer, QNIC_READ, NULL, &segment));

    qnic_group *group;
    CHECK(qnic_application_join(endpoint, "adders", rank, 2, LIMIT, &group));

    double *numbers = own;
    for (int index = 0; index < NUMBERS; index++)
        numbers[index] = index + 0.25;
    qnic_collective sum = {.size = sizeof sum, .function = QNIC_ALLREDUCE, .op = QNIC_SUM,
                           .element = QNIC_F64, .address = own, .length = NUMBERS * sizeof(double)};
    qnic_call *call;
    CHECK(qnic_group_collective_post(group, &sum, LIMIT, &call));
    CHECK(qnic_call_wait(call, LIMIT));
    CHECK(qnic_call_close(call));
    printf("%.2f and %.2f\n", numbers[0], numbers[NUMBERS - 1]);

    qnic_match all = {.size = sizeof all, .tag = ALL, .immediate = 7};
    CHECK(qnic_group_send(group, NULL, 0, &all, "to all", 6, LIMIT));
    qnic_collective barrier = {.size = sizeof barrier, .function = QNIC_BARRIER};
    CHECK(qnic_group_collective(group, &barrier, LIMIT));

    CHECK(qnic_group_close(group));
    CHECK(qnic_segment_close(segment));
    CHECK(qnic_buffer_close(buffer));
    CHECK(qnic_endpoint_close(endpoint));
    return 0;
}
