// Collectives between the simulated devices of several processes: gloo on the devices' memory, ordered like NCCL's.
#include "bindings.h"
#include "dry/dry.h"
#include "tensors.h"

#include <ATen/core/ivalue_inl.h>
#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>

namespace simaccel::collectives {
using namespace c10d;
using Tensors = std::vector<Tensor>;
using WorkPointer = c10::intrusive_ptr<Work>;

struct CollectiveWork final : Work {
  Clock done;
  int device;
  Tensors kept;  // until somebody waits, as NCCL's backend keeps them
  Tensors outputs;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  CollectiveWork(int rank, OpType type, Clock done, int device, Tensors kept, Tensors outputs, c10::intrusive_ptr<c10::ivalue::Future> future)
      : Work(rank, type), done(std::move(done)), device(device), kept(std::move(kept)), outputs(std::move(outputs)), future(std::move(future)) {
    completed_ = true;
  }
  bool isCompleted() override {
    host_waits(done, "work.is_completed", false);
    return true;
  }
  bool isSuccess() const override { return true; }
  void synchronize() override {
    stream_waits(current_stream(device), done);
    kept.clear();
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void blockCurrentStream() override { synchronize(); }
  std::vector<Tensor> result() override { return outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
};

struct CollectiveOptions : Backend::Options {
  bool is_high_priority_stream = false;
  CollectiveOptions() : Backend::Options("nccl") {}
};

static std::map<std::string, uint64_t> dry_bytes;  // dry mode: what collectives would have written

class SimulatedNccl final : public Backend {
 public:
  SimulatedNccl(int rank, int size, c10::intrusive_ptr<Backend> gloo, c10::intrusive_ptr<CollectiveOptions> options)
      : Backend(rank, size), gloo_(std::move(gloo)), options_(std::move(options)) {}
  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }

  WorkPointer broadcast(Tensors& tensors, const BroadcastOptions& options) override {
    return run("broadcast", OpType::BROADCAST, tensors, tensors, [&] {
      auto views = cpu_views(tensors);
      gloo_->broadcast(views, options)->wait();
    });
  }
  WorkPointer allreduce(Tensors& tensors, const AllreduceOptions& given) override {
    auto options = given;
    bool averages = replace_average(options);
    return run("all_reduce", OpType::ALLREDUCE, tensors, tensors, [&] { reduce_all(cpu_views(tensors), options, averages); });
  }
  WorkPointer allreduce_coalesced(Tensors& tensors, const AllreduceCoalescedOptions& given) override {
    AllreduceOptions options;
    options.reduceOp = given.reduceOp;
    bool averages = replace_average(options);
    return run("all_reduce_coalesced", OpType::ALLREDUCE_COALESCED, tensors, tensors, [&] {
      for (auto& view : cpu_views(tensors)) reduce_all({view}, options, averages);
    });
  }
  WorkPointer reduce(Tensors& tensors, const ReduceOptions& given) override {
    auto options = given;
    bool averages = replace_average(options);
    return run("reduce", OpType::REDUCE, tensors, tensors, [&] {
      auto views = cpu_views(tensors);
      gloo_->reduce(views, options)->wait();
      if (averages && options.rootRank == rank_) views[0].div_(size_);
    });
  }
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs, const AllgatherOptions& options) override {
    return run("all_gather", OpType::ALLGATHER, inputs, outputs.at(0), [&] {
      std::vector<Tensors> output_views{cpu_views(outputs[0])};
      auto input_views = cpu_views(inputs);
      gloo_->allgather(output_views, input_views, options)->wait();
    });
  }
  WorkPointer _allgather_base(Tensor& output, Tensor& input, const AllgatherOptions&) override {
    return run("all_gather_into_tensor", OpType::_ALLGATHER_BASE, {input}, {output}, [&] { gather_into(output, input); });
  }
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const AllgatherOptions&) override {
    return run("all_gather_into_tensor", OpType::COALESCED, inputs, outputs, [&] {
      for (size_t i = 0; i < inputs.size(); i++) gather_into(outputs[i], inputs[i]);
    });
  }
  WorkPointer _reduce_scatter_base(Tensor& output, Tensor& input, const ReduceScatterOptions& options) override {
    return run("reduce_scatter_tensor", OpType::_REDUCE_SCATTER_BASE, {input}, {output},
               [&] { reduce_into(output, input, options.reduceOp); });
  }
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const ReduceScatterOptions& options) override {
    return run("reduce_scatter_tensor", OpType::COALESCED, inputs, outputs, [&] {
      for (size_t i = 0; i < inputs.size(); i++) reduce_into(outputs[i], inputs[i], options.reduceOp);
    });
  }
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs, const GatherOptions& options) override {
    return run("gather", OpType::GATHER, inputs, flattened(outputs), [&] {
      std::vector<Tensors> output_views;
      for (auto& tensors : outputs) output_views.push_back(cpu_views(tensors));
      auto input_views = cpu_views(inputs);
      gloo_->gather(output_views, input_views, options)->wait();
    });
  }
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs, const ScatterOptions& options) override {
    return run("scatter", OpType::SCATTER, flattened(inputs), outputs, [&] {
      std::vector<Tensors> input_views;
      for (auto& tensors : inputs) input_views.push_back(cpu_views(tensors));
      auto output_views = cpu_views(outputs);
      gloo_->scatter(output_views, input_views, options)->wait();
    });
  }
  WorkPointer alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
                            const AllToAllOptions& options) override {
    return run("all_to_all_single", OpType::ALLTOALL_BASE, {input}, {output}, [&] {
      auto output_view = cpu_view_of(output), input_view = cpu_view_of(input);
      gloo_->alltoall_base(output_view, input_view, output_sizes, input_sizes, options)->wait();
    });
  }
  WorkPointer send(Tensors& tensors, int to, int tag) override {
    return run("send", OpType::SEND, tensors, {}, [&] {
      auto views = cpu_views(tensors);
      gloo_->send(views, to, tag)->wait();
    });
  }
  WorkPointer recv(Tensors& tensors, int from, int tag) override {
    return run("recv", OpType::RECV, {}, tensors, [&] {
      auto views = cpu_views(tensors);
      gloo_->recv(views, from, tag)->wait();
    });
  }
  WorkPointer barrier(const BarrierOptions& options) override {
    auto work = gloo_->barrier(options);
    work->wait();
    return work;
  }

  // Collectives that are issued together run one after the other.
  void startCoalescing() override {}
  WorkPointer endCoalescing() override {
    int device = streams_.empty() ? 0 : streams_.begin()->first;
    Clock done = streams_.empty() ? Clock() : clock_of(streams_.begin()->second);
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
    future->markCompleted(at::IValue());
    return c10::make_intrusive<CollectiveWork>(rank_, OpType::COALESCED, done, device, Tensors(), Tensors(), future);
  }

 private:
  // Inputs are read and outputs written on the communication stream, which waits for the current one.
  WorkPointer run(const char* name, OpType type, const Tensors& inputs, const Tensors& outputs, const std::function<void()>& collective) {
    raise_pending_finding();
    sequence_++;
    int device = (inputs.empty() ? outputs : inputs).at(0).device().index();
    auto entry = streams_.find(device);
    if (entry == streams_.end()) entry = streams_.emplace(device, new_stream(device)).first;
    int stream = entry->second;
    stream_waits(stream, clock_of(current_stream(device)));
    uint64_t count = launch(stream);
    auto stack = current_stack();
    for (auto& tensor : inputs) record_access(tensor, false, stream, count, name, stack);
    for (auto& tensor : outputs) record_access(tensor, true, stream, count, name, stack);
    if (settings.is_dry) run_dry(name, type, inputs, outputs, collective);
    else collective();
    Tensors kept = inputs;
    kept.insert(kept.end(), outputs.begin(), outputs.end());
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{c10::Device(kDeviceType, c10::DeviceIndex(device))});
    {
      c10::StreamGuard on(stream_handle(stream));
      future->markCompleted(at::IValue(outputs));
    }
    return c10::make_intrusive<CollectiveWork>(rank_, type, clock_of(stream), device, kept, outputs, future);
  }

  // Few known numbers are sent; of others only the bytes are counted.
  static void run_dry(const char* name, OpType type, const Tensors& inputs, const Tensors& outputs, const std::function<void()>& collective) {
    auto is_sendable = [](const Tensor& tensor) { return dry::is_little(tensor) && dry::is_known(tensor); };
    bool gathers = type == OpType::ALLGATHER || type == OpType::_ALLGATHER_BASE;
    bool sends = type != OpType::SEND && type != OpType::RECV && std::all_of(inputs.begin(), inputs.end(), is_sendable) &&
                 (gathers || std::all_of(outputs.begin(), outputs.end(), is_sendable));
    if (sends) collective();
    for (auto& tensor : outputs) {
      dry::set_known(tensor, sends && dry::is_little(tensor));
      if (!sends) dry_bytes[name] += tensor.numel() * tensor.element_size();
    }
  }

  static Tensors cpu_views(const Tensors& tensors) {
    Tensors views;
    for (auto& tensor : tensors) {
      TORCH_CHECK(on_device(tensor), "No backend type associated with device type ", tensor.device().type());
      TORCH_CHECK(tensor.is_non_overlapping_and_dense(), "Tensors must be contiguous");
      views.push_back(cpu_view_of(tensor));
    }
    return views;
  }
  static Tensors flattened(const std::vector<Tensors>& lists) {
    Tensors all;
    for (auto& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
  }

  template <class Options>
  static bool replace_average(Options& options) {  // gloo has no average
    if (options.reduceOp.op_ != ReduceOp::AVG) return false;
    options.reduceOp = ReduceOp::SUM;
    return true;
  }
  void reduce_all(Tensors views, const AllreduceOptions& options, bool averages) {
    gloo_->allreduce(views, options)->wait();
    if (averages)
      for (auto& view : views) view.div_(size_);
  }
  void gather_into(const Tensor& output, const Tensor& input) {
    auto parts = cpu_view_of(output).view({-1}).chunk(size_);
    std::vector<Tensors> output_views{Tensors(parts.begin(), parts.end())};
    Tensors input_views{cpu_view_of(input).reshape({-1})};
    gloo_->allgather(output_views, input_views, AllgatherOptions())->wait();
  }
  void reduce_into(const Tensor& output, const Tensor& input, ReduceOp op) {
    AllreduceOptions options;
    options.reduceOp = op;
    bool averages = replace_average(options);
    Tensors sum{cpu_view_of(input).clone()};
    reduce_all(sum, options, false);
    auto part = sum[0].view({-1}).chunk(size_).at(rank_);
    if (averages) part.div_(size_);
    cpu_view_of(output).view({-1}).copy_(part);
  }

  c10::intrusive_ptr<Backend> gloo_;
  c10::intrusive_ptr<CollectiveOptions> options_;
  std::map<int, int> streams_;  // of communication, by device
  uint64_t sequence_ = 0;
};

