//! One recorded model call, from the agent's request to the record.
//!
//! [`plan`] decides what is sent where; [`run`] sends it and hands the answer back, streamed by [`stream`] or whole;
//! [`draft`] collects the facts of the record. The call runs in a task of its own, so that an agent that hangs up
//! cancels the upstream but never the writing of what was sampled until then.

pub(crate) mod draft;
pub(crate) mod plan;
pub(crate) mod run;
mod stream;
