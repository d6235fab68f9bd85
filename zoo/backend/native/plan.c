/* Plans: which layers a call computes, how they are packed, and where everything lies in memory. */
#include "internal.h"

static int padded(int n, int width) { return (n + width - 1) / width * width; }

static int is_product(const zoo_linear *l, int n_in, int n_out) {
    return l->weight && l->n_in == n_in && l->n_out == n_out && n_out >= 1;
}

static int is_linear(const zoo_linear *l, int n_in, int n_out) { return l->bias && is_product(l, n_in, n_out); }

/* A layer of `n_part` linear layers side by side; is_first: nothing is left of it to send a gradient to; is_index: its
 * input is an index. */
static void plan_layer(network *net, layer *l, const zoo_linear *const *parts, int n_part, int is_first, int is_index,
                       int width) {
    memset(l, 0, sizeof(*l));
    l->n_in = parts[0]->n_in;
    l->n_part = n_part;
    for (int i = 0; i < n_part; i++) {
        l->part[i] = parts[i];
        l->n_out += parts[i]->n_out;
    }
    l->in_pad = padded(l->n_in, width);
    l->out_pad = padded(l->n_out, width);
    l->transposed = is_index || (int64_t)l->n_in * l->out_pad < (int64_t)l->n_out * l->in_pad;
    l->panel = n_part > 1 || is_index ? l->out_pad : PANEL_WIDTH;
    l->grad = net->grad_size;
    net->grad_size += l->transposed ? (ptrdiff_t)l->n_in * l->out_pad : (ptrdiff_t)l->n_out * l->in_pad;
    l->bias_grad = net->grad_size;
    net->grad_size += l->out_pad;
    net->packed_size += (ptrdiff_t)l->n_in * l->out_pad + l->out_pad;
    if (is_first) return;
    if (n_part == 1 && l->n_in == l->in_pad) { /* the weight can be read where it is */
        l->backward = parts[0]->weight;
        l->backward_stride = l->n_in;
    } else {
        l->backward_stride = l->in_pad; /* the copy gets its memory in place_packed */
        net->packed_size += (ptrdiff_t)l->n_out * l->in_pad;
    }
}

/* Chooses the input of a tower; returns its width, or 0 if the trunk names an entry that is not there. */
static int plan_input(network *net, tower *t, const zoo_trunk *trunk) {
    const zoo_model *m = net->model;
    int64_t n = 0;
    if (trunk->n_entry < 1 || trunk->n_entry > ZOO_MAX_ENTRY) return 0;
    for (int i = 0; i < trunk->n_entry; i++) {
        if (trunk->entry[i] < 0 || trunk->entry[i] >= m->n_entry) return 0;
        n += m->entry[trunk->entry[i]].width;
    }
    t->trunk = trunk;
    t->is_index = trunk->n_entry == 1 && m->entry[trunk->entry[0]].kind == ZOO_INDEX;
    t->input = net->n_tower - 1;
    const zoo_trunk *other = net->towers[0].trunk; /* of the first tower, which may be this one */
    if (other->n_entry == trunk->n_entry && !memcmp(other->entry, trunk->entry, sizeof(int32_t) * trunk->n_entry))
        t->input = 0;
    return n > INT32_MAX ? 0 : (int)n;
}

/* Sets kind and sizes of a layer of memory; 0: it is of no kind or size that zoo has. */
static int plan_cell(cell *c, const zoo_cell *from) {
    static const int n_gate[] = {4, 3, 2}; /* of each zoo_cell_kind */
    if (from->kind < ZOO_LSTM || from->kind > ZOO_MINGRU) return 0;
    if (from->n_hidden < 16 || from->n_hidden > INT32_MAX / 8 || from->n_hidden % 16) return 0;
    c->kind = from->kind;
    c->n_hidden = from->n_hidden;
    c->n_gate = n_gate[c->kind] * c->n_hidden;
    if (c->kind == ZOO_LSTM) return is_product(&from->h, c->n_hidden, c->n_gate);
    return c->kind == ZOO_MINGRU || is_linear(&from->h, c->n_hidden, c->n_gate);
}

