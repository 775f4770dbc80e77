// A CUDA driver for machines without a GPU, named libcuda.so. It calls itself an H100, keeps what it is given on the host, and launches
// nothing: what a program would compute stays zero. But every kernel that the program needs is made and compiled by NVRTC, and every launch
// is held against the limits of the device. tests/gpu/rehearse starts programs with it.
#define _GNU_SOURCE
#include <cuda.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEMORY_MIB = 81559, SHARED_BYTES = 232448, THREADS = 1024, GRID_SIDE = 65535, DEVICES = 4, PROBE_MICROSECONDS = 20000 };
static const size_t PAGE = 4096;

static atomic_long launches, modules, refused;
static int contexts[DEVICES], stream, module;

// A kernel of a module, in a list of all. Of each, REHEARSAL_LAUNCHES=kernels tells how often it was launched.
typedef struct Kernel { char *name; int is_probe; atomic_long launches; struct Kernel *next; } Kernel;
static Kernel *_Atomic kernels;
static _Thread_local CUcontext current;

static CUresult refuse(const char *what, long a, long b, long c) {
  refused++;
  fprintf(stderr, "rehearsal: refused: %s %ld %ld %ld\n", what, a, b, c);
  return CUDA_ERROR_INVALID_VALUE;
}

// As the driver does, calls refuse a thread that has no context.
static CUresult in_context(const char *call) {
  return current ? CUDA_SUCCESS : (fprintf(stderr, "rehearsal: %s without a context\n", call), refused++, CUDA_ERROR_INVALID_CONTEXT);
}

static void report(void) {
  const char *wanted = getenv("REHEARSAL_LAUNCHES");
  if (wanted && !strcmp(wanted, "kernels"))
    for (Kernel *of = kernels; of; of = of->next) fprintf(stderr, "rehearsal: %8ld launches of %s\n", of->launches, of->name);
  fprintf(stderr, "rehearsal: %ld kernels compiled, %ld launches, %ld refused\n", modules, launches, refused);
}

// The device.

CUresult cuInit(unsigned flags) {
  static atomic_int seen;
  if (!seen++) atexit(report);
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { *count = DEVICES; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int length, CUdevice device) { snprintf(name, length, "no GPU, as an H100"); return CUDA_SUCCESS; }
CUresult cuDeviceGetUuid_v2(CUuuid *id, CUdevice device) { memset(id, 1, sizeof *id); return CUDA_SUCCESS; }
CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device) { snprintf(id, length, "0000:01:00.0"); return CUDA_SUCCESS; }
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { *bytes = (size_t)MEMORY_MIB << 20; return CUDA_SUCCESS; }
CUresult cuMemGetInfo_v2(size_t *available, size_t *total) { return *available = *total = (size_t)MEMORY_MIB << 20, CUDA_SUCCESS; }

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = SHARED_BYTES; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = THREADS; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 2147483647; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = GRID_SIDE; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
    default: *value = 0; return refuse("device attribute", attribute, 0, 0);
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *found, CUdevice device) { *found = (CUcontext)&contexts[device]; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext wanted) { current = wanted; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *found) { *found = current; return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *found) {
  if (in_context(__func__)) return CUDA_ERROR_INVALID_CONTEXT;
  *found = (int *)current - contexts;
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize(void) { return CUDA_SUCCESS; }
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return CUDA_SUCCESS; }

// Streams: all is done at once.

CUresult cuStreamCreate(CUstream *made, unsigned flags) { *made = (CUstream)&stream; return in_context(__func__); }
CUresult cuStreamCreateWithPriority(CUstream *made, unsigned flags, int priority) { *made = (CUstream)&stream; return CUDA_SUCCESS; }
CUresult cuStreamDestroy_v2(CUstream of) { return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream of) { return in_context(__func__); }
CUresult cuStreamQuery(CUstream of) { return in_context(__func__); }
CUresult cuStreamWaitEvent(CUstream of, CUevent awaited, unsigned flags) { return CUDA_SUCCESS; }
CUresult cuCtxRecordEvent(CUcontext of, CUevent recorded) { return CUDA_SUCCESS; }
CUresult cuCtxWaitEvent(CUcontext of, CUevent awaited) { return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream of, CUstreamCaptureStatus *status) { *status = CU_STREAM_CAPTURE_STATUS_NONE; return CUDA_SUCCESS; }

// Events: a launch takes 20 microseconds, whatever it is. So no kernel is faster than another when a program tunes itself.

CUresult cuEventCreate(CUevent *made, unsigned flags) { return (*made = calloc(1, sizeof(long))) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY; }
CUresult cuEventDestroy_v2(CUevent of) { free(of); return CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent of, CUstream on) { *(long *)of = launches; return CUDA_SUCCESS; }
CUresult cuEventSynchronize(CUevent of) { return CUDA_SUCCESS; }
CUresult cuEventQuery(CUevent of) { return CUDA_SUCCESS; }
CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to) {
  *milliseconds = 0.02f * (*(long *)to - *(long *)from);
  return CUDA_SUCCESS;
}
#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) { return cuEventElapsedTime_v2(milliseconds, from, to); }

