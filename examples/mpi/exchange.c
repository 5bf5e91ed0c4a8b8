/* Ranks of an MPI program exchange data in several ways, and each checks what it gets.
 *
 *     cargo qnic up examples/mpi.toml
 *     cargo qnic mpirun -n 8 examples/mpi/exchange.c
 *
 * With the word "hold", they go on until they are ended.
 *
 * Exit status: 0 if all data were right; 1, of all ranks, if some were not.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKEN = 1, PAIR, MANY, PROBED, LATE };

static int rank, size;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: wrong data: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char expected(int from, int to, size_t at)
{
    return (unsigned char)(31 * from + 17 * to + at + at / 251);
}

static void fill(unsigned char *bytes, size_t length, int to)
{
    for (size_t at = 0; at < length; at++)
        bytes[at] = expected(rank, to, at);
}

static void check(const unsigned char *bytes, size_t length, int from, const char *what)
{
    for (size_t at = 0; at < length; at++)
        if (bytes[at] != expected(from, rank, at))
            fail(what);
}

/* A token goes round all ranks. */
static void ring(void)
{
    int token = 0, next = (rank + 1) % size, last = (rank + size - 1) % size;
    if (rank == 0)
        MPI_Send(&token, 1, MPI_INT, next, TOKEN, MPI_COMM_WORLD);
    MPI_Recv(&token, 1, MPI_INT, last, TOKEN, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (token != (rank == 0 ? size - 1 : rank - 1))
        fail("the token of the ring");
    token++;
    if (rank != 0)
        MPI_Send(&token, 1, MPI_INT, next, TOKEN, MPI_COMM_WORLD);
}

/* Each rank exchanges messages of several lengths with each, itself included. */
static void pairs(void)
{
    static const size_t lengths[] = {0, 1, 7, 96, 97, 4096, 65537, 1 << 20};
    unsigned char *out = malloc(1 << 20), *in = malloc(1 << 20);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int step = 0; step < size; step++) {
            int to = (rank + step) % size, from = (rank + size - step) % size, got;
            MPI_Status status;
            fill(out, lengths[i], to);
            memset(in, 0, lengths[i]);
            MPI_Sendrecv(out, (int)lengths[i], MPI_BYTE, to, PAIR, in, 1 << 20, MPI_BYTE, from, PAIR,
                         MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &got);
            if ((size_t)got != lengths[i] || status.MPI_SOURCE != from || status.MPI_TAG != PAIR)
                fail("the status of a pair");
            check(in, lengths[i], from, "a pair");
        }
    free(out);
    free(in);
}

/* Many messages from anywhere, of which most are not expected when they come; those of one sender keep their order. */
static void many(void)
{
    enum { COUNT = 50 };
    int (*out)[2] = malloc(sizeof(int[COUNT][2])), *seen = calloc((size_t)size, sizeof(int)), in[2];
    MPI_Request *requests = malloc(sizeof(MPI_Request) * COUNT * (size_t)size);
    for (int i = 0; i < COUNT; i++) {
        out[i][0] = rank;
        out[i][1] = i;
        for (int to = 0; to < size; to++)
            MPI_Isend(out[i], 2, MPI_INT, to, MANY + 100 * i, MPI_COMM_WORLD, &requests[i * size + to]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < COUNT * size; i++) {
        MPI_Status status;
        MPI_Recv(in, 2, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        if (in[0] != status.MPI_SOURCE || in[1] != seen[in[0]]++ || status.MPI_TAG != MANY + 100 * in[1])
            fail("one of many messages");
    }
    MPI_Waitall(COUNT * size, requests, MPI_STATUSES_IGNORE);
    /* What follows is not sent to a rank that still receives anything. */
    MPI_Barrier(MPI_COMM_WORLD);
    free(out);
    free(seen);
    free(requests);
}

/* A message is probed, then received by the one that has matched it; a synchronous one ends when it is received; a
 * receive is cancelled. */
static void probes(void)
{
    int next = (rank + 1) % size, last = (rank + size - 1) % size, length, cancelled;
    unsigned char out[300], in[300];
    MPI_Request request;
    MPI_Message message;
    MPI_Status status;
    fill(out, sizeof out, next);
    MPI_Issend(out, sizeof out, MPI_BYTE, next, PROBED, MPI_COMM_WORLD, &request);
    MPI_Mprobe(MPI_ANY_SOURCE, PROBED, MPI_COMM_WORLD, &message, &status);
    MPI_Get_count(&status, MPI_BYTE, &length);
    if (length != sizeof out || status.MPI_SOURCE != last)
        fail("what was probed");
    MPI_Mrecv(in, length, MPI_BYTE, &message, &status);
    check(in, sizeof in, last, "what was probed and received");
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Irecv(in, sizeof in, MPI_BYTE, last, LATE, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    if (!cancelled)
        fail("a receive that nothing matches is not cancelled");
}

static void collectives(void)
{
    enum { COUNT = 10000 };
    long *values = malloc(COUNT * sizeof(long)), *sums = malloc(COUNT * sizeof(long));
    int *to_all = malloc((size_t)size * sizeof(int)), *from_all = malloc((size_t)size * sizeof(int));
    for (int root = 0; root < size; root++) {
        for (int i = 0; i < COUNT; i++)
            values[i] = rank == root ? root * 1000L + i : -1;
        MPI_Bcast(values, COUNT, MPI_LONG, root, MPI_COMM_WORLD);
        for (int i = 0; i < COUNT; i++)
            if (values[i] != root * 1000L + i)
                fail("a broadcast");
    }
    for (int i = 0; i < COUNT; i++)
        values[i] = rank + i;
    MPI_Allreduce(values, sums, COUNT, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++)
        if (sums[i] != (long)size * (size - 1) / 2 + (long)size * i)
            fail("a sum");
    for (int to = 0; to < size; to++)
        to_all[to] = rank * size + to;
    MPI_Alltoall(to_all, 1, MPI_INT, from_all, 1, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0; from < size; from++)
        if (from_all[from] != from * size + rank)
            fail("an all-to-all");
    MPI_Comm half;
    int members, odd = rank % 2;
    MPI_Comm_split(MPI_COMM_WORLD, odd, -rank, &half);
    MPI_Allreduce(&odd, &members, 1, MPI_INT, MPI_SUM, half);
    if (members != (odd ? size / 2 : 0))
        fail("a part of the ranks");
    MPI_Comm_free(&half);
    free(values);
    free(sums);
    free(to_all);
    free(from_all);
}

int main(int argc, char **argv)
{
    char name[MPI_MAX_PROCESSOR_NAME];
    int length, hold = argc > 1 && strcmp(argv[1], "hold") == 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(name, &length);
    printf("rank %d of %d on %s\n", rank, size, name);
    fflush(stdout);
    do {
        ring();
        pairs();
        many();
        probes();
        collectives();
    } while (hold);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks have exchanged checked data\n", size);
    MPI_Finalize();
    return 0;
}
