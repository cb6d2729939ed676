// Random numbers: an invocation computes a counter's words, and from them the elements that the counter serves.
// Generated: T, Number, NUMBER(v), STORE_NUMBER(v), one of UNIFORM, NORMAL, BERNOULLI, INTEGER; for the first three LOG,
// SQRT, COS, SIN, WIDE_WORDS (fractions of 64 bits rather than 32) and DIGITS, the bits that a fraction keeps.
#include "philox.cuh"
#ifdef INTEGER
#define PER_COUNTER 2
#else
#define PER_COUNTER (WIDE_WORDS ? 2 : 4)
#endif

__device__ __forceinline__ unsigned long long pair(const Words& words, int at) {
  return words.w[2 * at] | (unsigned long long)words.w[2 * at + 1] << 32;
}

#ifndef INTEGER
// Returns a fraction in [0, 1), exactly.
__device__ __forceinline__ Number unit(const Words& words, int at) {
#if WIDE_WORDS
  return (Number)(pair(words, at) >> (64 - DIGITS)) * ((Number)1 / (1ull << DIGITS));
#else
  return (Number)(words.w[at] >> (32 - DIGITS)) * ((Number)1 / (1u << DIGITS));
#endif
}
#endif

#ifdef NORMAL
// Box-Muller: of two fractions, the cosine's number for even places and the sine's for odd ones.
__device__ __forceinline__ Number normal(const Words& words, int at) {
  const Number radius = SQRT((Number)-2 * LOG(1 - unit(words, at & ~1)));
  const Number angle = (Number)6.283185307179586 * unit(words, at | 1);
  return radius * (at & 1 ? SIN(angle) : COS(angle));
}
#endif

UMD_SIGNATURE {
  const unsigned long long key = (unsigned long long)seed[args.seed_offset];
  const unsigned long long stream = (unsigned long long)offset[args.offset_offset];
#ifdef INTEGER
  const unsigned long long first = (unsigned long long)low[args.low_offset];
  const unsigned long long span = (unsigned long long)high[args.high_offset] - first;
#endif
  const Index count = product(args.extents, RANK);
  const Index counters = count / PER_COUNTER + (count % PER_COUNTER != 0);
  for (Index counter = INVOCATION; counter < counters; counter += INVOCATIONS) {
    const Words words = philox(counter, stream, key);
#pragma unroll
    for (int at = 0; at < PER_COUNTER; ++at) {
      const Index i = counter * PER_COUNTER + at;
      if (i >= count) break;
      const Offset to = (Offset)args.out_offset + place(i, args.extents, args.out_strides, RANK);
#if defined(UNIFORM)
      out[to] = STORE_NUMBER(unit(words, at));
#elif defined(NORMAL)
      out[to] = STORE_NUMBER(normal(words, at));
#elif defined(BERNOULLI)
      out[to] = unit(words, at) < NUMBER(p[(Offset)args.p_offset + place(i, args.extents, args.p_strides, RANK)]);
#else
      out[to] = (T)(first + (span == 0 ? pair(words, at) : pair(words, at) % span));
#endif
    }
  }
}
