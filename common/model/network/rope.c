/* Computes the rotation's frequencies, scaled as transformers scales them (modeling_rope_utils.py):
 *
 *   plain     f_i = 1 / theta^(2i/E)
 *   linear    f_i / factor
 *   llama3    f_i where its wavelength is short against the first context, f_i / factor where it is long, between them
 *             a mixture that is linear in context / wavelength
 *   yarn      a mixture of f_i and f_i / factor along a ramp over i, from the pair that turns beta_fast times within the
 *             first context to the one that turns beta_slow times; and a magnitude of cosines and sines
 *
 * Called by model.c when it makes the rope table. */
#include "common/model/network/rope.h"

#include <math.h>

#include "common/model/network/elementary.h"

static const double TWO_PI = 0x1.921fb54442d18p+2;

/* theta^(2i/E) */
static float wave_of(const struct model_config *c, double theta, int i) {
  const float exponent = (float)(2 * i) / (float)c->head_dim;
  return (float)elementary_pow(theta, (double)exponent);
}

static float llama3_frequency(const struct rope_scaling *r, float plain) {
  const float wavelength = (float)TWO_PI / plain, first = (float)r->original_positions, factor = (float)r->factor;
  const float low = (float)r->low_freq_factor, high = (float)r->high_freq_factor;
  if (wavelength > first / low) return plain / factor;
  if (wavelength < first / high) return plain;
  const float smooth = (first / wavelength - low) / (high - low);
  return (1.0f - smooth) * plain / factor + smooth * plain;
}

/* The pair, as a number, that turns `turns` times within the first context. */
static double yarn_pair(const struct model_config *c, double turns) {
  const double context = c->rope.original_positions;
  return c->head_dim * elementary_log(context / (turns * TWO_PI)) / (2 * elementary_log(c->rope_theta));
}

static float yarn_frequency(const struct model_config *c, int i) {
  const struct rope_scaling *r = &c->rope;
  double low = yarn_pair(c, r->beta_fast), high = yarn_pair(c, r->beta_slow);
  if (r->truncate) {
    low = floor(low);
    high = ceil(high);
  }
  if (low < 0) low = 0;
  if (high > c->head_dim - 1) high = c->head_dim - 1;
  if (low == high) high += 0.001;
  float ramp = ((float)i - (float)low) / (float)(high - low);
  ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
  const float wave = wave_of(c, c->rope_theta, i), keep = 1.0f - ramp;
  return 1.0f / ((float)r->factor * wave) * (1.0f - keep) + 1.0f / wave * keep;
}

void rope_frequencies(float *inverse_frequency, const struct model_config *config) {
  const struct rope_scaling *r = &config->rope;
  for (int i = 0; i < config->head_dim / 2; i++) {
    const float plain = 1.0f / wave_of(config, config->rope_theta, i);
    switch (r->kind) {
      case ROPE_PLAIN: inverse_frequency[i] = plain; break;
      case ROPE_LINEAR: inverse_frequency[i] = plain / (float)r->factor; break;
      case ROPE_LLAMA3: inverse_frequency[i] = llama3_frequency(r, plain); break;
      case ROPE_YARN: inverse_frequency[i] = yarn_frequency(config, i); break;
    }
  }
}

void rope_frequencies_local(float *inverse_frequency, const struct model_config *config) {
  for (int i = 0; i < config->head_dim / 2; i++)
    inverse_frequency[i] = 1.0f / wave_of(config, config->rope_local_theta, i);
}

float rope_magnitude(const struct model_config *config) {
  return config->rope.kind == ROPE_YARN ? (float)config->rope.attention_factor : 1.0f;
}
