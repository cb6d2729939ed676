// What the optimizer updates share. Generated: T, Number, NUMBER(v), STORE_NUMBER(v), SQRT.
#define IS_DENSE(name) is_dense(args.extents, args.name##_strides, RANK)
#define AT(name) name[(Offset)args.name##_offset + (dense ? (Offset)e : place(e, args.extents, args.name##_strides, RANK))]
