//! Tests of the routes with a scripted engine.
