//! Placeholder until its code is here.
