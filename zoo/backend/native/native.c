/* The public functions: choice of the level, memory of a call, and the loop over minibatches. */
#include "internal.h"

#include <stdlib.h>

#if !defined(__GNUC__)
#error "zoo's native executor needs GNU vector extensions: use gcc or clang. zoo works without it, more slowly."
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "zoo's native executor is for little-endian processors"
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_UNPOISON_MEMORY_REGION(from, n)
#endif

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define UNROLL _Pragma("GCC unroll 8")
#define UNROLL16 _Pragma("GCC unroll 16")

#if defined(__x86_64__)
#include <immintrin.h>
#define HAS_X86_LEVELS 1
#define V4_TARGET "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt,movbe"
#define V3_TARGET "avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt,movbe"
#define TEXT(x) #x
#define PRAGMA(x) _Pragma(TEXT(x))
#if defined(__clang__)
#define TARGET_PUSH(t) PRAGMA(clang attribute push(__attribute__((target(t))), apply_to = function))
#define TARGET_POP _Pragma("clang attribute pop")
#else
#define TARGET_PUSH(t) _Pragma("GCC push_options") PRAGMA(GCC target(t))
#define TARGET_POP _Pragma("GCC pop_options")
#endif

TARGET_PUSH(V4_TARGET)
#define WIDTH 16
#define MAX_NV 4
#define NAME(x) x##_v4
#include "kernels.inc"
TARGET_POP

TARGET_PUSH(V3_TARGET)
#define WIDTH 8
#define MAX_NV 2
#define NAME(x) x##_v3
#include "kernels.inc"
TARGET_POP
#endif

#define WIDTH 4
#if defined(__aarch64__)
#define MAX_NV 4
#else
#define MAX_NV 2
#endif
#define NAME(x) x##_base
#include "kernels.inc"

static int best_level(void) {
#if defined(HAS_X86_LEVELS)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
        return ZOO_BASE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return ZOO_V4;
    return ZOO_V3;
#else
    return ZOO_BASE;
#endif
}

static int level = -1; /* -1: not chosen yet */

int32_t zoo_set_level(int32_t wanted) {
    const int best = best_level();
    return level = wanted < 0 || wanted > best ? best : wanted;
}

int32_t zoo_level(void) { return level < 0 ? zoo_set_level(-1) : level; }

static const kernels *kernels_in_use(void) {
    switch (zoo_level()) {
#if defined(HAS_X86_LEVELS)
    case ZOO_V4: return &table_v4;
    case ZOO_V3: return &table_v3;
#endif
    default: return &table_base;
    }
}

int32_t zoo_abi(void) { return ZOO_ABI; }

uint32_t zoo_source(void) { return ZOO_SOURCE; }

int32_t zoo_sizes(int64_t *sizes) {
    const int64_t all[] = {sizeof(zoo_linear), sizeof(zoo_entry), sizeof(zoo_trunk), sizeof(zoo_cell), sizeof(zoo_core),
                           sizeof(zoo_model), sizeof(zoo_step), sizeof(zoo_batch), sizeof(zoo_adam), sizeof(zoo_rollout),
                           sizeof(zoo_ranks), sizeof(zoo_sequences), ZOO_N_METRIC};
    memcpy(sizes, all, sizeof(all));
    return (int32_t)(sizeof(all) / sizeof(all[0]));
}

struct zoo_workspace {
    void *allocated;
    float *memory;
    ptrdiff_t size;                       /* floats */
    const kernels *kernels;               /* the rest: of zoo_act_begin */
    network net;
    scratch scratch;
    states state;
    const zoo_rollout *rollout;
};

zoo_workspace *zoo_workspace_new(void) { return calloc(1, sizeof(zoo_workspace)); }

void zoo_workspace_free(zoo_workspace *w) {
    if (!w) return;
    free(w->allocated);
    free(w);
}

/* At least n floats, on a cache line; what was there is lost. NULL without memory. */
static float *reserve(zoo_workspace *w, ptrdiff_t n) {
    w->rollout = NULL;
    if (n <= w->size) {
        ASAN_UNPOISON_MEMORY_REGION(w->memory, sizeof(float) * (size_t)w->size);
        return w->memory;
    }
    free(w->allocated);
    w->size = 0;
    w->allocated = calloc((size_t)n + 16, sizeof(float));
    if (!w->allocated) return NULL;
    w->size = n;
    return w->memory = (float *)(((uintptr_t)w->allocated + 63) & ~(uintptr_t)63);
}

