// Gradients of attention. Probabilities are made anew from the log-sum-exp of each query's scores. First come the rows
// of the queries, each with its sum over the keys, then those of the keys, each with its sums over the queries.
// Generated: T, S, Number, NUMBER(v), STORE_NUMBER(v), EXP, FMA, INFINITE.
#include "attention.cuh"

// What one batch element's slopes are made of.
struct Slopes {
  Heads of;
  const T *y, *dy;
  const S* lse;
};

__device__ __forceinline__ Number chance(const Slopes& of, const Parameters& args, Index i, Index j) {
  const S lse = of.lse[(Offset)i * STRIDE(lse, 0)];
  const Number near = (Number)lse;
  if (args.guarded && near == -INFINITE) return 0;
  const Number about = EXP(score(of.of, args, i, j) - near);
  return (S)near == lse ? about : about * EXP((Number)((S)near - lse));
}

// Returns the sum over w of dy[i, w] · y[i, w], which a query's slopes have in common.
__device__ __forceinline__ Number shared_slope(const Slopes& of, const Parameters& args, Index i) {
  return dot(ROW_OF(dy, of.dy, i), ROW_OF(y, of.y, i), WIDTH);
}

// Returns the gradient of score (i, j), times the scale.
__device__ __forceinline__ Number slope(const Slopes& of, const Parameters& args, Index i, Index j, Number common) {
  const Number own = dot(ROW_OF(dy, of.dy, i), ROW_OF(v, of.of.v, j), WIDTH);
  return (Number)args.scale * chance(of, args, i, j) * (own - common);
}

UMD_SIGNATURE {
  __shared__ Number shares[MOST_INVOCATIONS];
  Number* const own = shares + threadIdx.y * blockDim.x;
  const Index batches = BATCHES, queries = batches * QUERIES, rows = queries + batches * KEYS;
  for (Index n = ROWS_FIRST; n < rows; n += ROWS_STEP) {
    const bool is_query = n < queries;
    const Index count = is_query ? QUERIES : KEYS, left = is_query ? n : n - queries;
    const Index z = left / count, row = left - z * count;
    const Slopes of = {HEADS(z), BATCH_START(y, z), BATCH_START(dy, z), BATCH_START(lse, z)};
    if (is_query) {
      const Number common = shared_slope(of, args, row);
      const auto weight = [&](Index j) { return slope(of, args, row, j, common); };
      SUM_WEIGHTED(own, KEYS_OF(row), DEPTH, weight, of.of.k, STRIDE(k, 0), STRIDE(k, 1),
                   BATCH_START(dq, z) + (Offset)row * STRIDE(dq, 0), STRIDE(dq, 1));
      continue;
    }
    const Range seeing = QUERIES_OF(row);
    const auto weight = [&](Index i) { return slope(of, args, i, row, shared_slope(of, args, i)); };
    SUM_WEIGHTED(own, seeing, DEPTH, weight, of.of.q, STRIDE(q, 0), STRIDE(q, 1),
                 BATCH_START(dk, z) + (Offset)row * STRIDE(dk, 0), STRIDE(dk, 1));
    const auto share = [&](Index i) { return chance(of, args, i, row); };
    SUM_WEIGHTED(own, seeing, WIDTH, share, of.dy, STRIDE(dy, 0), STRIDE(dy, 1),
                 BATCH_START(dv, z) + (Offset)row * STRIDE(dv, 0), STRIDE(dv, 1));
  }
}
