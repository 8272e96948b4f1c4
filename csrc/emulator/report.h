// Pieces of the launch report.
#pragma once
#include "launch.h"

namespace moon {

std::string counts_json(const Launch &l);  // ", \"counts\": {...}" or nothing

}  // namespace moon
