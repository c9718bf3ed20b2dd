// How the rows of a tensor are visited. Included once, by cpu.cpp, inside its namespace, after
// `Rows`, `TableRows` and `Kernel`.

// One axis of rows: how many, and how far apart in each tensor, in bytes.
struct Axis {
  int64_t size, x, out, cos, sin;
};

// The call as the loops see it.
struct Plan {
  Rows rows;         // The first row, and
  TableRows tables;  // the first row of its tables.
  std::vector<Axis> axes;
  Kernel kernel;
  int64_t element_size, x_channel, out_channel;  // Bytes from one channel to the next.
};

// The axes of rows in the order of memory, neighbours merged where they are one run.
std::vector<Axis> order_axes(std::vector<Axis> axes) {
  axes.erase(
      std::remove_if(axes.begin(), axes.end(), [](const Axis& axis) { return axis.size == 1; }),
      axes.end());
  std::stable_sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) {
    return a.out > b.out;
  });
  std::vector<Axis> merged;
  for (const Axis& axis : axes) {
    if (!merged.empty()) {
      Axis& last = merged.back();
      const int64_t n = axis.size;
      if (last.x == axis.x * n && last.out == axis.out * n && last.cos == axis.cos * n &&
          last.sin == axis.sin * n) {
        last = {last.size * n, axis.x, axis.out, axis.cos, axis.sin};
        continue;
      }
    }
    merged.push_back(axis);
  }
  // The loops want at least two axes: heads around positions, or the other way round.
  while (merged.size() < 2) merged.insert(merged.begin(), {1, 0, 0, 0, 0});
  return merged;
}

void move_channels(
    const char* from, int64_t from_step, char* to, int64_t to_step, int64_t count, int64_t size) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_step, from + i * from_step, static_cast<size_t>(size));
  }
}

// Rows whose channels do not lie side by side go through two small buffers, one row at a time.
void turn_apart(const Plan& plan, const Rows& rows, std::vector<double>& memory) {
  const int64_t size = plan.element_size;
  const int64_t words = (rows.dim * size + 7) / 8;
  memory.resize(static_cast<size_t>(2 * words));
  char* before = reinterpret_cast<char*>(memory.data());
  char* after = reinterpret_cast<char*>(memory.data() + words);
  Rows one = rows;
  one.count = 1;
  one.x_jump = one.out_jump = 0;
  one.x = before;
  one.out = after;
  for (int64_t row = 0; row < rows.count; ++row) {
    move_channels(rows.x + row * rows.x_step, plan.x_channel, before, size, rows.dim, size);
    one.table = rows.table + row * rows.table_step;
    plan.kernel.turn(one);
    move_channels(after, size, rows.out + row * rows.out_step, plan.out_channel, rows.dim, size);
  }
}

constexpr int64_t kTileBytes = 128 << 10;  // Of prepared tables: a part of any second-level cache.
constexpr int64_t kLeadBytes = 2 << 10;   // From what is turned to what is prefetched.
constexpr int64_t kStreamBytes = 4 << 20;  // More than a core has of the last cache, as a rule.
constexpr int64_t kVectorBytes = 32;
constexpr int64_t kHeads = 16;            // At most, that share one tile.
constexpr int64_t kGrain = 32768;         // Elements worth a thread, as PyTorch reckons.

// Whether the result is written past the caches: it is large, new, and in whole vectors. Otherwise
// each line of it would be read before it is written, a third of all traffic.
bool streams(const Plan& plan) {
  const Rows& rows = plan.rows;
  if (rows.x == rows.out) return false;
  const int64_t half = rows.planes * plan.element_size;
  int64_t bytes = rows.dim * plan.element_size;
  int64_t bits = reinterpret_cast<intptr_t>(rows.out) | half | bytes;
  for (const Axis& axis : plan.axes) {
    bits |= axis.out;
    bytes *= axis.size;
  }
  return bits % kVectorBytes == 0 && bytes >= kStreamBytes;
}

