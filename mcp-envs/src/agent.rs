//! Running an unmodified agent once: its command, what it is told, and the limits it runs under.
//!
//! The agent learns of its episode only from outside: base URL and key in the variables that its SDK reads anyway, the
//! MCP configuration as a file, the question on standard input. [`AgentRunner::run`] starts it in a directory of its own,
//! reads what it prints up to a limit, ends it at its time limit, and leaves no process of its group behind.

mod environment;
mod output;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use output::Capture;
use tokio_util::sync::CancellationToken;

pub use crate::launcher::{Exit, LaunchError, LauncherKind};
use crate::launcher::{LaunchBase, LaunchRequest, Launcher, RunningAgent};

/// What a process is given after it was asked to end, before it is killed.
const TERMINATE_GRACE: Duration = Duration::from_millis(500);

/// How long the pipes of a process that has ended are read on; only a process that left the group can hold them open.
const DRAIN_GRACE: Duration = Duration::from_millis(200);

/// Variables that an agent inherits by default: what programs need to find themselves, and nothing that is a secret.
pub const DEFAULT_ENVIRONMENT: [&str; 11] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "VIRTUAL_ENV",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// The agent: a command and its limits.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Program and arguments. `{mcp_config}` (path of the MCP configuration), `{prompt}`, `{scenario}` (JSON),
    /// `{base_url}` and `{api_key}` are replaced. A relative path that names an existing file is taken from
    /// `working_directory`, since the agent itself runs in a directory of its own.
    pub command: Vec<String>,
    /// Where the command's relative paths start; the process's own directory if absent.
    pub working_directory: Option<PathBuf>,
    /// Names of the variables that the agent inherits; it gets no others. See [`DEFAULT_ENVIRONMENT`].
    pub env_allow: Vec<String>,
    /// Variables set for the agent, with the same replacements as in `command`.
    pub env: BTreeMap<String, String>,
    /// An agent that runs longer is ended, and its episode fails.
    pub time_limit: Duration,
    /// Bytes of standard output, and of standard error, that an agent may write; one that writes more is ended.
    pub output_limit: usize,
    /// How the process is started.
    pub launcher: LauncherKind,
}

impl AgentConfig {
    /// `command` with the default limits: 60 s, 1 MiB, plain launcher, [`DEFAULT_ENVIRONMENT`].
    pub fn new(command: Vec<String>) -> Self {
        Self {
            command,
            working_directory: None,
            env_allow: DEFAULT_ENVIRONMENT.map(str::to_owned).to_vec(),
            env: BTreeMap::new(),
            time_limit: Duration::from_secs(60),
            output_limit: 1024 * 1024,
            launcher: LauncherKind::Plain,
        }
    }
}

/// What an agent is told about one episode.
#[derive(Clone, Debug)]
pub struct AgentInput {
    /// Base URL of the model API, ending in `/v1`.
    pub base_url: String,
    /// Key of the episode.
    pub api_key: String,
    /// The MCP configuration, in the `mcpServers` form, as text.
    pub mcp_config: String,
    /// The question, for standard input.
    pub prompt: String,
    /// The scenario as JSON, less what only the verifier may know.
    pub scenario: String,
}

/// How a run of the agent ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentEnd {
    /// It ended by itself.
    Exited(Exit),
    /// It was ended at the time limit.
    TimedOut,
    /// It was ended because it wrote more than the output limit.
    TooMuchOutput,
    /// It was ended because the whole run was cancelled.
    Cancelled,
}

/// One run of the agent.
#[derive(Clone, Debug)]
pub struct AgentReport {
    /// How it ended.
    pub end: AgentEnd,
    /// Standard output, at most the output limit; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
    /// From start to end.
    pub duration: Duration,
}

/// Why an agent could not be run at all.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The process could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The directory, its files or the pipes could not be made.
    #[error("cannot prepare the agent's working directory; is there space under the temporary directory?")]
    Directory(#[source] std::io::Error),
}

/// Runs one agent again and again. Dropping it ends the fork launcher's server.
pub struct AgentRunner {
    config: AgentConfig,
    launcher: Launcher,
    base_directory: PathBuf,
    /// The part of the environment that is the same for all episodes.
    base_environment: BTreeMap<String, String>,
}

