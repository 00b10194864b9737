// The functions of libcuda.so.1 that rlvr/rollout/cuda_ipc.py calls, for a fake GPU: memory that processes share.
// It is stricter than CUDA where CUDA leaves the behaviour undefined: memory that another process still has open is not
// freed, and the process that owns memory cannot open it. Freed memory reads as NaN in every format. Reading from
// another process's memory fails unless this process has waited for its own GPU work since it opened that memory: a
// stream might still use the memory that is copied to.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>

namespace {

enum Status { kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidContext = 201, kIllegalState = 401 };
constexpr size_t kPage = 4096;  // before the memory itself: who has it open
constexpr int kReaders = 64;

struct Piece {
  void* page;
  size_t size;
  int file;
};
struct Handle {
  char bytes[64];
};
struct Place {  // what a handle says
  uint64_t magic;
  int process, file;
  uint64_t size;
};

constexpr uint64_t kMagic = 0x726c76722d697063;
std::map<uint64_t, Piece> own, opened;
bool waited = false;  // since a piece was opened last

int* readers(void* page) { return static_cast<int*>(page); }

bool alive(int process) {
  char path[64], state = 'Z';
  std::snprintf(path, sizeof path, "/proc/%d/stat", process);
  if (FILE* stat = std::fopen(path, "r")) {
    if (std::fscanf(stat, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
    std::fclose(stat);
  }
  return state != 'Z' && state != 'X';
}

void* map(int file, size_t size) {
  return mmap(nullptr, kPage + size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}

uint64_t address(void* page) { return reinterpret_cast<uint64_t>(page) + kPage; }

}  // namespace

extern "C" {

Status cuMemAlloc_v2(uint64_t* where, size_t size) {
  const int file = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (size == 0 || file < 0 || ftruncate(file, kPage + size) != 0) return kOutOfMemory;
  void* page = map(file, size);
  if (page == MAP_FAILED) return kOutOfMemory;
  own[*where = address(page)] = {page, size, file};
  return kSuccess;
}

Status cuMemFree_v2(uint64_t where) {
  const auto piece = own.find(where);
  if (piece == own.end()) return kInvalidValue;
  const auto [page, size, file] = piece->second;
  for (int i = 0; i < kReaders; ++i)
    if (readers(page)[i] != 0 && alive(readers(page)[i])) return kIllegalState;
  std::memset(reinterpret_cast<void*>(where), 0xff, size);
  munmap(page, kPage + size);
  close(file);
  own.erase(piece);
  return kSuccess;
}

Status cuIpcGetMemHandle(Handle* handle, uint64_t where) {
  const auto piece = own.find(where);
  if (piece == own.end()) return kInvalidValue;
  const Place place{kMagic, getpid(), piece->second.file, piece->second.size};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &place, sizeof place);
  return kSuccess;
}

Status cuIpcOpenMemHandle_v2(uint64_t* where, Handle handle, unsigned flags) {
  Place place;
  std::memcpy(&place, &handle, sizeof place);
  if (place.magic != kMagic || flags != 1) return kInvalidValue;
  if (place.process == getpid()) return kInvalidContext;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", place.process, place.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return kInvalidValue;
  void* page = map(file, place.size);
  if (page == MAP_FAILED) return kOutOfMemory;
  for (int i = 0; i < kReaders; ++i)
    if (readers(page)[i] == 0 || !alive(readers(page)[i])) {
      readers(page)[i] = getpid();
      break;
    }
  opened[*where = address(page)] = {page, place.size, file};
  waited = false;
  return kSuccess;
}

Status cuIpcCloseMemHandle(uint64_t where) {
  const auto piece = opened.find(where);
  if (piece == opened.end()) return kInvalidValue;
  const auto [page, size, file] = piece->second;
  for (int i = 0; i < kReaders; ++i)
    if (readers(page)[i] == getpid()) {
      readers(page)[i] = 0;
      break;
    }
  munmap(page, kPage + size);
  close(file);
  opened.erase(piece);
  return kSuccess;
}

Status cuMemcpyDtoD_v2(uint64_t target, uint64_t source, size_t size) {
  for (const auto& [where, piece] : opened)
    if (where <= source && source < where + piece.size && !waited) return kIllegalState;
  std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<void*>(source), size);
  return kSuccess;
}

Status cuCtxSynchronize() {
  waited = true;
  return kSuccess;
}

Status cuGetErrorName(Status status, const char** name) {
  switch (status) {
    case kSuccess: *name = "CUDA_SUCCESS"; break;
    case kOutOfMemory: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case kInvalidContext: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case kIllegalState: *name = "CUDA_ERROR_ILLEGAL_STATE"; break;
    default: *name = "CUDA_ERROR_INVALID_VALUE";
  }
  return kSuccess;
}
}
