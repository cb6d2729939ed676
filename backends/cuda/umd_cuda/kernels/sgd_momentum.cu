#include "updates.cuh"

UMD_SIGNATURE {
  const bool dense = IS_DENSE(p) && IS_DENSE(g) && IS_DENSE(m);
  const Index count = product(args.extents, RANK);
  const Number rate = (Number)lr[args.lr_offset], decay = (Number)args.weight_decay, momentum = (Number)args.momentum;
  const Number fresh = (Number)(1.0 - args.dampening);
  const bool first = step[args.step_offset] == 1.0f, nesterov = args.nesterov != 0;
  for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
    const Number value = NUMBER(AT(p));
    const Number d = NUMBER(AT(g)) + decay * value;
    const Number moment = first ? d : momentum * NUMBER(AT(m)) + fresh * d;
    AT(m) = STORE_NUMBER(moment);
    AT(p) = STORE_NUMBER(value - rate * (nesterov ? d + momentum * moment : moment));
  }
}
