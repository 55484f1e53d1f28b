//! Runs our loops on libtorch's own threads.
//!
//! libtorch's operators run on OpenMP's team of the calling thread, and its members spin for a while between operators. Threads of our own
//! would fight with them for the cores, thirty times a step. So we fork the same team, by the entry point that compilers call for
//! `#pragma omp parallel`. Where the process has no such symbol (another OpenMP, or none), the loops run on the calling thread.

#![expect(
    unsafe_code,
    reason = "calls OpenMP's C entry point and hands the parts out to its threads"
)]

use std::any::Any;
use std::ffi::{c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// `void GOMP_parallel(void (*fn)(void *), void *data, unsigned num_threads, unsigned flags)`
type Fork = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);

/// The calling thread's team.
#[derive(Clone, Copy)]
pub(super) struct Team {
    fork: Option<Fork>,
    n_threads: usize,
}

impl Team {
    /// A team as large as libtorch's.
    pub(super) fn new() -> Self {
        static FORK: OnceLock<Option<Fork>> = OnceLock::new();
        let n_threads = usize::try_from(tch::get_num_threads()).unwrap_or(1).max(1);
        Self {
            fork: if n_threads > 1 { *FORK.get_or_init(find_fork) } else { None },
            n_threads,
        }
    }

    /// How many threads work at once.
    pub(super) fn n_threads(&self) -> usize {
        if self.fork.is_some() { self.n_threads } else { 1 }
    }

    /// Calls `work` once for each part, several at a time. A panic goes on in the caller.
    pub(super) fn run<T: Send>(&self, parts: &mut [T], work: impl Fn(&mut T) + Sync) {
        let n_threads = self.n_threads.min(parts.len());
        let (Some(fork), true) = (self.fork, n_threads > 1) else {
            parts.iter_mut().for_each(work);
            return;
        };
        let task = Task {
            parts: parts.as_mut_ptr(),
            n_parts: parts.len(),
            next: AtomicUsize::new(0),
            work,
            panic: Mutex::new(None),
        };
        let data = (&raw const task).cast_mut().cast::<c_void>();
        // SAFETY: the entry point calls `run_parts` with `data` on each thread and returns when all have returned, so
        // `task` outlives the calls; `task_entry` names the same types.
        unsafe { fork(task_entry(&task), data, n_threads as c_uint, 0) };
        if let Some(payload) = task.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(payload);
        }
    }
}

struct Task<T, F> {
    parts: *mut T,
    n_parts: usize,
    next: AtomicUsize,
    work: F,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The instance of [`run_parts`] for a task's types.
fn task_entry<T: Send, F: Fn(&mut T) + Sync>(_: &Task<T, F>) -> extern "C" fn(*mut c_void) {
    run_parts::<T, F>
}

extern "C" fn run_parts<T: Send, F: Fn(&mut T) + Sync>(data: *mut c_void) {
    // SAFETY: `Team::run` passes a task of these types that outlives the call; it is only read but for its parts.
    let task = unsafe { &*data.cast::<Task<T, F>>() };
    loop {
        let index = task.next.fetch_add(1, Ordering::Relaxed);
        if index >= task.n_parts {
            return;
        }
        // SAFETY: each index is handed out once, so no other thread sees this part; T: Send.
        let part = unsafe { &mut *task.parts.add(index) };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (task.work)(part))) {
            *task.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
        }
    }
}

#[cfg(unix)]
fn find_fork() -> Option<Fork> {
    // SAFETY: looks a symbol up by a terminated name; where it exists it has the type above, by the ABI of GNU's OpenMP, which
    // LLVM's implements too.
    unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"GOMP_parallel".as_ptr());
        (!symbol.is_null()).then(|| std::mem::transmute::<*mut c_void, Fork>(symbol))
    }
}

#[cfg(not(unix))]
fn find_fork() -> Option<Fork> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_done_once() {
        for n_parts in [0, 1, 2, 3, 100] {
            let mut parts = vec![0; n_parts];
            Team::new().run(&mut parts, |part| *part += 1);
            assert!(parts.iter().all(|&part| part == 1));
        }
    }

    #[test]
    fn a_panic_goes_on_in_the_caller() {
        let mut parts = vec![1, 2, 3];
        let result = catch_unwind(AssertUnwindSafe(|| {
            Team::new().run(&mut parts, |part| assert_ne!(*part, 2));
        }));
        assert!(result.is_err());
    }
}
