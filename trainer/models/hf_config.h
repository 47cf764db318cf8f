// A Hugging Face config.json as a model shape.
//
// Known architectures: GPT2LMHeadModel, LlamaForCausalLM, NemotronForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM,
// MixtralForCausalLM, Qwen3MoeForCausalLM, GptOssForCausalLM, DeepseekV3ForCausalLM, T5ForConditionalGeneration.
// Both spellings of rotary positions are read (rope_theta + rope_scaling, and rope_parameters). A key that the
// architecture cannot do without must be there; a key whose absence `transformers` fills takes that default. A setting
// this program does not build (another activation, linear RoPE scaling, sparse steps between MoE layers, ...) is an
// error that names the key and the file, never ignored.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "profiler/base/error.h"
#include "trainer/models/model.h"

namespace mbb::trainer {

// `path` is the file or a folder that holds a config.json. The shape's name is the folder's name.
Result<ModelShape> read_hf_config(const std::string& path);

// The same from text; `file` is what errors call it and `name` becomes the shape's name.
Result<ModelShape> parse_hf_config(std::string_view text, const std::string& file, const std::string& name);

// Whether --model is a path (it contains '/' or ends in ".json") and no name of the table; the file that such a path
// means.
bool is_model_path(std::string_view name_or_path);
std::filesystem::path model_file(std::string_view path);

// What --model takes: a name of the table, or a path.
Result<ModelShape> resolve_model(const std::string& name_or_path);

}  // namespace mbb::trainer
