//! `trainyard log`: reads a store, also one that is in use.

mod list;
mod transcript;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use trajectory::{
    Episode, EpisodeFilter, EpisodeId, EpisodeRecord, EpisodeState, ExportedEpisode, GroupId, ScenarioId, Split, Store,
};

use crate::failure::{UsageError, chain};
use crate::telemetry::{print, print_error, stdout_closed};

/// Arguments of `trainyard log`.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// The store: the proxy's --store file, or a run's folder
    #[arg(long, value_name = "FILE", default_value = "trajectories.db", global = true)]
    store: PathBuf,
    #[command(subcommand)]
    command: LogCommand,
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// List episodes, the newest first
    Ls(ListArgs),
    /// Show what was said and called in one episode
    Show(ShowArgs),
    /// Write episodes as JSON lines, the oldest first; the form that `trainer` and others read
    Export(ExportArgs),
}

/// Which episodes.
#[derive(Debug, Args)]
struct Selection {
    /// Only of this group
    #[arg(long, value_name = "ID")]
    group: Option<String>,
    /// Only of this scenario
    #[arg(long, value_name = "ID")]
    scenario: Option<String>,
    /// Only of this split: train or held_out
    #[arg(long)]
    split: Option<Split>,
}

impl Selection {
    fn filter(&self) -> EpisodeFilter {
        EpisodeFilter {
            group: self.group.clone().map(GroupId::from),
            scenario: self.scenario.clone().map(ScenarioId::from),
            split: self.split,
            ..EpisodeFilter::default()
        }
    }
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    selection: Selection,
    /// Only in this state: open or closed
    #[arg(long)]
    state: Option<EpisodeState>,
    /// Most episodes; 0 lists all
    #[arg(short = 'n', long, value_name = "N", default_value_t = 30)]
    limit: usize,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Its id, or the beginning of it
    episode: String,
    /// Long texts to their end
    #[arg(long, conflicts_with = "json")]
    full: bool,
    /// The whole record as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ExportArgs {
    #[command(flatten)]
    selection: Selection,
    /// Only this episode; may be repeated
    #[arg(long = "episode", value_name = "ID")]
    episodes: Vec<String>,
    /// Episodes that are still open too
    #[arg(long)]
    include_open: bool,
    /// File to write; standard output if absent
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Reads the store and prints.
pub(crate) fn run(args: &LogArgs) -> anyhow::Result<()> {
    let path = if args.store.is_dir() {
        args.store.join("trajectories.db")
    } else {
        args.store.clone()
    };
    let store = Store::open_existing(&path).map_err(|error| {
        UsageError::new(chain(&error)).hint("name the store with --store FILE, or the folder of a run")
    })?;
    let done = match &args.command {
        LogCommand::Ls(args) => ls(&store, args),
        LogCommand::Show(args) => show(&store, args),
        LogCommand::Export(args) => export(&store, args),
    };
    // `trainyard log … | head` is not a failure.
    done.or_else(|error| if stdout_closed(&error) { Ok(()) } else { Err(error) })
}

fn ls(store: &Store, args: &ListArgs) -> anyhow::Result<()> {
    let limit = (args.limit > 0).then_some(args.limit);
    let episodes = store.episodes(&EpisodeFilter {
        state: args.state,
        limit,
        ..args.selection.filter()
    })?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.json {
        for episode in &episodes {
            serde_json::to_writer(&mut out, episode).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
    } else {
        out.write_all(list::table(&episodes).as_bytes())?;
    }
    out.flush()?;
    if limit.is_some_and(|limit| episodes.len() == limit) {
        print_error(format!("the newest {} episodes; --limit 0 lists all", episodes.len()));
    }
    Ok(())
}

fn show(store: &Store, args: &ShowArgs) -> anyhow::Result<()> {
    let record = find(store, &args.episode)?;
    if args.json {
        print(serde_json::to_string_pretty(&record)?);
    } else {
        let revisions = store.reward_revisions(&record.episode.id)?;
        let text = transcript::transcript(&record, &revisions, args.full);
        std::io::stdout().lock().write_all(text.as_bytes())?;
    }
    Ok(())
}

/// The episode whose id begins so.
fn find(store: &Store, beginning: &str) -> anyhow::Result<EpisodeRecord> {
    if let Some(record) = store.record(&EpisodeId::from(beginning))? {
        return Ok(record);
    }
    let episodes = store.episodes(&EpisodeFilter::default())?;
    let mut matching = episodes
        .iter()
        .filter(|episode| episode.id.as_str().starts_with(beginning));
    let hint = "`trainyard log ls` lists the episodes";
    let (Some(episode), None) = (matching.next(), matching.next()) else {
        let n = episodes
            .iter()
            .filter(|episode| episode.id.as_str().starts_with(beginning))
            .count();
        let problem = if n == 0 {
            "no episode has"
        } else {
            "several episodes have"
        };
        return Err(
            UsageError::new(format!("{problem} an id that begins with '{beginning}'"))
                .hint(hint)
                .into(),
        );
    };
    let record = store.record(&episode.id)?;
    record.with_context(|| format!("episode {} is gone", episode.id))
}

fn export(store: &Store, args: &ExportArgs) -> anyhow::Result<()> {
    let state = (!args.include_open).then_some(EpisodeState::Closed);
    let ids: Vec<EpisodeId> = if args.episodes.is_empty() {
        let episodes = store.episodes(&EpisodeFilter {
            state,
            ..args.selection.filter()
        })?;
        episodes.into_iter().rev().map(|Episode { id, .. }| id).collect()
    } else {
        args.episodes
            .iter()
            .map(|id| Ok(find(store, id)?.episode.id))
            .collect::<anyhow::Result<_>>()?
    };
    let Some(output) = &args.output else {
        return write_lines(store, &ids, std::io::stdout().lock());
    };
    // A reader never sees half a file, and an interrupted export leaves the last one as it was.
    let mut partial = output.clone().into_os_string();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let file = File::create(&partial).map_err(|source| {
        UsageError::new(format!("can't write {}: {source}", partial.display())).hint("check the folder of --output")
    })?;
    write_lines(store, &ids, file)?;
    std::fs::rename(&partial, output).with_context(|| format!("can't rename to {}", output.display()))?;
    print_error(format!("{} episodes in {}", ids.len(), output.display()));
    Ok(())
}

fn write_lines(store: &Store, ids: &[EpisodeId], out: impl Write) -> anyhow::Result<()> {
    let mut out = BufWriter::new(out);
    for id in ids {
        if let Some(record) = store.record(id)? {
            writeln!(out, "{}", ExportedEpisode::from(record).to_line())?;
        }
    }
    out.flush()?;
    Ok(())
}
