//! What training keeps in the store: which groups were taken, the policy, pass rates, resume state.

use std::collections::{HashMap, HashSet};

use rusqlite::{OptionalExtension, named_params};
use serde_json::Value;

use super::rows::{get, json, optional_unsigned, parse_json, to_integer};
use super::schema::{ACKNOWLEDGEMENTS, POLICIES};
use super::{PassRate, Policy, ReadyFilter, ReadyGroups, Store, reading};
use crate::clock::now_ms;
use crate::error::StoreError;
use crate::id::{GroupId, PolicyVersion, ScenarioId};

/// Weight of the newest outcome in a recent pass rate. With 0.2 a group of eight moves the rate five sixths of the way
/// to its own, so the rate follows a policy that learns and one lucky episode doesn't decide.
const RECENT_WEIGHT: f64 = 0.2;

/// The recent pass rate before any outcome: nothing is known, and such a scenario is worth trying.
const RECENT_START: f64 = 0.5;

/// Counts an outcome of a scenario.
const COUNT_OUTCOME: &str = "INSERT INTO pass_rates (scenario_id, attempts, successes, recent) \
    VALUES (:scenario_id, 1, :success, :start + :weight * (:outcome - :start)) \
    ON CONFLICT (scenario_id) DO UPDATE SET attempts = attempts + 1, \
    successes = successes + :success, recent = recent + :weight * (:outcome - recent)";

impl Store {
    /// Groups to train on, oldest first, and how many were left out for which reason.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn ready_groups(&self, filter: &ReadyFilter) -> Result<ReadyGroups, StoreError> {
        self.read("find ready groups", |connection| {
            reading::ready_groups(connection, filter)
        })
    }

    /// Marks groups as trained on in `step`, so that they are ready only where trained ones are asked for, and counts
    /// what came of their episodes: for each its scenario and whether it succeeded. Both or neither is done. Doing it
    /// again changes nothing: outcomes count only together with a group that was not marked before.
    ///
    /// # Errors
    /// The store can't be written.
    pub fn acknowledge(
        &self,
        groups: &[GroupId],
        step: u64,
        outcomes: &[(ScenarioId, bool)],
    ) -> Result<(), StoreError> {
        let (groups, outcomes) = (groups.to_vec(), outcomes.to_vec());
        self.write("acknowledge groups", move |connection| {
            let sql = format!("{} ON CONFLICT DO NOTHING", ACKNOWLEDGEMENTS.insert());
            let mut insert = connection.prepare(&sql)?;
            let mut n_new = 0;
            for group in groups {
                n_new += insert.execute(named_params! {
                    ":group_id": group.as_str(),
                    ":step": to_integer(step),
                    ":acknowledged_at_ms": now_ms(),
                })?;
            }
            if n_new == 0 {
                return Ok(());
            }
            let mut count = connection.prepare(COUNT_OUTCOME)?;
            for (scenario, success) in outcomes {
                count.execute(named_params! {
                    ":scenario_id": scenario.as_str(),
                    ":success": success,
                    ":outcome": f64::from(u8::from(success)),
                    ":weight": RECENT_WEIGHT,
                    ":start": RECENT_START,
                })?;
            }
            Ok(())
        })
    }

    /// The groups that a step has trained on.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn trained_groups(&self) -> Result<HashSet<GroupId>, StoreError> {
        self.read("read trained groups", |connection| {
            let mut statement = connection.prepare("SELECT group_id FROM acknowledgements")?;
            let ids = statement.query_map([], |row| row.get::<_, String>(0))?;
            ids.map(|id| Ok(id?.into())).collect()
        })
    }

    /// The current policy: the base model until one is set.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn policy(&self) -> Result<Policy, StoreError> {
        self.read("read the policy", |connection| {
            let mut statement =
                connection.prepare("SELECT version, adapter FROM policies ORDER BY rowid DESC LIMIT 1")?;
            let mut rows = statement.query([])?;
            let Some(row) = rows.next()? else {
                return Ok(Policy::default());
            };
            let version = PolicyVersion(optional_unsigned(row, "version")?.unwrap_or(0));
            Ok(Policy {
                version,
                adapter: get(row, "adapter")?,
            })
        })
    }

    /// Makes a policy current. Earlier ones stay in the record.
    ///
    /// # Errors
    /// The store can't be written.
    pub fn set_policy(&self, policy: &Policy) -> Result<(), StoreError> {
        let policy = policy.clone();
        self.write("set the policy", move |connection| {
            connection.prepare(&POLICIES.insert())?.execute(named_params! {
                ":version": to_integer(policy.version.0),
                ":adapter": policy.adapter,
                ":switched_at_ms": now_ms(),
            })?;
            Ok(())
        })
    }

    /// Pass rates of every scenario that has an outcome.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn pass_rates(&self) -> Result<HashMap<ScenarioId, PassRate>, StoreError> {
        self.read("read pass rates", |connection| {
            let mut statement =
                connection.prepare("SELECT scenario_id, attempts, successes, recent FROM pass_rates")?;
            let mut rows = statement.query([])?;
            let mut rates = HashMap::new();
            while let Some(row) = rows.next()? {
                let rate = PassRate {
                    attempts: optional_unsigned(row, "attempts")?.unwrap_or(0),
                    successes: optional_unsigned(row, "successes")?.unwrap_or(0),
                    recent: get(row, "recent")?,
                };
                rates.insert(get::<String>(row, "scenario_id")?.into(), rate);
            }
            Ok(rates)
        })
    }

    /// A small value kept by `key`; `None` where there is none.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn meta_get(&self, key: &str) -> Result<Option<Value>, StoreError> {
        self.read("read a value", |connection| {
            let mut statement = connection.prepare("SELECT value FROM meta WHERE key = ?1")?;
            let text = statement.query_row([key], |row| row.get::<_, String>(0)).optional()?;
            text.map(|text| parse_json("meta.value", &text)).transpose()
        })
    }

    /// Keeps a small value by `key`, in place of the one before.
    ///
    /// # Errors
    /// The store can't be written.
    pub fn meta_set(&self, key: &str, value: &Value) -> Result<(), StoreError> {
        let (key, value) = (key.to_owned(), json(value));
        self.write("keep a value", move |connection| {
            let sql = "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2";
            connection.prepare(sql)?.execute((key, value))?;
            Ok(())
        })
    }
}
