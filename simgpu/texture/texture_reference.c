/* Texture and surface references, as in CUDA before texture objects: state that a kernel would read, stored
 * and returned. */
#include "texture/array.h"
#include "module/module.h"

struct CUtexref_st {
    struct sim_head head;
    CUmodule module; /* NULL: the client made it */
    const char *name;
    CUdeviceptr address;
    CUarray array;
    CUmipmappedArray mipmap;
    CUarray_format format;
    int channels;
    CUaddress_mode address_mode[3];
    CUfilter_mode filter, mipmap_filter;
    float bias, clamp[2], border[4];
    unsigned anisotropy, flags;
};

struct CUsurfref_st {
    struct sim_head head;
    CUmodule module;
    const char *name;
    CUarray array;
};

static struct sim_slab textures = SIM_SLAB(struct CUtexref_st, 256, 1u << 14);
static struct sim_slab surfaces = SIM_SLAB(struct CUsurfref_st, 64, 1u << 14);

/* Declare `texture`'s validity, and that of the argument. */
#define ENTER_TEXTURE(texture, is_valid)                                                                     \
    SIM_ENTER();                                                                                             \
    SIM_LOCKED();                                                                                            \
    if (!is_texture(texture)) return CUDA_ERROR_INVALID_HANDLE;                                              \
    if (!(is_valid)) return CUDA_ERROR_INVALID_VALUE

static bool is_texture(CUtexref texture) {
    return texture != NULL && sim_is_live(&textures, texture);
}

static CUtexref new_texture(CUmodule module, const char *name) {
    CUtexref texture = sim_new(&textures);
    if (texture == NULL) return NULL;
    texture->module = module;
    texture->name = name;
    texture->format = CU_AD_FORMAT_FLOAT;
    texture->channels = 1;
    texture->anisotropy = 1;
    return texture;
}

