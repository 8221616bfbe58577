/* Computes a token's log-probability, its gradient, and the sampler's draw from a row of logits; and cuts a row first,
 * where a run draws from a part of the vocabulary only.
 *
 * All use the same z = logits / temperature, the same maximum and the same sums in blocks of 256 vocabulary
 * entries (NUMERICS.md, "Vocabulary"), so the sampled token's log-probability equals the trainer's, bit for bit. */
#include <assert.h>

#include "common/model/cpu/isa/elementary.h"

enum { BLOCK = 256, BLOCKS_MAX = 1 << 16 };

/* z of the next VL of n entries; the rest are `rest`. */
INLINE vf load_z(const float *logits, int n, float temperature, float rest) {
  if (n >= VL) return temperature == 1.0f ? vload(logits) : vload(logits) / temperature;
  float z[VL];
  for (int i = 0; i < VL; i++) z[i] = i >= n ? rest : temperature == 1.0f ? logits[i] : logits[i] / temperature;
  return vload(z);
}

static float max_row(const float *logits, float temperature, int V) {
  struct f16 top;
  for (int p = 0; p < PARTS; p++) top.v[p] = vset(-HUGE_VALF);
  for (int v = 0; v < V; v += 16)
    for (int p = 0; p < PARTS; p++)
      top.v[p] = vmax(load_z(logits + v + p * VL, V - v - p * VL, temperature, -HUGE_VALF), top.v[p]);
  return max16(top);
}

/* x in the first n lanes, 0 in the others. */
INLINE vf first_lanes(vf x, int n) {
  vi lane;
  for (int i = 0; i < VL; i++) lane[i] = i;
  return vselect(lane < n, x, (vf){0});
}

/* SUM of p = exp(z - max) over a block of n entries, and of p * z; p may be kept, zero padded to 16. */
INLINE float block_sum(const float *logits, int n, float temperature, float max, float *weighted, float *kept) {
  struct f16 sum = {{{0}}}, products = {{{0}}};
  for (int i = 0; i < n; i += 16)
    for (int part = 0; part < PARTS; part++) {
      const int at = i + part * VL, left = n - at;
      const vf z = load_z(logits + at, left, temperature, 0.0f);
      vf p = vexp(z - max);
      if (left < VL) p = first_lanes(p, left);
      sum.v[part] = sum.v[part] + p;
      if (kept) vstore(kept + at, p);
      if (weighted) products.v[part] = products.v[part] + vselect(p == 0.0f, (vf){0}, p * z); /* z may be -infinity */
    }
  if (weighted) *weighted = tree16(products);
  return tree16(sum);
}

void ISA_NAME(logprob)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct logprob_args *c = args;
  (void)scratch;
  for (size_t t = begin; t < end; t++) {
    const float *logits = c->logits + t * (size_t)c->V;
    if (c->target[t] < 0) {
      c->logprob[t] = c->lse[t] = 0.0f;
      if (c->entropy) c->entropy[t] = 0.0f;
      continue;
    }
    float max = max_row(logits, c->temperature, c->V), sum = 0.0f, weighted = 0.0f, part = 0.0f;
    for (int v = 0; v < c->V; v += BLOCK) {
      int n = c->V - v < BLOCK ? c->V - v : BLOCK;
      sum = sum + block_sum(logits + v, n, c->temperature, max, c->entropy ? &part : NULL, NULL);
      weighted = weighted + part;
    }
    float lse = max + log_one(sum), target = logits[c->target[t]];
    if (c->temperature != 1.0f) target = target / c->temperature;
    c->lse[t] = lse;
    c->logprob[t] = target - lse;
    if (c->entropy) c->entropy[t] = lse - weighted / sum;
  }
}