// Memory of the device: on the host, and only where something is written to it.

CUresult cuMemAlloc_v2(CUdeviceptr *made, size_t bytes) {
  size_t *start = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) {
    refuse("allocation of", (long)bytes, 0, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *start = bytes + PAGE;
  *made = (CUdeviceptr)start + PAGE;
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr of) {
  if (of) munmap((void *)(of - PAGE), *(size_t *)(of - PAGE));
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *made, size_t bytes, CUstream on) { return in_context(__func__) ? CUDA_ERROR_INVALID_CONTEXT : cuMemAlloc_v2(made, bytes); }
CUresult cuMemFreeAsync(CUdeviceptr of, CUstream on) { return cuMemFree_v2(of); }
CUresult cuMemAllocHost_v2(void **made, size_t bytes) { return (*made = malloc(bytes)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY; }
CUresult cuMemFreeHost(void *of) { free(of); return CUDA_SUCCESS; }

static CUresult copy(void *into, const void *from, size_t bytes) { memcpy(into, from, bytes); return CUDA_SUCCESS; }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr into, const void *from, size_t bytes, CUstream on) { return copy((void *)into, from, bytes); }
CUresult cuMemcpyDtoHAsync_v2(void *into, CUdeviceptr from, size_t bytes, CUstream on) { return copy(into, (void *)from, bytes); }
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr into, CUdeviceptr from, size_t bytes, CUstream on) { return copy((void *)into, (void *)from, bytes); }
CUresult cuMemsetD8Async(CUdeviceptr into, unsigned char value, size_t bytes, CUstream on) { memset((void *)into, value, bytes); return CUDA_SUCCESS; }

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *what, CUstream on) {
  const char *from = what->srcMemoryType == CU_MEMORYTYPE_HOST ? what->srcHost : (const char *)what->srcDevice;
  char *into = what->dstMemoryType == CU_MEMORYTYPE_HOST ? what->dstHost : (char *)what->dstDevice;
  from += what->srcY * what->srcPitch + what->srcXInBytes;
  into += what->dstY * what->dstPitch + what->dstXInBytes;
  for (size_t row = 0; row < what->Height; row++)
    copy(into + row * what->dstPitch, from + row * what->srcPitch, what->WidthInBytes);
  return CUDA_SUCCESS;
}

// Kernels.

CUresult cuModuleLoadData(CUmodule *made, const void *image) { modules++; *made = (CUmodule)&module; return CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule of) { return CUDA_SUCCESS; }

// CubeCL finds how fast a device is by kernels (`memory_read_throughput`, …) whose loops it lengthens until one takes 20 ms by the host's
// clock. So they take that long here: of a loop that takes no time the count would outgrow its type.
CUresult cuModuleGetFunction(CUfunction *found, CUmodule in, const char *name) {
  Kernel *made = calloc(1, sizeof *made);
  if (!made || !(made->name = strdup(name))) return CUDA_ERROR_OUT_OF_MEMORY;
  made->is_probe = strstr(name, "throughput") != NULL;
  made->next = kernels;
  while (!atomic_compare_exchange_weak(&kernels, &made->next, made)) {}
  *found = (CUfunction)made;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction of, CUfunction_attribute attribute, int value) {
  return attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value > SHARED_BYTES ? refuse("shared memory of", value, 0, 0) : CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *made, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *sizes, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  for (cuuint32_t axis = 0; axis + 1 < rank; axis++)
    if (strides[axis] % 16) return refuse("tensor map of stride", (long)strides[axis], axis, rank);
  for (cuuint32_t axis = 0; axis < rank; axis++)
    if (!box[axis] || box[axis] > 256) return refuse("tensor map of box", box[axis], axis, rank);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction what, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream on, void **arguments, void **extra) {
  launches++;
  Kernel *kernel = (Kernel *)what;
  kernel->launches++;
  if (kernel->is_probe) usleep(PROBE_MICROSECONDS);
  if (in_context(__func__)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!grid_x || !grid_y || !grid_z || grid_x > 2147483647u || grid_y > GRID_SIDE || grid_z > GRID_SIDE) return refuse("grid of", grid_x, grid_y, grid_z);
  if (!block_x || !block_y || !block_z || (long)block_x * block_y * block_z > THREADS || block_z > 64) return refuse("block of", block_x, block_y, block_z);
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult of, const char **name) { *name = "refused"; return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult of, const char **text) { *text = "refused by tests/gpu/driver.c"; return CUDA_SUCCESS; }
