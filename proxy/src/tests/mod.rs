//! The whole proxy over real sockets, with a fake upstream that speaks vLLM's protocol.

mod addresses;
mod control;
mod failures;
mod fake_upstream;
mod fidelity;
mod tool_servers;
mod world;
