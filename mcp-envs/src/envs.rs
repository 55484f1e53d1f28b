//! The environments that ship with Trainyard, one module each.

pub mod nws;