// DDP times its parts by the clock of the host: kernels run when they are launched.
struct HostTimer final : Timer {
  explicit HostTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    int64_t begin_ns = getTimeRef(start), end_ns = getTimeRef(end);
    if (begin_ns == kUnsetTime || end_ns == kUnsetTime || end_ns < begin_ns) return std::nullopt;
    return end_ns - begin_ns;
  }
};

}  // namespace simaccel::collectives

namespace simaccel {
void bind_collectives(py::module_& m) {
  using namespace collectives;
  py::module_::import("torch._C._distributed_c10d");
  py::class_<CollectiveOptions, c10d::Backend::Options, c10::intrusive_ptr<CollectiveOptions>>(m, "Options")
      .def(py::init([](bool is_high_priority_stream) {
             auto options = c10::make_intrusive<CollectiveOptions>();
             options->is_high_priority_stream = is_high_priority_stream;
             return options;
           }), py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &CollectiveOptions::is_high_priority_stream);
  py::class_<SimulatedNccl, c10d::Backend, c10::intrusive_ptr<SimulatedNccl>>(m, "SimulatedNccl")
      .def(py::init([](int rank, int size, const c10::intrusive_ptr<c10d::Backend>& gloo, const c10::intrusive_ptr<CollectiveOptions>& options) {
        return c10::make_intrusive<SimulatedNccl>(rank, size, gloo, options);
      }))
      .def_property_readonly("uid", [](SimulatedNccl& backend) { return backend.getID(); })
      .def("_set_default_timeout", [](SimulatedNccl& backend, std::chrono::milliseconds timeout) { backend.setTimeout(timeout); });
  m.def("collective_bytes", [] { return dry_bytes; });
}
}  // namespace simaccel
namespace c10d {
using simaccel::collectives::HostTimer;
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::CUDA, HostTimer)
}  // namespace c10d
