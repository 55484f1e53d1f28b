//! What ends a command: wrong usage (exit code 2), or a failure (exit code 1).

use std::fmt;

/// A mistake that the user can mend: exit code 2, nothing was written.
#[derive(Debug)]
pub(crate) struct UsageError {
    message: String,
    context: Option<String>,
    hint: Option<String>,
}

impl UsageError {
    /// `message` says what is wrong, in lowercase without a full stop.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            context: None,
            hint: None,
        }
    }

    /// Adds what to do.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says where it is.
    pub(crate) fn context(mut self, context: impl Into<String>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// What to do, if known.
    pub(crate) fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.context {
            Some(context) => write!(f, " ({context})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for UsageError {}

/// An error with its sources, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        source = error.source();
    }
    text
}
