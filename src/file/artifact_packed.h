/* Packed weights of an artifact, for the code that writes, reads and uses them.
 *
 * The native engine wants weights in an order of its own, which differs from one instruction set to another. A file may have
 * them that way, too: per instruction set one entry of pieces, each under a key that says what was made of which data
 * (src/native/packed.c). Whoever does not find a piece, or finds it damaged, makes it of the tensors. */
#ifndef FILE_ARTIFACT_PACKED_H
#define FILE_ARTIFACT_PACKED_H

#include "file/artifact.h"

#define ARTIFACT_PACKED_KEY "cleave.packed"

const artifact_packed *packed_for(const artifact *a, const char *isa); /* NULL: there are none */
/* Texts and pieces are copied, data is borrowed. Pieces: by key, each once. */
clv_status artifact_add_packed(artifact *a, const char *isa, const packed_piece *pieces, uint32_t n, const void *data,
                               size_t size);
void packed_list_free(artifact *a);

/* The piece of that key and size. Its digest is compared when it is first asked for; artifacts may be shared by threads. */
typedef enum packed_found { PACKED_FOUND, PACKED_ABSENT, PACKED_DAMAGED } packed_found;
packed_found packed_find(const artifact_packed *x, digest key, size_t n, const void **out);

/* What a runtime packed of a file's tensors, for the others that are on the same tensors: parts of it, or plans that share
   weights. Gone with its last user. */
typedef struct made_piece made_piece;
typedef void (*piece_fn)(const void *ctx, void *out);
/* One more user of the piece. Where there is none, `make` fills it, to be found from then on; make NULL: *out is NULL. */
clv_status made_take(const artifact *origin, digest key, size_t n, piece_fn make, const void *ctx, made_piece **out);
void made_give(made_piece *p);              /* one user less. NULL is allowed */
const void *made_data(const made_piece *p); /* aligned */
bool made_any(const artifact *origin);

clv_status packed_entry(const char *isa, arena *a, const char **out); /* the name of the entry */
/* The text under ARTIFACT_PACKED_KEY, and back. Reading also sees to it that every entry of such a name is in the text. */
clv_status packed_print(const artifact *a, strbuf *out);
clv_status packed_read(artifact *a);

#endif
