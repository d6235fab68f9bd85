/* Ranks of one machine, which share memory: they wait for each other there, and sum arrays in the order of the ranks.
 *
 * The memory is a header and then two sets of slots, of which successive waits use one and the other: a rank that has come
 * to wait k has read what was written for wait k - 1, so that set is free for wait k + 1.
 */
#if defined(__linux__)
#define _GNU_SOURCE
#endif
#include "internal.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define LINE 64         /* bytes of a cache line */
#define MAX_READ (1 << 18)   /* bytes; where all slots together are larger, each rank sums only its part of them */

static int64_t stride_of(int64_t n_byte) { return LINE + (n_byte + LINE - 1) / LINE * LINE; }

int64_t zoo_ranks_bytes(int32_t n_local, int64_t n_byte) { return 4 * LINE + 2 * n_local * stride_of(n_byte); }

/* The slot of a rank of this machine for the wait that comes next, or for the one after that: the bytes in it, and the data. */
static int64_t *slot_of(const zoo_ranks *r, int local, int64_t later) {
    const int64_t set = (r->n_wait + later) & 1;
    return (int64_t *)((char *)r->memory + 4 * LINE + (set * r->n_local + local) * stride_of(r->n_byte));
}

static void *data_of(int64_t *slot) { return (char *)slot + LINE; }

/* Copies n bytes into a slot, past the caches where it can: the processors of the other ranks still have its old lines, which
 * an ordinary store would have to fetch first: 16 us for 37 kB, so 1.5. */
static void put(int64_t *slot, const void *from, int64_t n) {
    char *to = data_of(slot);
    int64_t i = 0;
#if defined(__SSE2__)
    for (; i + 16 <= n; i += 16)
        _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)((const char *)from + i)));
    _mm_sfence();
#endif
    memcpy(to + i, (const char *)from + i, (size_t)(n - i));
}

#if defined(__linux__)

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_S 0.05     /* seconds of sleep between two looks whether the other ranks are still there */
#define STOPPED_S 1.0   /* a sleep that took as much longer was a stop of the processes, as by Ctrl-Z: it does not count */

/* The header, all 0 at first, one cache line each. */
typedef struct {
    atomic_uint n_came, pad_0[LINE / 4 - 1];    /* how often a rank came to a wait */
    atomic_uint n_done, pad_1[LINE / 4 - 1];    /* waits that are over */
    atomic_uint n_asleep, pad_2[LINE / 4 - 1];
    atomic_uint is_over, pad_3[LINE / 4 - 1];   /* a rank has given up */
} header;

static int32_t give_up(zoo_ranks *r, int32_t error) {
    header *h = r->memory;
    atomic_store(&h->is_over, 1);
    return r->error = error;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Whether all ranks of this machine are there: each holds a lock, which ends with its process, however that ends. */
static int are_there(const zoo_ranks *r) {
    for (int i = 0; i < r->n_local; i++) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = i, .l_len = 1};
        if (i != r->local && (fcntl(r->fd, F_GETLK, &lock) || lock.l_type == F_UNLCK)) return 0;
    }
    return 1;
}

static void sleep_until(header *h, unsigned n_done) {
    const struct timespec limit = {0, (long)(LOOK_S * 1e9)};
    atomic_fetch_add(&h->n_asleep, 1);
    syscall(SYS_futex, &h->n_done, FUTEX_WAIT, n_done, &limit, NULL, 0);
    atomic_fetch_sub(&h->n_asleep, 1);
}

