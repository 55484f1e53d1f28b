//! A process group that ends with its owner.

use rustix::process::{Pid, Signal, kill_process_group};

/// The process group that an agent leads. Killed when dropped, unless disarmed.
pub(crate) struct ProcessGroup {
    leader: Pid,
    armed: bool,
}

impl ProcessGroup {
    /// The group whose leader has process number `leader`; `None` for 0, 1 and what doesn't fit, which would hit others.
    pub(crate) fn new(leader: u32) -> Option<Self> {
        let raw = i32::try_from(leader).ok().filter(|raw| *raw > 1)?;
        Some(Self {
            leader: Pid::from_raw(raw)?,
            armed: true,
        })
    }

    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Says that the group has ended, so that its number may already belong to another.
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
    }

    fn signal(&self, signal: Signal) {
        if self.armed {
            // It fails only where nobody is left in the group.
            let _ = kill_process_group(self.leader, signal);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}
