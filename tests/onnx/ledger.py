"""Why cases of the standard's suite do not pass, or pass without umd: each reason with the cases it is for.

suite.json beside this file says what became of each case; a case that does better or worse fails its test, and
`python scripts/onnx_docs.py --record` writes the file anew.
"""

from __future__ import annotations

from fnmatch import fnmatch

REASONS = {
    "powers of two as a type": (
        "float32 would hold float8e8m0's least number as a denormal one, which devices may flush to zero",
        ("test_cast_e8m0_*",),
    ),
    "random numbers": (
        "the expected numbers are of NumPy's generator; umd's are Philox's",
        ("test_bernoulli*", "test_training_dropout*"),
    ),
    "float16, two units in the last place": (
        "the reference rounds its softmax at another step: 2 of 192 elements are the next float16",
        ("test_attention_4d_causal_fp16*",),
    ),
    "old semantics that ONNX's converter does not lift": (
        "Scan 8 has a batch axis; the converter to opset 28 leaves it as it is",
        ("test_scan_sum",),
    ),
    "nearer to zero than the reference": (
        "the reference is off by float32's rounding where the exact result is 0; the tolerance there is 1e-7",
        ("test_dft_inverse*",),
    ),
    "texts": (
        "texts are no tensors of a device: ONNX's reference computes these while importing",
        ("test_string_*", "test_strnorm*", "test_regex_*", "test_equal_string*", "test_tfidfvectorizer_*",
         "test_ai_onnx_ml_label_encoder_string*", "test_cast_STRING*", "test_cast_*_to_STRING", "test_expand_shape_*"),
    ),
    "classical machine learning": (
        "the domain ai.onnx.ml is not ours: where inputs are known the reference computes it",
        ("test_ai_onnx_ml_*",),
    ),
    "pictures in files": ("decoding JPEG, PNG and the like is no tensor computation", ("test_image_decoder_*",)),
    "derivatives": ("Gradient differentiates a graph; front ends do that before umd sees it", ("test_gradient_*",)),
}  # fmt: skip
"""What a group of cases has in common: why, and patterns of their names."""


def reason_for(name: str) -> str:
    """Returns the group of a case, "" when the ledger has none."""
    return next((group for group, (_, patterns) in REASONS.items() if any(fnmatch(name, p) for p in patterns)), "")
