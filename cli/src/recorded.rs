//! Recorded episodes from wherever they lie: a store, a run's folder, or an export.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use trajectory::{EpisodeFilter, EpisodeState, ExportedEpisode, Split, Store, StoreError, read_export};

use crate::failure::{UsageError, chain};

/// The closed episodes of `split` (and those of none), the oldest first.
///
/// # Errors
/// There is nothing at `path`, or something else; the first bad line of an export.
pub(crate) fn read(path: &Path, split: Split) -> Result<Vec<ExportedEpisode>, UsageError> {
    let path = if path.is_dir() {
        path.join("trajectories.db")
    } else {
        path.to_owned()
    };
    let wrong = |error: &dyn std::error::Error| UsageError::new(format!("{}: {}", path.display(), chain(error)));
    let mut episodes = if is_store(&path).map_err(|error| wrong(&error))? {
        from_store(&path, split).map_err(|error| wrong(&error))?
    } else {
        let file = File::open(&path).map_err(|error| wrong(&error))?;
        read_export(BufReader::new(file)).map_err(|error| {
            wrong(&error).hint("give a store, the folder of a run, or a file that `trainyard log export` wrote")
        })?
    };
    episodes.retain(|episode| {
        episode.state == EpisodeState::Closed && episode.split.is_none_or(|episodes| episodes == split)
    });
    Ok(episodes)
}

/// SQLite files begin with their name.
fn is_store(path: &Path) -> std::io::Result<bool> {
    let mut head = Vec::new();
    File::open(path)?.take(15).read_to_end(&mut head)?;
    Ok(head == b"SQLite format 3")
}

fn from_store(path: &Path, split: Split) -> Result<Vec<ExportedEpisode>, StoreError> {
    let store = Store::open_existing(path)?;
    let mut episodes = store.episodes(&EpisodeFilter {
        state: Some(EpisodeState::Closed),
        split: Some(split),
        ..EpisodeFilter::default()
    })?;
    // The store lists the newest first.
    episodes.reverse();
    let records = episodes
        .iter()
        .filter_map(|episode| store.record(&episode.id).transpose());
    records.map(|record| record.map(ExportedEpisode::from)).collect()
}
