/* Structures that native.c and the kernels of every level share. */
#ifndef ZOO_INTERNAL_H
#define ZOO_INTERNAL_H

#include "zoo_native.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define BLOCK 64        /* rows that go through the loss together, and without a memory also through the network */
#define SEQUENCE_ROWS 128    /* rows of a block of sequences, if they leave it */
#define MIN_SEQUENCE 8       /* .. this many sequences, */
#define MAX_SEQUENCE 16      /* .. and at most this many: more gain nothing in the products of a step */
#define PANEL_WIDTH 64  /* columns of packed weights that lie together, so that a product reads them line by line */
#define MAX_LANE 8      /* independent partial sums of a gradient */
#define MAX_PART 4      /* heads on one trunk */
#define MAX_TOWER 2
#define MAX_LOG_RATIO 88.0f /* a probability ratio beyond e^88 is that number and has no gradient, as in rl_utils/ppo.py */

/* A linear layer, or all heads of a trunk side by side, as the kernels want it. Pads go up to a whole vector. */
typedef struct {
    int n_in, n_out, in_pad, out_pad;
    int n_part;
    const zoo_linear *part[MAX_PART];     /* whose outputs stand one after the other */
    int panel;                            /* columns of a panel of `forward` */
    float *forward;                       /* the transposed weight in panels [n_in, panel]; the last goes up to out_pad */
    float *bias;                          /* [out_pad] */
    const float *backward;                /* [n_out, backward_stride]: the weight */
    float *backward_copy;                 /* NULL where the weight itself will do */
    int backward_stride;
    int transposed;                       /* the gradient is kept as [n_in, out_pad], not [n_out, in_pad] */
    ptrdiff_t grad, bias_grad;            /* where it lies in a lane's gradient */
} layer;

/* A layer of memory. */
typedef struct {
    int kind, n_hidden, n_gate;           /* zoo_cell_kind; H; floats of all gates of a row, G * H */
    layer x, h;                           /* h of minGRU has no part */
} cell;

/* Whether h adds a bias of its own: of a GRU, and of an LSTM with two biases. */
static inline int has_state_bias(const cell *c) { return c->h.n_part && c->h.part[0]->bias; }

/* A trunk, its memory and its heads; the heads are the last of the layers. */
typedef struct {
    int n_layer, activation;              /* n_layer: without the heads */
    int n_cell, n_state;                  /* n_state: floats of a row of the memory's state */
    int is_critic;                        /* it is the critic's own trunk, with the critic's state */
    cell cells[ZOO_MAX_CELL];
    const zoo_trunk *trunk;
    int input;                            /* the first tower that reads the same entries: both have its input */
    int is_index;                         /* it reads one entry, an index, whose row of weights is looked up */
    layer layers[ZOO_MAX_LAYER + 1];
    int n_back;                           /* the first n_back outputs have a gradient that enters the trunk */
} tower;

/* Where an output stands: tower (-1: not computed) and column. */
typedef struct { int tower, column; } place;

typedef struct {
    const zoo_model *model;
    int n_tower, n_logit;                 /* n_logit: P */
    tower towers[MAX_TOWER];
    place policy, std, value, aux;
    int widest;                           /* the largest pad of any layer's output */
    int block_rows, block_sequences;      /* the most rows and sequences that go through the network together */
    ptrdiff_t log_std_grad, grad_size;    /* of a lane's gradient */
    ptrdiff_t packed_size;
} network;

/* What a layer of memory keeps of a block's R rows, n of each step: step t of sequence s is row t * n + s. */
typedef struct {
    float *gate;                          /* [R, n_gate]: the gates, and on the way back the gradients in their sums */
    float *of_h;                          /* [R, n_gate], of a GRU: the part of these sums that comes from h */
    float *h;                             /* [R, H]: its features */
    float *h_in, *c_in;                   /* [R + n, H]: the state before each row, and after the last ones; c of an LSTM */
    float *tanh_c;                        /* [R, H], of an LSTM */
    float *dh, *dc;                       /* [n, H]: gradients in the state before the step that comes next on the way back */
} memory;

/* What one thread needs to take a block of R rows through the network. Columns are [width, BLOCK]. */
typedef struct {
    float *x[MAX_TOWER];                  /* [R, in_pad] of each input */
    int32_t *one_hot[MAX_TOWER];          /* [R] of each input */
    float *y[MAX_TOWER][ZOO_MAX_LAYER + 1];        /* [R, out_pad] of each layer */
    memory memories[MAX_TOWER][ZOO_MAX_CELL];
    float *keep;                          /* [R + n]: 0 where the state is reset before the row, else 1 */
    float *d[2];                          /* [R, widest]: gradients in two successive layers */
    float *d_out[MAX_TOWER];              /* [R, out_pad]: gradients in the heads' outputs */
    int piece;                            /* the first of the block's rows that are in the columns below */
    float *logit_new, *logit_old, *extra; /* [P] columns each */
    float *action;                        /* [D] columns, Gaussian */
    int32_t *choice;                      /* [K] columns, categorical */
    float *weight, *adv, *value, *value_old, *return_, *aux_value;   /* [BLOCK] */
} scratch;

