/* Public interface of zoo's native executor: gradient steps and acting of MLP actor-critics, also with a memory, on a CPU in float32.
 *
 * zoo/backend/native/bindings.py mirrors every struct and constant here; raise ZOO_ABI when one of them changes.
 * All arrays are row-major and contiguous. N: rows in memory, E: entries of an observation, O: width of one, K: independent
 * choices in an action, A: options of all choices together, D: dimensions of a continuous action, P: width of a flat logit
 * (A, or 2 * D: mu and then sigma). With a memory, entries of a batch are sequences of L steps: N of them, and N * L rows. B:
 * steps of burn-in before each. H: hidden size of a layer of memory, G: its gates.
 */
#ifndef ZOO_NATIVE_H
#define ZOO_NATIVE_H

#include <stdint.h>

#if defined(_WIN32)
#define ZOO_API __declspec(dllexport)
#else
#define ZOO_API __attribute__((visibility("default")))
#endif

#define ZOO_ABI 8
#ifndef ZOO_SOURCE
#define ZOO_SOURCE 0u
#endif
#define ZOO_MAX_LAYER 8
#define ZOO_MAX_ENTRY 16
#define ZOO_MAX_CELL 2     /* layers of memory */
#define ZOO_MAX_THREAD 64

enum zoo_level { ZOO_BASE = 0, ZOO_V3 = 1, ZOO_V4 = 2 };                           /* base: SSE2 or NEON */
enum zoo_input { ZOO_FLOAT = 0, ZOO_NORMALIZED = 1, ZOO_INDEX = 2, ZOO_BOOL = 3 }; /* float, float, int64, uint8_t */
enum zoo_activation { ZOO_TANH = 0, ZOO_RELU = 1 };
enum zoo_cell_kind { ZOO_LSTM = 0, ZOO_GRU = 1, ZOO_MINGRU = 2 };
enum zoo_distribution { ZOO_CATEGORICAL = 0, ZOO_GAUSSIAN = 1 };
enum zoo_std { ZOO_STD_NONE = 0, ZOO_STD_FREE = 1, ZOO_STD_LAYER = 2 };            /* source of a Gaussian's log std */
enum zoo_kind { ZOO_PPO = 0, ZOO_POLICY = 1, ZOO_VALUE = 2, ZOO_AUX = 3 };
enum zoo_surrogate { ZOO_CLIP = 0, ZOO_UNCLIPPED = 1, ZOO_SPO = 2 };                /* gain of the policy, see loss.inc */
enum zoo_value_loss { ZOO_MSE = 0, ZOO_CLIPPED_VALUE = 1, ZOO_CLIPPED_ERROR = 2, ZOO_HUBER = 3 };   /* see loss.inc */
enum zoo_output { ZOO_OUT_LOGIT = 1, ZOO_OUT_VALUE = 2, ZOO_OUT_AUX = 4 };         /* bits */

enum zoo_error {
    ZOO_OK = 0,
    ZOO_NO_MEMORY = 1,
    ZOO_BAD_MODEL = 2,        /* a pointer, width or kind that the model or the step needs is missing or wrong */
    ZOO_BAD_INDEX = 3,        /* an entry of `index` outside [0, n_row) */
    ZOO_BAD_ACTION = 4,       /* a choice outside its options */
    ZOO_BAD_OBS = 5,          /* an observation index outside [0, O) */
    ZOO_RANK_LATE = 6,        /* another rank did not come in time */
    ZOO_RANK_LOST = 7         /* another rank has ended, or the sum over machines failed */
};

enum zoo_sum { ZOO_SUM_FLOAT = 0, ZOO_SUM_DOUBLE = 1, ZOO_SUM_INT64 = 2 };         /* type of the numbers */

/* Columns of a row of metrics. What a step does not compute is NaN. */
enum zoo_metric {
    ZOO_POLICY_LOSS, ZOO_VALUE_LOSS, ZOO_ENTROPY, ZOO_APPROX_KL, ZOO_CLIPFRAC, ZOO_KL,
    ZOO_GRAD_NORM,            /* over all optimisers: the root of the sum of their squared norms */
    ZOO_GRAD_NORM_0, ZOO_GRAD_NORM_1,                                               /* of each optimiser */
    ZOO_AUXILIARY_LOSS, ZOO_CLONING_LOSS, ZOO_AUX_VALUE_LOSS,
    ZOO_PENALTY_KL,
    ZOO_RATIO_MAX,            /* the largest p_new / p_old of a row with a weight */
    ZOO_VALUE_CLIPFRAC,       /* share of rows outside value_range, of ZOO_CLIPPED_VALUE and ZOO_CLIPPED_ERROR */
    ZOO_N_METRIC
};

