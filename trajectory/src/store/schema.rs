//! Every table and column of the store, once. Statements are made from this list, so that a column can't be written
//! under one name and read under another.
//!
//! Times are milliseconds since 1970 UTC, JSON is text, token ids are little-endian `u32` blobs and logprobs
//! little-endian `f32` blobs.

/// Version of this layout, kept in SQLite's `user_version`. A change adds a step to [`MIGRATIONS`].
pub(crate) const SCHEMA_VERSION: i64 = 1;

/// Kept in SQLite's `application_id`: "TYRD". Tells a store from any other SQLite file.
pub(crate) const APPLICATION_ID: i64 = 0x5459_5244;

/// Statements that lead from each version to the next: the first from 1 to 2.
pub(crate) const MIGRATIONS: &[&str] = &[];

const _: () = assert!(MIGRATIONS.len() as i64 == SCHEMA_VERSION - 1);

/// One table.
pub(crate) struct Table {
    /// Name.
    pub(crate) name: &'static str,
    /// Each column's name and declaration.
    pub(crate) columns: &'static [(&'static str, &'static str)],
    /// Constraints over several columns.
    pub(crate) rules: &'static [&'static str],
}

impl Table {
    /// The statement that makes the table.
    pub(crate) fn create(&self) -> String {
        let columns = self
            .columns
            .iter()
            .map(|(name, declaration)| format!("{name} {declaration}"));
        let parts: Vec<String> = columns
            .chain(self.rules.iter().map(|rule| (*rule).to_owned()))
            .collect();
        format!("CREATE TABLE {} ({}) STRICT;", self.name, parts.join(", "))
    }

    /// An insertion of one row with a parameter `:name` for each column.
    pub(crate) fn insert(&self) -> String {
        let parameters: Vec<String> = self.columns.iter().map(|(name, _)| format!(":{name}")).collect();
        format!(
            "INSERT INTO {} ({}) VALUES ({})",
            self.name,
            self.column_list(),
            parameters.join(", ")
        )
    }

    /// The columns, qualified by the table's name.
    pub(crate) fn column_list_qualified(&self) -> String {
        let columns: Vec<String> = self
            .columns
            .iter()
            .map(|(name, _)| format!("{}.{name}", self.name))
            .collect();
        columns.join(", ")
    }

