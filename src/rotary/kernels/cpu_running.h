// Dot products with a running sum, and the list of what there is for an instruction set. Included
// once for each, last, inside a namespace of its own; hence no include guard.

// out[h][t] = q[h][t] . (start + k[0] + ... + k[t]) for the heads that share their keys; all rows
// are dense, of `width` numbers. In the end start is the whole sum. `memory` holds 2 * width numbers:
// the last keys are summed apart from start, so that a long past costs no digits.
template <class Number>
ROTARY_TARGET static void running_dot(const RunningDot& given, Number* memory) {
  constexpr int64_t kLanes = 16;      // Independent sums, for the compiler to make vectors of.
  constexpr int64_t kTogether = 128;  // Keys that are summed before they go to start.
  const int64_t width = given.width, length = given.length;
  const auto* q = static_cast<const Number*>(given.q);
  const auto* k = static_cast<const Number*>(given.k);
  auto* start = static_cast<Number*>(given.start);
  auto* out = static_cast<Number*>(given.out);
  Number *so_far = memory, *whole = memory + width;
  std::fill(so_far, so_far + width, Number(0));
  for (int64_t t = 0; t < length; ++t) {
    const Number* key = k + t * width;
    ROTARY_INDEPENDENT
    for (int64_t i = 0; i < width; ++i) {
      so_far[i] += key[i];
      whole[i] = start[i] + so_far[i];
    }
    for (int64_t h = 0; h < given.heads; ++h) {
      const Number* query = q + (h * length + t) * width;
      Number lanes[kLanes] = {};
      int64_t i = 0;
      for (; i + kLanes <= width; i += kLanes) {
        for (int64_t j = 0; j < kLanes; ++j) lanes[j] += query[i + j] * whole[i + j];
      }
      Number sum = 0;
      for (; i < width; ++i) sum += query[i] * whole[i];
      for (const Number lane : lanes) sum += lane;
      out[h * length + t] = sum;
    }
    if (t + 1 == length || t % kTogether == kTogether - 1) {
      for (int64_t i = 0; i < width; ++i) start[i] += so_far[i];
      std::fill(so_far, so_far + width, Number(0));
    }
  }
}

static Instructions instructions(const char* name) {
  return {name, find, make_tables, running_dot<float>, running_dot<double>};
}
