// The turn of consecutive rows, and the tables as it wants them. Included once for each instruction
// set, inside a namespace of its own; hence no include guard. The including file defines
//   ROTARY_TARGET    the function attribute that allows those instructions, or nothing
//   ROTARY_HAS_AVX2  1 where AVX2, FMA and the conversions of float16 (F16C) are among them

// What memory holds, as what is computed with. Plain loops over these are vectorised by the
// compiler, float16 included: the conversions have no branch that survives.
struct Float32 {
  using Stored = float;
  ROTARY_TARGET static inline float load(float value) { return value; }
  ROTARY_TARGET static inline float store(float value) { return value; }
  ROTARY_TARGET static inline float store(double value) { return static_cast<float>(value); }
};

struct Float64 {
  using Stored = double;
  ROTARY_TARGET static inline double load(double value) { return value; }
  ROTARY_TARGET static inline double store(double value) { return value; }
};

struct BFloat16 {
  using Stored = uint16_t;
  ROTARY_TARGET static inline float load(uint16_t stored) {
    return as_float(static_cast<uint32_t>(stored) << 16);
  }
  ROTARY_TARGET static inline uint16_t store(float value) {
    const uint32_t bits = as_bits(value);
    // To the nearest, ties to even: add half a unit, less one where the kept part is even.
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
  }
  ROTARY_TARGET static inline uint16_t store(double value) {
    return store(static_cast<float>(value));
  }
};

struct Float16 {
  using Stored = uint16_t;
  ROTARY_TARGET static inline float load(uint16_t stored) {
    const uint32_t magnitude = (stored & 0x7fffu) << 13;
    const uint32_t exponent = magnitude & 0x0f800000u;
    // Move the exponent's bias from 15 to 127; infinity and NaN move twice as far.
    const uint32_t moved =
        magnitude + 0x38000000u + (exponent == 0x0f800000u ? 0x38000000u : 0u);
    // A subnormal has no leading one: give it one, and take it off again as a number.
    const float subnormal = as_float(magnitude + 0x38800000u) - as_float(0x38800000u);
    const uint32_t bits = exponent == 0 ? as_bits(subnormal) : moved;
    return as_float(bits | (static_cast<uint32_t>(stored & 0x8000u) << 16));
  }
  ROTARY_TARGET static inline uint16_t store(float value) {
    const uint32_t all = as_bits(value);
    const uint32_t magnitude = all & 0x7fffffffu;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Added to 0.5, the unit in the last place is that of a subnormal: the sum rounds for us.
    const uint32_t subnormal = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t bits = magnitude < 0x38800000u ? subnormal : normal;
    bits = magnitude >= 0x47800000u ? 0x7c00u : bits;
    bits = magnitude > 0x7f800000u ? 0x7e00u : bits;
    return static_cast<uint16_t>(bits | ((all >> 16) & 0x8000u));
  }
  ROTARY_TARGET static inline uint16_t store(double value) {
    return store(static_cast<float>(value));
  }
};

// Table rows are prepared once for all heads that share them: scaled, with the sign of sine, in the
// type that is computed with, and in the order in which `turn_rows` reads them. Planes come in
// blocks for which there is a vector form, then the rest: all cosines of the rest, then all sines.
// A vector form is a Block: the number of `planes` in it, `prepare` and `turn`.

struct NoBlock {  // Where the compiler's own vectors serve.
  static constexpr int64_t planes = 0;
};

#if ROTARY_HAS_AVX2
ROTARY_TARGET static inline __m256 load_eight(Float32, const float* from) {
  return _mm256_loadu_ps(from);
}

// A `streaming` store goes past the caches; its address is a multiple of its size.
template <bool streaming>
ROTARY_TARGET static inline void store_eight(Float32, float* to, __m256 value) {
  streaming ? _mm256_stream_ps(to, value) : _mm256_storeu_ps(to, value);
}

ROTARY_TARGET static inline __m256 load_eight(Float16, const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

template <bool streaming>
ROTARY_TARGET static inline void store_eight(Float16, uint16_t* to, __m256 value) {
  const __m128i stored = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
  auto* lanes = reinterpret_cast<__m128i*>(to);
  streaming ? _mm_stream_si128(lanes, stored) : _mm_storeu_si128(lanes, stored);
}

ROTARY_TARGET static inline __m256 scaled(const float* from, float scale) {
  return _mm256_mul_ps(_mm256_loadu_ps(from), _mm256_set1_ps(scale));
}

// Whole vectors where it is streaming.
template <bool streaming>
ROTARY_TARGET static inline void copy_tail(const char* from, char* to, size_t bytes) {
  if constexpr (!streaming) {
    std::memcpy(to, from, bytes);
  } else {
    for (size_t at = 0; at < bytes; at += sizeof(__m256i)) {
      const __m256i part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), part);
    }
  }
}

