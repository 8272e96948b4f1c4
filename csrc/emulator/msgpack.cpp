// MessagePack reader.
#include "msgpack.h"

namespace moon {

namespace {

struct Reader {
    const u8 *p, *end;
    size_t budget = 200000;  // values in all: a guard against hostile counts

    bool bytes(size_t n, u64 *out) {
        if (size_t(end - p) < n) return false;
        u64 x = 0;
        for (size_t i = 0; i < n; i++) x = x << 8 | p[i];
        p += n;
        *out = x;
        return true;
    }
    bool string(u64 n, Value *v) {
        if (u64(end - p) < n) return false;
        v->type = Value::STRING;
        v->text.assign(reinterpret_cast<const char *>(p), size_t(n));
        p += n;
        return true;
    }
    bool array(u64 n, Value *v, int depth) {
        v->type = Value::ARRAY;
        for (u64 i = 0; i < n; i++) {
            v->items.emplace_back();
            if (!value(&v->items.back(), depth + 1)) return false;
        }
        return true;
    }
    bool map(u64 n, Value *v, int depth) {
        v->type = Value::MAP;
        for (u64 i = 0; i < n; i++) {
            Value key;
            if (!value(&key, depth + 1)) return false;
            v->entries.emplace_back(key.text, Value());
            if (!value(&v->entries.back().second, depth + 1)) return false;
        }
        return true;
    }
    bool number(i64 x, Value *v) {
        v->type = Value::INT;
        v->number = x;
        return true;
    }
    bool skip(u64 n, Value *v) {
        if (u64(end - p) < n) return false;
        p += n;
        v->type = Value::OTHER;
        return true;
    }

    bool value(Value *v, int depth) {
        if (p == end || depth > 24 || budget-- == 0) return false;
        u8 t = *p++;
        u64 n = 0;
        if (t < 0x80) return number(t, v);
        if (t < 0x90) return map(t & 15, v, depth);
        if (t < 0xa0) return array(t & 15, v, depth);
        if (t < 0xc0) return string(t & 31, v);
        if (t >= 0xe0) return number(i8(t), v);
        switch (t) {
            case 0xc0: return true;
            case 0xc2:
            case 0xc3:
                v->type = Value::BOOL;
                v->number = t & 1;
                return true;
            case 0xc4:
            case 0xc5:
            case 0xc6: return bytes(size_t(1) << (t - 0xc4), &n) && skip(n, v);
            case 0xca: return skip(4, v);
            case 0xcb: return skip(8, v);
            case 0xcc:
            case 0xcd:
            case 0xce:
            case 0xcf: return bytes(size_t(1) << (t - 0xcc), &n) && number(i64(n), v);
            case 0xd0:
            case 0xd1:
            case 0xd2:
            case 0xd3: {
                size_t w = size_t(1) << (t - 0xd0);
                return bytes(w, &n) && number(sign_extend(n, int(8 * w)), v);
            }
            case 0xd9:
            case 0xda:
            case 0xdb: return bytes(size_t(1) << (t - 0xd9), &n) && string(n, v);
            case 0xdc:
            case 0xdd: return bytes(t == 0xdc ? 2 : 4, &n) && array(n, v, depth);
            case 0xde:
            case 0xdf: return bytes(t == 0xde ? 2 : 4, &n) && map(n, v, depth);
            default: return false;
        }
    }
};

}  // namespace

bool parse_msgpack(const u8 *data, size_t size, Value *out) {
    Reader r{data, data + size};
    return r.value(out, 0);
}

}  // namespace moon
