#include "accesses.h"

#include "device_memory.h"

namespace simaccel {
std::optional<Access> AccessLog::add(Access access) {
  Lock lock(mutex);
  Clock clock = clock_of(access.stream);
  std::optional<Access> conflict;
  for (auto& earlier : accesses_) {
    bool overlaps = earlier.begin < access.end && access.begin < earlier.end;
    bool conflicts = overlaps && earlier.stream != access.stream && (access.writes || earlier.writes);
    if (conflicts && count_at(clock, earlier.stream) < earlier.count) {
      conflict = earlier;
      break;
    }
  }
  // What every later access is ordered after, directly or through this one, need not be kept.
  std::erase_if(accesses_, [&](const Access& earlier) {
    bool is_replaced = earlier.stream == access.stream && access.begin <= earlier.begin && earlier.end <= access.end &&
                       (access.writes || !earlier.writes);
    return is_replaced || known_to_all_threads(earlier.stream, earlier.count);
  });
  accesses_.push_back(std::move(access));
  return conflict;
}

void AccessLog::drop_finished() {
  std::erase_if(accesses_, [](const Access& access) { return known_to_any_thread(access.stream, access.count); });
}

void AccessLog::absorb(const AccessLog& other) {
  accesses_.insert(accesses_.end(), other.accesses_.begin(), other.accesses_.end());
}

AccessLog AccessLog::split(size_t at) {
  AccessLog upper;
  std::vector<Access> lower;
  for (auto& access : accesses_) {
    if (access.end > at) {
      upper.accesses_.push_back(access);
      upper.accesses_.back().begin = std::max(access.begin, at);
    }
    if (access.begin < at) {
      lower.push_back(access);
      lower.back().end = std::min(access.end, at);
    }
  }
  accesses_ = std::move(lower);
  return upper;
}

void report_race(const char* what, const Access& now, const Access& before) {
  auto side = [](const Access& access) {
    return access.operation + (access.writes ? " writes" : " reads") + " on " + describe_stream(access.stream);
  };
  report("race on " + std::string(what) + ": " + side(now) + " what " + side(before) + ", and nothing orders the two" +
         (before.allocation == now.allocation ? "" : " (the memory was freed and allocated again in between)") +
         ".\n  now:\n" + to_text(now.stack) + "  before:\n" + to_text(before.stack));
}

void record_access(const Tensor& tensor, bool writes, int stream, uint64_t count, const char* operation, const Stack& stack) {
  if (settings.is_dry || tensor.numel() == 0) return;
  auto* block = block_of(tensor);
  if (!block) return;
  auto [begin, end] = byte_range(tensor);
  Access access{begin, end, writes, stream, count, block->allocation, operation, stack};
  if (auto conflict = block->accesses.add(access)) report_race("device memory", access, *conflict);
}
}  // namespace simaccel