    fn column_list(&self) -> String {
        self.columns
            .iter()
            .map(|(name, _)| *name)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// One row an episode.
pub(crate) const EPISODES: Table = Table {
    name: "episodes",
    columns: &[
        ("id", "TEXT NOT NULL PRIMARY KEY"),
        ("secret", "TEXT NOT NULL"),
        ("scenario_id", "TEXT"),
        ("group_id", "TEXT"),
        ("split", "TEXT"),
        ("metadata", "TEXT NOT NULL"),
        ("overrides", "TEXT NOT NULL"),
        ("upstream", "TEXT"),
        ("agent_command", "TEXT"),
        ("implicit", "INTEGER NOT NULL"),
        ("state", "TEXT NOT NULL"),
        ("stop_reason", "TEXT"),
        ("failure_cause", "TEXT"),
        ("failure_message", "TEXT"),
        // Metrics given on closing; those of a reward are in its row.
        ("metrics", "TEXT NOT NULL"),
        ("tainted", "TEXT"),
        ("opened_at_ms", "INTEGER NOT NULL"),
        ("closed_at_ms", "INTEGER"),
    ],
    rules: &[],
};

/// One row a reward revision: the first is the reward, later ones amend it.
pub(crate) const REWARDS: Table = Table {
    name: "rewards",
    columns: &[
        ("episode_id", "TEXT NOT NULL REFERENCES episodes (id)"),
        ("revision", "INTEGER NOT NULL"),
        ("reward", "REAL NOT NULL"),
        ("metrics", "TEXT NOT NULL"),
        ("source", "TEXT"),
        ("recorded_at_ms", "INTEGER NOT NULL"),
    ],
    rules: &["PRIMARY KEY (episode_id, revision)"],
};

/// One row a model call.
pub(crate) const CALLS: Table = Table {
    name: "calls",
    columns: &[
        ("id", "TEXT NOT NULL PRIMARY KEY"),
        ("episode_id", "TEXT NOT NULL REFERENCES episodes (id)"),
        ("sequence", "INTEGER NOT NULL"),
        ("endpoint", "TEXT NOT NULL"),
        ("model", "TEXT NOT NULL"),
        ("upstream_model", "TEXT NOT NULL"),
        ("request", "TEXT NOT NULL"),
        ("response", "TEXT"),
        ("prompt_token_ids", "BLOB"),
        ("policy_version", "INTEGER"),
        ("sampling", "TEXT NOT NULL"),
        ("grammar_constrained", "INTEGER NOT NULL"),
        ("status", "TEXT NOT NULL"),
        ("upstream_status", "INTEGER"),
        ("error", "TEXT"),
        ("prompt_tokens", "INTEGER"),
        ("completion_tokens", "INTEGER"),
        ("received_at_ms", "INTEGER NOT NULL"),
        ("first_token_ms", "INTEGER"),
        ("total_ms", "INTEGER NOT NULL"),
    ],
    rules: &["UNIQUE (episode_id, sequence)"],
};

/// One row a choice of a model call.
pub(crate) const CHOICES: Table = Table {
    name: "choices",
    columns: &[
        ("call_id", "TEXT NOT NULL REFERENCES calls (id)"),
        ("choice", "INTEGER NOT NULL"),
        ("token_ids", "BLOB NOT NULL"),
        ("behaviour_logprobs", "BLOB NOT NULL"),
        ("finish_reason", "TEXT"),
    ],
    rules: &["PRIMARY KEY (call_id, choice)"],
};

/// One row a tool call.
pub(crate) const TOOL_CALLS: Table = Table {
    name: "tool_calls",
    columns: &[
        ("id", "TEXT NOT NULL PRIMARY KEY"),
        ("episode_id", "TEXT NOT NULL REFERENCES episodes (id)"),
        ("sequence", "INTEGER NOT NULL"),
        ("server", "TEXT NOT NULL"),
        ("tool", "TEXT NOT NULL"),
        ("arguments", "TEXT NOT NULL"),
        ("result", "TEXT"),
        ("is_error", "INTEGER NOT NULL"),
        ("error", "TEXT"),
        ("started_at_ms", "INTEGER NOT NULL"),
        ("duration_ms", "INTEGER NOT NULL"),
    ],
    rules: &["UNIQUE (episode_id, sequence)"],
};

/// One row a group that was trained on: no group has two.
pub(crate) const ACKNOWLEDGEMENTS: Table = Table {
    name: "acknowledgements",
    columns: &[
        ("group_id", "TEXT NOT NULL PRIMARY KEY"),
        ("step", "INTEGER NOT NULL"),
        ("acknowledged_at_ms", "INTEGER NOT NULL"),
    ],
    rules: &[],
};

/// One row a switch of the policy; the last one is current.
pub(crate) const POLICIES: Table = Table {
    name: "policies",
    columns: &[
        ("version", "INTEGER NOT NULL"),
        ("adapter", "TEXT"),
        ("switched_at_ms", "INTEGER NOT NULL"),
    ],
    rules: &[],
};

/// One row a scenario that was tried.
pub(crate) const PASS_RATES: Table = Table {
    name: "pass_rates",
    columns: &[
        ("scenario_id", "TEXT NOT NULL PRIMARY KEY"),
        ("attempts", "INTEGER NOT NULL"),
        ("successes", "INTEGER NOT NULL"),
        ("recent", "REAL NOT NULL"),
    ],
    rules: &[],
};

/// Small JSON values by key, for a trainer's resume state.
pub(crate) const META: Table = Table {
    name: "meta",
    columns: &[("key", "TEXT NOT NULL PRIMARY KEY"), ("value", "TEXT NOT NULL")],
    rules: &[],
};

/// Every table, referenced ones first.
pub(crate) const TABLES: &[Table] = &[
    EPISODES,
    REWARDS,
    CALLS,
    CHOICES,
    TOOL_CALLS,
    ACKNOWLEDGEMENTS,
    POLICIES,
    PASS_RATES,
    META,
];

/// Indexes beside those of keys.
pub(crate) const INDEXES: &[&str] = &[
    "CREATE INDEX episodes_by_group ON episodes (group_id) WHERE group_id IS NOT NULL;",
    "CREATE INDEX episodes_by_state ON episodes (state);",
];
