/* What one command and one row look like beside their arrays: the words that manager and worker agree on. */
#ifndef SHM_ROW_H
#define SHM_ROW_H
#include <stdint.h>

/* Operation word of a command, written by the manager before shm_command: code | plane << 8 | SHM_HAS_PAYLOAD. */
enum { SHM_OP_RESET = 1, SHM_OP_STEP = 2, SHM_OP_CALL = 3 };
#define SHM_OP_CODE(word) ((word) & 0xff)
#define SHM_OP_PLANE(word) (((word) >> 8) & 0xff)
enum {
    SHM_HAS_PAYLOAD = 1 << 16, /* something lies in the env's inbound area */
    SHM_KEEP_ROW = 1 << 17,    /* a reset whose reward, flags and final row are there already, and stay */
    SHM_WHOLE = 1 << 18,       /* nobody looks at the answer before all that were asked with it are in */
    SHM_GO_ON = 1 << 19        /* a step: if its row needs a reset, that is the next command, without being given: it has no
                                  payload, and its answer goes to the next plane */
};

/* Flag word of a row, written by the worker before shm_respond; 0 is the plain case that costs nothing.
 * The FINAL bits are set before shm_end and stay as they are until shm_respond. */
enum {
    SHM_ROW_ERROR = 1,       /* the env raised, or what it returned does not fit; the note is the error record */
    SHM_ROW_NOTE = 2,        /* the row has a note: info, object leaves of the observation */
    SHM_ROW_SPILLED = 4,     /* the note is in the spill, not in the row */
    SHM_ROW_FINAL_NOTE = 8,  /* the same for the ended step's info and object leaves (same-step autoreset) */
    SHM_ROW_FINAL_SPILLED = 16,
    SHM_ROW_NEEDS_RESET = 32 /* the episode ended and nobody but the caller resets the env (autoreset disabled) */
};

/* A word that a broken worker may change at any time, read once: what is checked is what is used. */
static inline uint32_t shm_word(const volatile uint32_t *word) { return *word; }
#endif