void ISA_NAME(logprob_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct logprob_backward_args *c = args;
  const bool f32 = c->format == FORMAT_F32, plain = c->temperature == 1.0f;
  const size_t V = (size_t)c->V, operand_bytes = f32 ? 4 : 2;
  (void)scratch;
  for (size_t t = begin; t < end; t++) {
    const float *logits = c->logits + t * V, d = c->dlogprob[t], lse = c->lse[t];
    const float e = c->dentropy ? c->dentropy[t] : 0.0f;
    if (c->target[t] < 0) {
      memset((char *)c->dlogits + t * V * operand_bytes, 0, V * operand_bytes);
      continue;
    }
    const size_t hot = (size_t)c->target[t];
    for (size_t v = 0; v < V; v += VL) {
      const int n = V - v < VL ? (int)(V - v) : VL;
      vf z = load_some(logits + v, n);
      if (!plain) z = z / c->temperature;
      vf p = vexp(z - lse), x = d * (0.0f - p);
      if (v <= hot && hot < v + VL) x[hot - v] = d * (1.0f - p[hot - v]);
      if (e != 0.0f) x = x - e * (p * ((z - lse) + c->entropy[t]));
      if (!plain) x = x / c->temperature;
      store_some_operands(c->dlogits, t * V + v, x, n, f32);
    }
  }
}

/* --- cuts --- */

enum {
  CUT_LEVELS = 3, /* 11, 11 and 10 bits of an entry's key */
  CUT_BINS = 1 << 11,
  CUT_LISTED = 1 << 14 /* entries that are looked at alone, where these are enough */
};
/* Entries are listed whose z is at most this far below the largest: at first, and where there is no room for so
 * many. */
#define CUT_REACH     12.0f
#define CUT_REACH_MIN 1.5f

/* Entries by one level of their keys. */
struct cut_bins {
  int64_t weight[CUT_BINS]; /* sum of p in units of 2^-40 */
  int32_t count[CUT_BINS];
};

struct cut_entry {
  uint32_t key;
  int32_t at;
  float logit, p;
};

/* What the order of a row is made of; weighted: the bins' weights are wanted. */
struct cut_row {
  const float *logits;
  float temperature, max;
  int V;
  bool weighted;
  const struct cut_entry *list; /* [listed] the beginning of the order, by index; NULL: the whole row is looked at */
  int listed;
};

/* The beginning of the order that is kept: every entry of a larger key, and the first `equals` of those of this key. */
struct beginning {
  uint32_t key;
  int64_t equals;
  int64_t weight; /* of all these, where the row is weighted */
};

struct cut_scratch {
  struct cut_bins bins;
  struct cut_entry list[CUT_LISTED];
};

INLINE float z_one(float logit, float temperature) { return temperature == 1.0f ? logit : logit / temperature; }

