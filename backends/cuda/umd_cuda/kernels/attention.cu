// Attention: softmax(scale · q · kᵀ + bias) · v, and the log-sum-exp of each query's scores. A first walk over the keys
// finds the largest score and the sum of exponentials together, a second one adds up the values.
// Generated: T, S, Number, NUMBER(v), STORE_NUMBER(v), EXP, FMA, INFINITE.
#include "attention.cuh"
#define LARGER(a, b) ((a) != (a) || (a) > (b) ? (a) : (b))
#define SUM(a, b) ((a) + (b))
__device__ inline Number larger(Number a, Number b) { return LARGER(a, b); }
DEFINE_ROW_REDUCTION(max_row, Number, larger)
DEFINE_ROW_REDUCTION(sum_row, Number, SUM)

struct Exponentials {
  Number most, total;  // the largest score, and the sum of exp(score - most)
};

__device__ __forceinline__ Exponentials exponentials(const Heads& of, const Parameters& args, Index i, Range keys,
                                                     Number* partial) {
  Number most = -INFINITE, total = 0;
  for (Index j = keys.first + threadIdx.x; j < keys.end; j += blockDim.x) {
    const Number s = score(of, args, i, j);
    if (s == -INFINITE) continue;
    const Number next = larger(most, s);
    total = FMA(total, EXP(most - next), EXP(s - next));
    most = next;
  }
  const Number all = max_row(most, partial);
  return {all, sum_row(most == -INFINITE ? (Number)0 : total * EXP(most - all), partial)};
}

UMD_SIGNATURE {
  __shared__ Number partial[32];
  __shared__ Number shares[MOST_INVOCATIONS];
  Number* const own = shares + threadIdx.y * blockDim.x;
  const Index rows = BATCHES * QUERIES;
  for (Index n = ROWS_FIRST; n < rows; n += ROWS_STEP) {
    const Index z = n / QUERIES, i = n - z * QUERIES;
    const Heads of = HEADS(z);
    const Range keys = KEYS_OF(i);
    const Exponentials found = exponentials(of, args, i, keys, partial);
    T* const y_row = BATCH_START(y, z) + (Offset)i * STRIDE(y, 0);
    S sum_log;
    if (found.most == -INFINITE || (args.guarded == 2 && found.total != found.total)) {  // no key is left
      const bool none = args.guarded || KEYS == 0;
      for (Index w = threadIdx.x; w < WIDTH; w += blockDim.x) {
        y_row[(Offset)w * STRIDE(y, 1)] = STORE_NUMBER(none ? (Number)0 : INFINITE - INFINITE);
      }
      sum_log = (S)(none ? -INFINITE : INFINITE - INFINITE);
    } else {
      const Number inverse = (Number)1 / found.total;
      const auto weight = [&](Index j) { return EXP(score(of, args, i, j) - found.most) * inverse; };
      SUM_WEIGHTED(own, keys, WIDTH, weight, of.v, STRIDE(v, 0), STRIDE(v, 1), y_row, STRIDE(y, 1));
      sum_log = (S)(found.most + log((double)found.total));  // the gradient wants all digits that S has
    }
    if (threadIdx.x == 0) BATCH_START(lse, z)[(Offset)i * STRIDE(lse, 0)] = sum_log;
  }
}
