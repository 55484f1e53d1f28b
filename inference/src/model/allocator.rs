//! What the process does with memory that a forward or backward pass gives back.
#![expect(unsafe_code, reason = "mallopt is a function of C")]

use std::sync::Once;

/// Keeps freed memory for the next pass instead of handing it to the kernel, which would clear each page anew: libtorch
/// allocates and frees the activations of every layer, and by default glibc maps each of them separately. The peak is
/// the same; what a pass no longer needs stays resident. Settings that the user made by `MALLOC_…_` win.
/// Allocators other than glibc's stay as they are.
pub(super) fn keep_freed_memory() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        for (variable, parameter, bytes) in [
            // The largest that glibc allows.
            ("MALLOC_MMAP_THRESHOLD_", libc::M_MMAP_THRESHOLD, 32 << 20),
            ("MALLOC_TRIM_THRESHOLD_", libc::M_TRIM_THRESHOLD, libc::c_int::MAX),
            ("MALLOC_TOP_PAD_", libc::M_TOP_PAD, 64 << 20),
        ] {
            if std::env::var_os(variable).is_none() {
                // SAFETY: it takes plain numbers and locks what it changes.
                unsafe { libc::mallopt(parameter, bytes) };
            }
        }
    });
}
