#include "updates.cuh"

UMD_SIGNATURE {
  const bool dense = IS_DENSE(p) && IS_DENSE(g);
  const Index count = product(args.extents, RANK);
  const Number rate = (Number)lr[args.lr_offset], decay = (Number)args.weight_decay;
  for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
    const Number value = NUMBER(AT(p));
    AT(p) = STORE_NUMBER(value - rate * (NUMBER(AT(g)) + decay * value));
  }
}
