// start + i · step. Generated: T, Number, NUMBER(v), STORE_NUMBER(v).
UMD_SIGNATURE {
  const Number first = NUMBER(start[args.start_offset]), by = NUMBER(step[args.step_offset]);
  for (Index i = INVOCATION; i < (Index)args.count; i += INVOCATIONS) {
    out[(Offset)args.out_offset + (Offset)i * (Offset)args.out_strides[0]] = STORE_NUMBER(first + (Number)i * by);
  }
}
