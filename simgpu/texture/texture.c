/* Texture and surface objects: views of arrays and memory, which cost nothing of their own. */
#include "texture/array.h"

struct view {
    struct sim_head head;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC view;
    bool is_surface;
};

static struct sim_slab views = SIM_SLAB(struct view, 512, 1u << 18);

static struct view *checked(unsigned long long object, bool is_surface) {
    struct view *view = (struct view *)(uintptr_t)object;
    return view != NULL && sim_is_live(&views, view) && view->is_surface == is_surface ? view : NULL;
}

static CUresult check_resource(const CUDA_RESOURCE_DESC *resource, bool is_surface) {
    switch ((int)resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        return sim_is_array(resource->res.array.hArray) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        if (is_surface) return CUDA_ERROR_INVALID_VALUE;
        return sim_is_mipmap(resource->res.mipmap.hMipmappedArray) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_LINEAR:
    case CU_RESOURCE_TYPE_PITCH2D:
        return is_surface || resource->res.linear.devPtr == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_EXPORT CUresult cuTexObjectCreate(CUtexObject *object, const CUDA_RESOURCE_DESC *resource,
                                      const CUDA_TEXTURE_DESC *texture, const CUDA_RESOURCE_VIEW_DESC *view) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (object == NULL || resource == NULL || texture == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_resource(resource, false));
    struct view *made = sim_new(&views);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    made->resource = *resource;
    made->texture = *texture;
    if (view != NULL) made->view = *view;
    *object = (uintptr_t)made;
    return CUDA_SUCCESS;
}

static CUresult end(unsigned long long object, bool is_surface) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    struct view *view = checked(object, is_surface);
    if (view == NULL) return CUDA_ERROR_INVALID_VALUE;
    sim_delete(&views, view);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexObjectDestroy(CUtexObject object) {
    return end(object, false);
}

SIM_EXPORT CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUtexObject object) {
    SIM_ENTER();
    const struct view *view = checked(object, false);
    if (resource == NULL || view == NULL) return CUDA_ERROR_INVALID_VALUE;
    *resource = view->resource;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *texture, CUtexObject object) {
    SIM_ENTER();
    const struct view *view = checked(object, false);
    if (texture == NULL || view == NULL) return CUDA_ERROR_INVALID_VALUE;
    *texture = view->texture;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *to, CUtexObject object) {
    SIM_ENTER();
    const struct view *view = checked(object, false);
    if (to == NULL || view == NULL) return CUDA_ERROR_INVALID_VALUE;
    *to = view->view;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuSurfObjectCreate(CUsurfObject *object, const CUDA_RESOURCE_DESC *resource) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (object == NULL || resource == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_resource(resource, true));
    struct view *made = sim_new(&views);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    made->resource = *resource;
    made->is_surface = true;
    *object = (uintptr_t)made;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuSurfObjectDestroy(CUsurfObject object) {
    return end(object, true);
}

SIM_EXPORT CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUsurfObject object) {
    SIM_ENTER();
    const struct view *view = checked(object, true);
    if (resource == NULL || view == NULL) return CUDA_ERROR_INVALID_VALUE;
    *resource = view->resource;
    return CUDA_SUCCESS;
}