// Channels `planes` apart.
template <class Number>
struct HalfBlock {
  using Stored = typename Number::Stored;
  static constexpr int64_t planes = 8;
  ROTARY_TARGET static inline void prepare(
      const float* cosines, const float* sines, float cos_scale, float sin_scale, float* to) {
    const __m256 c = scaled(cosines, cos_scale), s = scaled(sines, sin_scale);
    _mm256_storeu_ps(to, c);
    _mm256_storeu_ps(to + 8, s);
  }
  template <bool streaming>
  ROTARY_TARGET static inline void turn(
      const Stored* x, Stored* out, int64_t apart, const float* table) {
    const __m256 c = _mm256_loadu_ps(table), s = _mm256_loadu_ps(table + 8);
    const __m256 a = load_eight(Number(), x), b = load_eight(Number(), x + apart);
    store_eight<streaming>(Number(), out, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
    store_eight<streaming>(Number(), out + apart, _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
  }
};

// Channels side by side: the pair times (c, c), minus and plus the swapped pair times (s, s). The
// tables hold c and s side by side too, half the size of holding each twice.
template <class Number>
struct InterleavedBlock {
  using Stored = typename Number::Stored;
  static constexpr int64_t planes = 8;
  ROTARY_TARGET static inline void prepare(
      const float* cosines, const float* sines, float cos_scale, float sin_scale, float* to) {
    const __m256 c = scaled(cosines, cos_scale), s = scaled(sines, sin_scale);
    const __m256 low = _mm256_unpacklo_ps(c, s), high = _mm256_unpackhi_ps(c, s);
    _mm256_storeu_ps(to, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(to + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }
  ROTARY_TARGET static inline __m256 turn_pairs(__m256 x, const float* table) {
    const __m256 both = _mm256_loadu_ps(table);
    const __m256 crossed = _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), _mm256_movehdup_ps(both));
    return _mm256_fmaddsub_ps(x, _mm256_moveldup_ps(both), crossed);
  }
  template <bool streaming>
  ROTARY_TARGET static inline void turn(const Stored* x, Stored* out, int64_t, const float* table) {
    const __m256 first = load_eight(Number(), x), second = load_eight(Number(), x + 8);
    store_eight<streaming>(Number(), out, turn_pairs(first, table));
    store_eight<streaming>(Number(), out + 8, turn_pairs(second, table + 8));
  }
};

// Two neighbouring bfloat16 are one lane of 32 bits; its halves, moved up, are the two floats.
ROTARY_TARGET static inline __m256 even_floats(__m256i lanes) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(lanes, 16));
}

ROTARY_TARGET static inline __m256 odd_floats(__m256i lanes) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(lanes, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// To the nearest, ties to even; the result is the upper half of a lane, the lower half is noise.
// A NaN stays one because `without_payload` leaves the tables none that a carry could run through.
ROTARY_TARGET static inline __m256i round_to_upper_half(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), is_odd);
}

ROTARY_TARGET static inline __m256i join(__m256 even, __m256 odd) {
  return _mm256_blend_epi16(
      _mm256_srli_epi32(round_to_upper_half(even), 16), round_to_upper_half(odd), 0xaa);
}

ROTARY_TARGET static inline __m256 without_payload(__m256 value) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  return _mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
}

ROTARY_TARGET static inline __m256i load_lanes(const uint16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

template <bool streaming>
ROTARY_TARGET static inline void store_lanes(uint16_t* to, __m256i lanes) {
  auto* vector = reinterpret_cast<__m256i*>(to);
  streaming ? _mm256_stream_si256(vector, lanes) : _mm256_storeu_si256(vector, lanes);
}

template <>
struct InterleavedBlock<BFloat16> {
  static constexpr int64_t planes = 8;
  ROTARY_TARGET static inline void prepare(
      const float* cosines, const float* sines, float cos_scale, float sin_scale, float* to) {
    const __m256 c = scaled(cosines, cos_scale), s = scaled(sines, sin_scale);
    _mm256_storeu_ps(to, without_payload(c));
    _mm256_storeu_ps(to + 8, without_payload(s));
  }
  template <bool streaming>
  ROTARY_TARGET static inline void turn(
      const uint16_t* x, uint16_t* out, int64_t, const float* table) {
    const __m256 c = _mm256_loadu_ps(table), s = _mm256_loadu_ps(table + 8);
    const __m256i pairs = load_lanes(x);
    const __m256 a = even_floats(pairs), b = odd_floats(pairs);
    store_lanes<streaming>(
        out, join(_mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)),
                  _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c))));
  }
};

