/* Reading a cubin: an ELF file with a section `.text.NAME` for each kernel, and its variables as symbols. The
 * image comes without a length, so nothing outside the span of its own header is read, and an inconsistent
 * header is refused. */
#include <elf.h>
#include <string.h>

#include "module/module.h"

#define TEXT ".text."

struct image {
    const char *bytes;
    const Elf64_Shdr *sections;
    unsigned section_count;
    const Elf64_Shdr *names;
};

static const char *text_at(const struct image *image, const Elf64_Shdr *strings, uint64_t offset) {
    if (offset >= strings->sh_size) return "";
    const char *text = image->bytes + strings->sh_offset + offset;
    return memchr(text, '\0', strings->sh_size - offset) == NULL ? "" : text;
}

static bool open_image(const void *bytes, struct image *image) {
    const Elf64_Ehdr *header = bytes;
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_shentsize != sizeof(Elf64_Shdr)) return false;
    if (header->e_shoff == 0 || header->e_shnum == 0 || header->e_shstrndx >= header->e_shnum) return false;
    image->bytes = bytes;
    image->sections = (const Elf64_Shdr *)(const void *)(image->bytes + header->e_shoff);
    image->section_count = header->e_shnum;
    image->names = &image->sections[header->e_shstrndx];
    return image->names->sh_type == SHT_STRTAB;
}

static void read_symbols(CUmodule module, const struct image *image, const Elf64_Shdr *table) {
    if (table->sh_link >= image->section_count || table->sh_entsize != sizeof(Elf64_Sym)) return;
    const Elf64_Shdr *strings = &image->sections[table->sh_link];
    const Elf64_Sym *symbols = (const Elf64_Sym *)(const void *)(image->bytes + table->sh_offset);
    for (uint64_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); i++) {
        const char *name = text_at(image, strings, symbols[i].st_name);
        if (ELF64_ST_TYPE(symbols[i].st_info) == STT_OBJECT && symbols[i].st_size > 0 && *name != '\0')
            sim_variable_add(module, name, strlen(name), symbols[i].st_size, false);
    }
}

CUresult sim_elf_read(CUmodule module, const void *bytes) {
    struct image image;
    if (!open_image(bytes, &image)) return CUDA_ERROR_INVALID_IMAGE;
    module->knows_names = true;
    for (unsigned i = 0; i < image.section_count; i++) {
        const Elf64_Shdr *section = &image.sections[i];
        const char *name = text_at(&image, image.names, section->sh_name);
        if (strncmp(name, TEXT, strlen(TEXT)) == 0)
            sim_function_add(module, name + strlen(TEXT), strlen(name) - strlen(TEXT));
        if (section->sh_type == SHT_SYMTAB) read_symbols(module, &image, section);
    }
    return CUDA_SUCCESS;
}
