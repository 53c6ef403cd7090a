// Stream capture: which streams take part, what is refused, what comes out.
// The rules are those of CUDA's programming guide ("Creating a Graph Using
// Stream Capture"), the codes 900 to 908.

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fake_cuda/world.h"

namespace shardgraph::fake_cuda {

cudaError_t World::BeginCapture(cudaStream_t stream,
                                cudaStreamCaptureMode mode) {
  if (stream->legacy) return cudaErrorStreamCaptureUnsupported;
  if (stream->capture != nullptr) return cudaErrorIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->id = ++capture_id_;
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->streams.insert(stream);
  stream->capture = capture;
  stream->frontier.clear();
  captures_.insert(capture);
  return cudaSuccess;
}

cudaError_t World::EndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream->capture == nullptr) return cudaErrorIllegalState;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  if (capture->origin != stream) {
    Invalidate(*capture);
    return cudaErrorStreamCaptureUnmatched;
  }
  // Every node on another stream must be an ancestor of the origin's frontier.
  std::vector<bool> joined(capture->nodes.size());
  std::vector<int> stack(stream->frontier.begin(), stream->frontier.end());
  while (!stack.empty()) {
    const auto node = static_cast<size_t>(stack.back());
    stack.pop_back();
    if (joined[node]) continue;
    joined[node] = true;
    stack.insert(stack.end(), capture->nodes[node].after.begin(),
                 capture->nodes[node].after.end());
  }
  bool unjoined = false;
  for (cudaStream_t s : capture->streams) {
    for (int node : s->frontier) {
      unjoined = unjoined || !joined[static_cast<size_t>(node)];
    }
  }
  capture->ended = true;
  captures_.erase(capture);
  for (cudaStream_t s : capture->streams) {
    s->capture = nullptr;
    s->frontier.clear();
  }
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (unjoined) return cudaErrorStreamCaptureUnjoined;
  *graph = AddGraph(std::move(capture->nodes));
  return cudaSuccess;
}

cudaError_t World::CheckUnsafe() {
  if (t_capture_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  bool refused = false;
  for (const auto& c : captures_) {
    const bool own = c->thread == std::this_thread::get_id();
    if (own ? c->mode != cudaStreamCaptureModeRelaxed
            : c->mode == cudaStreamCaptureModeGlobal &&
                  t_capture_mode == cudaStreamCaptureModeGlobal) {
      Invalidate(*c);
      refused = true;
    }
  }
  return refused ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t World::CheckLegacy(cudaStream_t stream) {
  if (!stream->legacy) return cudaSuccess;
  bool refused = false;
  for (const auto& c : captures_) {
    for (cudaStream_t s : c->streams) {
      if (s->device == stream->device && !(s->flags & cudaStreamNonBlocking)) {
        Invalidate(*c);
        refused = true;
      }
    }
  }
  return refused ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

cudaError_t World::RefuseWhileCapturing(cudaStream_t stream) {
  bool refused = false;
  for (const auto& c : captures_) {
    if (stream == nullptr || c->streams.count(stream) != 0) {
      Invalidate(*c);
      refused = true;
    }
  }
  return refused ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

}  // namespace shardgraph::fake_cuda
