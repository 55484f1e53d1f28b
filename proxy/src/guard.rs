//! Who may use the control and MCP routes: the holder of the token, and no web page that a browser was tricked into
//! sending here (DNS rebinding).

use std::net::SocketAddr;

use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Uri, header};

use crate::address::{EpisodeKey, api_key, secrets_equal};
use crate::error::ApiError;

/// The rules of one listener.
#[derive(Clone)]
pub(crate) struct Guard {
    token: Option<String>,
    listening: SocketAddr,
}

impl Guard {
    pub(crate) fn new(token: Option<String>, listening: SocketAddr) -> Self {
        Self { token, listening }
    }

    /// Whether callers need a key at all.
    pub(crate) fn is_open(&self) -> bool {
        self.token.is_none()
    }

    /// Whether the request presents the control token; false where there is none.
    pub(crate) fn has_token(&self, headers: &HeaderMap) -> bool {
        match (&self.token, api_key(headers)) {
            (Some(token), Some(key)) => secrets_equal(token, key),
            _ => false,
        }
    }

    /// Whether a header's value, bare or after a scheme, is a key that this proxy gave out: the control token or an
    /// episode's key. Such a value is nobody else's business.
    pub(crate) fn is_our_key(&self, value: &HeaderValue) -> bool {
        let Ok(value) = value.to_str() else { return false };
        let key = value.split_once(' ').map_or(value, |(_, key)| key).trim();
        let is_token = self.token.as_deref().is_some_and(|token| secrets_equal(token, key));
        is_token || EpisodeKey::parse(key).is_some()
    }

    /// For control routes.
    pub(crate) fn check_control(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        self.check_origin(headers)?;
        if self.is_open() || self.has_token(headers) {
            return Ok(());
        }
        Err(ApiError::unauthorized(
            "this route needs `Authorization: Bearer` with the proxy's token",
        ))
    }

    /// A page can make a browser call any address, but not choose `Host` and `Origin`.
    pub(crate) fn check_origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let host = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
        // Beyond loopback the proxy has names that it can't know, and a token that a page does not have.
        if self.listening.ip().is_loopback() && !host.as_ref().is_some_and(|host| self.is_here(host.host())) {
            let message = "the Host header names another machine than the one that this proxy listens on";
            return Err(ApiError::forbidden("host_not_allowed", message));
        }
        let Some(origin) = headers.get(header::ORIGIN) else {
            return Ok(());
        };
        let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
        let origin = origin.as_ref().and_then(Uri::authority);
        if origin.is_some_and(|origin| self.is_here(origin.host()) || Some(origin) == host.as_ref()) {
            return Ok(());
        }
        Err(ApiError::forbidden(
            "origin_not_allowed",
            "requests from web pages of other origins are refused",
        ))
    }

    fn is_here(&self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost")
            || host
                .parse::<std::net::IpAddr>()
                .is_ok_and(|ip| ip.is_loopback() || ip == self.listening.ip())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(guard: &Guard, pairs: &[(&'static str, &'static str)]) -> Result<(), &'static str> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        guard.check_control(&headers).map_err(|error| error.code)
    }

    #[test]
    fn rebinding_is_refused() {
        let guard = Guard::new(None, "127.0.0.1:80".parse().unwrap());
        assert_eq!(check(&guard, &[("host", "127.0.0.1:80")]), Ok(()));
        assert_eq!(check(&guard, &[("host", "localhost")]), Ok(()));
        assert_eq!(check(&guard, &[("host", "[::1]:80")]), Ok(()));
        assert_eq!(check(&guard, &[("host", "evil.example")]), Err("host_not_allowed"));
        assert_eq!(check(&guard, &[]), Err("host_not_allowed"));
        let page = [("host", "localhost"), ("origin", "http://evil.example")];
        assert_eq!(check(&guard, &page), Err("origin_not_allowed"));
        assert_eq!(
            check(&guard, &[("host", "localhost"), ("origin", "null")]),
            Err("origin_not_allowed")
        );
        assert_eq!(
            check(&guard, &[("host", "localhost"), ("origin", "http://localhost:3000")]),
            Ok(())
        );
    }

    #[test]
    fn the_token_is_demanded_where_there_is_one() {
        let guard = Guard::new(Some("t0ken".into()), "0.0.0.0:80".parse().unwrap());
        assert_eq!(check(&guard, &[("host", "proxy.example")]), Err("invalid_api_key"));
        assert_eq!(
            check(&guard, &[("host", "proxy.example"), ("authorization", "Bearer t0ke")]),
            Err("invalid_api_key")
        );
        assert_eq!(
            check(&guard, &[("host", "proxy.example"), ("authorization", "Bearer t0ken")]),
            Ok(())
        );
    }
}
