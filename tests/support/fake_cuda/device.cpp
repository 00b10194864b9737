// The guard and the hooks by which a torch that was built for the CPU has CUDA devices.
// Streams and events do nothing: operations are executed in the order of their calls.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>

namespace {

constexpr c10::DeviceIndex kDevices = 8;

thread_local c10::DeviceIndex current = 0;
thread_local std::array<c10::StreamId, kDevices> stream_of{};
std::atomic<c10::StreamId> next_stream{1};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Device getDevice() const override { return {type(), current}; }
  void uncheckedSetDevice(c10::Device d) const noexcept override { current = d.index() < 0 ? current : d.index(); }
  void setDevice(c10::Device d) const override { uncheckedSetDevice(d); }
  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device before = getDevice();
    uncheckedSetDevice(d);
    return before;
  }

  static c10::Stream stream(c10::DeviceIndex index, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, index), id);
  }
  static c10::DeviceIndex index_of(c10::Device d) { return d.index() < 0 ? current : d.index(); }
  c10::Stream getStream(c10::Device d) const override { return stream(index_of(d), stream_of[index_of(d)]); }
  c10::Stream getDefaultStream(c10::Device d) const override { return stream(index_of(d), 0); }
  c10::Stream getNewStream(c10::Device d, int) const override { return stream(index_of(d), next_stream++); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    const c10::Stream before = getStream(s.device());
    stream_of[s.device_index()] = s.id();
    return before;
  }

  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = &current;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, new Guard());

}  // namespace

namespace at {

struct PretendedHooks final : CUDAHooksInterface {
  explicit PretendedHooks(CUDAHooksArgs) {}
  static const c10::impl::DeviceGuardImplInterface* guard() {
    return c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
  }
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return kDevices; }
  DeviceIndex deviceCount() const override { return kDevices; }
  DeviceIndex current_device() const override { return guard()->getDevice().index(); }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(DeviceIndex d) const override { guard()->setDevice({DeviceType::CUDA, d}); }
  DeviceIndex exchangeDevice(DeviceIndex d) const override {
    return guard()->exchangeDevice({DeviceType::CUDA, d}).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex d) const override { return exchangeDevice(d); }
  Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return false; }
  void deviceSynchronize(DeviceIndex) const override {}
  std::string showConfig() const override { return "a CUDA that is not there"; }
};

C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", PretendedHooks);

}  // namespace at
