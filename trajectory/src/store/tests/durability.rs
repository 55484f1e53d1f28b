//! Group commit, what survives the end of a process, and files that are no store.

use std::process::Command;
use std::sync::Barrier;

use super::*;

#[test]
fn writers_share_commits_and_get_a_sequence_without_gaps() {
    const WRITERS: usize = 8;
    const CALLS: usize = 25;
    let world = World::new();
    let id = world.open("g");
    let before = world.store.stats();
    let start = Barrier::new(WRITERS);
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                start.wait();
                for _ in 0..CALLS {
                    let call = call(&id);
                    let name = call.id.clone();
                    let sequence = world.store.append_call(call).unwrap();
                    let record = world.store.record(&id).unwrap().unwrap();
                    assert_eq!(
                        record.calls[sequence as usize - 1].id,
                        name,
                        "a write that returned is there"
                    );
                }
            });
        }
    });
    let after = world.store.stats();
    assert_eq!(after.writes - before.writes, (WRITERS * CALLS) as u64);
    assert!(after.commits - before.commits < (WRITERS * CALLS) as u64, "{after:?}");
    let world = world.reopen();
    let calls = world.store.record(&id).unwrap().unwrap().calls;
    assert!(calls.iter().map(|call| call.sequence as usize).eq(1..=WRITERS * CALLS));
}

const CHILD: &str = "TRAJECTORY_TEST_CHILD";

/// Runs only as a child of the test below.
#[test]
fn child_that_aborts_after_each_write_returned() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let store = Store::open(Path::new(&path)).unwrap();
    let id = store.open_episode(NewEpisode::default()).unwrap().id;
    for _ in 0..5 {
        store.append_call(call(&id)).unwrap();
    }
    std::process::abort();
}

#[test]
fn a_write_that_returned_survives_the_end_of_its_process() {
    let world = World::new();
    let status = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "store::tests::durability::child_that_aborts_after_each_write_returned",
        ])
        .env(CHILD, world.path())
        .output()
        .unwrap()
        .status;
    assert!(!status.success());
    let episodes = world.store.episodes(&EpisodeFilter::default()).unwrap();
    assert_eq!(world.store.record(&episodes[0].id).unwrap().unwrap().calls.len(), 5);
}

#[test]
fn power_means_a_sync_each_commit() {
    let folder = tempfile::tempdir().unwrap();
    let connection = sqlite::open_writer(&folder.path().join("a.db"), Sync::Power).unwrap();
    let level: i64 = connection
        .pragma_query_value(None, "synchronous", |row| row.get(0))
        .unwrap();
    assert_eq!(level, 2);
    let mode: String = connection
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "wal");
}

#[test]
fn a_newer_store_is_refused_and_left_alone() {
    let world = World::new();
    let path = world.path();
    drop(world.store);
    Connection::open(&path)
        .unwrap()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    let before = std::fs::read(&path).unwrap();
    let message = say(&Store::open(&path).unwrap_err());
    assert!(
        message.contains("schema 99") && message.contains("newer trainyard"),
        "{message}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn another_file_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(
        &text,
        "not a database at all, but long enough to be read as one\n".repeat(40),
    )
    .unwrap();
    let other = folder.path().join("other.db");
    Connection::open(&other)
        .unwrap()
        .execute_batch("CREATE TABLE mine (x)")
        .unwrap();
    for path in [&text, &other] {
        let before = std::fs::read(path).unwrap();
        let message = say(&Store::open(path).unwrap_err());
        assert!(message.contains("is not a trajectory store"), "{message}");
        assert_eq!(std::fs::read(path).unwrap(), before);
    }
}

#[test]
fn a_file_cut_short_is_named_as_damaged() {
    let world = World::new();
    for _ in 0..20 {
        world.play("g", 1.0);
    }
    let path = world.path();
    drop(world.store);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 8]).unwrap();
    let message = say(&Store::open(&path).unwrap_err());
    assert!(
        message.contains("is damaged") && message.contains("trajectories.db"),
        "{message}"
    );
}

#[test]
fn a_value_without_meaning_is_named() {
    let world = World::new();
    let id = world.play("g", 1.0);
    let connection = Connection::open(world.path()).unwrap();
    connection
        .execute("UPDATE calls SET prompt_token_ids = x'010203'", [])
        .unwrap();
    let message = say(&world.store.record(&id).unwrap_err());
    assert!(
        message.contains("prompt_token_ids") && message.contains("3 bytes"),
        "{message}"
    );
}

#[test]
fn missing_places_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.db");
    let message = say(&Store::open_existing(&path).unwrap_err());
    assert!(message.contains("there is no trajectory store at"), "{message}");
    assert!(!path.try_exists().unwrap());
    let message = say(&Store::open(&folder.path().join("no folder/a.db")).unwrap_err());
    assert!(message.contains("check that its folder exists"), "{message}");
}
