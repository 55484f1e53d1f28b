//! Tests over a real byte-level tokenizer, small enough to build in place.
