// Machine code to micro-operations. Field positions are those of the CDNA3 and CDNA4 instruction set documents; the
// encoding is told by the leading bits, the instruction by its row in the tables.
#include "program.h"
#include "sdwa_dpp.h"

namespace moon {

namespace {

u32 bits(u32 x, int hi, int lo) { return (x >> lo) & (hi - lo == 31 ? ~0u : (1u << (hi - lo + 1)) - 1); }

struct Decoder {
    Program &p;
    const u32 *code;
    size_t dwords;  // available
    Op &op;
    bool literal = false;  // one dword after the instruction's own

    u32 word(size_t i) const { return i < dwords ? code[i] : 0; }

    const Row *row(Enc e, u32 o) const { return find_row(e, o, p.arch_bit); }

    const u32 *constant_row(u32 lo, u32 hi) {
        for (const auto &r : p.rows)
            if (r[0] == lo && r[kLanes] == hi) return r.data();
        p.rows.emplace_back(2 * kLanes);
        for (int i = 0; i < kLanes; i++) p.rows.back()[size_t(i)] = lo, p.rows.back()[size_t(i + kLanes)] = hi;
        return p.rows.back().data();
    }

    static bool half_type(Ty t) {
        return t == Ty::F16 || t == Ty::B16 || t == Ty::PKF16 || t == Ty::PK16 || t == Ty::BF16;
    }

    // A 9-bit source (8-bit scalar sources are the same below 256).
    bool source(Operand *o, u32 code9, Ty ty, u32 literal_value) {
        o->ty = ty;
        o->dwords = u8(ty_dwords(ty));
        if (code9 >= 256) {
            o->kind = Kind::VGPR;
            o->index = u16(code9 - 256);
            return true;
        }
        if (code9 < 128) {
            o->kind = Kind::SGPR;
            o->index = u16(code9);
            return code9 != 125;
        }
        bool wide = ty == Ty::F64 || ty == Ty::B64 || ty == Ty::MASK64;
        u64 v = 0;
        if (code9 <= 192) {
            v = code9 - 128;
        } else if (code9 <= 208) {
            v = u64(-i64(code9 - 192));
        } else if (code9 >= 240 && code9 <= 248) {
            static const u32 f32[] = {0x3f000000, 0xbf000000, 0x3f800000, 0xbf800000, 0x40000000,
                                      0xc0000000, 0x40800000, 0xc0800000, 0x3e22f983};
            static const u16 f16[] = {0x3800, 0xb800, 0x3c00, 0xbc00, 0x4000, 0xc000, 0x4400, 0xc400, 0x3118};
            static const u64 f64[] = {0x3fe0000000000000, 0xbfe0000000000000, 0x3ff0000000000000,
                                      0xbff0000000000000, 0x4000000000000000, 0xc000000000000000,
                                      0x4010000000000000, 0xc010000000000000, 0x3fc45f306dc9c882};
            u32 k = code9 - 240;
            v = wide ? f64[k] : half_type(ty) ? f16[k] : f32[k];
        } else if (code9 == 255) {
            v = ty == Ty::F64 ? u64(literal_value) << 32 : literal_value;
        } else {
            o->kind = Kind::SPECIAL;
            o->index = u16(code9);
            return code9 == 235 || code9 == 236 || code9 == 237 || code9 == 238 || code9 == 251 || code9 == 252 ||
                   code9 == 253;
        }
        o->kind = Kind::CONST;
        o->value = u32(v);
        o->value_hi = wide ? u32(v >> 32) : u32(v);
        o->row = constant_row(o->value, o->value_hi);
        return true;
    }
    bool vgpr(Operand *o, u32 index, Ty ty) { return source(o, 256 + index, ty, 0); }

    // Fills src[0..2] from codes; literal_at is where a literal would stand.
    bool sources(const u32 *codes, int n, size_t literal_at) {
        for (int k = 0; k < n; k++) {
            if (op.row->src[k] == Ty::NONE) continue;
            if (codes[k] == 255) literal = true;
            if (!source(&op.src[k], codes[k], op.row->src[k], word(literal_at))) return false;
        }
        return true;
    }

