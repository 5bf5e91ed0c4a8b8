/* Ranks of an MPI program reach each other's memory (one-sided communication), and check what they find there.
 *
 *     cargo qnic up examples/mpi.toml
 *     cargo qnic mpirun -n 8 --mca pml ob1 examples/mpi/one-sided.c
 *
 * With the word "hold", they go on until they are ended.
 *
 * Exit status: 0 if all data were right; 1, of all ranks, if some were not.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements of a window. The first are words of a counter, of a lock and of what it guards; sums stand behind them. */
enum { COUNT = 20000, TICKETS = 0, LOCK, GUARDED, SUMS = 100, MANY = 1000 };
enum { TURNS = 50, LOCKED = 5 };

static int rank, size;
static long *memory, *values;
static MPI_Win window;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: wrong data: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static long expected(int of, int at)
{
    return of * 1000003L + at;
}

/* All memory is 0, and all ranks know it. `next` says whether operations follow that a fence ends. */
static void clear(int next)
{
    MPI_Barrier(MPI_COMM_WORLD);
    memset(memory, 0, COUNT * sizeof(long));
    MPI_Win_fence(MPI_MODE_NOPRECEDE | next, window);
}

/* Each rank fills the memory of the next one between two fences, and reads it back between two others. */
static void fences(void)
{
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    clear(0);
    for (int at = 0; at < COUNT; at++)
        values[at] = expected(rank, at);
    MPI_Put(values, COUNT, MPI_LONG, next, 0, COUNT, MPI_LONG, window);
    MPI_Win_fence(0, window);
    for (int at = 0; at < COUNT; at++)
        if (memory[at] != expected(last, at))
            fail("what was put");
    memset(values, 0, COUNT * sizeof(long));
    MPI_Win_fence(0, window);
    MPI_Get(values, COUNT, MPI_LONG, next, 0, COUNT, MPI_LONG, window);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
    for (int at = 0; at < COUNT; at++)
        if (values[at] != expected(rank, at))
            fail("what was got");
}

/* All ranks draw tickets from a counter of rank 0: each ticket is drawn once. */
static void tickets(void)
{
    long one = 1, ticket, sum = 0, all, count = (long)TURNS * size;
    clear(MPI_MODE_NOSUCCEED);
    MPI_Win_lock_all(0, window);
    for (int i = 0; i < TURNS; i++) {
        MPI_Fetch_and_op(&one, &ticket, MPI_LONG, 0, TICKETS, MPI_SUM, window);
        MPI_Win_flush(0, window);
        sum += ticket;
    }
    MPI_Win_unlock_all(window);
    MPI_Allreduce(&sum, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (all != count * (count - 1) / 2)
        fail("tickets of a counter");
}

/* A word is a lock, by compare and swap; what it guards is read and written. */
static void swaps(void)
{
    long zero = 0, mine = rank + 1, was, value;
    clear(MPI_MODE_NOSUCCEED);
    MPI_Win_lock_all(0, window);
    for (int i = 0; i < LOCKED; i++) {
        do {
            MPI_Compare_and_swap(&mine, &zero, &was, MPI_LONG, 0, LOCK, window);
            MPI_Win_flush(0, window);
        } while (was != 0);
        MPI_Get(&value, 1, MPI_LONG, 0, GUARDED, 1, MPI_LONG, window);
        MPI_Win_flush(0, window);
        value++;
        MPI_Put(&value, 1, MPI_LONG, 0, GUARDED, 1, MPI_LONG, window);
        MPI_Win_flush(0, window);
        MPI_Put(&zero, 1, MPI_LONG, 0, LOCK, 1, MPI_LONG, window);
        MPI_Win_flush(0, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Get(&value, 1, MPI_LONG, 0, GUARDED, 1, MPI_LONG, window);
    MPI_Win_unlock_all(window);
    if (value != (long)LOCKED * size)
        fail("what a lock guards");
}

/* All ranks add to the memory of each, under locks. */
static void sums(void)
{
    clear(MPI_MODE_NOSUCCEED);
    for (int at = 0; at < MANY; at++)
        values[at] = rank + at;
    for (int step = 0; step < size; step++) {
        int to = (rank + step) % size;
        MPI_Win_lock(step % 2 ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE, to, 0, window);
        MPI_Accumulate(values, MANY, MPI_LONG, to, SUMS, MANY, MPI_LONG, MPI_SUM, window);
        MPI_Win_unlock(to, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
    for (int at = 0; at < MANY; at++)
        if (memory[SUMS + at] != (long)size * (size - 1) / 2 + (long)size * at)
            fail("a sum");
    MPI_Win_unlock(rank, window);
}

/* Each rank exposes its memory to the one in front of it (post, start, complete, wait). */
static void exposures(void)
{
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    MPI_Group all, from, to;
    clear(MPI_MODE_NOSUCCEED);
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, 1, &last, &from);
    MPI_Group_incl(all, 1, &next, &to);
    values[0] = expected(rank, 7);
    MPI_Win_post(from, 0, window);
    MPI_Win_start(to, 0, window);
    MPI_Put(values, 1, MPI_LONG, next, SUMS, 1, MPI_LONG, window);
    MPI_Win_complete(window);
    MPI_Win_wait(window);
    if (memory[SUMS] != expected(last, 7))
        fail("what was put into exposed memory");
    MPI_Group_free(&from);
    MPI_Group_free(&to);
    MPI_Group_free(&all);
}

int main(int argc, char **argv)
{
    char name[MPI_MAX_PROCESSOR_NAME];
    int length, hold = argc > 1 && strcmp(argv[1], "hold") == 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(name, &length);
    MPI_Win_allocate(COUNT * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    values = malloc(COUNT * sizeof(long));
    printf("rank %d of %d on %s\n", rank, size, name);
    fflush(stdout);
    do {
        fences();
        tickets();
        swaps();
        sums();
        exposures();
    } while (hold);
    free(values);
    MPI_Win_free(&window);
    if (rank == 0)
        printf("%d ranks have found checked data in each other's memory\n", size);
    MPI_Finalize();
    return 0;
}
