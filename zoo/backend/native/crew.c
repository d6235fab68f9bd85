/* Threads that live as long as a call: they take tasks off a counter and wait for the next round by spinning. */
#include "internal.h"

#include <stdlib.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

unsigned flush_denormals(void) {
#if defined(__SSE2__)
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040u); /* flush to zero, denormals are zero */
    return mode;
#elif defined(__aarch64__)
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    __asm__ volatile("msr fpcr, %0" : : "r"(mode | (1u << 24)));
    return (unsigned)mode;
#else
    return 0;
#endif
}

void restore_denormals(unsigned mode) {
#if defined(__SSE2__)
    _mm_setcsr(mode);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
#else
    (void)mode;
#endif
}

#if defined(_WIN32)

struct crew {
    crew_task *task;
    void *context;
    int64_t n_task;
};

crew *crew_new(int n_thread, crew_task *task, void *context, int64_t n_task) {
    crew *c = calloc(1, sizeof(crew));
    (void)n_thread;
    if (c) *c = (crew){task, context, n_task};
    return c;
}

void crew_free(crew *c) { free(c); }
int crew_size(const crew *c) { return c ? 1 : 0; }

void crew_run(crew *c) {
    for (int64_t i = 0; i < c->n_task; i++) c->task(c->context, i, 0);
}

#else

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define SPIN 4000 /* looks at a counter before the processor is offered to others: some 10 us */

struct crew {
    int n_helper;
    pthread_t helper[ZOO_MAX_THREAD];
    crew_task *task;
    void *context;
    int64_t n_task;
    atomic_llong next, n_done;            /* of this round: the next task to take, and those finished */
    atomic_int stop, n_started;
};

static void pause_or_yield(int *n_look) {
    if (++*n_look > SPIN) {
        sched_yield();
        return;
    }
#if defined(__SSE2__)
    _mm_pause();
#endif
}

/* Takes one task of the round, if there is one left, and finishes it. */
static int take_task(crew *c, int thread) {
    long long i = atomic_load(&c->next);
    do
        if (i >= c->n_task) return 0;
    while (!atomic_compare_exchange_weak(&c->next, &i, i + 1));
    c->task(c->context, i, thread);
    atomic_fetch_add(&c->n_done, 1);
    return 1;
}

static void *help(void *argument) {
    crew *c = argument;
    const int thread = atomic_fetch_add(&c->n_started, 1) + 1;
    flush_denormals();
    for (int n_look = 0; !atomic_load(&c->stop);) {
        if (take_task(c, thread))
            n_look = 0;
        else
            pause_or_yield(&n_look);
    }
    return NULL;
}

/* Threads for rounds of n_task tasks; n_thread counts the caller's own. Fewer than asked for are no error. */
crew *crew_new(int n_thread, crew_task *task, void *context, int64_t n_task) {
    crew *c = calloc(1, sizeof(crew));
    if (!c) return NULL;
    c->task = task;
    c->context = context;
    c->n_task = n_task;
    atomic_store(&c->next, n_task);
    if (n_thread > n_task) n_thread = (int)n_task;
    if (n_thread > ZOO_MAX_THREAD) n_thread = ZOO_MAX_THREAD;
    while (c->n_helper < n_thread - 1 && pthread_create(&c->helper[c->n_helper], NULL, help, c) == 0) c->n_helper++;
    return c;
}

void crew_free(crew *c) {
    if (!c) return;
    atomic_store(&c->stop, 1);
    for (int i = 0; i < c->n_helper; i++) pthread_join(c->helper[i], NULL);
    free(c);
}

int crew_size(const crew *c) { return c ? c->n_helper + 1 : 0; }

/* One round. It waits for tasks, not for threads: one that the system did not run yet holds up nothing. */
void crew_run(crew *c) {
    int n_look = 0;
    atomic_store(&c->n_done, 0);
    atomic_store(&c->next, 0);
    while (take_task(c, 0)) {}
    while (atomic_load(&c->n_done) < c->n_task) pause_or_yield(&n_look);
}

#endif