    void destination(u32 vdst) {
        op.dst_dwords = u16(ty_dwords(op.row->dst));
        if (op.row->flags & SCALAR_DST)
            op.sdst = u16(vdst & 127);
        else
            op.dst = u16(vdst);
    }

    int finish(size_t own) {
        op.size = u8(4 * (own + (literal ? 1 : 0)));
        if (op.size > 4 * dwords) return 0;
        for (size_t i = 0; i < op.size / 4u && i < 4; i++) op.words[i] = code[i];
        return op.size;
    }

    int scalar(u32 w) {
        u32 ssrc0 = bits(w, 7, 0), ssrc1 = bits(w, 15, 8);
        u32 codes[2] = {ssrc0, ssrc1};
        if (bits(w, 31, 23) == 0b101111101) {
            if (!(op.row = row(Enc::SOP1, bits(w, 15, 8)))) return 0;
            op.sdst = u16(bits(w, 22, 16));
            op.dst_dwords = u16(ty_dwords(op.row->dst));
            return sources(codes, 1, 1) ? finish(1) : 0;
        }
        if (bits(w, 31, 23) == 0b101111110) {
            if (!(op.row = row(Enc::SOPC, bits(w, 22, 16)))) return 0;
            return sources(codes, 2, 1) ? finish(1) : 0;
        }
        if (bits(w, 31, 23) == 0b101111111) {
            if (!(op.row = row(Enc::SOPP, bits(w, 22, 16)))) return 0;
            op.imm = i32(bits(w, 15, 0));
            return finish(1);
        }
        if (bits(w, 31, 28) == 0b1011) {
            if (!(op.row = row(Enc::SOPK, bits(w, 27, 23)))) return 0;
            op.sdst = u16(bits(w, 22, 16));
            op.dst_dwords = u16(ty_dwords(op.row->dst));
            op.imm = i16(w & 0xffff);
            literal = op.row->flags & LITERAL_K;
            return finish(1);
        }
        if (!(op.row = row(Enc::SOP2, bits(w, 29, 23)))) return 0;
        op.sdst = u16(bits(w, 22, 16));
        op.dst_dwords = u16(ty_dwords(op.row->dst));
        return sources(codes, 2, 1) ? finish(1) : 0;
    }

    int vector32(u32 w) {
        u32 src0 = bits(w, 8, 0), vsrc1 = 256 + bits(w, 16, 9), vdst = bits(w, 24, 17);
        if (bits(w, 31, 25) == 0b0111111)
            op.row = row(Enc::VOP1, bits(w, 16, 9));
        else if (bits(w, 31, 25) == 0b0111110)
            op.row = row(Enc::VOPC, bits(w, 24, 17));
        else
            op.row = row(Enc::VOP2, bits(w, 30, 25));
        if (!op.row) return 0;
        const Row &r = *op.row;
        op.suffix = r.flags & NO_SUFFIX ? 0 : 1;
        if (r.enc != Enc::VOPC) destination(vdst);
        if (r.flags & SDST) op.sdst = kVcc;
        u32 codes[3] = {src0, r.enc == Enc::VOP1 ? 0 : vsrc1, 256 + vdst};
        if (src0 == 249 || src0 == 250) return extended(src0 == 249, codes);
        int n = r.enc == Enc::VOP1 ? 1 : 2;
        if (r.flags & LITERAL_K) {  // fmamk: src0 * K + src1; fmaak: src0 * src1 + K
            literal = true;
            bool mk = r.op == 23 || r.op == 36;
            u32 k = word(1);
            return source(&op.src[0], src0, r.src[0], k) && source(&op.src[mk ? 2 : 1], vsrc1, r.src[1], k) &&
                           source(&op.src[mk ? 1 : 2], 255, r.src[2], k)
                       ? finish(1)
                       : 0;
        }
        if ((r.flags & READS_DST) && r.src[2] != Ty::NONE) n = 3;
        if (!sources(codes, n, 1)) return 0;
        if (r.enc == Enc::VOP1 && r.op == 82) {  // accvgpr_mov: both are accumulation registers
            if (op.src[0].kind != Kind::VGPR) return 0;
            op.src[0].index += 256;
            op.dst += 256;
        }
        if (r.flags & CARRY_IN) source(&op.src[2], kVcc, Ty::MASK64, 0);
        return finish(1);
    }

