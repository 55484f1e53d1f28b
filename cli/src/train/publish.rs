//! Publishing a policy version: adapter directory → inference server → probe → the proxy's current version.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use inference::server::InferenceServer;
use serde_json::json;

/// Hands adapters to the inference server and tells the proxy.
pub(crate) struct Publisher {
    inference: InferenceServer,
    proxy_url: String,
    http: reqwest::Client,
    loaded: Vec<u64>,
}

impl Publisher {
    /// `proxy_url`: `http://host:port` of the proxy.
    pub(crate) fn new(inference: InferenceServer, proxy_url: &str) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            // The proxy is on this machine, whatever the environment says of the way to others.
            .no_proxy()
            .timeout(Duration::from_secs(30))
            .build()?;
        Ok(Self {
            inference,
            proxy_url: proxy_url.to_owned(),
            http,
            loaded: Vec::new(),
        })
    }

    /// Makes `version` current. Calls in flight keep the version that they began with; the version before stays loaded
    /// for them, older ones are unloaded.
    ///
    /// # Errors
    /// If the server refuses the adapter or its probe fails; the version before stays current then.
    pub(crate) async fn publish(&mut self, version: u64, adapter: &Path) -> anyhow::Result<PathBuf> {
        let name = format!("policy@{version}");
        self.inference
            .load_adapter(&name, adapter)
            .await
            .with_context(|| format!("the inference server refused {name}; the version before stays current"))?;
        self.inference
            .probe(&name)
            .await
            .with_context(|| format!("{name} was loaded but does not answer; the version before stays current"))?;
        self.switch(version, Some(adapter)).await?;
        self.loaded.push(version);
        while self.loaded.len() > 2 {
            let old = format!("policy@{}", self.loaded.remove(0));
            if let Err(error) = self.inference.unload_adapter(&old).await {
                tracing::warn!(%error, adapter = old, "an adapter could not be unloaded");
            }
        }
        Ok(adapter.to_owned())
    }

    /// Makes the base model current.
    ///
    /// # Errors
    /// If the proxy refuses it.
    pub(crate) async fn publish_base(&self) -> anyhow::Result<()> {
        self.switch(0, None).await
    }

    async fn switch(&self, version: u64, adapter: Option<&Path>) -> anyhow::Result<()> {
        let url = format!("{}/api/policy", self.proxy_url);
        let response = self
            .http
            .post(&url)
            .json(&json!({"version": version, "adapter": adapter}))
            .send()
            .await?;
        let status = response.status();
        if !status.is_success() {
            anyhow::bail!("{url} answered {status}: {}", response.text().await.unwrap_or_default());
        }
        Ok(())
    }
}