/* --- an epoch ------------------------------------------------------------------------------------------------- */

static int outputs_of(const zoo_step *step) {
    switch (step->kind) {
    case ZOO_PPO: return ZOO_OUT_LOGIT | ZOO_OUT_VALUE;
    case ZOO_POLICY: return ZOO_OUT_LOGIT;
    case ZOO_VALUE: return ZOO_OUT_VALUE;
    case ZOO_AUX: return ZOO_OUT_LOGIT | ZOO_OUT_VALUE | ZOO_OUT_AUX;
    default: return 0;
    }
}

static int is_step(const zoo_step *step) {
    if (step->surrogate < ZOO_CLIP || step->surrogate > ZOO_SPO) return 0;
    if (step->surrogate == ZOO_SPO && !(step->clip_low > 0.0)) return 0;
    if (step->value_loss < ZOO_MSE || step->value_loss > ZOO_HUBER) return 0;
    return step->value_loss == ZOO_MSE || step->value_range > 0.0;
}

/* Whether all entries that the towers read are there, and their indices are possible in n times n_step rows: those from
 * index[i] * n_step on, or of index NULL the first ones. */
static int32_t check_obs(const network *net, const void *const *obs, const int64_t *index, int64_t n, int n_step) {
    for (int t = 0; t < net->n_tower; t++) {
        const zoo_trunk *trunk = net->towers[t].trunk;
        for (int k = 0; net->towers[t].input == t && k < trunk->n_entry; k++) {
            const zoo_entry *e = &net->model->entry[trunk->entry[k]];
            const int64_t *x = obs[trunk->entry[k]];
            if (!x) return ZOO_BAD_MODEL;
            for (int64_t i = 0; e->kind == ZOO_INDEX && i < n; i++) {
                const int64_t *row = x + (index ? index[i] : i) * n_step;
                for (int t = 0; t < n_step; t++)
                    if (row[t] < 0 || row[t] >= e->width) return ZOO_BAD_OBS;
            }
        }
    }
    return ZOO_OK;
}

/* Whether all actions of n rows are possible. */
static int32_t check_choices(const zoo_model *model, const int64_t *choice, int n) {
    for (int r = 0; r < n; r++)
        for (int i = 0; i < model->n_choice; i++, choice++)
            if (*choice < 0 || *choice >= model->nvec[i]) return ZOO_BAD_ACTION;
    return ZOO_OK;
}

/* Whether a batch is of rows or sequences, with all that a memory needs: without a state it would be one of rows. */
static int is_batch(const network *net, const zoo_batch *b) {
    if (b->n_step < 0 || b->n_burn < 0 || (b->n_burn && !b->n_step)) return 0;
    if ((int64_t)b->n_step * MAX_SEQUENCE > INT32_MAX / 2) return 0;
    if (!has_memory(net)) return 1;
    for (int t = 0; t < net->n_tower; t++)
        if (net->towers[t].n_cell && !(net->towers[t].is_critic ? b->critic_state : b->actor_state)) return 0;
    return b->n_step && b->is_first && (!b->n_burn || b->is_burned);
}

/* Whether the step has its columns and every entry of index is one with possible actions and observations. */
static int32_t check_rows(const network *net, const zoo_step *step, const zoo_batch *batch, const int64_t *index,
                          int64_t n) {
    const zoo_model *model = net->model;
    const int kind = step->kind, acts = kind == ZOO_PPO || kind == ZOO_POLICY;
    const int learns_value = kind != ZOO_POLICY;
    const int clips_value = step->value_loss == ZOO_CLIPPED_VALUE && (kind == ZOO_PPO || kind == ZOO_VALUE);
    if ((acts && !(batch->action && batch->adv)) || (kind != ZOO_VALUE && !batch->logit) ||
        (learns_value && !batch->return_) || (clips_value && !batch->value))
        return ZOO_BAD_MODEL;
    if (!is_batch(net, batch) || (batch->mask && model->distribution != ZOO_CATEGORICAL)) return ZOO_BAD_MODEL;
    const int64_t *choice = acts && model->distribution == ZOO_CATEGORICAL ? batch->action : NULL;
    const int n_step = batch->n_step ? batch->n_step : 1;
    for (int64_t i = 0; i < n; i++) {
        if (index[i] < 0 || index[i] >= batch->n_row) return ZOO_BAD_INDEX;
        if (choice && check_choices(model, choice + index[i] * n_step * model->n_choice, n_step)) return ZOO_BAD_ACTION;
    }
    return check_obs(net, batch->obs, index, n, batch->n_burn + n_step);
}