    // SDWA and DPP: the second dword holds the real src0; the plain operation runs on temporary rows.
    int extended(bool sdwa, u32 *codes) {
        const Row &r = *op.row;
        op.ext = word(1);
        op.suffix = sdwa ? 3 : 4;
        int n = r.enc == Enc::VOP1 ? 1 : 2;
        codes[0] = 256 + bits(op.ext, 7, 0);
        if (sdwa) {
            if (bits(op.ext, 23, 23)) codes[0] -= 256;
            if (n > 1 && bits(op.ext, 31, 31)) codes[1] -= 256;
            if (r.enc == Enc::VOPC) op.sdst = bits(op.ext, 15, 15) ? u16(bits(op.ext, 14, 8)) : kVcc;
        }
        if ((r.flags & READS_DST) && r.src[2] != Ty::NONE) n = 3;
        if (!sources(codes, n, 2)) return 0;
        if (r.flags & CARRY_IN) source(&op.src[2], kVcc, Ty::MASK64, 0);
        p.inner.push_back(op);
        Op &in = p.inner.back();
        in.run = r.run;
        in.words[0] = word(0), in.words[1] = word(1);
        prepare_inner(in, sdwa, op.ext);
        op.inner = &in;
        op.run = sdwa ? run_sdwa : run_dpp;
        return finish(2);
    }

    int vector64(u32 w) {
        u32 w1 = word(1), o = bits(w, 25, 16);
        op.suffix = 2;
        if (o < 256)
            op.row = row(Enc::VOPC, o);
        else if (o < 320)
            op.row = row(Enc::VOP2, o - 256);
        else if (o < 448)
            op.row = row(Enc::VOP1, o - 320);
        else {
            op.suffix = 0;
            op.row = row(Enc::VOP3, o);
            if (!op.row) op.row = row(Enc::VOP3B, o);
        }
        if (!op.row || (op.row->flags & LITERAL_K)) return 0;
        const Row &r = *op.row;
        if (r.flags & NO_SUFFIX) op.suffix = 0;
        bool b = (r.flags & SDST) && r.enc != Enc::VOPC;  // VOP3B: a scalar destination in place of abs and op_sel
        u32 codes[3] = {bits(w1, 8, 0), bits(w1, 17, 9), bits(w1, 26, 18)};
        op.clamp = u8(bits(w, 15, 15));
        op.omod = u8(bits(w1, 28, 27));
        op.neg = u8(bits(w1, 31, 29));
        if (r.enc == Enc::VOPC) {
            op.sdst = u16(bits(w, 7, 0));
        } else {
            destination(bits(w, 7, 0));
        }
        if (b) {
            op.sdst = u16(bits(w, 14, 8));
        } else {
            op.abs = u8(bits(w, 10, 8));
            op.opsel = u8(bits(w, 14, 11));
        }
        if (r.run && (o == 563 || o == 564)) {  // bitop3's table is spread over the modifier fields
            op.imm = i32(op.omod << 6 | (op.abs & 7) << 3 | op.neg);
            op.omod = op.abs = op.neg = 0;
        }
        if ((r.flags & READS_DST) && r.src[2] != Ty::NONE) codes[2] = 256 + bits(w, 7, 0);
        for (int k = 0; k < 3; k++)
            if (codes[k] == 255) return 0;  // no literals here
        int n = r.enc == Enc::VOP1 ? 1 : 3;
        if (!sources(codes, n, 2)) return 0;
        if (op.clamp && (r.dst == Ty::B32 || r.dst == Ty::B16)) op.run = saturating(r);
        op.mods = op.neg | op.abs | (op.opsel & 7);
        return finish(2);
    }

