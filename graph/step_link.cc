#include "graph/step_link.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int64_t kAlignment = 16;   // of each input in a slot
constexpr int64_t kTurnBytes = 256;  // in front of the slots

}  // namespace

absl::StatusOr<std::unique_ptr<StepLink>> StepLink::Create(
    Backend* backend, int num_lanes, int num_phases, int64_t report_bytes) {
  std::unique_ptr<StepLink> step(new StepLink(backend, num_phases));
  SG_ASSIGN_OR_RETURN(void* const marks,
                      step->link_->AllocateShared(num_lanes * sizeof(int64_t)));
  step->marks_ = static_cast<int64_t*>(marks);
  if (report_bytes == 0) return step;
  SG_CHECK(report_bytes % 8 == 0) << report_bytes;
  SG_ASSIGN_OR_RETURN(
      void* const ring,
      step->link_->AllocateShared(RecordRing::Bytes(kReports, report_bytes)));
  step->ring_ = new (ring) RecordRing{
      .slots = kReports, .words = static_cast<uint64_t>(report_bytes / 8)};
  return step;
}

void StepLink::Pending::Add(void* device, const void* host, int64_t bytes) {
  const int64_t begin = static_cast<int64_t>(data.size());
  writes.push_back({device, begin, bytes});
  data.resize((begin + bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::memcpy(data.data() + begin, host, bytes);
}

void StepLink::Stage(void* device, const void* host, int64_t bytes) {
  (ahead_ ? guessed_ : staged_).Add(device, host, bytes);
}

absl::Status StepLink::Upload(Inputs& inputs, const std::vector<char>& data) {
  // The run before the last has taken what was in this slot.
  const std::atomic_ref<int64_t> taken(*inputs.slots.taken);
  while (taken.load(std::memory_order_acquire) < inputs.runs - 1)
    SG_RETURN_IF_ERROR(link_->Poll());
  // What is on its way from this slot's memory.
  while (!link_->Uploaded()) SG_RETURN_IF_ERROR(link_->Poll());
  const int64_t begin = inputs.runs % 2 * inputs.slots.bytes;
  std::memcpy(inputs.shared + begin, data.data(), data.size());
  link_->Upload(inputs.slots.data + begin, inputs.shared + begin,
                inputs.slots.bytes);
  return absl::OkStatus();
}

absl::Status StepLink::EndAhead(int phase, bool good) {
  ahead_ = false;
  Inputs& inputs = phases_[phase];
  absl::Status status;
  if (good && !inputs.writes.empty()) {
    inputs.guess = inputs.newest;
    for (const Write& one : guessed_.writes) {
      for (const Write& input : inputs.writes) {
        if (input.device == one.device && input.bytes == one.bytes)
          std::memcpy(inputs.guess.data() + input.begin, guessed_.At(one),
                      one.bytes);
      }
    }
    status = Upload(inputs, inputs.guess);
    if (!status.ok()) inputs.guess.clear();
  }
  guessed_.Clear();
  return status;
}

void StepLink::Written(void* device, const void* host, int64_t bytes) {
  char* const begin = static_cast<char*>(device);
  for (Inputs& inputs : phases_) {
    for (const Write& write : inputs.writes) {
      char* const to = static_cast<char*>(write.device);
      char* const from = std::max(begin, to);
      const int64_t overlap = std::min(begin + bytes, to + write.bytes) - from;
      if (overlap <= 0) continue;
      std::memcpy(inputs.newest.data() + write.begin + (from - to),
                  static_cast<const char*>(host) + (from - begin), overlap);
    }
  }
}

absl::Status StepLink::Flush() {
  for (const Write& one : staged_.writes) {
    SG_RETURN_IF_ERROR(
        backend_->CopyToDevice(one.device, staged_.At(one), one.bytes));
    Written(one.device, staged_.At(one), one.bytes);
  }
  std::swap(staged_, flushed_);
  staged_.Clear();
  return absl::OkStatus();
}

absl::Status StepLink::BeginRecording(int phase) {
  Inputs& inputs = phases_[phase];
  inputs.writes = flushed_.writes;
  inputs.newest = flushed_.data;
  if (inputs.writes.empty()) return absl::OkStatus();
  UploadSlots& slots = inputs.slots;
  slots.bytes = static_cast<int64_t>(inputs.newest.size());
  SG_ASSIGN_OR_RETURN(void* const shared,
                      link_->AllocateShared(kAlignment + 2 * slots.bytes));
  slots.taken = static_cast<int64_t*>(shared);
  inputs.shared = static_cast<char*>(shared) + kAlignment;
  SG_ASSIGN_OR_RETURN(void* const device,
                      link_->AllocateDevice(kTurnBytes + 2 * slots.bytes));
  slots.turn = static_cast<int64_t*>(device);
  slots.data = static_cast<char*>(device) + kTurnBytes;
  return absl::OkStatus();
}

void StepLink::RecordTakes(int phase) {
  const Inputs& inputs = phases_[phase];
  if (inputs.writes.empty()) return;
  for (const Write& write : inputs.writes)
    link_->Take(/*lane=*/0, write.device, inputs.slots, write.begin,
                write.bytes);
  link_->EndTurn(/*lane=*/0, inputs.slots);
}

absl::Status StepLink::Hand(int phase) {
  Inputs& inputs = phases_[phase];
  for (const Write& one : staged_.writes) {
    const bool known = std::any_of(
        inputs.writes.begin(), inputs.writes.end(), [&](const Write& input) {
          return input.device == one.device && input.bytes == one.bytes;
        });
    Written(one.device, staged_.At(one), one.bytes);
    if (!known)
      SG_RETURN_IF_ERROR(
          backend_->CopyToDevice(one.device, staged_.At(one), one.bytes));
  }
  staged_.Clear();
  if (inputs.writes.empty()) return absl::OkStatus();
  if (inputs.guess != inputs.newest)
    SG_RETURN_IF_ERROR(Upload(inputs, inputs.newest));
  inputs.guess.clear();
  ++inputs.runs;
  // The replay is enqueued behind it; meanwhile the run before goes on.
  while (!link_->Uploaded()) SG_RETURN_IF_ERROR(link_->Poll());
  return link_->Poll();
}

absl::Status StepLink::ReadReport(uint64_t number, void* to, int64_t bytes) {
  for (;;) {
    switch (ring_->Read(number, to, bytes)) {
      case RecordRing::Found::kFound:
        return absl::OkStatus();
      case RecordRing::Found::kOverwritten:
        return absl::OutOfRangeError(absl::StrCat(
            "report ", number, " was overwritten: the ring holds the newest ",
            kReports, " only; read each before ", kReports,
            " more runs are enqueued"));
      case RecordRing::Found::kNotYet:
        SG_RETURN_IF_ERROR(link_->Poll());
    }
  }
}

}  // namespace shardgraph
