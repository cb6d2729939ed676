#include "updates.cuh"

UMD_SIGNATURE {
  const bool dense = IS_DENSE(p) && IS_DENSE(g) && IS_DENSE(m) && IS_DENSE(v);
  const Index count = product(args.extents, RANK);
  // 1 - beta^step loses its digits in float32
  const double rate = (double)lr[args.lr_offset], taken = (double)step[args.step_offset];
  const Number move = (Number)(rate / (1.0 - pow(args.beta1, taken)));
  const Number widen = (Number)(1.0 / sqrt(1.0 - pow(args.beta2, taken)));
  const Number keep = (Number)(1.0 - rate * args.weight_decay), decay = (Number)args.weight_decay;
  const Number beta1 = (Number)args.beta1, rest1 = (Number)(1.0 - args.beta1);
  const Number beta2 = (Number)args.beta2, rest2 = (Number)(1.0 - args.beta2), epsilon = (Number)args.epsilon;
  const bool decoupled = args.decoupled != 0;
  for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
    Number value = NUMBER(AT(p)), slope = NUMBER(AT(g));
    if (decoupled) {
      value *= keep;
    } else {
      slope += decay * value;
    }
    const Number first = beta1 * NUMBER(AT(m)) + rest1 * slope;
    const Number second = beta2 * NUMBER(AT(v)) + rest2 * slope * slope;
    AT(m) = STORE_NUMBER(first);
    AT(v) = STORE_NUMBER(second);
    AT(p) = STORE_NUMBER(value - move * first / (SQRT(second) * widen + epsilon));
  }
}