    int packed(u32 w) {
        u32 w1 = word(1), o = bits(w, 22, 16);
        u32 codes[3] = {bits(w1, 8, 0), bits(w1, 17, 9), bits(w1, 26, 18)};
        op.dst = u16(bits(w, 7, 0));
        if ((op.row = row(Enc::MAI, o))) {
            op.dst_dwords = u16(ty_dwords(op.row->dst));
            op.cbsz = u8(bits(w, 10, 8));
            op.abid = u8(bits(w, 14, 11));
            op.blgp = u8(bits(w1, 31, 29));
            bool acc_d = bits(w, 15, 15), acc[2] = {bits(w1, 27, 27) != 0, bits(w1, 28, 28) != 0};
            if (!sources(codes, 3, 2) || literal) return 0;
            bool sparse = op.row->flags & SMFMAC, move = op.row->cls == Class::VALU;
            if (move) {  // accvgpr_read and accvgpr_write: the files are fixed, whatever the bits say
                bool read = op.row->op == 88;
                if (read && op.src[0].kind != Kind::VGPR) return 0;
                if (read) op.src[0].index += 256;
                if (!read) op.dst += 256;
                return finish(2);
            }
            for (int k = 0; k < 2; k++)
                if (op.src[k].kind == Kind::VGPR && acc[k]) op.src[k].index += 256;
            if (acc_d && !sparse && op.src[2].kind == Kind::VGPR) op.src[2].index += 256;
            if (acc_d) op.dst += 256;
            return finish(2);
        }
        if (!(op.row = row(Enc::VOP3P, o))) return 0;
        op.dst_dwords = u16(ty_dwords(op.row->dst));
        op.clamp = u8(bits(w, 15, 15));
        op.neg_hi = u8(bits(w, 10, 8));
        op.opsel = u8(bits(w, 13, 11));
        op.opsel_hi = u8(bits(w1, 28, 27) | bits(w, 14, 14) << 2);
        op.neg = u8(bits(w1, 31, 29));
        return sources(codes, 3, 2) && !literal ? finish(2) : 0;
    }

    int ds(u32 w) {
        u32 w1 = word(1);
        if (bits(w, 16, 16) || !(op.row = row(Enc::DS, bits(w, 24, 17)))) return 0;
        u32 acc = bits(w, 25, 25) ? 256 : 0;
        op.imm = i32(bits(w, 15, 0));
        op.addr = u16(bits(w1, 7, 0));
        op.data = u16(bits(w1, 15, 8) + acc);
        op.data1 = u16(bits(w1, 23, 16) + acc);
        op.dst = u16(bits(w1, 31, 24) + acc);
        return finish(2);
    }

    int flat(u32 w) {
        u32 w1 = word(1), seg = bits(w, 15, 14);
        if (seg == 3) return 0;
        if (!(op.row = row(seg == 0 ? Enc::FLAT : seg == 1 ? Enc::SCRATCH : Enc::GLOBAL, bits(w, 24, 18)))) return 0;
        u32 acc = bits(w1, 23, 23) ? 256 : 0;
        op.imm = seg == 0 ? i32(bits(w, 11, 0)) : i32(sign_extend(bits(w, 12, 0), 13));
        op.sc0 = bits(w, 16, 16), op.nt = bits(w, 17, 17), op.sc1 = bits(w, 25, 25);
        op.addr = u16(bits(w1, 7, 0));
        op.data = u16(bits(w1, 15, 8) + acc);
        op.dst = u16(bits(w1, 31, 24) + acc);
        u32 saddr = bits(w1, 22, 16);
        if (seg != 0 && saddr != 127) {
            op.saddr = true;
            if (!source(&op.src[0], saddr, seg == 1 ? Ty::B32 : Ty::B64, 0)) return 0;
        }
        if (seg == 1 && !bits(w, 13, 13)) op.addr = kNoReg;  // no vector address (SVE off)
        op.lds = op.row->flags & TO_LDS;
        return finish(2);
    }

    int mubuf(u32 w) {
        u32 w1 = word(1);
        if (!(op.row = row(Enc::MUBUF, bits(w, 24, 18)))) return 0;
        u32 acc = bits(w1, 23, 23) ? 256 : 0;
        op.imm = i32(bits(w, 11, 0));
        op.offen = bits(w, 12, 12), op.idxen = bits(w, 13, 13);
        op.sc0 = bits(w, 14, 14), op.sc1 = bits(w, 15, 15), op.lds = bits(w, 16, 16), op.nt = bits(w, 17, 17);
        op.addr = op.offen || op.idxen ? u16(bits(w1, 7, 0)) : kNoReg;
        op.data = op.dst = u16(bits(w1, 15, 8) + acc);
        if (op.row->a == 0) return finish(2);  // cache control
        op.src[0].kind = Kind::SGPR;
        op.src[0].index = u16(bits(w1, 20, 16) * 4);
        op.src[0].dwords = 4;
        op.src[0].ty = Ty::B128;
        return source(&op.src[1], bits(w1, 31, 24), Ty::B32, 0) && bits(w1, 31, 24) != 255 ? finish(2) : 0;
    }