static int has_weight(const float *weight, int64_t row) { return !weight || weight[row] > 0.0f; }

/* Count, mean and variance of the advantages of rows with a weight. */
typedef struct { double n, mean, var; } moments;

/* out = adv - base for the rows with a weight, where the base, which is returned, is the adv of the first of them: so equal
 * rows become exactly 0. m: the moments of out. */
static float center_adv(const zoo_batch *b, const int64_t *index, int64_t n, float *out, moments *m) {
    const float *adv = b->adv, *weight = b->weight;
    int64_t first = 0, count = 0;
    double sum = 0.0, square = 0.0;
    while (first < n && !has_weight(weight, index[first])) first++;
    const float base = adv[index[first < n ? first : 0]];
    for (int64_t i = 0; i < n; i++) {
        if (!has_weight(weight, index[i])) continue;
        out[i] = adv[index[i]] - base;
        sum += (double)out[i];
        count++;
    }
    const double mean = sum / (double)(count ? count : 1);
    for (int64_t i = 0; i < n; i++)
        if (has_weight(weight, index[i])) square += ((double)out[i] - mean) * ((double)out[i] - mean);
    *m = (moments){(double)count, mean, square / (double)(count ? count : 1)};
    return base;
}

/* (adv - mean) / (std + 1e-8) over the rows with a weight; std without correction, equal rows exactly 0. Of the others,
 * whose adv may be NaN, 0. all: the moments to use, NULL: those of these rows. */
static void normalize_adv(const zoo_batch *b, const int64_t *index, int64_t n, const moments *all, float *out) {
    moments m;
    const float base = center_adv(b, index, n, out, &m);
    const double mean = all ? all->mean - (double)base : m.mean, divisor = sqrt(all ? all->var : m.var) + 1e-8;
    const float *weight = b->weight;
    for (int64_t i = 0; i < n; i++)
        out[i] = has_weight(weight, index[i]) ? (float)(((double)out[i] - mean) / divisor) : 0.0f;
}

typedef struct {
    const kernels *kernels;
    minibatch mb;
    zoo_ranks *ranks;                     /* NULL: alone */
    scratch scratches[ZOO_MAX_THREAD];
} epoch;

static void lane_task(void *context, int64_t lane, int thread) {
    epoch *e = context;
    e->kernels->lane(&e->mb, (int)lane, &e->scratches[thread]);
}

/* Depends on the number of rows alone, so that the sums have one order whatever the number of threads. */
static int lanes_for(int64_t n_row) {
    const int64_t n = n_row / 128;
    return n < 1 ? 1 : n > MAX_LANE ? MAX_LANE : (int)n;
}

static double total(const minibatch *mb, int which) {
    double sum = 0.0;
    for (int i = 0; i < mb->n_lane; i++) sum += mb->sums[i][which];
    return sum;
}

/* The maximum over the lanes, NaN where one has it. */
static double largest(const minibatch *mb, int which) {
    double most = mb->sums[0][which];
    for (int i = 1; i < mb->n_lane; i++)
        if (mb->sums[i][which] > most || mb->sums[i][which] != mb->sums[i][which]) most = mb->sums[i][which];
    return most;
}

static void write_losses(const minibatch *mb, double *metrics) {
    const double n = (double)mb->n_row;
    const int kind = mb->step->kind;
    for (int i = 0; i < ZOO_N_METRIC; i++) metrics[i] = NAN;
    if (kind == ZOO_PPO || kind == ZOO_POLICY) {
        metrics[ZOO_POLICY_LOSS] = total(mb, SUM_POLICY);
        metrics[ZOO_ENTROPY] = total(mb, SUM_ENTROPY) / n;
        const double weight = fmax(total(mb, SUM_WEIGHT), 1e-30); /* without any weight the means are 0 */
        metrics[ZOO_APPROX_KL] = -total(mb, SUM_LOG_RATIO) / weight;
        metrics[ZOO_CLIPFRAC] = total(mb, SUM_OUTSIDE) / weight;
        if (mb->step->measure_kl) metrics[ZOO_KL] = total(mb, SUM_K3) / weight;
        if (mb->step->measure_kl) metrics[ZOO_RATIO_MAX] = largest(mb, MAX_RATIO);
        if (mb->step->has_kl_penalty) metrics[ZOO_PENALTY_KL] = total(mb, SUM_KL) / n;
    }
    if (kind == ZOO_PPO || kind == ZOO_VALUE) {
        metrics[ZOO_VALUE_LOSS] = 0.5 * total(mb, SUM_VALUE) / n;
        if (mb->step->value_loss == ZOO_CLIPPED_VALUE || mb->step->value_loss == ZOO_CLIPPED_ERROR)
            metrics[ZOO_VALUE_CLIPFRAC] = total(mb, SUM_VALUE_OUTSIDE) / fmax(total(mb, SUM_VALUE_WEIGHT), 1e-30);
    }
    if (kind == ZOO_AUX) {
        metrics[ZOO_AUXILIARY_LOSS] = 0.5 * total(mb, SUM_AUX) / n;
        metrics[ZOO_CLONING_LOSS] = total(mb, SUM_KL) / n;
        metrics[ZOO_AUX_VALUE_LOSS] = 0.5 * total(mb, SUM_VALUE) / n;
    }
}