static void wake_all(header *h) {
    if (atomic_load(&h->n_asleep)) syscall(SYS_futex, &h->n_done, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Waits until all ranks of this machine have come as often. Spins first, if each has a processor, and then sleeps. */
static int32_t wait_for_all(zoo_ranks *r) {
    header *h = r->memory;
    if (atomic_load(&h->is_over)) return r->error = ZOO_RANK_LOST;
    const unsigned before = (unsigned)r->n_wait++;
    if (atomic_fetch_add(&h->n_came, 1) + 1 == (before + 1) * (unsigned)r->n_local) {
        atomic_store(&h->n_done, before + 1);
        wake_all(h);
        return ZOO_OK;
    }
    for (int i = 0; i < r->n_spin; i++) {
        if (atomic_load_explicit(&h->n_done, memory_order_acquire) != before) return ZOO_OK;
#if defined(__SSE2__)
        _mm_pause();
#endif
    }
    double begin = now();
    while (atomic_load(&h->n_done) == before) {
        const double look = now();
        sleep_until(h, before);
        const double slept = now() - look;
        if (slept > LOOK_S + STOPPED_S) begin += slept;
        if (atomic_load(&h->n_done) != before) break;
        const int is_lost = !are_there(r);
        if (atomic_load(&h->n_done) != before) break; /* the last one came, and left at once */
        if (is_lost || atomic_load(&h->is_over)) return give_up(r, ZOO_RANK_LOST);
        if (now() - begin > r->timeout) return give_up(r, ZOO_RANK_LATE);
    }
    return ZOO_OK;
}

#else

static int32_t wait_for_all(zoo_ranks *r) { return r->error = ZOO_RANK_LOST; } /* ranks share no memory on this system */

#endif

#define PIECE 1024      /* numbers that are summed over all slots before the next: they stay in the nearest cache */

/* to = the sum over the slots of their n numbers from `first` on, in the order of the ranks. */
#define SUM_SLOTS(type)                                                                                \
    static void sum_##type(const zoo_ranks *r, int64_t first, int64_t n, type *restrict to) {          \
        for (int64_t from = 0; from < n; from += PIECE) {                                              \
            const int64_t m = n - from < PIECE ? n - from : PIECE;                                     \
            const type *restrict x = (const type *)data_of(slot_of(r, 0, -1)) + first + from;          \
            const type *restrict y = (const type *)data_of(slot_of(r, 1, -1)) + first + from;          \
            for (int64_t i = 0; i < m; i++) to[from + i] = x[i] + y[i];                                \
            for (int k = 2; k < r->n_local; k++) {                                                     \
                const type *restrict z = (const type *)data_of(slot_of(r, k, -1)) + first + from;      \
                for (int64_t i = 0; i < m; i++) to[from + i] += z[i];                                  \
            }                                                                                          \
        }                                                                                              \
    }

SUM_SLOTS(float)
SUM_SLOTS(double)
SUM_SLOTS(int64_t)

static void sum_slots(const zoo_ranks *r, int32_t kind, int64_t first, int64_t n, void *to) {
    switch (kind) {
    case ZOO_SUM_FLOAT: sum_float(r, first, n, to); return;
    case ZOO_SUM_DOUBLE: sum_double(r, first, n, to); return;
    default: sum_int64_t(r, first, n, to);
    }
}

/* The first entry of the part of n entries that a rank sums; the part ends where the next one begins. On whole lines. */
static int64_t part_of(int64_t n, int local, int n_local) {
    const int64_t per_rank = (n + n_local - 1) / n_local, each = (per_rank + 15) / 16 * 16;
    return each * local < n ? each * local : n;
}

/* Sums what all have in their slots; each rank sums its part, and all read the parts. */
static int32_t sum_parts(zoo_ranks *r, int32_t kind, int64_t n, int64_t size, char *x) {
    const int64_t first = part_of(n, r->local, r->n_local), end = part_of(n, r->local + 1, r->n_local);
    sum_slots(r, kind, first, end - first, data_of(slot_of(r, r->local, 0)));
    const int32_t error = wait_for_all(r);
    for (int k = 0; !error && k < r->n_local; k++) {
        const int64_t from = part_of(n, k, r->n_local);
        memcpy(x + from * size, data_of(slot_of(r, k, -1)), (size_t)((part_of(n, k + 1, r->n_local) - from) * size));
    }
    return error;
}

/* Sums over the other machines: the first rank of each does it, and the others take its result. */
static int32_t sum_machines(zoo_ranks *r, int32_t kind, int64_t n, int64_t size, void *x) {
    if (!r->local && r->across(x, n, kind)) return r->error = ZOO_RANK_LOST;
    if (r->n_local == 1) return ZOO_OK;
    if (!r->local) put(slot_of(r, 0, 0), x, n * size);
    const int32_t error = wait_for_all(r);
    if (!error && r->local) memcpy(x, data_of(slot_of(r, 0, -1)), (size_t)(n * size));
    return error;
}

static int32_t sum_piece(zoo_ranks *r, int32_t kind, int64_t n, int64_t size, void *x) {
    if (r->n_local > 1) {
        put(slot_of(r, r->local, 0), x, n * size);
        int32_t error = wait_for_all(r);
        if (!error && r->n_local > 2 && n * size * r->n_local > MAX_READ)
            error = sum_parts(r, kind, n, size, x);
        else if (!error)
            sum_slots(r, kind, 0, n, x);
        if (error) return error;
    }
    return r->across ? sum_machines(r, kind, n, size, x) : ZOO_OK;
}

int32_t zoo_ranks_sum(zoo_ranks *r, void *x, int64_t n, int32_t kind) {
    const int64_t size = kind == ZOO_SUM_FLOAT ? 4 : 8, most = r->n_byte / size;
    if (r->error) return r->error;
    for (int64_t i = 0; i < n; i += most) {
        const int32_t error = sum_piece(r, kind, n - i < most ? n - i : most, size, (char *)x + i * size);
        if (error) return error;
    }
    return ZOO_OK;
}

int32_t zoo_ranks_exchange(zoo_ranks *r, const void *own, int64_t n_byte, int64_t number, void **all) {
    if (r->error) return r->error;
    int64_t *slot = slot_of(r, r->local, 0);
    *slot = number;
    put(slot, own, n_byte);
    const int32_t error = wait_for_all(r);
    for (int k = 0; k < r->n_local; k++) all[k] = slot_of(r, k, -1);
    return error;
}