// The two innermost axes cut into blocks: a tile of the inner one, a group of the other.
struct Blocks {
  const Plan& plan;
  const Axis &inner, &heads;
  int64_t table_row, tile, group, tiles, groups, count, lead;
  bool is_dense, is_streaming;

  explicit Blocks(const Plan& plan)
      : plan(plan), inner(plan.axes[plan.axes.size() - 1]), heads(plan.axes[plan.axes.size() - 2]) {
    table_row = plan.kernel.bytes_per_plane * plan.rows.planes;
    tile = std::min(inner.size, std::max<int64_t>(1, kTileBytes / std::max<int64_t>(1, table_row)));
    group = std::min(heads.size, kHeads);
    tiles = (inner.size + tile - 1) / tile;
    groups = (heads.size + group - 1) / group;
    count = tiles * groups;
    for (size_t i = 0; i + 2 < plan.axes.size(); ++i) count *= plan.axes[i].size;
    const int64_t row_bytes = plan.rows.dim * plan.element_size;
    lead = std::max<int64_t>(1, kLeadBytes / std::max<int64_t>(1, row_bytes));
    is_streaming = streams(plan);
    is_dense = plan.x_channel == plan.element_size && plan.out_channel == plan.element_size;
  }

  int64_t grain() const {
    const int64_t elements = tile * group * plan.rows.dim;
    return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, elements));
  }

  void run(int64_t block, std::vector<double>& prepared, std::vector<double>& buffers) const {
    Rows rows = plan.rows;
    TableRows tables = plan.tables;
    const auto advance = [&](const Axis& axis, int64_t by) {
      rows.x += axis.x * by;
      rows.out += axis.out * by;
      tables.cos += axis.cos * by;
      tables.sin += axis.sin * by;
    };
    const int64_t first = block % tiles * tile;
    block /= tiles;
    const int64_t head = block % groups * group;
    block /= groups;
    for (size_t i = plan.axes.size() - 2; i-- > 0;) {
      advance(plan.axes[i], block % plan.axes[i].size);
      block /= plan.axes[i].size;
    }
    advance(inner, first);
    advance(heads, head);
    rows.count = std::min(tile, inner.size - first);
    rows.x_step = inner.x;
    rows.out_step = inner.out;
    rows.streams = is_dense && is_streaming;
    rows.lead = lead;
    rows.x_lead = lead * inner.x;
    rows.out_lead = lead * inner.out;
    rows.x_jump = heads.x + (lead - rows.count) * inner.x;
    rows.out_jump = heads.out + (lead - rows.count) * inner.out;
    const bool is_one_row = inner.cos == 0 && inner.sin == 0;  // For the whole tile.
    tables.count = is_one_row ? 1 : rows.count;
    tables.cos_step = inner.cos;
    tables.sin_step = inner.sin;
    tables.to_step = table_row;
    rows.table_step = is_one_row ? 0 : table_row;
    prepared.resize(static_cast<size_t>((tables.count * table_row + 7) / 8));
    rows.table = reinterpret_cast<const char*>(prepared.data());
    const bool is_shared = heads.cos == 0 && heads.sin == 0;
    const int64_t end = std::min(head + group, heads.size);
    for (int64_t h = head; h < end; ++h) {
      if (h == head || !is_shared) plan.kernel.prepare(tables, prepared.data());
      if (is_dense) {
        plan.kernel.turn(rows);
      } else {
        turn_apart(plan, rows, buffers);
      }
      advance(heads, 1);
    }
  }
};

// Visit all rows, block by block; the blocks in parallel.
void run(const Plan& plan) {
  const Blocks blocks(plan);
  torch::stable::parallel_for(0, blocks.count, blocks.grain(), [&](int64_t begin, int64_t end) {
    std::vector<double> prepared, buffers;
    for (int64_t block = begin; block < end; ++block) blocks.run(block, prepared, buffers);
  });
}
