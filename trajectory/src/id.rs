//! Names of things. Each kind of id is a type of its own, so that one is never taken for another.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }
    };
}

/// Adds `new` to ids that Trainyard makes itself.
macro_rules! generated {
    ($($name:ident),+) => {
        $(
            impl $name {
                /// A new id: a UUIDv7 in 32 hexadecimal digits, so that ids sort by the time they were made.
                #[expect(clippy::new_without_default, reason = "a default that differs each time would surprise")]
                pub fn new() -> Self {
                    Self(uuid::Uuid::now_v7().simple().to_string())
                }
            }
        )+
    };
}

id!(
    /// One episode. Part of the URL that the agent uses.
    EpisodeId
);
id!(
    /// One model call.
    CallId
);
id!(
    /// One tool call.
    ToolCallId
);
id!(
    /// Episodes that are compared with each other.
    GroupId
);
id!(
    /// A task instance of an environment, named by the environment.
    ScenarioId
);
generated!(EpisodeId, CallId, ToolCallId, GroupId);

/// How many adapters have been published: 0 is the base model without an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyVersion(pub u64);

impl PolicyVersion {
    /// The base model.
    pub const BASE: Self = Self(0);

    /// The version's name at an inference server, `policy@N`; `None` for the base model, which has a name of its own.
    pub fn upstream_name(self) -> Option<String> {
        (self.0 > 0).then(|| format!("policy@{}", self.0))
    }

    /// The version that `policy@N` names.
    pub fn from_upstream_name(name: &str) -> Option<Self> {
        name.strip_prefix("policy@")?
            .parse()
            .ok()
            .filter(|version| *version > 0)
            .map(Self)
    }

    /// The version after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_are_plain_json_strings() {
        let ids: Vec<EpisodeId> = (0..100).map(|_| EpisodeId::new()).collect();
        assert!(ids.is_sorted());
        assert_eq!(ids[0].as_str().len(), 32);
        assert_eq!(serde_json::to_string(&EpisodeId::from("a")).unwrap(), "\"a\"");
    }

    #[test]
    fn policy_names_round_trip() {
        assert_eq!(PolicyVersion::BASE.upstream_name(), None);
        let name = PolicyVersion(17).upstream_name().unwrap();
        assert_eq!(PolicyVersion::from_upstream_name(&name), Some(PolicyVersion(17)));
        assert_eq!(PolicyVersion::from_upstream_name("policy@0"), None);
        assert_eq!(PolicyVersion::from_upstream_name("other"), None);
    }
}
