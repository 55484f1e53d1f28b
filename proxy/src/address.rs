//! Who is calling: the episode's key, the control token, or somebody else's key.

use http::{HeaderMap, header};
use subtle::ConstantTimeEq;

const KEY_PREFIX: &str = "ty-";

/// What a request presents as its API key: `Authorization: Bearer …`, else `x-api-key`.
pub(crate) fn api_key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
}

/// An episode's key: its id, and the secret that opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpisodeKey<'a> {
    pub(crate) episode: &'a str,
    pub(crate) secret: &'a str,
}

impl<'a> EpisodeKey<'a> {
    /// Reads `ty-{episode}-{secret}`; `None` for anybody else's key.
    pub(crate) fn parse(key: &'a str) -> Option<Self> {
        let (episode, secret) = key.strip_prefix(KEY_PREFIX)?.split_once('-')?;
        let plausible = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
        (plausible(episode) && plausible(secret)).then_some(Self { episode, secret })
    }
}

/// The key that is handed to an agent.
pub(crate) fn format_key(episode: &str, secret: &str) -> String {
    format!("{KEY_PREFIX}{episode}-{secret}")
}

/// Compares secrets in a time that does not tell where they differ.
pub(crate) fn secrets_equal(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn keys_of_episodes_are_told_from_others() {
        let key = format_key("0190ab", "5ec2e7");
        assert_eq!(
            EpisodeKey::parse(&key),
            Some(EpisodeKey {
                episode: "0190ab",
                secret: "5ec2e7"
            })
        );
        for other in ["sk-abc", "ty-", "ty-abc", "ty--x", "ty-a-", "ty-a/b-c", "ty-a-b-c"] {
            assert_eq!(EpisodeKey::parse(other), None, "{other}");
        }
    }

    #[test]
    fn either_header_carries_the_key() {
        let mut headers = HeaderMap::new();
        assert_eq!(api_key(&headers), None);
        headers.insert("x-api-key", HeaderValue::from_static("a"));
        assert_eq!(api_key(&headers), Some("a"));
        headers.insert("authorization", HeaderValue::from_static("bearer b"));
        assert_eq!(api_key(&headers), Some("b"));
    }

    #[test]
    fn secrets() {
        assert!(secrets_equal("abc", "abc"));
        assert!(!secrets_equal("abc", "abd") && !secrets_equal("abc", "ab"));
    }
}