/* The memory of a tower, behind n_in features; returns the number of its own features, or 0 if something does not fit. */
static int plan_core(network *net, tower *t, const zoo_core *core, int n_in, int width) {
    if (core->n_layer < 0 || core->n_layer > ZOO_MAX_CELL) return 0;
    for (int i = 0; i < core->n_layer; i++) {
        const zoo_cell *from = &core->layer[i];
        cell *c = &t->cells[i];
        const zoo_linear *x = &from->x, *h = &from->h;
        if (!plan_cell(c, from) || !is_linear(x, n_in, c->n_gate)) return 0;
        plan_layer(net, &c->x, &x, 1, 0, 0, width);
        if (c->kind != ZOO_MINGRU) plan_layer(net, &c->h, &h, 1, 0, 0, width);
        if (c->n_hidden > net->widest) net->widest = c->n_hidden;
        t->n_state += c->n_hidden * (c->kind == ZOO_LSTM ? 2 : 1);
        t->n_cell++;
        n_in = c->n_hidden;
    }
    return n_in;
}

static int plan_tower(network *net, const zoo_trunk *trunk, const zoo_core *core, const zoo_linear *const *heads, int n_head,
                      int width) {
    tower *t = &net->towers[net->n_tower++];
    if (trunk->n_layer < 1 || trunk->n_layer > ZOO_MAX_LAYER) return 0;
    if (trunk->activation != ZOO_TANH && trunk->activation != ZOO_RELU) return 0;
    t->n_layer = trunk->n_layer;
    t->activation = trunk->activation;
    int n_in = plan_input(net, t, trunk);
    if (!n_in) return 0;
    for (int i = 0; i < trunk->n_layer; i++) {
        const zoo_linear *l = &trunk->layer[i];
        if (!is_linear(l, n_in, l->n_out)) return 0;
        plan_layer(net, &t->layers[i], &l, 1, i == 0, i == 0 && t->is_index, width);
        n_in = l->n_out;
    }
    n_in = plan_core(net, t, core, n_in, width);
    if (!n_in) return 0;
    for (int i = 0; i < n_head; i++)
        if (!is_linear(heads[i], n_in, heads[i]->n_out)) return 0;
    plan_layer(net, &t->layers[t->n_layer], heads, n_head, 0, 0, width);
    t->n_back = t->layers[t->n_layer].n_out;
    for (int i = 0; i <= t->n_layer; i++)
        if (t->layers[i].out_pad > net->widest) net->widest = t->layers[i].out_pad;
    return 1;
}

/* Whether every choice has an option and together they have n_action. */
static int is_split(const zoo_model *m) {
    int64_t sum = 0;
    for (int i = 0; m->nvec && i < m->n_choice; i++) {
        if (m->nvec[i] < 1) return 0;
        sum += m->nvec[i];
    }
    return sum == m->n_action;
}

static int is_model(const zoo_model *m, int outputs) {
    if (m->n_entry < 1 || m->n_entry > ZOO_MAX_ENTRY || m->n_action < 1) return 0;
    for (int i = 0; i < m->n_entry; i++) {
        const zoo_entry *e = &m->entry[i];
        if (e->width < 1 || e->kind < ZOO_FLOAT || e->kind > ZOO_BOOL) return 0;
        if (e->kind == ZOO_NORMALIZED && !(e->shift && e->scale)) return 0;
    }
    if ((outputs & ZOO_OUT_VALUE) && m->value_head.n_out != 1) return 0;
    if ((outputs & ZOO_OUT_AUX) && m->aux_head.n_out != 1) return 0;
    if (!(outputs & ZOO_OUT_LOGIT)) return 1;
    if (m->policy_head.n_out != m->n_action) return 0;
    if (m->distribution == ZOO_CATEGORICAL) return m->std == ZOO_STD_NONE && is_split(m);
    if (m->distribution != ZOO_GAUSSIAN) return 0;
    return m->std == ZOO_STD_FREE ? m->log_std != NULL : m->std == ZOO_STD_LAYER && m->std_head.n_out == m->n_action;
}

