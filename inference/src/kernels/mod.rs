//! Loops of a forward pass on the CPU in float32, for what libtorch's operators are slow at: few rows, or several threads that
//! share their cores with agents.
//!
//! [`linear`] (linear maps, [`few_rows`](linear::few_rows) and [`many_rows`](linear::many_rows) at a time) and [`row_ops`] (norm, rotation, activation) answer None where they
//! do not apply, and the caller goes on with libtorch. Under them: [`compact`] (weights in few bits), [`vector_math`] (registers and instruction sets), [`tensor_view`] (a tensor's
//! floats), [`team`] (several threads) and its [`pool`].

pub(crate) mod compact;
pub(crate) mod linear;
pub(crate) mod pool;
pub(crate) mod row_ops;
pub(crate) mod team;
pub(crate) mod tensor_view;
pub(crate) mod vector_math;
