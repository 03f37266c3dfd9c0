/* Signatures of artifacts: Ed25519 by OpenSSL, over every byte of the file (docs/artifact.md has the construction).
 *
 * A signed file starts with bytes at fixed places, so that a signature is looked for, and verified, before anything of the
 * file is parsed. Keys are given as the path of a PEM file, or as its text. */
#pragma once

#include "base/strbuf.h"
#include "base/status.h"

#define SIGNATURE_KEY "cleave.signature" /* in the metadata */
#define SIGNATURE_BLOCK 256              /* bytes that a signature adds to a header */
#define FINGERPRINT_TEXT 65              /* 64 hexadecimal digits and a NUL: SHA-256 of the raw public key */

bool signature_is_there(const void *data, size_t n);
/* The key that a signed file names, which proves nothing yet. CLV_E_PARSE for a signature that is not well formed. */
clv_status signature_claimed(const void *data, size_t n, char fingerprint[FINGERPRINT_TEXT]);
/* CLV_E_SIGNATURE: it is not signed, by none of these public keys, or was changed since. */
clv_status signature_verify(const void *data, size_t n, const char *const *keys, uint32_t nkeys,
                            char fingerprint[FINGERPRINT_TEXT]);
/* The start of the file, signed with a private key, up to where byte *rest of `data` goes on. data: as Cleave writes it,
   signed or not. */
clv_status signature_make(const void *data, size_t n, const char *key, strbuf *head, size_t *rest);
/* A new private key as the file `path`, and its public key as `path`.pub; files that are there are left alone. */
clv_status signature_new_key(const char *path);
/* Of a public or a private key. */
clv_status signature_fingerprint(const char *key, char out[FINGERPRINT_TEXT]);
