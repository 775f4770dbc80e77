/* What LLVM calls to round to bf16 where the processor has no instruction for it. Compilers' runtime libraries have it from GCC 13 and
 * Clang 15 on, but no shared one that kernels compiled at run time could find. A bf16 is returned in the lower half of a float's register. */
#include <stdint.h>
#include <string.h>

static float in_register(uint32_t half) {
  float out;
  half &= 0xffff;
  memcpy(&out, &half, sizeof out);
  return out;
}

float __truncsfbf2(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return in_register(bits >> 16 | 0x40); /* not a number, and quiet */
  return in_register((bits + 0x7fff + (bits >> 16 & 1)) >> 16);                /* to the nearest, ties to even */
}
