// Sub-dword addressing (SDWA) and data-parallel primitives (DPP): forms of VOP1, VOP2 and VOPC whose sources are
// selected within or across lanes before the plain operation runs.
#pragma once
#include "wave.h"

namespace moon {

// Points the plain operation at the temporary rows and gives it the modifiers of the extra dword.
void prepare_inner(Op &inner, bool sdwa, u32 ext);
void run_sdwa(Wave &w, const Op &op);
void run_dpp(Wave &w, const Op &op);

}  // namespace moon