    int smem(u32 w) {
        u32 w1 = word(1);
        if (!(op.row = row(Enc::SMEM, bits(w, 25, 18)))) return 0;
        op.sdst = u16(bits(w, 12, 6));
        op.dst_dwords = u16(op.row->a / 4);
        op.sc0 = bits(w, 16, 16);
        if (op.row->a == 0) return finish(2);
        bool buffer = op.row->op >= 8 && op.row->op <= 12;
        op.src[0].kind = Kind::SGPR;
        op.src[0].index = u16(bits(w, 5, 0) * 2);
        op.src[0].dwords = u8(op.row->op >= 36 ? 0 : buffer ? 4 : 2);
        op.src[0].ty = buffer ? Ty::B128 : Ty::B64;
        if (op.row->op >= 36) op.src[0].kind = Kind::NONE;
        if (bits(w, 17, 17)) {
            op.imm = i32(sign_extend(bits(w1, 20, 0), 21));
            if (bits(w, 14, 14)) source(&op.src[1], bits(w1, 31, 25), Ty::B32, 0);
        } else if (bits(w, 14, 14)) {
            source(&op.src[1], bits(w1, 31, 25), Ty::B32, 0);
        } else {
            source(&op.src[1], bits(w1, 6, 0), Ty::B32, 0);
        }
        return finish(2);
    }

    int run() {
        u32 w = word(0);
        if (!(w >> 31)) return vector32(w);
        if (w >> 30 == 2) return scalar(w);
        switch (w >> 26) {
            case 0b110000: return smem(w);
            case 0b110100: return bits(w, 31, 23) == 0b110100111 ? packed(w) : vector64(w);
            case 0b110110: return ds(w);
            case 0b110111: return flat(w);
            case 0b111000: return mubuf(w);
            default: return 0;
        }
    }
};

}  // namespace

void run_unknown(Wave &w, const Op &op);
void run_not_modelled(Wave &w, const Op &op);

int decode(Program &p, const u32 *code, size_t dwords, u64 offset, Op *op) {
    *op = Op();
    op->address = u32(offset);
    Decoder d{p, code, dwords, *op};
    int size = dwords ? d.run() : 0;
    if (size == 0) {
        *op = Op();
        op->address = u32(offset);
        op->words[0] = dwords ? code[0] : 0;
        op->run = run_unknown;
        return 0;
    }
    const Row &r = *op->row;
    if (!op->run) op->run = op->clamp && !r.run ? nullptr : r.run;
    if (op->clamp && saturating(r) == nullptr && r.dst == Ty::B32 && r.cls == Class::VALU && r.enc != Enc::VOP3P &&
        !(r.flags & SDST))
        op->run = run_not_modelled;
    if (!op->run) op->run = run_not_modelled;
    bool saturates = op->clamp && (r.dst == Ty::B32 || r.dst == Ty::B16);
    op->plain = !(op->omod || (op->clamp && !saturates)) && !(op->opsel & 8) && !(r.flags & PRESERVES_HI);
    auto is32 = [](Ty t) { return t == Ty::F32 || t == Ty::PKF32; };
    auto is16 = [](Ty t) { return t == Ty::F16 || t == Ty::F64 || t == Ty::PKF16; };
    op->fp = u8((is32(r.dst) || is32(r.src[0]) ? 1 : 0) | (is16(r.dst) ? 2 : 0));
    return size;
}

// Branch targets become indices; a target that starts no instruction stays -1 and faults when taken.
void link_branches(Program &p) {
    for (Op &op : p.ops) {
        if (!op.row || op.row->enc != Enc::SOPP || op.row->cls != Class::BRANCH) continue;
        i64 to = i64(op.address) + 4 + i64(i16(op.imm)) * 4;
        if (to >= 0 && u64(to) / 4 < p.op_of_dword.size()) op.target = p.op_of_dword[size_t(to) / 4];
    }
}

}  // namespace moon
