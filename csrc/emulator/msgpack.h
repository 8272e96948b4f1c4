// The part of MessagePack that code object metadata uses: maps, arrays, strings, integers, booleans, nil.
#pragma once
#include "types.h"
#include <string>
#include <utility>
#include <vector>

namespace moon {

struct Value {
    enum Type { NIL, BOOL, INT, STRING, ARRAY, MAP, OTHER } type = NIL;
    i64 number = 0;
    std::string text;
    std::vector<Value> items;                            // ARRAY
    std::vector<std::pair<std::string, Value>> entries;  // MAP with string keys

    const Value *find(const char *key) const {
        for (const auto &e : entries)
            if (e.first == key) return &e.second;
        return nullptr;
    }
    i64 integer(const char *key, i64 otherwise) const {
        const Value *v = find(key);
        return v && (v->type == INT || v->type == BOOL) ? v->number : otherwise;
    }
};

// False on anything malformed or deeper than metadata ever is.
bool parse_msgpack(const u8 *data, size_t size, Value *out);

}  // namespace moon
