/* Four threads of each rank of an MPI program exchange data at once (MPI_THREAD_MULTIPLE), and check what they get.
 *
 *     cargo qnic up examples/mpi.toml
 *     cargo qnic mpirun -n 4 examples/mpi/threads.c
 *
 * Exit status: 0 if all data were right; 1, of all ranks, if some were not.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, ROUNDS = 20, LONGEST = 1 << 17, SHARED = 1000 };

static int rank, size;

/* A thread, and what its sums go over. */
struct thread {
    int number;
    MPI_Comm all;
};

static void fail(const char *what, int thread)
{
    fprintf(stderr, "rank %d, thread %d: wrong data: %s\n", rank, thread, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char expected(int from, int to, int thread, int round, size_t at)
{
    return (unsigned char)(31 * from + 17 * to + 7 * thread + 3 * round + at + at / 251);
}

/* Messages round all ranks, from each thread to the one of its number: the tag is the number. */
static void ring(int thread)
{
    static const int lengths[] = {1, 100, 5000, LONGEST};
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    unsigned char *out = malloc(LONGEST), *in = malloc(LONGEST);
    for (int round = 0; round < ROUNDS; round++) {
        int length = lengths[round % 4];
        for (int at = 0; at < length; at++)
            out[at] = expected(rank, next, thread, round, at);
        MPI_Sendrecv(out, length, MPI_BYTE, next, thread, in, length, MPI_BYTE, last, thread, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        for (int at = 0; at < length; at++)
            if (in[at] != expected(last, rank, thread, round, at))
                fail("the ring", thread);
    }
    free(out);
    free(in);
}

/* Threads share what all other threads send: a message goes to any of them, and each to one. */
static void shared(int thread, int *found)
{
    int next = (rank + 1) % size;
    for (int number = 0; number < ROUNDS; number++) {
        int sent = thread * ROUNDS + number, got;
        MPI_Request request;
        MPI_Isend(&sent, 1, MPI_INT, next, SHARED, MPI_COMM_WORLD, &request);
        MPI_Recv(&got, 1, MPI_INT, MPI_ANY_SOURCE, SHARED, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (got < 0 || got >= THREADS * ROUNDS)
            fail("a shared message", thread);
        __atomic_add_fetch(&found[got], 1, __ATOMIC_RELAXED);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

static int found[THREADS * ROUNDS];

static void *run(void *argument)
{
    struct thread *own = argument;
    ring(own->number);
    shared(own->number, found);
    for (int64_t round = 0; round < ROUNDS; round++) {
        int64_t given = round * (rank + 1) + own->number, sum;
        MPI_Allreduce(&given, &sum, 1, MPI_INT64_T, MPI_SUM, own->all);
        if (sum != round * size * (size + 1) / 2 + (int64_t)own->number * size)
            fail("a sum", own->number);
    }
    return NULL;
}

int main(int count, char **words)
{
    struct thread threads[THREADS];
    pthread_t running[THREADS];
    char node[MPI_MAX_PROCESSOR_NAME];
    int level, length;
    MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(node, &length);
    printf("rank %d of %d on %s\n", rank, size, node);
    fflush(stdout);
    if (level != MPI_THREAD_MULTIPLE)
        fail("MPI_THREAD_MULTIPLE is not offered", 0);
    for (int number = 0; number < THREADS; number++) {
        threads[number].number = number;
        MPI_Comm_dup(MPI_COMM_WORLD, &threads[number].all);
    }
    for (int number = 0; number < THREADS; number++)
        if (pthread_create(&running[number], NULL, run, &threads[number]))
            fail("a thread does not start", number);
    for (int number = 0; number < THREADS; number++)
        pthread_join(running[number], NULL);
    for (int number = 0; number < THREADS * ROUNDS; number++)
        if (found[number] != 1)
            fail("shared messages", 0);
    for (int number = 0; number < THREADS; number++)
        MPI_Comm_free(&threads[number].all);
    if (rank == 0)
        printf("4 threads of %d ranks have exchanged checked data\n", size);
    MPI_Finalize();
    return 0;
}
