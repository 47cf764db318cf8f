// Which ranks a message goes to or comes from.
#pragma once

#include <vector>

#include "trainer/ops/attrs.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

bool sends(const Op& op);
bool receives(const Op& op);

// The stream of a message of this form.
Stream message_stream(MessageForm form, Direction direction, bool receiving);

// World ranks at the other end of a send or receive of `rank`, none at an end of a pipeline that is no ring.
//
// Along a pipeline it is the next or the previous stage. Between meshes it is the other mesh's ranks of the same
// replica that hold the same part: the tensor is cut over TP in dimension 0 on both sides, so an encoder rank speaks
// with tp / encoder tp neighbours of the decoder's first stage, each of which has one slice of its rows, in rank order.
std::vector<int> message_peers(const Mesh& mesh, const CommAttrs& attrs, bool receiving, int rank);

}  // namespace mbb::trainer
