/* Reading a PTX text without compiling it: its entries with their parameters, its variables, and the cost
 * directives of README.md. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "module/module.h"

#define DIRECTIVE "// pgpu.cost "

struct reader {
    const char *at;
    CUmodule module;
};

static const char *skip_comment(const char *at) {
    if (at[0] == '/' && at[1] == '/') return at + strcspn(at, "\n");
    if (at[0] != '/' || at[1] != '*') return NULL;
    const char *end = strstr(at + 2, "*/");
    return end == NULL ? at + strlen(at) : end + 2;
}

static void skip_space(struct reader *reader) {
    for (;;) {
        while (isspace((unsigned char)*reader->at))
            reader->at++;
        const char *after = skip_comment(reader->at);
        if (after == NULL) return;
        reader->at = after;
    }
}

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

/* The next word or single sign; its length, 0 at the end. */
static size_t next(struct reader *reader, const char **token) {
    skip_space(reader);
    *token = reader->at;
    if (*reader->at == '\0') return 0;
    if (*reader->at == '"') {
        const char *end = strchr(reader->at + 1, '"');
        reader->at = end == NULL ? reader->at + strlen(reader->at) : end + 1;
    } else if (is_word(*reader->at)) {
        while (is_word(*reader->at))
            reader->at++;
    } else {
        reader->at++;
    }
    return (size_t)(reader->at - *token);
}

static bool is(const char *token, size_t length, const char *text) {
    return length == strlen(text) && memcmp(token, text, length) == 0;
}

/* Bytes of a type such as `.u64`, `.b8`, `.f32x2`; 0: no type. */
static size_t type_bytes(const char *token, size_t length) {
    if (length < 3 || token[0] != '.' || strchr("usbf", token[1]) == NULL) return 0;
    char *end;
    unsigned long bits = strtoul(token + 2, &end, 10);
    return end == token + 2 ? 0 : bits / 8;
}

struct declaration {
    const char *name;
    size_t name_length, element_bytes, alignment, count;
    bool is_texture, is_surface; /* a reference, which is no memory */
    bool is_managed;
};

/* What stands in the parentheses behind `.attribute`. */
static bool read_attribute(struct reader *reader) {
    const char *token;
    bool is_managed = false;
    for (size_t length; (length = next(reader, &token)) > 0 && *token != ')';)
        is_managed |= is(token, length, ".managed");
    return is_managed;
}

/* What stands between `.param` or `.global` and the next `,` `)` `;` `=`. Returns that sign, or 0 at the end.
 */
static char read_declaration(struct reader *reader, struct declaration *declaration) {
    const char *token;
    *declaration = (struct declaration){.count = 1};
    for (size_t length; (length = next(reader, &token)) > 0;) {
        size_t bytes = type_bytes(token, length);
        if (is(token, length, ".attribute")) {
            declaration->is_managed |= read_attribute(reader);
            continue;
        }
        if (length == 1 && strchr(",);=", *token) != NULL) return *token;
        declaration->is_texture |= is(token, length, ".texref");
        declaration->is_surface |= is(token, length, ".surfref");
        if (bytes > 0)
            declaration->element_bytes = bytes;
        else if (is(token, length, ".align"))
            declaration->alignment = strtoul(reader->at, (char **)&reader->at, 10);
        else if (*token == '[')
            declaration->count *= strtoul(reader->at, (char **)&reader->at, 10);
        else if (is_word(*token) && *token != '.')
            declaration->name = token, declaration->name_length = length;
    }
    return '\0';
}

static bool read_parameters(struct reader *reader, CUfunction function) {
    struct declaration parameter;
    char sign = ',';
    while (sign == ',') {
        sign = read_declaration(reader, &parameter);
        size_t bytes = parameter.element_bytes * parameter.count;
        size_t alignment = parameter.alignment != 0 ? parameter.alignment : parameter.element_bytes;
        if (bytes > 0 && !sim_parameter_add(function, bytes, alignment)) return false;
    }
    return true;
}

static bool read_entry(struct reader *reader) {
    const char *token;
    size_t length = next(reader, &token);
    CUfunction function = length == 0 ? NULL : sim_function_add(reader->module, token, length);
    if (function == NULL) return false;
    function->knows_parameters = true;
    struct reader ahead = *reader;
    if (next(&ahead, &token) != 1 || *token != '(') return true;
    *reader = ahead;
    return read_parameters(reader, function);
}

static void read_variable(struct reader *reader) {
    struct declaration variable;
    char sign = read_declaration(reader, &variable);
    size_t bytes = variable.element_bytes * variable.count;
    if (sign == '\0' || variable.name == NULL) return;
    if (variable.is_texture || variable.is_surface)
        sim_reference_add(reader->module, variable.name, variable.name_length, variable.is_surface);
    else if (bytes > 0)
        sim_variable_add(reader->module, variable.name, variable.name_length, bytes, variable.is_managed);
}

static void skip_body(struct reader *reader) {
    const char *token;
    unsigned depth = 1;
    while (depth > 0 && next(reader, &token) > 0)
        depth += *token == '{' ? 1u : *token == '}' ? -1u : 0u;
}

static CUresult read_all(struct reader *reader) {
    const char *token;
    bool has_version = false;
    for (size_t length; (length = next(reader, &token)) > 0;) {
        has_version = has_version || is(token, length, ".version");
        if (is(token, length, ".entry") && !read_entry(reader)) return CUDA_ERROR_INVALID_PTX;
        if (*token == '{') skip_body(reader);
        if (is(token, length, ".global") || is(token, length, ".const")) read_variable(reader);
    }
    return has_version ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

/* Keep the lines of directives: the client may free its text. */
static char *directives_of(const char *text) {
    char *kept = calloc(1, strlen(text) + 2), *to = kept;
    if (kept == NULL) return NULL;
    for (const char *at = text; (at = strstr(at, DIRECTIVE)) != NULL;) {
        at += strlen(DIRECTIVE);
        size_t length = strcspn(at, "\r\n");
        memcpy(to, at, length);
        to[length] = '\n';
        to += length + 1;
    }
    char *fitted = realloc(kept, (size_t)(to - kept) + 1);
    return fitted == NULL ? kept : fitted;
}

CUresult sim_ptx_read(CUmodule module, const char *text) {
    struct reader reader = {.at = text, .module = module};
    module->knows_names = true;
    module->directives = directives_of(text);
    return module->directives == NULL ? CUDA_ERROR_OUT_OF_MEMORY : read_all(&reader);
}