/* The towers that compute `outputs` (bits of zoo_output), for vectors of `width` floats. */
int32_t plan_network(network *net, const zoo_model *model, int outputs, int stop_value_gradient, int width) {
    const zoo_linear *heads[MAX_PART];
    const place nowhere = {-1, 0};
    int n = 0, column = 0;
    memset(net, 0, sizeof(*net));
    net->model = model;
    net->block_rows = net->block_sequences = BLOCK;
    net->policy = net->std = net->value = net->aux = nowhere;
    if (!outputs || !is_model(model, outputs)) return ZOO_BAD_MODEL;
    net->n_logit = model->distribution == ZOO_GAUSSIAN ? 2 * model->n_action : model->n_action;
    if (outputs & ZOO_OUT_LOGIT) {
        heads[n++] = &model->policy_head;
        net->policy = (place){0, column};
        column += model->n_action;
        if (model->std == ZOO_STD_LAYER) {
            heads[n++] = &model->std_head;
            net->std = (place){0, column};
            column += model->n_action;
        }
    }
    if (outputs & ZOO_OUT_AUX) {
        heads[n++] = &model->aux_head;
        net->aux = (place){0, column++};
    }
    const int value_on_actor = (outputs & ZOO_OUT_VALUE) && model->shared;
    if (value_on_actor) { /* last, so that a gradient that stops is the last row of the weights */
        heads[n++] = &model->value_head;
        net->value = (place){0, column};
    }
    if (n && !plan_tower(net, &model->actor, &model->actor_core, heads, n, width)) return ZOO_BAD_MODEL;
    if (value_on_actor && stop_value_gradient) net->towers[0].n_back--;
    if ((outputs & ZOO_OUT_VALUE) && !model->shared) {
        net->value = (place){net->n_tower, 0};
        heads[0] = &model->value_head;
        if (!plan_tower(net, &model->critic, &model->critic_core, heads, 1, width)) return ZOO_BAD_MODEL;
        net->towers[net->value.tower].is_critic = 1;
    }
    net->log_std_grad = net->grad_size;
    net->grad_size += padded(model->n_action, width);
    return ZOO_OK;
}

/* The address sanitizer sees one allocation: it is told of gaps between the arrays in it. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define GAP 16
#else
#define GAP 0
#define ASAN_POISON_MEMORY_REGION(from, n)
#endif

/* The next n floats of memory, which moves on to the next cache line behind them. */
float *take(float **memory, ptrdiff_t n) {
    float *p = *memory;
    *memory += (n + 15) / 16 * 16 + GAP;
    ASAN_POISON_MEMORY_REGION(p + n, sizeof(float) * (size_t)(*memory - p - n));
    return p;
}

ptrdiff_t plan_unroll(cell *c, const zoo_cell *from, int width) {
    network net = {0};
    const zoo_linear *h = &from->h;
    memset(c, 0, sizeof(*c));
    if (!plan_cell(c, from)) return -1;
    if (c->kind != ZOO_MINGRU) plan_layer(&net, &c->h, &h, 1, 0, 0, width);
    return net.packed_size + 2 * (16 + GAP);
}

void place_unroll(cell *c, float *memory) {
    if (c->kind == ZOO_MINGRU) return;
    c->h.forward = take(&memory, (ptrdiff_t)c->h.n_in * c->h.out_pad);
    c->h.bias = take(&memory, c->h.out_pad);
}

