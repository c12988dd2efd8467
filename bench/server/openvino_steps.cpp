// openvino_steps.cpp - steps and requests of OpenVINO GenAI's ContinuousBatchingPipeline without Python's lock.
//
// GenAI's Python binding keeps the interpreter's lock in step() and in add_request(), which runs the vision tower: under it
// no stream could move while a picture is looked at, and the measurement would be one of the binding. OpenVINO's own server
// is C++ and lets the requests' threads prepare pictures while another thread steps; this file lets openvino_server.py do the
// same through ctypes, which gives the lock away. The wheel has no headers of GenAI: what is used of it is declared here,
// as exported by libopenvino_genai. The pipeline and the settings are objects that the binding made.
//
// Threads: mg_ov_add and mg_ov_close from any, mg_ov_step from one.
#include <openvino/runtime/tensor.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace ov {
namespace genai {
class GenerationConfig;

enum class GenerationStatus { RUNNING, FINISHED, IGNORED, CANCEL, STOP };
enum class GenerationFinishReason { NONE, STOP, LENGTH, TOOL_CALL };

struct GenerationOutput {
    std::vector<int64_t> generated_ids;
    std::vector<float> generated_log_probs;
    float score;
    GenerationFinishReason finish_reason;
};

class GenerationHandleImpl { // only behind a pointer, so its members need not be known
public:
    GenerationStatus get_status();
    bool can_read();
    void cancel();
    std::unordered_map<uint64_t, GenerationOutput> read();
};

class ContinuousBatchingPipeline {
public:
    std::shared_ptr<GenerationHandleImpl> add_request(uint64_t id, const std::string &prompt,
                                                      const std::vector<ov::Tensor> &images,
                                                      const GenerationConfig &config);
    void step();
    bool has_non_finished_requests();
};
} // namespace genai
} // namespace ov

using ov::genai::ContinuousBatchingPipeline;
using ov::genai::GenerationHandleImpl;
using ov::genai::GenerationStatus;

static std::mutex lock; // of `open`
static std::map<uint64_t, std::shared_ptr<GenerationHandleImpl>> open;

extern "C" {

// Begins an answer to `prompt` about one picture of RGB bytes (none: height 0); the vision tower runs in here. 0, or -1 with
// the reason on standard error.
int mg_ov_add(ContinuousBatchingPipeline *pipe, uint64_t id, const char *prompt, uint8_t *rgb, size_t height, size_t width,
              const ov::genai::GenerationConfig *config) {
    try {
        std::vector<ov::Tensor> images;
        if (height) images.emplace_back(ov::element::u8, ov::Shape{1, height, width, 3}, rgb);
        auto handle = pipe->add_request(id, prompt, images, *config);
        std::lock_guard<std::mutex> hold(lock);
        open.emplace(id, std::move(handle));
        return 0;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "add_request: %s\n", e.what());
        return -1;
    }
}

// One step over all requests. Writes (id, token) pairs to `out`, token -1 for an answer's end; returns the number of pairs, 0
// when there was nothing to do, -1 after an error. `most` is the room for pairs.
int mg_ov_step(ContinuousBatchingPipeline *pipe, int64_t *out, int most) {
    try {
        if (!pipe->has_non_finished_requests()) return 0;
        pipe->step();
        std::lock_guard<std::mutex> hold(lock);
        int n = 0;
        for (auto i = open.begin(); i != open.end() && n + 2 < most;) {
            bool over = i->second->get_status() != GenerationStatus::RUNNING;
            while (n + 2 < most && i->second->can_read())
                for (const auto &sequence : i->second->read())
                    for (int64_t token : sequence.second.generated_ids) {
                        if (n + 2 >= most) break;
                        out[2 * n] = (int64_t)i->first;
                        out[2 * n++ + 1] = token;
                    }
            if (!over) {
                ++i;
                continue;
            }
            out[2 * n] = (int64_t)i->first;
            out[2 * n++ + 1] = -1;
            i = open.erase(i);
        }
        return n;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "step: %s\n", e.what());
        return -1;
    }
}

// Ends an answer before its time.
void mg_ov_close(uint64_t id) {
    std::lock_guard<std::mutex> hold(lock);
    auto i = open.find(id);
    if (i != open.end()) i->second->cancel();
}
}