/* One linear layer: weight [n_out, n_in], bias [n_out]; their gradients, or NULL for what takes none. */
typedef struct {
    int32_t n_in, n_out;
    const float *weight, *bias;
    float *weight_grad, *bias_grad;
} zoo_linear;

/* One entry of the observations, in arrays of its own. */
typedef struct {
    int32_t kind, width;                  /* zoo_input; O, or the number of indices */
    float clip;
    const float *shift, *scale;           /* [O], ZOO_NORMALIZED: clamp((x - shift) * scale, -clip, clip) */
} zoo_entry;

/* Linear layers, each followed by the activation. The input of the first is the entries that it reads, side by side. */
typedef struct {
    int32_t n_layer, activation, n_entry;
    int32_t entry[ZOO_MAX_ENTRY];         /* numbers of the entries, in the order of the first layer's inputs */
    zoo_linear layer[ZOO_MAX_LAYER];
} zoo_trunk;

/* One layer of memory, whose state is h [H] (of an LSTM: h, then c). x: from its input and with the bias, [G * H]; h: from its
 * features of the step before, [G * H]; that of an LSTM may lack its bias, and minGRU has no h (n_out 0). Gates, in this order:
 *
 *   ZOO_LSTM    i, f, g, o: c' = f * c + i * g, h' = o * tanh(c')
 *   ZOO_GRU     r, z, n: n = tanh(x_n + r * h_n), h' = n + z * (h - n)
 *   ZOO_MINGRU  z, n, both of x alone: h' = h + z * (n - h)
 */
typedef struct {
    int32_t kind, n_hidden;               /* zoo_cell_kind; H, a multiple of 16 */
    zoo_linear x, h;
} zoo_cell;

/* Layers of memory between a trunk and its heads; none: n_layer 0. The states of its layers stand one after the other. */
typedef struct {
    int32_t n_layer;
    zoo_cell layer[ZOO_MAX_CELL];
} zoo_core;

/* An actor-critic. Heads that are absent have n_out 0. */
typedef struct {
    int32_t n_entry;                      /* E */
    int32_t shared;                       /* the critic's heads are on the actor's trunk; `critic` is not read */
    int32_t stop_value_gradient;          /* the critic's loss moves no trunk that the actor uses */
    int32_t distribution, n_action, std;  /* n_action: A or D */
    int32_t n_choice;                     /* K, ZOO_CATEGORICAL */
    float log_std_min, log_std_max;       /* the log std of a Gaussian stays between the two */
    const int32_t *nvec;                  /* [K], ZOO_CATEGORICAL: options of each choice, whose sum is A */
    const float *log_std;                 /* [D], ZOO_STD_FREE */
    float *log_std_grad;
    zoo_entry entry[ZOO_MAX_ENTRY];
    zoo_trunk actor, critic;
    zoo_core actor_core, critic_core;     /* of each trunk; that of the critic may be without one */
    zoo_linear policy_head;               /* -> logits, or mu */
    zoo_linear std_head;                  /* -> log std, ZOO_STD_LAYER */
    zoo_linear value_head, aux_head;      /* -> 1; aux: on the actor's trunk */
} zoo_model;

/* What the steps of an epoch share. A has_ of 0 leaves the option out. */
typedef struct {
    int32_t kind;                         /* zoo_kind */
    int32_t normalize_adv, measure_kl, surrogate, value_loss;   /* ..., zoo_surrogate, zoo_value_loss */
    int32_t has_dual_clip, has_kl_penalty, has_grad_clip;
    double clip_low, clip_high;           /* ratios outside [1 - clip_low, 1 + clip_high] count as clipped */
    double value_range;                   /* > 0: of ZOO_CLIPPED_VALUE, ZOO_CLIPPED_ERROR or ZOO_HUBER */
    double value_weight, entropy_weight, dual_clip, kl_penalty, bc_weight, grad_clip;
} zoo_step;

/* N rows, or sequences of L rows each, that minibatches are gathered from; a step reads the columns that it needs, others may
 * be NULL. Columns of sequences are [N, L, ..]; obs, mask and is_first, which begin with the burn-in, [N, B + L, ..].
 */