/* Every optimiser's own norm limits and, if it is not finite, stops its own step. */
static void descend(const kernels *k, const zoo_step *step, const zoo_adam *adam, int n_adam, double *metrics) {
    double square = 0.0;
    for (int i = 0; i < n_adam; i++) {
        const double norm = (double)(float)sqrt(k->sum_of_squares(adam[i].grad, adam[i].size));
        metrics[ZOO_GRAD_NORM_0 + i] = norm;
        square += norm * norm;
        if (!isfinite(norm)) continue;
        const double excess = step->has_grad_clip ? norm / step->grad_clip : 1.0;
        *adam[i].step_count += 1.0f;
        k->adam(&adam[i], excess > 1.0 ? 1.0 / excess : 1.0);
    }
    metrics[ZOO_GRAD_NORM] = sqrt(square);
}

/* Blocks and lanes for n_entry rows or sequences. They depend on these numbers alone, so that sums have one order. */
static void divide(minibatch *mb, network *net, int64_t n_entry) {
    const int64_t n_step = mb->batch->n_step ? mb->batch->n_step : 1;
    mb->n_entry = n_entry;
    mb->n_row = n_entry * n_step;
    mb->n_lane = lanes_for(mb->n_row);
    mb->block_entries = BLOCK;
    if (mb->batch->n_step) {
        int64_t n = SEQUENCE_ROWS / n_step;
        n = n < MIN_SEQUENCE ? MIN_SEQUENCE : n > MAX_SEQUENCE ? MAX_SEQUENCE : n;
        const int64_t share = (n_entry + mb->n_lane - 1) / mb->n_lane;
        mb->block_entries = n < share ? n : share;
        net->block_rows = (int)(mb->block_entries * n_step);
        net->block_sequences = (int)mb->block_entries;
    }
    mb->block_rows = mb->block_entries * n_step;
    const int64_t n_block = (n_entry + mb->block_entries - 1) / mb->block_entries;
    if (mb->n_lane > n_block) mb->n_lane = (int)n_block;
}

/* The rows `first` to first + n_step - 1 of each sequence of the minibatch, which have `length` rows each, block by block and
 * in a block step by step. */
static void expand(const minibatch *mb, int64_t first, int64_t n_step, int64_t length, int64_t *rows) {
    for (int64_t entry = 0; entry < mb->n_entry; entry += mb->block_entries) {
        const int64_t left = mb->n_entry - entry, n = left < mb->block_entries ? left : mb->block_entries;
        for (int64_t t = first; t < first + n_step; t++)
            for (int64_t s = 0; s < n; s++) *rows++ = mb->index[entry + s] * length + t;
    }
}

/* The rows of the next minibatch, whose entries are those of index. */
static void choose_rows(minibatch *mb, const int64_t *index, int64_t *rows, int64_t *seen, int64_t *burned) {
    const int64_t n_step = mb->batch->n_step, n_burn = mb->batch->n_burn;
    mb->index = mb->rows = mb->seen = index;
    if (!n_step) return;
    expand(mb, 0, n_step, n_step, rows);
    expand(mb, n_burn, n_step, n_burn + n_step, seen);
    expand(mb, 0, n_burn, n_burn + n_step, burned);
    mb->rows = rows;
    mb->seen = seen;
    mb->burned = burned;
}