SIM_EXPORT CUresult cuTexRefCreate(CUtexref *texture) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (texture == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    *texture = new_texture(NULL, NULL);
    return *texture == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* A module's own end with the module. */
SIM_EXPORT CUresult cuTexRefDestroy(CUtexref texture) {
    ENTER_TEXTURE(texture, texture->module == NULL);
    sim_delete(&textures, texture);
    return CUDA_SUCCESS;
}

void sim_references_delete_of(CUmodule module) {
    for (uint32_t i = 0; i < textures.used; i++) {
        CUtexref texture = sim_at(&textures, i);
        if (texture != NULL && texture->module == module) sim_delete(&textures, texture);
    }
    for (uint32_t i = 0; i < surfaces.used; i++) {
        CUsurfref surface = sim_at(&surfaces, i);
        if (surface != NULL && surface->module == module) sim_delete(&surfaces, surface);
    }
}

static CUresult check(const void *made, CUmodule module, const char *name) {
    if (made == NULL || name == NULL || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    return module != NULL && sim_is_live(&sim_modules, module) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_EXPORT CUresult cuModuleGetTexRef(CUtexref *texture, CUmodule module, const char *name) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(check(texture, module, name));
    const char *kept = sim_module_reference(module, name, false);
    if (kept == NULL) return CUDA_ERROR_NOT_FOUND;
    for (uint32_t i = 0; i < textures.used; i++) {
        CUtexref found = sim_at(&textures, i);
        if (found == NULL || found->module != module || found->name != kept) continue;
        *texture = found;
        return CUDA_SUCCESS;
    }
    *texture = new_texture(module, kept);
    return *texture == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuModuleGetSurfRef(CUsurfref *surface, CUmodule module, const char *name) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(check(surface, module, name));
    const char *kept = sim_module_reference(module, name, true);
    if (kept == NULL) return CUDA_ERROR_NOT_FOUND;
    for (uint32_t i = 0; i < surfaces.used; i++) {
        CUsurfref found = sim_at(&surfaces, i);
        if (found == NULL || found->module != module || found->name != kept) continue;
        *surface = found;
        return CUDA_SUCCESS;
    }
    *surface = sim_new(&surfaces);
    if (*surface == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    (*surface)->module = module;
    (*surface)->name = kept;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuSurfRefSetArray(CUsurfref surface, CUarray array, unsigned int flags) {
    SIM_ENTER();
    SIM_LOCKED();
    if (surface == NULL || !sim_is_live(&surfaces, surface)) return CUDA_ERROR_INVALID_HANDLE;
    if (flags != 0 || !sim_is_array(array)) return CUDA_ERROR_INVALID_VALUE;
    surface->array = array;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuSurfRefGetArray(CUarray *array, CUsurfref surface) {
    SIM_ENTER();
    SIM_LOCKED();
    if (surface == NULL || !sim_is_live(&surfaces, surface)) return CUDA_ERROR_INVALID_HANDLE;
    if (array == NULL || surface->array == NULL) return CUDA_ERROR_INVALID_VALUE;
    *array = surface->array;
    return CUDA_SUCCESS;
}

/* One of the three is bound. */
static void bind(CUtexref texture, CUdeviceptr address, CUarray array, CUmipmappedArray mipmap) {
    texture->address = address;
    texture->array = array;
    texture->mipmap = mipmap;
}

SIM_EXPORT CUresult cuTexRefSetAddress_v2(size_t *offset, CUtexref texture, CUdeviceptr address,
                                          size_t bytes) {
    ENTER_TEXTURE(texture, address == 0 || sim_is_device_memory(address, bytes));
    /* Textures begin at multiples of CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT. */
    size_t rest = address % 512;
    if (offset == NULL && rest != 0) return CUDA_ERROR_INVALID_VALUE;
    if (offset != NULL) *offset = rest;
    bind(texture, address, NULL, NULL);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefSetAddress2D_v3(CUtexref texture, const CUDA_ARRAY_DESCRIPTOR *shape,
                                            CUdeviceptr address, size_t pitch) {
    ENTER_TEXTURE(texture, shape != NULL && shape->Height > 0 && address % 512 == 0 && pitch % 32 == 0 &&
                               sim_is_device_memory(address, pitch * shape->Height));
    texture->format = shape->Format;
    texture->channels = (int)shape->NumChannels;
    bind(texture, address, NULL, NULL);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefSetAddress2D_v2(CUtexref texture, const CUDA_ARRAY_DESCRIPTOR *shape,
                                            CUdeviceptr address, size_t pitch) {
    return cuTexRefSetAddress2D_v3(texture, shape, address, pitch);
}

SIM_EXPORT CUresult cuTexRefSetArray(CUtexref texture, CUarray array, unsigned int flags) {
    ENTER_TEXTURE(texture, flags == CU_TRSA_OVERRIDE_FORMAT && sim_is_array(array));
    texture->format = array->descriptor.Format;
    texture->channels = (int)array->descriptor.NumChannels;
    bind(texture, 0, array, NULL);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefSetMipmappedArray(CUtexref texture, CUmipmappedArray mipmap, unsigned int flags) {
    ENTER_TEXTURE(texture, flags == CU_TRSA_OVERRIDE_FORMAT && sim_is_mipmap(mipmap));
    texture->format = mipmap->level[0]->descriptor.Format;
    texture->channels = (int)mipmap->level[0]->descriptor.NumChannels;
    bind(texture, 0, NULL, mipmap);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefSetFormat(CUtexref texture, CUarray_format format, int channels) {
    ENTER_TEXTURE(texture, channels == 1 || channels == 2 || channels == 4);
    texture->format = format;
    texture->channels = channels;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefSetAddressMode(CUtexref texture, int dimension, CUaddress_mode mode) {
    ENTER_TEXTURE(texture, dimension >= 0 && dimension < 3 && (unsigned)mode <= CU_TR_ADDRESS_MODE_BORDER);
    texture->address_mode[dimension] = mode;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefSetFilterMode(CUtexref texture, CUfilter_mode mode) {
    ENTER_TEXTURE(texture, (unsigned)mode <= CU_TR_FILTER_MODE_LINEAR);
    texture->filter = mode;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefSetMipmapFilterMode(CUtexref texture, CUfilter_mode mode) {
    ENTER_TEXTURE(texture, (unsigned)mode <= CU_TR_FILTER_MODE_LINEAR);
    texture->mipmap_filter = mode;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefSetMipmapLevelBias(CUtexref texture, float bias) {
    ENTER_TEXTURE(texture, true);
    texture->bias = bias;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefSetMipmapLevelClamp(CUtexref texture, float least, float most) {
    ENTER_TEXTURE(texture, true);
    texture->clamp[0] = least;
    texture->clamp[1] = most;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefSetMaxAnisotropy(CUtexref texture, unsigned int anisotropy) {
    ENTER_TEXTURE(texture, anisotropy >= 1 && anisotropy <= 16);
    texture->anisotropy = anisotropy;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefSetBorderColor(CUtexref texture, float *color) {
    ENTER_TEXTURE(texture, color != NULL);
    for (int i = 0; i < 4; i++)
        texture->border[i] = color[i];
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefSetFlags(CUtexref texture, unsigned int flags) {
    ENTER_TEXTURE(texture, (flags & ~(unsigned)(CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES |
                                                CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION)) == 0);
    texture->flags = flags;
    return CUDA_SUCCESS;
}

/* What is bound in another way has no answer. */
#define BOUND(symbol, type, member)                                                                          \
    SIM_EXPORT CUresult symbol(type *value, CUtexref texture) {                                              \
        ENTER_TEXTURE(texture, value != NULL && texture->member != 0);                                       \
        *value = texture->member;                                                                            \
        return CUDA_SUCCESS;                                                                                 \
    }
BOUND(cuTexRefGetAddress_v2, CUdeviceptr, address)
BOUND(cuTexRefGetArray, CUarray, array)
BOUND(cuTexRefGetMipmappedArray, CUmipmappedArray, mipmap)

#define PLAIN(symbol, type, member)                                                                          \
    SIM_EXPORT CUresult symbol(type *value, CUtexref texture) {                                              \
        ENTER_TEXTURE(texture, value != NULL);                                                               \
        *value = texture->member;                                                                            \
        return CUDA_SUCCESS;                                                                                 \
    }
PLAIN(cuTexRefGetFilterMode, CUfilter_mode, filter)
PLAIN(cuTexRefGetMipmapFilterMode, CUfilter_mode, mipmap_filter)
PLAIN(cuTexRefGetMipmapLevelBias, float, bias)
PLAIN(cuTexRefGetFlags, unsigned int, flags)

SIM_EXPORT CUresult cuTexRefGetMaxAnisotropy(int *value, CUtexref texture) {
    ENTER_TEXTURE(texture, value != NULL);
    *value = (int)texture->anisotropy;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefGetAddressMode(CUaddress_mode *mode, CUtexref texture, int dimension) {
    ENTER_TEXTURE(texture, mode != NULL && dimension >= 0 && dimension < 3);
    *mode = texture->address_mode[dimension];
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefGetFormat(CUarray_format *format, int *channels, CUtexref texture) {
    ENTER_TEXTURE(texture, true);
    if (format != NULL) *format = texture->format;
    if (channels != NULL) *channels = texture->channels;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefGetMipmapLevelClamp(float *least, float *most, CUtexref texture) {
    ENTER_TEXTURE(texture, least != NULL && most != NULL);
    *least = texture->clamp[0];
    *most = texture->clamp[1];
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexRefGetBorderColor(float *color, CUtexref texture) {
    ENTER_TEXTURE(texture, color != NULL);
    for (int i = 0; i < 4; i++)
        color[i] = texture->border[i];
    return CUDA_SUCCESS;
}

/* Which texture a kernel reads changes nothing here. */
SIM_EXPORT CUresult cuParamSetTexRef(CUfunction function, int unit, CUtexref texture) {
    ENTER_TEXTURE(texture, unit == CU_PARAM_TR_DEFAULT);
    return sim_is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