// The planes of even and of odd number in turn, so that here too a lane is taken apart by a shift.
template <>
struct HalfBlock<BFloat16> {
  static constexpr int64_t planes = 16;
  ROTARY_TARGET static inline void prepare(
      const float* cosines, const float* sines, float cos_scale, float sin_scale, float* to) {
    split(scaled(cosines, cos_scale), scaled(cosines + 8, cos_scale), to, to + 16);
    split(scaled(sines, sin_scale), scaled(sines + 8, sin_scale), to + 8, to + 24);
  }
  ROTARY_TARGET static inline void split(__m256 one, __m256 two, float* even, float* odd) {
    _mm256_storeu_ps(even, without_payload(ordered(_mm256_shuffle_ps(one, two, 0x88))));
    _mm256_storeu_ps(odd, without_payload(ordered(_mm256_shuffle_ps(one, two, 0xdd))));
  }
  ROTARY_TARGET static inline __m256 ordered(__m256 value) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(value), 0xd8));
  }
  template <bool streaming>
  ROTARY_TARGET static inline void turn(
      const uint16_t* x, uint16_t* out, int64_t apart, const float* table) {
    const __m256i first = load_lanes(x), second = load_lanes(x + apart);
    const __m256 c = _mm256_loadu_ps(table), s = _mm256_loadu_ps(table + 8);
    const __m256 a = even_floats(first), b = even_floats(second);
    const __m256 odd_c = _mm256_loadu_ps(table + 16), odd_s = _mm256_loadu_ps(table + 24);
    const __m256 odd_a = odd_floats(first), odd_b = odd_floats(second);
    store_lanes<streaming>(
        out, join(_mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)),
                  _mm256_fmsub_ps(odd_a, odd_c, _mm256_mul_ps(odd_b, odd_s))));
    store_lanes<streaming>(
        out + apart, join(_mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)),
                          _mm256_fmadd_ps(odd_a, odd_s, _mm256_mul_ps(odd_b, odd_c))));
  }
};

template <class Number, class Compute, bool interleaved>
using BlockOf = std::conditional_t<
    !std::is_same_v<Compute, float>, NoBlock,
    std::conditional_t<interleaved, InterleavedBlock<Number>, HalfBlock<Number>>>;
#else
template <bool>
ROTARY_TARGET static inline void copy_tail(const char* from, char* to, size_t bytes) {
  std::memcpy(to, from, bytes);
}

template <class Number, class Compute, bool interleaved>
using BlockOf = NoBlock;
#endif

template <class Number, class Table, class Compute, bool interleaved>
ROTARY_TARGET static void prepare_rows(const TableRows& rows, void* memory) {
  using Block = BlockOf<Number, Compute, interleaved>;
  const auto cos_scale = static_cast<Compute>(rows.cos_scale);
  const auto sin_scale = static_cast<Compute>(rows.sin_scale);
  for (int64_t row = 0; row < rows.count; ++row) {
    const auto* cosines = reinterpret_cast<const Table*>(rows.cos + row * rows.cos_step);
    const auto* sines = reinterpret_cast<const Table*>(rows.sin + row * rows.sin_step);
    auto* to = reinterpret_cast<Compute*>(static_cast<char*>(memory) + row * rows.to_step);
    int64_t done = 0;
    if constexpr (Block::planes != 0) {
      for (; done + Block::planes <= rows.planes; done += Block::planes, to += 2 * Block::planes) {
        Block::prepare(cosines + done, sines + done, cos_scale, sin_scale, to);
      }
    }
    const int64_t rest = rows.planes - done;
    ROTARY_INDEPENDENT
    for (int64_t p = 0; p < rest; ++p) {
      to[p] = cosines[done + p] * cos_scale;
      to[rest + p] = sines[done + p] * sin_scale;
    }
  }
}