/* The moments of the rows of all ranks from those of each, merged one after the other (Chan et al. 1979). */
static moments merged(const moments *of_rank, int64_t stride, int n_rank) {
    moments all = of_rank[0];
    for (int i = 1; i < n_rank; i++) {
        const moments m = of_rank[i * stride];
        all.n += m.n;
        const double share = m.n / (all.n > 1.0 ? all.n : 1.0), delta = m.mean - all.mean;
        all.mean += delta * share;
        all.var += (m.var - all.var) * share + delta * delta * (share * (1.0 - share));
    }
    return all;
}

/* Memory for the rows of a minibatch. */
typedef struct { int64_t *rows, *seen, *burned; float *adv; } buffers;

/* The moments of n minibatches, of the rows of all ranks, in one exchange. found: [n_rank, n]; the first n are the result. */
static int32_t moments_of_all(epoch *e, const int64_t *index, int64_t n, const buffers *of, moments *found) {
    minibatch *mb = &e->mb;
    zoo_ranks *r = e->ranks;
    memset(found, 0, sizeof(moments) * (size_t)(n * r->n_rank)); /* so the sum over the ranks shows each what the others have */
    for (int64_t i = 0; i < n; i++) {
        moments *m = &found[r->rank * n + i];
        choose_rows(mb, index + i * mb->n_entry, of->rows, of->seen, of->burned);
        const float base = center_adv(mb->batch, mb->rows, mb->n_row, of->adv, m);
        m->mean += (double)base;
    }
    const int32_t error = zoo_ranks_sum(r, found, 3 * n * r->n_rank, ZOO_SUM_DOUBLE);
    for (int64_t i = 0; !error && i < n; i++) found[i] = merged(found + i, n, r->n_rank);
    return error;
}

/* Replaces the gradients by their means over the ranks. */
static int32_t share_gradients(zoo_ranks *r, const zoo_adam *adam, int n_adam) {
    for (int i = 0; i < n_adam; i++) {
        const int32_t error = zoo_ranks_sum(r, adam[i].grad, adam[i].size, ZOO_SUM_FLOAT);
        if (error) return error;
        const float share = 1.0f / (float)r->n_rank, n = (float)r->n_rank;
        const int is_exact = (r->n_rank & (r->n_rank - 1)) == 0; /* then a product has the bits of a division */
        for (int64_t k = 0; is_exact && k < adam[i].size; k++) adam[i].grad[k] *= share;
        for (int64_t k = 0; !is_exact && k < adam[i].size; k++) adam[i].grad[k] /= n;
    }
    return ZOO_OK;
}

#define MOMENTS_AHEAD 32 /* minibatches whose moments the ranks exchange together */

static int32_t run_epoch(epoch *e, zoo_workspace *w, network *net, const zoo_adam *adam, int n_adam,
                         const int64_t *index, int64_t n_minibatch, double *metrics, crew *threads) {
    minibatch *mb = &e->mb;
    const int64_t n_burned = mb->n_entry * mb->batch->n_burn, n_expanded = mb->batch->n_step ? mb->n_row : 0;
    const int normalize = mb->step->normalize_adv && (mb->step->kind == ZOO_PPO || mb->step->kind == ZOO_POLICY);
    const int64_t ahead = n_minibatch < MOMENTS_AHEAD ? n_minibatch : MOMENTS_AHEAD;
    const int64_t n_moments = normalize && e->ranks ? 6 * ahead * e->ranks->n_rank : 0; /* of doubles */
    const int n_scratch = crew_size(threads);
    const ptrdiff_t each = scratch_size(net);
    float *memory = reserve(w, packed_size(net) + each * n_scratch + (net->grad_size + 32) * mb->n_lane +
                                   mb->n_row + 4 * n_expanded + 2 * n_burned + n_moments + 5 * 32);
    if (!memory) return ZOO_NO_MEMORY;
    memory = place_packed(net, memory);
    for (int i = 0; i < n_scratch; i++, memory += each) place_scratch(net, &e->scratches[i], memory);
    for (int i = 0; i < mb->n_lane; i++) mb->lane_grad[i] = take(&memory, net->grad_size);
    buffers of;
    of.adv = take(&memory, mb->n_row);
    of.rows = (int64_t *)take(&memory, 2 * n_expanded);
    of.seen = (int64_t *)take(&memory, 2 * n_expanded);
    of.burned = (int64_t *)take(&memory, 2 * n_burned);
    moments *all = (moments *)take(&memory, n_moments);
    mb->adv = normalize ? of.adv : NULL;
    for (int i = 0; i < n_adam; i++) memset(adam[i].grad, 0, sizeof(float) * (size_t)adam[i].size);
    for (int64_t i = 0; i < n_minibatch; i++, metrics += ZOO_N_METRIC) {
        const int64_t *chosen = index + i * mb->n_entry, left = n_minibatch - i;
        int32_t error = ZOO_OK;
        if (n_moments && i % ahead == 0) error = moments_of_all(e, chosen, left < ahead ? left : ahead, &of, all);
        if (error) return error;
        choose_rows(mb, chosen, of.rows, of.seen, of.burned);
        if (normalize) normalize_adv(mb->batch, mb->rows, mb->n_row, n_moments ? &all[i % ahead] : NULL, of.adv);
        e->kernels->pack(net);
        crew_run(threads);
        e->kernels->reduce(mb);
        write_losses(mb, metrics);
        if (e->ranks) error = share_gradients(e->ranks, adam, n_adam);
        if (error) return error;
        descend(e->kernels, mb->step, adam, n_adam, metrics);
    }
    return ZOO_OK;
}