typedef struct {
    int64_t n_row;                        /* N */
    int32_t n_step, n_burn;               /* L, or 0: rows; B */
    const uint8_t *is_first;              /* [N, B + L], of sequences: the state is 0 before the row */
    const uint8_t *is_burned;             /* [N], if B > 0: the state before the L rows is that after the B rows, not the given one */
    const float *actor_state, *critic_state;                    /* [N, n_state], of trunks with a memory: before the first row */
    const void *obs[ZOO_MAX_ENTRY];       /* of each entry: [N, O] float or uint8_t, or [N] int64; NULL: no step reads it */
    const uint8_t *mask;                  /* [N, A], 0: the option is not allowed; or NULL: all are */
    const void *action;                   /* [N, K] int64, or [N, D] float */
    const float *logit;                   /* [N, P], of the old policy */
    const float *value, *adv, *return_;   /* [N] */
    const float *weight;                  /* [N], or NULL: 1 everywhere */
} zoo_batch;

/* Adam over one flat buffer, as torch's fused Adam without weight decay. */
typedef struct {
    int64_t size;
    float *param, *grad, *exp_avg, *exp_avg_sq, *step_count;
    double lr, beta1, beta2, eps;
} zoo_adam;

/* The blocks of a rollout that acting reads and writes; step t of a block starts t * stride bytes after its base. */
typedef struct {
    int32_t n_row, has_value;             /* B */
    const char *obs[ZOO_MAX_ENTRY];       /* as in zoo_batch: [B, O] or [B] */
    const char *mask;                     /* [B, A] or NULL */
    const char *noise;                    /* [B, A] or [B, D] float; NULL: the mode */
    char *action, *logit, *value;         /* [B, K] int64 or [B, D] float; [B, P]; [B] */
    float *actor_now, *critic_now;        /* [B, n_state], of trunks with a memory: before the next step; read and written */
    char *actor_state, *critic_state;     /* [B, n_state]: after the step */
    int64_t obs_stride[ZOO_MAX_ENTRY], mask_stride, noise_stride, action_stride, logit_stride, value_stride;
    int64_t actor_state_stride, critic_state_stride;
    const char *begins[2];                /* [B]: marks, either of two, before whose next step the state is set to 0; or NULL */
    int64_t begins_stride[2];
} zoo_rollout;

/* Sums n numbers (zoo_sum) over the machines, in place; returns other than 0 if it failed. The first rank of each calls it. */
typedef int32_t zoo_across(void *x, int64_t n, int32_t kind);

/* Processes that train together, as one of them sees them; those of one machine share memory. All make the same calls. */
typedef struct {
    int32_t rank, n_rank;                 /* of all */
    int32_t local, n_local;               /* of this machine, in the same order */
    int32_t fd;                           /* of the memory; each rank has a lock on the byte of its number `local` */
    int32_t n_spin;                       /* looks at a counter before a rank that waits sleeps */
    int32_t error;                        /* zoo_error of a wait that failed; then no call works any more. At first 0 */
    void *memory;                         /* zoo_ranks_bytes(n_local, n_byte), at first 0; NULL: n_local is 1 */
    int64_t n_byte;                       /* of a slot, a multiple of 64 */
    int64_t n_wait;                       /* how often it has waited; at first 0 */
    double timeout;                       /* s, of a wait */
    zoo_across *across;                   /* NULL: all ranks are on this machine */
} zoo_ranks;

/* n sequences of L steps, and one layer of memory that they go through; the inputs' part of it is the caller's. */
typedef struct {
    zoo_cell cell;                        /* x is not read, nor are gradients of h */
    int64_t n_step, n_sequence;           /* L, n */
    const float *keep;                    /* [L + 1, n]: 0: the state before the row is set to 0; else 1, as all in the last */
    float *gate;                          /* [L, n, G * H]: what comes from the inputs, then the gates, then gradients in their sums */
    float *of_h;                          /* [L, n, G * H], of a GRU: the part of the sums that comes from h, then gradients in it */
    float *h;                             /* [L, n, H]: features */
    float *h_in, *c_in;                   /* [L + 1, n, H]: before row 0 given, after the last one found; c_in of an LSTM */
    float *tanh_c;                        /* [L, n, H], of an LSTM */
    float *dh, *dc;                       /* [n, H], on the way back, see zoo_unroll_back */
} zoo_sequences;

typedef struct zoo_workspace zoo_workspace;

ZOO_API int32_t zoo_abi(void);
/* The number of its sources, ZOO_SOURCE (build.py); 0 if it was compiled without one. */
ZOO_API uint32_t zoo_source(void);
/* Sizes of the structs above in their order and the number of metrics (13 numbers), to tell a library of another build. */
ZOO_API int32_t zoo_sizes(int64_t *sizes);
ZOO_API int32_t zoo_level(void);
/* Uses a level from now on (-1: the best); returns the one in use, which is lower if this CPU lacks it. */
ZOO_API int32_t zoo_set_level(int32_t level);

