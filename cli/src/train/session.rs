//! The parts of a run around one policy, without training: what `trainyard eval` and `trainyard rollout` need.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tokio_util::sync::CancellationToken;
use trajectory::Split;

use super::publish::Publisher;
use super::world::{Loaded, World, open_store};
use super::{Interrupted, unless_interrupted};
use crate::config::RunConfig;

/// Starts engine, proxy, tools and agent as `config` says, recording to `store`; publishes `adapter`; does `work` on the
/// scenarios of `split`; ends all of it again.
///
/// # Errors
/// What the configuration, its scenarios or the adapter have wrong, before anything is written; [`Interrupted`]; what `work` says.
pub(crate) async fn with_policy<T>(
    config: RunConfig,
    adapter: Option<&Path>,
    split: Split,
    store: &Path,
    shutdown: &CancellationToken,
    work: impl AsyncFnOnce(&World) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let loaded = Loaded::load(&config)?;
    loaded.check_split(split)?;
    let adapter = adapter
        .map(|path| std::path::absolute(path).with_context(|| path.display().to_string()))
        .transpose()?;
    if let Some(adapter) = &adapter {
        loaded.check_adapter(adapter)?;
    }
    let open = |_: &RunConfig| {
        if let Some(folder) = store.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
        }
        Ok((open_store(store)?, ()))
    };
    let (world, ()) = unless_interrupted(shutdown, World::start(config, loaded, open)).await?;
    let result = async {
        // A store that was recorded to before may name another policy as current.
        let mut publisher = Publisher::new(world.inference.clone(), &world.proxy_url)?;
        match &adapter {
            Some(adapter) => {
                let next = world.store.policy()?.version.next();
                publisher.publish(next.0, adapter).await.map(drop)?;
            }
            None => publisher.publish_base().await?,
        }
        work(&world).await
    };
    let result = result.await;
    world.stop().await;
    if shutdown.is_cancelled() {
        return Err(Interrupted.into());
    }
    result
}

/// Where episodes go if nobody says: a file of its own below the runs, named after the time.
pub(crate) fn default_store(config: &RunConfig, purpose: &str) -> PathBuf {
    let stamp = jiff::ZonedDateTime::now().strftime("%Y%m%d-%H%M%S");
    let name = format!("{}-{purpose}-{stamp}-seed{}.db", config.run.name, config.run.seed);
    config.run.output.join(name)
}
