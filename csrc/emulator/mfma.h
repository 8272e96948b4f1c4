// Matrix-core instructions: shapes, element types, and the two ways of accumulating.
#pragma once
#include "launch.h"

namespace moon {

enum MaType : u16 { MA_BF16, MA_F16, MA_F32, MA_I8, MA_OTHER };

// One MFMA's operands as floats: element j of lane l at [j][l]; K a lane group is `per` elements.
struct MfmaTile {
    int m = 0, k = 0, blocks = 1, per = 0;  // m is also n
    alignas(64) float a[16][kLanes], b[16][kLanes];
};

void run_mfma(Wave &, const Op &);
void run_mfma_i8(Wave &, const Op &);
void run_smfmac(Wave &, const Op &);

// The published CDNA3 model of one dot product: n products into c.
float mfma_dot_exact(const float *a, const float *b, int n, float c);

// The same for all rows of a one-block MFMA; false where an operand or product needs the model above.
bool mfma_rows_exact(const MfmaTile &t, const u32 (*c)[kLanes], u32 (*out)[kLanes]);

// Row of the result that register r holds in lane group g.
inline int mfma_row(int m, int r, int g) {
    return m == 32 ? 8 * ((r % 16) / 4) + 4 * g + r % 4 : m == 16 ? 4 * g + r % 4 : r;
}

}  // namespace moon
