// Cosines and sines of angles. Included once for each instruction set, inside a namespace of its
// own, after cpu_rows.h; hence no include guard. Besides ROTARY_TARGET the including file defines
//   ROTARY_HAS_FMA   1 where a fused multiplication and addition is one instruction

// The float32 next to the true value, but for one angle in some millions, which is within 0.50001
// units in the last place: all is computed in float64, and rounded once. Angles beyond `kFar`, and
// those that are no numbers, are left to the C library, which is slower and knows no limit.
ROTARY_TARGET static void make_tables(const double* angles, float* cos, float* sin, int64_t count) {
  int64_t far = ROTARY_HAS_FMA ? 0 : count;
#if ROTARY_HAS_FMA
  // Added to 1.5 * 2^52, a number loses its fraction, and its last bits are those of an integer.
  constexpr double kInteger = 6755399441055744.0;
  constexpr double kQuadrants = 0.63661977236758134308;  // In a radian.
  // A quadrant is the sum of both: after the exact first product the second holds the rest.
  constexpr double kQuadrant = 1.5707963267948966192, kRest = 6.1232339957367658861e-17;
  constexpr double kFar = 1099511627776.0;  // 2^40
  ROTARY_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const double angle = angles[i];
    const double shifted = angle * kQuadrants + kInteger;
    const double quadrants = shifted - kInteger;
    const uint64_t quadrant = as_bits(shifted);
    const double x = std::fma(-quadrants, kRest, std::fma(-quadrants, kQuadrant, angle));
    // Taylor's series; the first terms left out are below 2e-14 where x is at most pi / 4.
    const double z = x * x;
    double s = z * (1.0 / 6227020800) - 1.0 / 39916800;
    s = z * s + 1.0 / 362880;
    s = z * s - 1.0 / 5040;
    s = z * s + 1.0 / 120;
    s = z * s - 1.0 / 6;
    s = x + x * z * s;
    double c = z * (-1.0 / 87178291200) + 1.0 / 479001600;
    c = z * c - 1.0 / 3628800;
    c = z * c + 1.0 / 40320;
    c = z * c - 1.0 / 720;
    c = z * c + 1.0 / 24;
    c = z * c - 1.0 / 2;
    c = 1.0 + z * c;
    // A quarter turn makes (c, s) into (-s, c).
    const uint64_t is_odd = 0 - (quadrant & 1);
    const uint64_t first = (as_bits(s) & is_odd) | (as_bits(c) & ~is_odd);
    const uint64_t second = (as_bits(c) & is_odd) | (as_bits(s) & ~is_odd);
    cos[i] = static_cast<float>(as_double(first ^ (((quadrant + 1) & 2) << 62)));
    sin[i] = static_cast<float>(as_double(second ^ ((quadrant & 2) << 62)));
    far += !(std::fabs(angle) <= kFar);
  }
#endif
  if (far == 0) return;
  for (int64_t i = 0; i < count; ++i) {
    cos[i] = static_cast<float>(std::cos(angles[i]));
    sin[i] = static_cast<float>(std::sin(angles[i]));
  }
}