impl AgentRunner {
    /// Checks the command and reads the inherited variables.
    pub fn new(config: AgentConfig) -> Result<Self, AgentError> {
        if config.command.is_empty() {
            return Err(LaunchError::EmptyCommand.into());
        }
        let base_directory = match &config.working_directory {
            Some(directory) => std::path::absolute(directory),
            None => std::env::current_dir(),
        }
        .map_err(AgentError::Directory)?;
        let base_environment = environment::base(&config.env_allow, &config.env);
        let base = LaunchBase {
            environment: base_environment.clone(),
            episode_variables: environment::episode_variables(&config.env),
            directory: base_directory.clone(),
        };
        Ok(Self {
            launcher: Launcher::new(config.launcher.clone(), base),
            base_directory,
            base_environment,
            config,
        })
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &AgentConfig {
        &self.config
    }

    /// Does what takes long before the first run: with the fork launcher, the imports. Not needed, but an early error.
    pub async fn prepare(&self) -> Result<(), AgentError> {
        let command = environment::resolve_paths(&self.config.command, &self.base_directory);
        Ok(self.launcher.prepare(&command).await?)
    }

    /// Runs the agent once, from start to the end of its process group.
    pub async fn run(&self, input: &AgentInput, cancel: &CancellationToken) -> Result<AgentReport, AgentError> {
        let started = Instant::now();
        // Gone, with all that the agent leaves in it, when this function returns.
        let directory = tempfile::Builder::new()
            .prefix("episode-")
            .tempdir()
            .map_err(AgentError::Directory)?;
        let work = directory.path().join("work");
        std::fs::create_dir(&work).map_err(AgentError::Directory)?;
        let mcp_config = work.join("mcp.json");
        std::fs::write(&mcp_config, &input.mcp_config).map_err(AgentError::Directory)?;
        let values = environment::Values {
            input,
            mcp_config: &mcp_config,
        };
        let stdin = standard_input(&input.prompt).map_err(AgentError::Directory)?;
        let (mut stdout, stdout_end) = Capture::new(self.config.output_limit).map_err(AgentError::Directory)?;
        let (mut stderr, stderr_end) = Capture::new(self.config.output_limit).map_err(AgentError::Directory)?;
        let request = LaunchRequest {
            command: values.fill_command(&environment::resolve_paths(&self.config.command, &self.base_directory)),
            environment: values.environment(&self.base_environment, &self.config.env),
            directory: work,
            stdin,
            stdout: stdout_end,
            stderr: stderr_end,
        };
        let mut agent = tokio::select! {
            biased;
            () = cancel.cancelled() => return Ok(AgentReport::cancelled(started)),
            agent = self.launcher.launch(request) => agent?,
        };
        let end = watch(&mut agent, &mut stdout, &mut stderr, self.config.time_limit, cancel).await?;
        if !matches!(end, AgentEnd::Exited(_)) {
            end_group(&mut agent).await;
        }
        drop(agent);
        // What it wrote last may still be in the pipes.
        let _ = tokio::time::timeout(DRAIN_GRACE, async { tokio::join!(stdout.drain(), stderr.drain()) }).await;
        Ok(AgentReport {
            end,
            stdout: stdout.into_text(),
            stderr: stderr.into_text(),
            duration: started.elapsed(),
        })
    }
}

impl AgentReport {
    fn cancelled(started: Instant) -> Self {
        Self {
            end: AgentEnd::Cancelled,
            stdout: String::new(),
            stderr: String::new(),
            duration: started.elapsed(),
        }
    }
}

/// The prompt as an unnamed file: unlike a pipe, it needs nobody to write it while the agent reads.
fn standard_input(prompt: &str) -> std::io::Result<std::fs::File> {
    use std::io::Seek;
    let mut file = tempfile::tempfile()?;
    file.write_all(prompt.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Reads what the agent prints until it ends or must be ended.
async fn watch(
    agent: &mut RunningAgent,
    stdout: &mut Capture,
    stderr: &mut Capture,
    time_limit: Duration,
    cancel: &CancellationToken,
) -> Result<AgentEnd, AgentError> {
    let deadline = tokio::time::sleep(time_limit);
    tokio::pin!(deadline);
    loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => return Ok(AgentEnd::Cancelled),
            () = &mut deadline => return Ok(AgentEnd::TimedOut),
            exit = agent.wait() => return Ok(AgentEnd::Exited(exit?)),
            () = stdout.read(), if stdout.is_open() => {}
            () = stderr.read(), if stderr.is_open() => {}
        }
        if stdout.is_full() || stderr.is_full() {
            return Ok(AgentEnd::TooMuchOutput);
        }
    }
}

/// Asks the process group to end, then makes it.
async fn end_group(agent: &mut RunningAgent) {
    agent.terminate();
    if tokio::time::timeout(TERMINATE_GRACE, agent.wait()).await.is_err() {
        agent.kill();
        // A killed process is gone at once, unless the kernel itself holds it; then waiting longer would not help.
        let _ = tokio::time::timeout(TERMINATE_GRACE, agent.wait()).await;
    }
}