/* Scratch memory, for one call at a time. */
ZOO_API zoo_workspace *zoo_workspace_new(void);
ZOO_API void zoo_workspace_free(zoo_workspace *workspace);

/* One gradient step for each of n_minibatch consecutive blocks of batch_size entries of index, which count rows or sequences.
 *
 * There are one or two optimisers, each with the norm of its own. metrics: [n_minibatch, ZOO_N_METRIC]. A step whose norm is not
 * finite changes nothing but the gradients and is reported by its norm. Gradients are left as they were before the
 * clip. The result does not depend on n_thread.
 * ranks: NULL, or those whose minibatches, all of batch_size, make one: gradients are the means over them, and advantages are
 * normalised by the moments of all. Metrics other than norms are those of this rank.
 * Returns a zoo_error; then no step was taken, unless another rank is late or lost.
 */
ZOO_API int32_t zoo_epoch(zoo_workspace *workspace, const zoo_model *model, const zoo_step *step,
                          const zoo_batch *batch, const zoo_adam *adam, int32_t n_adam, const int64_t *index,
                          int64_t n_minibatch, int64_t batch_size, double *metrics, int32_t n_thread, zoo_ranks *ranks);

/* Bytes of the memory that n_local ranks share, with slots of n_byte. */
ZOO_API int64_t zoo_ranks_bytes(int32_t n_local, int64_t n_byte);
/* Sums n numbers (zoo_sum) over all ranks, in place: over each machine in the order of its ranks. All get the same bits. */
ZOO_API int32_t zoo_ranks_sum(zoo_ranks *ranks, void *x, int64_t n, int32_t kind);
/* Shows n_byte bytes, at most those of a slot, and a number to the ranks of this machine. all: [n_local], set to the slot of
 * each rank: its number, and from byte 64 on its bytes. They stay until the next call but one.
 */
ZOO_API int32_t zoo_ranks_exchange(zoo_ranks *ranks, const void *own, int64_t n_byte, int64_t number, void **all);

/* Outputs for N rows: those of logit [N, P], value [N] and aux_value [N] that are not NULL; obs [E], mask: as in zoo_batch;
 * actor_state, critic_state [N, n_state]: before the row, of trunks with a memory. Returns a zoo_error.
 */
ZOO_API int32_t zoo_forward(zoo_workspace *workspace, const zoo_model *model, int64_t n_row, const void *const *obs,
                            const uint8_t *mask, const float *actor_state, const float *critic_state, float *logit,
                            float *value, float *aux_value, int32_t n_thread);

/* Outputs of the rows of a batch, of sequences those behind the burn-in: logit [N, P], value [N], or [N, L, ..], what is not
 * NULL. It reads obs, mask, states and what sequences need. The result does not depend on n_thread. Returns a zoo_error.
 */
ZOO_API int32_t zoo_outputs(zoo_workspace *workspace, const zoo_model *model, const zoo_batch *batch, float *logit,
                            float *value, int32_t n_thread);

/* Takes sequences through a layer of memory: features, gates and states, the first ones times keep. Returns a zoo_error. */
ZOO_API int32_t zoo_unroll(zoo_workspace *workspace, const zoo_sequences *sequences);
/* The way back after `zoo_unroll`: d [L, n, H], gradients in the features. dh, and dc of an LSTM: at first the gradients in the
 * state after the last row, in the end those before row 0, not yet times keep. A GRU has the second part of these in dc, 0 at
 * first, and minGRU all of them.
 */
ZOO_API int32_t zoo_unroll_back(const zoo_sequences *sequences, const float *d);

/* Makes a workspace ready to act: packs the weights as they are now. To be repeated when they have changed; between
 * it and `zoo_act` the workspace must serve no other call. model and rollout must stay where they are.
 */
ZOO_API int32_t zoo_act_begin(zoo_workspace *workspace, const zoo_model *model, const zoo_rollout *rollout);
/* Acts on obs[t], after begins[t - 1]: writes logit, action, states and, if has_value, value of step t. Returns a zoo_error. */
ZOO_API int32_t zoo_act(zoo_workspace *workspace, int64_t t);
/* Sets the rows of x [n_row, width] to 0 that are marked. */
ZOO_API void zoo_zero_rows(float *x, int64_t n_row, int64_t width, const uint8_t *marked);

#endif
