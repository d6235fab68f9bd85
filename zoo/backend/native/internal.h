/* Structures that native.c and the kernels of every level share. */
#ifndef ZOO_INTERNAL_H
#define ZOO_INTERNAL_H

#include "zoo_native.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define BLOCK 64        /* rows that go through forward, loss and backward together */
#define MAX_LANE 8      /* independent partial sums of a gradient */
#define MAX_PART 4      /* heads on one trunk */
#define MAX_TOWER 2
#define MAX_LOG_RATIO 88.0f /* a probability ratio beyond e^88 is that number and has no gradient, as in rl_utils/ppo.py */

/* A linear layer, or all heads of a trunk side by side, as the kernels want it. Pads go up to a whole vector. */
typedef struct {
    int n_in, n_out, in_pad, out_pad;
    int n_part;
    const zoo_linear *part[MAX_PART];     /* whose outputs stand one after the other */
    float *forward;                       /* [n_in, out_pad]: the transposed weight */
    float *bias;                          /* [out_pad] */
    const float *backward;                /* [n_out, backward_stride]: the weight */
    float *backward_copy;                 /* NULL where the weight itself will do */
    int backward_stride;
    int transposed;                       /* the gradient is kept as [n_in, out_pad], not [n_out, in_pad] */
    ptrdiff_t grad, bias_grad;            /* where it lies in a lane's gradient */
} layer;

/* A trunk and its heads; the heads are the last layer. */
typedef struct {
    int n_layer, activation;              /* n_layer: without the heads */
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
    int widest;                           /* the largest pad of any layer */
    ptrdiff_t log_std_grad, grad_size;    /* of a lane's gradient */
    ptrdiff_t packed_size;
} network;

/* What one thread needs to take a block of rows through the network. Columns are [width, BLOCK]. */
typedef struct {
    float *x[MAX_TOWER];                  /* [BLOCK, in_pad] of each input */
    int32_t *one_hot[MAX_TOWER];          /* [BLOCK] of each input */
    float *y[MAX_TOWER][ZOO_MAX_LAYER + 1];        /* [BLOCK, out_pad] of each layer */
    float *d[2];                          /* [BLOCK, widest]: gradients in two successive layers */
    float *d_out[MAX_TOWER];              /* [BLOCK, out_pad]: gradients in the heads' outputs */
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
    const zoo_step *step;
    const zoo_batch *batch;
    const int64_t *index;
    int64_t n_row;
    const float *adv;                     /* [n_row], normalised; NULL: gathered from the batch */
    int n_lane;
    float *lane_grad[MAX_LANE];
    double sums[MAX_LANE][N_SUM];
} minibatch;

/* The functions that exist once for each level. */
typedef struct {
    int width;                            /* floats in a vector */
    void (*pack)(network *net);
    void (*lane)(minibatch *mb, int lane, scratch *s);
    void (*reduce)(const minibatch *mb);
    double (*sum_of_squares)(const float *x, int64_t n);
    void (*adam)(const zoo_adam *adam, double scale);
    void (*forward)(const network *net, scratch *s, int64_t first, int n, const void *const *obs,
                    const uint8_t *mask, float *logit, float *value, float *aux_value);
    void (*act)(const network *net, scratch *s, int first, int n, const void *const *obs, const uint8_t *mask,
                const float *noise, void *action, float *logit, float *value);
} kernels;

/* plan.c: networks and where their memory lies. */
int32_t plan_network(network *net, const zoo_model *model, int outputs, int stop_value_gradient, int width);
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
