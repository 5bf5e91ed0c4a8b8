/* Processing elements of an OpenSHMEM program exchange data, and each checks what it gets. Its memory goes over UCX: the
 * cluster file says verbs = true, too.
 *
 *     cargo qnic up examples/mpi.toml
 *     cargo qnic mpirun -n 4 examples/mpi/symmetric.c
 *
 * Exit status: 0 if all data were right; 1 if some were not.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORDS = 100000, ROUNDS = 20 };

static long table[WORDS], sum, sums, counter, first;
/* What a reduction needs. */
static long work[SHMEM_REDUCE_MIN_WRKDATA_SIZE], turns[SHMEM_REDUCE_SYNC_SIZE];

static void check(int right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "element %d: wrong data: %s\n", shmem_my_pe(), what);
    shmem_global_exit(1);
}

int main(void)
{
    shmem_init();
    int me = shmem_my_pe(), all = shmem_n_pes(), next = (me + 1) % all, last = (me + all - 1) % all;
    long *heap = shmem_malloc(WORDS * sizeof(long)), *own = malloc(WORDS * sizeof(long));
    check(heap != NULL && own != NULL, "no memory");
    for (long at = 0; at < WORDS; at++)
        own[at] = me * 1000000L + at;
    /* A put to the heap and one to a variable of the next element; a get of what was put there. */
    shmem_long_put(heap, own, WORDS, next);
    shmem_long_put(table, own, WORDS, next);
    shmem_barrier_all();
    for (long at = 0; at < WORDS; at++)
        check(heap[at] == last * 1000000L + at && table[at] == heap[at], "a put");
    shmem_long_get(own, heap, WORDS, next);
    for (long at = 0; at < WORDS; at++)
        check(own[at] == me * 1000000L + at, "a get");
    /* A counter of element 0 has each value once; its first taker is one. */
    long before = -1;
    for (int round = 0; round < ROUNDS; round++) {
        long value = shmem_long_atomic_fetch_inc(&counter, 0);
        check(value > before, "a counter goes back");
        before = value;
    }
    shmem_barrier_all();
    check(shmem_long_g(&counter, 0) == (long)ROUNDS * all, "a counter");
    for (int at = 0; at < SHMEM_REDUCE_SYNC_SIZE; at++)
        turns[at] = SHMEM_SYNC_VALUE;
    sum = shmem_long_atomic_compare_swap(&first, 0, me + 1, 0) == 0;
    shmem_barrier_all();
    shmem_long_sum_to_all(&sums, &sum, 1, 0, 0, all, work, turns);
    check(sums == 1, "a word that is taken once");
    /* A flag that comes behind its data. */
    shmem_long_p(&table[0], 77 + me, next);
    shmem_fence();
    shmem_long_p(&table[1], -1, next);
    shmem_long_wait_until(&table[1], SHMEM_CMP_EQ, -1);
    check(table[0] == 77 + last, "data in front of a flag");
    shmem_barrier_all();
    if (me == 0)
        printf("%d elements have found checked data in each other's memory\n", all);
    shmem_free(heap);
    free(own);
    shmem_finalize();
    return 0;
}