enum { SUM_POLICY, SUM_ENTROPY, SUM_LOG_RATIO, SUM_OUTSIDE, SUM_K3, SUM_VALUE, SUM_KL, SUM_AUX, SUM_WEIGHT,
       SUM_VALUE_OUTSIDE, SUM_VALUE_WEIGHT, MAX_RATIO, N_SUM };

/* One minibatch, as all lanes see it. */
typedef struct {
    const network *net;
    const zoo_step *step;                 /* NULL: outputs alone, into the next two */
    float *logit, *value;                 /* [n_row, P], [n_row]; or NULL */
    const zoo_batch *batch;
    const int64_t *index;                 /* of its rows or sequences */
    int64_t n_entry, n_row;               /* rows or sequences; rows */
    int64_t block_entries, block_rows;    /* of each block but the last, which may have less */
    const int64_t *rows, *seen;           /* [n_row], block by block: rows of the batch's columns, and of its obs and mask */
    const int64_t *burned;                /* [n_entry * n_burn], block by block: rows of the burn-in */
    const float *adv;                     /* [n_row], normalised; NULL: gathered from the batch */
    int n_lane;
    float *lane_grad[MAX_LANE];
    double sums[MAX_LANE][N_SUM];
} minibatch;

/* States of a step, [n_row, n_state] for each tower; NULL where one has no memory. */
typedef struct {
    const float *before[MAX_TOWER];
    float *after[MAX_TOWER][2];           /* two copies, or NULL; the first may be `before` */
} states;

/* The functions that exist once for each level. */
typedef struct {
    int width;                            /* floats in a vector */
    void (*pack)(network *net);
    void (*lane)(minibatch *mb, int lane, scratch *s);
    void (*reduce)(const minibatch *mb);
    double (*sum_of_squares)(const float *x, int64_t n);
    void (*adam)(const zoo_adam *adam, double scale);
    void (*forward)(const network *net, scratch *s, int64_t first, int n, const void *const *obs,
                    const uint8_t *mask, const states *state, float *logit, float *value, float *aux_value);
    void (*act)(const network *net, scratch *s, int first, int n, const void *const *obs, const uint8_t *mask,
                const states *state, const float *noise, void *action, float *logit, float *value);
    void (*unroll)(cell *c, const memory *m, int n, int n_step, const float *keep);
    void (*unroll_back)(const cell *c, const memory *m, int n, int n_step, const float *keep, const float *d, int from_state);
} kernels;

/* All layers of a tower: those of the trunk, the heads, and x and h of each cell. */
static inline int n_layer_of(const tower *t) { return t->n_layer + 1 + 2 * t->n_cell; }
static inline layer *layer_of(const tower *t, int i) {
    const int k = i - t->n_layer - 1;
    const layer *l = k < 0 ? &t->layers[i] : k % 2 ? &t->cells[k / 2].h : &t->cells[k / 2].x;
    return (layer *)l;
}

/* Whether a tower has a memory. */
static inline int has_memory(const network *net) {
    int n = 0;
    for (int t = 0; t < net->n_tower; t++) n += net->towers[t].n_cell;
    return n > 0;
}

/* plan.c: networks and where their memory lies. */
int32_t plan_network(network *net, const zoo_model *model, int outputs, int stop_value_gradient, int width);
/* A layer of memory alone, without its inputs' weights; returns the floats of its packed weights, or -1 if something does not fit. */
ptrdiff_t plan_unroll(cell *c, const zoo_cell *from, int width);
void place_unroll(cell *c, float *memory);
ptrdiff_t packed_size(const network *net);
ptrdiff_t scratch_size(const network *net);
float *take(float **memory, ptrdiff_t n);
float *place_packed(network *net, float *memory);
float *place_scratch(const network *net, scratch *s, float *memory);

/* crew.c: threads. A round calls task(context, i, thread) once for each i < n_task. */
typedef struct crew crew;
typedef void crew_task(void *context, int64_t i, int thread);
crew *crew_new(int n_thread, crew_task *task, void *context, int64_t n_task);
void crew_free(crew *c);
int crew_size(const crew *c);
void crew_run(crew *c);

/* Denormal numbers count as 0 while zoo computes: some processors take a hundred times as long for them. */
unsigned flush_denormals(void);
void restore_denormals(unsigned mode);

#endif