/* Larger for what comes first; equal for equal z. */
INLINE uint32_t order_key(float logit, float temperature) {
  const float z = z_one(logit, temperature) + 0.0f; /* -0 is 0 */
  uint32_t bits;
  if (z != z) return UINT32_MAX;
  memcpy(&bits, &z, sizeof bits);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

INLINE int64_t cut_weight(float p) { return p > 0.0f ? (int64_t)(p * 0x1p40f) : 0; }

/* Lists what lies within reach of the largest; returns how much that is, more than CUT_LISTED where there is no
 * room. */
static int list_entries(struct cut_entry *list, const struct cut_row *r, float reach) {
  const float least = r->max - reach;
  int n = 0;
  for (int v = 0; v < r->V; v++) {
    if (z_one(r->logits[v], r->temperature) < least) continue; /* a NaN is listed */
    if (n == CUT_LISTED) return CUT_LISTED + 1;
    list[n++].at = v;
  }
  for (int i = 0; i < n; i++) {
    const float logit = r->logits[list[i].at], z = z_one(logit, r->temperature);
    list[i] = (struct cut_entry){order_key(logit, r->temperature), list[i].at, logit, exp_one(z - r->max)};
  }
  return n;
}

static int64_t listed_weight(const struct cut_row *r) {
  int64_t sum = 0;
  for (int i = 0; i < r->listed; i++) sum += cut_weight(r->list[i].p);
  return sum;
}

static int64_t whole_weight(const struct cut_row *r) {
  float p[BLOCK];
  int64_t sum = 0;
  for (int at = 0; at < r->V; at += BLOCK) {
    const int n = r->V - at < BLOCK ? r->V - at : BLOCK;
    block_sum(r->logits + at, n, r->temperature, r->max, NULL, p);
    for (int i = 0; i < n; i++) sum += cut_weight(p[i]);
  }
  return sum;
}

/* Entries whose key begins with `prefix`, by the `bits` bits behind it, of which `shift` follow. */
static void fill_bins(struct cut_bins *bins, const struct cut_row *r, uint32_t prefix, int bits, int shift) {
  const int n = r->list ? r->listed : r->V;
  memset(bins, 0, sizeof *bins);
  for (int i = 0; i < n; i++) {
    const uint32_t key = r->list ? r->list[i].key : order_key(r->logits[i], r->temperature);
    if (bits + shift < 32 && key >> (bits + shift) != prefix) continue;
    const uint32_t bin = key >> shift & ((1u << bits) - 1);
    bins->count[bin]++;
    if (!r->weighted) continue;
    bins->weight[bin] +=
        cut_weight(r->list ? r->list[i].p : exp_one(z_one(r->logits[i], r->temperature) - r->max));
  }
}

/* The shortest beginning with `goal` entries, or of the weight `goal`; so much there is. */
static struct beginning find_beginning(const struct cut_row *r, bool by_weight, int64_t goal, struct cut_bins *bins) {
  static const int BITS[CUT_LEVELS] = {11, 11, 10}, SHIFT[CUT_LEVELS] = {21, 10, 0};
  struct beginning b = {0};
  int64_t sum = 0, weight = 0; /* of what certainly belongs to it */
  uint32_t bin = 0;
  for (int level = 0; level < CUT_LEVELS; level++) {
    fill_bins(bins, r, b.key, BITS[level], SHIFT[level]);
    for (bin = (1u << BITS[level]) - 1;; bin--) {
      const int64_t more = by_weight ? bins->weight[bin] : bins->count[bin];
      if (sum + more >= goal) break;
      assert(bin > 0);
      sum += more;
      weight += bins->weight[bin];
    }
    b.key = b.key << BITS[level] | bin;
  }
  const int64_t each = bins->weight[bin] / bins->count[bin]; /* equal z, equal p */
  b.equals = by_weight ? (goal - sum + each - 1) / each : goal - sum;
  b.weight = weight + b.equals * each;
  return b;
}

INLINE bool is_kept(struct beginning *b, uint32_t key) { return key > b->key || (key == b->key && b->equals-- > 0); }

/* Leaves out what is not of the beginning, or has p below min_p. */
static void leave_out(float *logits, const struct cut_row *r, struct beginning b, float min_p) {
  float p[BLOCK];
  for (int at = 0; at < r->V; at += BLOCK) {
    const int n = r->V - at < BLOCK ? r->V - at : BLOCK;
    if (min_p > 0.0f) block_sum(logits + at, n, r->temperature, r->max, NULL, p);
    for (int i = 0; i < n; i++)
      if (!is_kept(&b, order_key(logits[at + i], r->temperature)) || (min_p > 0.0f && p[i] < min_p))
        logits[at + i] = -HUGE_VALF;
  }
}

/* The same where the beginning is listed. */
static void leave_unlisted_out(float *logits, const struct cut_row *r, struct beginning b, float min_p) {
  for (int v = 0; v < r->V; v++) logits[v] = -HUGE_VALF;
  for (int i = 0; i < r->listed; i++)
    if (is_kept(&b, r->list[i].key) && !(r->list[i].p < min_p)) logits[r->list[i].at] = r->list[i].logit;
}

static void cut_row(float *logits, const struct sampling_params *cut, int V, struct cut_scratch *s) {
  const bool by_count = cut->top_k > 0 && cut->top_k < V, by_mass = cut->top_p > 0.0f && cut->top_p < 1.0f;
  struct cut_row r = {.logits = logits, .temperature = cut->temperature, .V = V, .weighted = by_mass};
  struct beginning b = {.equals = V}; /* key 0: all of them */
  r.max = max_row(logits, cut->temperature, V);
  if (!(r.max - r.max == 0.0f)) return; /* no distribution */
  r.listed = CUT_LISTED + 1;
  for (float reach = CUT_REACH; (by_count || by_mass) && r.listed > CUT_LISTED && reach >= CUT_REACH_MIN; reach *= 0.5f)
    r.listed = list_entries(s->list, &r, reach);
  if (by_count) {
    r.list = r.listed <= CUT_LISTED && r.listed >= cut->top_k ? s->list : NULL;
    b = find_beginning(&r, false, cut->top_k, &s->bins);
  }
  if (by_mass) {
    if (!by_count) b.weight = whole_weight(&r);
    const int64_t need = (int64_t)((double)cut->top_p * (double)b.weight);
    r.list = r.listed <= CUT_LISTED ? s->list : NULL;
    if (r.list && listed_weight(&r) < need) r.list = NULL;
    b = find_beginning(&r, true, need > 0 ? need : 1, &s->bins);
  }
  if (r.list)
    leave_unlisted_out(logits, &r, b, cut->min_p);
  else
    leave_out(logits, &r, b, cut->min_p);
}

void ISA_NAME(cut)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct cut_args *c = args;
  for (size_t t = begin; t < end; t++) cut_row(c->logits + t * (size_t)c->V, c->cut, c->V, scratch);
}

