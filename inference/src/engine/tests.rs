//! The whole engine with a tiny random model.
