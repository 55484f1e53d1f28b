//! Enums that are words in JSON, in the store and on the command line: the same word everywhere.

/// A word that isn't one of an enum's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{found}' is not a known {kind}; use one of: {known}")]
pub struct UnknownName {
    /// The enum.
    pub kind: &'static str,
    /// The word.
    pub found: String,
    /// The words that there are.
    pub known: String,
}

/// Declares an enum whose variants have one word each for serde, `as_str`, `Display` and `FromStr`.
macro_rules! named_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $word)] $variant),+
        }

        impl $name {
            /// Every variant.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word for it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::names::UnknownName;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                Self::ALL.iter().copied().find(|name| name.as_str() == word).ok_or_else(|| crate::names::UnknownName {
                    kind: stringify!($name),
                    found: word.to_owned(),
                    known: Self::ALL.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", "),
                })
            }
        }
    };
}

pub(crate) use named_enum;