// `known` is the number of planes where the compiler is to know it, and unroll; otherwise 0.
template <class Number, class Compute, bool interleaved, int64_t known, bool streaming>
ROTARY_TARGET static inline void turn_known_rows(const Rows& given) {
  using Stored = typename Number::Stored;
  using Block = BlockOf<Number, Compute, interleaved>;
  const Rows rows = given;  // A copy of our own: what is written to out cannot change it.
  const int64_t planes = known != 0 ? known : rows.planes;
  const size_t row_bytes = static_cast<size_t>(rows.dim) * sizeof(Stored);
  const size_t turned_bytes = static_cast<size_t>(2 * planes) * sizeof(Stored);
  const size_t tail_bytes = row_bytes - turned_bytes;
  const size_t prefetched_bytes = known != 0 ? turned_bytes : row_bytes;
  const bool has_tail = tail_bytes != 0 && rows.x != rows.out;
  const char *x_row = rows.x, *table_row = rows.table;
  char* out_row = rows.out;
  for (int64_t left = rows.count; left > 0; --left) {
    const bool is_inside = left > rows.lead;
    const char* x_later = x_row + (is_inside ? rows.x_lead : rows.x_jump);
    const char* out_later = out_row + (is_inside ? rows.out_lead : rows.out_jump);
    for (size_t at = 0; at < prefetched_bytes; at += kCacheLine) {
      ROTARY_PREFETCH(x_later + at);
      if (!streaming && rows.x != rows.out) ROTARY_PREFETCH_WRITE(out_later + at);
    }
    const auto* x = reinterpret_cast<const Stored*>(x_row);
    auto* out = reinterpret_cast<Stored*>(out_row);
    const auto* table = reinterpret_cast<const Compute*>(table_row);
    int64_t done = 0;
    if constexpr (Block::planes != 0) {
      for (; done + Block::planes <= planes; done += Block::planes, table += 2 * Block::planes) {
        const int64_t at = interleaved ? 2 * done : done;
        Block::template turn<streaming>(x + at, out + at, planes, table);
      }
    }
    const int64_t rest = planes - done;
    const int64_t step = interleaved ? 2 : 1, second = interleaved ? 1 : planes;
    x += done * step;
    out += done * step;
    // In place, x is out: each turn of the loop reads its plane before it writes it.
    ROTARY_INDEPENDENT
    for (int64_t p = 0; p < rest; ++p) {
      const Compute a = Number::load(x[p * step]), b = Number::load(x[p * step + second]);
      const Compute c = table[p], s = table[rest + p];
      out[p * step] = Number::store(a * c - b * s);
      out[p * step + second] = Number::store(a * s + b * c);
    }
    if (has_tail) {
      copy_tail<streaming>(x_row + turned_bytes, out_row + turned_bytes, tail_bytes);
    }
    x_row += rows.x_step;
    out_row += rows.out_step;
    table_row += rows.table_step;
  }
}

template <class Number, class Compute, bool interleaved, bool streaming>
ROTARY_TARGET static void turn_rows_by_size(const Rows& rows) {
  if constexpr (BlockOf<Number, Compute, interleaved>::planes != 0) {  // Heads of 64 and of 128.
    constexpr auto* turn_32 = turn_known_rows<Number, Compute, interleaved, 32, streaming>;
    constexpr auto* turn_64 = turn_known_rows<Number, Compute, interleaved, 64, streaming>;
    if (rows.planes == 32) return turn_32(rows);
    if (rows.planes == 64) return turn_64(rows);
  }
  turn_known_rows<Number, Compute, interleaved, 0, streaming>(rows);
}

template <class Number, class Compute, bool interleaved>
ROTARY_TARGET static void turn_rows(const Rows& rows) {
  constexpr int64_t block = BlockOf<Number, Compute, interleaved>::planes;
  if constexpr (block != 0) {
    if (rows.streams && rows.planes % block == 0) {
      turn_rows_by_size<Number, Compute, interleaved, true>(rows);
      _mm_sfence();  // What was written past the caches is there before another thread is told so.
      return;
    }
  }
  turn_rows_by_size<Number, Compute, interleaved, false>(rows);
}

template <class Number, class Table, bool interleaved>
static Kernel kernel() {
  constexpr bool is_wide = std::is_same_v<Number, Float64> || std::is_same_v<Table, double>;
  using Compute = std::conditional_t<is_wide, double, float>;
  return {
      prepare_rows<Number, Table, Compute, interleaved>, turn_rows<Number, Compute, interleaved>,
      2 * static_cast<int64_t>(sizeof(Compute))};
}

template <class Number>
static Kernel choose(ScalarType table, bool interleaved) {
  if (table == ScalarType::Double) {
    return interleaved ? kernel<Number, double, true>() : kernel<Number, double, false>();
  }
  return interleaved ? kernel<Number, float, true>() : kernel<Number, float, false>();
}

// The kernel for a dtype of x, a dtype of the tables and a layout; empty for a dtype it has not.
static Kernel find(ScalarType x, ScalarType table, bool interleaved) {
  switch (x) {
    case ScalarType::Float:
      return choose<Float32>(table, interleaved);
    case ScalarType::Double:
      return choose<Float64>(table, interleaved);
    case ScalarType::BFloat16:
      return choose<BFloat16>(table, interleaved);
    case ScalarType::Half:
      return choose<Float16>(table, interleaved);
    default:
      return {nullptr, nullptr, 0};
  }
}
