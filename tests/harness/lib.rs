//! What whole-system tests share: a tiny model, and the folder of a small run.

pub mod binary;
pub mod small_run;
pub mod tiny_model;
