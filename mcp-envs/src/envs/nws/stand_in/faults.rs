//! Failures that can be switched on while the stand-in runs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// 500 `UnexpectedProblem`.
    InternalError,
    /// 503 `ForecastGridExpired`.
    Unavailable,
    /// The right answer, late.
    Slow {
        /// How late.
        delay_ms: u64,
    },
    /// `/points` answers without its links.
    NullLinks,
    /// A success status with a body that is not JSON.
    Garbage,
}

/// A failure, where it strikes and how often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What happens.
    pub kind: FaultKind,
    /// Only requests whose path begins so; all requests where empty.
    #[serde(default)]
    pub path_prefix: String,
    /// Only so many requests; all from now on where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
}

impl Fault {
    /// A fault that strikes every request.
    pub fn always(kind: FaultKind) -> Self {
        Self {
            kind,
            path_prefix: String::new(),
            times: None,
        }
    }

    /// A fault that strikes the next `times` requests.
    pub fn next(kind: FaultKind, times: u32) -> Self {
        Self {
            times: Some(times),
            ..Self::always(kind)
        }
    }

    /// The same fault, only where the path begins so.
    pub fn under(self, path_prefix: &str) -> Self {
        Self {
            path_prefix: path_prefix.to_owned(),
            ..self
        }
    }
}

/// The faults that are switched on. Clones share one switch.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<Vec<Fault>>>);

impl Faults {
    /// No faults.
    pub fn none() -> Self {
        Self::default()
    }

    /// These faults.
    pub fn new(faults: Vec<Fault>) -> Self {
        let switch = Self::none();
        switch.set(faults);
        switch
    }

    /// Replaces the faults.
    pub fn set(&self, faults: Vec<Fault>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// The faults that can still strike.
    pub fn get(&self) -> Vec<Fault> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What strikes a request to this path; the first fault that fits counts down.
    pub(super) fn strike(&self, path: &str) -> Option<FaultKind> {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = faults.iter().position(|fault| path.starts_with(&fault.path_prefix))?;
        let fault = faults.get_mut(index)?;
        let kind = fault.kind;
        if let Some(times) = fault.times.as_mut() {
            *times = times.saturating_sub(1);
            if *times == 0 {
                faults.remove(index);
            }
        }
        Some(kind)
    }
}

impl FaultKind {
    pub(super) fn delay(self) -> Option<Duration> {
        match self {
            Self::Slow { delay_ms } => Some(Duration::from_millis(delay_ms)),
            _ => None,
        }
    }
}