_Static_assert(sizeof(struct cut_scratch) <= CPU_SCRATCH_BYTES, "the cut's scratch");

/* --- draws --- */

/* The lowest index among equals; 0 when that is not a number. */
static int32_t argmax(const float *logits, int V) {
  int block = 0;
  float best = -HUGE_VALF;
  if (logits[0] != logits[0]) return 0;
  for (int v = 0; v < V; v += BLOCK) {
    const float most = max_row(logits + v, 1.0f, V - v < BLOCK ? V - v : BLOCK);
    if (most <= best) continue;
    best = most;
    block = v;
  }
  while (logits[block] != best) block++;
  return block;
}

/* The first entry of the block whose running sum exceeds the threshold, else the block's last with p > 0. */
static int32_t walk_block(const float *p, int n, float running, float threshold) {
  int last = 0;
  for (int i = 0; i < n; i++) {
    running = running + p[i];
    if (running > threshold) return i;
    if (p[i] > 0.0f) last = i;
  }
  return last;
}

/* exp(z - max) of a row, summed by blocks: the common part of a draw and its log-probability. */
struct row_sums {
  const float *logits;
  float temperature, max, total;
  float *blocks; /* [ceil(V / BLOCK)] */
};

static void sum_row(struct row_sums *r, const float *logits, float temperature, int V) {
  r->logits = logits;
  r->temperature = temperature;
  r->max = max_row(logits, temperature, V);
  r->total = 0.0f;
  for (int b = 0; b * BLOCK < V; b++) {
    const int at = b * BLOCK, n = V - at < BLOCK ? V - at : BLOCK;
    r->blocks[b] = block_sum(logits + at, n, temperature, r->max, NULL, NULL);
    r->total = r->total + r->blocks[b];
  }
}

static int32_t draw_token(const struct row_sums *r, float u, int V) {
  const int blocks = (V + BLOCK - 1) / BLOCK;
  const float threshold = u * r->total;
  float running = 0.0f, before = 0.0f, p[BLOCK];
  int chosen = 0;
  for (int b = 0; b < blocks; b++) {
    if (r->blocks[b] > 0.0f) {
      chosen = b;
      before = running;
    }
    if (running + r->blocks[b] > threshold) break;
    running = running + r->blocks[b];
  }
  const int at = chosen * BLOCK, n = V - at < BLOCK ? V - at : BLOCK;
  block_sum(r->logits + at, n, r->temperature, r->max, NULL, p);
  return at + walk_block(p, n, before, threshold);
}

void ISA_NAME(sample)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct sample_args *c = args;
  struct row_sums sums = {.blocks = scratch};
  assert(c->V <= BLOCKS_MAX * BLOCK);
  for (size_t i = begin; i < end; i++) {
    struct draw *d = &c->draws[i];
    const bool greedy = !(d->temperature > 0.0f);
    const float temperature = greedy ? 1.0f : d->temperature;
    const float *logits = c->logits + (size_t)d->row * (size_t)c->V;
    if (sums.logits != logits || sums.temperature != temperature) sum_row(&sums, logits, temperature, c->V);
    d->token = greedy ? argmax(logits, c->V) : draw_token(&sums, d->u, c->V);
    const float z = temperature == 1.0f ? logits[d->token] : logits[d->token] / temperature;
    d->logprob = z - (sums.max + log_one(sums.total));
  }
}

_Static_assert(BLOCKS_MAX * sizeof(float) <= CPU_SCRATCH_BYTES, "the sampler's scratch");
