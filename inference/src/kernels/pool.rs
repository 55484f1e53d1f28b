//! Threads that help the engine's, ready within a microsecond while it is busy and asleep while it is not.
//!
//! A step hands out some five loops a layer. A helper waits for the next one by spinning for about as long as the work between two loops takes, and
//! sleeps after that. The caller never waits for a helper that has not begun, so a helper without a core costs only its share of the work.

#![expect(
    unsafe_code,
    reason = "helpers get a job by pointer, and the caller waits for those that took it"
)]

use std::ffi::c_void;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, JoinHandle, Thread};

/// How often a helper looks for a job before it sleeps: some 200 microseconds.
const SPINS: usize = 4000;

/// A function to call on several threads at once.
pub(crate) struct Job {
    pub(crate) entry: extern "C" fn(*mut c_void),
    pub(crate) data: *mut c_void,
}

#[derive(Default)]
struct Shared {
    /// The present job; null between jobs.
    job: AtomicPtr<Job>,
    /// Counts jobs, so that a helper knows a new one from the one that it has done.
    n_jobs: AtomicUsize,
    /// Helpers that may be using the present job. One counts itself before it reads `job`.
    n_active: AtomicUsize,
    ended: AtomicBool,
}

struct Helper {
    thread: Thread,
    asleep: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

/// A number of helpers. Dropping it ends them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<Helper>,
}

impl Pool {
    /// Starts the helpers, asleep.
    pub(crate) fn new(n_helpers: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut helpers = Vec::with_capacity(n_helpers);
        for index in 0..n_helpers {
            let (of_helper, asleep) = (Arc::clone(&shared), Arc::new(AtomicBool::new(false)));
            let of_thread = Arc::clone(&asleep);
            let handle = thread::Builder::new()
                .name(format!("engine-{}", index + 1))
                .spawn(move || help(&of_helper, &of_thread))?;
            helpers.push(Helper {
                thread: handle.thread().clone(),
                asleep,
                handle: Some(handle),
            });
        }
        Ok(Self { shared, helpers })
    }

    /// How many threads there are beside the caller's.
    pub(crate) fn n_helpers(&self) -> usize {
        self.helpers.len()
    }

    /// Calls the job on this thread and on the helpers that come in time, and returns when all that took it have returned. For one
    /// thread at a time: the engine's.
    ///
    /// # Safety
    /// The job's function may be called with its data from several threads at once while this call lasts.
    pub(crate) unsafe fn run(&self, job: &Job) {
        let shared = &self.shared;
        shared.job.store(ptr::from_ref(job).cast_mut(), SeqCst);
        shared.n_jobs.fetch_add(1, SeqCst);
        for helper in &self.helpers {
            if helper.asleep.load(SeqCst) {
                helper.thread.unpark();
            }
        }
        (job.entry)(job.data);
        // Whoever counted itself before this store may have the job; whoever does so later finds none.
        shared.job.store(ptr::null_mut(), SeqCst);
        while shared.n_active.load(SeqCst) > 0 {
            std::hint::spin_loop();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        for helper in &mut self.helpers {
            helper.thread.unpark();
            if let Some(handle) = helper.handle.take() {
                // A helper catches the panics of its work; there is nothing to learn from the result.
                let _ = handle.join();
            }
        }
    }
}

fn help(shared: &Shared, asleep: &AtomicBool) {
    let mut n_done = shared.n_jobs.load(SeqCst);
    loop {
        let mut spins = 0;
        while shared.n_jobs.load(SeqCst) == n_done {
            if shared.ended.load(SeqCst) {
                return;
            }
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            asleep.store(true, SeqCst);
            // A job that came before the store would not wake this thread.
            if shared.n_jobs.load(SeqCst) == n_done && !shared.ended.load(SeqCst) {
                thread::park();
            }
            asleep.store(false, SeqCst);
            spins = 0;
        }
        n_done = shared.n_jobs.load(SeqCst);
        shared.n_active.fetch_add(1, SeqCst);
        let job = shared.job.load(SeqCst);
        if !job.is_null() {
            // SAFETY: the caller of `run` keeps the job until `n_active` is 0 again.
            let Job { entry, data } = unsafe { &*job };
            entry(*data);
        }
        shared.n_active.fetch_sub(1, SeqCst);
    }
}
