// The parts of ONNX Runtime's C interface that the C runtime uses in addition to those of kernels (api.h).
#pragma once

#include <filesystem>

#include "api.h"

extern "C" {
struct OrtAllocator;
struct OrtEnv;
struct OrtMemoryInfo;
struct OrtRunOptions;
struct OrtSession;
}

namespace ort {

enum LoggingLevel : int { kFatal = 4 };
enum AllocatorType : int { kDeviceAllocator = 0 };
enum MemoryType : int { kDefaultMemory = 0 };

using GetErrorMessage = Entry<2, const char*(const OrtStatus*)>;
using CreateEnv = Entry<3, OrtStatus*(int, const char*, OrtEnv**)>;
using DisableTelemetryEvents = Entry<6, OrtStatus*(const OrtEnv*)>;
using CreateSessionFromArray =
    Entry<8, OrtStatus*(const OrtEnv*, const void*, size_t, const OrtSessionOptions*, OrtSession**)>;
using Run = Entry<9, OrtStatus*(OrtSession*, const OrtRunOptions*, const char* const*, const OrtValue* const*, size_t,
                                const char* const*, size_t, OrtValue**)>;
using CreateSessionOptions = Entry<10, OrtStatus*(OrtSessionOptions**)>;
using DisableMemPattern = Entry<17, OrtStatus*(OrtSessionOptions*)>;
using SetSessionLogSeverityLevel = Entry<22, OrtStatus*(OrtSessionOptions*, int)>;
using SetIntraOpNumThreads = Entry<24, OrtStatus*(OrtSessionOptions*, int)>;
using SetInterOpNumThreads = Entry<25, OrtStatus*(OrtSessionOptions*, int)>;
using SessionGetInputCount = Entry<30, OrtStatus*(const OrtSession*, size_t*)>;
using SessionGetOutputCount = Entry<31, OrtStatus*(const OrtSession*, size_t*)>;
using SessionGetInputName = Entry<36, OrtStatus*(const OrtSession*, size_t, OrtAllocator*, char**)>;
using SessionGetOutputName = Entry<37, OrtStatus*(const OrtSession*, size_t, OrtAllocator*, char**)>;
using CreateTensorWithDataAsOrtValue =
    Entry<49, OrtStatus*(const OrtMemoryInfo*, void*, size_t, const int64_t*, size_t, int, OrtValue**)>;
using IsTensor = Entry<50, OrtStatus*(const OrtValue*, int*)>;
using CreateCpuMemoryInfo = Entry<69, OrtStatus*(int, int, OrtMemoryInfo**)>;
using AllocatorFree = Entry<76, OrtStatus*(OrtAllocator*, void*)>;
using GetAllocatorWithDefaultOptions = Entry<78, OrtStatus*(OrtAllocator**)>;
using ReleaseSession = Entry<95, void(OrtSession*)>;
using ReleaseValue = Entry<96, void(OrtValue*)>;
using ReleaseSessionOptions = Entry<100, void(OrtSessionOptions*)>;
using AddSessionConfigEntry = Entry<130, OrtStatus*(OrtSessionOptions*, const char*, const char*)>;
using AddExternalInitializersFromFilesInMemory =
    Entry<279, OrtStatus*(OrtSessionOptions*, const std::filesystem::path::value_type* const*, char* const*,
                          const size_t*, size_t)>;

}  // namespace ort
