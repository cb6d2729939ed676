// Philox4x32-10: four 32-bit words of a 128-bit counter and a 64-bit key.
// Source: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
struct Words {
  unsigned w[4];
};

__device__ __forceinline__ Words philox(unsigned long long low, unsigned long long high, unsigned long long key) {
  unsigned a = (unsigned)low, b = (unsigned)(low >> 32), c = (unsigned)high, d = (unsigned)(high >> 32);
  unsigned key_low = (unsigned)key, key_high = (unsigned)(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long first = 0xD2511F53ull * a, second = 0xCD9E8D57ull * c;
    a = (unsigned)(second >> 32) ^ b ^ key_low;
    b = (unsigned)second;
    c = (unsigned)(first >> 32) ^ d ^ key_high;
    d = (unsigned)first;
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}
