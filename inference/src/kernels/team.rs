//! Runs our loops on several threads.
//!
//! A loop is cut into parts, and each thread takes the next part until none is left, so a thread that is late costs nothing.
//! There are two kinds of team. In a step of the engine nearly all the work is ours, and the engine's own [`Pool`] does it: it waits for
//! nobody who has not begun, so the agents' processes may have a core for a while. Elsewhere we fork libtorch's OpenMP team, by the entry point that compilers
//! call for `#pragma omp parallel`; where the process has no such symbol (another OpenMP, or none), the loops run on the calling thread.

#![expect(unsafe_code, reason = "calls OpenMP's C entry point and hands parts out to threads")]

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::pool::{Job, Pool};

/// `void GOMP_parallel(void (*fn)(void *), void *data, unsigned num_threads, unsigned flags)`
type Fork = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);

thread_local! {
    static CURRENT_POOL: RefCell<Option<Arc<Pool>>> = const { RefCell::new(None) };
}

/// Threads that work for the calling one.
#[derive(Clone)]
pub(crate) enum Team {
    /// The engine's own.
    Pool(Arc<Pool>),
    /// OpenMP's, and how many.
    OpenMp(Fork, usize),
    /// None.
    Alone,
}

impl Team {
    /// The pool while [`with_pool`] runs, else a team as large as libtorch's.
    pub(crate) fn current() -> Self {
        static FORK: OnceLock<Option<Fork>> = OnceLock::new();
        if let Some(pool) = CURRENT_POOL.with_borrow(Clone::clone) {
            return Self::Pool(pool);
        }
        let n_threads = usize::try_from(tch::get_num_threads()).unwrap_or(1);
        match *FORK.get_or_init(find_fork) {
            Some(fork) if n_threads > 1 => Self::OpenMp(fork, n_threads),
            _ => Self::Alone,
        }
    }

    /// Whether [`with_pool`] runs on this thread.
    pub(crate) fn has_pool() -> bool {
        CURRENT_POOL.with_borrow(Option::is_some)
    }

    /// How many threads work at once.
    pub(crate) fn n_threads(&self) -> usize {
        match self {
            Self::Pool(pool) => pool.n_helpers() + 1,
            Self::OpenMp(_, n_threads) => *n_threads,
            Self::Alone => 1,
        }
    }

    /// Calls `work` once for each part, several at a time. A panic goes on in the caller.
    pub(crate) fn run<T: Send>(&self, parts: &mut [T], work: impl Fn(&mut T) + Sync) {
        if parts.len() < 2 || self.n_threads() < 2 {
            parts.iter_mut().for_each(work);
            return;
        }
        let n_parts = parts.len();
        let task = Task {
            parts: parts.as_mut_ptr(),
            n_parts,
            next: AtomicUsize::new(0),
            work,
            panic: Mutex::new(None),
        };
        let entry = task_entry(&task);
        let data = (&raw const task).cast_mut().cast::<c_void>();
        match self {
            // SAFETY: both call `entry` with `data` on their threads and return when all have returned, so `task` outlives
            // the calls; `task_entry` names its types.
            Self::Pool(pool) => unsafe { pool.run(&Job { entry, data }) },
            Self::OpenMp(fork, n_threads) => unsafe { fork(entry, data, (*n_threads).min(n_parts) as c_uint, 0) },
            Self::Alone => entry(data),
        }
        if let Some(payload) = task.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(payload);
        }
    }
}

/// Makes `pool` this thread's [`Team::current`] while `work` runs.
pub(crate) fn with_pool<T>(pool: &Arc<Pool>, work: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            CURRENT_POOL.set(None);
        }
    }
    let _reset = Reset;
    CURRENT_POOL.set(Some(Arc::clone(pool)));
    work()
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

    fn on_each_team(check: impl Fn(Team)) {
        check(Team::current());
        check(Team::Alone);
        with_pool(&Arc::new(Pool::new(3).unwrap()), || check(Team::current()));
    }

    #[test]
    fn every_part_is_done_once() {
        on_each_team(|team| {
            for round in 0..2000 {
                let mut parts = vec![0; round % 41];
                team.run(&mut parts, |part| *part += 1);
                assert!(parts.iter().all(|&part| part == 1));
            }
        });
    }

    #[test]
    fn a_panic_goes_on_in_the_caller() {
        on_each_team(|team| {
            let mut parts = vec![1, 2, 3];
            let result = catch_unwind(AssertUnwindSafe(|| team.run(&mut parts, |part| assert_ne!(*part, 2))));
            assert!(result.is_err());
        });
    }
}
