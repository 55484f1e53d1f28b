//! Which policy version is current, and how many calls are in flight on each.
//!
//! Reading the version and counting the call is one step under one lock, so a publisher that sees no call in flight on
//! an old version after the switch can unload it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use trajectory::{Policy, PolicyVersion};

/// The one pointer that a hot swap moves.
#[derive(Debug)]
pub(crate) struct CurrentPolicy {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    current: Policy,
    in_flight: BTreeMap<PolicyVersion, usize>,
}

impl CurrentPolicy {
    pub(crate) fn new(current: Policy) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                current,
                in_flight: BTreeMap::new(),
            }),
        })
    }

    /// The current version, counted as in use until the lease is dropped.
    pub(crate) fn lease(self: &Arc<Self>) -> PolicyLease {
        let mut inner = self.lock();
        let version = inner.current.version;
        *inner.in_flight.entry(version).or_default() += 1;
        drop(inner);
        PolicyLease {
            version,
            policy: self.clone(),
        }
    }

    pub(crate) fn switch(&self, policy: Policy) {
        self.lock().current = policy;
    }

    pub(crate) fn current(&self) -> Policy {
        self.lock().current.clone()
    }

    /// Calls in flight by version; versions without any are absent.
    pub(crate) fn in_flight(&self) -> BTreeMap<PolicyVersion, usize> {
        self.lock().in_flight.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One call's hold on a version.
#[derive(Debug)]
pub(crate) struct PolicyLease {
    version: PolicyVersion,
    policy: Arc<CurrentPolicy>,
}

impl PolicyLease {
    pub(crate) fn version(&self) -> PolicyVersion {
        self.version
    }
}

impl Drop for PolicyLease {
    fn drop(&mut self) {
        let mut inner = self.policy.lock();
        if let Some(count) = inner.in_flight.get_mut(&self.version) {
            *count -= 1;
            if *count == 0 {
                inner.in_flight.remove(&self.version);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_in_flight_keep_their_version() {
        let policy = CurrentPolicy::new(Policy {
            version: PolicyVersion(1),
            adapter: None,
        });
        let first = policy.lease();
        policy.switch(Policy {
            version: PolicyVersion(2),
            adapter: None,
        });
        let second = policy.lease();
        assert_eq!(
            (first.version(), second.version()),
            (PolicyVersion(1), PolicyVersion(2))
        );
        drop(first);
        assert_eq!(policy.in_flight(), BTreeMap::from([(PolicyVersion(2), 1)]));
    }
}
