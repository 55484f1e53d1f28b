//! Starting the agent's process: as a plain command, or forked from a server that has its modules loaded.
//!
//! Both ways give the process its own process group, working directory, environment and three descriptors; the caller
//! can't tell them apart. What differs is the price: a Python interpreter that imports an SDK or two costs more than a
//! second of a core each time, a fork of one that already has a few milliseconds.

mod fork;
mod process_group;
#[cfg(test)]
pub(crate) mod test_support;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use fork::{Connection, ForkServer, ForkedExit};
use process_group::ProcessGroup;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

/// How an agent's process is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LauncherKind {
    /// Runs the command as it stands; for any language.
    #[default]
    Plain,
    /// For `python [flags] script.py [arguments]`: one interpreter imports the script's modules once and forks for each
    /// episode, which runs the unchanged script. A module is shared only if the script can't tell: not one that lies
    /// beside it, starts a thread, or reads its episode's variables when it is imported.
    Fork {
        /// Modules to import beyond those that the script names. Those it imports late are learnt from the first runs.
        preload: Vec<String>,
    },
}

/// Why a process could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The command is empty.
    #[error("the agent's command is empty; give a program and its arguments")]
    EmptyCommand,
    /// The operating system refused to start the program.
    #[error("cannot start the agent `{program}`; is it installed, and is the path right?")]
    Start {
        /// The first word of the command.
        program: String,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The fork launcher takes only a Python script.
    #[error(
        "the fork launcher needs a command of the form `python script.py …`, not `{command}`; use the plain launcher"
    )]
    NotAScript {
        /// The command as configured.
        command: String,
    },
    /// The server that preloads the modules could not start or has ended.
    #[error("the fork launcher failed: {reason}; the plain launcher runs the same agent")]
    ForkServer {
        /// What it said, or the operating system.
        reason: String,
    },
}

/// One process to start.
pub(crate) struct LaunchRequest {
    /// Program and arguments.
    pub(crate) command: Vec<String>,
    /// The whole environment; nothing is inherited.
    pub(crate) environment: BTreeMap<String, String>,
    /// The working directory.
    pub(crate) directory: PathBuf,
    /// What the process reads.
    pub(crate) stdin: File,
    /// Where it writes; the write ends of pipes.
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// What is the same for all processes of one agent.
pub(crate) struct LaunchBase {
    /// The part of the environment that does not depend on the episode; the fork launcher imports under it.
    pub(crate) environment: BTreeMap<String, String>,
    /// Variables that do; a module that reads one when it is imported can't be shared between episodes.
    pub(crate) episode_variables: Vec<String>,
    /// Where the fork launcher's server runs.
    pub(crate) directory: PathBuf,
}

/// Starts processes of one agent.
pub(crate) struct Launcher {
    kind: LauncherKind,
    base: LaunchBase,
    /// The running server of the fork launcher; started on first use, and again after its death.
    server: Mutex<Option<ForkServer>>,
}

impl Launcher {
    pub(crate) fn new(kind: LauncherKind, base: LaunchBase) -> Self {
        Self {
            kind,
            base,
            server: Mutex::new(None),
        }
    }

    /// Does what can be done before the first launch: looks for the program, or makes the fork launcher's imports.
    pub(crate) async fn prepare(&self, command: &[String]) -> Result<(), LaunchError> {
        match &self.kind {
            LauncherKind::Plain => find_program(command, &self.base.environment),
            LauncherKind::Fork { preload } => self.connect(command, preload).await.map(drop),
        }
    }

    /// Starts one process.
    pub(crate) async fn launch(&self, request: LaunchRequest) -> Result<RunningAgent, LaunchError> {
        match &self.kind {
            LauncherKind::Plain => launch_plain(request),
            LauncherKind::Fork { preload } => {
                let connection = self.connect(&request.command, preload).await?;
                let (group, exit) = connection.fork(request).await?;
                Ok(RunningAgent {
                    group,
                    process: Process::Forked(exit),
                })
            }
        }
    }

    /// The connection to the fork launcher's server, which is started if there is none.
    async fn connect(&self, command: &[String], preload: &[String]) -> Result<Connection, LaunchError> {
        let mut server = self.server.lock().await;
        if let Some(running) = server.as_ref().filter(|server| !server.is_dead()) {
            return Ok(running.connection());
        }
        let started = ForkServer::start(command, preload, &self.base).await?;
        let connection = started.connection();
        *server = Some(started);
        Ok(connection)
    }
}

/// Whether there is a file that the command's first word means. One with a placeholder is known only in an episode.
fn find_program(command: &[String], environment: &BTreeMap<String, String>) -> Result<(), LaunchError> {
    let program = command.first().ok_or(LaunchError::EmptyCommand)?;
    let path = environment.get("PATH");
    let is_there = match path {
        _ if program.contains('{') => true,
        _ if program.contains('/') => Path::new(program).is_file(),
        Some(path) => std::env::split_paths(path).any(|folder| folder.join(program).is_file()),
        None => true,
    };
    is_there.then_some(()).ok_or_else(|| LaunchError::Start {
        program: program.clone(),
        source: std::io::Error::from(std::io::ErrorKind::NotFound),
    })
}

fn launch_plain(request: LaunchRequest) -> Result<RunningAgent, LaunchError> {
    let (program, arguments) = request.command.split_first().ok_or(LaunchError::EmptyCommand)?;
    let start_error = |source| LaunchError::Start {
        program: program.clone(),
        source,
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(&request.environment)
        .current_dir(&request.directory)
        .stdin(Stdio::from(request.stdin))
        .stdout(Stdio::from(request.stdout))
        .stderr(Stdio::from(request.stderr))
        .process_group(0)
        .kill_on_drop(true);
    let child = command.spawn().map_err(start_error)?;
    let group = child
        .id()
        .and_then(ProcessGroup::new)
        .ok_or_else(|| start_error(std::io::Error::other("it has no process id")))?;
    Ok(RunningAgent {
        group,
        process: Process::Plain(child),
    })
}

enum Process {
    Plain(Child),
    Forked(ForkedExit),
}

/// A process that was started. Dropping it kills its process group.
pub(crate) struct RunningAgent {
    group: ProcessGroup,
    process: Process,
}

impl RunningAgent {
    /// Waits for its end, after which nothing of its process group is left. Can be cancelled and called again.
    pub(crate) async fn wait(&mut self) -> Result<Exit, LaunchError> {
        let exit = match &mut self.process {
            Process::Plain(child) => {
                let status = child.wait().await.map_err(|source| LaunchError::Start {
                    program: "agent".into(),
                    source,
                })?;
                // The leader is gone; what it started may not be.
                self.group.kill();
                status
                    .code()
                    .map_or_else(|| Exit::Signal(status.signal().unwrap_or_default()), Exit::Code)
            }
            // The server has killed the rest of the group before it took the leader away.
            Process::Forked(exit) => exit.wait().await?,
        };
        self.group.disarm();
        Ok(exit)
    }

    /// Asks the whole process group to end.
    pub(crate) fn terminate(&self) {
        self.group.terminate();
    }

    /// Ends the whole process group at once.
    pub(crate) fn kill(&self) {
        self.group.kill();
    }
}
