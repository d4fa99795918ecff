#include "settings.h"

namespace simaccel {
Settings settings;
std::recursive_mutex mutex;
static thread_local int device_of_thread = 0;

long environment_number(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atol(text) : otherwise;
}

bool environment_is_dry() { return environment_number("SIMACCEL_DRY", 0); }

void read_environment() {
  settings.num_cards = settings.num_devices = int(environment_number("SIMACCEL_DEVICES", 2));
  TORCH_CHECK(settings.num_cards >= 1 && settings.num_cards <= 8,
              "SIMACCEL_DEVICES: 1 to 8 devices can be simulated, not ", settings.num_cards);
  settings.allocations_until_failure = environment_number("SIMACCEL_OOM_AT", 0);
  if (long mib = environment_number("SIMACCEL_PINNED_MIB", 0)) settings.page_locked_limit = size_t(mib) << 20;
  settings.only_logs = environment_number("SIMACCEL_LOG_ONLY", 0);
  settings.keeps_stacks = environment_number("SIMACCEL_STACKS", 1);
  settings.poisons_memory = environment_number("SIMACCEL_POISON", 1);
  settings.protects_pages = environment_number("SIMACCEL_PROTECT", 1);
  settings.follows_threads = environment_number("SIMACCEL_THREADS", 1);
  settings.num_polls = int(environment_number("SIMACCEL_POLLS", 1));
  settings.is_dry = environment_is_dry();
  settings.dry_stacks = environment_number("SIMACCEL_DRY_STACKS", 1);
  settings.dry_scratch = environment_number("SIMACCEL_DRY_SCRATCH", 0);
  settings.dry_known_bytes = environment_number("SIMACCEL_DRY_KNOWN", 16384);
  settings.dry_bool = environment_number("SIMACCEL_DRY_BOOL", 1);
  if (settings.is_dry) {
    settings.keeps_stacks = settings.protects_pages = settings.poisons_memory = false;
    settings.only_logs = true;
  }
}

void configure(const py::dict& personality) {
  auto number = [&](const char* name) { return personality[name].cast<size_t>(); };
  settings.total_bytes = number("memory_bytes");
  settings.memory_limits.assign(settings.num_cards, settings.total_bytes);
  settings.capability = int(number("capability"));
  settings.is_rocm = number("is_rocm");
  settings.has_workspaces = number("has_workspaces");
  settings.has_matmul_workspace = number("has_matmul_workspace");
  settings.blas_workspace_bytes = number("blas_workspace_bytes");
  settings.matmul_workspace_bytes = number("matmul_workspace_bytes");
}

int current_device() { return device_of_thread; }

static void check_device(int device) {
  if (device < 0 || device >= settings.num_devices)
    throw c10::AcceleratorError({__func__, __FILE__, uint32_t(__LINE__)}, 101,
                                "CUDA error: invalid device ordinal\n(Simulated device: number " + std::to_string(device) + ")");
}
void set_current_device(int device) {
  check_device(device);
  device_of_thread = device;
}

int index_of(c10::Device device) { return device.has_index() ? device.index() : device_of_thread; }

CurrentDevice::CurrentDevice(int device) : previous(device_of_thread) { set_current_device(device); }
CurrentDevice::~CurrentDevice() { device_of_thread = previous; }
}  // namespace simaccel