float *place_packed(network *net, float *memory) {
    for (int t = 0; t < net->n_tower; t++)
        for (int i = 0; i < n_layer_of(&net->towers[t]); i++) {
            layer *l = layer_of(&net->towers[t], i);
            l->forward = take(&memory, (ptrdiff_t)l->n_in * l->out_pad);
            l->bias = take(&memory, l->out_pad);
            if (l->backward_stride && !l->backward) l->backward = l->backward_copy = take(&memory, (ptrdiff_t)l->n_out * l->in_pad);
        }
    return memory;
}

/* What a layer of memory keeps of a block. */
static void place_memory(const network *net, const cell *c, memory *m, float **from) {
    const ptrdiff_t n = net->block_rows, more = n + net->block_sequences, width = c->n_hidden;
    const int is_lstm = c->kind == ZOO_LSTM;
    m->gate = take(from, n * c->n_gate);
    m->of_h = take(from, c->kind == ZOO_GRU ? n * c->n_gate : 0);
    m->h = take(from, n * width);
    m->h_in = take(from, more * width);
    m->c_in = take(from, is_lstm ? more * width : 0);
    m->tanh_c = take(from, is_lstm ? n * width : 0);
    m->dh = take(from, net->block_sequences * width);
    m->dc = take(from, net->block_sequences * width);
}

float *place_scratch(const network *net, scratch *s, float *memory) {
    const ptrdiff_t logits = (ptrdiff_t)net->n_logit * BLOCK, n = net->block_rows;
    s->piece = 0;
    for (int t = 0; t < net->n_tower; t++) {
        const tower *w = &net->towers[t];
        if (w->input == t) {
            s->x[t] = take(&memory, n * (w->is_index ? 0 : w->layers[0].in_pad));
            s->one_hot[t] = (int32_t *)take(&memory, n);
        }
        for (int i = 0; i <= w->n_layer; i++) s->y[t][i] = take(&memory, n * w->layers[i].out_pad);
        for (int i = 0; i < w->n_cell; i++) place_memory(net, &w->cells[i], &s->memories[t][i], &memory);
        s->d_out[t] = take(&memory, n * w->layers[w->n_layer].out_pad);
    }
    s->keep = take(&memory, n + net->block_sequences);
    for (int i = 0; i < 2; i++) s->d[i] = take(&memory, n * net->widest);
    s->logit_new = take(&memory, logits);
    s->logit_old = take(&memory, logits);
    s->extra = take(&memory, logits);
    s->action = take(&memory, (ptrdiff_t)net->model->n_action * BLOCK);
    s->choice = (int32_t *)take(&memory, (ptrdiff_t)net->model->n_choice * BLOCK);
    float **columns[] = {&s->weight, &s->adv, &s->value, &s->value_old, &s->return_, &s->aux_value};
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) *columns[i] = take(&memory, BLOCK);
    return memory;
}

/* Floats that place_packed takes, or more. */
ptrdiff_t packed_size(const network *net) {
    return net->packed_size + MAX_TOWER * 3 * (ZOO_MAX_LAYER + 1 + 2 * ZOO_MAX_CELL) * 32;
}

/* Floats that place_scratch takes, or more; whole cache lines, so that what follows is on one too. */
ptrdiff_t scratch_size(const network *net) {
    const ptrdiff_t rows = net->block_rows, more = rows + net->block_sequences;
    ptrdiff_t n = rows * 2 * net->widest + more;
    for (int t = 0; t < net->n_tower; t++) {
        const tower *w = &net->towers[t];
        n += rows * (w->layers[0].in_pad + 1);
        for (int i = 0; i <= w->n_layer; i++) n += rows * 2 * w->layers[i].out_pad;
        for (int i = 0; i < w->n_cell; i++)
            n += rows * 2 * (w->cells[i].n_gate + w->cells[i].n_hidden) + more * 4 * w->cells[i].n_hidden;
    }
    n += (ptrdiff_t)BLOCK * (3 * net->n_logit + net->model->n_action + net->model->n_choice + 8) + 96 * 32;
    return (n + 15) / 16 * 16;
}
