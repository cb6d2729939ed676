// Strided expressions. Generated: OPERANDS(M), INPUTS(M), ARGUMENTS(M), `element`, the types {operand}_t, and PACK, the
// elements that make up 16 bytes of the widest type.
#define DECLARE_PACK(name)                                \
  struct alignas(sizeof(name##_t) * PACK) name##_pack {   \
    name##_t v[PACK];                                     \
  };
OPERANDS(DECLARE_PACK)

#define IS_ALIGNED(name) ((unsigned long long)(name + args.name##_offset) % sizeof(name##_pack) == 0)
#define SCALAR(name) const bool name##_scalar = is_scalar(args.extents, args.name##_strides, RANK);
#define PACKED(name) &&(name##_scalar || (is_dense(args.extents, args.name##_strides, RANK) && IS_ALIGNED(name)))
#define LOAD_PACK(name)                                                                        \
  name##_pack name##_p;                                                                        \
  if (name##_scalar) {                                                                         \
    for (int j = 0; j < PACK; ++j) name##_p.v[j] = name[args.name##_offset];                      \
  } else {                                                                                     \
    name##_p = reinterpret_cast<const name##_pack*>(name + args.name##_offset)[i];                \
  }
#define FROM_PACK(name) name##_p.v[j]
#define FROM_DENSE(name) name[(Offset)args.name##_offset + (name##_scalar ? 0 : (Offset)i)]
#define START(name) Offset name##_at = (Offset)args.name##_offset;
#define STEP(name) name##_at += (Offset)at * (Offset)args.name##_strides[axis];
#define FROM_BOX(name) name[name##_at]

UMD_SIGNATURE {
  const Index count = product(args.extents, RANK);
  INPUTS(SCALAR)
  if (is_dense(args.extents, args.out_strides, RANK) && IS_ALIGNED(out) INPUTS(PACKED)) {
    const Index packs = count / PACK;
    for (Index i = INVOCATION; i < packs; i += INVOCATIONS) {
      INPUTS(LOAD_PACK)
      out_pack out_p;
#pragma unroll
      for (int j = 0; j < PACK; ++j) out_p.v[j] = element(ARGUMENTS(FROM_PACK));
      reinterpret_cast<out_pack*>(out + args.out_offset)[i] = out_p;
    }
    for (Index i = packs * PACK + INVOCATION; i < count; i += INVOCATIONS) {
      out[(Offset)args.out_offset + (Offset)i] = element(ARGUMENTS(FROM_DENSE));
    }
    return;
  }
  for (Index i = INVOCATION; i < count; i += INVOCATIONS) {
    OPERANDS(START)
    Index rest = i;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; --axis) {
      const Index extent = (Index)args.extents[axis];
      if (extent == 1) continue;
      const Index outer = rest < extent ? 0 : rest / extent;
      const Index at = rest - outer * extent;
      OPERANDS(STEP)
      rest = outer;
    }
    out[out_at] = element(ARGUMENTS(FROM_BOX));
  }
}