int32_t zoo_epoch(zoo_workspace *w, const zoo_model *model, const zoo_step *step, const zoo_batch *batch,
                  const zoo_adam *adam, int32_t n_adam, const int64_t *index, int64_t n_minibatch,
                  int64_t batch_size, double *metrics, int32_t n_thread, zoo_ranks *ranks) {
    epoch e;
    memset(&e.mb, 0, sizeof(e.mb));
    e.kernels = kernels_in_use();
    e.mb.step = step;
    e.mb.batch = batch;
    e.ranks = ranks;
    network net;
    if (batch_size < 1 || n_minibatch < 0 || n_adam < 1 || n_adam > 2 || !is_step(step)) return ZOO_BAD_MODEL;
    int32_t error = plan_network(&net, model, outputs_of(step), model->stop_value_gradient, e.kernels->width);
    if (!error) error = check_rows(&net, step, batch, index, n_minibatch * batch_size);
    if (error) return error;
    e.mb.net = &net;
    divide(&e.mb, &net, batch_size);
    crew *threads = crew_new(n_thread, lane_task, &e, e.mb.n_lane);
    if (!threads) return ZOO_NO_MEMORY;
    const unsigned mode = flush_denormals();
    error = run_epoch(&e, w, &net, adam, n_adam, index, n_minibatch, metrics, threads);
    restore_denormals(mode);
    crew_free(threads);
    return error;
}

/* --- outputs without gradients, and acting ----------------------------------------------------------------------- */

/* One minibatch of all entries of a batch. */
static int32_t run_outputs(epoch *e, zoo_workspace *w, network *net, crew *threads) {
    minibatch *mb = &e->mb;
    const int64_t n_burned = mb->n_entry * mb->batch->n_burn, n_expanded = mb->batch->n_step ? mb->n_row : 0;
    const int n_scratch = crew_size(threads);
    const ptrdiff_t each = scratch_size(net);
    float *memory = reserve(w, packed_size(net) + each * n_scratch + 2 * mb->n_entry + 4 * n_expanded + 2 * n_burned + 4 * 32);
    if (!memory) return ZOO_NO_MEMORY;
    memory = place_packed(net, memory);
    for (int i = 0; i < n_scratch; i++, memory += each) place_scratch(net, &e->scratches[i], memory);
    int64_t *index = (int64_t *)take(&memory, 2 * mb->n_entry);
    int64_t *rows = (int64_t *)take(&memory, 2 * n_expanded), *seen = (int64_t *)take(&memory, 2 * n_expanded);
    for (int64_t i = 0; i < mb->n_entry; i++) index[i] = i;
    choose_rows(mb, index, rows, seen, (int64_t *)take(&memory, 2 * n_burned));
    e->kernels->pack(net);
    crew_run(threads);
    return ZOO_OK;
}

int32_t zoo_outputs(zoo_workspace *w, const zoo_model *model, const zoo_batch *batch, float *logit, float *value,
                    int32_t n_thread) {
    epoch e;
    memset(&e.mb, 0, sizeof(e.mb));
    e.kernels = kernels_in_use();
    e.mb.batch = batch;
    e.mb.logit = logit;
    e.mb.value = value;
    network net;
    const int which = (logit ? ZOO_OUT_LOGIT : 0) | (value ? ZOO_OUT_VALUE : 0);
    int32_t error = plan_network(&net, model, which, 0, e.kernels->width);
    if (error) return error;
    if (!is_batch(&net, batch) || (batch->mask && model->distribution != ZOO_CATEGORICAL)) return ZOO_BAD_MODEL;
    if (batch->n_row < 1) return ZOO_BAD_INDEX;
    error = check_obs(&net, batch->obs, NULL, batch->n_row, batch->n_burn + (batch->n_step ? batch->n_step : 1));
    if (error) return error;
    e.mb.net = &net;
    divide(&e.mb, &net, batch->n_row);
    crew *threads = crew_new(n_thread, lane_task, &e, e.mb.n_lane);
    if (!threads) return ZOO_NO_MEMORY;
    const unsigned mode = flush_denormals();
    error = run_outputs(&e, w, &net, threads);
    restore_denormals(mode);
    crew_free(threads);
    return error;
}

