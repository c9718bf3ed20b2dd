// The rotation on a CPU, at the speed at which memory can be copied.
//
// Built against PyTorch's stable ABI: one binary serves PyTorch 2.10 and later, and every Python
// from 3.10 on. Three operators in the library `rotary`, without autograd (see autograd.py):
//   turn       x -> a new tensor in the memory order of x
//   turn_pair  the same for two tensors, queries and keys, in one call
//   turn_      in place
// and `rotate`, the same as `turn`, which gets a derivative for torch.compile; and
//   tables       angles -> their cosines and sines
//   running_dot  queries and keys -> the denominators of causal linear attention
//
// A row is the channels of one head of one token. Rows are visited in the order of memory, in tiles
// small enough that the rows of the tables stay in a near cache while all heads use them.

#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// Everything that only some compilers know is behind ROTARY_MULTIVERSION; the rest is C++17.
#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
#define ROTARY_MULTIVERSION 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define ROTARY_MULTIVERSION 0
#endif

// The turns of the following loop do not depend on each other.
#if defined(__clang__)
#define ROTARY_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define ROTARY_INDEPENDENT _Pragma("GCC ivdep")
#elif defined(_MSC_VER)
#define ROTARY_INDEPENDENT __pragma(loop(ivdep))
#else
#define ROTARY_INDEPENDENT
#endif

#if defined(__GNUC__) || defined(__clang__)
#define ROTARY_PREFETCH(address) __builtin_prefetch(address)
#define ROTARY_PREFETCH_WRITE(address) __builtin_prefetch(address, 1)
#else
#define ROTARY_PREFETCH(address) ((void)(address))
#define ROTARY_PREFETCH_WRITE(address) ((void)(address))
#endif

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Consecutive rows of one tensor and of its prepared tables; steps are in bytes.
struct Rows {
  const char *x, *table;
  char* out;
  int64_t count;
  int64_t x_step, out_step, table_step;
  int64_t planes, dim;
  bool streams;  // Whether out goes past the caches, and is aligned and dense enough for that.
  // The row that is prefetched is `lead` rows on, and so many bytes; in the last `lead` rows of a
  // run it is in the run of the next head.
  int64_t lead, x_lead, out_lead, x_jump, out_jump;
};

constexpr size_t kCacheLine = 64;

// Consecutive rows of the tables, to be prepared for `Rows`.
struct TableRows {
  const char *cos, *sin;
  int64_t count;
  int64_t cos_step, sin_step, to_step;
  int64_t planes;
  double cos_scale, sin_scale;
};

// Some heads of queries, the keys they share, and the sum of the keys before these.
struct RunningDot {
  const void *q, *k;
  void *start, *out;
  int64_t heads, length, width;
};

struct Kernel {
  void (*prepare)(const TableRows&, void* to);
  void (*turn)(const Rows&);
  int64_t bytes_per_plane;  // Of the prepared tables.
};

// An instruction set for which the loops were compiled.
struct Instructions {
  const char* name;
  Kernel (*find)(ScalarType x, ScalarType table, bool interleaved);
  void (*make_tables)(const double* angles, float* cos, float* sin, int64_t count);
  void (*running_dot)(const RunningDot&, float* memory);
  void (*running_dot_wide)(const RunningDot&, double* memory);
};

inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline double as_double(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint64_t as_bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

namespace baseline {
#define ROTARY_TARGET
#define ROTARY_HAS_AVX2 0
#if defined(__FP_FAST_FMA)
#define ROTARY_HAS_FMA 1
#else
#define ROTARY_HAS_FMA 0
#endif
#include "cpu_rows.h"
#include "cpu_tables.h"
#include "cpu_running.h"
#undef ROTARY_TARGET
#undef ROTARY_HAS_AVX2
#undef ROTARY_HAS_FMA
}  // namespace baseline

#if ROTARY_MULTIVERSION
namespace v3 {
#define ROTARY_TARGET __attribute__((target("avx2,fma,f16c,bmi,bmi2")))
#define ROTARY_HAS_AVX2 1
#define ROTARY_HAS_FMA 1
#include "cpu_rows.h"
#include "cpu_tables.h"
#include "cpu_running.h"
#undef ROTARY_TARGET
}  // namespace v3

namespace v4 {
#define ROTARY_TARGET \
  __attribute__((     \
      target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")))
#include "cpu_rows.h"
#include "cpu_tables.h"
#include "cpu_running.h"
#undef ROTARY_TARGET
#undef ROTARY_HAS_AVX2
#undef ROTARY_HAS_FMA
}  // namespace v4
#endif

// Those that this processor can run, the best first.
const std::vector<Instructions>& supported() {
  static const std::vector<Instructions> found = [] {
    std::vector<Instructions> list;
#if ROTARY_MULTIVERSION
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
    const bool is_v3 = has_f16c && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2");
    const bool is_v4 = is_v3 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (is_v4) list.push_back(v4::instructions("x86-64-v4"));
    if (is_v3) list.push_back(v3::instructions("x86-64-v3"));
#endif
    list.push_back(baseline::instructions("baseline"));
    return list;
  }();
  return found;
}

std::atomic<size_t> in_use{0};

constexpr int64_t kAngles = 8192;  // Worth a thread, and a near cache still holds them.

#include "cpu_walk.h"

int64_t size_in_bytes(const Tensor& tensor) { return static_cast<int64_t>(tensor.element_size()); }

void check_table(const Tensor& x, const Tensor& table, int64_t planes) {
  STD_TORCH_CHECK(table.is_cpu(), "rotary: x and the tables must be on the CPU");
  STD_TORCH_CHECK(
      table.scalar_type() == ScalarType::Float || table.scalar_type() == ScalarType::Double,
      "rotary: the tables must be float32 or float64");
  STD_TORCH_CHECK(
      table.size(table.dim() - 1) == planes && 2 * planes <= x.size(x.dim() - 1),
      "rotary: the tables have more planes than x has pairs of channels, or are unlike");
}

// Bytes from one row of the table to the next along each axis of x but the last.
std::vector<int64_t> table_steps(const Tensor& x, const Tensor& table, int64_t length_axis) {
  const int64_t rank = x.dim(), outer = rank - 2, lead = table.dim() - 2;
  STD_TORCH_CHECK(
      lead == 0 || lead == outer || lead == outer - 1, "rotary: the rank of the tables is wrong");
  const int64_t bytes = size_in_bytes(table), length = rank + length_axis;
  std::vector<int64_t> steps(static_cast<size_t>(rank - 1), 0);
  const auto sizes = table.sizes(), strides = table.strides();
  const auto line_up = [&](int64_t axis, int64_t of_table) {
    STD_TORCH_CHECK(
        sizes[of_table] == 1 || sizes[of_table] == x.size(axis),
        "rotary: the tables do not match x");
    steps[static_cast<size_t>(axis)] = sizes[of_table] == 1 ? 0 : strides[of_table] * bytes;
  };
  line_up(length, lead);
  for (int64_t i = 0; i < lead; ++i) line_up(i < length ? i : i + 1, i);
  return steps;
}

// How the turn is asked for, beside the tensors.
struct Turn {
  bool interleaved;
  int64_t length_axis;
  double amplitude;
  bool transpose;
};

void turn_into(
    const Tensor& x, const Tensor& out, const Tensor& given_cos, const Tensor& given_sin,
    const Turn& turn) {
  const int64_t rank = x.dim();
  STD_TORCH_CHECK(x.is_cpu(), "rotary: x must be on the CPU");
  STD_TORCH_CHECK(
      (turn.length_axis == -2 || turn.length_axis == -3) && rank >= -turn.length_axis,
      "rotary: length_axis must be -2 or -3, and an axis of x");
  STD_TORCH_CHECK(given_cos.dim() >= 2 && given_sin.dim() >= 2, "rotary: the tables have no axis");
  const int64_t planes = given_cos.size(given_cos.dim() - 1);
  check_table(x, given_cos, planes);
  check_table(x, given_sin, planes);
  STD_TORCH_CHECK(
      given_cos.scalar_type() == given_sin.scalar_type(), "rotary: cos and sin are unlike");
  const size_t level = in_use.load(std::memory_order_relaxed);
  const Kernel kernel =
      supported()[level].find(x.scalar_type(), given_cos.scalar_type(), turn.interleaved);
  STD_TORCH_CHECK(
      kernel.turn != nullptr, "rotary: x must be float64, float32, bfloat16 or float16");

  // The tables are small beside x: planes that do not lie side by side are copied.
  const auto with_dense_planes = [planes](const Tensor& table) {
    return planes <= 1 || table.stride(table.dim() - 1) == 1 ? table
                                                             : torch::stable::contiguous(table);
  };
  const Tensor cos = with_dense_planes(given_cos), sin = with_dense_planes(given_sin);
  const auto cos_steps = table_steps(x, cos, turn.length_axis);
  const auto sin_steps = table_steps(x, sin, turn.length_axis);
  if (x.numel() == 0) return;

  Plan plan{};
  plan.kernel = kernel;
  plan.element_size = size_in_bytes(x);
  const int64_t dim = x.size(rank - 1);
  const auto sizes = x.sizes(), x_strides = x.strides(), out_strides = out.strides();
  const auto channel = [&](int64_t stride) {
    return dim == 1 ? plan.element_size : stride * plan.element_size;
  };
  plan.x_channel = channel(x_strides[rank - 1]);
  plan.out_channel = channel(out_strides[rank - 1]);
  std::vector<Axis> axes;
  for (int64_t i = 0; i + 1 < rank; ++i) {
    axes.push_back(
        {sizes[i], x_strides[i] * plan.element_size, out_strides[i] * plan.element_size,
         cos_steps[static_cast<size_t>(i)], sin_steps[static_cast<size_t>(i)]});
  }
  plan.axes = order_axes(std::move(axes));
  plan.rows.x = static_cast<const char*>(x.const_data_ptr());
  plan.rows.out = static_cast<char*>(out.mutable_data_ptr());
  plan.rows.planes = plan.tables.planes = planes;
  plan.rows.dim = dim;
  plan.tables.cos = static_cast<const char*>(cos.const_data_ptr());
  plan.tables.sin = static_cast<const char*>(sin.const_data_ptr());
  plan.tables.cos_scale = turn.amplitude;
  plan.tables.sin_scale = turn.transpose ? -turn.amplitude : turn.amplitude;
  run(plan);
}

Tensor turn(
    const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved, int64_t length_axis,
    double amplitude, bool transpose) {
  Tensor out = torch::stable::empty_like(x);
  turn_into(x, out, cos, sin, {interleaved, length_axis, amplitude, transpose});
  return out;
}

std::tuple<Tensor, Tensor> turn_pair(
    const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, bool interleaved,
    int64_t length_axis, double amplitude, bool transpose) {
  return {
      turn(q, cos, sin, interleaved, length_axis, amplitude, transpose),
      turn(k, cos, sin, interleaved, length_axis, amplitude, transpose)};
}

void turn_inplace(
    const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved, int64_t length_axis,
    double amplitude, bool transpose) {
  turn_into(x, x, cos, sin, {interleaved, length_axis, amplitude, transpose});
}

std::tuple<Tensor, Tensor> tables(const Tensor& given) {
  STD_TORCH_CHECK(
      given.is_cpu() && given.scalar_type() == ScalarType::Double,
      "rotary: angles must be float64, on the CPU");
  const Tensor angles = torch::stable::contiguous(given);
  Tensor cos = torch::stable::new_empty(angles, angles.sizes(), ScalarType::Float);
  Tensor sin = torch::stable::new_empty(angles, angles.sizes(), ScalarType::Float);
  const auto make = supported()[in_use.load(std::memory_order_relaxed)].make_tables;
  const auto* from = static_cast<const double*>(angles.const_data_ptr());
  auto* to_cos = static_cast<float*>(cos.mutable_data_ptr());
  auto* to_sin = static_cast<float*>(sin.mutable_data_ptr());
  torch::stable::parallel_for(0, angles.numel(), kAngles, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kAngles) {
      make(from + at, to_cos + at, to_sin + at, std::min(kAngles, end - at));
    }
  });
  return {cos, sin};
}

// q (G, R, T, M), k (G, T, M), start (G, M) -> dot products (G, R, T), and the last sum (G, M).
std::tuple<Tensor, Tensor> running_dot(
    const Tensor& given_q, const Tensor& given_k, const Tensor& given_start) {
  STD_TORCH_CHECK(
      given_q.dim() == 4 && given_k.dim() == 3 && given_start.dim() == 2,
      "rotary: expected q (G, R, T, M), k (G, T, M), start (G, M)");
  const int64_t groups = given_q.size(0), heads = given_q.size(1), length = given_q.size(2);
  const int64_t width = given_q.size(3);
  const ScalarType dtype = given_q.scalar_type();
  for (const Tensor& other : {given_k, given_start}) {
    STD_TORCH_CHECK(
        other.is_cpu() && other.scalar_type() == dtype && other.size(0) == groups &&
            other.size(other.dim() - 1) == width,
        "rotary: expected tensors of one dtype on the CPU, whose sizes agree");
  }
  STD_TORCH_CHECK(given_q.is_cpu() && given_k.size(1) == length, "rotary: expected as many keys");
  STD_TORCH_CHECK(
      dtype == ScalarType::Float || dtype == ScalarType::Double,
      "rotary: expected float32 or float64");
  const Tensor q = torch::stable::contiguous(given_q), k = torch::stable::contiguous(given_k);
  const Tensor first = torch::stable::contiguous(given_start);
  Tensor last = torch::stable::empty_like(first);
  torch::stable::copy_(last, first);
  Tensor out = torch::stable::new_empty(q, {groups, heads, length});
  const auto& use = supported()[in_use.load(std::memory_order_relaxed)];
  const int64_t size = size_in_bytes(q);
  const int64_t q_bytes = heads * length * width * size, k_bytes = length * width * size;
  const auto* q_data = static_cast<const char*>(q.const_data_ptr());
  const auto* k_data = static_cast<const char*>(k.const_data_ptr());
  auto* last_data = static_cast<char*>(last.mutable_data_ptr());
  auto* out_data = static_cast<char*>(out.mutable_data_ptr());
  const int64_t grain = std::max<int64_t>(1, kAngles / std::max<int64_t>(1, length * width));
  torch::stable::parallel_for(0, groups, grain, [&](int64_t begin, int64_t end) {
    std::vector<double> memory(static_cast<size_t>(2 * width));
    for (int64_t g = begin; g < end; ++g) {
      const RunningDot one{
          q_data + g * q_bytes, k_data + g * k_bytes, last_data + g * width * size,
          out_data + g * heads * length * size, heads, length, width};
      if (dtype == ScalarType::Float) {
        use.running_dot(one, reinterpret_cast<float*>(memory.data()));
      } else {
        use.running_dot_wide(one, memory.data());
      }
    }
  });
  return {out, last};
}

// supported_instructions() -> tuple of names, the best first.
PyObject* supported_instructions(PyObject*, PyObject*) {
  PyObject* names = PyTuple_New(static_cast<Py_ssize_t>(supported().size()));
  for (size_t i = 0; names != nullptr && i < supported().size(); ++i) {
    PyObject* name = PyUnicode_FromString(supported()[i].name);
    if (name == nullptr || PyTuple_SetItem(names, static_cast<Py_ssize_t>(i), name) != 0) {
      Py_CLEAR(names);
    }
  }
  return names;
}

// use_instructions(index) chooses among them, so that a test can run each.
PyObject* use_instructions(PyObject*, PyObject* index) {
  const size_t chosen = PyLong_AsSize_t(index);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (chosen >= supported().size()) {
    PyErr_SetString(PyExc_IndexError, "rotary: there is no such instruction set here");
    return nullptr;
  }
  in_use.store(chosen, std::memory_order_relaxed);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"supported_instructions", supported_instructions, METH_NOARGS, nullptr},
    {"use_instructions", use_instructions, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_cpu", "The rotation on a CPU.", 0, methods, nullptr, nullptr, nullptr,
    nullptr};

}  // namespace

STABLE_TORCH_LIBRARY(rotary, library) {
  const char* rest =
      ", Tensor cos, Tensor sin, bool interleaved, int length_axis, float amplitude, "
      "bool transpose) -> ";
  const auto define = [&](std::string head, const char* result) {
    library.def((head + rest + result).c_str());
  };
  define("turn(Tensor x", "Tensor");
  define("turn_pair(Tensor q, Tensor k", "(Tensor, Tensor)");
  define("turn_(Tensor(a!) x", "()");
  define("rotate(Tensor x", "Tensor");
  library.def("tables(Tensor angles) -> (Tensor cos, Tensor sin)");
  library.def("running_dot(Tensor q, Tensor k, Tensor start) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(rotary, CPU, library) {
  library.impl("turn", TORCH_BOX(&turn));
  library.impl("turn_pair", TORCH_BOX(&turn_pair));
  library.impl("turn_", TORCH_BOX(&turn_inplace));
  library.impl("rotate", TORCH_BOX(&turn));
  library.impl("tables", TORCH_BOX(&tables));
  library.impl("running_dot", TORCH_BOX(&running_dot));
}

PyMODINIT_FUNC PyInit__cpu(void) { return PyModule_Create(&module); }
