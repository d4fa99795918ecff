// Host memory that reads as zeros and has no pages (holes of sparse files, memory that nobody touched) is not copied: the
// copy gets no pages either. The numbers are exact; a checkpoint without contents is loaded, converted and pinned without
// memory.
#include "../page_locked.h"
#include "dry.h"

namespace simaccel::dry {
namespace {
constexpr size_t kSmallestHole = size_t(1) << 20;
constexpr off_t kMostReadBytes = 1 << 20;

struct Mapping {  // a line of /proc/self/maps
  uintptr_t begin, end, offset;
  unsigned long inode;
  char flags[8];
  std::string path;
};

// Calls `visit` for each mapping, lowest first, until it returns false.
void for_mappings(const std::function<bool(const Mapping&)>& visit) {
  FILE* maps = std::fopen("/proc/self/maps", "r");
  if (!maps) return;
  char line[4600];
  while (std::fgets(line, sizeof line, maps)) {
    Mapping mapping;
    int name = 0;
    if (std::sscanf(line, "%lx-%lx %7s %lx %*s %lu %n", &mapping.begin, &mapping.end, mapping.flags, &mapping.offset, &mapping.inode, &name) < 5)
      continue;
    mapping.path = line + name;
    while (!mapping.path.empty() && mapping.path.back() == '\n') mapping.path.pop_back();
    if (!visit(mapping)) break;
  }
  std::fclose(maps);
}

bool is_hole_of_file(const Mapping& mapping, char* begin, char* end) {
  int file = open(mapping.path.c_str(), O_RDONLY);
  if (file < 0) return false;
  off_t from = mapping.offset + ((uintptr_t)begin - mapping.begin), to = from + (end - begin);
  off_t data = lseek(file, from, SEEK_DATA);  // -1: none up to the end
  bool is_hole = true;
  if (data >= 0 && data < to) {
    // The file's header shares its last block with the first numbers, so one block is read.
    off_t after = lseek(file, data, SEEK_HOLE);
    is_hole = data == from && after - data < kMostReadBytes;
    if (is_hole) {
      std::vector<char> bytes(std::min(after, to) - from);
      is_hole = pread(file, bytes.data(), bytes.size(), from) == ssize_t(bytes.size()) &&
                std::all_of(bytes.begin(), bytes.end(), [](char byte) { return !byte; });
      off_t next = is_hole && after < to ? lseek(file, after, SEEK_DATA) : -1;
      if (next >= 0 && next < to) is_hole = false;
    }
  }
  close(file);
  return is_hole;
}

bool has_no_pages(char* begin, char* end) {
  int file = open("/proc/self/pagemap", O_RDONLY);
  uintptr_t first = (uintptr_t)begin / page_bytes(), last = ((uintptr_t)end + page_bytes() - 1) / page_bytes();
  std::vector<uint64_t> entries(last - first);
  ssize_t length = entries.size() * sizeof entries[0];
  bool is_hole = file >= 0 && pread(file, entries.data(), length, first * sizeof entries[0]) == length;
  if (file >= 0) close(file);
  for (size_t i = 0; is_hole && i < entries.size(); i++) {
    if (!(entries[i] >> 62)) continue;  // neither present nor swapped
    // The first and last page may hold other data of the heap, too: their own bytes decide.
    if (i && i + 1 < entries.size()) return false;
    char* from = std::max(begin, (char*)((first + i) * page_bytes()));
    char* to = std::min(end, (char*)((first + i + 1) * page_bytes()));
    is_hole = std::all_of(from, to, [](char byte) { return !byte; });
  }
  return is_hole;
}

bool is_hole(char* address, size_t bytes) {
  char *at = address, *end = address + bytes;
  bool is_hole = true;
  for_mappings([&](const Mapping& mapping) {
    if ((uintptr_t)at >= mapping.end) return true;
    if ((uintptr_t)at < mapping.begin) return false;
    char* stop = std::min(end, (char*)mapping.end);
    is_hole = mapping.inode ? is_hole_of_file(mapping, at, stop) : has_no_pages(at, stop);
    at = stop;
    return is_hole && at < end;
  });
  return is_hole && at >= end;
}

bool is_private_memory(char* address, size_t bytes) {
  bool is_private = false;
  for_mappings([&](const Mapping& mapping) {
    if ((uintptr_t)address < mapping.begin || (uintptr_t)address >= mapping.end) return true;
    is_private = !mapping.inode && mapping.flags[3] == 'p' && mapping.flags[1] == 'w' && (uintptr_t)(address + bytes) <= mapping.end;
    return false;
  });
  return is_private;
}
}  // namespace

Tensor& copy_on_host(Tensor& to, const Tensor& from, bool non_blocking) {
  size_t bytes = to.numel() * to.element_size();
  bool is_plain = to.device().is_cpu() && from.device().is_cpu() && from.numel() == to.numel() && to.has_storage() && from.has_storage() &&
                  to.is_non_overlapping_and_dense() && from.is_non_overlapping_and_dense();
  if (bytes >= kSmallestHole && is_plain) {
    char *target = host_address(to), *source = host_address(from);
    if (target && source && is_private_memory(target, bytes) && is_hole(source, from.numel() * from.element_size())) {
      clear_pages(target, bytes, 0);
      counters.num_hole_copies++;
      counters.hole_bytes += bytes;
      return to;
    }
  }
  return at::native::copy_(to, from, non_blocking);
}
}  // namespace simaccel::dry