typedef struct {
    const kernels *kernels;
    const network *net;
    scratch *scratches;
    int64_t n_row;
    const void *const *obs;
    const uint8_t *mask;
    states state;
    float *logit, *value, *aux_value;
} outputs;

/* The states of each tower before the rows of a step; whether all are there that the towers need. */
static int place_states(const network *net, const float *actor, const float *critic, states *state) {
    memset(state, 0, sizeof(*state));
    for (int t = 0; t < net->n_tower; t++) {
        if (!net->towers[t].n_cell) continue;
        state->before[t] = net->towers[t].is_critic ? critic : actor;
        if (!state->before[t]) return 0;
    }
    return 1;
}

static void forward_task(void *context, int64_t i, int thread) {
    const outputs *o = context;
    const int64_t first = i * BLOCK, left = o->n_row - first;
    o->kernels->forward(o->net, &o->scratches[thread], first, left < BLOCK ? (int)left : BLOCK, o->obs, o->mask, &o->state,
                        o->logit ? o->logit + first * o->net->n_logit : NULL, o->value ? o->value + first : NULL,
                        o->aux_value ? o->aux_value + first : NULL);
}

int32_t zoo_forward(zoo_workspace *w, const zoo_model *model, int64_t n_row, const void *const *obs,
                    const uint8_t *mask, const float *actor_state, const float *critic_state, float *logit, float *value,
                    float *aux_value, int32_t n_thread) {
    if (!n_row) return ZOO_OK; /* outputs of no rows have no address */
    const int64_t n_block = (n_row + BLOCK - 1) / BLOCK;
    const int which = (logit ? ZOO_OUT_LOGIT : 0) | (value ? ZOO_OUT_VALUE : 0) | (aux_value ? ZOO_OUT_AUX : 0);
    scratch scratches[ZOO_MAX_THREAD];
    network net;
    outputs o = {kernels_in_use(), &net, scratches, n_row, obs, mask, {{0}, {{0}}}, logit, value, aux_value};
    int32_t error = plan_network(&net, model, which, 0, o.kernels->width);
    if (error) return error;
    if (mask && model->distribution != ZOO_CATEGORICAL) return ZOO_BAD_MODEL;
    if (!place_states(&net, actor_state, critic_state, &o.state)) return ZOO_BAD_MODEL;
    error = check_obs(&net, obs, NULL, n_row, 1);
    if (error) return error;
    crew *threads = crew_new(n_thread, forward_task, &o, n_block);
    float *memory = threads ? reserve(w, packed_size(&net) + scratch_size(&net) * crew_size(threads)) : NULL;
    if (memory) {
        const unsigned mode = flush_denormals();
        memory = place_packed(&net, memory);
        for (int i = 0; i < crew_size(threads); i++, memory += scratch_size(&net))
            place_scratch(&net, &scratches[i], memory);
        o.kernels->pack(&net);
        crew_run(threads);
        restore_denormals(mode);
    }
    crew_free(threads);
    return memory ? ZOO_OK : ZOO_NO_MEMORY;
}

/* The layer of memory of sequences and what it keeps of them; returns the floats of its packed weights, or -1. */
static ptrdiff_t plan_sequences(const zoo_sequences *s, int width, cell *c, memory *m) {
    *m = (memory){.gate = s->gate, .of_h = s->of_h, .h = s->h, .h_in = s->h_in, .c_in = s->c_in, .tanh_c = s->tanh_c,
                  .dh = s->dh, .dc = s->dc};
    if (s->n_step < 1 || s->n_sequence < 1 || s->n_step > INT32_MAX / s->n_sequence) return -1;
    return plan_unroll(c, &s->cell, width);
}

