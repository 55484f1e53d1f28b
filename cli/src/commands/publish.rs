//! `trainyard publish`

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use inference::server::InferenceServer;
use serde_json::{Value, json};
use trajectory::PolicyVersion;

use crate::failure::UsageError;
use crate::telemetry::print;

/// The proxy answers its control routes from memory and the store.
const CONTROL_LIMIT: Duration = Duration::from_secs(30);

/// Arguments of `trainyard publish`.
#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    /// Adapter directory in PEFT's layout, on a path that the inference servers can read
    #[arg(long, value_name = "FOLDER")]
    adapter: PathBuf,
    /// Inference server behind the proxy; repeat it for each replica
    #[arg(long = "server", value_name = "URL", required = true)]
    servers: Vec<String>,
    /// Key of the inference servers
    #[arg(long, value_name = "KEY", env = "TRAINYARD_UPSTREAM_KEY", hide_env_values = true)]
    server_key: Option<String>,
    /// The proxy
    #[arg(long, value_name = "URL")]
    proxy: String,
    /// Token of the proxy's control routes
    #[arg(long, env = "TRAINYARD_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Policy version; the one after the current one if absent
    #[arg(long, value_name = "N")]
    version: Option<u64>,
}

/// Loads the adapter on every server, probes each, and only then makes it current at the proxy. The name that calls go
/// out with is printed at the end.
pub(crate) async fn run(args: PublishArgs) -> anyhow::Result<()> {
    let adapter = adapter(&args.adapter)?;
    let proxy = Control::new(&args.proxy, args.token)?;
    let current = proxy.current().await?;
    let version = args.version.map_or_else(|| current.next(), PolicyVersion);
    let Some(name) = version.upstream_name() else {
        return Err(UsageError::new("version 0 is the base model")
            .hint("give --version 1 or more, or leave it out")
            .into());
    };
    let mut servers = Vec::new();
    for url in &args.servers {
        servers.push(InferenceServer::new(url, args.server_key.clone())?);
    }
    let mut loaded: Vec<&InferenceServer> = Vec::new();
    for server in &servers {
        let mut ready = server.load_adapter(&name, &adapter).await;
        if ready.is_ok() {
            loaded.push(server);
            ready = server.probe(&name).await;
        }
        if let Err(error) = ready {
            // A later try may use the name again.
            for server in loaded {
                if let Err(error) = server.unload_adapter(&name).await {
                    tracing::warn!(%error, adapter = name, "an adapter could not be unloaded");
                }
            }
            return Err(anyhow::Error::from(error).context(format!("policy version {current} stays current")));
        }
    }
    proxy.switch(version, &adapter).await?;
    print(name);
    Ok(())
}

/// The absolute path of a directory that holds an adapter.
fn adapter(path: &Path) -> Result<PathBuf, UsageError> {
    let hint = "give the folder with adapter_config.json and adapter_model.safetensors";
    let folder = path
        .canonicalize()
        .map_err(|source| UsageError::new(format!("there is no adapter at {}: {source}", path.display())).hint(hint))?;
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        if !folder.join(name).is_file() {
            return Err(UsageError::new(format!("{} has no {name}", path.display())).hint(hint));
        }
    }
    Ok(folder)
}

/// The proxy's policy route.
struct Control {
    http: reqwest::Client,
    url: String,
    token: Option<String>,
}

impl Control {
    fn new(proxy: &str, token: Option<String>) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().timeout(CONTROL_LIMIT).no_proxy().build()?;
        Ok(Self {
            http,
            url: format!("{}/api/policy", proxy.trim_end_matches('/')),
            token,
        })
    }

    async fn current(&self) -> anyhow::Result<PolicyVersion> {
        let answer = self.send(self.http.get(&self.url)).await?;
        let version = answer["version"]
            .as_u64()
            .with_context(|| format!("{} names no version", self.url))?;
        Ok(PolicyVersion(version))
    }

    async fn switch(&self, version: PolicyVersion, adapter: &Path) -> anyhow::Result<()> {
        let body = json!({"version": version, "adapter": adapter});
        self.send(self.http.post(&self.url).json(&body)).await.map(drop)
    }

    async fn send(&self, mut request: reqwest::RequestBuilder) -> anyhow::Result<Value> {
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request
            .send()
            .await
            .with_context(|| format!("no answer from the proxy at {}", self.url))?;
        let status = response.status();
        let text = response.text().await?;
        anyhow::ensure!(status.is_success(), "{} answered {status}: {text}", self.url);
        Ok(serde_json::from_str(&text)?)
    }
}
