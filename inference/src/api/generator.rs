//! The seam between HTTP and the engine.

use std::path::Path;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::engine::{EngineError, EngineHandle, EngineStats, GenerateEvent, GenerateRequest, LoadedAdapter};

/// What the API asks of an engine. [`EngineHandle`] is the real one; tests bring scripted ones.
pub trait Generator: Send + Sync + 'static {
    /// Starts a sequence; dropping the receiver abandons it.
    ///
    /// # Errors
    /// [`EngineError`] where the request can't be run.
    fn generate(&self, request: GenerateRequest) -> Result<UnboundedReceiver<GenerateEvent>, EngineError>;

    /// Makes the adapter in `path` available as `name`.
    fn load_adapter<'a>(
        &'a self,
        name: &'a str,
        path: &'a Path,
        in_place: bool,
    ) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Takes the name away.
    fn unload_adapter<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>>;

    /// The adapters that requests can name.
    fn adapters(&self) -> Vec<LoadedAdapter>;

    /// Counters and load.
    fn stats(&self) -> EngineStats;
}

impl Generator for EngineHandle {
    fn generate(&self, request: GenerateRequest) -> Result<UnboundedReceiver<GenerateEvent>, EngineError> {
        EngineHandle::generate(self, request)
    }

    fn load_adapter<'a>(
        &'a self,
        name: &'a str,
        path: &'a Path,
        in_place: bool,
    ) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(EngineHandle::load_adapter(self, name, path, in_place))
    }

    fn unload_adapter<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(EngineHandle::unload_adapter(self, name))
    }

    fn adapters(&self) -> Vec<LoadedAdapter> {
        EngineHandle::adapters(self)
    }

    fn stats(&self) -> EngineStats {
        EngineHandle::stats(self)
    }
}