int32_t zoo_unroll(zoo_workspace *w, const zoo_sequences *s) {
    cell c;
    memory m;
    const kernels *k = kernels_in_use();
    const ptrdiff_t size = plan_sequences(s, k->width, &c, &m);
    if (size < 0) return ZOO_BAD_MODEL;
    float *packed = reserve(w, size);
    if (!packed) return ZOO_NO_MEMORY;
    place_unroll(&c, packed);
    const unsigned mode = flush_denormals();
    k->unroll(&c, &m, (int)s->n_sequence, (int)s->n_step, s->keep);
    restore_denormals(mode);
    return ZOO_OK;
}

int32_t zoo_unroll_back(const zoo_sequences *s, const float *d) {
    cell c;
    memory m;
    const kernels *k = kernels_in_use();
    if (plan_sequences(s, k->width, &c, &m) < 0) return ZOO_BAD_MODEL;
    const unsigned mode = flush_denormals();
    k->unroll_back(&c, &m, (int)s->n_sequence, (int)s->n_step, s->keep, d, 1);
    restore_denormals(mode);
    return ZOO_OK;
}

int32_t zoo_act_begin(zoo_workspace *w, const zoo_model *model, const zoo_rollout *rollout) {
    const int which = ZOO_OUT_LOGIT | (rollout->has_value ? ZOO_OUT_VALUE : 0);
    w->kernels = kernels_in_use();
    const int32_t error = plan_network(&w->net, model, which, 0, w->kernels->width);
    if (error) return error;
    if (rollout->mask && model->distribution != ZOO_CATEGORICAL) return ZOO_BAD_MODEL;
    if (!place_states(&w->net, rollout->actor_now, rollout->critic_now, &w->state)) return ZOO_BAD_MODEL;
    float *memory = reserve(w, packed_size(&w->net) + scratch_size(&w->net));
    if (!memory) return ZOO_NO_MEMORY;
    place_scratch(&w->net, &w->scratch, place_packed(&w->net, memory));
    w->kernels->pack(&w->net);
    w->rollout = rollout;
    return ZOO_OK;
}

/* Sets the state before the step that follows step t to 0 where an episode begins with it. */
static void reset_states(const network *net, const zoo_rollout *r, int64_t t) {
    for (int k = 0; k < net->n_tower; k++)
        for (int i = 0; net->towers[k].n_cell && i < 2; i++)
            if (r->begins[i])
                zoo_zero_rows(net->towers[k].is_critic ? r->critic_now : r->actor_now, r->n_row, net->towers[k].n_state,
                              (const uint8_t *)r->begins[i] + t * r->begins_stride[i]);
}

int32_t zoo_act(zoo_workspace *w, int64_t t) {
    const zoo_rollout *r = w->rollout;
    if (!r) return ZOO_BAD_MODEL;
    const void *obs[ZOO_MAX_ENTRY];
    for (int i = 0; i < w->net.model->n_entry; i++) obs[i] = r->obs[i] ? r->obs[i] + t * r->obs_stride[i] : NULL;
    for (int k = 0; k < w->net.n_tower; k++) {
        if (!w->net.towers[k].n_cell) continue;
        const int is_critic = w->net.towers[k].is_critic;
        char *block = is_critic ? r->critic_state : r->actor_state;
        w->state.after[k][0] = is_critic ? r->critic_now : r->actor_now;
        w->state.after[k][1] = (float *)(block + t * (is_critic ? r->critic_state_stride : r->actor_state_stride));
    }
    if (t) reset_states(&w->net, r, t - 1);
    const unsigned mode = flush_denormals();
    const int32_t error = check_obs(&w->net, obs, NULL, r->n_row, 1);
    for (int i = 0; !error && i < r->n_row; i += BLOCK)
        w->kernels->act(&w->net, &w->scratch, i, r->n_row - i < BLOCK ? r->n_row - i : BLOCK, obs,
                        r->mask ? (const uint8_t *)(r->mask + t * r->mask_stride) : NULL, &w->state,
                        r->noise ? (const float *)(r->noise + t * r->noise_stride) : NULL,
                        r->action + t * r->action_stride, (float *)(r->logit + t * r->logit_stride),
                        r->has_value ? (float *)(r->value + t * r->value_stride) : NULL);
    restore_denormals(mode);
    return error;
}

void zoo_zero_rows(float *x, int64_t n_row, int64_t width, const uint8_t *marked) {
    for (int64_t i = 0; i < n_row; i++)
        if (marked[i]) memset(x + i * width, 0, sizeof(float) * (size_t)width);
}
