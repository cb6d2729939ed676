"""Functions that NumPy lacks, over float32 and float64 arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from umd_sim.lowerings.layout import Array

# Numerator and denominator of erf(x) / x in x², highest power first, for |x| ≤ 4.
# Source: Eigen, generic_fast_erf for float (a rational minimax approximation).
_ERF32_TOP = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05, -7.34990630326855e-04,
    -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF32_BOTTOM = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02,
)  # fmt: skip

# Source: Cephes, ndtr.c: erf(x) = x · T(x²) / U(x²) for |x| < 1, erfc(x) = exp(-x²) · P(x) / Q(x) for 1 ≤ x < 8.
_ERF64_T = (
    9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3, 7.00332514112805075473e3,
    5.55923013010394962768e4,
)  # fmt: skip
_ERF64_U = (
    1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
    4.92673942608635921086e4,
)  # fmt: skip
_ERFC64_P = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0, 4.86371970985681366614e1,
    1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
    5.57535335369399327526e2,
)  # fmt: skip
_ERFC64_Q = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
    1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip
_ERF64_ONE = 6.0
"""From here on erf is 1 in float64."""


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """Returns a polynomial at x, highest power first, in x's type (Horner's scheme in place)."""
    result = x * coefficients[0]
    result += coefficients[1]
    for coefficient in coefficients[2:]:
        result *= x
        result += coefficient
    return result


def erf(x: Array, out: Array) -> None:
    """Writes the error function of x; `out` may be x."""
    (_erf32 if x.dtype == np.float32 else _erf64)(x, out)


def _erf32(x: Array, out: Array) -> None:
    bounded = np.clip(np.atleast_1d(x), -4.0, 4.0)
    square = bounded * bounded
    ratio = _polynomial(_ERF32_TOP, square)
    ratio /= _polynomial(_ERF32_BOTTOM, square)
    np.multiply(bounded, ratio, out=bounded)
    np.clip(bounded, -1.0, 1.0, out=bounded)
    np.copyto(out, bounded.reshape(x.shape))


def _erf64(x: Array, out: Array) -> None:
    size = np.minimum(np.absolute(np.atleast_1d(x)), _ERF64_ONE)
    square = size * size
    tail = np.exp(-square)
    tail *= _polynomial(_ERFC64_P, size)
    tail /= _polynomial(_ERFC64_Q, size)
    large = np.copysign(1.0 - tail, x)
    square = np.minimum(square, 1.0)
    small = x * (_polynomial(_ERF64_T, square) / _polynomial(_ERF64_U, square))
    np.copyto(small, large, where=size >= 1.0)
    np.copyto(out, small.reshape(x.shape))


def sigmoid(x: Array, out: Array) -> None:
    """Writes 1 / (1 + exp(-x)); `out` may be x."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1.0, out=out)
    np.reciprocal(out, out=out)


def rsqrt(x: Array, out: Array) -> None:
    """Writes 1 / sqrt(x); `out` may be x."""
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


# NumPy 2.4's own isnan and isinf write wrong results into strided outputs on processors with AVX-512.
def is_nan(x: Array, out: Array) -> None:
    """Writes whether x is NaN."""
    np.not_equal(x, x, out=out)


def is_inf(x: Array, out: Array) -> None:
    """Writes whether x is infinite."""
    np.equal(np.absolute(x), np.inf, out=out)


def divide_truncating(a: Array, b: Array, out: Array) -> None:
    """Writes the signed integer quotient, truncated; x/0 is 0 and INT_MIN/-1 is INT_MIN. `out` may be a or b."""
    exact = np.asarray(np.fmod(a, b))
    np.subtract(a, exact, out=exact)
    np.floor_divide(exact, b, out=out)


def power_signed(a: Array, b: Array, out: Array) -> None:
    """Writes the signed integer power, wrapping; a negative exponent gives 0 unless the base is 1 or -1."""
    negative = b < 0
    if not negative.any():
        np.power(a, b, out=out)
        return
    result = np.asarray(np.power(a, np.where(negative, 0, b)))
    parity = np.where(np.bitwise_and(b, 1) == 1, a, 1)
    unit = np.where((a == 1) | (a == -1), parity, 0)
    np.copyto(out, np.where(negative, unit, result))
